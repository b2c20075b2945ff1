"""Every backend that can render changes, by the name of its record, in the order of `fleet.capabilities.register`.

A new backend is a file beside this one and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from enforcer.backend import Backend
from enforcer.backends.dra import DraMigBackend, DraSharedBackend
from enforcer.backends.dra_counted import DraCountedBackend
from enforcer.backends.effectivegpu import EffectiveGpuBackend
from enforcer.backends.hami import HamiBackend
from enforcer.backends.kai import KaiBackend, KaiNvFractionsBackend
from enforcer.backends.mgpu import MgpuBackend
from enforcer.backends.mig import MigBackend
from enforcer.backends.nvidia_sharing import MpsBackend, TimeSlicingBackend
from enforcer.backends.vgpumanager import VgpuManagerBackend
from enforcer.backends.volcano import VolcanoBackend
from enforcer.backends.whole_cards import WholeCardsBackend

BACKENDS: tuple[tuple[str, Callable[[datetime], Backend]], ...] = (
    ("whole_cards", WholeCardsBackend),
    ("hami", HamiBackend),
    ("effectivegpu", EffectiveGpuBackend),
    ("volcano", VolcanoBackend),
    ("mgpu", MgpuBackend),
    ("vgpu_manager", VgpuManagerBackend),
    ("kai", KaiBackend),
    ("kai_nvfractions", KaiNvFractionsBackend),
    ("nvidia_time_slicing", TimeSlicingBackend),
    ("nvidia_mps", MpsBackend),
    ("mig", MigBackend),
    ("dra_mig", DraMigBackend),
    ("dra_shared", DraSharedBackend),
    ("dra_consumable", DraCountedBackend),
)
"""Name and maker; each is made with the moment of the change."""
