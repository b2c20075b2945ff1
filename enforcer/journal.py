"""The ledger in the rollout's words: what a stage means to do, how far it came, what can be taken back.

The rollout and undo write through it, resume reads it; nothing else knows how the entries look. Intents stand there
whole before the first object is touched, so whoever comes after a crash can go on or go back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from enforcer.backend import Move
from enforcer.ledger import Entry, Ledger
from enforcer.seat import SeatSlice
from fleet.inventory import WorkloadId


class StageState(StrEnum):
    """How far a stage came."""

    OPEN = "open"
    """Begun; neither kept nor taken back yet."""
    RESTORING = "restoring"
    PROMOTED = "promoted"
    RESTORED = "restored"
    """Taken back, because its watch failed or a guard said no."""
    UNDOING = "undoing"
    UNDONE = "undone"
    """Taken back, because somebody asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldIntent:
    """One field, before and after."""

    field: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectIntent:
    """What shall be changed of one object, in one patch.

    Attributes:
        kind: kind.
        namespace: namespace.
        name: name.
        resource_version: version the patch is conditional on.
        recommendation: what for.
        fields: fields.
    """

    kind: str
    namespace: str
    name: str
    resource_version: str
    recommendation: str
    fields: tuple[FieldIntent, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, namespace and name."""
        return self.kind, self.namespace, self.name

    @property
    def workload(self) -> WorkloadId:
        """`namespace/Kind/name`."""
        return WorkloadId(f"{self.namespace}/{self.kind}/{self.name}")


@dataclass(slots=True, kw_only=True)
class StageRecord:
    """One stage of a plan as the ledger tells it; mutable: it grows while the ledger is read.

    Attributes:
        plan_id: plan.
        stage: number.
        state: how far it came.
        canary: workloads that go first.
        objects: what shall be changed, in order.
        moves: pods that shall get another seat.
        reason: why it was taken back.
        kept: what a restoration left as it was, and why.
        applied_at: when it was promoted.
    """

    plan_id: str
    stage: int
    state: StageState = StageState.OPEN
    canary: tuple[str, ...] = ()
    objects: list[ObjectIntent] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    reason: str | None = None
    kept: tuple[str, ...] = ()
    applied_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """One run of `apply` as the ledger tells it; mutable: it grows while the ledger is read.

    Attributes:
        plan_id: plan.
        stages: stages asked for.
        by: who asked.
        began_at: when.
        cards_granted: cards that somebody held when it began.
        records: stages that were begun, by number.
        is_open: False once it ended.
    """

    plan_id: str
    stages: tuple[int, ...]
    by: str
    began_at: datetime
    cards_granted: frozenset[str]
    records: dict[int, StageRecord] = field(default_factory=dict)
    is_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoRecord:
    """One undo as the ledger tells it.

    Attributes:
        plan_id: plan.
        stages: stages it takes back.
        recommendation: only this one; None for all.
        objects: what shall be taken back: `old` is what it becomes.
        moves: pods as they were moved by the plan.
    """

    plan_id: str
    stages: tuple[int, ...]
    recommendation: str | None
    objects: tuple[ObjectIntent, ...]
    moves: tuple[Move, ...]


class Journal:
    """Writes and reads what the enforcer does.

    Args:
        ledger: where it stands.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def write(self, plan_id: str, at: datetime, event: str, **content: Any) -> None:
        """One entry."""
        self._ledger.append([(event, content)], plan_id=plan_id, at=at)

    def begin_stage(self, record: StageRecord, at: datetime) -> None:
        """All intents of a stage, together; they count once the last of them, `stage`, is there."""
        events: list[tuple[str, Mapping[str, Any]]] = [("stage_begin", {"stage": record.stage})]
        events += [("intent", {"stage": record.stage, **object_content(entry)}) for entry in record.objects]
        events += [("move", {"stage": record.stage, **move_content(entry)}) for entry in record.moves]
        events.append(("stage", {"stage": record.stage, "canary": list(record.canary)}))
        self._ledger.append(events, plan_id=record.plan_id, at=at)

    def runs(self, plan_id: str | None = None) -> list[RunRecord]:
        """Every run, oldest first; of one plan where it is given."""
        runs: list[RunRecord] = []
        latest: dict[str, RunRecord] = {}
        undone: dict[str, list[StageRecord]] = {}
        for entry in self._ledger.entries(plan_id):
            if entry.event == "begin":
                run = RunRecord(
                    plan_id=entry.plan_id,
                    stages=tuple(entry.content["stages"]),
                    by=entry.content["by"],
                    began_at=entry.at,
                    cards_granted=frozenset(entry.content["cards_granted"]),
                )
                runs.append(run)
                latest[entry.plan_id] = run
            elif entry.event == "end":
                latest[entry.plan_id].is_open = False
            elif entry.event in ("undo_begin", "undone"):
                _undo(entry, runs, undone)
            elif entry.plan_id in latest:
                _stage_entry(entry, latest[entry.plan_id])
        for run in runs:
            run.records = {number: record for number, record in run.records.items() if record.objects or record.moves}
        return runs

    def open_undo(self) -> UndoRecord | None:
        """The undo that was begun and not ended."""
        found: UndoRecord | None = None
        for entry in self._ledger.entries():
            if entry.event == "undo_begin":
                found = UndoRecord(
                    plan_id=entry.plan_id,
                    stages=tuple(entry.content["stages"]),
                    recommendation=entry.content["recommendation"],
                    objects=tuple(object_of(part) for part in entry.content["objects"]),
                    moves=tuple(move_of(part) for part in entry.content["moves"]),
                )
            elif entry.event == "undone":
                found = None
        return found

    def undone_recommendations(self, plan_id: str) -> frozenset[str]:
        """Recommendations of a plan that were taken back one by one."""
        return frozenset(
            entry.content["recommendation"]
            for entry in self._ledger.entries(plan_id)
            if entry.event == "undone" and entry.content["recommendation"]
        )


def object_content(entry: ObjectIntent) -> dict[str, Any]:
    """An object's intent as plain values."""
    return {
        "kind": entry.kind,
        "namespace": entry.namespace,
        "name": entry.name,
        "resource_version": entry.resource_version,
        "recommendation": entry.recommendation,
        "fields": [[part.field, part.old, part.new] for part in entry.fields],
    }


def object_of(content: Mapping[str, Any]) -> ObjectIntent:
    """The inverse of `object_content`."""
    return ObjectIntent(
        kind=content["kind"],
        namespace=content["namespace"],
        name=content["name"],
        resource_version=content["resource_version"],
        recommendation=content["recommendation"],
        fields=tuple(FieldIntent(field=a, old=b, new=c) for a, b, c in content["fields"]),
    )


def move_content(move: Move) -> dict[str, Any]:
    """A move as plain values."""
    return {
        "namespace": move.namespace,
        "pod": move.pod,
        "workload": move.workload,
        "recommendation": move.recommendation,
        "old": _slices_content(move.old),
        "new": _slices_content(move.new),
    }


def move_of(content: Mapping[str, Any]) -> Move:
    """The inverse of `move_content`."""
    return Move(
        namespace=content["namespace"],
        pod=content["pod"],
        workload=WorkloadId(content["workload"]),
        old=_slices_of(content["old"]),
        new=_slices_of(content["new"]),
        recommendation=content["recommendation"],
    )


def _stage_entry(entry: Entry, run: RunRecord) -> None:
    number = entry.content.get("stage")
    if entry.event == "stage_begin":
        run.records[entry.content["stage"]] = StageRecord(plan_id=run.plan_id, stage=entry.content["stage"])
        return
    record = run.records.get(number) if number is not None else None
    if record is None:
        return
    if entry.event == "intent":
        record.objects.append(object_of(entry.content))
    elif entry.event == "move":
        record.moves.append(move_of(entry.content))
    elif entry.event == "stage":
        record.canary = tuple(entry.content["canary"])
    elif entry.event == "promoted":
        record.state, record.applied_at = StageState.PROMOTED, entry.at
    elif entry.event == "restoring":
        record.state, record.reason = StageState.RESTORING, entry.content["reason"]
    elif entry.event == "restored":
        record.state, record.kept = StageState.RESTORED, tuple(entry.content["kept"])


def _undo(entry: Entry, runs: Sequence[RunRecord], undone: dict[str, list[StageRecord]]) -> None:
    if entry.event == "undo_begin":
        undone[entry.plan_id] = []
        if entry.content["recommendation"] is not None:
            return
        for run in runs:
            for number, record in run.records.items():
                is_ours = run.plan_id == entry.plan_id and number in entry.content["stages"]
                if is_ours and record.state is StageState.PROMOTED:
                    record.state = StageState.UNDOING
                    undone[entry.plan_id].append(record)
    else:
        for record in undone.pop(entry.plan_id, []):
            record.state, record.kept = StageState.UNDONE, tuple(entry.content["kept"])


def _slices_content(slices: Sequence[SeatSlice]) -> list[list[Any]]:
    return [[part.container, part.card, part.framebuffer_mib, part.core_percent, part.priority] for part in slices]


def _slices_of(content: Sequence[Sequence[Any]]) -> tuple[SeatSlice, ...]:
    return tuple(
        SeatSlice(container=a, card=b, framebuffer_mib=c, core_percent=d, priority=e) for a, b, c, d, e in content
    )
