"""What was measured in each hour of a day, of slices, pods and cards, as arrays over the hours.

Called by `charged_days`. Means are over the samples of the hour; NaN where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analyzer.state.card_hours import SeenHours, idle_hours, window_hours
from analyzer.state.idleness import COMPUTE, ENGINES, POLLING_MAX, SERVING, alone_in_pod, says_nobody
from fleet.inventory import Priority
from fleet.money.charged_day import ServedUnit
from fleet.money.tenancies import Tenancies
from fleet.schema import CARD_USAGE, MEASURES, POD_USAGE, Measure, Table
from fleet.settings.settings import AnalyzerSettings
from fleet.units import epoch_ms
from pipeline.warehouse.parquet_reads import ParquetReads

HOUR_SECONDS = 3600
HOUR_MS = HOUR_SECONDS * 1000

_SCALE = {column.measure: column.scale for column in MEASURES}
_SERVED = (Measure.REQUEST_RATE, Measure.PROMPT_TOKEN_RATE, Measure.GENERATED_TOKEN_RATE)
_SLICE = ("namespace", "pod", "container", "card")
_POD = ("namespace", "pod")


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyUsage:
    """Means per hour, float64; NaN where nothing was collected.

    Attributes:
        compute: share of the card that each grant's slice kept busy, 0-1, shape (grants, hours).
        framebuffer_bytes: framebuffer that it held, shape (grants, hours).
        pods: `namespace`, `pod` of each pod with grants.
        pod_of: place of each grant's pod, int64, shape (grants,).
        served: what the server of each pod served per second, each of shape (pods, hours).
        watts: power of each card, shape (cards, hours).
        activity: share of each card that was busy, as it says itself, 0-1, shape (cards, hours).
    """

    compute: NDArray[np.float64]
    framebuffer_bytes: NDArray[np.float64]
    pods: tuple[tuple[str, str], ...]
    pod_of: NDArray[np.int64]
    served: Mapping[ServedUnit, NDArray[np.float64]]
    watts: NDArray[np.float64]
    activity: NDArray[np.float64]

    def between(self, first: int, last: int) -> HourlyUsage:
        """The same from one hour up to another, which is left out."""
        return replace(
            self,
            compute=self.compute[:, first:last],
            framebuffer_bytes=self.framebuffer_bytes[:, first:last],
            served={unit: rate[:, first:last] for unit, rate in self.served.items()},
            watts=self.watts[:, first:last],
            activity=self.activity[:, first:last],
        )


def hourly_usage(
    warehouse: ParquetReads, who: Tenancies, *, cluster: str, since: datetime, until: datetime
) -> HourlyUsage:
    """Reads the hours of a span of at most some days."""
    hours = (epoch_ms(until) - epoch_ms(since)) // HOUR_MS

    def read(table: Table, *measures: Measure) -> pa.Table:
        return warehouse.windows(
            table, cluster=cluster, level_seconds=HOUR_SECONDS, since=since, until=until, with_histograms=False,
            measures=measures,
        )  # fmt: skip

    activity = (Measure.SM_ACTIVE, Measure.DUTY_CYCLE)
    pods = read(POD_USAGE, *activity, Measure.FRAMEBUFFER_USED, *_SERVED)
    cards = read(CARD_USAGE, *activity, Measure.POWER)
    slice_keys = [(g.namespace, g.pod, g.container, str(g.card)) for g in who.grants]
    pod_names = sorted({(g.namespace, g.pod) for g in who.grants})
    pod_place = {name: number for number, name in enumerate(pod_names)}
    slices, slot_of = _distinct(slice_keys)
    slot_rows = _places(pods, _SLICE, slices)
    pod_rows = _places(pods, _POD, pod_names)
    card_rows = _places(cards, ("card",), [(str(card.card),) for card in who.cards])
    pod_hours = _hours(pods, since)
    card_hours = _hours(cards, since)

    def of_slices(measure: Measure) -> NDArray[np.float64]:
        return means_by_hour(pods, measure, slot_rows, pod_hours, (len(slices), hours))[slot_of]

    def of_pods(measure: Measure) -> NDArray[np.float64]:
        return means_by_hour(pods, measure, pod_rows, pod_hours, (len(pod_names), hours))

    def of_cards(measure: Measure) -> NDArray[np.float64]:
        return means_by_hour(cards, measure, card_rows, card_hours, (len(who.cards), hours))

    requests, prompt, generated = map(of_pods, _SERVED)
    return HourlyUsage(
        compute=_first(of_slices(Measure.SM_ACTIVE), of_slices(Measure.DUTY_CYCLE)),
        framebuffer_bytes=of_slices(Measure.FRAMEBUFFER_USED),
        pods=tuple(pod_names),
        pod_of=np.array([pod_place[(g.namespace, g.pod)] for g in who.grants], np.int64),
        served={
            ServedUnit.REQUESTS: requests,
            ServedUnit.TOKENS: prompt + generated,
            ServedUnit.GENERATED_TOKENS: generated,
        },
        watts=of_cards(Measure.POWER),
        activity=_first(of_cards(Measure.SM_ACTIVE), of_cards(Measure.DUTY_CYCLE)),
    )


def idle_grants(
    warehouse: ParquetReads,
    who: Tenancies,
    *,
    cluster: str,
    since: datetime,
    until: datetime,
    days_at_once: int,
    settings: AnalyzerSettings,
) -> NDArray[np.bool_]:
    """Hours in which each grant was idle (`analyzer.state.card_hours`), shape (grants, hours).

    An idle window may begin before the span and end after it, so the span is read with that margin on both sides.

    Args:
        days_at_once: how many days are read together.
    """
    margin = window_hours(settings) - 1
    begin, end = since - timedelta(hours=margin), until + timedelta(hours=margin)
    hours = (epoch_ms(end) - epoch_ms(begin)) // HOUR_MS
    keys, slot_of = _distinct([(g.namespace, g.pod, g.container, str(g.card)) for g in who.grants])
    cards = [(str(card.card),) for card in who.cards]
    of_slices, of_cards = _Marks.of(len(keys), hours), _Marks.of(len(cards), hours)
    start = begin
    while start < end:
        stop = min(end, start + timedelta(days=days_at_once))
        for table, names, columns, marks, measures in (
            (POD_USAGE, keys, _SLICE, of_slices, (*ENGINES, *SERVING)),
            (CARD_USAGE, cards, ("card",), of_cards, ENGINES),
        ):
            rows = warehouse.windows(
                table, cluster=cluster, level_seconds=HOUR_SECONDS, since=start, until=stop, with_histograms=False,
                measures=measures,
            )  # fmt: skip
            hour = _hours(rows, begin)
            marks.mark(rows, _places(rows, columns, names), hour, measures, settings.idle_ratio_max)
            if table is POD_USAGE:
                _mark_pods(marks, rows, names, hour)
        start = stop
    first = np.zeros(len(keys), np.int64)
    first[slot_of] = np.arange(len(slot_of))
    is_low = np.array([grant.priority is Priority.LOW for grant in who.grants], np.bool_)[first]
    loud = of_cards.filled[who.card_of[first]] & ~of_slices.told[Measure.SM_ACTIVE]
    return idle_hours(
        of_slices.seen(alone_in_pod([(key[0], key[1], key[2]) for key in keys])[:, None] & ~loud),
        of_cards.seen(np.zeros((len(cards), 1), np.bool_)),
        who.card_of[first],
        held=_held(who, slot_of, len(keys), begin, hours),
        is_low=is_low,
        settings=settings,
    )[slot_of][:, margin : hours - margin]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """What the hours of slices or cards show, each of shape (rows, hours).

    Attributes:
        told: where each measure was collected.
        moved: an engine peaked above the limit.
        filled: its engines did more than polling does.
        served: its server answered a request or had one in work.
    """

    told: Mapping[Measure, NDArray[np.bool_]]
    moved: NDArray[np.bool_]
    filled: NDArray[np.bool_]
    served: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: int, hours: int) -> _Marks:
        def nothing() -> NDArray[np.bool_]:
            return np.zeros((rows, hours), np.bool_)

        told = {measure: nothing() for measure in (*COMPUTE, *SERVING)}
        return cls(told=told, moved=nothing(), filled=nothing(), served=nothing())

    def mark(
        self,
        rows: pa.Table,
        places: NDArray[np.int64],
        hours: NDArray[np.int64],
        measures: Sequence[Measure],
        idle_ratio_max: float,
    ) -> None:
        """Mark what some rows show, each at its place; -1 for none."""
        for measure in measures:
            there = (places >= 0) & (pc.fill_null(rows.column(f"{measure.value}_count"), 0).to_numpy() > 0)
            most = pc.fill_null(rows.column(f"{measure.value}_max"), 0).to_numpy() / _SCALE[measure]
            marked = [(self.served, 0.0) if measure in SERVING else (self.moved, idle_ratio_max)]
            if measure in POLLING_MAX:
                marked.append((self.filled, POLLING_MAX[measure]))
            for marks, limit in marked:
                above = there & (most > limit)
                marks[places[above], hours[above]] = True
            if measure in self.told:
                self.told[measure][places[there], hours[there]] = True

    def seen(self, may_spin: NDArray[np.bool_]) -> SeenHours:
        """What was known and used, by the rule of `analyzer.state.idleness`.

        Args:
            may_spin: where engines may move for nobody, of a shape that broadcasts.
        """
        nobody = says_nobody(self.told, np.zeros_like(self.served)) & ~self.served & ~self.filled
        spins = self.moved & nobody & may_spin
        known = np.logical_or.reduce([self.told[measure] for measure in COMPUTE])
        return SeenHours(known=known, used=(self.moved & ~spins) | self.served, spins=spins)


def _mark_pods(marks: _Marks, rows: pa.Table, keys: Sequence[tuple[str, ...]], hours: NDArray[np.int64]) -> None:
    """Marks what servers say for each slice of their pods: a live server's rows name no card."""
    pods, pod_of = _distinct([key[: len(_POD)] for key in keys])
    of_pods = _Marks.of(len(pods), marks.moved.shape[1])
    places = np.where(pc.equal(rows.column("card"), "").to_numpy(), _places(rows, _POD, pods), -1)
    of_pods.mark(rows, places, hours, SERVING, 0.0)
    marks.served[:] |= of_pods.served[pod_of]
    for measure in SERVING:
        marks.told[measure][:] |= of_pods.told[measure][pod_of]


