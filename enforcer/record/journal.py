"""The ledger in the rollout's words: what a stage means to do, how far it came, what can be taken back.

The rollout and undo write through it, resume reads it; nothing else knows how the entries look. Intents stand there
whole before the first object is touched, so the one who comes after a crash can go on or go back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from enforcer.backend import Departure, Move, NodeOwner, NodeStep
from enforcer.cluster import Owners
from enforcer.dialect import SeatSlice
from enforcer.record.ledger import Entry, Ledger, Overtaken
from fleet.inventory import WorkloadId
from fleet.json_text import as_stored
from fleet.sentences import Sentence, sentence_of

_RUN_EVENTS = frozenset(
    ("begin", "stage_begin", "stage", "evict", "watched", "promoted", "restoring", "evict_back", "restored", "end",
     "undo_begin", "undone")
)  # fmt: skip
"""What only the holder of the lease writes."""


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
class HoldIntent:
    """One field that holds an owner while it rolls (see `enforcer.rollout.holding`).

    Attributes:
        old: value before the plan, and again after it.
        canary: value while one pod is tried.
        rest: value while all pods follow.
    """

    field: str
    old: str | None
    canary: str | None
    rest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectIntent:
    """What shall be changed of one object, in one patch.

    Attributes:
        holds: fields that hold it while it rolls.
        generation: the API server's count of its specifications when it was read, None where it keeps none.
        parts: digests of the parts of its specification when it was read (`enforcer.rollout.outside_change`); None
            where the stage does not say, as for what is no owner of pods.
        owners: who owned its fields before, which an undo gives them back to (`enforcer.cluster.Owners`).
    """

    kind: str
    namespace: str
    name: str
    resource_version: str
    recommendation: str
    fields: tuple[FieldIntent, ...]
    holds: tuple[HoldIntent, ...] = ()
    generation: int | None = None
    parts: Mapping[str, str] | None = None
    owners: Owners = ()

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
    """One stage of a plan as the ledger records it; mutable: it grows while the ledger is read.

    Attributes:
        canary: workloads that go first.
        kept: what a restoration left as it was, and why.
        undone_at: when it was taken back on request.
        watched: batches that were watched to the end without complaint.
        is_whole: all intents stand there.
    """

    plan_id: str
    stage: int
    state: StageState = StageState.OPEN
    canary: tuple[str, ...] = ()
    objects: list[ObjectIntent] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    node_steps: list[NodeStep] = field(default_factory=list)
    reason: Sentence | str | None = None
    kept: tuple[Sentence, ...] = ()
    applied_at: datetime | None = None
    undone_at: datetime | None = None
    watched: frozenset[str] = frozenset()
    is_whole: bool = True


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """One run of `apply` as the ledger records it; mutable: it grows while the ledger is read.

    Attributes:
        cards_granted: cards that somebody held when it began.
        cluster: cluster of the plan; None in ledgers of before that was written down.
    """

    plan_id: str
    stages: tuple[int, ...]
    by: str
    began_at: datetime
    cards_granted: frozenset[str]
    cluster: str | None = None
    records: dict[int, StageRecord] = field(default_factory=dict)
    is_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoRecord:
    """One undo as the ledger records it.

    Attributes:
        recommendation: only this one; None for all.
        objects: what shall be taken back: `old` is what it becomes.
        moves: pods as they were moved by the plan.
    """

    plan_id: str
    stages: tuple[int, ...]
    recommendation: str | None
    objects: tuple[ObjectIntent, ...]
    moves: tuple[Move, ...]


Patiently = Callable[[Callable[[], Any]], Any]
"""Makes a call, several times where it must."""


class Journal:
    """Writes and reads what the enforcer does.

    Args:
        cluster: whose runs are listed; None for those of all. Runs of no known cluster are everybody's.
    """

    def __init__(self, ledger: Ledger, *, cluster: str | None = None) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._fence: int | None = None
        self._patiently: Patiently = _at_once

    def fence(self, patiently: Patiently | None = None) -> None:
        """From now on, until `unfence`, nothing is written any more once another enforcer has written of a run.

        A process that stood still for longer than its lease lasts does not know that another went on: what it
        remembers of the run is old, and written down it would hide what the other did.

        Args:
            patiently: makes the calls to the ledger of this run, again where it is away; once where None.
        """
        self._patiently = patiently or _at_once
        self._fence = len(self._held())

    def unfence(self) -> None:
        """Others may write again; the run is over."""
        self._fence, self._patiently = None, _at_once
        self._ledger.rest()

    def check_fence(self) -> None:
        """Nothing, as long as no other enforcer has written since `fence`.

        Raises:
            Overtaken: another one has; called again, one goes on from what it did.
        """
        if self._fence is not None:
            self._check_fence(self._held())

    def _check_fence(self, entries: Sequence[Entry]) -> None:
        for entry in entries[self._fence :]:
            if entry.event in _RUN_EVENTS:
                raise Overtaken(
                    f"cannot go on for now: another enforcer went on while this one stood still (entry {entry.number} "
                    f"of the ledger, {entry.event!r} of plan {entry.plan_id}); look at what it did, then call again"
                )

    def write(self, plan_id: str, at: datetime, event: str, **content: Any) -> None:
        """One entry.

        Raises:
            Overtaken: another enforcer wrote since `fence`.
        """
        self._append([(event, content)], plan_id, at)

    def begin_stage(self, record: StageRecord, at: datetime) -> None:
        """All intents of a stage, together; they count once the last of them, `stage`, is there."""
        events: list[tuple[str, Mapping[str, Any]]] = [("stage_begin", {"stage": record.stage})]
        events += [("intent", {"stage": record.stage, **object_content(entry)}) for entry in record.objects]
        events += [("move", {"stage": record.stage, **move_content(entry)}) for entry in record.moves]
        events += [("node_step", {"stage": record.stage, **asdict(entry)}) for entry in record.node_steps]
        events.append(("stage", {"stage": record.stage, "canary": list(record.canary)}))
        self._append(events, record.plan_id, at)

    def _append(self, events: Sequence[tuple[str, Mapping[str, Any]]], plan_id: str, at: datetime) -> None:
        asked = [(event, as_stored(content)) for event, content in events]
        is_sent = False

        def append() -> None:
            nonlocal is_sent
            if is_sent and self._has_landed(plan_id, asked):
                return
            if self._fence is not None:
                self._check_fence(self._ledger.entries())
            is_sent = True
            self._ledger.append(events, plan_id=plan_id, at=at)

        try:
            self._patiently(append)
        except Overtaken:
            if not is_sent or not self._has_landed(plan_id, asked):
                raise
        if self._fence is not None:
            self._fence = len(self._held())

    def _has_landed(self, plan_id: str, asked: Sequence[tuple[str, Any]]) -> bool:
        """Whether all that was written since `fence` is what was asked for: its answer was lost on the way."""
        late = self._held()[self._fence :] if self._fence is not None else ()
        return [(entry.event, entry.content) for entry in late if entry.plan_id == plan_id] == asked

    def _held(self, plan_id: str | None = None) -> tuple[Entry, ...]:
        """Entries of the ledger; a run waits for them."""
        found: tuple[Entry, ...] = self._patiently(lambda: self._ledger.entries(plan_id))
        return found

    def runs(self, plan_id: str | None = None) -> list[RunRecord]:
        """Every run, oldest first; of one plan where it is given."""
        return runs_of(self._entries(plan_id))

    def open_undos(self) -> dict[str, UndoRecord]:
        """The undo of each plan that was begun and not ended, by the plan's id; the one begun first stands first."""
        found: dict[str, UndoRecord] = {}
        for entry in self._entries():
            if entry.event == "undo_begin":
                found[entry.plan_id] = UndoRecord(
                    plan_id=entry.plan_id,
                    stages=tuple(entry.content["stages"]),
                    recommendation=entry.content["recommendation"],
                    objects=tuple(object_of(part) for part in entry.content["objects"]),
                    moves=tuple(move_of(part) for part in entry.content["moves"]),
                )
            elif entry.event == "undone":
                found.pop(entry.plan_id, None)
        return found

    def _entries(self, plan_id: str | None = None) -> Iterator[Entry]:
        """Entries on plans that are of this journal's cluster."""
        foreign: set[str] = set()
        for entry in self._held(plan_id):
            if entry.event == "begin" and self._cluster is not None:
                found = entry.content.get("cluster")
                if found is not None and found != self._cluster:
                    foreign.add(entry.plan_id)
            if entry.plan_id not in foreign:
                yield entry

    def undone_recommendations(self, plan_id: str | None = None) -> frozenset[tuple[str, str]]:
        """Plans with recommendations that were taken back one by one; of one plan where it is given."""
        return frozenset(
            (entry.plan_id, entry.content["recommendation"])
            for entry in self._held(plan_id)
            if entry.event == "undone" and entry.content["recommendation"]
        )


