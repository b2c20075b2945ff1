"""The pages' ports as one person sees them: every answer is cut to what they may see, every change is asked for first.

The whole app stands on these, so no page and no route of the API has to think of rights. Who asks is found anew at
every call: a right that ends, ends at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from dashboards.access.namespace_cut import cut_plan, cut_profiles, namespace_of, stage_namespaces, without_others
from dashboards.access.people import LEAST_ROLES, Deed, NotAllowed, Person
from dashboards.queries import (
    STAGE_KIND,
    Fleet,
    Flow,
    Freezes,
    Freshness,
    LedgerEntry,
    Money,
    NodeModes,
    Outcomes,
    PlanEntry,
    Plans,
    ReliefLog,
    RolloutProgress,
    Rollouts,
    Sightings,
    Slices,
    Sources,
    UndoPreview,
    Views,
    WorkloadHistory,
)
from dashboards.view_models.card_history import CardHistory
from dashboards.view_models.cluster_sighting import ClusterSighting
from dashboards.view_models.health import LagChain, SourcesSeen
from dashboards.view_models.made_once import MADE, MadeOnce
from dashboards.view_models.relief_acts import ReliefActs
from dashboards.view_models.slice_uses import SliceUse
from enforcer.preview import ObjectDiff
from enforcer.switch_preview import NodeStanding, SwitchPreview
from fleet.decisions import Plan
from fleet.errors import GputideError, NotEnoughData, Refused, Unavailable
from fleet.inventory import Quota
from fleet.money.budgets import BudgetStatus
from fleet.money.cost_days import CostDays
from fleet.money.prices import Prices
from fleet.money.unit_costs import UnitCost
from fleet.money.week_hours import WeekHours
from fleet.node_changes import NodeSwitch
from fleet.outcomes import ChangePhase, Outcome
from fleet.profiles import Profiles
from fleet.sentences import Sentence, sentence

Who = Callable[[], Person]
Port = TypeVar("Port")
_CUTS_MAX = 64
_ENDED = frozenset({ChangePhase.PROMOTED, ChangePhase.RESTORED, ChangePhase.REFUSED})
"""Phases after which nothing happens to a workload."""


def scoped_views(views: Views, who: Who) -> Views:
    """The ports as one person may use them."""
    plans = _ScopedPlans(views.plans, who)
    return replace(
        views,
        fleet=_ScopedFleet(views.fleet, who),
        slices=_ScopedSlices(views.slices, who),
        plans=plans,
        rollouts=_ScopedRollouts(views.rollouts, plans, who),
        outcomes=_ScopedOutcomes(views.outcomes, who),
        freezes=_ScopedFreezes(views.freezes, views.fleet, who),
        flow=_ScopedFlow(views.flow, who),
        money=_ScopedMoney(views.money, who),
        relief=_ScopedRelief(views.relief, who),
        sightings=_ScopedSightings(views.sightings, who),
        nodes=_ScopedNodeModes(views.nodes, who),
        sources=_ScopedSources(views.sources, who),
    )


class _Scoped(Generic[Port]):
    """A port as one person may use it, with what was cut of its answers."""

    def __init__(self, inner: Port, who: Who) -> None:
        self._inner, self._who, self._cuts = inner, who, MadeOnce(_CUTS_MAX)

    def _seen(self, cluster: str) -> frozenset[str] | None:
        """Namespaces of a cluster that they may see; None for all.

        Raises:
            NotEnoughData: none; as for a cluster that there is not, so that nobody learns of one by asking.
        """
        person = self._who()
        if not person.clusters_seen((cluster,)):
            raise NotEnoughData(f"there is no such cluster, or you may not see it: {cluster[:253]!r}")
        return person.namespaces_seen(cluster)


class _ScopedFleet(_Scoped[Fleet]):
    def clusters(self) -> tuple[str, ...]:
        return self._who().clusters_seen(self._inner.clusters())

    def profiles(self, cluster: str) -> Profiles:
        namespaces = self._seen(cluster)
        found = self._inner.profiles(cluster)
        if namespaces is None:
            return found
        return self._cuts.of((found,), namespaces, lambda: cut_profiles(found, namespaces))

    def history(self, cluster: str, workload: str, hours: int | None) -> WorkloadHistory | None:
        namespaces = self._seen(cluster)
        if namespaces is not None and namespace_of(workload) not in namespaces:
            return None
        return self._inner.history(cluster, workload, hours)

    def card_history(self, cluster: str, card: str, hours: int | None) -> CardHistory | None:
        namespaces = self._seen(cluster)
        found = self._inner.card_history(cluster, card, hours)
        # What a card does says what everybody did who held it.
        if found is None or namespaces is None or {namespace_of(one.workload) for one in found.held} <= namespaces:
            return found if found is None or namespaces is None or found.held else None
        return None

    def freshness(self, cluster: str) -> Freshness:
        self._seen(cluster)
        return self._inner.freshness(cluster)


class _ScopedSlices(_Scoped[Slices]):
    def slices(self, cluster: str) -> tuple[SliceUse, ...]:
        namespaces, found = self._seen(cluster), self._inner.slices(cluster)
        return found if namespaces is None else tuple(one for one in found if one.grant.namespace in namespaces)


class _ScopedSightings(_Scoped[Sightings]):
    """Clusters that somebody may see as a whole: how many cards one has is no tenant's business."""

    def sightings(self) -> tuple[ClusterSighting, ...]:
        person = self._who()
        found = self._inner.sightings()
        seen = frozenset(person.clusters_seen(item.cluster for item in found))
        return tuple(item for item in found if item.cluster in seen and person.namespaces_seen(item.cluster) is None)


