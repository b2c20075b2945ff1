"""Which models of a cluster share which card asleep, on nodes whose host memory holds their weights.

Called by `planner` once every pod has its place: one that has another place after the plan, or shares a card, is left
alone. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import FIRST_TOKEN_OBJECTIVE_LABEL, Card, CardModelName, Grant, WorkloadId
from fleet.schema import Measure
from fleet.sharing import PREALLOCATED_RATIO
from fleet.sleeping import ASLEEP_BYTES
from fleet.usage import Float32
from recommender.advice.case import Permits
from recommender.bin_cards import NodeRoom
from recommender.demand import recorded
from recommender.footprint_grants import SNAP_BYTES
from recommender.harm.pair_guard import pair_guard
from recommender.lent_cards import host_room_bytes
from recommender.outlook import DAYS_MAX
from recommender.placement import Arrangement
from recommender.problem import PlanningProblem
from recommender.sleeping import Nights, Sleeper, as_seen, sleeping_cards

_KIND = RecommendationKind.SLEEP
_BUSY_MAX = 0.99
_DUTY_STEP = 0.01
"""Duty cycles are counted in whole percent, and any work may count as one."""
_RATE_MIN = 1 / 86400
"""Requests per second that any model may have at any hour: of one that nobody asked so far, none must find no room."""
_REQUESTS_KNOWN = 50
"""Requests after which the history of a model counts as much as that nothing is known of it."""
_NEIGHBOURS = 3
"""Sleeping neighbours beside which a model of which nothing is known may take all the rest of a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepingSeat:
    """A card that models share, most of them asleep.

    Attributes:
        card: one that a model of them has today.
        models: who shares it.
        nights: what that comes to, in their order.
    """

    card: Card
    models: Sequence[Sleeper]
    nights: Nights

    @property
    def scaling(self) -> float:
        """By how much more framebuffer is granted on the card than it has."""
        return max(1.0, sum(model.limit_bytes for model in self.models) / self.card.framebuffer_bytes)


def host_bytes_of(models: Sequence[Sleeper]) -> float:
    """Host memory for the weights of models: a server keeps it while it is awake as well."""
    return sum(model.weights_bytes for model in models)


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepPlan:
    """Cards that models share asleep, and who may sleep but finds no such card."""

    seats: tuple[SleepingSeat, ...] = ()
    refused: tuple[Refusal, ...] = ()


