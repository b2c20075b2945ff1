"""What one reading of a node's shared regions gives: columns per card of a container, per container, per process.

Made by `exporter.regions.reader`; the node's reader joins them with pods and grants, `exporter.regions.families` shows
what goes beyond the stored measures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exporter.regions.decode import CardColumns, StateColumns
from exporter.regions.tree import ContainerKey
from fleet.regions.layouts import LayoutName

Float64 = NDArray[np.float64]
Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What is known of a card from elsewhere; regions are checked against it.

    Attributes:
        framebuffer_bytes: the card's framebuffer; None where it isn't known.
        duty_cycle_ratio: the card's duty cycle now, 0-1; None where it isn't known.
        host_pids: processes that the driver lists on the card, by their ids on the host; None where it lists none.
    """

    framebuffer_bytes: float | None = None
    duty_cycle_ratio: float | None = None
    host_pids: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceOfRegion:
    """One card of one container.

    Attributes:
        card: UUID of the card or MIG instance, as the container's driver names it.
    """

    container: ContainerKey
    card: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceColumns(CardColumns):
    """Figures per card of a container; shape `(slices,)`.

    Attributes:
        keys: which slices; the same tuple as in the reading before where none came or went.
        containers: for each slice its container's row in `ContainerColumns`.
    """

    keys: tuple[SliceOfRegion, ...]
    containers: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerColumns(StateColumns):
    """What is said of each container as a whole; shape `(containers,)`, NaN = not there.

    Attributes:
        keys: every container that has a directory; the same tuple as in the reading before where none came or went.
        layouts: layout of its region; None where there is none, or no layout fits.
        has_region: whether there is a file at all. Without one the container never called CUDA.
        doubts: bit set of `RegionDoubt`; 0 = trusted, where there is a region.
        files: files that could be the region; the best named, sized and youngest one is read.
        suspended: of its processes, paused ones.
    """

    keys: tuple[ContainerKey, ...]
    layouts: tuple[LayoutName | None, ...]
    has_region: NDArray[np.bool_]
    doubts: NDArray[np.uint32]
    files: NDArray[np.int32]
    processes: Float64
    suspended: Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessColumns:
    """Living processes of all containers, in the containers' order; shape `(processes,)`.

    Attributes:
        containers: each one's container, as a row in `ContainerColumns`.
        pids: process ids inside the container.
        host_pids: process ids on the host; 0 = the library did not find it. A process may be dead: one that was killed
            stays until another one of its container starts, or the driver lists it no more.
    """

    containers: Rows
    pids: NDArray[np.int32]
    host_pids: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiReading:
    """All regions of a node at one instant.

    Attributes:
        at_seconds: Unix seconds.
        foreign_directories: entries beside the containers' directories that are none.
    """

    at_seconds: float
    slices: SliceColumns
    containers: ContainerColumns
    processes: ProcessColumns
    foreign_directories: int