class _ScopedPlans(_Scoped[Plans]):
    def plans(self, cluster: str) -> tuple[PlanEntry, ...]:
        person = self._who()
        self._seen(cluster)
        return tuple(self._cut(entry, person) for entry in self._inner.plans(cluster))

    def plan(self, plan_id: str) -> PlanEntry | None:
        found = self._whole(plan_id)
        return None if found is None else self._cut(found, self._who())

    def approve(self, plan_id: str, stages: tuple[int, ...], by: str) -> PlanEntry:
        del by  # the name that somebody signed in by, whatever the page says
        person = self._who()
        plan = self.whole(plan_id)
        _ask(person, Deed.APPROVE, plan, stages)
        return self._cut(self._inner.approve(plan.plan_id, stages, person.name), person)

    def preview(self, plan_id: str, stages: tuple[int, ...]) -> tuple[ObjectDiff, ...]:
        plan = self.whole(plan_id)
        namespaces = self._who().namespaces_seen(plan.cluster)
        if namespaces is None:
            return self._inner.preview(plan.plan_id, stages)
        try:
            found = self._inner.preview(plan.plan_id, stages)
        except GputideError as exc:
            # What could not be asked for may be another's.
            kind = Refused if isinstance(exc, Refused) else Unavailable
            raise kind(sentence("access.no_preview", plan=plan.plan_id)) from exc
        # Who refuses, and why, may name others.
        return tuple(
            replace(item, refusal=None if item.refusal is None else sentence("access.stage_refused"))
            for item in found
            if item.namespace in namespaces or item.kind == STAGE_KIND
        )

    def _whole(self, plan_id: str) -> PlanEntry | None:
        """A plan as it is, for somebody who may see anything of its cluster; None for everybody else."""
        found = self._inner.plan(plan_id)
        if found is None or not self._who().clusters_seen((found.plan.cluster,)):
            return None
        return found

    def whole(self, plan_id: str) -> Plan:
        """The same, which there must be."""
        found = self._whole(plan_id)
        if found is None:
            raise NotEnoughData(f"there is no plan {plan_id[:64]!r}, or you may not see it")
        return found.plan

    def _cut(self, entry: PlanEntry, person: Person) -> PlanEntry:
        entry = _with_rights(entry, person)
        namespaces = person.namespaces_seen(entry.plan.cluster)
        if namespaces is None:
            return entry
        whole = entry.plan
        plan = self._cuts.of((whole,), namespaces, lambda: cut_plan(whole, namespaces))
        shown = {stage.stage for stage in plan.stages}
        approved = tuple(stage for stage in entry.approved_stages if stage in shown)
        return replace(
            entry,
            plan=plan,
            approved_stages=approved,
            approved_by=entry.approved_by if approved else (),
            applied_stages=tuple(stage for stage in entry.applied_stages if stage in shown),
            once_applied_stages=tuple(stage for stage in entry.once_applied_stages if stage in shown),
        )


