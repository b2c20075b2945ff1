"""How nodes report: at which step of its own a node's source looks, and when it reported any slice at all.

All slices of a node say it, and a part of a fleet (`analyzer.profile`) holds some of them. So each part first gives
what its rows show, `joined_reports` puts that together, and every part is then described by the answer for the fleet.
What is not believed of a counter counts here as well: it shows that the source looked.

Called by `analyzer.survey`, and for a fleet in parts by whatever reads them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from analyzer.presence import Bools
from analyzer.state.idleness import COMPUTE
from fleet.usage import SliceGrid

STRIDE_REGULARITY_MIN = 0.9
"""Share of the gaps between a node's rows that must be equal before a step longer than the grid's is believed."""
STRIDE_STEPS_MAX = 60
"""Longest step of a source, in steps of the grid; anything rarer is a gap."""
_CELLS_PER_CHUNK = 4_000_000

Value = TypeVar("Value")

Gaps = Mapping[str, Counter[int]]
"""Per node, how often each number of steps lies between one row of a slice and its next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSeen:
    """What the rows of some slices show of their nodes.

    Attributes:
        row_gaps: between rows.
        compute_gaps: between rows with compute.
        alive: per node, steps in which any of these slices has a row, as packed bits; empty where nobody asks.
    """

    row_gaps: Gaps
    compute_gaps: Gaps
    alive: Mapping[str, NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReports:
    """How the nodes of a fleet report.

    Attributes:
        row_stride: per node, its source's own step, in steps of the grid, at least 1; a node without is at 1.
        compute_stride: the same of the counters of compute.
        alive: per node, steps in which it reported any slice, as packed bits; empty where nobody asks.
    """

    row_stride: Mapping[str, int]
    compute_stride: Mapping[str, int]
    alive: Mapping[str, NDArray[np.uint8]]

    def of(self, nodes: Collection[str]) -> NodeReports:
        """The same of some nodes."""
        return NodeReports(
            row_stride=_picked(self.row_stride, nodes),
            compute_stride=_picked(self.compute_stride, nodes),
            alive=_picked(self.alive, nodes),
        )

    def alive_on(self, nodes: Collection[str], steps: int) -> dict[str, Bools]:
        """When those nodes that reported any slice did so, (steps,) each."""
        return {
            node: np.unpackbits(self.alive[node], count=steps).view(np.bool_) for node in nodes if node in self.alive
        }


def nodes_seen(nodes: Sequence[str], seen: Bools, known: Bools, *, asks_alive: bool) -> NodesSeen:
    """What rows show of their nodes.

    Args:
        nodes: node of each row.
        seen: True where a row exists, (rows, steps).
        known: True where it has compute, likewise.
        asks_alive: whether it matters when a node reported anything: where no source measures cards.
    """
    alive: dict[str, Bools] = {}
    for row, node in enumerate(nodes if asks_alive else ()):
        if node in alive:
            alive[node] |= seen[row]
        else:
            alive[node] = seen[row].copy()
    return NodesSeen(
        row_gaps=_gaps(seen, nodes),
        compute_gaps=_gaps(known, nodes),
        alive={node: np.packbits(steps) for node, steps in alive.items()},
    )


def grid_reports(grid: SliceGrid, steps: int, *, asks_alive: bool) -> NodeReports:
    """How the nodes of a fleet report whose rows are all in memory; see `nodes_seen`.

    Args:
        steps: steps of the grid that lie before the moment of the analysis.
    """

    def pieces() -> Iterator[NodesSeen]:
        size = max(1, _CELLS_PER_CHUNK // max(1, steps))
        for start in range(0, len(grid.keys), size):
            keys = grid.keys[start : start + size]
            seen, known = np.zeros((2, len(keys), steps), bool)
            for measure, values in grid.mean.items():
                there = ~np.isnan(values[start : start + size, :steps])
                seen |= there
                if measure in COMPUTE:
                    known |= there
            yield nodes_seen([key.node for key in keys], seen, known, asks_alive=asks_alive)

    return joined_reports(pieces())


def joined_reports(parts: Iterable[NodesSeen]) -> NodeReports:
    """How nodes report by what all slices of the fleet show."""
    row_gaps: dict[str, Counter[int]] = defaultdict(Counter)
    compute_gaps: dict[str, Counter[int]] = defaultdict(Counter)
    alive: dict[str, NDArray[np.uint8]] = {}
    for part in parts:
        for all_gaps, own_gaps in ((row_gaps, part.row_gaps), (compute_gaps, part.compute_gaps)):
            for node, counts in own_gaps.items():
                all_gaps[node].update(counts)
        for node, bits in part.alive.items():
            alive[node] = alive[node] | bits if node in alive else bits
    row_stride, compute_stride = (
        {node: _stride(counts) for node, counts in gaps.items()} for gaps in (row_gaps, compute_gaps)
    )
    return NodeReports(row_stride=row_stride, compute_stride=compute_stride, alive=alive)


def _picked(values: Mapping[str, Value], nodes: Collection[str]) -> dict[str, Value]:
    return {node: values[node] for node in nodes if node in values}


def _gaps(there: Bools, nodes: Sequence[str]) -> Gaps:
    gaps: dict[str, Counter[int]] = defaultdict(Counter)
    for row, node in enumerate(nodes):
        counts = np.bincount(np.diff(np.flatnonzero(there[row])), minlength=1)
        for gap in np.flatnonzero(counts).tolist():
            gaps[node][gap] += int(counts[gap])
    return dict(gaps)


def _stride(gaps: Counter[int]) -> int:
    """The gap that prevails between the rows of one node's slices, if nearly all gaps are like it; else 1.

    It is taken per node and not per slice, because a slice that loses every other sample is not one with a slow source.
    """
    gap, count = max(gaps.items(), key=lambda item: (item[1], -item[0]), default=(1, 0))
    is_regular = count >= STRIDE_REGULARITY_MIN * gaps.total() and gap <= STRIDE_STEPS_MAX
    return gap if is_regular and gap > 1 else 1
