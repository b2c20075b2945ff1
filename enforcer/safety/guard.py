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
from enforcer.kinds.register import is_rolled_out, trouble_of
from enforcer.manifest import field_of
from enforcer.record.fingerprint import Fingerprint, fingerprint_of, is_of_plan
from enforcer.record.journal import RunRecord, StageRecord
from enforcer.record.plan_store import Approval, check_whole_id
from enforcer.safety.availability import availability_breaches, availability_refusal
from enforcer.safety.change_window import ChangeWindow
from enforcer.safety.freeze import frozen_by
from enforcer.safety.gitops import gitops_manager
from enforcer.safety.node_switches import cards_emptied, check_nodes
from enforcer.safety.plan_origin import check_made
from enforcer.safety.stage_checks import check_admission, check_quotas
from enforcer.safety.tide_consent import check_age, check_history, check_staged, claimed_by_night, given_in_time
from enforcer.snapshot import Snapshot, cards_left_empty
from fleet.decisions import Plan, RecommendationKind
from fleet.documents import seal_plan
from fleet.errors import Refused
from fleet.inventory import ISOLATION_LABEL, LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL, WorkloadId
from fleet.sentences import Sentence, listed, sentence
from fleet.settings.guard import WEEKDAYS
from fleet.units import format_time

FREEZE_NAMESPACE, FREEZE_NAME = "gputide", "gputide-freeze"
"""The ConfigMap that stops every change. No setting names another: who freezes and who acts must mean the same."""

COVERAGE_RATIO_MIN = 0.8
"""Coverage of the history below which a plan is not applied: under it a workload's state is `unknown`."""

HISTORY_AGE_MAX = timedelta(days=2)
"""Age of a plan's newest sample beyond which it is not applied."""

_NAMED_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    """What the guard goes by.

    Attributes:
        freeze_file: file whose presence stops every change from this machine; None for none.
        coverage_ratio_min: least coverage of the plan's history.
        history_age_max: how old its newest sample may be.
        cards_max: most cards that one apply may free; None for no limit.
        saving_max: most that one apply may save in a week, in the plan's currency; None for no limit.
        two_approvals_cards_min: freed cards of one apply from which two people must have approved; None for never.
        gaps_allowed: whether services of one replica and latency-critical ones may lose a pod for a while, and an undo
            may leave fewer pods ready than owners allow.
        cluster: name of the cluster that is changed; None where that is not known.
        relief_lock: file that a running relief holds.
    """

    freeze_file: Path | None = None
    coverage_ratio_min: float = COVERAGE_RATIO_MIN
    history_age_max: timedelta = HISTORY_AGE_MAX
    cards_max: int | None = None
    saving_max: Decimal | None = None
    two_approvals_cards_min: int | None = None
    window: ChangeWindow = field(default_factory=ChangeWindow)
    gaps_allowed: bool = False
    cluster: str | None = None
    relief_lock: Path | None = None


class Frozen(Refused):
    """Somebody has frozen this machine or the cluster."""