class _ScopedRollouts(_Scoped[Rollouts]):
    def __init__(self, inner: Rollouts, plans: _ScopedPlans, who: Who) -> None:
        super().__init__(inner, who)
        self._plan = plans.whole

    def apply(self, plan_id: str, stages: tuple[int, ...], by: str) -> None:
        del by
        person, plan = self._who(), self._plan(plan_id)
        _ask(person, Deed.CHANGE, plan, stages)
        self._inner.apply(plan.plan_id, stages, person.name)

    def progress(self, plan_id: str) -> RolloutProgress:
        plan = self._plan(plan_id)
        namespaces = self._who().namespaces_seen(plan.cluster)
        found = self._inner.progress(plan.plan_id)
        if namespaces is None:
            return found
        objects = tuple(
            # Why a stage was taken back may be another's doing.
            replace(item, detail=without_others(item.detail, namespaces))
            if stage_namespaces(plan, (item.stage,)) <= namespaces
            else replace(item, detail="")
            for item in found.objects
            if namespace_of(item.workload) in namespaces
        )
        done = sum(item.phase in _ENDED for item in objects)
        return replace(found, objects=objects, done=done, total=len(objects), signals=(), said=None)

    def undo_preview(self, plan_id: str) -> UndoPreview:
        plan = self._plan(plan_id)
        self._ask_to_undo(plan, Deed.SEE)
        return self._inner.undo_preview(plan.plan_id)

    def undo(self, plan_id: str, by: str) -> None:
        del by
        plan = self._plan(plan_id)
        self._ask_to_undo(plan, Deed.CHANGE)
        self._inner.undo(plan.plan_id, self._who().name)

    def _ask_to_undo(self, plan: Plan, deed: Deed) -> None:
        """An undo takes back all that was applied, of every tenant."""
        if not self._who().may(deed, plan.cluster, None):
            raise NotAllowed(sentence("access.no_undo", plan=plan.plan_id, cluster=plan.cluster, who=_who_may(deed)))


class _ScopedNodeModes(_Scoped[NodeModes]):
    """A node is of the cluster as a whole: pods of every team that are there must leave."""

    def standing(self, cluster: str, node: str) -> NodeStanding:
        self._ask(Deed.SEE, cluster)
        return self._inner.standing(cluster, node)

    def preview(self, cluster: str, switch: NodeSwitch) -> SwitchPreview:
        self._ask(Deed.SEE, cluster)
        return self._inner.preview(cluster, switch)

    def keep(self, cluster: str, switch: NodeSwitch) -> str:
        self._ask(Deed.APPROVE, cluster)
        return self._inner.keep(cluster, switch)

    def _ask(self, deed: Deed, cluster: str) -> None:
        self._seen(cluster)
        if not self._who().may(deed, cluster, None):
            raise NotAllowed(sentence("access.no_node_mode", cluster=cluster, who=_who_may(deed)))


class _ScopedOutcomes(_Scoped[Outcomes]):
    def outcomes(self, cluster: str) -> tuple[Outcome, ...]:
        return self._inner.outcomes(cluster) if self._seen(cluster) is None else ()

    def ledger(self, cluster: str) -> tuple[LedgerEntry, ...]:
        namespaces = self._seen(cluster)
        if namespaces is not None:
            parts = ", ".join(sorted(namespaces)[:3])
            raise NotAllowed(sentence("access.no_savings", cluster=cluster, parts=parts))
        return self._inner.ledger(cluster)


class _ScopedRelief(_Scoped[ReliefLog]):
    """Moves of their workloads; who sleeps on a card, and why somebody was moved, may name others."""

    def acts(self, cluster: str) -> ReliefActs:
        namespaces = self._seen(cluster)
        found = self._inner.acts(cluster)
        if namespaces is None:
            return found
        own = (move for move in found.moves if namespace_of(move.workload) in namespaces)
        return ReliefActs(moves=tuple(replace(move, reason=None, why=None) for move in own))


class _ScopedFreezes(_Scoped[Freezes]):
    """The switch stops every cluster that is changed from here, so it takes the right in all of them."""

    def __init__(self, inner: Freezes, fleet: Fleet, who: Who) -> None:
        super().__init__(inner, who)
        self._fleet = fleet

    def frozen_by(self, cluster: str) -> str | None:
        namespaces = self._seen(cluster)
        found = self._inner.frozen_by(cluster)
        return found if found is None or namespaces is None else "who may see the cluster as a whole"

    def freeze(self, cluster: str, by: str) -> None:
        del by  # the name that somebody signed in by, whatever the page says
        self._inner.freeze(cluster, self._allowed(Deed.CHANGE, cluster))

    def thaw(self, cluster: str, by: str) -> None:
        del by
        self._inner.thaw(cluster, self._allowed(Deed.THAW, cluster))

    def _allowed(self, deed: Deed, cluster: str) -> str:
        person = self._who()
        self._seen(cluster)
        if not all(person.may(deed, name, None) for name in {cluster, *self._fleet.clusters()}):
            code = "access.no_thaw" if deed is Deed.THAW else "access.no_freeze"
            raise NotAllowed(sentence(code, who=_who_may(deed)))
        return person.name


