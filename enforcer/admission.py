"""Gives a new pod the seat that the plan keeps for it: a pure step at admission, later behind a webhook.

A template carries all cards of its workload, so that the plan holds roughly without this step. With it, each pod is
narrowed to one planned card (and to its own grant, where replicas differ), so what the scheduler does afterwards
equals the plan. Called by the simulated cluster; a webhook server would call the same function.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from enforcer.manifest import Manifest
from enforcer.seat import CORES_RESOURCE, FRAMEBUFFER_RESOURCE, PRIORITY_RESOURCE, USE_CARD_ANNOTATION
from fleet.errors import Corrupt

CARDS_ANNOTATION = "gputide.io/cards"
"""Planned cards of a workload, comma separated, one entry per pod and card."""

SEATS_ANNOTATION = "gputide.io/seats"
"""JSON object: pod name to its planned seat (`cards`, and `limits` where they differ from the template's)."""

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
    """

    cards: tuple[str, ...]
    limits: tuple[tuple[str, str | None], ...] = ()


def admit(pod: Manifest, held_by_siblings: Iterable[str]) -> Manifest:
    """Narrow a new pod to the card that the plan keeps for it.

    Args:
        pod: the pod as made from its template; not changed.
        held_by_siblings: cards that other pods of the same owner hold, one entry per pod and card.

    Returns:
        The pod with `nvidia.com/use-gpuuuid` narrowed to its own planned card (by pod name; else the first planned
        card that no sibling holds), and its own grant. A pod without a plan comes back as it is.

    Raises:
        Corrupt: the annotation is not what `seats_text` writes.
    """
    metadata = pod["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations", {})
    seat = parse_seats(annotations.get(SEATS_ANNOTATION, "{}")).get(metadata["name"])
    if seat is None:
        seat = _first_free(annotations.get(CARDS_ANNOTATION, ""), held_by_siblings)
    if seat is None:
        return pod
    kept = {key: value for key, value in annotations.items() if key != SEATS_ANNOTATION}
    kept[USE_CARD_ANNOTATION] = ",".join(seat.cards)
    containers = [_with_limits(container, seat.limits) for container in pod["spec"]["containers"]]
    return {
        **pod,
        "metadata": {**metadata, "annotations": kept},
        "spec": {**pod["spec"], "containers": containers},
    }


def seats_text(seats: Mapping[str, PlannedSeat]) -> str:
    """Write `gputide.io/seats`."""
    content = {
        pod: {"cards": list(seat.cards), **({"limits": dict(seat.limits)} if seat.limits else {})}
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
            )
            for pod, seat in content.items()
        }
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as exc:
        raise Corrupt(f"cannot read {SEATS_ANNOTATION}: {text[:64]!r} is no map of pods to seats") from exc


def _first_free(cards_text: str, held_by_siblings: Iterable[str]) -> PlannedSeat | None:
    left = Counter(held_by_siblings)
    for card in filter(None, cards_text.split(",")):
        if left[card] <= 0:
            return PlannedSeat(cards=(card,))
        left[card] -= 1
    return None


def _with_limits(container: Manifest, limits: Iterable[tuple[str, str | None]]) -> Manifest:
    resources = container.get("resources", {})
    now = dict(resources.get("limits", {}))
    if not any(name.startswith("nvidia.com/") for name in now):
        return container
    for name, value in limits:
        now.pop(name, None)
        if value is not None:
            now[name] = value
    return {**container, "resources": {**resources, "limits": now}}