class Guard:
    """Checks plans."""

    def __init__(self, policy: GuardPolicy) -> None:
        self._policy = policy

    def check_frozen(self, reader: ClusterReader) -> None:
        """Refuse every change while somebody has frozen this machine or the cluster."""
        file = self._policy.freeze_file
        frozen = None if file is None else frozen_by(file)
        if frozen is not None:
            raise Frozen(sentence("guard.frozen_file", who=frozen, file=str(file)))
        if reader.get("ConfigMap", FREEZE_NAMESPACE, FREEZE_NAME) is not None:
            raise Frozen(sentence("guard.frozen_config_map", name=f"{FREEZE_NAMESPACE}/{FREEZE_NAME}"))

    def check_plan(
        self,
        plan: Plan,
        stages: Sequence[int],
        approvals: Iterable[Approval],
        now: datetime,
        *,
        run: Sequence[int] | None = None,
    ) -> None:
        """Refuse a plan for what it is, whatever the cluster looks like.

        Args:
            approvals: who approved which.
            run: all stages of the run that they are of, whose freed cards count together; None where they are all.

        Raises:
            Refused: edited, of another cluster, expired, made from too little or too old a history, counting on relief
                that does not run, too large, not at this hour, unknown stages, or stages that too few people approved.
        """
        _check_seal(plan, "guard.edited")
        check_cluster_name(plan, self._policy.cluster)
        self._check_made(plan, now)
        if not self._policy.window.is_open(now):
            raise Refused(_closed(self._policy.window, now))
        known = {entry.stage: entry for entry in plan.stages}
        missing = sorted(set(stages) - known.keys())
        if missing or not stages:
            stages_known = str(sorted(known))
            raise Refused(sentence("guard.stages_unknown", stages=str(missing), plan=plan.plan_id, known=stages_known))
        together = stages if run is None else run
        freed = sum(known[stage].cards_freed for stage in set(together))
        self.check_approvals(plan, stages, approvals, max(freed, cards_emptied(plan, None)))
        self._check_size(plan, together, freed)

    def check_sent(self, plan: Plan, stages: Sequence[int], now: datetime, reader: ClusterReader) -> None:
        """Refuse to send stages to where people merge them and no guard asks again; when to merge is theirs to say.

        Raises:
            Refused: frozen, expired, made from too little or too old a history, counting on relief that does not run,
                or too large.
        """
        self.check_frozen(reader)
        self._check_made(plan, now)
        self._check_size(plan, stages, sum(entry.cards_freed for entry in plan.stages if entry.stage in stages))

    def _check_made(self, plan: Plan, now: datetime) -> None:
        policy = self._policy
        check_made(
            plan, now, coverage_ratio_min=policy.coverage_ratio_min, history_age_max=policy.history_age_max,
            relief_lock=policy.relief_lock,
        )  # fmt: skip

    def check_tide(
        self, plan: Plan, approvals: Sequence[Approval], now: datetime, *, freed: int, age_max: timedelta
    ) -> None:
        """Refuse to begin a night by a plan, for what the plan is.

        Its own hours and holidays stand for those of the change window. What it frees it gives back by morning, so no
        saving limit binds it; the limit on cards does.

        Args:
            freed: cards that pods leave in the night at most, by the cluster: the plan may claim fewer.
            age_max: how long after its making nights begin by it: the tide of a plan is played again and again, so
                what was approved before the plan expired expires by this.

        Raises:
            Refused: made from too little or too old a history, too old itself, of the future, too large, or as
                `check_tide_approved`.
        """
        self.check_tide_approved(plan, approvals, freed=freed)
        check_history(plan, self._policy.coverage_ratio_min, self._policy.history_age_max)
        check_age(plan, now, age_max)
        cards, most = max(freed, claimed_by_night(plan)), self._policy.cards_max
        if most is not None and cards > most:
            facts = {"now": format_time(now), "cards": str(cards), "limit": str(most)}
            raise Refused(sentence("guard.night_too_large", plan=plan.plan_id, **facts))

    def check_tide_approved(self, plan: Plan, approvals: Iterable[Approval], *, freed: int = 0) -> None:
        """Refuse a schedule to which nobody said yes as it stands.

        Args:
            freed: cards that pods leave in a night at most, where the plan may claim fewer.

        Raises:
            Refused: edited, of another cluster, not as its stages show it, or these were approved by too few before
                the plan expired.
        """
        _check_seal(plan, "guard.tide_edited")
        check_cluster_name(plan, self._policy.cluster)
        check_staged(plan)
        cards = max(freed, claimed_by_night(plan))
        stages = sorted(plan.tide_stages)
        unapproved, alone = self._too_few(stages, given_in_time(plan, approvals), cards)
        if unapproved:
            raise Refused(
                sentence("guard.tide_unapproved", plan=plan.plan_id, stages=str(unapproved), stage=unapproved[0])
            )
        if alone:
            facts = {"cards": str(cards), "limit": str(self._policy.two_approvals_cards_min)}
            raise Refused(sentence("guard.tide_approved_by_one", plan=plan.plan_id, stages=str(alone), **facts))

    def check_approvals(self, plan: Plan, stages: Sequence[int], approvals: Iterable[Approval], freed: int) -> None:
        """Refuse stages that too few people approved.

        Raises:
            Refused: nobody approved one of them, or one person where `two_approvals_cards_min` wants two.
        """
        unapproved, alone = self._too_few(stages, approvals, freed)
        if unapproved:
            raise Refused(sentence("guard.unapproved", stages=str(unapproved), plan=plan.plan_id))
        if alone:
            facts = {"cards": str(freed), "limit": str(self._policy.two_approvals_cards_min)}
            raise Refused(sentence("guard.approved_by_one", stages=str(alone), plan=plan.plan_id, **facts))

    def approvals_needed(self, cards: int) -> int:
        """How many people must approve what frees or empties so many cards."""
        least = self._policy.two_approvals_cards_min
        return 1 if least is None or cards < least else 2

    def _too_few(self, stages: Sequence[int], approvals: Iterable[Approval], freed: int) -> tuple[list[int], list[int]]:
        """Stages that nobody approved, and those that one person did where it takes two."""
        people: dict[int, set[str]] = {}
        for entry in approvals:
            for stage in entry.stages:
                # One person under two spellings is one person.
                people.setdefault(stage, set()).add(entry.by.strip().casefold())
        unapproved, needed = sorted(set(stages) - people.keys()), self.approvals_needed(freed)
        return unapproved, [] if unapproved else sorted(one for one in set(stages) if len(people[one]) < needed)

    def check_freed(self, plan: Plan, stages: Sequence[int], approvals: Iterable[Approval], snapshot: Snapshot) -> None:
        """Refuse stages that free more cards than the policy allows, by the cluster and not by what the plan claims.

        A node that is given another mode is emptied, so that all its cards count for how many people must approve.

        Raises:
            Refused: the cards that they leave empty are too many at once, or for how many people approved.
        """
        freed = len(cards_left_empty(plan, set(workloads_of(plan, stages)), snapshot))
        self.check_approvals(plan, stages, approvals, max(freed, cards_emptied(plan, snapshot)))
        self._check_cards_max(plan, freed)

    def _check_cards_max(self, plan: Plan, freed: int) -> None:
        most = self._policy.cards_max
        if most is not None and freed > most:
            raise Refused(sentence("guard.too_many_cards", plan=plan.plan_id, cards=str(freed), limit=str(most)))

    def _check_size(self, plan: Plan, stages: Sequence[int], freed: int) -> None:
        policy = self._policy
        self._check_cards_max(plan, freed)
        if policy.saving_max is None:
            return
        named = {name for entry in plan.stages if entry.stage in stages for name in entry.recommendations}
        of_stages = (entry.saving_per_week.amortised for entry in plan.recommendations if entry.id in named)
        total = sum((saving for saving in of_stages if saving is not None), Decimal(0))
        if total > policy.saving_max:
            money, limit = f"{total} {plan.currency}", str(policy.saving_max)
            raise Refused(sentence("guard.too_much_money", plan=plan.plan_id, money=money, limit=limit))

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
            Refused: inputs or the mode of a node changed, a workload opted out, a latency-critical one is to be
                stopped, or another rollout is in progress.
        """
        busy = [run.plan_id for run in runs if run.is_open and run.plan_id != plan.plan_id]
        if busy:
            raise Refused(sentence("guard.other_plan_runs", plan=plan.plan_id, other=busy[0]))
        workloads = workloads_of(plan, stages)
        check_nodes(plan, workloads, runs, snapshot)
        self.check_wishes(plan, stages, snapshot)
        _check_neighbours(plan, workloads, snapshot)
        _check_keepers(workloads, snapshot)
        _check_cards(plan, snapshot)
        # A changed template rolls its pods under new names: what was changed says more than who is new.
        if fingerprint is not None:
            _check_fingerprint(plan, workloads, snapshot, fingerprint)
        _check_rollouts(workloads, snapshot)
        _check_pods(plan, workloads, snapshot)

    def check_wishes(self, plan: Plan, stages: Sequence[int], snapshot: Snapshot) -> None:
        """Refuse stages that touch who opted out, or stop who is latency-critical (it may get a slice).

        Raises:
            Refused: naming the workload and what it asks for, or the workload that is gone.
        """
        reclaimed = {
            workload
            for entry in plan.recommendations
            if entry.kind is RecommendationKind.RECLAIM
            for workload in entry.workloads
        }
        for workload in workloads_of(plan, stages):
            if workload not in snapshot.owners:
                raise Refused(sentence("guard.workload_gone", plan=plan.plan_id, workload=workload))
            labels = (OPT_OUT_LABEL, LATENCY_CRITICAL_LABEL) if workload in reclaimed else (OPT_OUT_LABEL,)
            for label in labels:
                if snapshot.is_flagged(label, workload):
                    facts = {"plan": plan.plan_id, "workload": workload, "label": label}
                    if policy := snapshot.wishes.asking(label, snapshot.owners[workload]):
                        raise Refused(sentence("guard.spared_by_policy", policy=policy, **facts))
                    raise Refused(sentence("guard.spared", **facts))

    def check_stage(self, record: StageRecord, snapshot: Snapshot, reader: ClusterReader, wave_max: int) -> None:
        """Refuse a stage for what it would ask of the cluster, before anything of it is written down.

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
    ) -> dict[WorkloadId, Sentence]:
        """Workloads of which a stage would leave fewer pods ready than they allow, where nobody said yes, and why."""
        return availability_breaches(record, snapshot, reader, wave_max, gaps_allowed=self._policy.gaps_allowed)

    def check_undo(self, plan_id: str, lowered: Sequence[Sentence]) -> None:
        """Refuse an undo that would leave fewer pods ready than their owners allow, unless `gaps_allowed` is set."""
        if lowered and not self._policy.gaps_allowed:
            why = listed(lowered, _NAMED_MAX, clauses=True)
            raise Refused(sentence("guard.undo_lowers", plan=plan_id, why=why))


