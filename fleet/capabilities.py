"""Every way of sharing a card, and what it really enforces: planned with by the recommender, rendered by the enforcer.

A record a backend, each in its family's file; `enforcer`'s adapters carry the same name as their record here. Imports
nothing outside the standard library.
"""

from __future__ import annotations

from fleet.capability import (
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    Division,
    FramebufferIsolation,
    Granularity,
    Oversubscription,
)
from fleet.capability_dra import DRA_MIG, DRA_SHARED
from fleet.capability_hami import EFFECTIVE_GPU, HAMI
from fleet.capability_kai import KAI
from fleet.capability_mgpu import MGPU
from fleet.capability_mig import MIG
from fleet.capability_nvidia_sharing import MPS, TIME_SLICING
from fleet.capability_vgpumanager import VGPU_MANAGER
from fleet.capability_volcano import VOLCANO
from fleet.capability_whole_cards import WHOLE_CARDS
from fleet.errors import Misconfigured

__all__ = [
    "CAPABILITIES",
    "DRA_MIG",
    "DRA_SHARED",
    "EFFECTIVE_GPU",
    "HAMI",
    "KAI",
    "MGPU",
    "MIG",
    "MPS",
    "TIME_SLICING",
    "VGPU_MANAGER",
    "VOLCANO",
    "WHOLE_CARDS",
    "Capabilities",
    "ComputeIsolation",
    "CorePolicy",
    "Division",
    "FramebufferIsolation",
    "Granularity",
    "Oversubscription",
    "capabilities_of",
]

CAPABILITIES: tuple[Capabilities, ...] = (
    WHOLE_CARDS,
    HAMI,
    EFFECTIVE_GPU,
    VOLCANO,
    MGPU,
    VGPU_MANAGER,
    KAI,
    TIME_SLICING,
    MPS,
    MIG,
    DRA_MIG,
    DRA_SHARED,
)
"""Every backend, from the one that enforces nothing new on; a new one is a record in its own file and a line here."""


def capabilities_of(backend: str) -> Capabilities:
    """The record of a backend by its name.

    Raises:
        Misconfigured: no such backend.
    """
    for record in CAPABILITIES:
        if record.backend == backend:
            return record
    known = ", ".join(record.backend for record in CAPABILITIES)
    raise Misconfigured(f"cannot use GPU-sharing backend {backend!r}: unknown; set enforcer.backend to one of {known}")
