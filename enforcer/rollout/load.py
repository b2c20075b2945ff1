"""What is carried to other seats, and which pods of it go at once.

Pure. Called by the pod mover, and by those that give it work: the stages on the way there, undo on the way back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from enforcer.backend import Move, by_workload
from enforcer.manifest import Manifest, workload_parts
from enforcer.record.journal import ObjectIntent
from enforcer.rollout.holding import Phase, changes_template, rolls_by_itself, surges
from enforcer.rollout.landing import landing_of, made_anew
from enforcer.rollout.move_order import Unit, can_go_alone
from enforcer.seat import PodSeat, same_slices
from enforcer.snapshot import Snapshot
from fleet.inventory import WorkloadId


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is to be carried.

    Attributes:
        intents: what changes of their owners, by workload; empty where that stands already.
        is_strict: True where pods go to their planned seats, and another seat is a failure; False where they go back
            (`moves` are turned round then, `intents` are those of the way there), and the scheduler may choose.
        changing_nodes: nodes that hand out their cards as before only later: pods without room are not waited for.
    """

    moves: tuple[Move, ...]
    intents: Mapping[WorkloadId, ObjectIntent]
    phase: Phase
    is_strict: bool
    changing_nodes: frozenset[str] = frozenset()

    def of(self, workload: WorkloadId) -> list[Move]:
        """Moves of one workload."""
        return [move for move in self.moves if move.workload == workload]

    def rolls(self, workload: WorkloadId) -> bool:
        """Whether all pods of a workload go at once because its template changes, and not one by one by eviction."""
        intent = self.intents.get(workload)
        kind = workload_parts(workload)[1]
        return intent is not None and changes_template(intent) and rolls_by_itself(_kind_only(kind, intent))

    def of_others(self) -> Load:
        """Those workloads alone of which no pod is to sit on a changing node."""
        late = {
            move.workload for move in self.moves if not self.changing_nodes.isdisjoint(part.node for part in move.new)
        }
        moves = tuple(move for move in self.moves if move.workload not in late)
        intents = {workload: intent for workload, intent in self.intents.items() if workload not in late}
        return replace(self, moves=moves, intents=intents)


def backwards(moves: Sequence[Move]) -> list[Move]:
    """The moves that take pods back where they came from, last first."""
    return [replace(move, old=move.new, new=move.old) for move in reversed(moves)]


def units_of(load: Load, snapshot: Snapshot) -> list[Unit]:
    """What goes at once: all pods of an owner that rolls, one pod of another; one of each where only one is tried."""
    found: list[Unit] = []
    for workload, moves in by_workload(load.moves).items():
        own = tuple(_from_here(move, snapshot) for move in moves)
        intent = load.intents.get(workload)
        if intent is not None and surges(intent):
            own = _still_to_come(own, snapshot.pods.get(workload, ()))
        if not load.is_strict or load.rolls(workload):
            found.append(own)
        else:
            going = [move for move in own if not same_slices(move.old, move.new)] or list(own)
            found += [(move,) for move in ([_tried(going, snapshot)] if load.phase is Phase.CANARY else going)]
    return found


def _kind_only(kind: str, intent: ObjectIntent) -> Manifest:
    """An owner as far as its hold says how it rolls: one that is set to `OnDelete` is evicted."""
    holds = {hold.field: hold.old for hold in intent.holds}
    is_held = kind != "StatefulSet" or "spec.updateStrategy.rollingUpdate.partition" in holds
    return {"kind": kind, "spec": {"updateStrategy": {"type": "RollingUpdate" if is_held else "OnDelete"}}}


def _tried(going: Sequence[Move], snapshot: Snapshot) -> Move:
    """The pod that goes first: one that has left already, or that finds room while its siblings still sit."""
    for move in going:
        if move.live_id not in snapshot.seats:
            return move
    fitting = (move for move in going if can_go_alone((move,), snapshot.seats, snapshot.cards, surges=False))
    return next(fitting, going[0])


def _from_here(move: Move, snapshot: Snapshot) -> Move:
    """The move from where the pod really is, while it still has its name."""
    seat = snapshot.seats.get(move.live_id)
    return move if seat is None else replace(move, old=seat.slices)


def _still_to_come(moves: Unit, pods: Sequence[PodSeat]) -> Unit:
    """The moves of an owner that surges, without the new seats that its new pods have already and the pods that left.

    Such a pod sits there beside the one that leaves for it: its seat is not to be found a second time.
    """
    there = {pod.pod_id for pod in pods}
    made = [pod.slices for pod in made_anew(moves, landing_of(moves, pods).in_place)]
    found: dict[str, Move] = {}
    # A seat that is taken already was for a pod that left, where one did.
    for move in sorted(moves, key=lambda move: move.live_id in there):
        place = next((number for number, slices in enumerate(made) if same_slices(slices, move.new)), None)
        if place is not None:
            made.pop(place)
        old, new = move.old if move.live_id in there else (), move.new if place is None else ()
        found[move.pod_id] = replace(move, old=old, new=new)
    return tuple(found[move.pod_id] for move in moves)
