"""A fleet in memory behind the ports of the pages: about 1,500 cards, 800 workloads, a plan of five stages.

The rollout steps by one object per question for progress, as a clock would move it, so that tests wait for nothing.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache

import numpy as np

from dashboards.access.namespace_cut import namespace_of
from dashboards.queries import (
    Event,
    Freshness,
    LedgerEntry,
    ObjectProgress,
    PlanEntry,
    RolloutPhase,
    RolloutProgress,
    Signal,
    UndoPreview,
    Views,
    WorkloadHistory,
)
from dashboards.report.week_measured import MeasuredWeek
from dashboards.view_models.card_history import CardHistory, Held
from dashboards.view_models.cluster_sighting import ClusterSighting
from dashboards.view_models.health import LagChain, SourcesSeen
from dashboards.view_models.relief_acts import ReliefActs
from dashboards.view_models.slice_uses import SliceUse
from enforcer.preview import ObjectDiff, StagePreview
from enforcer.switch_preview import Leaver, NodeStanding, SwitchPreview
from fleet.capabilities.register import CorePolicy
from fleet.contradictions import Contradiction, Statement
from fleet.decisions import (
    CardPlacement,
    Evidence,
    FreedCard,
    FrontierPoint,
    HistorySpan,
    Need,
    PlacedSlice,
    Plan,
    Recommendation,
    RecommendationKind,
    Refusal,
    RiskLevel,
    Saving,
    Stage,
    Totals,
    Withheld,
)
from fleet.documents import seal_plan
from fleet.errors import NotEnoughData, Refused
from fleet.inventory import CardId, CardModelName, Grant, Priority, Quota, WorkloadId
from fleet.money.budgets import BudgetStatus, MonthSpending, budget_status
from fleet.money.charges import Amounts, Charge, MeasuredHours
from fleet.money.cost_days import MEASURES, CostDays, Holder
from fleet.money.prices import CardPrice, PriceBook, Prices
from fleet.money.saving import cards_in, saved
from fleet.money.unit_costs import UnitCost
from fleet.money.week_hours import GRANTED, Measures, WeekHours, added
from fleet.node_changes import NodeMode, NodeSwitch
from fleet.outcomes import Outcome, WorkloadOutcome
from fleet.profiles import (
    CardProfile,
    CardState,
    ComputeProfile,
    Finding,
    FramebufferProfile,
    HourMeasure,
    HourOfWeek,
    Profile,
    Profiles,
    RequestRateProfile,
    WorkloadClass,
    WorkloadState,
)
from fleet.sentences import Sentence, sentence
from fleet.settings.settings import Settings
from fleet.units import GIB

NOW = datetime(2026, 1, 22, 9, 0, tzinfo=UTC)
CLUSTER = "shanghai-a"
MODELS = (
    ("NVIDIA A10", 24, 8, 72),
    ("NVIDIA A100-SXM4-80GB", 80, 8, 40),
    ("NVIDIA H20", 96, 8, 50),
    ("NVIDIA L20", 48, 4, 44),
    ("Tesla T4", 16, 2, 24),
)
"""Model, framebuffer GiB, cards per node, nodes: 1,520 cards."""
PER_CARD_HOUR = {"NVIDIA A10": "4.2", "NVIDIA A100-SXM4-80GB": "11.5", "NVIDIA H20": "9.8", "NVIDIA L20": "5.9"}


def prices_of(per_card_hour: Mapping[str, str], currency: str = "CNY") -> Prices:
    """What cards cost by model; the catalogue's list prices are in another currency, without a rate."""
    settings = Settings.model_validate({"prices": {"currency": currency, "overrides": per_card_hour}})
    return PriceBook(settings).at(NOW)


PRICES = prices_of(PER_CARD_HOUR)
STATE_WEIGHTS = (
    (CardState.BUSY, 23),
    (CardState.IDLE_HELD, 41),
    (CardState.LOW_USE, 21),
    (CardState.FREE, 12),
    (CardState.UNTRUSTED, 3),
)
HOSTILE = '=cmd|"/C calc"!A0<img src=x onerror=alert(1)>'
"""A name that a tenant might choose to harm whoever reads it."""


@cache
def make_profiles(*, scale: int = 1, seed: int = 7) -> Profiles:
    """The fleet, made once in a process; `scale` multiplies its nodes."""
    rng = random.Random(seed)
    cards: list[CardProfile] = []
    held: list[tuple[str, int, CardState]] = []
    for model, gib, per_node, nodes in MODELS:
        for node in range(nodes * scale):
            mood = rng.choices([state for state, _ in STATE_WEIGHTS], [weight for _, weight in STATE_WEIGHTS])[0]
            for place in range(per_node):
                state = mood if rng.random() < 0.6 else _state(rng)
                name = f"GPU-{rng.getrandbits(64):016x}-{len(cards):05d}"
                cards.append(_card(rng, name, model, gib, f"{model.split()[-1].lower()[:4]}-node-{node:03d}", state))
                if state is not CardState.FREE:
                    held.append((name, gib, state))
                del place
    workloads = _workloads(rng, held)
    owner = {card: profile.workload for profile in workloads for card in profile.cards}
    cards = [card if card.state is CardState.FREE else replace(card, workloads=(owner[card.card],)) for card in cards]
    return Profiles(
        cluster=CLUSTER,
        as_of=NOW,
        since=NOW - timedelta(days=21),
        until=NOW,
        coverage_ratio=0.991,
        workloads=tuple(sorted(workloads, key=lambda profile: profile.workload)),
        cards=tuple(sorted(cards, key=lambda card: card.card)),
        unallocated=tuple(card.card for card in cards if card.state is CardState.FREE),
        withheld=(Withheld(kind=RecommendationKind.MIG, reason="no_framebuffer_counter", values=(("workloads", 7),)),),
    )


