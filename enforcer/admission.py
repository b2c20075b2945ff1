"""Gives a new pod the seat that the plan keeps for it: a pure step at admission.

Seats stand on the owner, never in its template: a template that named a card or a node would keep its pods from
starting for good once that node is lost. A pod is pinned to its seat only while the seat's card is there, with room, on
a node that takes pods; otherwise, and where there are more replicas than seats, it goes wherever a card fits, and says
why. So does a pod that asks for something else than its template was given, as somebody has edited it since. Such a pod
is spread: it gets a free card where there is one, else the one with most left, so that it does not take the room of
seats that are still to be given. A template carries the grant and only a hash of the seats that it was written with, by
which a pod of an older one is left alone.

Seats are named by the pods that sat there when the plan was made; a pod that comes in place of one of them under
another name takes the seat of one that is gone. Called by the simulated cluster, and for a real one by
`enforcer.kubernetes.admission_review`.

A pod is pinned by a node affinity on the node's name, not by its labels. A scheduler that asks an extender about cards
offers it only some of a large cluster's nodes (of more than a hundred, by its `percentageOfNodesToScore`), so a pod
that may use one card would find its node among them or wait for the next try. A term by the node's name is known before
any node is looked at, so that node is always offered. The user's own terms count as well: each holds on this node.

Source: kubernetes:pkg/scheduler/schedule_one.go (numFeasibleNodesToFind), kubernetes:pkg/scheduler/framework/plugins/
nodeaffinity (PreFilter by metadata.name), kubernetes:pkg/apis/core/validation (one name in a field selector),
kubernetes:pkg/controller/daemon/util (a DaemonSet's pod names its node in `matchFields`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enforcer.card_room import CardRoom
from enforcer.dialect import SeatSlice, StandingCard
from enforcer.kinds.register import workload_kind
from enforcer.manifest import Manifest
from enforcer.node_choice import may_run_on, why_node_closed
from fleet.errors import Corrupt, Misconfigured
from fleet.grammars import hami, vgpumanager
from fleet.grammars.hami import CORES_RESOURCE, FRAMEBUFFER_RESOURCE, PRIORITY_RESOURCE, USE_CARD_ANNOTATION
from fleet.units import parse_quantity

SEATS_ANNOTATION = "gputide.io/seats"
"""On an owner: JSON object, pod name to its planned seat (`node`, `cards`, and `limits` that the template lacks)."""

SEATING_ANNOTATION = "gputide.io/seating"
"""On a pod template and its pods: the seats and the grant that it was written with, see `seating_mark`."""

SEAT_ANNOTATION = "gputide.io/seat"
"""On a pod that was given a planned seat: the seat's name in `gputide.io/seats`."""

UNPINNED_ANNOTATION = "gputide.io/unpinned"
"""On a pod of a workload with planned seats that goes wherever a card fits: why."""

PLAN_ANNOTATION = "gputide.io/plan-id"
PREVIOUS_ANNOTATION = "gputide.io/previous"

GRANT_RESOURCES = (FRAMEBUFFER_RESOURCE, CORES_RESOURCE, PRIORITY_RESOURCE)
"""Resources that a seat may set otherwise than the template."""

_SPREADING = {
    hami.USE_CARD_ANNOTATION: (hami.NODE_POLICY_ANNOTATION, hami.CARD_POLICY_ANNOTATION),
    vgpumanager.USE_CARD_ANNOTATION: (vgpumanager.NODE_POLICY_ANNOTATION, vgpumanager.CARD_POLICY_ANNOTATION),
}
"""Annotations by which a pod asks a backend's scheduler to spread, by the one that names cards; Volcano has none."""
_PACKED = ("binpack", None)

_GRANT_MAX = 8
"""Most resources that a template's grant is of."""

_LOOKS_MAX = 8
"""Most seats that are looked at for one pod: where that many are lost in a row, it is not pinned."""