def _at_once(call: Callable[[], Any]) -> Any:
    """A call that is made once."""
    return call()


def runs_of(entries: Iterable[Entry]) -> list[RunRecord]:
    """Every run that entries record, oldest first; a stage whose intents a crash cut short was never begun."""
    runs: list[RunRecord] = []
    latest: dict[str, RunRecord] = {}
    undone: dict[str, list[StageRecord]] = {}
    for entry in entries:
        if entry.event == "begin":
            run = RunRecord(
                plan_id=entry.plan_id,
                stages=tuple(entry.content["stages"]),
                by=entry.content["by"],
                began_at=entry.at,
                cards_granted=frozenset(entry.content["cards_granted"]),
                cluster=entry.content.get("cluster"),
            )
            runs.append(run)
            latest[entry.plan_id] = run
        elif entry.event == "end":
            if entry.plan_id in latest:
                latest[entry.plan_id].is_open = False
        elif entry.event in ("undo_begin", "undone"):
            _undo(entry, runs, undone)
        elif entry.plan_id in latest:
            _stage_entry(entry, latest[entry.plan_id])
    for run in runs:
        run.records = {
            number: record
            for number, record in run.records.items()
            if record.is_whole and (record.objects or record.moves)
        }
    return runs


def object_content(entry: ObjectIntent) -> dict[str, Any]:
    """An object's intent as plain values."""
    return {
        "kind": entry.kind,
        "namespace": entry.namespace,
        "name": entry.name,
        "resource_version": entry.resource_version,
        "recommendation": entry.recommendation,
        "fields": [[part.field, part.old, part.new] for part in entry.fields],
        "holds": [[part.field, part.old, part.canary, part.rest] for part in entry.holds],
        "generation": entry.generation,
        "parts": None if entry.parts is None else dict(entry.parts),
        "owners": list(entry.owners),
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
        # Ledgers of before there were holds have none.
        holds=tuple(HoldIntent(field=a, old=b, canary=c, rest=d) for a, b, c, d in content.get("holds", ())),
        generation=content.get("generation"),
        parts=content.get("parts"),
        owners=tuple(content.get("owners", ())),
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
        **({} if move.called is None else {"called": move.called}),
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
        called=content.get("called"),
    )


