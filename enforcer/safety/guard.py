"""Says no before anything is changed: every reason that stands against applying a plan, as `Refused`.

Called by the rollout with the lease in hand, and by the faces, which show the reason beside a button that is disabled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from enforcer.cluster import ClusterReader
from enforcer.kinds.register import trouble_of
from enforcer.manifest import field_of
from enforcer.record.fingerprint import Fingerprint, fingerprint_of, is_of_plan
from enforcer.record.journal import RunRecord, StageRecord
from enforcer.record.plan_store import Approval
from enforcer.rollout.landing import is_rolled_out
from enforcer.safety.availability import availability_breaches, availability_refusal
from enforcer.safety.change_window import ChangeWindow
from enforcer.safety.freeze import frozen_by
from enforcer.safety.gitops import gitops_manager
from enforcer.safety.pod_admission import check_admission
from enforcer.safety.quotas import check_quotas
from enforcer.snapshot import Snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.documents import seal_plan
from fleet.errors import Refused
from fleet.inventory import ISOLATION_LABEL, LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL, WorkloadId
from fleet.settings.guard import WEEKDAYS
from fleet.units import format_time

FREEZE_NAMESPACE = "gputide"
"""Where the ConfigMap that stops every change is looked for."""

COVERAGE_RATIO_MIN = 0.8
"""Coverage of the history below which a plan is not applied: under it a workload's state is `unknown`."""

HISTORY_AGE_MAX = timedelta(days=2)
"""Age of a plan's newest sample beyond which it is not applied."""

_NAMED_MAX = 3
_NEW_PLAN = "make a new plan with `gputide plan make`"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    """What the guard goes by.

    Attributes:
        freeze_config_map: name of the ConfigMap whose presence stops every change.
        freeze_file: file whose presence stops every change from this machine; None for none.
        coverage_ratio_min: least coverage of the plan's history.
        history_age_max: how old its newest sample may be.
        cards_max: most cards that one apply may free; None for no limit.
        saving_max: most that one apply may save in a week, in the plan's currency; None for no limit.
        two_approvals_cards_min: freed cards of one apply from which two people must have approved; None for never.
        window: when changes may begin.
        gaps_allowed: whether services of one replica and latency-critical ones may lose a pod for a while, and an undo
            may leave fewer pods ready than owners allow.
        needs_approval: whether stages must be approved.
        cluster: name of the cluster that is changed; None where that is not known.
    """

    freeze_config_map: str = "gputide-freeze"
    freeze_file: Path | None = None
    coverage_ratio_min: float = COVERAGE_RATIO_MIN
    history_age_max: timedelta = HISTORY_AGE_MAX
    cards_max: int | None = None
    saving_max: Decimal | None = None
    two_approvals_cards_min: int | None = None
    window: ChangeWindow = field(default_factory=ChangeWindow)
    gaps_allowed: bool = False
    needs_approval: bool = True
    cluster: str | None = None


