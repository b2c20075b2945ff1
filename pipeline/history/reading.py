"""A history as a lane of the bus: the rollup reads it day by day as it reads what a receiver took in.

Offsets are epoch milliseconds, and each day (UTC) of a source is a lane of its own, so that the warehouse itself knows
how far a scan came: one that was cut goes on there, and one of the next week reads the days that are new. Samples go
through the same merge, windows and bookkeeping as those of the live path. Replicas of a Prometheus scrape the same
exporters a few seconds apart: where several series of one metric are of the same subject, the one with most samples
counts, and the others where it has none. Called by `gputide.scanning.scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Misconfigured
from fleet.schema import CARD_IDENTITY, CARD_USAGE, MEASURES, POD_USAGE, SLICE_IDENTITY, Table
from fleet.series import SeriesIdentity, Subject, resolve
from pipeline.bus.bus import Chunk
from pipeline.history.places import Places, fits
from pipeline.history.scale import Scale
from pipeline.history.source import HistorySource, SampleBlock, joined
from pipeline.records.label_rows import LabelRows
from pipeline.records.rows import TS_MAX_MS, TS_MIN_MS, Section, pack
from wire.prometheus_query import TooMuch

DAY_MS = 86_400_000
FIRST_CHUNK_MS = 3_600_000
"""How much is read first, to see how much there is."""
CHUNK_MS_MIN = 600_000
COMPUTED_MS = 60_000
"""Time between two values of an expression: that of the recording rules."""
_GROWTH = 4
_NO_HASH = bytes(16)
_NUMBER_OF = {column.measure: number for number, column in enumerate(MEASURES)}


@dataclass(slots=True, kw_only=True)
class ReadingTally:
    """What became of the samples that were read; mutable: counted as they come.

    Attributes:
        samples: samples that were kept, by metric name.
        copies: samples that came twice, from a pair of replicas.
        bad_values: samples outside their measure's range or time.
        nameless: series whose labels don't say whom they speak of, or pass the limits, by metric name.
        refused: why the source does not compute what servers do, by the name that its rules would record.
    """

    samples: dict[str, int] = field(default_factory=dict)
    copies: int = 0
    bad_values: int = 0
    nameless: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class HistoryReading:
    """Reads samples of one cluster, piece by piece.

    Args:
        source: keeps them.
        names: metric names that it has and that mean something.
        expressions: metric names that it does not have, and what it can compute instead.
        scales: what is to be mended in their units.
        places: what series speak of.
        samples_max: samples that are held at once (`scan.samples_per_append_max`).
    """

    def __init__(
        self,
        source: HistorySource,
        *,
        names: Sequence[str],
        expressions: Mapping[str, str],
        scales: Mapping[str, Scale],
        places: Places,
        samples_max: int,
    ) -> None:
        self.tally = ReadingTally()
        self._source = source
        self._names = (*names, *expressions)
        self._expressions = expressions
        self._scales = scales
        self._places = places
        self._samples_max = samples_max
        self._chunk_ms = FIRST_CHUNK_MS
        self._slices = LabelRows(SLICE_IDENTITY, seed=0)
        self._cards = LabelRows(CARD_IDENTITY, seed=0)
        self._last: _LastSamples = {}

    def piece(self, since_ms: int, until_ms: int) -> tuple[bytes, int]:
        """The next piece of a time: a record of the bus, and where it ends.

        It is as long as the last ones were dense: `samples_max` bounds what it holds, roughly.

        Raises:
            Unavailable: the source can't be reached or is overloaded.
            Misconfigured: it does not let us in any more.
        """
        while True:
            end_ms = min(until_ms, since_ms + self._chunk_ms)
            sections, samples, is_whole = self._sections(since_ms, end_ms)
            if is_whole:
                break
            self._chunk_ms = max(CHUNK_MS_MIN, (end_ms - since_ms) // 2)
        wanted = DAY_MS if samples == 0 else self._samples_max * (end_ms - since_ms) // samples
        self._chunk_ms = max(CHUNK_MS_MIN, min(DAY_MS, wanted, _GROWTH * self._chunk_ms))
        return pack(sections, _NO_HASH), end_ms

    def _sections(self, since_ms: int, until_ms: int) -> tuple[tuple[Section, ...], int, bool]:
        """The rows of a time, how many samples they are, and False where they are far more than should be held."""
        sections: list[Section] = []
        tally, last = ReadingTally(), dict(self._last)
        samples = 0
        for name in self._names:
            block = self._block(name, since_ms, until_ms)
            samples += len(block.ts_ms)
            if samples > 2 * self._samples_max and until_ms - since_ms > CHUNK_MS_MIN:
                return (), samples, False
            sections += self._rows(name, block, tally, last)
        self._add(tally)
        self._last = last
        return tuple(sections), samples, True

    def _block(self, name: str, since_ms: int, until_ms: int) -> SampleBlock:
        if name not in self._expressions:
            return self._source.samples(name, since_ms=since_ms, until_ms=until_ms)
        if name in self.tally.refused:
            return joined([])
        try:
            return self._source.computed(
                self._expressions[name], since_ms=since_ms, until_ms=until_ms, step_ms=COMPUTED_MS
            )
        except (TooMuch, Misconfigured) as exc:
            # Cards and pods are known without it.
            self.tally.refused[name] = str(exc)
            return joined([])

    def _add(self, tally: ReadingTally) -> None:
        self.tally.copies += tally.copies
        self.tally.bad_values += tally.bad_values
        for name, count in tally.samples.items():
            self.tally.samples[name] = self.tally.samples.get(name, 0) + count
        for name, count in tally.nameless.items():
            self.tally.nameless[name] = max(self.tally.nameless.get(name, 0), count)

    def _rows(self, name: str, block: SampleBlock, tally: ReadingTally, last: _LastSamples) -> list[Section]:
        """The rows of one metric: those of slices, and those of cards; `last` is brought up to their end."""
        if not len(block.ts_ms):
            return []
        count = len(block.labels)
        slices, cards = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
        measure, factor, value_max = -1, 1.0, None
        for place, labels in enumerate(block.labels):
            if not self._places.takes(name, labels):
                continue
            meaning = resolve(name, self._places.labels(labels))
            if meaning is None or meaning.measure is None or not fits(meaning.identity):
                tally.nameless[name] = tally.nameless.get(name, 0) + 1
                continue
            measure, factor, value_max = _NUMBER_OF[meaning.measure], meaning.factor, meaning.value_max
            identity = self._places.settled(meaning.identity)
            if meaning.subject is Subject.CARD and MEASURES[measure].of_card:
                cards[place] = self._cards.number_of(_row(identity, CARD_IDENTITY))
            if identity.pod is not None and MEASURES[measure].of_slice:
                slices[place] = self._slices.number_of(_row(identity, SLICE_IDENTITY))
        if measure < 0:
            return []
        values = block.values * (self._scales.get(name, Scale()).factor * factor)
        if value_max is not None:
            np.minimum(values, value_max, out=values)
        column = MEASURES[measure]
        is_valid = (values >= column.value_min) & (values <= column.value_max)
        is_valid &= (block.ts_ms >= TS_MIN_MS) & (block.ts_ms <= TS_MAX_MS)
        tally.bad_values += int(np.count_nonzero(~is_valid & ~np.isnan(values)))
        values[~is_valid] = np.nan
        sections, kept = [], 0
        for table, rows, subject in ((POD_USAGE, self._slices, slices), (CARD_USAGE, self._cards, cards)):
            before = last.get((name, table.name), {})
            is_kept = without_copies(subject, block.starts, block.ts_ms, values, _before(before, subject, block))
            is_kept &= np.repeat(subject >= 0, np.diff(block.starts))
            last[name, table.name] = before | _last_samples(subject, block, is_kept)
            section = _section(table, rows, subject, is_kept, block, values, measure)
            if section is not None:
                sections.append(section)
                kept = max(kept, len(section.ts_ms))
        named = np.repeat((slices >= 0) | (cards >= 0), np.diff(block.starts)) & ~np.isnan(values)
        tally.copies += max(0, int(np.count_nonzero(named)) - kept) if sections else 0
        tally.samples[name] = kept
        return sections


class HistoryLane:
    """One day of a history, as `Bus` has it for its reader; nothing can be appended.

    Args:
        reading: reads samples.
        name: name of the lane; the same for the same source and day.
        since_ms: start of the day, epoch milliseconds.
        until_ms: end of it, or now.
        tell: called with how far it is, in epoch milliseconds.
    """

    def __init__(
        self, reading: HistoryReading, *, name: str, since_ms: int, until_ms: int, tell: Callable[[int], None]
    ) -> None:
        self._reading = reading
        self._name = name
        self._since_ms = since_ms
        self._until_ms = until_ms
        self._tell = tell
        self._committed = since_ms

    def append(self, payload: bytes) -> int:
        """A history is what was; nothing is added to it."""
        raise ValueError(f"a record of {len(payload)} bytes can't be added to a history")

    def read(self, start: int, *, bytes_max: int) -> Chunk | None:
        """See `Bus`; the first look, of one byte, is answered without asking the source."""
        start = max(start, self._since_ms)
        if start >= self._until_ms:
            return None
        if bytes_max <= 1:
            return Chunk(source=self._name, start=start, end=start, records=(), ends=())
        record, end = self._reading.piece(start, self._until_ms)
        return Chunk(source=self._name, start=start, end=end, records=(record,), ends=(end,))

    def commit(self, offset: int) -> None:
        """See `Bus`: how far the warehouse came."""
        self._committed = max(self._committed, offset)
        self._tell(self._committed)

    def committed(self) -> int:
        """See `Bus`."""
        return self._committed


def _row(identity: SeriesIdentity, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(getattr(identity, name) or "" for name in names)


def _section(
    table: Table,
    rows: LabelRows,
    subject: NDArray[np.int64],
    is_kept: NDArray[np.bool_],
    block: SampleBlock,
    values: NDArray[np.float64],
    measure: int,
) -> Section | None:
    if not is_kept.any():
        return None
    owner = np.repeat(subject, np.diff(block.starts))[is_kept]
    met, place = np.unique(owner, return_inverse=True)
    taken = rows.take(met.astype(np.int32))
    return Section(
        table=table,
        identities=taken.batch,
        identity=place.astype(np.int32),
        ts_ms=block.ts_ms[is_kept],
        measures=(measure,),
        values=values[is_kept][np.newaxis, :],
        identity_set=taken,
    )


_LastOf = dict[int, tuple[int, Mapping[str, str]]]
_LastSamples = dict[tuple[str, str], _LastOf]
"""By metric and table: each subject's last sample that counts, its time and the labels of its series."""