@cache
def make_plan(
    profiles: Profiles, *, created_at: datetime = NOW - timedelta(hours=2), risk: RiskLevel = RiskLevel.LOW
) -> Plan:
    """A plan of five stages that frees the idle cards and packs the quiet ones in pairs."""
    kinds = (
        (RecommendationKind.RECLAIM, sentence("reclaim"), CardState.IDLE_HELD, ()),
        (RecommendationKind.SLICE, sentence("slice"), CardState.LOW_USE, (Need.FRAMEBUFFER_LIMIT,)),
        (
            RecommendationKind.COLOCATE,
            sentence("share", number=1, all=3),
            CardState.LOW_USE,
            (Need.FRAMEBUFFER_LIMIT, Need.CORE_LIMIT),
        ),
        (RecommendationKind.OFFPEAK_PAIR, sentence("share", number=2, all=3), CardState.BUSY, (Need.PRIORITY,)),
        (
            RecommendationKind.OVERSUBSCRIBE,
            sentence("share", number=3, all=3),
            CardState.IDLE_HELD,
            (Need.OVERSUBSCRIPTION,),
        ),
    )
    by_card = {profile.cards[0]: profile for profile in profiles.workloads if profile.cards}
    state_of = {card.card: card.state for card in profiles.cards}
    recommendations: list[Recommendation] = []
    stages: list[Stage] = []
    used: set[str] = set()
    freed: set[CardId] = set()
    for number, (kind, title, state, needs) in enumerate(kinds, start=1):
        chosen = [p for c, p in sorted(by_card.items()) if state_of[c] is state and p.workload not in used][
            : 60 - 9 * number
        ]
        made = []
        for place, profile in enumerate(chosen):
            used.add(profile.workload)
            cards = len(profile.cards) if kind is not RecommendationKind.OFFPEAK_PAIR else 1
            named = [card for card in profile.cards[:cards] if card not in freed]
            freed.update(named)
            made.append(replace(_recommendation(kind, place, profile, cards, needs), freed=_freed(named, 1150, 640)))
        # The last card of every third advice that frees some is kept for moves at run time.
        freeing = [place for place, item in enumerate(made) if item.freed][::3]
        for place in freeing:
            *first, last = made[place].freed
            made[place] = replace(made[place], freed=(*first, replace(last, is_spare=True)))
        recommendations += made
        stages.append(
            Stage(
                stage=number,
                title=title,
                recommendations=tuple(r.id for r in made),
                cards_freed=cards_in(card for r in made for card in r.freed if not card.is_spare),
                moves=sum(len(r.pods) for r in made),
            )
        )
    placement = _placement(profiles, freed)
    granted = len(profiles.cards) - len(profiles.unallocated)
    kept_free = [card for item in recommendations for card in item.freed if not card.is_spare]
    plan = Plan(
        plan_id="",
        created_at=created_at,
        expires_at=created_at + timedelta(hours=24),
        cluster=profiles.cluster,
        history=HistorySpan(since=profiles.since, until=profiles.until, coverage_ratio=0.991),
        inputs_sha256="0" * 64,
        settings=(("plan.spare_card_ratio", "0.02"),),
        risk=risk,
        backend="hami",
        currency="CNY",
        totals=Totals(
            cards_before=granted,
            cards_after=granted - len(freed),
            cards_freed=cards_in(kept_free),
            spare_cards=len(freed) - len(kept_free),
            nodes_freed=41,
            framebuffer_bytes_freed=len(kept_free) * 48 * GIB,
            low_priority_gpu_hours_per_week=18_400.0,
            saving_per_week=saved(kept_free),
            predicted_violation_ratio=0.0008,
            moves=sum(stage.moves for stage in stages),
        ),
        recommendations=tuple(recommendations),
        refused=tuple(_refusals(profiles)),
        withheld=profiles.withheld,
        placement=placement,
        stages=tuple(stages),
        frontier=_frontier(len(kept_free)),
    )
    return seal_plan(plan)


class EmbeddedFleet:
    """`Fleet` over one analysis."""

    def __init__(self, profiles: Profiles, *, coverage_ratio: float = 0.994, age: timedelta = timedelta(seconds=40)):
        self._profiles = profiles
        self._coverage_ratio = coverage_ratio
        self._age = age

    def clusters(self) -> tuple[str, ...]:
        return (self._profiles.cluster,)

    def profiles(self, cluster: str) -> Profiles:
        if cluster != self._profiles.cluster:
            raise NotEnoughData(f"cannot show cluster {cluster!r}: no such cluster")
        return self._profiles

    def history(self, cluster: str, workload: str, hours: int | None) -> WorkloadHistory | None:
        profile = next((item for item in self._profiles.workloads if item.workload == workload), None)
        return None if profile is None else _history(profile, hours or 21 * 24)

    def card_history(self, cluster: str, card: str, hours: int | None) -> CardHistory | None:
        found = next((one for one in self.profiles(cluster).cards if one.card == card), None)
        if found is None:
            return None
        times = tuple(NOW - timedelta(hours=hour) for hour in range(24, 0, -1))
        return CardHistory(
            times=times, compute=(None, *(0.5,) * 23), framebuffer_used_bytes=(1e9,) * 24, power_watts=(300.0,) * 24,
            temperature_celsius=(None,) * 24,
            held=tuple(Held(workload=name, pod="a-pod", since=times[0], until=NOW) for name in found.workloads),
        )  # fmt: skip

    def freshness(self, cluster: str) -> Freshness:
        return Freshness(coverage_ratio=self._coverage_ratio, newest_at=NOW - self._age, interval_seconds=60.0, now=NOW)


