"""Reads a recorded or synthetic fleet as if it ran now: the `DeviceReader` that needs no GPU.

`read` gives one step at a time, as a device would; `blocks` gives many steps at once, for a replay that goes as fast
as it can. Called by `admin replay`, `run export node --replay` and `demo`. What a card shows is what the trace says of
the card itself, else the sum of its slices. Where a `Seating` says that pods were moved, they and all pods on the cards
concerned are played by the rules of `exporter.replay.seats`, and those cards show the sum of their slices.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from exporter.allocation.places import Holding, card_books
from exporter.allocation.rows import books_rows, holding_rows
from exporter.allocation.tables import Labels, Row
from exporter.card_families import FRAMEBUFFER_CAPACITY, FRAMEBUFFER_FREE
from exporter.collector import Snapshot
from exporter.families import CataloguedFamily, Family, KeptLabels
from exporter.reader import Block, InventoryChange, Reading, Samples
from exporter.replay.paging import Lent, Paging, Tenant
from exporter.replay.places import Places
from exporter.replay.seats import NO_SERVICE, Seating, Table, carried, played
from exporter.trace.trace import Trace, epoch_ms, from_epoch_ms
from exporter.trace.usage import Piece, joined
from fleet.inventory import Card, CardId, Grant
from fleet.schema import CARD_IDENTITY, SLICE_IDENTITY, Measure
from fleet.sharing import ACTIVE_RATIO_MIN
from fleet.usage import CardKey, SliceKey
from fleet.workload_kinds import SERVICE_KINDS

STEPS_PER_BLOCK = 144
"""Most steps in a block unless asked otherwise: a day of ten-minute steps."""

BLOCK_VALUES = 250_000
"""Cards times steps in a block unless asked otherwise."""

_SUMMED = (Measure.SM_ACTIVE, Measure.MEMORY_ACTIVE, Measure.ENCODER, Measure.DECODER)
_ADDED = (Measure.FRAMEBUFFER_USED, Measure.POWER)


class ReplayReader:
    """Reads a trace in order of time.

    Args:
        since: samples after this moment are read; None for the start of the trace. What stands there at this moment
            is named in the first reading.
        until: samples up to this moment are read; None for the end of the trace.
        seating: where pods sit that were moved; None where nothing was changed.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        seating: Seating | None = None,
    ) -> None:
        self._trace = trace
        self._since = max(since, trace.since) if since is not None else trace.since
        self._until = min(until, trace.until) if until is not None else trace.until
        self._places = Places(trace, seating, self._since)
        self._card_keys = tuple(_card_key(card) for card in trace.cards)
        counts = np.array([len(pair.grants) for pair in trace.pairs], np.int64)
        self._first_grant = np.r_[0, np.cumsum(counts)][: len(counts)].astype(np.int64)
        self._pairs_with_periods = np.flatnonzero(counts > 1)
        self._service_of_grant = _services(self._places.grants)
        self._row_of_grant = np.full(len(self._places.grants), -1, np.int32)
        self._rows_generation = self._places.generation
        self._slices: list[SliceKey] = []
        self._slice_rows: dict[SliceKey, int] = {}
        self._steps: Iterator[Block] | None = None
        self._paging = Paging(trace.step_seconds)
        self._lent: dict[CardId, list[int]] = {}
        self._lent_generation = -1

    @property
    def lent(self) -> Lent:
        """What came of framebuffer that was lent so far."""
        return self._paging.lent

    def blocks(self, steps_per_block: int | None = None) -> Iterator[Block]:
        """The rest of the trace, several steps at a time.

        Args:
            steps_per_block: steps in a block, at least 1; where pods may be moved meanwhile, the seating is asked once
                per block. None for as many as fit a bounded memory.

        Yields:
            Blocks without gaps, also those in which nothing was collected.
        """
        begin = self._since
        if steps_per_block is None:
            steps_per_block = max(1, min(STEPS_PER_BLOCK, BLOCK_VALUES // len(self._trace.cards)))
        for end, piece, card_piece in self._trace.usage_windows(self._since, self._until, steps_per_block):
            self._places.settle(begin)
            yield self._block(begin, end, piece, card_piece, self._places.change(end))
            begin = end

    def read(self, deadline_seconds: float) -> Reading | None:
        """Reads the next step; see `DeviceReader.read`. A file answers at once, whatever the deadline."""
        if self._steps is None:
            self._steps = self.blocks(1)
        block = next(self._steps, None)
        return None if block is None else reading_of(block)

    def close(self) -> None:
        """Ends the replay; the files are open only while a block is read."""
        self._steps = iter(())

    def _block(
        self, since: datetime, until: datetime, piece: Piece, card_piece: Piece | None, change: InventoryChange
    ) -> Block:
        grants = self._grant_numbers(piece)
        runs = ~self._places.is_stopped[grants]
        if not runs.all():
            kept, cells = np.flatnonzero(runs), self._cells(piece.ts_ms)
            values = carried(piece.values, cells - cells.min(), self._service_of_grant[grants], runs)
            piece, grants = replace(piece, values=values).part(kept), grants[kept]
        values = dict(piece.values)
        if self._places.is_card_played.any():
            values = self._played(piece.ts_ms, grants, values)
        slice_samples = Samples(rows=self._rows(grants), ts_ms=piece.ts_ms, values=_present(values))
        own = None
        if card_piece is not None:
            # What a card said of itself was said of other tenants than those that a plan put there.
            own = card_piece.part(np.flatnonzero(~self._places.is_card_played[card_piece.keys]))
        cards = self._places.card_numbers[grants]
        summed = ~(self._trace.is_card_measured & ~self._places.is_card_played)[cards]
        return Block(
            since=since,
            until=until,
            slices=tuple(self._slices),
            slice_samples=slice_samples,
            cards=self._card_keys,
            card_samples=self._card_samples(
                piece.ts_ms[summed], cards[summed], grants[summed], {m: v[summed] for m, v in values.items()}, own
            ),
            change=change,
        )

    def _grant_numbers(self, piece: Piece) -> NDArray[np.int64]:
        """The grant that each sample fell into: the latest period that had begun, or the first one."""
        numbers: NDArray[np.int64] = self._first_grant[piece.keys]
        for pair in self._pairs_with_periods.tolist():
            samples = np.flatnonzero(piece.keys == pair)
            if len(samples):
                starts = np.array([epoch_ms(grant.started_at) for grant in self._trace.pairs[pair].grants], np.int64)
                # A sample is the end of its step: one that falls on a start still belongs to the period before.
                periods = np.searchsorted(starts, piece.ts_ms[samples], side="left") - 1
                numbers[samples] += np.maximum(periods, 0)
        return numbers

    def _rows(self, grants: NDArray[np.int64]) -> NDArray[np.int32]:
        if self._rows_generation != self._places.generation:
            self._row_of_grant[:] = -1
            self._rows_generation = self._places.generation
        for number in np.unique(grants[self._row_of_grant[grants] < 0]).tolist():
            key = SliceKey.of(self._places.current(number))
            if key not in self._slice_rows:
                self._slice_rows[key] = len(self._slices)
                self._slices.append(key)
            self._row_of_grant[number] = self._slice_rows[key]
        rows: NDArray[np.int32] = self._row_of_grant[grants]
        return rows

    def _played(
        self, ts_ms: NDArray[np.int64], grants: NDArray[np.int64], values: dict[Measure, NDArray[np.float64]]
    ) -> dict[Measure, NDArray[np.float64]]:
        """Values in which the slices on cards that a plan touched fare as they do there."""
        samples = np.flatnonzero(self._places.is_card_played[self._places.card_numbers[grants]])
        if not len(samples):
            return values
        numbers, rows = np.unique(grants[samples], return_inverse=True)
        cells = self._cells(ts_ms[samples])
        first = int(cells.min())
        shape = (len(numbers), int(cells.max()) - first + 1)
        columns = {}
        for measure, column in values.items():
            table = np.full(shape, np.nan, np.float32)
            table[rows, cells - first] = column[samples]
            columns[measure] = table
        seated = Table(
            values=columns,
            recorded=tuple(self._places.grants[number] for number in numbers),
            current=tuple(self._places.current(number) for number in numbers),
            seats=tuple(self._places.seats[number] for number in numbers),
            enforced=self._places.enforced,
        )
        shown = played(replace(seated, waits=self._waits(seated, numbers, first)))
        result = {}
        for measure, column in values.items():
            changed = column.copy()
            new = shown[measure][rows, cells - first].astype(np.float64)
            is_same = columns[measure][rows, cells - first] == shown[measure][rows, cells - first]
            # 32-bit floats serve the formulas; what they left alone keeps all its digits.
            changed[samples] = np.where(is_same, column[samples], new)
            result[measure] = changed
        return result

    def _waits(self, table: Table, numbers: NDArray[np.int64], first: int) -> NDArray[np.float32] | None:
        """Share of each step in which rows wait for lent framebuffer; None where none is lent.

        A pod that nobody saw in a step of its life works in it, and holds what it held.

        Args:
            numbers: grant of each row.
            first: step of the trace that the first column is.
        """
        lent = self._lent_cards()
        if not lent:
            return None
        held = table.values[Measure.FRAMEBUFFER_USED]
        works, is_seen = np.zeros(held.shape, bool), np.zeros(held.shape, bool)
        for measure in (Measure.DUTY_CYCLE, Measure.SM_ACTIVE):
            if measure in table.values:
                works |= np.nan_to_num(table.values[measure]) > ACTIVE_RATIO_MIN
                is_seen |= ~np.isnan(table.values[measure])
        works |= ~is_seen
        is_seen |= ~np.isnan(held)
        waits = np.zeros(held.shape, np.float32)
        row_of = {number: row for row, number in enumerate(numbers.tolist())}
        cards = {card.card: card for card in self._trace.cards if card.card in lent}
        for step in range(held.shape[1]):
            moment = self._trace.since + timedelta(seconds=(first + step - 0.5) * self._trace.step_seconds)
            tenants: dict[CardId, list[Tenant]] = {card: [] for card in sorted(lent)}
            rows: dict[tuple[CardId, Hashable], int] = {}
            for card, own in lent.items():
                for number in own:
                    row = row_of.get(number)
                    if row is not None and not is_seen[row, step]:
                        row = None
                    if row is None and not self._places.grants[number].lives_at(moment):
                        continue
                    grant, seat = self._places.current(number), self._places.seats[number]
                    key = (grant.pod_id, grant.container, grant.started_at)
                    is_held = row is not None and not np.isnan(held[row, step])
                    tenants[card].append(
                        Tenant(
                            key=key,
                            held_bytes=float(held[row, step]) if is_held else None,
                            kept_bytes=None if seat is None else seat.kept_bytes,
                            works=row is None or bool(works[row, step]),
                        )
                    )
                    if row is not None:
                        rows[card, key] = row
            for place, seconds in self._paging.step(tenants, cards).items():
                if place in rows:
                    waits[rows[place], step] = seconds / self._trace.step_seconds
        return waits

    def _lent_cards(self) -> Mapping[CardId, Sequence[int]]:
        """Grants that sit on each card on which framebuffer is lent."""
        if self._lent_generation != self._places.generation:
            runs = np.flatnonzero(~self._places.is_stopped).tolist()
            seats = self._places.seats
            lent = {
                self._places.current(n).card for n in runs if (s := seats[n]) is not None and s.kept_bytes is not None
            }
            self._lent = {card: [n for n in runs if self._places.current(n).card == card] for card in sorted(lent)}
            self._lent_generation = self._places.generation
        return self._lent

    def _cells(self, ts_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """The step that each time belongs to, to the nearest: sources jitter around their grid."""
        step_ms = self._trace.step_seconds * 1000
        origin = epoch_ms(self._trace.since)
        cells: NDArray[np.int64] = (ts_ms - origin + step_ms // 2) // step_ms
        return cells

    def _card_samples(
        self,
        ts_ms: NDArray[np.int64],
        cards: NDArray[np.int64],
        grants: NDArray[np.int64],
        values: Mapping[Measure, NDArray[np.float64]],
        own: Piece | None,
    ) -> Samples:
        pieces = [self._summed(ts_ms, cards, grants, values)] if len(ts_ms) else []
        if own is not None and len(own.ts_ms):
            pieces.append(own)
        measures = tuple(dict.fromkeys(measure for piece in pieces for measure in piece.values))
        whole = joined([_with_measures(piece, measures) for piece in pieces], measures)
        whole = whole.part(np.argsort(whole.ts_ms, kind="stable")) if len(pieces) > 1 else whole
        return Samples(rows=whole.keys, ts_ms=whole.ts_ms, values=_present(whole.values))

    def _summed(
        self,
        ts_ms: NDArray[np.int64],
        cards: NDArray[np.int64],
        grants: NDArray[np.int64],
        values: Mapping[Measure, NDArray[np.float64]],
    ) -> Piece:
        """What cards show by what their slices do, per card and step."""
        cells = self._cells(ts_ms)
        first = int(cells.min())
        width = len(self._trace.cards)
        codes = (cells - first) * width + cards
        size = (int(cells.max()) - first + 1) * width
        weights = _shares(grants, cells - first, len(self._places.grants))
        found = np.flatnonzero(np.bincount(codes, minlength=size))
        capacity = np.array([card.framebuffer_bytes for card in self._trace.cards], np.float64)[found % width]
        summed: dict[Measure, NDArray[np.float64]] = {}
        for measure, column in values.items():
            there = ~np.isnan(column)
            if not there.any() or measure not in (Measure.DUTY_CYCLE, *_SUMMED, *_ADDED):
                continue
            kept = column[there] if weights is None else column[there] * weights[there]
            if measure is Measure.DUTY_CYCLE:
                # Kernels of pods that know nothing of each other overlap by chance: idle together = idle × idle.
                with np.errstate(divide="ignore"):
                    kept = np.log1p(-kept)
            total = np.bincount(codes[there], weights=kept, minlength=size)[found]
            if measure is Measure.DUTY_CYCLE:
                total = -np.expm1(total)
            elif measure in _SUMMED:
                total = np.minimum(total, 1.0)
            elif measure is Measure.FRAMEBUFFER_USED:
                total = np.minimum(total, capacity)
            has_any = np.bincount(codes[there], minlength=size)[found] > 0
            summed[measure] = np.where(has_any, total, np.nan)
        step_ms = self._trace.step_seconds * 1000
        at_ms = (found // width + first) * step_ms + epoch_ms(self._trace.since)
        return Piece(keys=(found % width).astype(np.int32), ts_ms=at_ms, values=summed)


def _services(grants: Sequence[Grant]) -> NDArray[np.int64]:
    """Number of the service that each grant belongs to, by container: its replicas carry each other's load."""
    numbers: dict[tuple[str, str], int] = {}
    return np.array(
        [
            numbers.setdefault((grant.workload_id, grant.container), len(numbers))
            if grant.workload_kind in SERVICE_KINDS
            else NO_SERVICE
            for grant in grants
        ],
        np.int64,
    )


def reading_of(block: Block) -> Reading:
    """The last step of a block as one reading, with all that changed in the block."""
    slices, slice_values = _latest(block.slice_samples)
    cards, card_values = _latest(block.card_samples)
    return Reading(
        at=from_epoch_ms(epoch_ms(block.until)),
        slices=tuple(block.slices[row] for row in slices),
        slice_values=slice_values,
        cards=tuple(block.cards[row] for row in cards),
        card_values=card_values,
        change=block.change,
    )


def _latest(samples: Samples) -> tuple[list[int], dict[Measure, NDArray[np.float64]]]:
    rows, last = np.unique(samples.rows[::-1], return_index=True)
    picked = len(samples.rows) - 1 - last
    return rows.tolist(), {measure: column[picked] for measure, column in samples.values.items()}


def _shares(grants: NDArray[np.int64], cells: NDArray[np.int64], grant_count: int) -> NDArray[np.float64] | None:
    """What a sample counts for among those of its slice in its step; None where each slice has one per step."""
    _, inverse, counts = np.unique(cells * grant_count + grants, return_inverse=True, return_counts=True)
    if not (counts > 1).any():
        return None
    shares: NDArray[np.float64] = 1.0 / counts[inverse]
    return shares


def _present(values: Mapping[Measure, NDArray[np.float64]]) -> dict[Measure, NDArray[np.float64]]:
    return {measure: column for measure, column in values.items() if not np.isnan(column).all()}


def _with_measures(piece: Piece, measures: tuple[Measure, ...]) -> Piece:
    nothing = np.full(len(piece.ts_ms), np.nan)
    values = {measure: piece.values.get(measure, nothing) for measure in measures}
    return Piece(keys=piece.keys, ts_ms=piece.ts_ms, values=values)


def _card_key(card: Card) -> CardKey:
    return CardKey(cluster=card.cluster, node=card.node, card=card.card, card_model=card.card_model)


class ReplayedFamilies:
    """What a trace says beyond its measures, as the live exporters show it: framebuffer and grants.

    A derivation for the collector of `gputide run export node --replay`. Names, labels and the rules by which grants
    add up are those of `exporter.card_families` and `exporter.allocation`. Left out is what no trace says: who hands
    out cards, and how much of them may be granted.
    """

    def __init__(self) -> None:
        self._kept = KeptLabels()

    def __call__(self, snapshot: Snapshot) -> tuple[Family, ...]:
        """The families of a snapshot."""
        found: dict[str, tuple[CataloguedFamily, list[tuple[Labels, float]]]] = {}
        for family, labels, value in _family_rows(snapshot):
            found.setdefault(family.name, (family, []))[1].append((labels, value))
        return tuple(self._kept.family(family, rows) for family, rows in found.values())


def _family_rows(snapshot: Snapshot) -> Iterator[Row]:
    reading = snapshot.reading
    measured = reading.card_values.get(Measure.FRAMEBUFFER_USED, ())
    used = dict(zip((key.card for key in reading.cards), measured, strict=False))
    held: dict[CardId, dict[str, tuple[Holding, ...]]] = {}
    for grant in snapshot.grants:
        holding = _holding(grant)
        yield from holding_rows(tuple(str(getattr(SliceKey.of(grant), name)) for name in SLICE_IDENTITY), holding)
        pods = held.setdefault(grant.card, {})
        pods[grant.pod_id] = (*pods.get(grant.pod_id, ()), holding)
    for card in snapshot.cards:
        labels = tuple(str(getattr(card, name)) for name in CARD_IDENTITY)
        yield FRAMEBUFFER_CAPACITY, labels, float(card.framebuffer_bytes)
        if card.card in used:
            # Not a number where nothing was collected, and left out then.
            yield FRAMEBUFFER_FREE, labels, card.framebuffer_bytes - float(used[card.card])
        yield from books_rows(labels, card_books(held.get(card.card, {}).values()))


def _holding(grant: Grant) -> Holding:
    """A trace writes a share of 1 where nothing limits the compute."""
    ratio = grant.compute_granted_ratio
    return Holding(
        container=grant.container,
        card=grant.card,
        framebuffer_bytes=grant.framebuffer_granted_bytes,
        compute_ratio=ratio if ratio < 1 else None,
        mig_profile=grant.mig_profile,
    )
