"""Whether the pods of a workload sit where a plan wants them, whatever they are called by now.

Pure. A Deployment gives every pod that it makes another name, and its replicas are alike: what counts is that as many
of its ready pods sit in each planned seat as the plan has there. Called by the pod mover while it waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enforcer.backend import Move
from enforcer.dialect import SeatSlice
from enforcer.kinds.register import workload_kind
from enforcer.seat import PodSeat, same_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """How the pods of one workload sit.

    Attributes:
        in_place: ready pods in planned seats, those that were made for the plan before those that always sat there.
        unmoved: pods that still sit where they sat before, also where another took their seat beside them already.
        elsewhere: ready pods in seats that are neither.
        waiting: pods without a seat, or not ready.
        outdated: ready pods elsewhere with a grant that only the old template gives.
        planned: how many pods the plan seats.
        seatless: how many pods had no seat before and get none: they may find one wherever there is room.
    """

    in_place: tuple[PodSeat, ...]
    unmoved: tuple[PodSeat, ...]
    elsewhere: tuple[PodSeat, ...]
    waiting: tuple[PodSeat, ...]
    outdated: tuple[PodSeat, ...]
    planned: int
    seatless: int

    @property
    def pods(self) -> int:
        """All pods of the workload."""
        ready = len(self.in_place) + len(self.unmoved) + len(self.elsewhere) + len(self.outdated)
        return ready + len(self.waiting)

    @property
    def is_whole(self) -> bool:
        """Every planned seat is taken by a ready pod, and nobody else is there that should not be."""
        return len(self.in_place) == self.planned and self.pods - self.planned <= self.seatless and not self.unmoved

    @property
    def is_astray(self) -> bool:
        """More pods sit elsewhere than had no seat to begin with."""
        return len(self.elsewhere) > self.seatless

    @property
    def is_waiting(self) -> bool:
        """More pods wait, or are still to be replaced, than had no seat to begin with."""
        return len(self.waiting) + len(self.outdated) > self.seatless

    @property
    def is_starting(self) -> bool:
        """More pods wait than had no seat to begin with, those aside that serve until they are replaced."""
        return len(self.waiting) > self.seatless


def landing_of(moves: Sequence[Move], pods: Sequence[PodSeat]) -> Landing:
    """Hold the pods of one workload against the plan.

    Args:
        moves: all moves of the workload; those with an equal seat before and after are pods that stay.
        pods: its pods as they are, without those that are going.
    """
    left = [move.new for move in moves if move.new]
    before = {move.live_id: move.old for move in moves if not same_slices(move.old, move.new)}
    stays = {move.live_id: move.old for move in moves if move.old and move.live_id not in before}
    in_place: list[PodSeat] = []
    unmoved: list[PodSeat] = []
    others: list[PodSeat] = []
    waiting: list[PodSeat] = []
    outdated: list[PodSeat] = []
    old_grants = {_grant(move.old) for move in moves} - {_grant(move.new) for move in moves}
    # Those that still sit where they sat come last: another's new seat may look like theirs, or be theirs.
    for pod in sorted(pods, key=lambda entry: (_sits_as_before(entry, before), entry.pod_id in stays, entry.pod)):
        if not pod.slices or not pod.is_ready:
            waiting.append(pod)
            continue
        place = next((number for number, seat in enumerate(left) if same_slices(pod.slices, seat)), None)
        if place is not None:
            in_place.append(pod)
            left.pop(place)
        elif _sits_as_before(pod, before) or _sits_as_before(pod, stays):
            unmoved.append(pod)
        elif _grant(pod.slices) in old_grants:
            # Its owner made it from the old template, in place of one that was evicted: it is replaced in its turn.
            outdated.append(pod)
        else:
            others.append(pod)
    return Landing(
        in_place=tuple(in_place),
        unmoved=tuple(unmoved),
        elsewhere=tuple(others),
        waiting=tuple(waiting),
        outdated=tuple(outdated),
        planned=sum(bool(move.new) for move in moves),
        seatless=sum(not move.old and not move.new for move in moves),
    )


def made_anew(moves: Sequence[Move], pods: Sequence[PodSeat]) -> tuple[PodSeat, ...]:
    """Pods that came since: under a name that the plan does not know, or in another seat than before."""
    before = {move.live_id: move.old for move in moves}
    return tuple(pod for pod in pods if pod.pod_id not in before or not same_slices(pod.slices, before[pod.pod_id]))


def wanted_pods(owner: Mapping[str, Any] | None, planned: int) -> int:
    """How many pods an owner wants by now."""
    if owner is None:
        return 0
    wanted = workload_kind(str(owner["kind"])).wanted(owner)
    return planned if wanted is None else min(planned, wanted)


def _sits_as_before(pod: PodSeat, before: Mapping[str, Any]) -> bool:
    return pod.pod_id in before and same_slices(pod.slices, before[pod.pod_id])


def _grant(slices: Sequence[SeatSlice]) -> tuple[tuple[str, ...], ...]:
    """What a seat grants, wherever it is."""
    return tuple(
        sorted(
            (
                part.container,
                str(part.framebuffer_mib),
                str(part.core_percent),
                part.priority or "",
                part.resource or "",
            )
            for part in slices
        )
    )
