"""The port of a history: a source that keeps samples of many series and can be asked for them.

`reading` asks it for samples and `facts` for what stands beside them; the adapter is `prometheus`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wire.prometheus_query import QueryWork


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBlock:
    """Samples of several series.

    Attributes:
        labels: the labels of each series, `__name__` included where the source gives it.
        starts: where the samples of each series begin, and where the last ones end, shape (series + 1,).
        ts_ms: time of each sample, epoch milliseconds, shape (samples,).
        values: shape (samples,); NaN is no value.
    """

    labels: tuple[Mapping[str, str], ...]
    starts: NDArray[np.int64]
    ts_ms: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class SourceWork(QueryWork):
    """What a source was asked for so far; mutable: counted query by query.

    Attributes:
        halved: queries that were halved because the server or we had a limit.
    """

    halved: int = 0


class HistorySource(Protocol):
    """Keeps samples of the past.

    Contract: samples are given as they were collected, at their own times, never interpolated and never carried on
    after their series had ended. An answer is whole, or an error.

    Attributes:
        work: what was asked for so far.
    """

    work: SourceWork

    def names(self, wanted: Sequence[str], *, since_ms: int, until_ms: int) -> frozenset[str]:
        """Which of some metric names have series in a time.

        Raises:
            Unavailable: the source can't be reached or is overloaded.
            Misconfigured: it is none, or does not let us in.
        """
        ...

    def label_values(self, label: str, wanted: Sequence[str], *, since_ms: int, until_ms: int) -> tuple[str, ...]:
        """The values of a label over series of some metric names, sorted; raises as `names`."""
        ...

    def series(self, name: str, *, since_ms: int, until_ms: int) -> list[Mapping[str, str]]:
        """The label sets of a metric's series that have samples in a time; raises as `names`."""
        ...

    def samples(self, name: str, *, since_ms: int, until_ms: int) -> SampleBlock:
        """All samples of a metric with since < ts ≤ until; raises as `names`."""
        ...

    def looks(self, name: str, *, since_ms: int, until_ms: int, step_ms: int) -> SampleBlock:
        """The values of a metric's series at evenly spaced moments: for facts that seldom change; raises as `names`."""
        ...

    def number(self, expression: str, *, at_ms: int) -> float | None:
        """The value of an expression that gives one number at a moment; None where it gives none; raises as `names`."""
        ...

    def computed(self, expression: str, *, since_ms: int, until_ms: int, step_ms: int) -> SampleBlock:
        """The values of an expression at whole multiples of a step with since < ts ≤ until; raises as `names`."""
        ...

    def selector(self, name: str, *matchers: str) -> str:
        """How a metric's series are written in an expression, those that satisfy some matchers."""
        ...


def joined(blocks: Sequence[SampleBlock]) -> SampleBlock:
    """The samples of several answers, one after the other in time; what answers say of one series is one series."""
    if len(blocks) == 1:
        return blocks[0]
    parts: dict[tuple[tuple[str, str], ...], list[tuple[SampleBlock, slice]]] = {}
    for block in blocks:
        for place, labels in enumerate(block.labels):
            span = slice(int(block.starts[place]), int(block.starts[place + 1]))
            parts.setdefault(tuple(sorted(labels.items())), []).append((block, span))
    spans = [part for series in parts.values() for part in series]
    lengths = [sum(span.stop - span.start for _, span in series) for series in parts.values()]
    return SampleBlock(
        labels=tuple(map(dict, parts)),
        starts=np.cumsum([0, *lengths], dtype=np.int64),
        ts_ms=np.concatenate([np.empty(0, dtype=np.int64), *(block.ts_ms[span] for block, span in spans)]),
        values=np.concatenate([np.empty(0), *(block.values[span] for block, span in spans)]),
    )
