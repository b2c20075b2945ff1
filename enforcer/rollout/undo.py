"""Takes back what was applied: everything, one plan, one stage, or one recommendation, field by field.

Three values are compared: what stood there before the plan, what the plan wrote, and what stands there now. A field
goes back if it still is as the plan left it; what somebody changed since, a person or a later plan, is kept, and said.
Pods go back to their old seats where those are free. Weeks may lie between, and restarts: all that is needed stands in
the ledger. Like the rollout it may be killed and called again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from enforcer.admission import PLAN_ANNOTATION
from enforcer.backend import Move, NodeStep
from enforcer.cluster import Owners
from enforcer.dialect import SeatSlice, StandingCard
from enforcer.manifest import field_of, values_equal
from enforcer.record.journal import (
    FieldIntent,
    ObjectIntent,
    RunRecord,
    StageRecord,
    StageState,
    UndoRecord,
    move_content,
    object_content,
)
from enforcer.record.plan_status import STANDING, standing
from enforcer.rollout.abort import AbortResult, abort, open_run
from enforcer.rollout.intent_writer import taken_back
from enforcer.rollout.intents import held_owners
from enforcer.rollout.load import backwards
from enforcer.rollout.progress import ProgressPhase
from enforcer.rollout.restore import Parts, steps_back, take_back
from enforcer.rollout.run_context import RunContext
from enforcer.safety.availability import availability_breaches, lowered_workloads
from enforcer.safety.node_switches import check_last
from enforcer.safety.priority_hold import check_limits_stay
from enforcer.safety.scaled_nodes import check_scaled_nodes
from enforcer.snapshot import Snapshot
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.sentences import Sentence, recorded, sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult:
    """What an undo did.

    Attributes:
        lowered: workloads of which fewer pods were ready meanwhile than their owners allow, and why; somebody said yes.
    """

    plan_id: str
    stages: tuple[int, ...]
    recommendation: str | None
    workloads: tuple[str, ...]
    kept: tuple[Sentence, ...]
    lowered: tuple[Sentence, ...] = ()


class Undo:
    """Takes plans back.

    Each call raises `Unavailable` where the cluster can't be reached.
    """

    def __init__(self, tools: RunContext) -> None:
        self._tools = tools

    def preview(
        self, plan_id: str, *, stages: Sequence[int] | None = None, recommendation: str | None = None
    ) -> UndoRecord:
        """What an undo would take back, a stage that is under way included; changes nothing.

        Raises:
            Refused: nothing of that is applied, or it was undone already.
        """
        runs = self._tools.journal.runs(plan_id)
        records = [
            record
            for run in runs
            for number, record in sorted(run.records.items())
            if record.state in STANDING and (stages is None or number in stages)
        ]
        taken = frozenset(item for _, item in self._tools.journal.undone_recommendations(plan_id))
        objects = folded([_without(record.objects, recommendation, taken) for record in records])
        moves = _folded_moves(records, recommendation, taken)
        if not objects:
            what = recommendation or ("" if stages is None else f"stages {list(stages)}")
            was_undone = recommendation in taken or any(
                record.state is StageState.UNDONE and (stages is None or number in stages)
                for run in runs
                for number, record in run.records.items()
            )
            if what:
                code = "guard.undone_already_part" if was_undone else "guard.not_applied_part"
                raise Refused(sentence(code, what=what, plan=plan_id))
            raise Refused(sentence("guard.undone_already" if was_undone else "guard.not_applied", plan=plan_id))
        return UndoRecord(
            plan_id=plan_id,
            stages=tuple(sorted({record.stage for record in records})),
            recommendation=recommendation,
            objects=tuple(objects),
            moves=tuple(moves),
        )

    def kept_now(self, record: UndoRecord) -> tuple[Sentence, ...]:
        """What an undo would leave as it is if it began now, and why, one sentence each; changes nothing."""
        found: list[Sentence] = []
        for intent in record.objects:
            current = self._tools.reader.get(*intent.key)
            if current is None:
                found += [] if intent.kind == "Pod" else [sentence("rollout.gone", workload=intent.workload)]
                continue
            mark = field_of(current, f"metadata.annotations[{PLAN_ANNOTATION}]")
            is_ours = mark in (None, record.plan_id)
            who = sentence("rollout.somebody") if is_ours else sentence("rollout.plan", plan=str(mark))
            for part in intent.fields:
                value = field_of(current, part.field)
                is_known = any(values_equal(part.field, value, known) for known in (part.old, part.new))
                if not is_known and not taken_back(part, value)[1]:
                    found.append(
                        sentence(
                            "rollout.set_since", workload=intent.workload, field=part.field, who=who, value=repr(value)
                        )
                    )
        return tuple(found)

    def way_back(self, record: UndoRecord, *, after: Collection[str] = ()) -> tuple[UndoRecord, tuple[Sentence, ...]]:
        """An undo with the way in which each owner rolls back, surge-first where the old seats have room.

        Args:
            after: plans that are undone before.

        Returns:
            The undo, and the workloads of which it leaves fewer pods ready than their owners allow, and why.

        Raises:
            Refused: others rely on the framebuffer that a node of it lends, or on core limits of it, or pods would come
                back beside that; a later plan changed a node of it; or a node must be emptied that can't be.
        """
        tools = self._tools
        snapshot, wave_max = tools.snapshot(), tools.policy.moving.parallel_pods_max
        check_last(record, {*self.applied_plans()} - {record.plan_id, *after}, snapshot)
        returned, stays = self._steps_of(record)
        check_scaled_nodes(record.moves, returned, stays, snapshot)
        emptied = [
            _without_place(step, record.moves, snapshot)
            for step in steps_back(tools, record.objects, record.moves, returned, snapshot)
        ]
        check_limits_stay(record.plan_id, record.moves, record.objects, self._staying(record), snapshot)
        writes = tools.mover().objects
        # An owner that somebody took back already, or that is gone, does not roll.
        rest = [item for item in record.objects if not writes.is_restored(item, snapshot.owners.get(item.workload))]
        rolling = {item.workload for item in rest}
        back = [move for move in backwards(record.moves) if move.workload in rolling]
        leaving = {move.workload for move in back}
        others = {card for seat in snapshot.seats.values() if seat.workload not in leaving for card in seat.cards}
        every = {card for seat in snapshot.seats.values() for card in seat.cards} | _lost_cards(back, snapshot)

        def way(taken: Collection[str]) -> tuple[list[ObjectIntent], dict[WorkloadId, Sentence]]:
            likely = _where_free(back, snapshot, taken)
            held = held_owners(rest, likely, snapshot, wave_max)
            stage = StageRecord(
                plan_id=record.plan_id, stage=record.stages[0], objects=held, moves=likely, node_steps=emptied
            )
            return held, availability_breaches(stage, snapshot, tools.reader, wave_max, gaps_allowed=False)

        held, breaches = way(others)
        if breaches:
            # Their old seats have no room, because their own pods came up there: then any card like them.
            held, breaches = way(every)
        by_key = {item.key: item for item in held}
        objects = tuple(by_key.get(item.key, item) for item in record.objects)
        return replace(record, objects=objects), lowered_workloads(breaches)

    def applied_plans(self) -> tuple[str, ...]:
        """Plans of which something is applied, the one applied last first: the order in which they come off."""
        found = [
            run.plan_id
            for run in self._tools.journal.runs()
            if any(record.state in STANDING for record in run.records.values())
        ]
        return tuple(dict.fromkeys(reversed(found)))

    def undo(
        self,
        plan_id: str,
        *,
        stages: Sequence[int] | None = None,
        recommendation: str | None = None,
        ending: RunRecord | None = None,
    ) -> UndoResult:
        """Take back what a plan did; a run of it that a process left open is aborted first, an open undo of it ended.

        Open undos of other plans stay as they are.

        Args:
            stages: only these; all where None.
            recommendation: only this one; all where None.
            ending: the run that was under way when somebody asked; None where none was, or no process applied it.

        Raises:
            Refused: nothing of it is applied (any more), the cluster is frozen, or it would leave fewer pods ready than
                their owners allow and nobody said yes to that.
            Unavailable: the cluster can't be reached; call `resume` to go on.
        """
        tools = self._tools
        tools.guard.check_frozen(tools.reader)
        run = open_run(tools.journal, plan_id) if ending is None else ending
        ended = None if run is None else abort(tools, run, by="undo")
        if ended is not None and not standing(tools.journal.runs(plan_id), stages):
            return undone_by(ended)
        if plan_id not in tools.journal.open_undos():
            self.preview(plan_id, stages=stages, recommendation=recommendation)
        with tools.acting():
            begun = tools.journal.open_undos().get(plan_id)
            first = None if begun is None else self._ended(begun)
            try:
                asked = self.preview(plan_id, stages=stages, recommendation=recommendation)
            except Refused:
                if first is None:
                    raise
                return first
            record, lowered = self.way_back(asked)
            tools.guard.check_undo(plan_id, lowered)
            tools.step("undo begin")
            tools.journal.write(
                plan_id,
                tools.now(),
                "undo_begin",
                stages=list(record.stages),
                recommendation=recommendation,
                objects=[object_content(entry) for entry in record.objects],
                moves=[move_content(entry) for entry in record.moves],
            )
            second = replace(self._ended(record), lowered=lowered)
            return second if first is None else _together(first, second)

    def resume(self, plan_id: str) -> UndoResult | None:
        """Go on with the undo of a plan that a crash left open; None where there is none.

        Raises:
            Refused: the cluster is frozen, or somebody else holds the lease.
            Unavailable: the cluster can't be reached, or a former pod does not get ready; call again to go on.
        """
        tools = self._tools
        if plan_id not in tools.journal.open_undos():
            return None
        tools.guard.check_frozen(tools.reader)
        with tools.acting():
            record = tools.journal.open_undos().get(plan_id)
            return None if record is None else self._ended(record)

    def _staying(self, record: UndoRecord) -> list[Move]:
        """Moves of stages that stand and that an undo leaves as they are."""
        return [
            move
            for run in self._tools.journal.runs()
            for number, own in run.records.items()
            if own.state in STANDING
            for move in own.moves
            if (run.plan_id, number) not in {(record.plan_id, stage) for stage in record.stages}
            or record.recommendation not in (None, move.recommendation)
        ]

    def _steps_of(self, record: UndoRecord) -> tuple[list[NodeStep], list[NodeStep]]:
        """Node steps whose configuration an undo takes back, and those of all plans whose configuration stays."""
        journal = self._tools.journal
        taken = journal.undone_recommendations()
        returned: list[NodeStep] = []
        stays: list[NodeStep] = []
        for run in journal.runs():
            gone = frozenset(item for plan_id, item in taken if plan_id == run.plan_id)
            for number, own in sorted(run.records.items()):
                if not own.node_steps or own.state not in STANDING:
                    continue
                is_asked = run.plan_id == record.plan_id and number in record.stages
                back = _without(own.objects, record.recommendation, gone) if is_asked else []
                if Parts.of(back, own.moves).shared:
                    returned += own.node_steps
                elif Parts.of(_without(own.objects, None, gone), own.moves).shared:
                    stays += own.node_steps
        return returned, stays

    def _ended(self, record: UndoRecord) -> UndoResult:
        """Take back what an undo that was begun has left; the lease is ours."""
        tools = self._tools
        stage = record.stages[0] if len(record.stages) == 1 else 0
        steps, _ = self._steps_of(record)
        kept = take_back(tools, record.plan_id, stage, record.objects, record.moves, steps)
        tools.step("undo end")
        tools.journal.write(
            record.plan_id,
            tools.now(),
            "undone",
            stages=list(record.stages),
            recommendation=record.recommendation,
            kept=[recorded(left) for left in kept],
        )
        tools.leave_events((move.workload for move in record.moves), "GputideUndone", f"plan {record.plan_id}")
        said = sentence("progress.plan_restored", plan=record.plan_id)
        tools.tell(record.plan_id, stage, ProgressPhase.RESTORED, said)
        return UndoResult(
            plan_id=record.plan_id,
            stages=record.stages,
            recommendation=record.recommendation,
            workloads=tuple(sorted({str(move.workload) for move in record.moves})),
            kept=kept,
        )


def undone_by(ended: AbortResult) -> UndoResult:
    """What the end of a run took back, for who asked for an undo."""
    return UndoResult(
        plan_id=ended.plan_id,
        stages=tuple(result.stage for result in ended.restored),
        recommendation=None,
        workloads=ended.workloads,
        kept=tuple(left for result in ended.restored for left in result.kept),
    )


def _together(first: UndoResult, second: UndoResult) -> UndoResult:
    """What an undo that was open and the one after it did to a plan."""
    return replace(
        second,
        stages=tuple(sorted({*first.stages, *second.stages})),
        workloads=tuple(sorted({*first.workloads, *second.workloads})),
        kept=(*first.kept, *second.kept),
    )


def _lost_cards(back: Sequence[Move], snapshot: Snapshot) -> set[str]:
    """Cards of the way back that are gone, or that their node calls broken."""
    wanted = {part.card for move in back for part in move.new if part.card is not None}
    return {name for name in wanted if name not in snapshot.cards or not snapshot.cards[name].is_healthy}


def _without_place(step: NodeStep, moves: Sequence[Move], snapshot: Snapshot) -> NodeStep:
    """A step of a node that a stage emptied, with as many pods of each workload leaving as had their places there.

    The others have theirs elsewhere, and go there before. Who is not moved has its place on the node, and leaves it.
    """
    if step.back:
        return step
    moved = {move.workload for move in moves}
    left = Counter(move.workload for move in moves if any(part.node == step.node for part in move.old))
    found: list[tuple[str, str]] = []
    for namespace, pod in step.leaving:
        workload = snapshot.seats[f"{namespace}/{pod}"].workload
        left[workload] -= 1
        found += [(namespace, pod)] if left[workload] >= 0 or workload not in moved else []
    return replace(step, leaving=tuple(found))


def _where_free(back: Sequence[Move], snapshot: Snapshot, taken: Collection[str]) -> list[Move]:
    """The way back with a free card in place of each that is taken: the scheduler chooses any.

    A free card is of the same model and size; for a card that is gone, of which nobody knows these, large enough.
    """
    held = {card for seat in snapshot.seats.values() for card in seat.cards}
    wanted = {part.card for move in back for part in move.new}
    free = [
        card
        for name, card in sorted(snapshot.cards.items())
        if card.is_healthy and name not in held and name not in wanted
    ]
    instead: dict[str, str] = {}

    def now(part: SeatSlice) -> SeatSlice:
        if part.card is None or part.card not in taken:
            return part
        if part.card not in instead:
            old = snapshot.cards.get(part.card)
            like = next((card for card in free if _is_like(card, old, part)), None)
            if like is not None:
                free.remove(like)
            instead[part.card] = part.card if like is None else like.card
        return replace(part, card=instead[part.card])

    return [replace(move, new=tuple(map(now, move.new))) for move in back]


def _is_like(card: StandingCard, old: StandingCard | None, part: SeatSlice) -> bool:
    if old is None:
        return card.framebuffer_mib >= part.framebuffer_mib
    return (card.device_type, card.framebuffer_mib) == (old.device_type, old.framebuffer_mib)


def folded(stages: Sequence[Sequence[ObjectIntent]]) -> list[ObjectIntent]:
    """Intents of several stages as one per object: each field from its first old value to its last new one."""
    found: dict[tuple[str, str, str], dict[str, FieldIntent]] = {}
    last: dict[tuple[str, str, str], ObjectIntent] = {}
    owners: dict[tuple[str, str, str], Owners] = {}
    for objects in stages:
        for intent in objects:
            owners[intent.key] = (*owners.get(intent.key, ()), *intent.owners)
            fields = found.setdefault(intent.key, {})
            last[intent.key] = intent
            for part in intent.fields:
                before = fields.get(part.field)
                old = part.old if before is None else before.old
                fields[part.field] = FieldIntent(field=part.field, old=old, new=part.new)
    return [
        replace(last[key], fields=tuple(fields.values()), owners=owners[key], generation=None, parts=None)
        for key, fields in found.items()
    ]


def _without(objects: Sequence[ObjectIntent], recommendation: str | None, taken: frozenset[str]) -> list[ObjectIntent]:
    return [
        entry
        for entry in objects
        if entry.recommendation not in taken and recommendation in (None, entry.recommendation)
    ]


def _folded_moves(records: Sequence[StageRecord], recommendation: str | None, taken: frozenset[str]) -> list[Move]:
    """Each pod once: from its first old seat to its last new one."""
    found: dict[str, Move] = {}
    for record in records:
        # A workload is restored whole, so all its pods go back with it.
        owners = {str(entry.workload) for entry in _without(record.objects, recommendation, taken)}
        for move in record.moves:
            if str(move.workload) not in owners:
                continue
            before = found.get(move.pod_id)
            found[move.pod_id] = replace(move, old=move.old if before is None else before.old, called=None)
    return list(found.values())
