"""Gives a new pod the seat that the plan keeps for it: a pure step at admission.

A template carries all cards of its workload, so that the plan holds roughly without this step. With it, each pod is
narrowed to one planned card (and to its own grant, where replicas differ), so what the scheduler does afterwards
equals the plan. Seats are named by the pods that sat there when the plan was made; whoever comes in their place under
another name takes the seat of one that is gone. Called by the simulated cluster, and for a real one by
`enforcer.kubernetes.admission_review`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from enforcer.manifest import Manifest
from enforcer.seat import CORES_RESOURCE, FRAMEBUFFER_RESOURCE, PRIORITY_RESOURCE, USE_CARD_ANNOTATION
from fleet.capability import Capabilities
from fleet.errors import Corrupt, Misconfigured

CARDS_ANNOTATION = "gputide.io/cards"
"""Planned cards of a workload, comma separated, one entry per pod and card."""

SEATS_ANNOTATION = "gputide.io/seats"
"""JSON object: pod name to its planned seat (`cards`, and `limits` where they differ from the template's)."""

SEAT_ANNOTATION = "gputide.io/seat"
"""On a pod that was given a planned seat: the seat's name in `gputide.io/seats`."""

PLAN_ANNOTATION = "gputide.io/plan-id"
PREVIOUS_ANNOTATION = "gputide.io/previous"

GRANT_RESOURCES = (FRAMEBUFFER_RESOURCE, CORES_RESOURCE, PRIORITY_RESOURCE)
"""Resources that a seat may set otherwise than the template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSeat:
    """The seat that the plan keeps for one pod.

    Attributes:
        cards: cards, sorted.
        limits: resources of each GPU container that differ from the template's; None takes one away.
        annotation: pod annotation by which the backend's scheduler is told the cards.
    """

    cards: tuple[str, ...]
    limits: tuple[tuple[str, str | None], ...] = ()
    annotation: str = USE_CARD_ANNOTATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """Another pod of the same owner.

    Attributes:
        name: name.
        seat: planned seat that it was given, None where it was given none.
        cards: cards that it holds.
    """

    name: str
    seat: str | None
    cards: tuple[str, ...]


_WHY_NOT = {
    "whole_cards": "whole cards are counted, and the kubelet picks one",
    "mgpu": "mGPU's scheduler picks the card, and no annotation names one",
    "kai": "KAI's scheduler picks the card, and no annotation names one",
    "nvidia_time_slicing": "replicas of cards are counted, and the kubelet picks one",
    "nvidia_mps": "replicas of cards are counted, and the kubelet picks one",
    "mig": "instances are counted, and the kubelet picks one",
    "dra_mig": "the scheduler allocates the device to the pod's claim, which its template names",
    "dra_shared": "the scheduler allocates the device to the claim that the template names",
}


def check_admits(capabilities: Capabilities) -> None:
    """Say plainly where no pod can be told its card, so that nobody runs a step that does nothing.

    Raises:
        Misconfigured: the backend takes no word on a single pod; its templates say all there is.
    """
    if capabilities.admits_pods:
        return
    why = _WHY_NOT.get(capabilities.backend, "it takes no word on a single pod")
    raise Misconfigured(
        f"cannot run an admission step for enforcer.backend={capabilities.backend}: none is needed, for {why}; what a "
        "plan wants stands in the templates of its owners"
    )


def admit(pod: Manifest, siblings: Sequence[Sibling]) -> Manifest:
    """Narrow a new pod to the card that the plan keeps for it.

    Args:
        pod: the pod as made from its template; not changed.
        siblings: the other pods of the same owner.

    Returns:
        The pod with the backend's choice of cards (such as `nvidia.com/use-gpuuuid`) narrowed to its own planned card:
        its own seat by name; else that of a pod that is gone, else one that no sibling was given, first those on whose
        cards no sibling sits that was not moved yet; where no seat is left, the first planned cards that no sibling
        holds, as many as a seat has. Its own grant with it. A pod without a plan comes back as it is.

    Raises:
        Corrupt: the annotation is not what `seats_text` writes.
    """
    metadata = pod["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations", {})
    seats = parse_seats(annotations.get(SEATS_ANNOTATION, "{}"))
    name = _seat_name(metadata["name"], seats, siblings)
    seat = None if name is None else seats[name]
    if seat is None:
        held = (card for sibling in siblings for card in _held_by(sibling, seats))
        seat = _first_free(annotations.get(CARDS_ANNOTATION, ""), held, _cards_each(seats))
    if seat is None:
        return pod
    kept = {key: value for key, value in annotations.items() if key != SEATS_ANNOTATION}
    if name is not None:
        kept[SEAT_ANNOTATION] = name
    like = seat if name is not None else next(iter(seats.values()), seat)
    kept[like.annotation] = ",".join(seat.cards)
    containers = [_with_limits(container, seat.limits) for container in pod["spec"]["containers"]]
    return {
        **pod,
        "metadata": {**metadata, "annotations": kept},
        "spec": {**pod["spec"], "containers": containers},
    }


def seats_text(seats: Mapping[str, PlannedSeat]) -> str:
    """Write `gputide.io/seats`."""
    content = {
        pod: {
            "cards": list(seat.cards),
            **({"limits": dict(seat.limits)} if seat.limits else {}),
            **({"by": seat.annotation} if seat.annotation != USE_CARD_ANNOTATION else {}),
        }
        for pod, seat in sorted(seats.items())
    }
    return json.dumps(content, separators=(",", ":"))


def parse_seats(text: str) -> dict[str, PlannedSeat]:
    """Read `gputide.io/seats`; the inverse of `seats_text`.

    Raises:
        Corrupt: not that form.
    """
    try:
        content = json.loads(text)
        return {
            str(pod): PlannedSeat(
                cards=tuple(str(card) for card in seat["cards"]),
                limits=tuple(
                    (str(name), None if value is None else str(value))
                    for name, value in sorted(seat.get("limits", {}).items())
                ),
                annotation=str(seat.get("by", USE_CARD_ANNOTATION)),
            )
            for pod, seat in content.items()
        }
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as exc:
        raise Corrupt(f"cannot read {SEATS_ANNOTATION}: {text[:64]!r} is no map of pods to seats") from exc


def _seat_name(pod: str, seats: Mapping[str, PlannedSeat], siblings: Sequence[Sibling]) -> str | None:
    given = {sibling.seat for sibling in siblings if sibling.seat in seats}
    if pod in seats and pod not in given:
        return pod
    # Who is named and still there, without one of these seats, was not moved yet: its seat is kept for it.
    waiting = {sibling.name for sibling in siblings if sibling.seat not in seats}
    # A card that one of those still sits on has room for this one only once it has gone.
    taken = {card for sibling in siblings if sibling.seat not in seats for card in sibling.cards}
    free = [name for name in sorted(seats) if name not in given]
    return min(free, key=lambda name: (name in waiting, not taken.isdisjoint(seats[name].cards)), default=None)


def _held_by(sibling: Sibling, seats: Mapping[str, PlannedSeat]) -> tuple[str, ...]:
    """Its cards; those of its seat while it waits for the scheduler, which has told none yet."""
    seat = None if sibling.seat is None else seats.get(sibling.seat)
    return sibling.cards or (() if seat is None else seat.cards)


def _cards_each(seats: Mapping[str, PlannedSeat]) -> int:
    return max((len(seat.cards) for seat in seats.values()), default=1)


def _first_free(cards_text: str, held_by_siblings: Iterable[str], count: int) -> PlannedSeat | None:
    """The first planned cards that nobody holds; None where they are fewer than a pod has."""
    left = Counter(held_by_siblings)
    free: dict[str, None] = {}
    for card in filter(None, cards_text.split(",")):
        if left[card] > 0:
            left[card] -= 1
        else:
            free.setdefault(card)
    return PlannedSeat(cards=tuple(free)[:count]) if 0 < count <= len(free) else None


def _with_limits(container: Manifest, limits: Sequence[tuple[str, str | None]]) -> Manifest:
    resources = container.get("resources", {})
    now = dict(resources.get("limits", {}))
    vendors = {name.partition("/")[0] for name, _ in limits}
    if not any(name.partition("/")[0] in vendors for name in now):
        return container
    granted = {"limits": now}
    if "requests" in resources:
        # The server fills requests in from limits before it asks admission, and takes no pod in which they differ.
        granted["requests"] = dict(resources["requests"])
    for name, value in limits:
        for amounts in granted.values():
            amounts.pop(name, None)
            if value is not None:
                amounts[name] = value
    return {**container, "resources": {**resources, **granted}}