def _before(last: _LastOf, subject: NDArray[np.int64], block: SampleBlock) -> NDArray[np.int64]:
    """When the last sample counted of each series' subject, if it was of another series; shape (series,)."""
    return np.array(
        [
            last[number][0] if number in last and last[number][1] != labels else _NEVER_MS
            for number, labels in zip(subject.tolist(), block.labels, strict=True)
        ],
        dtype=np.int64,
    )


def _last_samples(subject: NDArray[np.int64], block: SampleBlock, is_kept: NDArray[np.bool_]) -> _LastOf:
    found: _LastOf = {}
    for place in np.flatnonzero(subject >= 0).tolist():
        times = block.ts_ms[block.starts[place] : block.starts[place + 1]]
        kept = times[is_kept[block.starts[place] : block.starts[place + 1]]]
        number = int(subject[place])
        if len(kept) and (number not in found or kept[-1] > found[number][0]):
            found[number] = (int(kept[-1]), block.labels[place])
    return found


_NEVER_MS = -(1 << 62)
_NEARBY = 0.6
"""Share of the gap between two scrapes within which a sample of another series is a copy: a replica is never further
away than half of one, and where the longest has a hole, the copy of the sample at its end is further from its begin."""
_ALONE_MS = 60_000.0
"""The same in time, where one sample is all there is."""