class Guard:
    """Checks plans.

    Args:
        policy: what to go by.
    """

    def __init__(self, policy: GuardPolicy) -> None:
        self._policy = policy

    def check_frozen(self, reader: ClusterReader) -> None:
        """Refuse every change while somebody has frozen this machine or the cluster."""
        file = self._policy.freeze_file
        frozen = None if file is None else frozen_by(file)
        if frozen is not None:
            raise Refused(f"cannot change the cluster: frozen by {frozen}; remove {file} to go on")
        name = self._policy.freeze_config_map
        if reader.get("ConfigMap", FREEZE_NAMESPACE, name) is not None:
            raise Refused(
                f"cannot change the cluster: ConfigMap {FREEZE_NAMESPACE}/{name} freezes it; delete it to go on "
                "(setting enforcer.freeze_config_map)"
            )

    def check_plan(
        self, plan: Plan, stages: Sequence[int], approvals: Iterable[Approval] | Iterable[int], now: datetime
    ) -> None:
        """Refuse a plan for what it is, whatever the cluster looks like.

        Args:
            stages: stages that are to be applied.
            approvals: who approved which; or the stages alone, where it does not matter who did.
            now: the moment, UTC.

        Raises:
            Refused: edited, of another cluster, expired, made from too little or too old a history, too large, not at
                this hour, unknown stages, or stages that too few people approved.
        """
        _check_seal(plan)
        check_cluster_name(plan, self._policy.cluster)
        if now >= plan.expires_at:
            raise Refused(
                f"cannot apply plan {plan.plan_id}: it expired at {format_time(plan.expires_at)} and it is "
                f"{format_time(now)}; make a new one with `gputide plan make` (setting plan.expires_seconds)"
            )
        self._check_coverage(plan)
        age = now - plan.history.until
        if age > self._policy.history_age_max:
            raise Refused(
                f"cannot apply plan {plan.plan_id}: its history ends at {format_time(plan.history.until)}, "
                f"{age.total_seconds():.0f} s ago, limit guard.history_age_max_seconds="
                f"{self._policy.history_age_max.total_seconds():.0f}; {_NEW_PLAN}"
            )
        if not self._policy.window.is_open(now):
            raise Refused(_closed(self._policy.window, now))
        known = {entry.stage: entry for entry in plan.stages}
        missing = sorted(set(stages) - known.keys())
        if missing or not stages:
            raise Refused(f"cannot apply stages {missing} of plan {plan.plan_id}: it has {sorted(known)}")
        freed = sum(known[stage].cards_freed for stage in set(stages))
        self.check_approvals(plan, stages, list(approvals), freed)
        self._check_size(plan, stages, freed)

    def check_schedule(self, plan: Plan, approvals: Iterable[Approval], now: datetime) -> None:
        """Refuse to begin a night by a plan, for what the plan is.

        A schedule is followed for weeks: it outlives the plan's date of expiry (`tide.plan_age_days_max` bounds it),
        and its own hours and holidays stand for those of the change window. What it frees it gives back by morning, so
        no saving limit binds it; the limit on cards does.

        Args:
            approvals: who approved which of its stages.
            now: the moment, UTC.

        Raises:
            Refused: edited, of another cluster, made from too little history, too large, or its tide was approved by
                too few.
        """
        _check_seal(plan)
        check_cluster_name(plan, self._policy.cluster)
        self._check_coverage(plan)
        tides = {entry.id for entry in plan.recommendations if entry.kind is RecommendationKind.TIDE}
        stages = [entry.stage for entry in plan.stages if tides & set(entry.recommendations)]
        freed = len({card for entry in plan.schedule for card in entry.frees})
        self.check_approvals(plan, stages, list(approvals), freed)
        if self._policy.cards_max is not None and freed > self._policy.cards_max:
            raise Refused(
                f"cannot begin a night by plan {plan.plan_id} at {format_time(now)}: it frees {freed} cards at once, "
                f"limit guard.cards_per_apply_max={self._policy.cards_max}"
            )

    def _check_coverage(self, plan: Plan) -> None:
        if plan.history.coverage_ratio < self._policy.coverage_ratio_min:
            raise Refused(
                f"cannot apply plan {plan.plan_id}: its history has coverage {plan.history.coverage_ratio:.3f}, below "
                f"guard.history_coverage_min={self._policy.coverage_ratio_min}"
            )

    def check_approvals(
        self, plan: Plan, stages: Sequence[int], approvals: Sequence[Approval | int], freed: int
    ) -> None:
        """Refuse stages that too few people approved.

        Args:
            approvals: who approved which; or the stages alone.
            freed: cards that the stages free together.

        Raises:
            Refused: nobody approved one of them, or one person where `two_approvals_cards_min` wants two.
        """
        people: dict[int, set[str]] = {}
        for entry in approvals:
            for stage in (entry,) if isinstance(entry, int) else entry.stages:
                # One person under two spellings is one person.
                people.setdefault(stage, set()).add("" if isinstance(entry, int) else entry.by.strip().casefold())
        unapproved = sorted(set(stages) - people.keys())
        if self._policy.needs_approval and unapproved:
            raise Refused(
                f"cannot apply stages {unapproved} of plan {plan.plan_id}: nobody approved them; `gputide plan approve`"
            )
        least = self._policy.two_approvals_cards_min
        if not self._policy.needs_approval or least is None or freed < least:
            return
        alone = sorted(stage for stage in set(stages) if len(people[stage]) < 2)
        if alone:
            raise Refused(
                f"cannot apply stages {alone} of plan {plan.plan_id}: {freed} cards are freed, from "
                f"guard.two_approvals_cards_min={least} on two different people must have approved, and one has"
            )

    def _check_size(self, plan: Plan, stages: Sequence[int], freed: int) -> None:
        policy = self._policy
        if policy.cards_max is not None and freed > policy.cards_max:
            raise Refused(
                f"cannot apply plan {plan.plan_id}: it frees {freed} cards at once, limit "
                f"guard.cards_per_apply_max={policy.cards_max}; apply fewer stages"
            )
        if policy.saving_max is None:
            return
        named = {name for entry in plan.stages if entry.stage in stages for name in entry.recommendations}
        savings = [
            entry.saving_per_week.amortised
            for entry in plan.recommendations
            if entry.id in named and entry.saving_per_week.amortised is not None
        ]
        total = sum(savings, Decimal(0))
        if total > policy.saving_max:
            raise Refused(
                f"cannot apply plan {plan.plan_id}: it changes {total} {plan.currency} a week at once, limit "
                f"guard.saving_per_apply_max={policy.saving_max}; apply fewer stages"
            )

    def check_cluster(
        self,
        plan: Plan,
        stages: Sequence[int],
        snapshot: Snapshot,
        fingerprint: Fingerprint | None,
        runs: Sequence[RunRecord],
    ) -> None:
        """Refuse a plan that the cluster no longer fits.

        Raises:
            Refused: inputs changed, a workload opted out, a latency-critical one is to be stopped, or another rollout
                is in progress.
        """
        busy = [run.plan_id for run in runs if run.is_open and run.plan_id != plan.plan_id]
        if busy:
            raise Refused(f"cannot apply plan {plan.plan_id}: plan {busy[0]} is being applied; resume or undo it first")
        workloads = workloads_of(plan, stages)
        _check_wishes(plan, stages, snapshot)
        _check_neighbours(plan, workloads, snapshot)
        _check_keepers(workloads, snapshot)
        _check_cards(plan, snapshot)
        # A changed template rolls its pods under new names: what was changed says more than who is new.
        if fingerprint is not None:
            _check_fingerprint(plan, workloads, snapshot, fingerprint)
        _check_rollouts(workloads, snapshot)
        _check_pods(plan, workloads, snapshot)

    def check_stage(self, record: StageRecord, snapshot: Snapshot, reader: ClusterReader, wave_max: int) -> None:
        """Refuse a stage for what it would ask of the cluster, before anything of it is written down.

        Args:
            record: what it is going to do.
            snapshot: the cluster that it was rendered for.
            wave_max: how many workloads may be changing at once.

        Raises:
            Refused: it would exceed a quota, leave fewer pods ready than their owners allow, or nobody at admission
                gives its pods their seats.
        """
        check_admission(record.stage, record.objects, reader)
        check_quotas(record, snapshot, reader)
        self.check_availability(record, snapshot, reader, wave_max)

    def check_availability(self, record: StageRecord, snapshot: Snapshot, reader: ClusterReader, wave_max: int) -> None:
        """Refuse a stage, begun or not, that would leave fewer pods ready than their owners allow.

        Raises:
            Refused: naming the workloads, what each of them allows, and what mends it.
        """
        found = availability_refusal(record, self.breaches(record, snapshot, reader, wave_max))
        if found is not None:
            raise Refused(found)

    def breaches(
        self, record: StageRecord, snapshot: Snapshot, reader: ClusterReader, wave_max: int
    ) -> dict[WorkloadId, str]:
        """Workloads of which a stage would leave fewer pods ready than they allow, where nobody said yes, and why."""
        return availability_breaches(record, snapshot, reader, wave_max, gaps_allowed=self._policy.gaps_allowed)

    def check_undo(self, plan_id: str, lowered: Sequence[str]) -> None:
        """Refuse an undo that would leave fewer pods ready than their owners allow, unless `gaps_allowed` is set.

        Args:
            lowered: the workloads, and why, one sentence each.
        """
        if lowered and not self._policy.gaps_allowed:
            more = f"; and {len(lowered) - _NAMED_MAX} more" if len(lowered) > _NAMED_MAX else ""
            raise Refused(
                f"cannot undo plan {plan_id} without leaving fewer pods ready than their owners allow: "
                f"{'; '.join(lowered[:_NAMED_MAX])}{more}; free a card, or say yes to it with "
                "--set guard.gaps_allowed=true"
            )