def check_cluster_name(plan: Plan, cluster: str | None) -> None:
    """Refuse a plan that was made for another cluster: names of objects are alike in many clusters.

    Args:
        cluster: name of the cluster that would be changed; None where that is not known.

    Raises:
        Refused: it was, with both names.
    """
    if cluster is not None and plan.cluster != cluster:
        theirs, here = repr(plan.cluster), repr(cluster)
        raise Refused(sentence("guard.other_cluster", plan=plan.plan_id, cluster=theirs, here=here))


def _check_seal(plan: Plan, edited: str) -> None:
    check_whole_id(plan.plan_id)
    sealed = seal_plan(plan)
    if sealed.plan_id != plan.plan_id:
        raise Refused(sentence(edited, plan=plan.plan_id, content=sealed.plan_id))


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


def _check_neighbours(plan: Plan, workloads: Sequence[WorkloadId], snapshot: Snapshot) -> None:
    """Who wants a card to itself gets no neighbour, whichever of the two is to be moved."""
    chosen = set(workloads)
    for card in plan.placement:
        owners = {part.workload for part in card.slices}
        if len(owners) < 2 or chosen.isdisjoint(owners):
            continue
        walled = {name for name in owners if "hard" in snapshot.asked(ISOLATION_LABEL, name)}
        if walled == owners and len({part.namespace for part in card.slices}) == 1:
            # Neighbours of one namespace that all want it; where nothing would keep them apart the backend refuses.
            continue
        for workload in sorted(owners):
            if workload in walled:
                others = listed(sorted(owners - {workload}), _NAMED_MAX)
                raise Refused(
                    sentence(
                        "guard.isolated", plan=plan.plan_id, workload=workload, label=ISOLATION_LABEL, card=card.card,
                        others=others,
                    )
                )  # fmt: skip


