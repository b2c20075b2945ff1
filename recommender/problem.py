"""What a plan is asked for and made from, as one record that every step of the planner reads.

Made once by `planner.make_plan`; the steps add what they find out (permits, packing, arrangement) as arguments of
their own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

import numpy as np

from fleet.capabilities.register import Capabilities
from fleet.decisions import RecommendationKind, RiskLevel
from fleet.inventory import Card, CardId, Inventory, WorkloadId
from fleet.money.paid_nodes import paid_nodes
from fleet.money.prices import Prices
from fleet.priority_holds import NOBODY, Holders
from fleet.profiles import Profile, Profiles
from fleet.settings.settings import RiskSettings, Settings
from fleet.usage import CardGrid, History, SliceGrid
from recommender.demand import Demand
from recommender.harm.surprise import shift_ratio
from recommender.node_terms import NodeTerms
from recommender.past_outcomes import OwnPast

POD_TIMES = 10.0
"""How many times as much any one pod may be harmed as the fleet, at most; no more, either, than a guard takes a stage
back for, unless the fleet may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanScope:
    """How much of a fleet's advice is asked for.

    Attributes:
        only: propose this kind alone; None for all.
        namespace: propose for this namespace alone; None for all.
        moves_max: most pods that may be restarted; None takes `plan.moves_max` of the settings.
    """

    only: RecommendationKind | None = None
    namespace: str | None = None
    moves_max: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlanningProblem:
    """One cluster, and what is wanted of it.

    Attributes:
        history: inventory and usage; only what was known at `history.inventory.as_of`.
        profiles: the analyzer's answer on the same history.
        demand: live slices and their series, made from the history.
        terms: on what terms nodes share their cards.
        settings: settings; `risk.preset` is the harm that may be predicted.
        capability: what the backend enforces.
        prices: what cards cost at the moment of the plan.
        now: moment of the plan, UTC.
        scope: which advice is asked for.
        past: what earlier plans and measured pairs of this cluster taught.
    """

    history: History
    profiles: Profiles
    demand: Demand
    terms: NodeTerms
    settings: Settings
    capability: Capabilities
    prices: Prices
    now: datetime
    scope: PlanScope
    past: OwnPast

    @property
    def inventory(self) -> Inventory:
        """Nodes, cards and grants."""
        return self.history.inventory

    @property
    def moves_max(self) -> int | None:
        """Most pods that may be restarted, None for any number."""
        own = self.scope.moves_max
        return self.settings.plan.moves_max if own is None else own

    def spares_wanted(self, cards: int) -> int:
        """How many freed cards a plan that moves pods keeps for moves at run time, where so many cards are in use."""
        by_past = self.past.spare_ratio(self.forecast_limits[self.settings.risk.preset])
        return math.ceil(max(self.settings.plan.spare_card_ratio, by_past) * cards)

    @property
    def violation_limits(self) -> dict[RiskLevel, float]:
        """Predicted harm that each preset allows, share of active time, 0-1; the chosen one's as the settings say."""
        risk = self.settings.risk
        return {
            level: risk.violation_ratio_limit
            if level is risk.preset
            else RiskSettings(preset=level).violation_ratio_limit
            for level in RiskLevel
        }

    @cached_property
    def forecast_limits(self) -> dict[RiskLevel, float]:
        """What a forecast may say by itself for each preset to keep its limit, by what the past taught."""
        return {level: self.past.forecast_limit(most) for level, most in self.violation_limits.items()}

    @cached_property
    def forecast_pod_limits(self) -> dict[RiskLevel, float]:
        """What a forecast may say of any one pod for each preset, share of its active time, 0-1; see `POD_TIMES`."""
        guard = self.settings.guard
        restored = guard.harm_ratio_max * guard.harm_restore_burn
        return {
            level: self.past.forecast_pod_limit(max(most, min(POD_TIMES * most, restored)))
            for level, most in self.violation_limits.items()
        }

    @cached_property
    def shift_ratio(self) -> float:
        """How many times as busy as on its busiest day the whole fleet may get when the company launches something."""
        return shift_ratio(self.demand.compute, self.demand.steps_per_day)

    def at(self, level: RiskLevel) -> PlanningProblem:
        """The same problem at a preset; the limit that was set stays with the preset it was set for."""
        risk = self.settings.risk
        if level is risk.preset:
            return self
        other = risk.model_copy(update={"preset": level, "violation_ratio_max": None})
        return replace(self, settings=self.settings.model_copy(update={"risk": other}))

    @cached_property
    def paid_nodes(self) -> dict[str, tuple[Card, ...]]:
        """Nodes that are paid for whole, with their cards."""
        return paid_nodes(self.inventory, self.prices)

    @cached_property
    def profile_of(self) -> dict[WorkloadId, Profile]:
        """Profile of each workload that has one."""
        return {profile.workload: profile for profile in self.profiles.workloads}

    @cached_property
    def rows_of(self) -> dict[WorkloadId, list[int]]:
        """Rows of the demand of every workload."""
        rows: dict[WorkloadId, list[int]] = {name: [] for name in self.demand.workloads}
        for row, number in enumerate(self.demand.workload_of):
            rows[self.demand.workloads[int(number)]].append(row)
        return rows

    @cached_property
    def cards(self) -> dict[CardId, Card]:
        """Every card by id, also those that only a grant names."""
        cards = {
            grant.card: Card(
                card=grant.card,
                card_model=grant.card_model,
                framebuffer_bytes=grant.framebuffer_bytes,
                node=grant.node,
                cluster=grant.cluster,
            )
            for grant in self.demand.grants
        }
        return cards | {card.card: card for card in self.inventory.cards}

    def asks_for(self, kind: RecommendationKind) -> bool:
        """Whether advice of a kind is wanted."""
        return self.scope.only in (None, kind)


