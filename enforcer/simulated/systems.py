"""The sharing systems that a simulated cluster can play, by the name of their record."""

from __future__ import annotations

from enforcer.simulated.device_plugin import MPS_SYSTEM, TIME_SLICING_SYSTEM, WHOLE_CARDS_SYSTEM
from enforcer.simulated.hami import EFFECTIVE_GPU_SYSTEM, HAMI_SYSTEM
from enforcer.simulated.kai import KAI_SYSTEM
from enforcer.simulated.mgpu import MGPU_SYSTEM
from enforcer.simulated.system import SharingSystem
from enforcer.simulated.vgpumanager import VGPU_MANAGER_SYSTEM
from enforcer.simulated.volcano import VOLCANO_SYSTEM
from fleet.errors import Misconfigured

SYSTEMS: tuple[SharingSystem, ...] = (
    WHOLE_CARDS_SYSTEM,
    HAMI_SYSTEM,
    EFFECTIVE_GPU_SYSTEM,
    VOLCANO_SYSTEM,
    MGPU_SYSTEM,
    VGPU_MANAGER_SYSTEM,
    KAI_SYSTEM,
    TIME_SLICING_SYSTEM,
    MPS_SYSTEM,
)
"""In the order of `fleet.capabilities.register`; a new one is a file beside this one and a line here."""

PLAYABLE: tuple[str, ...] = tuple(system.capabilities.backend for system in SYSTEMS)
"""Values of `enforcer.backend` that a simulated cluster can play."""


def system_of(backend: str) -> SharingSystem:
    """The system of a backend.

    Raises:
        Misconfigured: a simulated cluster can't play it.
    """
    for system in SYSTEMS:
        if system.capabilities.backend == backend:
            return system
    raise Misconfigured(
        f"cannot play enforcer.backend={backend} in a simulated cluster: it plays {', '.join(PLAYABLE)}"
    )