def without_copies(
    subject: NDArray[np.int64],
    starts: NDArray[np.int64],
    ts_ms: NDArray[np.int64],
    values: NDArray[np.float64],
    before_ms: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Which samples count, (samples,).

    Of several series of one subject the longest counts wholly, of equals the one that counted before; a sample of
    another one counts where no longer one has a sample nearby (by the longest's own gap), or has one at the very same
    time (then they are parts of one scrape, such as two MIG instances of one pod, and the larger value will count).

    Args:
        subject: what each series speaks of, shape (series,); -1 for nothing.
        starts: where the samples of each series begin, shape (series + 1,).
        ts_ms: shape (samples,).
        values: shape (samples,); NaN is no sample.
        before_ms: time up to which another series of the subject counts already, shape (series,).
    """
    counts_it = ~np.isnan(values)
    numbers, occurrences = np.unique(subject[subject >= 0], return_counts=True)
    follows = np.isin(numbers, subject[before_ms > _NEVER_MS])
    for number in numbers[(occurrences > 1) | follows].tolist():
        series = np.flatnonzero(subject == number)
        lengths = starts[series + 1] - starts[series]
        longest_first = series[np.lexsort((before_ms[series], -lengths))].tolist()
        gaps = np.diff(ts_ms[starts[longest_first[0]] : starts[longest_first[0] + 1]])
        nearby_ms = _NEARBY * float(np.median(gaps)) if len(gaps) else _ALONE_MS
        times = np.empty(0, dtype=np.int64)
        for place in longest_first:
            span = slice(starts[place], starts[place + 1])
            mine = ts_ms[span]
            distance = _distances(mine, times)
            counts_it[span] &= ((distance > nearby_ms) | (distance == 0)) & (mine - before_ms[place] > nearby_ms)
            times = np.union1d(times, mine[counts_it[span]])
    return counts_it


def _distances(mine: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.float64]:
    """How far each time is from the nearest of some ascending ones."""
    if not len(times):
        return np.full(len(mine), np.inf)
    after = np.searchsorted(times, mine)
    later, earlier = times[np.minimum(after, len(times) - 1)], times[np.maximum(after - 1, 0)]
    nearest: NDArray[np.float64] = np.minimum(np.abs(later - mine), np.abs(mine - earlier)).astype(np.float64)
    return nearest