_OWN_PREFIX = "gputide.io/"
_QUALIFIED = re.compile(r"(?=[^/]{1,253}/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Name of an annotation or an extended resource, with its prefix."""

_OURS = (SEATS_ANNOTATION, SEAT_ANNOTATION, UNPINNED_ANNOTATION)

WITHOUT_SEATING = ("Job", "Notebook")
"""Owners whose pods carry no hash: a Job's template can't be changed, a Notebook's has no annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSeat:
    """The seat that the plan keeps for one pod.

    Attributes:
        cards: cards, sorted; empty where the backend lets no pod choose one.
        shares: framebuffer, MiB, and compute, percent, that the pod gets on each of these cards; empty where that is
            not known.
        limits: resources of each GPU container that differ from the template's; None takes one away.
        annotation: pod annotation that names the cards to the backend's scheduler.
        role: which of its owner's templates the pod is made from, as `enforcer.kinds` calls it; empty where there is
            one.
    """

    node: str
    cards: tuple[str, ...] = ()
    shares: tuple[tuple[int, int], ...] = ()
    limits: tuple[tuple[str, str | None], ...] = ()
    annotation: str = USE_CARD_ANNOTATION
    role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """Another pod of the same owner.

    Attributes:
        seat: planned seat that it was given, None where it was given none.
    """

    name: str
    seat: str | None
    cards: tuple[str, ...]


Hindrance = Callable[[PlannedSeat], str | None]
"""Why a pod can't be pinned to a seat now; None where it can."""


def admit(
    pod: Manifest, seats: Mapping[str, PlannedSeat], siblings: Sequence[Sibling], hindrance: Hindrance
) -> Manifest:
    """Pin a new pod to the seat that the plan keeps for it.

    Args:
        pod: the pod as made from its template; not changed.
        hindrance: what stands against a seat now.

    Returns:
        The pod with its seat's name and grant, the backend's choice of its cards (such as `nvidia.com/use-gpuuuid`)
        and node affinity to its node: its own seat by name; else that of a pod that is gone, else one that no sibling
        was given, first those on whose cards no sibling sits that was not moved yet, and rather one that nothing stands
        against. Where something does it has the grant alone, and where no seat is left, or it asks for something else
        than its template was given, not even that. Either way it is spread over nodes and cards, unless it wants
        another policy, and `gputide.io/unpinned` says why. A pod without seats comes back as it is.
    """
    metadata = pod["metadata"]
    own = {name: seat for name, seat in seats.items() if may_go_to(pod["spec"], seat.node)}
    if not own:
        return pod
    otherwise = asked_otherwise(pod)
    name, why = _chosen(metadata["name"], own, siblings, hindrance if otherwise is None else lambda _: otherwise)
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key not in _OURS}
    spec = pod["spec"]
    if name is not None:
        seat = seats[name]
        annotations[SEAT_ANNOTATION] = name
        if otherwise is None:
            spec = {**spec, "containers": [_with_limits(container, seat.limits) for container in spec["containers"]]}
        if why is None:
            spec = on_node(spec, seat.node)
            if seat.cards:
                annotations[seat.annotation] = ",".join(seat.cards)
    if why is not None:
        for policy in _SPREADING.get(next(iter(own.values())).annotation, ()):
            if annotations.get(policy) in _PACKED:
                annotations[policy] = "spread"
        annotations[UNPINNED_ANNOTATION] = why
    return {**pod, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def seats_for(pod: Manifest, owner: Manifest) -> dict[str, PlannedSeat]:
    """The seats of an owner that a pod may be given: those of its role, if its template was written with them.

    Raises:
        Corrupt: the annotation is not what `seats_text` writes.
    """
    text = (owner["metadata"].get("annotations") or {}).get(SEATS_ANNOTATION)
    if text is None:
        return {}
    metadata = pod["metadata"]
    role = workload_kind(str(owner["kind"])).role_of(metadata.get("labels") or {})
    found = {name: seat for name, seat in parse_seats(text).items() if seat.role in ("", role)}
    mark = (metadata.get("annotations") or {}).get(SEATING_ANNOTATION)
    is_current = owner["kind"] in WITHOUT_SEATING if mark is None else mark.partition(";")[0] == seating_of(found)
    return found if is_current else {}


def unpinned(pod: Manifest) -> Manifest:
    """A pod as it was before it was pinned to the node that it runs on; as it is where it was not."""
    node = pod["spec"].get("nodeName")
    is_pinned = SEAT_ANNOTATION in (pod["metadata"].get("annotations") or {})
    return {**pod, "spec": off_node(pod["spec"], node)} if is_pinned and node else pod


def why_closed(seat: PlannedSeat, spec: Mapping[str, Any], node: Manifest | None, cards: Collection[str]) -> str | None:
    """Why a pod would wait in vain for its seat; None where nothing is known against it.

    Args:
        node: its node; None where it is gone.
    """
    if node is None:
        return f"node {seat.node} is gone"
    if (why := why_node_closed(node)) is not None:
        return f"node {seat.node} {why}"
    if not may_run_on({"spec": spec}, node):
        return f"the pod may not run on node {seat.node} by its own selector, affinity or tolerations"
    lost = [card for card in seat.cards if card not in cards]
    return f"node {seat.node} offers card {lost[0]} no more" if lost else None


def asked_otherwise(pod: Manifest) -> str | None:
    """Where a container of a pod asks for something else than the plan's template gave it, in words; None for nowhere.

    The seat has room for what was planned, so that a pod that is pinned to it with more would wait for ever.
    """
    mark = (pod["metadata"].get("annotations") or {}).get(SEATING_ANNOTATION) or ""
    # What stands behind the last that a plan can have written, a tenant wrote.
    grant = [part.partition("=")[::2] for part in mark.split(";", _GRANT_MAX + 1)[1 : _GRANT_MAX + 1]]
    vendors = {name.partition("/")[0] for name, _ in grant}
    for container in pod["spec"]["containers"]:
        limits = (container.get("resources") or {}).get("limits") or {}
        for name, given in grant if any(limit.partition("/")[0] in vendors for limit in limits) else ():
            asked = str(limits.get(name, ""))
            if not _is_same_amount(asked, given):
                return f"container {container['name']} asks for {name}={asked or 'none'}, planned was {given or 'none'}"
    return None


def _is_same_amount(first: str, second: str) -> bool:
    """Whether two quantities are equal, however they are written: the API server shortens 9000 to 9k."""
    try:
        return first == second or (bool(first and second) and parse_quantity(first) == parse_quantity(second))
    except Misconfigured:
        return False


def why_full(seat: PlannedSeat, cards: Iterable[StandingCard], parts: Iterable[SeatSlice]) -> str | None:
    """Why a pod would wait in vain for the room that its seat promises; None where nothing is known against it."""
    rooms = {card.card: CardRoom(card.framebuffer_mib, card.slices_max) for card in cards}
    for part in parts:
        if part.card in rooms:
            rooms[part.card].count(part, 1)
    for card, (mib, percent) in zip(seat.cards, seat.shares, strict=bool(seat.shares)):
        own = SeatSlice(container="", card=card, framebuffer_mib=mib, core_percent=percent, priority=None)
        if (mib or percent) and card in rooms and not rooms[card].takes(own):
            return f"others took the room on card {card} that was planned for it"
    return None


def seats_text(seats: Mapping[str, PlannedSeat]) -> str:
    """Write `gputide.io/seats`."""
    content = {
        pod: {
            "node": seat.node,
            **({"cards": list(seat.cards)} if seat.cards else {}),
            **({"shares": [list(share) for share in seat.shares]} if seat.shares else {}),
            **({"limits": dict(seat.limits)} if seat.limits else {}),
            **({"by": seat.annotation} if seat.annotation != USE_CARD_ANNOTATION else {}),
            **({"role": seat.role} if seat.role else {}),
        }
        for pod, seat in sorted(seats.items())
    }
    return json.dumps(content, separators=(",", ":"))


def seating_of(seats: Mapping[str, PlannedSeat]) -> str:
    """Hash of the places and grants of seats, whatever their pods are called: replicas are alike."""
    found = sorted(json.dumps([seat.node, seat.cards, sorted(seat.limits), seat.annotation]) for seat in seats.values())
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def seating_mark(seats: Mapping[str, PlannedSeat], grant: Mapping[str, str | None]) -> str:
    """What a template carries of the seats that it was written with.

    Args:
        grant: resources that it gives to each container that asks for cards; None for one that it takes away.

    Returns:
        The hash of the seats, and behind each `;` a resource, `=` and its amount, which is empty for None.
    """
    return ";".join((seating_of(seats), *(f"{name}={value or ''}" for name, value in grant.items())))


def parse_seats(text: str) -> dict[str, PlannedSeat]:
    """Read `gputide.io/seats`; the inverse of `seats_text`.

    Raises:
        Corrupt: not that form, an annotation or a resource that no pod can have, or an annotation of ours. Tenants may
            write there, and what is read is patched into pods.
    """
    try:
        content = json.loads(text)
        found = {
            str(pod): PlannedSeat(
                node=str(seat["node"]),
                cards=tuple(str(card) for card in seat.get("cards", ())),
                shares=tuple((int(mib), int(percent)) for mib, percent in seat.get("shares", ())),
                limits=tuple(
                    (str(name), None if value is None else str(value))
                    for name, value in sorted(seat.get("limits", {}).items())
                ),
                annotation=str(seat.get("by", USE_CARD_ANNOTATION)),
                role=str(seat.get("role", "")),
            )
            for pod, seat in content.items()
        }
        wrong = next((what for seat in found.values() for what in _wrong_words(seat)), None)
    except (ValueError, ArithmeticError, RecursionError, LookupError, TypeError, AttributeError, Misconfigured) as exc:
        raise Corrupt(f"cannot read {SEATS_ANNOTATION}: {text[:64]!r} is no map of pods to seats") from exc
    if wrong is not None:
        raise Corrupt(f"cannot read {SEATS_ANNOTATION}: a pod can't be given {wrong[:64]!r}")
    return found


def _wrong_words(seat: PlannedSeat) -> Iterator[str]:
    """Annotation, resources and amounts of a seat that can't be patched into a pod; Misconfigured for no quantity."""
    if not _QUALIFIED.fullmatch(seat.annotation) or seat.annotation.startswith(_OWN_PREFIX):
        yield seat.annotation
    if (seat.shares and len(seat.shares) != len(seat.cards)) or any(min(share) < 0 for share in seat.shares):
        yield str(seat.shares)
    for name, value in seat.limits:
        if not _QUALIFIED.fullmatch(name):
            yield name
        if value is not None and parse_quantity(value) < 0:
            yield value


def _chosen(
    pod: str, seats: Mapping[str, PlannedSeat], siblings: Sequence[Sibling], hindrance: Hindrance
) -> tuple[str | None, str | None]:
    """The seat's name, None where none is left, and why the pod is not pinned to it, None where it is."""
    given = {sibling.seat for sibling in siblings if sibling.seat in seats}
    if pod in seats and pod not in given:
        return pod, hindrance(seats[pod])
    # Who is named and still there, without one of these seats, was not moved yet: its seat is kept for it.
    waiting = {sibling.name for sibling in siblings if sibling.seat not in seats}
    # A card that one of those still sits on has room for this one only once it has gone.
    taken = {card for sibling in siblings if sibling.seat not in seats for card in sibling.cards}
    free = sorted(
        (name for name in sorted(seats) if name not in given),
        key=lambda name: (name in waiting, not taken.isdisjoint(seats[name].cards)),
    )
    if not free:
        return None, f"each of its {len(seats)} planned seats is taken"
    reasons: dict[str, str] = {}
    for name in free[:_LOOKS_MAX]:
        why = hindrance(seats[name])
        if why is None:
            return name, None
        reasons[name] = why
    return free[0], reasons[free[0]]


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


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME = "metadata.name"


def on_node(spec: Manifest, node: str) -> Manifest:
    """A pod's spec that lets it go to one node only, and there only if the user's own terms hold."""
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    by_name = _by_name(node)
    # A term without anything in it fits no node.
    own = [term for term in _terms(spec) if term] or [{}]
    terms = [{**term, "matchFields": [*(term.get("matchFields") or ()), by_name]} for term in own]
    required = {**(of_nodes.get(_REQUIRED) or {}), "nodeSelectorTerms": terms}
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: required}}}