def _check_keepers(workloads: Iterable[WorkloadId], snapshot: Snapshot) -> None:
    for workload in workloads:
        keeper = gitops_manager(snapshot.owners[workload])
        if keeper is not None:
            raise Refused(sentence("guard.kept_by_gitops", workload=workload, keeper=keeper))


def _closed(window: ChangeWindow, now: datetime) -> Sentence:
    here = now.astimezone(window.time_zone)
    if here.date() in window.holidays:
        return sentence("guard.holiday", day=str(here.date()))
    days = ",".join(WEEKDAYS[day] for day in sorted(window.days))
    return sentence(
        "guard.window_closed", now=f"{WEEKDAYS[here.weekday()]} {here:%H:%M}", zone=window.time_zone.key, days=days,
        hours=f"{window.begin:%H:%M}-{window.end:%H:%M}",
    )  # fmt: skip


def _check_rollouts(workloads: Iterable[WorkloadId], snapshot: Snapshot) -> None:
    for workload in workloads:
        owner = snapshot.owners[workload]
        if not is_rolled_out(owner):
            raise Refused(sentence("guard.rolling", workload=workload))
        trouble = trouble_of(owner)
        if trouble is not None:
            raise Refused(sentence("guard.in_trouble", workload=workload, trouble=trouble))
        if owner.get("spec", {}).get("paused") is True:
            raise Refused(sentence("guard.paused", workload=workload))
        partition = field_of(owner, "spec.updateStrategy.rollingUpdate.partition")
        if partition not in (None, "0"):
            raise Refused(sentence("guard.rolling_stopped", workload=workload, partition=partition))
        unready = [seat.pod for seat in snapshot.pods.get(workload, ()) if not seat.is_ready and seat.node]
        if unready:
            raise Refused(sentence("guard.unready", workload=workload, pods=str(len(unready)), such=unready[0]))


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
        lost, elsewhere = listed(gone, _NAMED_MAX), listed(moved, _NAMED_MAX)
        raise Refused(sentence("guard.cards_changed", plan=plan.plan_id, gone=lost, moved=elsewhere))


