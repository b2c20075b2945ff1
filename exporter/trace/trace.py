"""The neutral trace format: one folder of Parquet files is one fleet over some days.

    usage.parquet       one row per pod, card and step; a missing row means not collected
    pods.parquet        one row per pod, card and period of a grant
    cards.parquet       one row per card
    card_usage.parquet  optional: what cards say of themselves; for cards without rows here, a reader adds up their pods

Called by `exporter.replay.reader` and the command line's `admin replay`; `exporter.trace.writer` writes the same
columns. A trace says things of later days, such as when a grant ends: `grants_at` and `inventory_at` leave out what was
not known at the moment asked about. Times are ends of sampling steps, in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from exporter.trace.columns import RANGES, Shape, TraceColumn, measure_column
from exporter.trace.inventory import PairGrants, read_cards, read_grants
from exporter.trace.usage import Piece, SampleFile
from fleet.errors import Corrupt
from fleet.inventory import Grant, Inventory
from fleet.schema import CARD_MEASURES, SLICE_MEASURES, Measure

USAGE_FILE = "usage.parquet"
PODS_FILE = "pods.parquet"
CARDS_FILE = "cards.parquet"
CARD_USAGE_FILE = "card_usage.parquet"

_TIME = TraceColumn(name="ts", shape=Shape.TIME)
_CARD = TraceColumn(name="card", shape=Shape.TEXT)
_REQUIRED = (Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.FRAMEBUFFER_USED, Measure.KV_CACHE_USAGE)

USAGE_COLUMNS: tuple[TraceColumn, ...] = (
    _TIME,
    TraceColumn(name="pod", shape=Shape.TEXT),
    _CARD,
    # Any measure may be null in a row: a driver can fail to give one of several (no duty cycle under MIG, say).
    *(measure_column(RANGES[measure], is_required=True) for measure in _REQUIRED),
    *(measure_column(column) for column in SLICE_MEASURES if column.measure not in _REQUIRED),
)
"""Columns of `usage.parquet`."""

CARD_USAGE_COLUMNS: tuple[TraceColumn, ...] = (_TIME, _CARD, *(measure_column(column) for column in CARD_MEASURES))
"""Columns of `card_usage.parquet`."""


class Trace:
    """A trace folder, read and checked; nothing of it has to be doubted any more.

    Attributes:
        cluster: the cluster that all its cards belong to.
        cards: every card, sorted by id.
        nodes: every node that holds a card, sorted by name.
        pairs: the grants of every pod and card, in the order of the numbers that `usage_windows` speaks of.
        step_seconds: step of the usage rows.
        since: start of the first step, UTC; where there is no usage, the start of the first grant.
        until: end of the last step, UTC.
        card_measures: measures in `card_usage.parquet`; empty where there is none.
        is_card_measured: per card, True where it has a row in `card_usage.parquet`, shape `(cards,)`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cards, self.nodes = read_cards(folder / CARDS_FILE)
        self._card_numbers: dict[str, int] = {card.card: number for number, card in enumerate(self.cards)}
        clusters = sorted({card.cluster for card in self.cards})
        if len(clusters) != 1:
            raise Corrupt(
                f"cannot read {folder / CARDS_FILE}: it holds cards of {len(clusters)} clusters "
                f"({', '.join(clusters[:5]) or 'none'}); one folder is one cluster"
            )
        self.cluster = clusters[0]
        self.pairs: tuple[PairGrants, ...] = read_grants(folder / PODS_FILE, self.cards)
        self._pair_codes()
        self._usage = SampleFile(folder / USAGE_FILE, USAGE_COLUMNS, self._pair_numbers, len(self.pairs))
        self._card_usage: SampleFile | None = None
        if (folder / CARD_USAGE_FILE).exists():
            self._card_usage = SampleFile(
                folder / CARD_USAGE_FILE, CARD_USAGE_COLUMNS, self._card_rows, len(self.cards)
            )
        self.measures = self._usage.measures
        self.card_measures = self._card_usage.measures if self._card_usage else ()
        seen = self._card_usage.is_key_seen if self._card_usage else np.zeros(len(self.cards), bool)
        self.is_card_measured: npt.NDArray[np.bool_] = seen
        self._set_extent()

    def grants_at(self, moment: datetime) -> tuple[Grant, ...]:
        """Every grant that had begun by a moment, as it was known then; sorted by pod, card, start.

        A grant that ends later, or whose end is only the end of the recording, has `ended_at` None.
        """
        return tuple(
            self._as_known(grant, moment) for pair in self.pairs for grant in pair.grants if grant.started_at <= moment
        )

    def inventory_at(self, moment: datetime, *, time_zone: str = "UTC") -> Inventory:
        """All that was known of the cluster at a moment; cards and nodes are the same tuples every time."""
        grants = self.grants_at(moment)
        return Inventory(
            cluster=self.cluster, as_of=moment, time_zone=time_zone, cards=self.cards, nodes=self.nodes, grants=grants
        )

    def grant_changes(self, since: datetime | None, until: datetime) -> tuple[tuple[Grant, ...], tuple[Grant, ...]]:
        """Grants that began and grants that ended with since < time ≤ until.

        Args:
            since: None for all that began until `until` and is not over by then, and all that ended.
            until: the moment up to which things are known.

        Returns:
            Begun (without an end) and ended (with it), each in order of time.
        """
        begun = [
            replace(grant, ended_at=None)
            for pair in self.pairs
            for grant in pair.grants
            if grant.started_at <= until and (since is None or grant.started_at > since)
        ]
        ended = [
            grant
            for pair in self.pairs
            for grant in pair.grants
            if grant.ended_at is not None
            and self._as_known(grant, until).ended_at is not None
            and (since is None or grant.ended_at > since)
        ]
        return (
            tuple(sorted(begun, key=lambda grant: grant.started_at)),
            tuple(sorted(ended, key=lambda grant: grant.ended_at or until)),
        )

    def usage_windows(
        self, since: datetime | None, until: datetime, steps_per_window: int
    ) -> Iterator[tuple[datetime, Piece, Piece | None]]:
        """All usage with since < ts ≤ until, window by window.

        Args:
            since: start; None for the start of the trace.
            steps_per_window: steps in a window, at least 1.

        Yields:
            End of the window; rows of slices, keyed by the number of their pair, and of cards (None where the trace
            has none), keyed by the number of their card; each in order of time.
        """
        window_ms = max(1, steps_per_window) * self.step_seconds * 1000
        since_ms = epoch_ms(since if since is not None else self.since)
        slices = self._usage.windows(since_ms, epoch_ms(until), window_ms)
        if self._card_usage is None:
            for end_ms, piece in slices:
                yield from_epoch_ms(end_ms), piece, None
            return
        cards = self._card_usage.windows(since_ms, epoch_ms(until), window_ms)
        for (end_ms, piece), (_, card_piece) in zip(slices, cards, strict=True):
            yield from_epoch_ms(end_ms), piece, card_piece

    def _as_known(self, grant: Grant, moment: datetime) -> Grant:
        if grant.ended_at is None or (grant.ended_at <= moment and grant.ended_at < self.until):
            return grant
        # An end at or after the last sample is where the recording stops, and nobody saw the grant end.
        return replace(grant, ended_at=None)

    def _set_extent(self) -> None:
        extent = self._usage.extent
        self.step_seconds = extent.step_seconds
        if extent.first_ms is None or extent.last_ms is None:
            if not self.pairs:
                raise Corrupt(f"cannot read {self.folder}: it holds neither usage nor grants")
            moments = [grant.started_at for pair in self.pairs for grant in pair.grants]
            ends = [grant.ended_at for pair in self.pairs for grant in pair.grants if grant.ended_at is not None]
            self.since, self.until = min(moments), max([*moments, *ends])
            return
        self.since = from_epoch_ms(extent.first_ms - self.step_seconds * 1000)
        self.until = from_epoch_ms(extent.last_ms)

    def _pair_codes(self) -> None:
        self._pod_numbers: dict[str, int] = {}
        codes = np.empty(len(self.pairs), np.int64)
        for number, pair in enumerate(self.pairs):
            pod = self._pod_numbers.setdefault(pair.pod, len(self._pod_numbers))
            codes[number] = pod * len(self.cards) + self._card_numbers[pair.card]
        self._code_order = np.argsort(codes, kind="stable")
        self._sorted_codes = codes[self._code_order]

    def _pair_numbers(self, batch: pa.RecordBatch, row: int) -> npt.NDArray[np.int32]:
        path = self.folder / USAGE_FILE
        cards = self._card_rows(batch, row)
        pods = _numbers(batch.column("pod"), self._pod_numbers)
        codes = pods.astype(np.int64) * len(self.cards) + cards
        places = np.minimum(np.searchsorted(self._sorted_codes, codes), max(0, len(self._sorted_codes) - 1))
        is_known = self._sorted_codes[places] == codes if len(self._sorted_codes) else np.zeros(len(codes), bool)
        is_known &= pods >= 0
        if not is_known.all():
            wrong = int(np.flatnonzero(~is_known)[0])
            raise Corrupt(
                f"cannot read {path}: column pod is {batch.column('pod')[wrong].as_py()!r} in row {row + wrong}, "
                f"and {PODS_FILE} grants that pod no card {batch.column('card')[wrong].as_py()!r}"
            )
        return self._code_order[places].astype(np.int32)

    def _card_rows(self, batch: pa.RecordBatch, row: int) -> npt.NDArray[np.int32]:
        cards = _numbers(batch.column("card"), self._card_numbers)
        if len(cards) and cards.min() < 0:
            wrong = int(np.flatnonzero(cards < 0)[0])
            raise Corrupt(
                f"cannot read {self.folder}: column card of its usage is {batch.column('card')[wrong].as_py()!r} "
                f"in row {row + wrong}, a card that {CARDS_FILE} does not list"
            )
        return cards


def open_trace(folder: Path) -> Trace:
    """Reads a trace folder and checks every row of it.

    Args:
        folder: holds the files named above.

    Returns:
        The trace; usage stays on disk until it is asked for.

    Raises:
        Corrupt: a file, a column or a value is wrong; the message names file, column, row, value and limit.
    """
    if not folder.is_dir():
        raise Corrupt(f"cannot read trace {folder}: no such folder")
    return Trace(folder)


def epoch_ms(moment: datetime) -> int:
    """Epoch milliseconds of an aware time."""
    return round(moment.timestamp() * 1000)


def from_epoch_ms(value_ms: int) -> datetime:
    """The UTC time of epoch milliseconds."""
    return datetime.fromtimestamp(value_ms / 1000, UTC)


def _numbers(column: pa.Array, numbers: Mapping[str, int]) -> npt.NDArray[np.int32]:
    encoded = column if isinstance(column, pa.DictionaryArray) else pc.dictionary_encode(column)
    names = encoded.dictionary.to_pylist()
    table = np.fromiter((numbers.get(name, -1) for name in names), np.int32, len(names))
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.int32] = table[indices] if len(table) else np.empty(0, np.int32)
    return found