def off_node(spec: Manifest, node: str) -> Manifest:
    """A pod's spec without what `on_node` added."""
    by_name = _by_name(node)
    kept = []
    for term in _terms(spec):
        fields = list(term.get("matchFields") or ())
        if by_name in fields:
            fields.reverse()
            fields.remove(by_name)
            fields.reverse()
        rest = {key: value for key, value in term.items() if key != "matchFields"} | (
            {"matchFields": fields} if fields else {}
        )
        kept += [rest] if rest else []
    affinity = spec.get("affinity") or {}
    of_nodes = {key: value for key, value in (affinity.get("nodeAffinity") or {}).items() if key != _REQUIRED}
    if kept:
        of_nodes[_REQUIRED] = {"nodeSelectorTerms": kept}
    rest_of = {key: value for key, value in affinity.items() if key != "nodeAffinity"}
    rest_of |= {"nodeAffinity": of_nodes} if of_nodes else {}
    return {key: value for key, value in spec.items() if key != "affinity"} | ({"affinity": rest_of} if rest_of else {})


def may_go_to(spec: Mapping[str, Any], node: str) -> bool:
    """Whether a pod's own terms by the names of nodes leave it this one: a DaemonSet's pod has one node from its start.

    Terms by labels are not looked at.
    """
    terms = _terms(spec)
    return not terms or any(all(_fits(part, node) for part in term.get("matchFields") or ()) for term in terms)


def _by_name(node: str) -> dict[str, Any]:
    return {"key": _NAME, "operator": "In", "values": [node]}


def _terms(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return required.get("nodeSelectorTerms") or ()


def _fits(part: Mapping[str, Any], node: str) -> bool:
    is_named = node in (part.get("values") or ())
    return part.get("key") != _NAME or is_named == (part.get("operator") == "In")