def plan_sleep(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> SleepPlan:
    """Who sleeps where, as far as the preset allows; nobody where the plan is of other advice."""
    if not problem.asks_for(_KIND):
        return SleepPlan()
    alone = {seat.rows[0]: seat.card for seat in arrangement.seats if len(seat.rows) == 1}
    carved = {item.workload for item in arrangement.carved}
    grants = problem.demand.grants
    rows = [
        problem.rows_of[name][0]
        for name in sorted(permits.kinds)
        if _KIND in permits.kinds[name] and name not in carved and name not in arrangement.cuts
    ]
    rows = [row for row in rows if alone.get(row) == grants[row].card]
    if not rows:
        return SleepPlan()
    seats: list[SleepingSeat] = []
    refused: dict[WorkloadId, Refusal] = {}
    sleepers, unknown = _sleepers(problem, rows)
    for row in unknown:
        name = grants[row].workload_id
        is_seen = np.isfinite(problem.demand.used_bytes[row]).any()
        reason = "requests_unknown" if is_seen else "preallocation_hides_need"
        refused[name] = permits.cases[name].refuse(_KIND, reason)
    nodes = _Nodes(problem, arrangement)
    guard = pair_guard(problem.demand, problem.history, problem.profiles, problem.past.interference)

    def has_place(models: Sequence[Sleeper]) -> bool:
        together = len(guard.parted([model.row for model in models])) == 1
        return together and nodes.place(models, is_tried=True) is not None

    for (model, capacity), members in sorted(sleepers.items()):
        found = sleeping_cards(
            members,
            capacity_bytes=float(capacity),
            card_model=model,
            slices_max=problem.capability.slices_per_card_max,
            late_ratio_max=problem.violation_limits[problem.settings.risk.preset] / problem.past.calibration_ratio,
            has_place=has_place,
        )
        made = [
            SleepingSeat(card=place, models=tuple(card.models), nights=card.nights)
            for card in sorted(found, key=lambda one: (-host_bytes_of(one.models), one.models[0].row))
            if card.nights is not None and (place := nodes.place(card.models)) is not None
        ]
        seats += made
        placed = {one.row for seat in made for one in seat.models}
        for grant in (grants[one.row] for one in members if one.row not in placed):
            reason = "sleeps_beside_nobody" if nodes.left(grant.node) else "sleep_host_memory_unknown"
            case = permits.cases[grant.workload_id]
            refused[grant.workload_id] = case.refuse(_KIND, reason, node=grant.node)
    return SleepPlan(seats=tuple(seats), refused=tuple(refused.values()))


class _Nodes:
    """What nodes have left for models that come, and for the weights of those that sleep there; mutable."""

    def __init__(self, problem: PlanningProblem, arrangement: Arrangement) -> None:
        self._problem = problem
        self._rows: dict[str, list[int]] = defaultdict(list)
        for seat in arrangement.seats:
            self._rows[seat.node] += seat.rows
        self._room = NodeRoom(problem.inventory, problem.demand.grants)
        self._left: dict[str, float] = {}

    def left(self, node: str) -> float:
        """Host memory for weights, bytes; 0 where nobody knows."""
        if node not in self._left:
            self._left[node] = host_room_bytes(self._problem, node, self._rows[node]) or 0.0
        return self._left[node]

    def place(self, models: Sequence[Sleeper], *, is_tried: bool = False) -> Card | None:
        """The card of one of them on the node with most host memory that takes the others; None where none does.

        Args:
            is_tried: nothing is booked.
        """
        grants = self._problem.demand.grants
        hosts = {grants[model.row].node: grants[model.row] for model in reversed(models)}
        for node in sorted(hosts, key=lambda name: (-self.left(name), name)):
            coming = [grants[model.row] for model in models if grants[model.row].node != node]
            needed = host_bytes_of(models) + sum(grant.memory_request_bytes or 0 for grant in coming)
            if needed > self.left(node):
                return None
            tried = self._room.copy()
            if tried.admit(node, coming):
                if not is_tried:
                    self._room.book(tried)
                    self._left[node] -= needed
                return self._problem.cards[hosts[node].card]
        return None


def _sleepers(
    problem: PlanningProblem, rows: Sequence[int]
) -> tuple[dict[tuple[CardModelName, int], list[Sleeper]], list[int]]:
    """Models by the card model and framebuffer that they have, and rows of which too little is known."""
    demand, settings = problem.demand, problem.settings
    steps = min(demand.steps, DAYS_MAX * demand.steps_per_day)
    rates = recorded(problem.history, Measure.REQUEST_RATE)[:, demand.steps - steps :]
    running = recorded(problem.history, Measure.REQUESTS_RUNNING)[:, demand.steps - steps :]
    compute = demand.compute[:, demand.steps - steps :]
    # What a tenant counts may be too little, and others would wait for it: its card shows how long kernels ran.
    duty = recorded(problem.history, Measure.DUTY_CYCLE)[:, demand.steps - steps :]
    worked = np.clip(duty - _DUTY_STEP, 0.0, _BUSY_MAX)
    found: dict[tuple[CardModelName, int], list[Sleeper]] = defaultdict(list)
    unknown: list[int] = []
    for row in rows:
        grant = demand.grants[row]
        series = (rates[row], running[row], compute[row])
        is_hidden = float(np.nansum(rates[row])) <= 0 < float(np.nan_to_num(worked[row]).max(initial=0.0))
        is_short = any(_coverage(values) < settings.analyzer.coverage_min for values in series)
        if is_hidden or is_short or not np.isfinite(demand.used_bytes[row]).any():
            unknown.append(row)
            continue
        rate, at_a_time, asked = (
            as_seen(values, demand.step_seconds)
            for values in (rates[row], np.fmax(running[row], -np.log1p(-worked[row])), compute[row])
        )
        found[grant.card_model, grant.framebuffer_bytes].append(
            Sleeper(
                row=row,
                limit_bytes=_limit_bytes(problem, row, float(np.nansum(rates[row])) * demand.step_seconds),
                weights_bytes=float(np.nanmax(demand.used_bytes[row])) - (grant.kv_cache_pool_bytes or 0),
                wait_seconds_max=_wait_seconds(grant, float(settings.recommender.sleep_wait_seconds or 0)),
                rate=np.maximum(rate, _RATE_MIN),
                running=at_a_time,
                compute=asked,
            )
        )
    return found, unknown


def _coverage(values: Float32) -> float:
    return float(np.isfinite(values).mean()) if len(values) else 0.0


def _limit_bytes(problem: PlanningProblem, row: int, requests: float) -> int:
    """Framebuffer that a model gets while it is awake: what it needed at most, as its server takes it, and headroom.

    Few requests show little of a need. So between that and what a card has beside a few models that sleep stands a
    credibility-weighted mean (Bühlmann 1967), with n / (n + k) for what n requests showed.
    """
    grant = problem.demand.grants[row]
    need = float(np.nanmax(problem.demand.need_bytes[row])) / PREALLOCATED_RATIO
    asked = need * (1.0 + problem.settings.recommender.framebuffer_headroom_ratio)
    unseen = _REQUESTS_KNOWN / (_REQUESTS_KNOWN + requests)
    asked += unseen * max(0.0, grant.framebuffer_bytes - _NEIGHBOURS * ASLEEP_BYTES - asked)
    return min(grant.framebuffer_bytes, -(-int(asked) // SNAP_BYTES) * SNAP_BYTES)


def _wait_seconds(grant: Grant, most: float) -> float:
    try:
        promised = float(grant.label(FIRST_TOKEN_OBJECTIVE_LABEL) or most)
    except ValueError:
        return most
    return min(most, promised) if promised > 0 else most