def _held(who: Tenancies, slot_of: NDArray[np.int64], slots: int, begin: datetime, hours: int) -> NDArray[np.bool_]:
    """Hours that the periods of a slice's grants touch, shape (slots, hours)."""
    edges = np.zeros((slots, hours + 1), np.int64)
    start_ms = epoch_ms(begin)
    first = np.clip((who.start_ms - start_ms) // HOUR_MS, 0, hours)
    last = np.clip(-(-(who.end_ms - start_ms) // HOUR_MS), 0, hours)
    np.add.at(edges, (slot_of, first), 1)
    np.add.at(edges, (slot_of, last), -1)
    return np.asarray(np.cumsum(edges[:, :-1], axis=1) > 0, np.bool_)


def _distinct(keys: Sequence[tuple[str, ...]]) -> tuple[list[tuple[str, ...]], NDArray[np.int64]]:
    """Distinct keys in order, and the place of each key among them."""
    places: dict[tuple[str, ...], int] = {}
    of = np.array([places.setdefault(key, len(places)) for key in keys], np.int64)
    return list(places), of


def _places(rows: pa.Table, names: Sequence[str], keys: Sequence[tuple[str, ...]]) -> NDArray[np.int64]:
    """The place of each row's key among some keys, -1 where it is none of them."""
    code_of_row = np.zeros(rows.num_rows, np.int64)
    code_of_key = np.zeros(len(keys), np.int64)
    unknown = np.zeros(rows.num_rows, np.bool_)
    for number, name in enumerate(names):
        values = list(dict.fromkeys(key[number] for key in keys))
        place = {value: code for code, value in enumerate(values)}
        found = pc.index_in(rows.column(name), value_set=pa.array(values, pa.string()))
        codes = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        unknown |= codes < 0
        code_of_row = code_of_row * max(1, len(values)) + np.maximum(codes, 0)
        code_of_key = code_of_key * max(1, len(values)) + np.array([place[key[number]] for key in keys], np.int64)
    if not len(keys):
        return np.full(rows.num_rows, -1, np.int64)
    order = np.argsort(code_of_key, kind="stable")
    spot = np.minimum(np.searchsorted(code_of_key[order], code_of_row), len(keys) - 1)
    hit = (code_of_key[order][spot] == code_of_row) & ~unknown
    return np.where(hit, order[spot], -1)


def _hours(rows: pa.Table, since: datetime) -> NDArray[np.int64]:
    starts: NDArray[np.int64] = rows.column("window_start").to_numpy().astype(np.int64)
    return (starts - epoch_ms(since)) // HOUR_MS


def means_by_hour(
    rows: pa.Table, measure: Measure, places: NDArray[np.int64], hours: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[np.float64]:
    """Mean of a measure per place and hour, NaN where nothing was collected; of several rows of one place the largest.

    Args:
        rows: windows of an hour, with the measure's sums and counts.
        places: row of the grid of each, negative for none, shape (rows,).
        hours: hour of each since the first, shape (rows,).
        shape: places and hours.
    """
    count = pc.fill_null(rows.column(f"{measure.value}_count"), 0).to_numpy()
    total = pc.fill_null(rows.column(f"{measure.value}_sum"), 0).to_numpy()
    seen = (places >= 0) & (count > 0) & (hours >= 0) & (hours < shape[1])
    grid = np.full(shape, -np.inf)
    means = total[seen] / count[seen] / _SCALE[measure]
    np.maximum.at(grid, (places[seen], hours[seen]), means)
    grid[np.isneginf(grid)] = np.nan
    return grid


def _first(values: NDArray[np.float64], otherwise: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isnan(values), otherwise, values)
