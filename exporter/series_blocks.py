"""Readings as named series: what travels to a receiver by remote write, or stands in a text exposition.

Measures become `gputide_slice_…` and `gputide_card_…`; what stands there becomes `gputide_slice_info`,
`gputide_card_info` and `gputide_node_info`, of value 1, sent when changed and every hour, with a stale marker when a
grant ends. Called by the exposition, and by the command line, which hands the result to the pipeline's encoder. Label
sets are made once per series; a block costs a few array operations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from exporter.reader import Block, InventoryChange, Samples
from fleet.inventory import Card, Grant, Node
from fleet.schema import (
    CARD_IDENTITY,
    CARD_INFO_LABELS,
    CARD_MEASURES,
    GRANT_LABELS,
    NODE_INFO_LABELS,
    SLICE_IDENTITY,
    SLICE_MEASURES,
    Measure,
)
from fleet.series import CARD_INFO, NODE_INFO, SLICE_INFO, card_series, slice_series
from fleet.usage import CardKey, SliceKey

SeriesLabels = tuple[tuple[str, str], ...]
"""Labels of one series, `__name__` among them, sorted by name; none is empty."""

STALE_NAN_BITS = 0x7FF0000000000002
"""Bits of the NaN with which Prometheus marks the end of a series (prometheus:model/value/value.go)."""

INFO_SECONDS = 3600
"""Info series are sent again at every full hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesBlock:
    """Samples of named series.

    Attributes:
        labels: every series so far; a later block's tuple begins with the former one's.
        series: which series each sample belongs to, not decreasing; shape `(samples,)`.
        ts_ms: epoch milliseconds, increasing within a series; shape `(samples,)`.
        values: values; a stale marker has exactly the bits `STALE_NAN_BITS`; shape `(samples,)`.
    """

    labels: tuple[SeriesLabels, ...]
    series: NDArray[np.int32]
    ts_ms: NDArray[np.int64]
    values: NDArray[np.float64]