def _check_pods(plan: Plan, workloads: Sequence[WorkloadId], snapshot: Snapshot) -> None:
    """Every pod of a workload to be changed must be one that the plan knows, and so must those on its cards."""
    placed = {part.pod_id for card in plan.placement for part in card.slices}
    known = placed | {pod for entry in plan.recommendations for pod in entry.pods}
    chosen = set(workloads)
    strangers = [seat.pod_id for name in workloads for seat in snapshot.pods.get(name, ()) if seat.pod_id not in known]
    if strangers:
        raise Refused(sentence("guard.pods_unknown", plan=plan.plan_id, pods=listed(strangers, _NAMED_MAX)))
    cards = {card.card for card in plan.placement if any(part.workload in chosen for part in card.slices)}
    intruders = [
        sentence("guard.pod_on_card", pod=seat.pod_id, card=part.card)
        for seat in snapshot.seats.values()
        if seat.pod_id not in known
        for part in seat.slices
        if part.card in cards
    ]
    if intruders:
        raise Refused(sentence("guard.pods_came", plan=plan.plan_id, pods=listed(intruders, _NAMED_MAX)))


def _check_fingerprint(
    plan: Plan, workloads: Sequence[WorkloadId], snapshot: Snapshot, fingerprint: Fingerprint
) -> None:
    now = fingerprint_of(snapshot, workloads)
    if now.cards != fingerprint.cards:
        raise Refused(sentence("guard.cards_came_or_went", plan=plan.plan_id))
    changed = []
    for workload, found in now.workloads.items():
        then = fingerprint.workloads.get(workload)
        if then is None:
            changed.append(sentence("guard.is_new", workload=workload))
        elif found.template != then.template:
            changed.append(sentence("guard.template", workload=workload))
        elif not is_of_plan(snapshot.owners[workload], plan.plan_id):
            if found.scale != then.scale:
                changed.append(sentence("guard.replicas", workload=workload))
            elif found.grants != then.grants:
                changed.append(sentence("guard.grants", workload=workload))
    if changed:
        raise Refused(sentence("guard.inputs_changed", plan=plan.plan_id, what=listed(changed, _NAMED_MAX)))
