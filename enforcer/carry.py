"""Carries objects and pods from one state to another, in steps that may be repeated: the hands of rollout and undo.

Every step looks at the cluster first and does only what is missing, so that it can be called again after a crash at any
moment. What is decided (and written down) is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from enforcer.backend import Move
from enforcer.cluster import ClusterReader, ClusterWriter, FieldChange, Pause
from enforcer.journal import ObjectIntent
from enforcer.manifest import Manifest, field_of, values_equal
from enforcer.move_order import waves
from enforcer.seat import PodSeat, SeatSlice, same_slices, seat_of_pod
from enforcer.snapshot import take_snapshot
from fleet.errors import Refused, Unavailable

Answer = TypeVar("Answer")

TRIES_MAX = 5
"""How often a call that the cluster could not take is made, with growing pauses."""

_FIRST_PAUSE_SECONDS = 2.0


class Landing(StrEnum):
    """Where a pod is on its way to its seat."""

    LANDED = "landed"
    """In its seat and ready, or gone where it shall be gone."""
    WAITING = "waiting"
    ELSEWHERE = "elsewhere"
    """Ready in another seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryPolicy:
    """How patient the hands are.

    Attributes:
        parallel_pods_max: pods that may be changing at once, each of another workload.
        poll_seconds: pause between looks.
        placement_seconds_max: how long a pod may take until it is ready in its new seat.
    """

    parallel_pods_max: int = 10
    poll_seconds: float = 10.0
    placement_seconds_max: float = 600.0