class SeriesBlocks:
    """Turns the blocks of one reader, in order, into series.

    It remembers the series that it has named and the grants that live, so one object serves one reader.
    """

    def __init__(self) -> None:
        self._labels: list[SeriesLabels] = []
        self._labels_tuple: tuple[SeriesLabels, ...] = ()
        self._numbers: dict[SeriesLabels, int] = {}
        self._rows: dict[str, NDArray[np.int32]] = {}
        self._infos: dict[int, tuple[int, int | None]] = {}

    def of(self, block: Block) -> SeriesBlock:
        """The series of the next block."""
        parts = [
            *self._measured(block.slice_samples, block.slices, is_slice=True),
            *self._measured(block.card_samples, block.cards, is_slice=False),
            self._info(block.change, _ms(block.since), _ms(block.until)),
        ]
        series = np.concatenate([part[0] for part in parts])
        ts_ms = np.concatenate([part[1] for part in parts])
        # Whole arrays are moved as they are: arithmetic would turn the stale marker's bits into another NaN.
        values = np.concatenate([part[2] for part in parts])
        order = np.argsort(series, kind="stable")
        if len(self._labels) != len(self._labels_tuple):
            self._labels_tuple = tuple(self._labels)
        return SeriesBlock(labels=self._labels_tuple, series=series[order], ts_ms=ts_ms[order], values=values[order])

    def _measured(
        self, samples: Samples, keys: tuple[SliceKey, ...] | tuple[CardKey, ...], *, is_slice: bool
    ) -> Iterable[_Part]:
        for column in SLICE_MEASURES if is_slice else CARD_MEASURES:
            found = samples.values.get(column.measure)
            if found is None:
                continue
            there = np.flatnonzero(~np.isnan(found))
            rows = samples.rows[there]
            numbers = self._row_numbers(column.measure, keys, rows, is_slice=is_slice)
            yield numbers, samples.ts_ms[there], found[there]

    def _row_numbers(
        self,
        measure: Measure,
        keys: tuple[SliceKey, ...] | tuple[CardKey, ...],
        rows: NDArray[np.int32],
        *,
        is_slice: bool,
    ) -> NDArray[np.int32]:
        name = slice_series(measure) if is_slice else card_series(measure)
        known = self._rows.get(name, np.empty(0, np.int32))
        if len(known) < len(keys):
            known = np.r_[known, np.full(len(keys) - len(known), -1, np.int32)]
            self._rows[name] = known
        for row in np.unique(rows[known[rows] < 0]).tolist():
            labels = key_labels(keys[row])
            known[row] = self._number(_sorted_labels(name, labels))
        return known[rows]

    def _info(self, change: InventoryChange, since_ms: int, until_ms: int) -> _Part:
        for card in change.cards:
            self._begin(card_info_labels(card), since_ms)
        for node in change.nodes:
            self._begin(node_info_labels(node), since_ms)
        for grant in change.grants_started:
            self._begin(grant_info_labels(grant), max(_ms(grant.started_at), since_ms))
        ends: dict[int, int] = {}
        for grant in change.grants_ended:
            if grant.ended_at is not None:
                ends[self._number(grant_info_labels(grant))] = _ms(grant.ended_at)
        parts = [_nothing(), self._alive(ends, since_ms, until_ms)]
        if ends:
            parts.append(self._ended(ends))
        return _joined(parts)

    def _alive(self, ends: dict[int, int], since_ms: int, until_ms: int) -> _Part:
        """A 1 where something begins, and at every full hour in which it stands there."""
        if not self._infos:
            return _nothing()
        step_ms = INFO_SECONDS * 1000
        hours = np.arange((since_ms // step_ms + 1) * step_ms, until_ms + 1, step_ms, dtype=np.int64)
        numbers = np.fromiter(self._infos, np.int32, len(self._infos))
        begins = np.array([begin for begin, _ in self._infos.values()], np.int64)
        is_new = np.array([sent is None for _, sent in self._infos.values()], bool)
        last = np.array([ends.get(number, until_ms + 1) for number in numbers.tolist()], np.int64)
        is_due = (hours[None, :] > begins[:, None]) & (hours[None, :] < last[:, None])
        row, hour = np.nonzero(is_due)
        series = np.r_[numbers[is_new], numbers[row]].astype(np.int32)
        ts_ms = np.r_[begins[is_new], hours[hour]]
        self._infos = {number: (begin, until_ms) for number, (begin, _) in self._infos.items() if number not in ends}
        return series, ts_ms, np.ones(len(series))

    def _ended(self, ends: dict[int, int]) -> _Part:
        numbers = np.fromiter(ends, np.int32, len(ends))
        # A sample may have been sent at a full hour and at the very start: the marker must not meet it.
        ts_ms = np.array([end + (1 if end % (INFO_SECONDS * 1000) == 0 else 0) for end in ends.values()], np.int64)
        starts = [dict(self._labels[number])["started_at"] for number in ends]
        starts_ms = np.array([_ms(datetime.fromisoformat(start)) for start in starts], np.int64)
        values = np.full(len(numbers), STALE_NAN_BITS, np.uint64).view(np.float64)
        return numbers, np.maximum(ts_ms, starts_ms + 1), values

    def _begin(self, labels: SeriesLabels, at_ms: int) -> None:
        number = self._number(labels)
        if number not in self._infos:
            self._infos[number] = (at_ms, None)

    def _number(self, labels: SeriesLabels) -> int:
        number = self._numbers.get(labels)
        if number is None:
            number = self._numbers[labels] = len(self._labels)
            self._labels.append(labels)
        return number


_Part = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]


def key_labels(key: SliceKey | CardKey) -> tuple[tuple[str, str], ...]:
    """Labels that distinguish a slice's or card's series from others."""
    names = SLICE_IDENTITY if isinstance(key, SliceKey) else CARD_IDENTITY
    return tuple((name, str(getattr(key, name))) for name in names)


def grant_info_labels(grant: Grant) -> SeriesLabels:
    """The series `gputide_slice_info` of a grant; what is absent has no label."""
    return _sorted_labels(SLICE_INFO, ((name, _text(getattr(grant, name))) for name in GRANT_LABELS))


def card_info_labels(card: Card) -> SeriesLabels:
    """The series `gputide_card_info` of a card."""
    return _sorted_labels(CARD_INFO, ((name, _text(getattr(card, name))) for name in CARD_INFO_LABELS))


def node_info_labels(node: Node) -> SeriesLabels:
    """The series `gputide_node_info` of a node."""
    return _sorted_labels(NODE_INFO, ((name, _text(getattr(node, name))) for name in NODE_INFO_LABELS))


def _sorted_labels(name: str, labels: Iterable[tuple[str, str]]) -> SeriesLabels:
    # An empty label is the same as none in Prometheus, and receivers refuse it.
    return tuple(sorted([("__name__", name), *((key, value) for key, value in labels if value)]))


def _text(value: object) -> str:
    """How a field travels as a label: base units, ISO times, JSON for what has parts; empty for absent."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        parts = dict(value) if isinstance(value[0], tuple) else list(value)
        return json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return str(value)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _nothing() -> _Part:
    return np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0)


def _joined(parts: list[_Part]) -> _Part:
    return (
        np.concatenate([part[0] for part in parts]),
        np.concatenate([part[1] for part in parts]),
        np.concatenate([part[2] for part in parts]),
    )