def _stage_entry(entry: Entry, run: RunRecord) -> None:
    number = entry.content.get("stage")
    if entry.event == "stage_begin":
        run.records[entry.content["stage"]] = StageRecord(
            plan_id=run.plan_id, stage=entry.content["stage"], is_whole=False
        )
        return
    record = run.records.get(number) if isinstance(number, int) else None
    if record is None:
        return
    if entry.event == "intent":
        record.objects.append(object_of(entry.content))
    elif entry.event == "move":
        record.moves.append(move_of(entry.content))
    elif entry.event == "node_step":
        record.node_steps.append(_node_step_of(entry.content))
    elif entry.event == "stage":
        record.canary, record.is_whole = tuple(entry.content["canary"]), True
    elif entry.event == "watched":
        if not entry.content["complaints"]:
            record.watched |= {entry.content["batch"]}
    elif entry.event == "promoted":
        record.state, record.applied_at = StageState.PROMOTED, entry.at
    elif entry.event == "restoring":
        record.state, record.reason = StageState.RESTORING, sentence_of(entry.content["reason"])
    elif entry.event == "restored":
        record.state, record.kept = StageState.RESTORED, tuple(map(sentence_of, entry.content["kept"]))


def _node_step_of(content: Mapping[str, Any]) -> NodeStep:
    """The inverse of `asdict`, whose tuples came back as lists."""
    fields = {key: value for key, value in content.items() if key != "stage"}
    for key in ("restarts", "leaving", "advertised", "back", "offered_before"):
        fields[key] = tuple((str(first), str(second)) for first, second in fields.get(key, ()))
    for key in ("registers_mib", "registered_mib"):
        fields[key] = tuple((str(card), int(mib)) for card, mib in fields.get(key, ()))
    if (gone := fields.get("departure")) is not None:
        kind, namespace, name = gone["machine"]
        fields["departure"] = Departure(
            owner=NodeOwner(gone["owner"]), machine=(kind, namespace, name), newest=gone.get("newest", "")
        )
    return NodeStep(**{**fields, "empty_cards": tuple(fields.get("empty_cards", ()))})


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
            record.state, record.kept = StageState.UNDONE, tuple(map(sentence_of, entry.content["kept"]))
            record.undone_at = entry.at


def _slices_content(slices: Sequence[SeatSlice]) -> list[list[Any]]:
    """Shares as lists; node and resource follow where the API does not name the card."""
    return [
        [part.container, part.card, part.framebuffer_mib, part.core_percent, part.priority]
        + ([part.node, part.resource] if part.card is None else [])
        for part in slices
    ]


def _slices_of(content: Sequence[Sequence[Any]]) -> tuple[SeatSlice, ...]:
    return tuple(
        SeatSlice(
            container=entry[0],
            card=entry[1],
            framebuffer_mib=entry[2],
            core_percent=entry[3],
            priority=entry[4],
            node=entry[5] if len(entry) > 5 else None,
            resource=entry[6] if len(entry) > 6 else None,
        )
        for entry in content
    )