class Carrier:
    """Patches, evicts and waits.

    Args:
        reader: the cluster.
        writer: the cluster.
        pause: lets time pass.
        policy: how patient to be.
        step: called before every write with what it is, for tests that stop there.
    """

    def __init__(
        self,
        reader: ClusterReader,
        writer: ClusterWriter,
        pause: Pause,
        policy: CarryPolicy,
        step: Callable[[str], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._pause = pause
        self._policy = policy
        self._step = step

    def patch(self, intent: ObjectIntent) -> None:
        """Write an object's new fields, unless they stand there already.

        Raises:
            Refused: somebody changed the object since it was read, or it is gone.
            Unavailable: the cluster can't take it.
        """
        current = self._tried(lambda: self._reader.get(*intent.key))
        if _is_written(current, intent) or (current is None and intent.kind == "Pod"):
            return
        fields = [FieldChange(field=part.field, value=part.new) for part in intent.fields]
        self._step(f"patch {intent.workload}")
        try:
            self._tried(lambda: self._writer.patch(*intent.key, fields, intent.resource_version))
        except Refused:
            # An answer that was lost on its way back looks like a conflict when the call is made again.
            if not _is_written(self._tried(lambda: self._reader.get(*intent.key)), intent):
                raise

    def restore(self, intent: ObjectIntent) -> tuple[str, ...]:
        """Write an object's old fields back: those that still are as the plan left them.

        Returns:
            What was kept because somebody changed it since, one sentence each.

        Raises:
            Unavailable: the cluster can't take it.
        """
        for _ in range(TRIES_MAX):
            current = self._tried(lambda: self._reader.get(*intent.key))
            if current is None:
                return () if intent.kind == "Pod" else (f"{intent.workload} is gone",)
            fields, kept = [], []
            for part in intent.fields:
                value = field_of(current, part.field)
                if values_equal(part.field, value, part.old):
                    continue
                if values_equal(part.field, value, part.new):
                    fields.append(FieldChange(field=part.field, value=part.old))
                else:
                    kept.append(f"{intent.workload} {part.field}: somebody set it to {value!r} since")
            if not fields:
                return tuple(kept)
            version = current["metadata"]["resourceVersion"]
            self._step(f"restore {intent.workload}")
            try:
                self._tried(lambda: self._writer.patch(*intent.key, fields, version))  # noqa: B023 - called at once
            except Refused:
                # It changed between look and write: look again.
                continue
            return tuple(kept)
        return (f"{intent.workload} changes all the time, so its fields were left",)

    def move(self, moves: Sequence[Move], on_wave: Callable[[list[Move], int], None], *, strictly: bool) -> list[str]:
        """Bring pods to their seats, in an order in which they find room.

        Args:
            moves: pods, each with the seat that it shall have.
            on_wave: called with each wave and how many pods are done, before the wave is evicted.
            strictly: True where another seat than the planned one is a failure.

        Returns:
            What went wrong, one sentence per pod; empty where every pod landed. Strictly, it stops at the first wave
            that fails.

        Raises:
            Unavailable: the cluster can't take it.
        """
        snapshot = self._tried(lambda: take_snapshot(self._reader))
        missing = [
            _from_here(move, snapshot.seats.get(move.pod_id))
            for move in moves
            if _landing(snapshot.seats.get(move.pod_id), move) is not Landing.LANDED
        ]
        card_mib = {card.card: card.framebuffer_mib for card in snapshot.cards.values()}
        done = len(moves) - len(missing)
        failures: list[str] = []
        for wave in waves(missing, snapshot.seats, card_mib, self._policy.parallel_pods_max):
            on_wave(wave, done)
            for move in wave:
                # A pod that shall be gone goes with its owner's scale; one that sits right is only waited for.
                if not move.new or same_slices(move.old, move.new):
                    continue
                self._step(f"evict {move.pod_id}")
                self._tried(lambda: self._writer.evict(move.namespace, move.pod))  # noqa: B023 - called at once
            failures += self._wait(wave, strictly=strictly)
            if failures and strictly:
                return failures
            done += len(wave)
        return failures

    def _wait(self, wave: Sequence[Move], *, strictly: bool) -> list[str]:
        waited = 0.0
        waiting = list(wave)
        while True:
            still: list[Move] = []
            failures: list[str] = []
            for move in waiting:
                seat = self._seat(move)
                landing = _landing(seat, move)
                if landing is Landing.WAITING:
                    still.append(move)
                elif landing is Landing.ELSEWHERE and strictly and seat is not None:
                    failures.append(f"{move.pod_id} landed on {_shown(seat.slices)}, planned {_shown(move.new)}")
            if failures:
                return failures
            if not still:
                return []
            if waited >= self._policy.placement_seconds_max:
                return [
                    f"{move.pod_id} was not ready on {_shown(move.new)} within {waited:.0f} s: {self._why(move)}"
                    for move in still
                ]
            waiting = still
            self._pause(self._policy.poll_seconds)
            waited += self._policy.poll_seconds

    def _seat(self, move: Move) -> PodSeat | None:
        manifest = self._tried(lambda: self._reader.get("Pod", move.namespace, move.pod))
        return None if manifest is None else seat_of_pod(manifest)

    def _why(self, move: Move) -> str:
        manifest = self._reader.get("Pod", move.namespace, move.pod)
        if manifest is None:
            return "it is gone"
        for condition in manifest.get("status", {}).get("conditions", ()):
            return str(condition.get("message", "pending"))
        return "it is not ready"

    def _tried(self, call: Callable[[], Answer]) -> Answer:
        """Call, and again with growing pauses while the cluster can't take it."""
        for number in range(TRIES_MAX - 1):
            try:
                return call()
            except Unavailable:
                self._pause(_FIRST_PAUSE_SECONDS * 2**number)
        return call()


def backwards(moves: Sequence[Move]) -> list[Move]:
    """The moves that take pods back where they came from, last first."""
    return [
        Move(
            namespace=move.namespace,
            pod=move.pod,
            workload=move.workload,
            old=move.new,
            new=move.old,
            recommendation=move.recommendation,
        )
        for move in reversed(moves)
    ]


def _is_written(current: Manifest | None, intent: ObjectIntent) -> bool:
    return current is not None and all(
        values_equal(part.field, field_of(current, part.field), part.new) for part in intent.fields
    )


def _from_here(move: Move, seat: PodSeat | None) -> Move:
    """The move from where the pod really is."""
    return Move(
        namespace=move.namespace,
        pod=move.pod,
        workload=move.workload,
        old=() if seat is None else seat.slices,
        new=move.new,
        recommendation=move.recommendation,
    )


def _landing(seat: PodSeat | None, move: Move) -> Landing:
    if seat is None:
        return Landing.LANDED if not move.new else Landing.WAITING
    if not move.new or not seat.slices or not seat.is_ready:
        return Landing.WAITING
    return Landing.LANDED if same_slices(seat.slices, move.new) else Landing.ELSEWHERE


def _shown(slices: Sequence[SeatSlice]) -> str:
    return ", ".join(f"{part.card} ({part.framebuffer_mib} MiB, {part.core_percent} %)" for part in slices) or "none"
