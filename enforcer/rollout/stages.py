"""Applies a plan, stage by stage: canary first, watched, then the rest, watched, then kept or taken back.

The command line and the plan page call it. What a stage means to do stands in the ledger before the first write, and
every step looks before it acts, so after a crash at any moment `resume` ends with each stage either fully applied or
fully restored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from enforcer.backend import Backend, Move
from enforcer.cluster import renew
from enforcer.kinds.kind import condition
from enforcer.plan_names import as_planned, with_real_names, with_top_owners
from enforcer.record.fingerprint import Fingerprint
from enforcer.record.journal import StageRecord, StageState
from enforcer.record.plan_status import in_force
from enforcer.record.plan_store import Approval
from enforcer.rollout.abort import open_run
from enforcer.rollout.holding import Phase, canary_watch_seconds, hold_seconds
from enforcer.rollout.intents import canaries_of, intended_stage
from enforcer.rollout.load import Load
from enforcer.rollout.pod_mover import PodMover
from enforcer.rollout.progress import ProgressPhase
from enforcer.rollout.restore import Parts, StageResult, restore_stage
from enforcer.rollout.run_context import RunContext, UnderWay
from enforcer.rollout.watch import complaints
from enforcer.safety.abort_wish import Aborted
from enforcer.safety.guard import Frozen
from enforcer.safety.harm_budget import Brake, Judgement
from fleet.decisions import Plan
from fleet.errors import Corrupt, Misconfigured, Refused, Unavailable
from fleet.sentences import Sentence, first_of, recorded, sentence
from fleet.units import parse_time
from wire.telemetry import span

Approved = Callable[[], Sequence[Approval]]
"""Says who has approved which stages by now."""


class Rollout:
    """Applies plans."""

    def __init__(self, tools: RunContext, backend: Backend) -> None:
        tools.dialect = backend.dialect
        self.tools = tools
        self._backend = backend

    def apply(
        self,
        plan: Plan,
        stages: Sequence[int] | None = None,
        *,
        by: str,
        approved: Approved = tuple,
        fingerprint: Fingerprint | None = None,
    ) -> tuple[StageResult, ...]:
        """Apply stages of a plan; one that is restored ends the run.

        A run of the same plan that a crash left open is gone on with.

        Args:
            stages: numbers; all where None. Those of the tide are left out: `gputide run tide` plays them.
            approved: is asked before each stage, so that an approval that is withdrawn meanwhile counts no more.
            fingerprint: what the plan was made for, None where it was not kept.

        Returns:
            One result per stage that was begun; a stage that was promoted before counts as promoted.

        Raises:
            Refused: a guard said no, also to a later stage of the run, or somebody asked to end the run between two
                stages (`Aborted`); what had been promoted before stays.
            Corrupt: an object that a stage would change can't be read; what had been promoted before stays.
            Misconfigured: a right is missing; what had been promoted before stays.
            Unavailable: the cluster can't be reached; call again to go on.
        """
        tools = self.tools
        chosen = plan.rollout_stages if stages is None else tuple(sorted(set(stages) - plan.tide_stages))
        if not chosen and (plan.stages if stages is None else stages):
            return ()
        tools.guard.check_frozen(tools.reader)
        run = open_run(tools.journal, plan.plan_id)
        if run is None:
            tools.guard.check_plan(plan, chosen, approved(), tools.reader.now())
        with tools.acting():
            if run is None and open_run(tools.journal, plan.plan_id) is None:
                granted = self._checked(plan, chosen, approved, fingerprint)
                self._begin(plan, chosen, by, granted)
            return self._run(plan, approved)

    def resume(self, plan: Plan, *, approved: Approved = tuple) -> tuple[StageResult, ...]:
        """Go on with the run of a plan that a crash left open; nothing is done where there is none.

        Raises:
            Refused: the cluster is frozen, or a guard says no to a stage that was not begun, which ends the run.
            Unavailable: the cluster can't be reached; call again to go on.
        """
        tools = self.tools
        if open_run(tools.journal, plan.plan_id) is None:
            return ()
        tools.guard.check_frozen(tools.reader)
        with tools.acting():
            return self._run(plan, approved)

    def _checked(
        self, plan: Plan, stages: Sequence[int], approved: Approved, fingerprint: Fingerprint | None
    ) -> list[str]:
        """Cards that pods hold before a run whose stages the guard allows; nothing else of the cluster is kept."""
        tools = self.tools
        snapshot, _ = as_planned(tools.snapshot(), tools.journal.runs(plan.plan_id))
        known = with_top_owners(plan, snapshot)
        tools.guard.check_cluster(known, stages, snapshot, fingerprint, tools.journal.runs())
        tools.guard.check_freed(known, stages, approved(), snapshot)
        return sorted({card for seat in snapshot.seats.values() for card in seat.cards})

    def _begin(self, plan: Plan, stages: Sequence[int], by: str, granted: Sequence[str]) -> None:
        self.tools.step("begin")
        self.tools.journal.write(
            plan.plan_id,
            self.tools.now(),
            "begin",
            stages=list(stages),
            by=by,
            cards_granted=list(granted),
            cluster=plan.cluster,
        )

    def _run(self, plan: Plan, approved: Approved) -> tuple[StageResult, ...]:
        tools = self.tools
        try:
            results = self._stages(plan, approved)
        except Aborted:
            # Between two stages: nothing is open, and what was promoted stays.
            self._end(plan)
            raise
        finally:
            tools.under_way = None
        self._end(plan)
        return results

    def _end(self, plan: Plan) -> None:
        self.tools.step("end")
        self.tools.journal.write(plan.plan_id, self.tools.now(), "end")

    def _stages(self, plan: Plan, approved: Approved) -> tuple[StageResult, ...]:
        tools = self.tools
        run = open_run(tools.journal, plan.plan_id)
        if run is None:
            raise Refused(sentence("guard.no_run", plan=plan.plan_id))
        results: list[StageResult] = []
        promoted = in_force(tools.journal.runs(plan.plan_id))
        cards_freed = sum(entry.cards_freed for entry in plan.stages if entry.stage in run.stages)
        for stage in run.stages:
            record = run.records.get(stage)
            tools.under_way = UnderWay(plan=plan, stage=stage, cards_freed=cards_freed)
            if stage in promoted:
                results.append(StageResult(stage=stage, state=StageState.PROMOTED))
                continue
            with span("gputide.apply.stage", stage=stage):
                if record is None:
                    tools.check_abort()
                    results.append(self._stage(plan, self._intend(plan, stage, run.stages, approved)))
                else:
                    results.append(self._begun(plan, record))
            if results[-1].state is not StageState.PROMOTED:
                break
        return tuple(results)

    def _begun(self, plan: Plan, record: StageRecord) -> StageResult:
        """Go on with a stage, if its owners and budgets still allow it."""
        tools, refusal = self.tools, None
        if record.state is StageState.OPEN:
            try:
                wave_max = tools.policy.moving.parallel_pods_max
                tools.guard.check_availability(record, tools.snapshot(), tools.reader, wave_max)
            except Refused as exc:
                refusal = exc.said
        # Outside of the error, which holds the snapshot.
        return self._stage(plan, record) if refusal is None else restore_stage(tools, record, refusal)

    def _intend(self, plan: Plan, stage: int, run: Sequence[int], approved: Approved) -> StageRecord:
        """Write down what a stage is going to do; hours may have passed since its run was begun."""
        tools, guard = self.tools, self.tools.guard
        renew(tools.reader)
        snapshot, real = as_planned(tools.snapshot(), tools.journal.runs(plan.plan_id))
        known = with_top_owners(plan, snapshot)
        try:
            tools.patiently(lambda: guard.check_frozen(tools.reader))
            tools.patiently(lambda: guard.check_plan(plan, (stage,), approved(), tools.reader.now(), run=run))
            guard.check_wishes(known, (stage,), snapshot)
            rendered = with_real_names(self._backend.render(known, stage, snapshot), real)
            record = intended_stage(
                plan.plan_id,
                rendered,
                snapshot,
                real,
                canaries=canaries_of(known, tools.policy.canary_workloads),
                wave_max=tools.policy.moving.parallel_pods_max,
                watch_seconds=tools.policy.watch_seconds,
            )
            tools.patiently(
                lambda: guard.check_stage(record, snapshot, tools.reader, tools.policy.moving.parallel_pods_max)
            )
        except (Refused, Corrupt, Misconfigured):
            # Nothing of this stage was begun; the run is over, what earlier stages did stays.
            tools.journal.write(plan.plan_id, tools.now(), "end")
            raise
        record.objects = tools.mover().objects.with_owners(record.objects)
        for manifest in rendered.objects:
            # Nobody names them yet, and their names say their content: one that a crash leaves behind does nothing.
            tools.before_write(f"make {manifest['kind']} {manifest['metadata']['name']}")
            tools.patiently(lambda: tools.writer.make(manifest))  # noqa: B023 - called at once
        tools.step(f"intend {stage}")
        tools.journal.begin_stage(record, tools.now())
        return record

    def _stage(self, plan: Plan, record: StageRecord) -> StageResult:
        tools = self.tools
        if record.state is StageState.RESTORED:
            return StageResult.of(record)
        if record.state is StageState.RESTORING:
            return restore_stage(tools, record, "")
        for name, phase, workloads in _batches(record):
            tools.patiently(lambda: tools.guard.check_frozen(tools.reader))
            found = self._judged(record)
            if found.brake is Brake.FREEZE:
                raise Refused(sentence("guard.harm_freezes", plan=plan.plan_id, why=found.reason))
            try:
                tools.check_abort()
                reasons: Sequence[Sentence | str] = [found.reason] if found.brake is Brake.RESTORE else []
                reasons = reasons or self._batch(record, name, phase, workloads, is_slow=found.brake is Brake.SLOW)
            except Frozen:
                raise
            except Refused as exc:
                reasons = [exc.said]
            if reasons:
                return restore_stage(tools, record, first_of(reasons))
        try:
            tools.check_abort(is_last=True)
        except Aborted as exc:
            return restore_stage(tools, record, exc.said)
        tools.step(f"promote {record.stage}")
        tools.journal.write(plan.plan_id, tools.now(), "promoted", stage=record.stage)
        tools.tell(plan.plan_id, record.stage, ProgressPhase.PROMOTED, sentence("progress.kept", stage=record.stage))
        for workload in dict.fromkeys(move.workload for move in record.moves):
            namespace, kind, object_name = workload.split("/")
            event = (kind, namespace, object_name, "GputideApplied", f"plan {plan.plan_id}")
            tools.patiently(lambda: tools.writer.record_event(*event))  # noqa: B023 - called at once
        return StageResult(stage=record.stage, state=StageState.PROMOTED)

    def _judged(self, record: StageRecord) -> Judgement:
        """What the harm budgets of everybody whom this plan has moved say now."""
        tools = self.tools
        if tools.harm is None:
            return Judgement(brake=Brake.NONE)
        runs = tools.journal.runs(record.plan_id)
        moved = {move.workload for run in runs for own in run.records.values() for move in own.moves}
        began_at = min((run.began_at for run in runs), default=tools.now())
        found = tools.harm.judge(moved, began_at, tools.now())
        if found.brake is not Brake.NONE:
            tools.journal.write(
                record.plan_id, tools.now(), "harm", stage=record.stage, brake=found.brake.value,
                reason=recorded(found.reason),
            )  # fmt: skip
        return found

    def _batch(
        self, record: StageRecord, name: str, phase: Phase, workloads: frozenset[str], *, is_slow: bool
    ) -> Sequence[Sentence | str]:
        """Change and watch some workloads; returns what speaks against keeping them."""
        tools, mover = self.tools, self.tools.mover(is_slow=is_slow)
        moves = [move for move in record.moves if move.workload in workloads]
        parts = Parts.of(record.objects, record.moves)
        total = len(record.moves)
        said = sentence("progress.changing", batch=name, workloads=len(workloads))
        tools.tell(record.plan_id, record.stage, ProgressPhase.CHANGING, said, 0, total)
        # Objects of no workload (node configuration) are what the others stand on: they go first.
        failures: Sequence[Sentence | str] = tools.node_steps().empty(record.node_steps, record.plan_id)
        if failures:
            return failures
        for intent in (*parts.shared, *(pod for owner, pod in parts.pods if owner in workloads)):
            tools.keep_lease()
            failures = () if intent.kind == "Node" else self._cleared(record)
            if failures:
                return failures
            mover.objects.patch(intent, phase)
        failures = self._cleared(record) or tools.node_steps().settle(record.node_steps, record.plan_id)
        if failures:
            return failures
        owners = {owner: intent for owner, intent in parts.owners.items() if owner in workloads}

        def on_wave(wave: Sequence[Move], done: int) -> None:
            tools.keep_lease()
            said = sentence("progress.moving", batch=name, done=done, pods=len(moves))
            tools.tell(record.plan_id, record.stage, ProgressPhase.MOVING, said, done, total)
            pods = [move.live_id for move in wave]
            tools.journal.write(record.plan_id, tools.now(), "evict", stage=record.stage, pods=pods, phase=phase.value)

        failures = mover.move(Load(moves=tuple(moves), intents=owners, phase=phase, is_strict=True), on_wave)
        if not failures:
            held = hold_seconds(tools.policy.watch_seconds) if phase is Phase.CANARY else None
            pods = mover.in_place(moves)
            failures = self._watch(
                record, _Watched(name=name, pods=pods, done=len(moves), held_seconds=held), mover
            )  # fmt: skip
        if not failures and phase is Phase.REST:
            mover.look_at(owners)
            for intent in owners.values():
                tools.keep_lease()
                mover.objects.hold(intent, Phase.SETTLED)
        return failures

    def _cleared(self, record: StageRecord) -> Sequence[Sentence]:
        """Wait, before somebody is asked for the machine of a node, until nothing runs there; a freeze stops it there.

        Raises:
            Frozen: somebody froze the cluster meanwhile.
        """
        tools = self.tools
        failures = tools.node_steps().clear(record.node_steps)
        if any(step.departure is not None for step in record.node_steps):
            tools.patiently(lambda: tools.guard.check_frozen(tools.reader))
        return failures

    def _watch(self, record: StageRecord, watched: _Watched, mover: PodMover) -> tuple[Sentence | str, ...]:
        tools, policy, pods = self.tools, self.tools.policy, watched.pods
        seconds = policy.watch_seconds if watched.held_seconds is None else self._canary_seconds(pods)
        began = tools.now()
        said = sentence("progress.watching", batch=watched.name, pods=len(pods), seconds=seconds)
        tools.tell(record.plan_id, record.stage, ProgressPhase.WATCHING, said, watched.done, len(record.moves))
        waited, asked = 0.0, 0.0
        found: tuple[Sentence | str, ...] = self._complaints(watched, began)
        while pods and not found and waited < seconds:
            tools.keep_lease()
            pause = min(seconds - waited, mover.look_seconds)
            tools.rest(pause)
            waited += pause
            if waited >= seconds:
                renew(tools.reader)
            found = tuple(mover.outside_changes())
            if not found and (waited >= seconds or waited - asked >= max(policy.moving.poll_seconds, seconds / 5)):
                asked = waited
                found = self._complaints(watched, began)
        tools.step(f"watched {watched.name}")
        now = tools.now()
        first = [recorded(said) for said in found[:20]]
        tools.journal.write(
            record.plan_id, now, "watched", stage=record.stage, batch=watched.name, complaints=first
        )  # fmt: skip
        return found

    def _complaints(self, watched: _Watched, began: datetime) -> tuple[Sentence, ...]:
        """What speaks against keeping what is watched; a canary that can't be judged while its owner waits is not kept.

        Raises:
            Unavailable: nobody could be asked for hours, and no owner waits.
        """
        tools, pods, held = self.tools, watched.pods, watched.held_seconds
        left = None if held is None else max(0.0, held - (tools.now() - began).total_seconds())
        why: Sentence | str = ""
        try:
            found = complaints(
                tools.patiently(lambda: tools.signals.health(pods), seconds_max=left), pods, tools.policy.watch
            )
        except Unavailable as exc:
            if held is None:
                raise
            found, why = (), exc.said
        is_late = held is not None and tools.now() - began > timedelta(seconds=held)
        if found or not (why or is_late):
            return found
        late = sentence("watch.unjudged", pod=pods[0], seconds=str(held))
        return (sentence("mark.because", what=late, why=why) if why else late,)

    def _canary_seconds(self, pods: Sequence[str]) -> float:
        """For how long a canary is watched: its owner counts from when the first of its pods got ready.

        None is left where a crash let that time pass: by then the owner has gone on, and all pods are watched together.
        """
        now, cluster = self.tools.now(), self.tools.cluster
        manifests = [cluster.get("Pod", *pod_id.split("/")) for pod_id in pods]
        since = [condition(pod, "Ready").get("lastTransitionTime") for pod in manifests if pod is not None]
        age = now - min((parse_time(at) for at in since if at is not None), default=now)
        return max(0.0, canary_watch_seconds(self.tools.policy.watch_seconds) - max(0.0, age.total_seconds()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """A batch that was changed and is watched.

    Attributes:
        pods: pods that were made for it, `namespace/pod`.
        held_seconds: for how long its owners wait for the judgement; None where they do not.
    """

    name: str
    pods: tuple[str, ...]
    done: int
    held_seconds: int | None


def _batches(record: StageRecord) -> list[tuple[str, Phase, frozenset[str]]]:
    """What is changed and watched one after the other: a pod of the canary, then everything."""
    every = frozenset(str(move.workload) for move in record.moves)
    canary = frozenset(record.canary)
    found = [("rest", Phase.REST, every)]
    if canary and "canary" not in record.watched:
        found.insert(0, ("canary", Phase.CANARY, canary))
    return found