class _ScopedFlow(_Scoped[Flow]):
    def lags(self, cluster: str) -> LagChain:
        self._seen(cluster)
        return self._inner.lags(cluster)


class _ScopedSources(_Scoped[Sources]):
    """Cards, nodes and exporters are for those who see the whole cluster."""

    def seen(self, cluster: str) -> SourcesSeen | None:
        return None if self._seen(cluster) is not None else self._inner.seen(cluster)


class _ScopedMoney(_Scoped[Money]):
    """Budgets and quotas of a namespace are for who may see it; those of teams and queues may name others."""

    @property
    def currency(self) -> str:
        return self._inner.currency

    def prices(self, cluster: str) -> Prices:
        self._seen(cluster)
        return self._inner.prices(cluster)

    def budgets(self, cluster: str) -> tuple[BudgetStatus, ...]:
        namespaces = self._seen(cluster)
        found = self._inner.budgets(cluster)
        if namespaces is None:
            return found
        return tuple(status for status in found if status.kind == "namespace" and status.name in namespaces)

    def quotas(self, cluster: str) -> tuple[Quota, ...]:
        namespaces = self._seen(cluster)
        found = self._inner.quotas(cluster)
        return found if namespaces is None else tuple(quota for quota in found if quota.namespace in namespaces)

    def week(self, cluster: str) -> WeekHours | None:
        namespaces = self._seen(cluster)
        found = self._inner.week(cluster)
        return found if found is None or namespaces is None else found.only(namespaces)

    def cost_days(self, cluster: str, *, is_quarter: bool) -> CostDays | None:
        namespaces = self._seen(cluster)
        found = self._inner.cost_days(cluster, is_quarter=is_quarter)
        return found if found is None or namespaces is None else found.only(namespaces)

    def unit_costs(self, cluster: str) -> tuple[UnitCost, ...]:
        namespaces = self._seen(cluster)
        found = self._inner.unit_costs(cluster)
        if namespaces is None:
            return found
        return tuple(one for one in found if namespace_of(one.workload) in namespaces)


def _ask(person: Person, deed: Deed, plan: Plan, stages: tuple[int, ...]) -> None:
    touched = stage_namespaces(plan, stages)
    if not person.may(deed, plan.cluster, touched):
        seen = person.namespaces_seen(plan.cluster)
        named = sorted(touched if seen is None else touched & seen)
        has_others = seen is not None and not touched <= seen
        numbers, names = ", ".join(map(str, stages)), ", ".join(named)
        raise NotAllowed(
            sentence(
                "access.stages_of_others" if has_others else "access.stages", deed=deed.value, stages=numbers,
                plan=plan.plan_id, namespaces=names, who=_who_may(deed),
            )
        )  # fmt: skip


def _with_rights(entry: PlanEntry, person: Person) -> PlanEntry:
    """The entry with what this person may not do with the plan, beside what nobody may."""
    plan = entry.plan
    if person.may(Deed.CHANGE, plan.cluster, None):
        return entry
    reach = MADE.of(
        (plan,), "stage namespaces", lambda: tuple(stage_namespaces(plan, (stage.stage,)) for stage in plan.stages)
    )

    def refused(deed: Deed) -> Sentence | None:
        if any(person.may(deed, plan.cluster, namespaces) for namespaces in reach):
            return None
        return sentence("access.nothing_of_plan", deed=deed.value, who=_who_may(deed))

    return replace(
        entry,
        # Why it can't be applied may name others' workloads.
        apply_refusal=refused(Deed.CHANGE) or (None if entry.apply_refusal is None else sentence("access.not_now")),
        approve_refusal=refused(Deed.APPROVE),
        undo_refusal=sentence("access.undo_is_whole", who=_who_may(Deed.CHANGE)),
    )


def _who_may(deed: Deed) -> Sentence:
    return sentence("access.takes_role", role=LEAST_ROLES[deed].value)
