"""Every policy that can be played, and how a fleet fares under it: seats, relief, re-plan and harvest put together.

Policies seat pods (`opening_of`), or switch them off for a while (the idle culler, the tide table).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from analyzer.profile import profile_fleet
from fleet.capabilities.register import Capabilities
from fleet.priority_holds import NOBODY, Hold, Holders, hold_of
from fleet.relief.rules import LOAD_BYTES_PER_SECOND, ReliefRules
from fleet.settings.settings import Settings
from fleet.usage import History
from recommender.backtest import own_past
from recommender.demand import Demand, demand_of
from recommender.footprint_grants import SNAP_BYTES
from recommender.naive import SUM_OF_MAXIMA, naive_packing
from recommender.planner import make_plan
from recommender.policies.first_fit import first_fit_decreasing
from recommender.policies.right_sizing import Ask, forecast_ask, hindsight_ask, percentile_ask
from recommender.policies.scaling_in import TideTable, asleep, scaled_in
from recommender.priority_holds import holds_of
from recommender.simulate.harvest import CardPast, Harvest, HarvestRules, Leftover, harvest
from recommender.simulate.play import Played, play
from recommender.simulate.replan import Replan
from recommender.simulate.stage import DAY_SECONDS, Opening, Stage, opening_of_plan, whole_cards

Packer = Callable[[Demand, NDArray[np.int64], float], tuple[NDArray[np.int64], NDArray[np.float64]]]
"""Packs rows of one card model: series, rows, framebuffer of a card → card and grant of each row."""


class Policy(StrEnum):
    """Who decides where pods sit."""

    WHOLE_CARDS = "whole-cards"
    """Every pod keeps a card of its own."""
    PERCENTILE = "percentile"
    """Right-sizing by percentile, as KRR does it."""
    FORECAST = "forecast"
    """Right-sizing by forecast, as Crane does it."""
    IDLE_CULLER = "idle-culler"
    """Services without work are switched off until they are asked for, as gpu-pruner does it."""
    TIDE_TABLE = "tide-table"
    """Replicas leave at fixed hours of the night, for all services alike."""
    MAXIMA = "maxima"
    """Pods share a card where their largest demands fit together."""
    HINDSIGHT = "hindsight"
    """First fit on the days that are judged: nobody can know them."""
    GPUTIDE = "gputide"
    """Our own plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a performance is played by.

    Attributes:
        settings: settings of analyzer, planner and presets.
        capability: what the backend enforces.
        relief: rules of relief at run time; None for none.
        replan_seconds: time between two plans; None for never.
        load_bytes_per_second: how fast framebuffer is loaded where no relief says otherwise.
        harvest: what a worker of low priority is like.
        wanted: workers that wait or run in each step, (steps,); None for a queue that never ends.
        holders: what holds low priority back beyond the backend.
    """

    settings: Settings
    capability: Capabilities
    relief: ReliefRules | None = None
    replan_seconds: int | None = None
    load_bytes_per_second: float = LOAD_BYTES_PER_SECOND
    harvest: HarvestRules = field(default_factory=HarvestRules)
    wanted: NDArray[np.int64] | None = None
    tide: TideTable = field(default_factory=TideTable)
    time_zone: str = "UTC"
    holders: Holders = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """How one policy did.

    Attributes:
        relief: whether cards were relieved at run time.
        reaction_seconds: how long a card is overloaded before it is relieved, None without relief.
        since: start of the days that were played.
        cards_before: their cards at first.
        cards_opening: cards after the policy's plan.
        cards_peak: the same with spares at their peak.
        saved_ratio: 1 - peak / before.
        violation_ratio: violated active time / active time of high and normal priority.
        contention_ratio: of it contended.
        framebuffer_ratio: of it short of framebuffer or on a full card.
        predicted_violation_ratio: what the plan said before relief, None where it says nothing.
        lost_work_ratio: demand that was not served / demand.
        moves: pods moved, stopped or woken.
        moves_per_pod_day: the same per judged pod and day.
        switches_per_day: how often lent framebuffer came back to a card, of all cards.
        switch_seconds: how long pods waited for that, on average.
        host_bytes_max: most lent framebuffer that lay in host memory at a time, of all nodes.
        low_priority_gpu_hours: work of low priority that stayed done.
        evictions: workers of low priority sent away.
    """

    policy: str
    relief: bool
    reaction_seconds: float | None
    since: datetime
    until: datetime
    pods: int
    cards_before: int
    cards_opening: int
    cards_peak: int
    saved_ratio: float
    violation_ratio: float
    contention_ratio: float
    framebuffer_ratio: float
    predicted_violation_ratio: float | None
    lost_work_ratio: float
    moves: int
    moves_per_pod_day: float
    switches_per_day: float
    switch_seconds: float
    host_bytes_max: float
    low_priority_gpu_hours: float
    low_priority_lost_gpu_hours: float
    evictions: int
    evictions_per_worker_hour: float


def perform(policy: Policy, stage: Stage, table: Table) -> Performance:
    """Play one policy on one stage; low priority that nothing holds back under it contends, and counts, as an equal."""
    stage = replace(stage, is_low=stage.is_low & _held(policy, stage, table))
    if policy is Policy.IDLE_CULLER:
        played, idle = _culled(stage, table)
        return _performance(policy, stage, table, played, harvested(played, idle, table, stage, shares=False))
    if policy is Policy.TIDE_TABLE:
        played, idle = _tidal(stage, table)
        return _performance(policy, stage, table, played, harvested(played, idle, table, stage, shares=False))
    opening = opening_of(policy, stage, table)
    relief = table.relief if policy is not Policy.WHOLE_CARDS else None
    replan = None
    if table.replan_seconds is not None and policy not in {Policy.WHOLE_CARDS, Policy.HINDSIGHT}:
        replan = Replan(
            every_seconds=table.replan_seconds,
            plan=lambda step: opening_of(policy, stage, table, step=step),
            load_bytes_per_second=table.load_bytes_per_second,
        )
    played = play(stage, opening, relief, replan)
    idle = played.cards_peak - played.used.sum(axis=0)
    shares = policy is not Policy.WHOLE_CARDS and _workers_yield(stage, table)
    got = harvested(played, idle, table, stage, shares=shares)
    return _performance(policy, stage, table, played, got, relief, opening.predicted_violation_ratio)


def _held(policy: Policy, stage: Stage, table: Table) -> NDArray[np.bool_]:
    """Rows that something holds back where they have low priority; a gate that needs core limits only under our plan.

    It lets such pods share a card only between limits that it sets.
    """
    holds = holds_of(stage.demand, stage.known.inventory, table.capability, table.holders)
    none = {Hold.NONE} if policy is Policy.GPUTIDE else {Hold.NONE, Hold.CORES}
    return np.array([holds.get(grant.workload_id, Hold.NONE) not in none for grant in stage.demand.grants], bool)


def _workers_yield(stage: Stage, table: Table) -> bool:
    """Whether a worker of low priority is held back beside services as they are: nobody gives those a core limit."""
    nodes = {card.node for card in stage.known.inventory.cards} | {grant.node for grant in stage.demand.grants}
    return hold_of(table.capability, table.holders, nodes, None) not in (Hold.NONE, Hold.CORES)


def opening_of(policy: Policy, stage: Stage, table: Table, *, step: int = 0) -> Opening:
    """Where a policy seats pods, with what is known at a step."""
    known = stage.known if step == 0 else stage.known_at(step)
    if policy is Policy.GPUTIDE:
        now, settings = known.inventory.as_of, table.settings
        profiles = profile_fleet(known, settings=settings.analyzer, now=now)
        past = own_past(known, settings=settings, capability=table.capability, relief=table.relief)
        past = replace(past, holders=table.holders)
        plan = make_plan(known, profiles, settings=settings, capability=table.capability, now=now, past=past)
        return opening_of_plan(stage, plan, measured_bytes_per_second=table.capability.spill_bytes_per_second)
    if policy not in _PACKERS:
        return whole_cards(stage)
    if policy is Policy.HINDSIGHT:
        known = History(inventory=stage.known.inventory, slices=stage.coming_slices())
    return _packed(stage, demand_of(known), _PACKERS[policy])


def _packed(stage: Stage, demand: Demand, packer: Packer) -> Opening:
    """Packs the judged pods of each model; everybody else keeps a card."""
    opening = whole_cards(stage)
    card, granted, offset = opening.card, opening.granted_bytes, stage.rows
    for model in range(len(stage.models)):
        rows = np.flatnonzero(stage.is_judged & (stage.model == model))
        if len(rows):
            bins, sizes = packer(demand, rows, float(stage.capacity_bytes[rows[0]]))
            card[rows], granted[rows] = offset + bins, sizes
            offset += int(bins.max()) + 1
    return replace(opening, card=card, granted_bytes=granted)


def _asking(ask: Callable[[Demand, NDArray[np.int64]], Ask]) -> Packer:
    def pack(demand: Demand, rows: NDArray[np.int64], capacity: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        wanted = ask(demand, rows)
        snapped = np.ceil(wanted.framebuffer_bytes / SNAP_BYTES) * SNAP_BYTES
        sizes = np.minimum(capacity, wanted.framebuffer_bytes if ask is hindsight_ask else snapped)
        return first_fit_decreasing(sizes, wanted.profile, capacity, 1.0), sizes

    return pack


def _maxima(demand: Demand, rows: NDArray[np.int64], capacity: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    bins, sizes = naive_packing(SUM_OF_MAXIMA, demand, rows, capacity)
    return bins.astype(np.int64), sizes


_PACKERS: dict[Policy, Packer] = {
    Policy.PERCENTILE: _asking(percentile_ask),
    Policy.FORECAST: _asking(forecast_ask),
    Policy.MAXIMA: _maxima,
    Policy.HINDSIGHT: _asking(hindsight_ask),
}


def _culled(stage: Stage, table: Table) -> tuple[Played, NDArray[np.int64]]:
    """Whole cards, and pods that sleep; each waking waits for its framebuffer, and counts as a move."""
    played = play(stage, whole_cards(stage))
    sleeps = asleep(stage.demand.compute, stage.demand.workload_of, stage.step_seconds)[:, stage.past :]
    sleeps &= stage.is_judged[:, None]
    wakes = np.zeros_like(sleeps)
    wakes[:, 1:] = sleeps[:, :-1] & ~sleeps[:, 1:]
    rate = table.load_bytes_per_second
    need = np.nan_to_num(stage.demand.need_bytes[:, stage.past :])
    wait = np.minimum(1.0, np.where(wakes, need / rate / stage.step_seconds, 0.0))
    late = np.where(stage.counted, wait.sum(axis=1), 0.0)
    used = played.used.copy()
    used[: stage.rows] &= ~sleeps
    peak = sum(int(used[played.model == model].sum(axis=0).max(initial=0)) for model in range(len(stage.models)))
    culled = replace(
        played,
        cards_peak=peak,
        violated_steps=played.violated_steps + late,
        contended_steps=played.contended_steps + late,
        moves=int(wakes[stage.is_judged].sum()),
        used=used,
    )
    return culled, peak - used.sum(axis=0)


def _tidal(stage: Stage, table: Table) -> tuple[Played, NDArray[np.int64]]:
    """Whole cards; at night fewer replicas carry the load of all, and the cards of the others go to training."""
    coming = np.flatnonzero(stage.is_judged)
    _, workload = np.unique(stage.demand.workload_of[coming], return_inverse=True)
    tide = scaled_in(
        stage.coming[coming],
        workload.reshape(-1).astype(np.int32),
        table.tide,
        since=stage.since,
        step_seconds=stage.step_seconds,
        time_zone=table.time_zone,
    )
    compute = stage.demand.compute.copy()
    need = stage.demand.need_bytes.copy()
    compute[coming, stage.past :] = tide.compute
    need[coming, stage.past :] = np.where(tide.is_away, 0.0, need[coming, stage.past :])
    played = play(replace(stage, demand=replace(stage.demand, compute=compute, need_bytes=need)), whole_cards(stage))
    back = int((tide.is_away[:, :-1] & ~tide.is_away[:, 1:]).sum())
    idle = np.where(tide.is_training, tide.is_away.sum(axis=0), 0)
    return replace(played, moves=back), idle


def harvested(played: Played, idle: NDArray[np.int64], table: Table, stage: Stage, *, shares: bool) -> Harvest:
    """What low priority got beside a play.

    Args:
        idle: whole cards that are paid for and empty, (steps,).
        table: what a worker is like, and how many wait.
        shares: True where workers may sit beside others.
    """
    is_shared = played.used if shares else np.zeros_like(played.used)
    free = played.free_bytes / np.maximum(1.0, played.capacity_bytes)[:, None]
    leftover = Leftover(
        compute=played.left, free_ratio=free.astype(np.float32), is_shared=is_shared, idle_cards=idle.astype(np.int64)
    )
    seen = CardPast(stage, played) if shares else None
    return harvest(leftover, table.wanted, step_seconds=stage.step_seconds, rules=table.harvest, seen=seen)


def _performance(
    policy: Policy,
    stage: Stage,
    table: Table,
    played: Played,
    got: Harvest,
    relief: ReliefRules | None = None,
    predicted: float | None = None,
) -> Performance:
    active = max(1.0, float(played.active_steps.sum()))
    switches = int(played.switches.sum())
    pod_days = max(1, played.cards_before) * stage.steps * stage.step_seconds / DAY_SECONDS
    return Performance(
        policy=policy.value,
        relief=relief is not None,
        reaction_seconds=relief.sustain_seconds if relief is not None else None,
        since=stage.since,
        until=stage.until,
        pods=played.cards_before,
        cards_before=played.cards_before,
        cards_opening=played.cards_opening,
        cards_peak=played.cards_peak,
        saved_ratio=played.saved_ratio,
        violation_ratio=played.violation_ratio,
        contention_ratio=float(played.contended_steps.sum()) / active,
        framebuffer_ratio=float(played.framebuffer_steps.sum()) / active,
        predicted_violation_ratio=predicted,
        lost_work_ratio=max(0.0, 1.0 - played.served / played.asked) if played.asked > 0 else 0.0,
        moves=played.moves,
        moves_per_pod_day=played.moves / pod_days,
        switches_per_day=switches * DAY_SECONDS / (stage.steps * stage.step_seconds),
        switch_seconds=float(played.switch_seconds.sum()) / max(1, switches),
        host_bytes_max=float(played.host_bytes.max(initial=0.0)),
        low_priority_gpu_hours=got.gpu_hours,
        low_priority_lost_gpu_hours=got.lost_gpu_hours,
        evictions=got.evictions,
        evictions_per_worker_hour=got.evictions_per_worker_hour,
    )