def check_cluster_name(plan: Plan, cluster: str | None) -> None:
    """Refuse a plan that was made for another cluster: names of objects are alike in many clusters.

    Args:
        cluster: name of the cluster that would be changed; None where that is not known.

    Raises:
        Refused: it was, with both names.
    """
    if cluster is not None and plan.cluster != cluster:
        raise Refused(
            f"cannot use plan {plan.plan_id} here: it is of cluster {plan.cluster!r}, and this enforcer changes "
            f"{cluster!r} (setting cluster.name); use the enforcer of {plan.cluster!r}"
        )


def _check_seal(plan: Plan) -> None:
    sealed = seal_plan(plan)
    if sealed.plan_id != plan.plan_id:
        raise Refused(f"cannot apply plan {plan.plan_id}: it was edited, its content is {sealed.plan_id}")


def workloads_of(plan: Plan, stages: Sequence[int]) -> tuple[WorkloadId, ...]:
    """Workloads that these stages change, in the order of the plan."""
    recommendations = {entry.id: entry for entry in plan.recommendations}
    found = [
        workload
        for entry in plan.stages
        if entry.stage in stages
        for name in entry.recommendations
        for workload in recommendations[name].workloads
    ]
    return tuple(dict.fromkeys(found))


def _check_wishes(plan: Plan, stages: Sequence[int], snapshot: Snapshot) -> None:
    """Who opted out is not touched; who is latency-critical may get a slice, but is never stopped."""
    reclaimed = {
        workload
        for entry in plan.recommendations
        if entry.kind is RecommendationKind.RECLAIM
        for workload in entry.workloads
    }
    for workload in workloads_of(plan, stages):
        owner = snapshot.owners.get(workload)
        if owner is None:
            raise Refused(f"cannot apply plan {plan.plan_id}: {workload} is gone since it was made")
        labels = (OPT_OUT_LABEL, LATENCY_CRITICAL_LABEL) if workload in reclaimed else (OPT_OUT_LABEL,)
        for label in labels:
            if snapshot.wishes.of(label, owner) == "true":
                raise Refused(f"cannot apply plan {plan.plan_id}: {workload} has {label}=true; {_NEW_PLAN}")