class EmbeddedSlices:
    """`Slices` over one analysis: each workload's pods hold its cards, one each, whole."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles

    def slices(self, cluster: str) -> tuple[SliceUse, ...]:
        cards = {card.card: card for card in self._profiles.cards}
        found = [
            SliceUse(
                grant=Grant(
                    cluster=cluster, namespace=profile.namespace, pod=pod.rpartition("/")[2], container="main",
                    workload=profile.workload.rpartition("/")[2], workload_kind=profile.workload.split("/")[1],
                    node=cards[card].node, card=card, card_model=cards[card].card_model,
                    framebuffer_bytes=cards[card].framebuffer_bytes,
                    framebuffer_granted_bytes=cards[card].framebuffer_bytes, compute_granted_ratio=1.0,
                    priority=Priority.NORMAL, started_at=self._profiles.since,
                ),
                price_ratio=1.0,
                compute_mean=profile.compute.p50,
                compute_max=profile.compute.max,
                framebuffer_used_max=profile.framebuffer.used_max,
            )
            for profile in self._profiles.workloads
            for pod, card in zip(profile.pods, profile.cards, strict=False)
        ]  # fmt: skip
        return tuple(sorted(found, key=lambda use: (use.grant.namespace, use.grant.pod)))


class EmbeddedFlow:
    """`Flow` of a chain whose rollup stands still."""

    def lags(self, cluster: str) -> LagChain:
        return LagChain(
            newest_at=NOW - timedelta(hours=1), sample_age_seconds=3600.0, interval_seconds=60.0,
            received_age_seconds=12.0, waiting_bytes=25 * 2**20, stored_age_seconds=3500.0,
        )  # fmt: skip


class EmbeddedRelief:
    """`ReliefLog` of given acts."""

    def __init__(self, found: ReliefActs | None = None) -> None:
        self._found = found or ReliefActs()

    def acts(self, cluster: str) -> ReliefActs:
        return self._found


class EmbeddedNodeModes:
    """`NodeModes` of nodes that share their cards, of which pods of two tenants must leave; keeps what it was asked."""

    def __init__(self) -> None:
        self.kept: list[NodeSwitch] = []

    def standing(self, cluster: str, node: str) -> NodeStanding:
        return NodeStanding(
            node=node, mode=NodeMode.TIME_SLICING, offers=(("nvidia.com/gpu.shared", 32),),
            modes=((NodeMode.WHOLE, None), (NodeMode.TIME_SLICING, "in it already"), (NodeMode.MIG, None)),
            cuts=(("1g.10gb", 7), ("3g.40gb", 2)),
        )  # fmt: skip

    def preview(self, cluster: str, switch: NodeSwitch) -> SwitchPreview:
        names = ("team-3/Deployment/web", "team-4/Deployment/" + "w" * 63)
        node = ObjectDiff(
            kind="Node", namespace="", name=switch.node, recommendation="", resource_version="1", before="a", after="b"
        )
        return SwitchPreview(
            plan=make_plan(make_profiles()),
            stage=StagePreview(
                stage=1, objects=(node,), moves=(), cards=(), cards_freed=0, refusal=None,
                warnings=("pods of Jobs begin anew: 1, such as team-3/train",),
            ),
            leavers=tuple(
                Leaver(
                    pod=f"{name.split('/')[0]}/{name.split('/')[2]}-0", workload=WorkloadId(name), home=None,
                    budgets=(("one-at-a-time", 1),), emptied=("cache",), claimed=("models",),
                )
                for name in names
            ),
            approvals=2,
        )  # fmt: skip

    def keep(self, cluster: str, switch: NodeSwitch) -> str:
        self.kept.append(switch)
        return "0" * 12


def make_week(profiles: Profiles) -> WeekHours:
    """A week in which every card was what its profile says it is now; tenants of one card have equal parts."""
    none = MeasuredHours(card_hours=0.0, cost=Decimal(0))
    tenants: dict[str, Measures] = {}
    for charge in make_charges(profiles):
        own = tenants.get(namespace_of(charge.name), dict.fromkeys(GRANTED, none))
        tenants[namespace_of(charge.name)] = {one: added((own[one], charge.measures[one])) for one in GRANTED}
    free = [_hours(168.0, card) for card in profiles.cards if not card.workloads]
    return WeekHours(
        since=NOW - timedelta(days=7), until=NOW, currency=PRICES.currency, tenants=tenants,
        unmeasured=dict.fromkeys(tenants, 0.0),
        rest={HourMeasure.UNALLOCATED: added(free), HourMeasure.STRANDED: none},
    )  # fmt: skip


def make_charges(profiles: Profiles) -> tuple[Charge, ...]:
    """What each workload was charged in that week."""
    measures: dict[str, dict[HourMeasure, list[MeasuredHours]]] = {}
    for card in profiles.cards:
        for name in card.workloads:
            hours = 168 / len(card.workloads)
            is_idle = card.state is CardState.IDLE_HELD
            used = 0.0 if is_idle else card.compute_p95 or 0.0
            own = measures.setdefault(name, {one: [] for one in HourMeasure})
            own[HourMeasure.USED].append(_hours(used * hours, card))
            own[HourMeasure.IDLE_HELD if is_idle else HourMeasure.UNUSED].append(_hours((1 - used) * hours, card))
    nothing = Amounts(allocation=None, use=None, blended=None)
    return tuple(
        Charge(
            name=name, card_hours=168.0, cost=nothing, measures={one: added(parts) for one, parts in own.items()},
            unpriced_card_hours=0.0, unmeasured_card_hours=0.0, unallocated=None, stranded=None, kwh=None,
            unknown_kwh_card_hours=0.0, served={},
        )
        for name, own in measures.items()
    )  # fmt: skip


def make_cost_days(profiles: Profiles) -> CostDays:
    """Three days: each workload used one card all day, and one card of each model was granted to nobody."""
    models = sorted({card.card_model for card in profiles.cards})
    prices = tuple(
        CardPrice(amortised=None if (amount := PER_CARD_HOUR.get(model)) is None else Decimal(amount), marginal=None,
                  list_price=None, basis=None, source="", contract="")
        for model in models
    )  # fmt: skip
    node_of = {card.card_model: card.node for card in profiles.cards}
    held = [
        (Holder(one.namespace, one.namespace, str(one.workload), models[number % len(models)], "node-1"), "used")
        for number, one in enumerate(profiles.workloads)
    ]
    free = [(Holder("", "", "", model, node_of[model]), "unallocated") for model in models]
    holders = [*held, *free]
    rows = [(day, number) for day in range(3) for number in range(len(holders))]
    units = np.zeros((len(rows), len(MEASURES)), np.int64)
    for row, (_, number) in enumerate(rows):
        units[row, [measure.value for measure in MEASURES].index(holders[number][1])] = 24_000_000
    start = profiles.as_of.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2)
    return CostDays(
        currency=PRICES.currency,
        starts=tuple(start + timedelta(days=day) for day in range(3)),
        until=start + timedelta(days=3),
        holders=tuple(holder for holder, _ in holders),
        prices=prices,
        day=np.array([day for day, _ in rows], np.int32),
        holder=np.array([number for _, number in rows], np.int32),
        price=np.array(
            [[str(model) for model in models].index(holders[number][0].model) for _, number in rows], np.int64
        ),
        units=units,
        hourly=np.repeat(units[: len(holders)].sum(axis=0)[None] // 24, 72, axis=0),
    )


def make_measured(profiles: Profiles) -> MeasuredWeek:
    """The same week with its electricity, as the report is given it."""
    return MeasuredWeek(
        hours=make_week(profiles), workloads=make_charges(profiles), low_priority_gpu_hours=0.0, kwh=120.5,
        kwh_known_ratio=0.25, kg_co2=None, pue=1.3, grid_kg_co2_per_kwh=None,
        kwh_by_team=((profiles.workloads[0].namespace, 7.5),),
    )  # fmt: skip


def _hours(count: float, card: CardProfile) -> MeasuredHours:
    price = PER_CARD_HOUR.get(card.card_model)
    return MeasuredHours(card_hours=count, cost=None if price is None else Decimal(price) * Decimal(str(count)))


class EmbeddedMoney:
    """`Money` with fixed prices, two quotas, a queue, a budget that is spent, and what a million tokens cost."""

    currency = PRICES.currency

    def __init__(self, *, has_week: bool = True) -> None:
        self._has_week = has_week

    def prices(self, cluster: str) -> Prices:
        return PRICES

    def budgets(self, cluster: str) -> tuple[BudgetStatus, ...]:
        return tuple(
            budget_status("namespace", name, Decimal(1000), MonthSpending(
                spent=Decimal(spent), recent=Decimal(168), recent_hours=168, hours_left=200, unpriced_card_hours=0.0,
            ))
            for name, spent in (("team-3", 1200), ("team-5", 850), ("team-7", 100))
        )  # fmt: skip

    def week(self, cluster: str) -> WeekHours | None:
        return make_week(make_profiles()) if self._has_week else None

    def quotas(self, cluster: str) -> tuple[Quota, ...]:
        return (
            Quota(cluster=cluster, kind="ResourceQuota", namespace="team-3", name=HOSTILE, parent=None,
                  resource="requests.nvidia.com/gpu", deserved=None, limit=400.0, held=60.0),
            Quota(cluster=cluster, kind="ResourceQuota", namespace="team-5", name="memory", parent=None,
                  resource="requests.nvidia.com/gpumem", deserved=None, limit=81920.0, held=81920.0),
            Quota(cluster=cluster, kind="kueue", namespace="", name="research", parent="all",
                  resource="nvidia.com/gpu", deserved=100.0, limit=None, held=None),
        )  # fmt: skip

    def cost_days(self, cluster: str, *, is_quarter: bool) -> CostDays | None:
        return make_cost_days(make_profiles()) if self._has_week else None

    def unit_costs(self, cluster: str) -> tuple[UnitCost, ...]:
        first = make_profiles().workloads[0].workload
        return (
            UnitCost(workload=first, unit="tokens", count=2e9, cost=Decimal(300), is_partly_priced=False),
            UnitCost(workload=first, unit="requests", count=None, cost=Decimal(300), is_partly_priced=False,
                     fault="no series answers it"),
        )  # fmt: skip


class EmbeddedCluster:
    """Plan store, rollout and ledger in one: what is approved, what stands in the cluster, what was done."""

    def __init__(self, profiles: Profiles, plans: tuple[Plan, ...], *, approvals_needed: tuple[str, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._entries = {plan.plan_id: PlanEntry(plan=plan) for plan in plans}
        self._approvals_needed = approvals_needed
        self._ledger: list[LedgerEntry] = []
        self._frozen: str | None = None
        self._outcomes: dict[str, Outcome] = {}
        self._running: dict[str, tuple[RolloutPhase, list[ObjectProgress], int, tuple[int, ...]]] = {}
        self.granted: set[WorkloadId] = {profile.workload for profile in profiles.workloads if profile.cards}
        """Workloads that hold their card; apply takes them off the changed list, undo puts them back."""
        self.changed: set[WorkloadId] = set()

    def plans(self, cluster: str) -> tuple[PlanEntry, ...]:
        return tuple(
            sorted(
                (entry for entry in self._entries.values() if entry.plan.cluster == cluster),
                key=lambda entry: entry.plan.created_at,
                reverse=True,
            )
        )

    def plan(self, plan_id: str) -> PlanEntry | None:
        return self._entries.get(plan_id)

    def approve(self, plan_id: str, stages: tuple[int, ...], by: str) -> PlanEntry:
        with self._lock:
            entry = self._entries[plan_id]
            if entry.plan.expires_at < NOW:
                raise Refused(f"cannot approve plan {plan_id}: it expired at {entry.plan.expires_at}")
            entry = replace(
                entry,
                approved_stages=tuple(sorted({*entry.approved_stages, *stages})),
                approved_by=(*entry.approved_by, *(() if by in entry.approved_by else (by,))),
                approvals_missing=tuple(name for name in self._approvals_needed if name != by),
            )
            self._entries[plan_id] = entry
            self._note(by, "approved", plan_id, f"stages {', '.join(map(str, stages))}", "read and approved")
            return entry

    def preview(self, plan_id: str, stages: tuple[int, ...]) -> tuple[ObjectDiff, ...]:
        plan = self._entries[plan_id].plan
        names = {name for stage in plan.stages if stage.stage in stages for name in stage.recommendations}
        return tuple(_diff(item) for item in plan.recommendations if item.id in names)

    def apply(self, plan_id: str, stages: tuple[int, ...], by: str) -> None:
        with self._lock:
            entry = self._entries[plan_id]
            if not set(stages) <= set(entry.approved_stages):
                raise Refused("cannot apply: not every stage is approved")
            objects = [
                ObjectProgress(workload=item.workloads[0], stage=stage.stage, phase="intended", is_canary=False)
                for stage in entry.plan.stages
                if stage.stage in stages
                for item in entry.plan.recommendations
                if item.id in stage.recommendations
            ]
            objects[0] = replace(objects[0], is_canary=True)
            self._running[plan_id] = (RolloutPhase.CANARY, objects, 0, stages)
            self._note(by, "applied", plan_id, f"stages {', '.join(map(str, stages))}", "canary first")

    def progress(self, plan_id: str) -> RolloutProgress:
        with self._lock:
            if plan_id not in self._running:
                return RolloutProgress(phase=RolloutPhase.NOT_STARTED, done=0, total=0)
            phase, objects, done, stages = self._running[plan_id]
            phase, objects, done = self._step(plan_id, phase, objects, done, stages)
            self._running[plan_id] = (phase, objects, done, stages)
            return RolloutProgress(
                phase=phase,
                done=done,
                total=len(objects),
                objects=tuple(objects),
                signals=_signals(done),
                watch_seconds_left=540.0 if phase is RolloutPhase.WATCHING else None,
                said=_SAID.get(phase),
            )

    def undo_preview(self, plan_id: str) -> UndoPreview:
        restores = tuple(f"{name}: framebuffer limit, replicas" for name in sorted(self.changed))
        return UndoPreview(
            restores=restores,
            keeps=(sentence("rollout.gone", workload="team-3/Deployment/ranker"),),
            cards_taken=len(restores),
        )

    def undo(self, plan_id: str, by: str) -> None:
        with self._lock:
            entry = self._entries[plan_id]
            if not entry.applied_stages:
                raise Refused(f"cannot undo plan {plan_id}: nothing of it is applied")
            _, objects, _, stages = self._running[plan_id]
            self._running[plan_id] = (RolloutPhase.RESTORING, objects, 0, stages)
            self._note(by, "undone", plan_id, "whole plan", "asked for on the plan page")

    def frozen_by(self, cluster: str) -> str | None:
        return self._frozen

    def freeze(self, cluster: str, by: str) -> None:
        self._frozen = f"{by} at {NOW:%H:%M}"
        self._note(by, "frozen", "", "every change", "stopped")

    def thaw(self, cluster: str, by: str) -> None:
        self._frozen = None
        self._note(by, "thawed", "", "every change", "allowed again")

    def outcomes(self, cluster: str) -> tuple[Outcome, ...]:
        return tuple(sorted(self._outcomes.values(), key=lambda outcome: outcome.since, reverse=True))

    def ledger(self, cluster: str) -> tuple[LedgerEntry, ...]:
        return tuple(reversed(self._ledger))

    def remember(self, entry: PlanEntry, outcome: Outcome, ledger: tuple[LedgerEntry, ...]) -> None:
        """Give the cluster a past."""
        self._entries[entry.plan.plan_id] = entry
        self._outcomes[outcome.plan_id] = outcome
        self._ledger += ledger

    def _step(
        self, plan_id: str, phase: RolloutPhase, objects: list[ObjectProgress], done: int, stages: tuple[int, ...]
    ) -> tuple[RolloutPhase, list[ObjectProgress], int]:
        entry = self._entries[plan_id]
        if phase in (RolloutPhase.DONE, RolloutPhase.RESTORED):
            return phase, objects, done
        if phase is RolloutPhase.CANARY:
            self.changed.add(objects[0].workload)
            return RolloutPhase.WATCHING, [replace(objects[0], phase="applied"), *objects[1:]], 1
        if phase is RolloutPhase.WATCHING:
            return RolloutPhase.APPLYING, [replace(objects[0], phase="promoted"), *objects[1:]], 1
        upto = min(len(objects), done + max(1, len(objects) // 3))
        if phase is RolloutPhase.APPLYING:
            self.changed |= {item.workload for item in objects[:upto]}
            objects = [replace(item, phase="promoted") if place < upto else item for place, item in enumerate(objects)]
            if upto == len(objects):
                self._entries[plan_id] = replace(
                    entry, applied_stages=stages, once_applied_stages=stages, applied_at=NOW
                )
                return RolloutPhase.DONE, objects, upto
            return phase, objects, upto
        self.changed -= {item.workload for item in objects[:upto]}
        objects = [replace(item, phase="restored") if place < upto else item for place, item in enumerate(objects)]
        if upto == len(objects):
            self._entries[plan_id] = replace(entry, applied_stages=(), undone_at=NOW)
            return RolloutPhase.RESTORED, objects, upto
        return phase, objects, upto

    def _note(self, actor: str, action: str, plan_id: str, subject: str, detail: str, cards: int = 0) -> None:
        self._ledger.append(
            LedgerEntry(
                at=NOW, actor=actor, action=action, plan_id=plan_id, subject=subject, detail=detail, cards=cards
            )
        )


_SAID = {
    RolloutPhase.CANARY: sentence("progress.starting"),
    RolloutPhase.WATCHING: sentence("progress.watching", batch="canary", pods=2, seconds=600.0),
    RolloutPhase.APPLYING: sentence("progress.moving", batch="rest", done=3, pods=12),
    RolloutPhase.DONE: sentence("progress.all_kept"),
    RolloutPhase.RESTORING: sentence("progress.undoing"),
    RolloutPhase.RESTORED: sentence("progress.undone", workloads=12, by="mei"),
}


class EmbeddedSightings:
    """Sightings as a test says them."""

    def __init__(self, found: tuple[ClusterSighting, ...]) -> None:
        self._found = found

    def sightings(self) -> tuple[ClusterSighting, ...]:
        return self._found


class EmbeddedSources:
    """Two exporters that disagree on one card, since the day before; and on another for longer than was looked."""

    def seen(self, cluster: str) -> SourcesSeen:
        """See `Sources`."""
        cards = [card for card in make_profiles().cards if cluster == CLUSTER][:2]
        found = [
            Contradiction(
                card=card.card, node=card.node, since=since,
                least=Statement(used_bytes=4.0 * GIB, metric="DCGM_FI_DEV_FB_USED", job="dcgm-exporter"),
                most=Statement(used_bytes=14.0 * GIB, metric="hami_host_gpu_memory_used_bytes", job="hami-monitor"),
            )
            for card, since in zip(cards, (NOW - timedelta(days=1), None), strict=False)
        ]  # fmt: skip
        return SourcesSeen(contradictions=tuple(found), mend="kubectl debug -it node/NODE -- nvidia-smi")


def sighting_of(profiles: Profiles) -> ClusterSighting:
    """A cluster that sends."""
    return ClusterSighting(
        cluster=profiles.cluster, newest_at=NOW - timedelta(seconds=40), cards=len(profiles.cards),
        silent_after_seconds=3600.0, now=NOW,
    )  # fmt: skip


def make_views(*, with_past: bool = True, scale: int = 1) -> tuple[Views, EmbeddedCluster]:
    """The ports over one fleet, and the cluster behind them."""
    profiles = make_profiles(scale=scale)
    plan = make_plan(profiles)
    cluster = EmbeddedCluster(profiles, (plan,))
    if with_past:
        for entry, outcome, ledger in make_past(profiles, plan):
            cluster.remember(entry, outcome, ledger)
    return Views(
        fleet=EmbeddedFleet(profiles),
        slices=EmbeddedSlices(profiles),
        plans=cluster,
        rollouts=cluster,
        outcomes=cluster,
        freezes=cluster,
        sightings=EmbeddedSightings((sighting_of(profiles),)),
        flow=EmbeddedFlow(),
        money=EmbeddedMoney(),
        relief=EmbeddedRelief(),
        nodes=EmbeddedNodeModes(),
        sources=EmbeddedSources(),
    ), cluster


def tide_only(entry: PlanEntry, *approved: int) -> PlanEntry:
    """The entry of a plan that has nothing but a tide, in stage 1."""
    tide = replace(entry.plan.recommendations[0], id="tide-1", kind=RecommendationKind.TIDE, cards_freed=0, freed=())
    stage = replace(entry.plan.stages[0], stage=1, recommendations=("tide-1",), cards_freed=0, moves=0)
    plan = replace(entry.plan, recommendations=(tide,), stages=(stage,))
    return replace(entry, plan=plan, approved_stages=approved, applied_stages=(), undone_at=None)


@cache
def make_past(profiles: Profiles, plan: Plan) -> tuple[tuple[PlanEntry, Outcome, tuple[LedgerEntry, ...]], ...]:
    """Four plans of the weeks before, made once in a process."""
    return tuple(_past(profiles, plan))


def _past(profiles: Profiles, plan: Plan) -> Iterator[tuple[PlanEntry, Outcome, tuple[LedgerEntry, ...]]]:
    """Four plans of the weeks before: two came true, one was undone, one fell short."""
    facts = (
        (31, 120, 112, 0.0009, 0.0007, 2, False),
        (24, 65, 41, 0.0010, 0.0031, 9, False),
        (17, 80, 0, 0.0008, 0.0120, 0, True),
        (10, 95, 93, 0.0009, 0.0006, 1, False),
    )
    for days, promised, came, foretold, harm, back, is_undone in facts:
        at = NOW - timedelta(days=days)
        old = seal_plan(
            replace(
                plan,
                plan_id="",
                created_at=at - timedelta(hours=3),
                expires_at=at + timedelta(hours=21),
                totals=replace(
                    plan.totals,
                    cards_freed=promised,
                    saving_per_week=Saving(amortised=Decimal(promised * 1100), marginal=None),
                ),
            )
        )
        old = seal_plan(replace(old, stages=tuple(replace(stage, cards_freed=promised // 5) for stage in old.stages)))
        numbers = tuple(stage.stage for stage in old.stages)
        names = [CardId(f"GPU-{days}-days-ago-{number}") for number in range(promised)]
        firsts = {stage.recommendations[0]: number for number, stage in enumerate(old.stages)}
        advice = tuple(
            replace(item, freed=_freed(names[firsts[item.id] :: len(numbers)], 1100, 600) if item.id in firsts else ())
            for item in old.recommendations
        )
        old = seal_plan(replace(old, recommendations=advice))
        entry = PlanEntry(
            plan=old,
            approved_stages=numbers,
            approved_by=("mei",),
            applied_stages=() if is_undone else numbers,
            once_applied_stages=numbers,
            applied_at=at,
            undone_at=at + timedelta(days=3) if is_undone else None,
        )
        outcome = Outcome(
            plan_id=old.plan_id,
            measured_at=at + timedelta(days=7),
            since=at,
            until=at + timedelta(days=7),
            is_final=True,
            promised_cards_freed=promised,
            realised_cards_freed=came,
            promised_saving_per_week=Saving(amortised=Decimal(promised * 1100), marginal=Decimal(promised * 600)),
            realised_saving_per_week=Saving(amortised=Decimal(came * 1100), marginal=Decimal(came * 600)),
            promised_violation_ratio=foretold,
            control_violation_ratio=0.0004,
            coverage_ratio=0.993,
            given_back=back,
            workloads=tuple(
                WorkloadOutcome(
                    workload=profile.workload,
                    predicted_violation_ratio=foretold,
                    violation_ratio=harm * 1.4 / (1 + place),
                    active_steps=9000,
                    cause="contention",
                )
                for place, profile in enumerate(profiles.workloads[days : days + 12])
            ),
            harm_budget_ratio=0.01,
            stages=numbers,
            realised=_freed(names[:came], 1100, 600),
        )
        note = [
            LedgerEntry(
                at=at,
                actor="mei",
                action="applied",
                plan_id=old.plan_id,
                subject="stages 1-5",
                detail="canary held",
                cards=promised,
            )
        ]
        if back:
            note.append(
                LedgerEntry(
                    at=at + timedelta(days=2),
                    actor="gputide",
                    action="given_back",
                    plan_id=old.plan_id,
                    subject=profiles.workloads[3].workload,
                    detail="load rose",
                    cards=-back,
                )
            )
        if is_undone:
            note.append(
                LedgerEntry(
                    at=at + timedelta(days=3),
                    actor="ops-lin",
                    action="undone",
                    plan_id=old.plan_id,
                    subject="whole plan",
                    detail="p99 latency of the ranker",
                    cards=-promised,
                )
            )
        yield entry, outcome, tuple(note)


def _state(rng: random.Random) -> CardState:
    return rng.choices([state for state, _ in STATE_WEIGHTS], [weight for _, weight in STATE_WEIGHTS])[0]


def _card(rng: random.Random, name: str, model: str, gib: int, node: str, state: CardState) -> CardProfile:
    p95 = {
        CardState.BUSY: rng.uniform(0.35, 0.98),
        CardState.LOW_USE: rng.uniform(0.02, 0.2),
        CardState.IDLE_HELD: 0.0,
        CardState.FREE: 0.0,
        CardState.UNTRUSTED: None,
    }[state]
    used = 0 if state is CardState.FREE else int(gib * GIB * rng.uniform(0.15, 0.92))
    idle = NOW - timedelta(hours=rng.randint(30, 400)) if state in (CardState.IDLE_HELD, CardState.FREE) else None
    return CardProfile(
        card=CardId(name),
        card_model=CardModelName(model),
        node=node,
        framebuffer_bytes=gib * GIB,
        framebuffer_used_max=used,
        state=state,
        compute_p95=p95,
        idle_since=idle,
        workloads=(),
        coverage_ratio=rng.uniform(0.96, 1.0),
        reason=f"{state.value.replace('_', ' ')} over the last 24 h",
    )


def _workloads(rng: random.Random, held: list[tuple[str, int, CardState]]) -> list[Profile]:
    rng.shuffle(held)
    made: list[Profile] = []
    place = 0
    while place < len(held):
        count = 1 if rng.random() < 0.6 else rng.choice((2, 2, 2, 3, 4, 4))
        part = held[place : place + count]
        place += count
        made.append(_profile(rng, len(made), part))
    return made


def _profile(rng: random.Random, number: int, part: list[tuple[str, int, CardState]]) -> Profile:
    state, gib = part[0][2], part[0][1]
    is_idle = state is CardState.IDLE_HELD
    kind = rng.choice(list(WorkloadClass)[:5])
    name = HOSTILE if number == 5 else f"{rng.choice(('svc', 'ranker', 'asr', 'ocr', 'llm', 'nb'))}-{number:03d}"
    team = f"team-{number % 17}"
    owner = "Notebook" if kind is WorkloadClass.NOTEBOOK else "Deployment"
    level = 0.0 if is_idle else rng.uniform(0.05, 0.9)
    week = tuple(level * (0.35 + 0.65 * max(0.0, math.sin((hour % 24 - 6) / 24 * 2 * math.pi))) for hour in range(168))
    off_peak = () if is_idle else tuple(hour for hour in range(168) if hour % 24 < 7 or hour % 24 >= 22)
    workload_state = {
        CardState.IDLE_HELD: WorkloadState.IDLE_HELD,
        CardState.LOW_USE: WorkloadState.OVERSIZED,
        CardState.BUSY: rng.choice((WorkloadState.BUSY, WorkloadState.OFF_PEAK)),
    }.get(state, WorkloadState.UNKNOWN)
    return Profile(
        cluster=CLUSTER,
        namespace=team,
        workload=WorkloadId(f"{team}/{owner}/{name}"),
        workload_kind=owner,
        workload_class=kind,
        priority=Priority.NORMAL,
        pods=tuple(f"{team}/pod-{number}-{index}" for index in range(len(part))),
        cards=tuple(CardId(card) for card, _, _ in part),
        state=workload_state,
        idle_since=NOW - timedelta(days=12) if is_idle else None,
        time_zone="Asia/Shanghai",
        off_peak_hours=off_peak,
        period_hours=24,
        hour_of_week=HourOfWeek(p50=tuple(v * 0.6 for v in week), p95=week, max=tuple(min(1.0, v * 1.2) for v in week)),
        framebuffer=FramebufferProfile(
            granted=gib * GIB,
            used_max=int(gib * GIB * 0.9),
            need_max=int(gib * GIB * 0.35) if number % 4 else None,
            preallocated=number % 3 == 0,
        ),
        compute=ComputeProfile(
            granted_ratio=1.0, p50=level * 0.5, p95=level, p99=min(1.0, level * 1.05), max=min(1.0, level * 1.2)
        ),
        engines=None,
        request_rate=RequestRateProfile(p50=40.0, p95=180.0, max=260.0) if kind is WorkloadClass.INFERENCE else None,
        coverage_ratio=rng.uniform(0.93, 1.0),
        confidence=rng.uniform(0.85, 0.99),
        trust=()
        if state is not CardState.UNTRUSTED
        else (
            Finding(
                check="container_zero_while_card_busy",
                counter="sm_active",
                values=(("windows", 412), ("card_ratio", 0.64)),
            ),
        ),
        why=(sentence("idle_ever", idle_ratio_max=0.01, coverage_ratio=1.0),)
        if is_idle
        else (sentence("busy", p95_ratio=level), sentence("by_sm_active")),
    )


def _freed(cards: Sequence[CardId], amortised: int, marginal: int) -> tuple[FreedCard, ...]:
    saving = Saving(amortised=Decimal(amortised), marginal=Decimal(marginal))
    return tuple(FreedCard(card=card, saving_per_week=saving) for card in cards)


def _why(kind: RecommendationKind, profile: Profile, cards: int) -> tuple[Sentence, ...]:
    if kind is RecommendationKind.RECLAIM:
        return (*profile.why, sentence("reclaim", cards=cards))
    return (
        sentence(
            "slice", pods=len(profile.pods), need_bytes=8 * GIB, framebuffer_bytes=9 * GIB, whole_bytes=24 * GIB,
            compute_ratio=0.3,
        ),
    )  # fmt: skip


def _recommendation(
    kind: RecommendationKind, place: int, profile: Profile, cards: int, needs: tuple[Need, ...]
) -> Recommendation:
    return Recommendation(
        id=f"{kind.value.replace('_', '-')}-{place:04d}",
        kind=kind,
        workloads=(profile.workload,),
        pods=profile.pods,
        cards_freed=cards,
        saving_per_week=Saving(amortised=Decimal(cards * 1150), marginal=Decimal(cards * 640)),
        risk_level=RiskLevel.LOW if kind is RecommendationKind.RECLAIM else RiskLevel.MEDIUM,
        confidence=profile.confidence,
        why=_why(kind, profile, cards),
        evidence=Evidence(
            since=NOW - timedelta(days=21),
            until=NOW,
            samples=30240,
            coverage_ratio=0.99,
            counters=("sm_active", "framebuffer_used"),
            numbers=(("sm_active_p99_ratio", 0.12), ("framebuffer_need_max_bytes", 8.1e9)),
        ),
        needs=needs,
        violation_ratio=0.0004,
    )


def _placement(profiles: Profiles, freed: set[CardId]) -> tuple[CardPlacement, ...]:
    kept = [card for card in profiles.cards if card.state is not CardState.FREE and card.card not in freed]
    homeless = sorted({name for card in profiles.cards if card.card in freed for name in card.workloads})
    placed = []
    for place, card in enumerate(kept):
        names = [*card.workloads, *(homeless[place : place + 1] if place < len(homeless) // 2 else [])]
        placed.append(
            CardPlacement(
                card=card.card,
                card_model=card.card_model,
                node=card.node,
                framebuffer_bytes=card.framebuffer_bytes,
                framebuffer_oversubscription_ratio=1.0,
                slices=tuple(
                    PlacedSlice(
                        namespace=name.split("/")[0],
                        pod=f"pod-{place}",
                        container="server",
                        workload=WorkloadId(name),
                        framebuffer_bytes=card.framebuffer_bytes // len(names),
                        compute_ratio=0.9 / len(names),
                        core_policy=CorePolicy.BURST,
                        priority=Priority.NORMAL,
                    )
                    for name in names
                ),
            )
        )
    return tuple(placed)


def _refusals(profiles: Profiles) -> Iterator[Refusal]:
    reasons = (
        (sentence("opt_out"), 9),
        (
            sentence(
                "counter_untrusted",
                counter="sm_active",
                check="container_zero_while_card_busy",
                windows=412,
                card_ratio=0.64,
            ),
            31,
        ),
        (sentence("history_too_short", seen_days=2.1, needed_days=7), 22),
        (sentence("no_samples"), 15),
    )
    place = 40
    for refused, count in reasons:
        for profile in profiles.workloads[place : place + count]:
            yield Refusal(workload=profile.workload, reason=refused.code, values=refused.values)
        place += count


def _frontier(cards: int) -> tuple[FrontierPoint, ...]:
    return (
        FrontierPoint(label="low", cards_freed=cards, violation_ratio=0.0008, is_chosen=True),
        FrontierPoint(label="medium", cards_freed=round(cards * 1.18), violation_ratio=0.0042),
        FrontierPoint(label="high", cards_freed=round(cards * 1.31), violation_ratio=0.0171),
        FrontierPoint(label="hour profile p95", cards_freed=round(cards * 0.86), violation_ratio=0.0064),
        FrontierPoint(label="two per card", cards_freed=round(cards * 1.1), violation_ratio=0.0230),
    )


def _diff(item: Recommendation) -> ObjectDiff:
    namespace, kind, name = item.workloads[0].split("/", 2)
    old = "spec:\n  replicas: 2\n  resources:\n    limits:\n      nvidia.com/gpu: 1\n"
    new = old + "      nvidia.com/gpumem: 8192\n      nvidia.com/gpucores: 40\n"
    if item.kind is RecommendationKind.RECLAIM:
        new = old.replace("replicas: 2", "replicas: 0")
    return ObjectDiff(kind=kind, namespace=namespace, name=name, recommendation=item.id, before=old, after=new)


def _signals(done: int) -> tuple[Signal, ...]:
    return (
        Signal(name="container restarts", values=tuple(0.0 for _ in range(done + 3)), threshold=1.0, unit=""),
        Signal(
            name="violated active time",
            values=tuple(0.004 + 0.002 * math.sin(i) for i in range(done + 3)),
            threshold=0.05,
            unit="",
        ),
        Signal(
            name="p95 latency, ms",
            values=tuple(81 + 6 * math.sin(i / 2) for i in range(done + 3)),
            threshold=120.0,
            unit="ms",
        ),
    )


def _history(profile: Profile, hours: int) -> WorkloadHistory:
    steps = min(2000, hours * 4)
    step = timedelta(hours=hours) / steps
    times = tuple(NOW - timedelta(hours=hours) + step * index for index in range(steps))
    p95 = tuple(
        None if 200 < index < 212 else profile.hour_of_week.p95[(moment.weekday() * 24 + moment.hour + 8) % 168]
        for index, moment in enumerate(times)
    )
    granted = float(profile.framebuffer.granted)
    used = tuple(None if value is None else granted * (0.7 + 0.2 * value) for value in p95)
    need = profile.framebuffer.need_max
    return WorkloadHistory(
        times=times,
        compute_p50=tuple(None if value is None else value * 0.6 for value in p95),
        compute_p95=p95,
        compute_max=tuple(None if value is None else min(1.0, value * 1.15) for value in p95),
        framebuffer_used_bytes=used,
        framebuffer_need_bytes=None
        if need is None
        else tuple(None if v is None else need * (0.7 + 0.3 * v) for v in p95),
        framebuffer_granted_bytes=tuple(granted for _ in p95),
        request_rate=None if profile.request_rate is None else tuple(None if v is None else 260 * v for v in p95),
        events=(
            Event(at=times[steps // 3], kind="restart", text="container restarted by its owner"),
            Event(at=times[steps // 2], kind="change", text="framebuffer limit 24 GiB → 8 GiB"),
            Event(at=times[2 * steps // 3], kind="oom", text="out of memory, 1 container"),
        ),
    )