def inputs_digest(history: History, settings: Settings, capability: Capabilities, past: OwnPast) -> str:
    """SHA-256 of everything a plan is made from: inventory, usage, settings, backend, own past."""
    digest = hashlib.sha256()
    digest.update(repr(replace(history.inventory, kept_off={})).encode())
    _digest_kept_off(digest.update, history.inventory.kept_off)
    _digest_grid(digest.update, history.slices)
    if history.cards is not None:
        _digest_grid(digest.update, history.cards)
    digest.update(settings.model_dump_json().encode())
    digest.update(repr(capability).encode())
    digest.update(b"" if past.interference is None else repr(past.interference).encode())
    digest.update(b"" if past.calibration_ratio == 1.0 else repr(past.calibration_ratio).encode())
    digest.update(b"" if not past.trials else repr(past.trials).encode())
    digest.update(b"" if past.relief_moves_max is None else repr(past.relief_moves_max).encode())
    digest.update(b"" if not past.absences else repr(sorted(past.absences.items())).encode())
    digest.update(b"" if past.night_evictions_per_hour is None else repr(past.night_evictions_per_hour).encode())
    digest.update(b"" if past.holders == NOBODY else repr(_sorted_holders(past.holders)).encode())
    return digest.hexdigest()


def _digest_kept_off(update: Callable[[bytes], None], kept_off: Mapping[WorkloadId, frozenset[str]]) -> None:
    texts: dict[frozenset[str], bytes] = {}
    for name, nodes in sorted(kept_off.items()):
        if nodes not in texts:
            texts[nodes] = repr(sorted(nodes)).encode()
        update(name.encode() + texts[nodes])


def _sorted_holders(holders: Holders) -> list[list[str]]:
    """The same text in every process, where sets have no order."""
    places = (holders.agents, holders.strict, holders.gated, holders.ungated, holders.graphs_pause)
    return [sorted(nodes) for nodes in places]


def _digest_grid(update: Callable[[bytes | memoryview], None], grid: SliceGrid | CardGrid) -> None:
    update(repr((grid.keys, grid.since, grid.step_seconds, grid.steps)).encode())
    for table in (grid.mean, grid.peak):
        for measure in sorted(table):
            update(measure.value.encode())
            update(np.ascontiguousarray(table[measure]).data)