def _check_neighbours(plan: Plan, workloads: Sequence[WorkloadId], snapshot: Snapshot) -> None:
    """Who wants a card to itself gets no neighbour, whichever of the two is to be moved."""
    chosen = set(workloads)
    for card in plan.placement:
        owners = {part.workload for part in card.slices}
        if len(owners) < 2 or chosen.isdisjoint(owners):
            continue
        walled = {
            name
            for name in owners
            if (owner := snapshot.owners.get(name)) is not None and snapshot.wishes.of(ISOLATION_LABEL, owner) == "hard"
        }
        if walled == owners and len({part.namespace for part in card.slices}) == 1:
            # Neighbours of one namespace that all want it; where nothing would keep them apart the backend refuses.
            continue
        for workload in sorted(owners):
            if workload in walled:
                others = ", ".join(sorted(owners - {workload})[:_NAMED_MAX])
                raise Refused(
                    f"cannot apply plan {plan.plan_id}: {workload} has {ISOLATION_LABEL}=hard and would share card "
                    f"{card.card} with {others}; {_NEW_PLAN}"
                )


def _check_keepers(workloads: Iterable[WorkloadId], snapshot: Snapshot) -> None:
    for workload in workloads:
        keeper = gitops_manager(snapshot.owners[workload])
        if keeper is not None:
            raise Refused(
                f"cannot change {workload}: {keeper} keeps it as its repository has it and would take the change back; "
                "put the patch there: `gputide apply --emit`"
            )


def _closed(window: ChangeWindow, now: datetime) -> str:
    here = now.astimezone(window.time_zone)
    if here.date() in window.holidays:
        return f"cannot change the cluster: {here.date()} is among guard.change_holidays"
    days = ",".join(WEEKDAYS[day] for day in sorted(window.days))
    return (
        f"cannot change the cluster: it is {WEEKDAYS[here.weekday()]} {here:%H:%M} in {window.time_zone.key}, and "
        f"changes begin within guard.change_days={days}, guard.change_hours={window.begin:%H:%M}-{window.end:%H:%M}"
    )


