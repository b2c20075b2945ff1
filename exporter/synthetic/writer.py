"""A fleet that nobody owns: deterministic, of any size, with something to find for every rule and every trap once.

`write_synthetic_fleet` writes it as a neutral trace, so the demo, the tests and the growth benchmarks go the same way
as a recorded fleet. The same arguments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exporter.synthetic.fleet import FleetBuilder
from exporter.synthetic.mix import add_mix, add_newcomers
from exporter.synthetic.shapes import Columns, Day, columns_of, day_of
from exporter.synthetic.traps import TRAPS, add_traps
from exporter.trace.usage import Piece
from exporter.trace.writer import write_trace
from fleet.errors import Misconfigured
from fleet.schema import Measure

__all__ = ["CARDS_MIN", "SINCE", "TRAPS", "write_synthetic_fleet"]

SINCE = datetime(2026, 1, 5, tzinfo=UTC)
"""Start of a synthetic fleet unless another one is asked for: a Monday."""

CARDS_MIN = 40
"""Smallest fleet: the traps need most of these cards."""

PART_VALUES = 400_000
"""Slices times steps that are computed at once; it bounds the memory of a large fleet."""

GAP_PROBABILITY = 0.004
"""Chance that a node's counters are not collected for an hour."""

_IDLE_WATTS, _BUSY_WATTS = 55.0, 330.0
_IDLE_CELSIUS, _BUSY_CELSIUS = 32.0, 40.0
_DAY_SECONDS = 86_400


def write_synthetic_fleet(
    folder: Path,
    *,
    seed: int = 7,
    cards: int = 160,
    days: int = 21,
    step_seconds: int = 600,
    since: datetime = SINCE,
    newcomers_days: float | None = None,
) -> None:
    """Writes a synthetic fleet as a neutral trace.

    Args:
        folder: where; must not exist or be empty.
        seed: another seed gives another fleet of the same kind.
        cards: number of cards, at least `CARDS_MIN`.
        days: length, at least 2; rhythms of the week show from two weeks on.
        step_seconds: length of a step, a divisor of an hour.
        since: its start, a midnight in UTC.
        newcomers_days: days after it at which teams deploy new services on a node that stands empty until then; None
            for no such node.

    Raises:
        Misconfigured: an argument is out of range, or the folder holds something.
        Unavailable: the folder can't be written.
    """
    if cards < CARDS_MIN:
        raise Misconfigured(f"cannot make a synthetic fleet of {cards} cards: cards must be at least {CARDS_MIN}")
    if days < 2:
        raise Misconfigured(f"cannot make a synthetic fleet of {days} days: days must be at least 2")
    if step_seconds < 1 or 3600 % step_seconds:
        raise Misconfigured(
            f"cannot make a synthetic fleet with steps of {step_seconds} s: step_seconds must divide an hour"
        )
    fleet = FleetBuilder(seed=seed, since=since, days=days)
    add_traps(fleet)
    if newcomers_days is not None:
        add_newcomers(fleet, np.random.default_rng([seed, 0x2E3]), newcomers_days)
    add_mix(fleet, np.random.default_rng([seed, 0xF1EE7]), cards)
    watch = _Watch(fleet)
    write_trace(
        folder,
        cards=fleet.cards,
        nodes=fleet.nodes,
        grants=fleet.grants,
        usage=_usage(fleet, watch, step_seconds),
        card_usage=watch.pieces,  # filled while usage is written, which comes first
    )


def _days(fleet: FleetBuilder, columns: Columns, step_seconds: int) -> Iterator[tuple[Day, NDArray[np.int64]]]:
    """Every day, in parts, with the ends of its steps in epoch milliseconds; rows not collected are out already."""
    ends = (np.arange(_DAY_SECONDS // step_seconds) + 1) * step_seconds
    parts = np.array_split(ends, 1 + len(ends) * len(fleet.grants) // PART_VALUES)
    start_ms = round(fleet.since.timestamp() * 1000)
    names = {node.node: number for number, node in enumerate(fleet.nodes)}
    node_of = np.array([names[grant.node] for grant in fleet.grants])
    for number in range(fleet.days):
        for part, part_ends in enumerate(parts):
            day = day_of(
                columns,
                seed=fleet.seed,
                day=number,
                part=part,
                first_weekday=fleet.since.weekday(),
                step_ends_hours=part_ends / 3600.0,
            )
            day.is_there[_is_gap(fleet, number, len(names), part_ends)[node_of]] = False
            yield day, start_ms + (number * _DAY_SECONDS + part_ends) * 1000


def _is_gap(fleet: FleetBuilder, day: int, nodes: int, ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Steps in which a node was not collected; on day 1 the whole fleet was not, for an hour. Shape (nodes, steps)."""
    random = np.random.default_rng([fleet.seed, day, 0x6A9])
    hour = (ends - 1) // 3600
    is_gap = (random.random((nodes, 24)) < GAP_PROBABILITY)[:, hour]
    if day == 1:
        is_gap |= (hour == 4)[None, :]
    return is_gap


def _usage(fleet: FleetBuilder, watch: _Watch, step_seconds: int) -> Iterator[Piece]:
    for day, ends_ms in _days(fleet, columns_of(fleet.shapes), step_seconds):
        watch.note(day, ends_ms)
        # Rows of one instant lie together, as a scrape would write them.
        steps, slices = np.nonzero(day.is_there.T)
        values = {measure: column[slices, steps] for measure, column in day.shown.items()}
        yield Piece(keys=slices.astype(np.int32), ts_ms=ends_ms[steps], values=values)


class _Watch:
    """What the watched cards say of themselves: the truth, also where a slice's own counters don't report it."""

    def __init__(self, fleet: FleetBuilder) -> None:
        number_of = {card.card: number for number, card in enumerate(fleet.cards)}
        row_of = {card: row for row, card in enumerate(fleet.watched)}
        tenants = [(row_of[g.card], number) for number, g in enumerate(fleet.grants) if g.card in row_of]
        self._cards = np.array([number_of[card] for card in fleet.watched], np.int32)
        self._rows, self._slices = np.array(tenants, np.int64).reshape(-1, 2).T
        self.pieces: list[Piece] = []

    def note(self, day: Day, ends_ms: NDArray[np.int64]) -> None:
        shape = (len(self._cards), len(ends_ms))
        load, used = np.zeros(shape), np.zeros(shape)
        np.add.at(load, self._rows, day.load[self._slices])
        np.add.at(used, self._rows, day.shown[Measure.FRAMEBUFFER_USED][self._slices])
        # Cards by time: transposed, so that rows of one instant lie together.
        flat: NDArray[np.float64] = np.minimum(load, 1.0).T.ravel()
        values: dict[Measure, NDArray[np.float64]] = {
            Measure.DUTY_CYCLE: np.round(1.0 - np.power(1.0 - flat, 3.0), 4),
            Measure.SM_ACTIVE: np.round(flat, 4),
            Measure.FRAMEBUFFER_USED: used.T.ravel(),
            Measure.POWER: np.round(_IDLE_WATTS + _BUSY_WATTS * flat, 1),
            Measure.TEMPERATURE: np.round(_IDLE_CELSIUS + _BUSY_CELSIUS * flat, 1),
        }
        keys = np.tile(self._cards, len(ends_ms))
        self.pieces.append(Piece(keys=keys, ts_ms=np.repeat(ends_ms, len(self._cards)), values=values))
