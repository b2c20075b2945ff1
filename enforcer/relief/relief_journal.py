"""What relief did, as the ledger says: which pod was put to sleep, which moved where and why, how long it took.

Every act is written before it is carried out, and its outcome after, so that a process that starts again goes on where
the last one ended. Durations of moves are read from here by the planner: how soon relief acts and how fast a pod is
ready elsewhere, as measured once enough moves were made, else as assumed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from enforcer.agent.node_view import ContainerKey
from enforcer.record.ledger import Ledger
from fleet.errors import Corrupt
from fleet.inventory import WorkloadId
from fleet.relief.moves import PastMove
from fleet.relief.rules import LOAD_BYTES_PER_SECOND
from fleet.sentences import Sentence, recorded, sentence_of
from fleet.units import MIB, format_time, parse_time

RELIEF_PLAN = "relief"
"""What stands in the ledger where other entries name a plan."""

MOVES_MEASURED_MIN = 5
"""Moves from which on what they took is believed, rather than what is assumed."""
_MOVES_REMEMBERED = 200


class Manner(StrEnum):
    """How a pod changes its card."""

    WARM = "warm"
    """A second replica is ready there before the first one goes."""
    RESTART = "restart"
    """It can't have a second one: it is stopped and started."""


class MovePhase(StrEnum):
    """How far a move came."""

    BEGUN = "begun"
    READY = "ready"
    LEAVING = "leaving"
    BACK = "back"
    """It is being taken back."""
    DONE = "done"
    TAKEN_BACK = "taken_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOrder:
    """One move, as it is decided.

    Attributes:
        move_id: name of the move; ends the name of the warm replica.
        pod_uid: its UID, so that nobody of the same name is meant.
        maker: ReplicaSet that takes the warm replica over; empty for a restart.
        replica: name of the warm replica; empty for a restart.
        to_card: card that it goes to; of a restart the one that was reckoned with.
        is_home: it goes back to where relief took it from.
        reason: why, with value, limit and setting; message `relief.CODE`.
        overloaded_at: when the overload was first seen, UTC; for a move home the moment of its decision.
    """

    move_id: str
    namespace: str
    pod: str
    pod_uid: str
    workload: WorkloadId
    maker: str
    replica: str
    from_node: str
    from_card: str
    to_card: str
    framebuffer_mib: int
    manner: Manner
    is_home: bool
    reason: Sentence
    overloaded_at: datetime

    @property
    def pod_id(self) -> str:
        """`namespace/pod` of who leaves."""
        return f"{self.namespace}/{self.pod}"