def _check_rollouts(workloads: Iterable[WorkloadId], snapshot: Snapshot) -> None:
    for workload in workloads:
        owner = snapshot.owners[workload]
        if not is_rolled_out(owner):
            raise Refused(f"cannot change {workload}: a rollout of its own is in progress")
        trouble = trouble_of(owner)
        if trouble is not None:
            raise Refused(f"cannot change {workload}: {trouble}")
        if owner.get("spec", {}).get("paused") is True:
            raise Refused(f"cannot change {workload}: it is paused (spec.paused=true); resume it first")
        partition = field_of(owner, "spec.updateStrategy.rollingUpdate.partition")
        if partition not in (None, "0"):
            raise Refused(
                f"cannot change {workload}: a rollout of its own stands at "
                f"spec.updateStrategy.rollingUpdate.partition={partition}; end it first"
            )
        unready = [seat.pod for seat in snapshot.pods.get(workload, ()) if not seat.is_ready and seat.node]
        if unready:
            raise Refused(f"cannot change {workload}: {len(unready)} of its pods are not ready, such as {unready[0]}")


def _check_cards(plan: Plan, snapshot: Snapshot) -> None:
    counted = Counter(card.node for card in snapshot.cards.values() if card.is_counted)
    used: Counter[str] = Counter()
    gone = []
    for card in plan.placement:
        if card.card in snapshot.cards:
            continue
        # Where nodes only count their cards, there must be as many as the plan uses.
        used[card.node or ""] += 1
        if used[card.node or ""] > counted[card.node or ""]:
            gone.append(card.card)
    moved = [
        card.card
        for card in plan.placement
        if card.node is not None and card.card in snapshot.cards and snapshot.cards[card.card].node != card.node
    ]
    if gone or moved:
        raise Refused(
            f"cannot apply plan {plan.plan_id}: the cards changed since it was made: {_named(gone)} gone, "
            f"{_named(moved)} on another node; {_NEW_PLAN}"
        )


def _check_pods(plan: Plan, workloads: Sequence[WorkloadId], snapshot: Snapshot) -> None:
    """Every pod of a workload to be changed must be one that the plan knows, and so must those on its cards."""
    placed = {part.pod_id for card in plan.placement for part in card.slices}
    known = placed | {pod for entry in plan.recommendations for pod in entry.pods}
    chosen = set(workloads)
    strangers = [seat.pod_id for name in workloads for seat in snapshot.pods.get(name, ()) if seat.pod_id not in known]
    if strangers:
        raise Refused(
            f"cannot apply plan {plan.plan_id}: its inputs changed: pods that it does not know: {_named(strangers)}; "
            f"{_NEW_PLAN}"
        )
    cards = {card.card for card in plan.placement if any(part.workload in chosen for part in card.slices)}
    intruders = [
        f"{seat.pod_id} on {part.card}"
        for seat in snapshot.seats.values()
        if seat.pod_id not in known
        for part in seat.slices
        if part.card in cards
    ]
    if intruders:
        raise Refused(
            f"cannot apply plan {plan.plan_id}: its inputs changed: {_named(intruders)} came since; {_NEW_PLAN}"
        )


def _check_fingerprint(
    plan: Plan, workloads: Sequence[WorkloadId], snapshot: Snapshot, fingerprint: Fingerprint
) -> None:
    now = fingerprint_of(snapshot, workloads)
    if now.cards != fingerprint.cards:
        raise Refused(f"cannot apply plan {plan.plan_id}: cards came or went since it was made; {_NEW_PLAN}")
    changed = []
    for workload, found in now.workloads.items():
        then = fingerprint.workloads.get(workload)
        if then is None:
            changed.append(f"{workload} is new")
        elif found.template != then.template:
            changed.append(f"the template of {workload}")
        elif not is_of_plan(snapshot.owners[workload], plan.plan_id):
            if found.scale != then.scale:
                changed.append(f"the replicas of {workload}")
            elif found.grants != then.grants:
                changed.append(f"the grants of {workload}")
    if changed:
        what = _named(changed)
        raise Refused(f"cannot apply plan {plan.plan_id}: changed since it was made: {what}; {_NEW_PLAN}")


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_MAX]) or "none"
    return shown if len(names) <= _NAMED_MAX else f"{shown} and {len(names) - _NAMED_MAX} more"
