"""Every way of sharing a card, and what it really enforces: planned with by the recommender, rendered by the enforcer.

A record a backend, each in its family's file; `enforcer`'s adapters carry the same name as their record here. Imports
nothing outside the standard library.
"""

from __future__ import annotations

from fleet.capabilities.capability import (
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    Division,
    FramebufferIsolation,
    Granularity,
    Oversubscription,
)
from fleet.capabilities.dra import DRA_MIG, DRA_SHARED
from fleet.capabilities.hami import EFFECTIVE_GPU, HAMI
from fleet.capabilities.kai import KAI
from fleet.capabilities.mgpu import MGPU
from fleet.capabilities.mig import MIG
from fleet.capabilities.nvidia_sharing import MPS, TIME_SLICING
from fleet.capabilities.vgpumanager import VGPU_MANAGER
from fleet.capabilities.volcano import VOLCANO
from fleet.capabilities.whole_cards import WHOLE_CARDS
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