@dataclass(slots=True, kw_only=True)
class MoveRecord:
    """One move as the ledger records it; mutable: it grows while the ledger is read.

    Attributes:
        leaving_at: when the old one was first asked to go.
        why: why it was taken back; message `relief.CODE`.
        is_home_again: a later move brought it home.
    """

    order: MoveOrder
    begun_at: datetime
    phase: MovePhase = MovePhase.BEGUN
    ready_at: datetime | None = None
    leaving_at: datetime | None = None
    ended_at: datetime | None = None
    why: Sentence | None = None
    is_home_again: bool = False

    @property
    def is_open(self) -> bool:
        """It is not over."""
        return self.phase not in (MovePhase.DONE, MovePhase.TAKEN_BACK)

    def past(self) -> PastMove:
        """The move as the rules of relief look at it; times are Unix seconds."""
        order = self.order
        return PastMove(
            pod=order.pod_id,
            arrived_as=f"{order.namespace}/{order.replica or order.pod}",
            workload=order.workload,
            from_card=order.from_card,
            to_card=order.to_card,
            begun_seconds=self.begun_at.timestamp(),
            ended_seconds=None if self.ended_at is None else self.ended_at.timestamp(),
            is_made=self.phase is MovePhase.DONE,
            is_restart=order.manner is Manner.RESTART,
            is_home=order.is_home,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSqueeze:
    """Low priority of a card that sleeps by an order of ours."""

    node: str
    card: str
    containers: frozenset[ContainerKey]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRelief:
    """What relief took so far.

    Attributes:
        reaction_seconds: median from the first sight of an overload to the beginning of a move; None where no move
            answered an overload.
        ready_seconds: median from the beginning of a move until the pod was ready on its new card.
        load_bytes_per_second: median of framebuffer granted / that time.
    """

    moves: int
    reaction_seconds: float | None
    ready_seconds: float
    load_bytes_per_second: float


class ReliefJournal:
    """Writes and reads what relief does."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._read = 0
        self._is_known = False
        self._moves: dict[str, MoveRecord] = {}
        self._past: tuple[PastMove, ...] | None = None
        self._squeezes: dict[tuple[str, str], OpenSqueeze] = {}

    def squeeze(
        self, at: datetime, node: str, card: str, containers: frozenset[ContainerKey], reason: Sentence
    ) -> None:
        """Low priority of a card is about to be put to sleep."""
        names = sorted([key.pod_uid, key.container] for key in containers)
        self._write(at, "squeeze", node=node, card=card, containers=names, reason=recorded(reason))

    def squeezed(self, at: datetime, nodes: Sequence[str], outcome: str) -> None:
        """The order stands, or why not."""
        self._write(at, "squeezed", nodes=sorted(nodes), outcome=outcome)

    def release(self, at: datetime, node: str, card: str) -> None:
        """Low priority of a card is about to wake."""
        self._write(at, "release", node=node, card=card)

    def begin(self, at: datetime, order: MoveOrder) -> None:
        """A move is about to begin."""
        self._write(
            at, "move_begin", move=order.move_id, namespace=order.namespace, pod=order.pod, pod_uid=order.pod_uid,
            workload=order.workload, maker=order.maker, replica=order.replica, from_node=order.from_node,
            from_card=order.from_card, to_card=order.to_card, framebuffer_mib=order.framebuffer_mib,
            manner=order.manner.value, home=order.is_home, reason=recorded(order.reason),
            overloaded_at=format_time(order.overloaded_at),
        )  # fmt: skip

    def note(self, at: datetime, move_id: str, phase: MovePhase, why: Sentence | None = None) -> None:
        """A move comes to a phase; written before what the phase does."""
        self._write(at, "move", move=move_id, phase=phase.value, why=recorded(why))

    def moves(self) -> tuple[MoveRecord, ...]:
        """All moves, oldest first.

        Raises:
            Corrupt: the ledger was edited.
        """
        self._follow()
        return tuple(self._moves.values())

    def open_moves(self) -> tuple[MoveRecord, ...]:
        """Moves that are under way."""
        return tuple(record for record in self.moves() if record.is_open)

    def ended_moves(self) -> Counter[MovePhase]:
        """How many moves are over, by how they ended."""
        return Counter(record.phase for record in self.moves() if not record.is_open)

    def past_moves(self) -> tuple[PastMove, ...]:
        """All moves, oldest first, as the rules of relief look at them."""
        self._follow()
        if self._past is None:
            self._past = tuple(record.past() for record in self._moves.values())
        return self._past

    def open_squeezes(self) -> tuple[OpenSqueeze, ...]:
        """Cards whose low priority sleeps by an order of ours."""
        self._follow()
        return tuple(self._squeezes.values())

    def measured(self) -> MeasuredRelief | None:
        """What moves took; None where too few were made."""
        done = [
            record for record in self.moves() if record.phase is MovePhase.DONE and record.ready_at is not None
        ][-_MOVES_REMEMBERED:]  # fmt: skip
        if len(done) < MOVES_MEASURED_MIN:
            return None
        reactions = [
            (record.begun_at - record.order.overloaded_at).total_seconds()
            for record in done
            if not record.order.is_home
        ]
        ready = [max(1e-3, (record.ready_at - record.begun_at).total_seconds()) for record in done if record.ready_at]
        rates = [
            record.order.framebuffer_mib * MIB / seconds for record, seconds in zip(done, ready, strict=True)
        ]  # fmt: skip
        return MeasuredRelief(
            moves=len(done),
            reaction_seconds=max(0.0, statistics.median(reactions)) if reactions else None,
            ready_seconds=statistics.median(ready),
            load_bytes_per_second=statistics.median(rates),
        )

    def _follow(self) -> None:
        """Read what was written since; one relief writes at a time, so its own writing is all there is."""
        if self._is_known:
            return
        entries, self._past = self._ledger.entries(), None
        for entry in entries[self._read :]:
            self._take(entry.event, entry.at, entry.content)
        self._read, self._is_known = len(entries), True

    def _take(self, event: str, at: datetime, content: Any) -> None:
        if event == "squeeze":
            keys = frozenset(ContainerKey(pod_uid=uid, container=name) for uid, name in content["containers"])
            place = content["node"], content["card"]
            self._squeezes[place] = OpenSqueeze(node=place[0], card=place[1], containers=keys, at=at)
        elif event == "release":
            self._squeezes.pop((content["node"], content["card"]), None)
        elif event == "move_begin":
            self._moves[content["move"]] = MoveRecord(order=_order_of(content), begun_at=at)
        elif event == "move":
            record = self._moves.get(content["move"])
            if record is None:
                raise Corrupt(f"cannot read the moves of relief: {content['move'][:64]!r} goes on and never began")
            self._advance(record, MovePhase(content["phase"]), at, sentence_of(content["why"]))

    def _advance(self, record: MoveRecord, phase: MovePhase, at: datetime, why: Sentence | None) -> None:
        record.phase = phase
        record.why = why or record.why
        if phase is MovePhase.READY:
            record.ready_at = at
        elif phase is MovePhase.LEAVING and record.leaving_at is None:
            record.leaving_at = at
        elif not record.is_open:
            record.ended_at = at
            if phase is MovePhase.DONE and record.order.is_home:
                for other in self._moves.values():
                    if other.order.replica == record.order.pod and other.order.namespace == record.order.namespace:
                        other.is_home_again = True

    def _write(self, at: datetime, event: str, **content: Any) -> None:
        self._ledger.append([(event, content)], plan_id=RELIEF_PLAN, at=at)
        self._is_known = False
        self._follow()


def _order_of(content: Any) -> MoveOrder:
    return MoveOrder(
        move_id=content["move"],
        namespace=content["namespace"],
        pod=content["pod"],
        pod_uid=content["pod_uid"],
        workload=WorkloadId(content["workload"]),
        maker=content["maker"],
        replica=content["replica"],
        from_node=content["from_node"],
        from_card=content["from_card"],
        to_card=content["to_card"],
        framebuffer_mib=int(content["framebuffer_mib"]),
        manner=Manner(content["manner"]),
        is_home=bool(content["home"]),
        reason=sentence_of(content["reason"]),
        overloaded_at=parse_time(content["overloaded_at"]),
    )


ASSUMED_REACTION_SECONDS = 120.0
"""From an overload to the decision, where nothing was measured: a careful guess, as a person beside a pager."""


class TimingSource(StrEnum):
    """Where a figure comes from."""

    GIVEN = "given"
    MEASURED = "measured"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefTiming:
    """What relief takes.

    Attributes:
        reaction_seconds: from an overload to the decision.
        load_bytes_per_second: how fast a moving pod's framebuffer is loaded.
    """

    reaction_seconds: float
    reaction_source: TimingSource
    load_bytes_per_second: float
    load_source: TimingSource
    moves: int

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        measured = f", over {self.moves} moves" if self.moves else ""
        return (
            f"relief decides {self.reaction_seconds:g} s after an overload ({self.reaction_source.value}) and loads "
            f"{self.load_bytes_per_second / 2**30:.2f} GiB/s ({self.load_source.value}){measured}"
        )


def relief_timing(
    measured: MeasuredRelief | None,
    *,
    reaction_seconds: float | None = None,
    load_bytes_per_second: float | None = None,
) -> ReliefTiming:
    """What relief takes.

    Args:
        measured: what moves took so far; None where too few were made.
    """
    reaction, reaction_source = reaction_seconds, TimingSource.GIVEN
    if reaction is None and measured is not None and measured.reaction_seconds is not None:
        reaction, reaction_source = measured.reaction_seconds, TimingSource.MEASURED
    if reaction is None:
        reaction, reaction_source = ASSUMED_REACTION_SECONDS, TimingSource.ASSUMED
    rate, load_source = load_bytes_per_second, TimingSource.GIVEN
    if rate is None and measured is not None:
        rate, load_source = measured.load_bytes_per_second, TimingSource.MEASURED
    if rate is None:
        rate, load_source = LOAD_BYTES_PER_SECOND, TimingSource.ASSUMED
    used = TimingSource.MEASURED in (reaction_source, load_source)
    return ReliefTiming(
        reaction_seconds=reaction,
        reaction_source=reaction_source,
        load_bytes_per_second=rate,
        load_source=load_source,
        moves=measured.moves if measured is not None and used else 0,
    )
