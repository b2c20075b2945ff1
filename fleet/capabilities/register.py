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
from fleet.capabilities.dra import DRA_CONSUMABLE, DRA_MIG, DRA_SHARED
from fleet.capabilities.hami import EFFECTIVE_GPU, HAMI, HAMI_2_8
from fleet.capabilities.kai import KAI, KAI_NVFRACTIONS
from fleet.capabilities.mgpu import MGPU
from fleet.capabilities.mig import MIG
from fleet.capabilities.nvidia_sharing import MPS, TIME_SLICING
from fleet.capabilities.tensor_fusion import TENSOR_FUSION
from fleet.capabilities.version import record_for
from fleet.capabilities.vgpumanager import VGPU_MANAGER
from fleet.capabilities.volcano import VOLCANO, VOLCANO_1_9
from fleet.capabilities.whole_cards import WHOLE_CARDS
from fleet.errors import Misconfigured, Refused

EXPERIMENTAL_SETTING = "enforcer.experimental"

__all__ = [
    "CAPABILITIES",
    "DRA_CONSUMABLE",
    "DRA_MIG",
    "DRA_SHARED",
    "EFFECTIVE_GPU",
    "EXPERIMENTAL_SETTING",
    "HAMI",
    "KAI",
    "KAI_NVFRACTIONS",
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
    "check_experimental",
    "records_of",
]

CAPABILITIES: tuple[Capabilities, ...] = (
    WHOLE_CARDS,
    HAMI,
    EFFECTIVE_GPU,
    VOLCANO,
    MGPU,
    VGPU_MANAGER,
    KAI,
    KAI_NVFRACTIONS,
    TIME_SLICING,
    MPS,
    MIG,
    DRA_MIG,
    DRA_SHARED,
    DRA_CONSUMABLE,
)
"""Every backend in the newest version that is known, from the one that enforces nothing new on; a new one is a record
in its own file and a line here."""


ONLY_READ: tuple[Capabilities, ...] = (TENSOR_FUSION,)
"""Backends whose pods and nodes are read, and for which nothing is planned or rendered."""

OLDER: tuple[Capabilities, ...] = (HAMI_2_8, VOLCANO_1_9)
"""Records of older versions, of each backend the oldest first."""


def capabilities_of(backend: str, version: str | None = None) -> Capabilities:
    """The record of a backend by its name.

    Args:
        version: tag of the version that runs; None for the newest that is known.

    Raises:
        Misconfigured: no such backend.
        Refused: the version is older than the oldest that is known.
    """
    return record_for(records_of(backend), version)


def check_experimental(record: Capabilities, *, allowed: bool) -> None:
    """Refuse a backend that no real scheduler or device plugin has accepted yet, unless it is allowed.

    Raises:
        Refused: with the setting that allows it.
    """
    if record.is_experimental and not allowed:
        raise Refused(
            f"cannot use {record.backend}: experimental, no real scheduler or device plugin of it has accepted such "
            f"changes in a test yet; set {EXPERIMENTAL_SETTING}=true to try it on a cluster that may break"
        )


def records_of(backend: str) -> tuple[Capabilities, ...]:
    """All records of a backend, the oldest version first.

    Raises:
        Misconfigured: no such backend.
    """
    found = tuple(record for record in (*OLDER, *CAPABILITIES) if record.backend == backend)
    if found:
        return found
    known = ", ".join(record.backend for record in CAPABILITIES)
    if backend in (record.backend for record in ONLY_READ):
        raise Misconfigured(
            f"cannot use GPU-sharing backend {backend!r}: its pods are read, and nothing is rendered for it; set "
            f"enforcer.backend to one of {known}"
        )
    raise Misconfigured(f"cannot use GPU-sharing backend {backend!r}: unknown; set enforcer.backend to one of {known}")
