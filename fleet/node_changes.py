"""What somebody wants of one node: another mode of its cards, or that it goes back to what it came from.

A `Plan` of one stage carries it (`fleet.decisions`), so that it is approved, applied and undone like every other plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NodeMode(StrEnum):
    """How a node hands out its cards."""

    WHOLE = "whole"
    VGPU = "vgpu"
    """Slices of a size that each pod asks for."""
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSwitch:
    """A node that somebody wants in another mode.

    Attributes:
        slices: into how many each of its cards may be shared; None where the mode has no such number, or its default is
            meant.
        profiles: MIG instances of each of its cards, profile and count, sorted; empty for other modes, and where pods
            cut cards as they come.
    """

    node: str
    mode: NodeMode
    slices: int | None = None
    profiles: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRelease:
    """An emptied node that its owner shall take out of the cluster, so that it is paid for no longer.

    Attributes:
        plan: id of the plan that emptied it; empty where somebody named the node alone.
    """

    node: str
    plan: str = ""
