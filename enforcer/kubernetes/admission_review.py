"""Answers the API server's question about a new pod: the seat that the plan keeps for it, as a patch.

What is given is decided by `enforcer.admission`; here stands what it must know of a real cluster: the owner with the
seats, the nodes of those and the pods on them, and who else belongs to the workload, also pods that were answered a
moment ago and are not there yet, by this process or by another replica. A pod without a plan's mark costs no request. A
pod is never held up: where something can't be read, it passes as it is, with a warning to its author.

Source: kubernetes/api:admission/v1 (AdmissionReview),
kubernetes/website:content/en/docs/reference/access-authn-authz/extensible-admission-controllers.md.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from enforcer.admission import (
    PLAN_ANNOTATION,
    SEAT_ANNOTATION,
    UNPINNED_ANNOTATION,
    PlannedSeat,
    Sibling,
    admit,
    why_closed,
    why_full,
)
from enforcer.backends.hami_dialect import HAMI_DIALECT, cordoned_cards
from enforcer.cluster import ClusterReader
from enforcer.dialect import Dialect, SeatSlice
from enforcer.kinds.kind import Reach
from enforcer.kinds.register import WORKLOAD_KINDS, workload_kind
from enforcer.kubernetes.admission_probe import ANSWERED_ANNOTATION, ASKED_ANNOTATION
from enforcer.kubernetes.departures import Departure, departure_of
from enforcer.kubernetes.json_patch import differences
from enforcer.kubernetes.planned_pods import PlannedPod, planned_pod
from enforcer.manifest import Manifest
from enforcer.node_choice import why_no_room
from enforcer.ownership import workload_of_pod
from enforcer.rollout.held_mark import HELD_ANNOTATION, released
from enforcer.seat import is_over
from fleet.errors import Corrupt, GputideError, Refused
from fleet.inventory import WorkloadId
from wire.kubernetes.write import FIELD_MANAGER

UNSEEN_SECONDS_MAX = 10.0
"""For how long a seat that was given counts as taken while no pod is seen in it: its creation may have failed since."""

_PodsOn = Callable[[str], Sequence[Manifest]]


class AdmissionReader(ClusterReader, Protocol):
    """A reader that knows who is on a node.

    Each call raises `Misconfigured` where a right is missing, and `Unavailable`.
    """

    def pods_on(self, node: str) -> Sequence[Manifest]:
        """Pods of all namespaces that are bound to a node."""
        ...


class SeatNotes(Protocol):
    """What all replicas of the admission know of seats that were given a moment ago."""

    def take(self, workload: WorkloadId, seat: str, seconds: float) -> bool:
        """Note for so many seconds that a seat is given; False where somebody's note of it still holds.

        Raises:
            Misconfigured: a right is missing.
            Unavailable: nobody can be asked.
        """
        ...


def _unnoted(_: Departure) -> None:
    """A departure that nobody notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A seat that was given, of a pod that was not seen yet."""

    seat: str
    at: float


class PodAdmission:
    """Gives new pods their planned seats; for several threads.

    Args:
        clock: monotonic seconds.
        notes: what other replicas have given; None where this is the only one.
        departed: notes each pod that is not pinned though seats are planned; must not wait.
    """

    def __init__(
        self,
        reader: AdmissionReader,
        clock: Callable[[], float] = time.monotonic,
        *,
        dialect: Dialect = HAMI_DIALECT,
        notes: SeatNotes | None = None,
        departed: Callable[[Departure], None] = _unnoted,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._dialect = dialect
        self._notes = notes
        self._departed = departed
        self._lock = threading.Lock()
        self._given: dict[WorkloadId, list[_Given]] = {}

    def review(self, review: Mapping[str, Any]) -> Manifest:
        """The answer to one `AdmissionReview`.

        It is about a new pod, about a change of an owner that is held, or about the lease by which the enforcer asks
        for an answer.

        Raises:
            Corrupt: this is no such question.
        """
        try:
            request = review["request"]
            kind = (request.get("kind") or {}).get("kind")
            if kind == "Lease":
                return _answer(str(request["uid"]), _answered(request["object"]))
            if kind in WORKLOAD_KINDS:
                return _answer(str(request["uid"]), _let_go(request))
            uid, namespace, pod = str(request["uid"]), str(request["namespace"]), request["object"]
            is_dry = request.get("dryRun") is True
            # A pod's containers can't be changed once it is there, so a patch would only get in somebody's way.
            is_made = request.get("operation", "CREATE") == "CREATE" and not request.get("subResource")
            metadata = pod["metadata"]
            named = {**pod, "metadata": {**metadata, "namespace": namespace, "name": metadata.get("name") or ""}}
        except (LookupError, TypeError, AttributeError) as exc:
            raise Corrupt(f"cannot answer an admission review: {exc!r}") from exc
        try:
            seated = self._seated(named, metadata, is_dry=is_dry) if is_made else pod
            patch = differences("", pod, seated)
        except GputideError as exc:
            return _answer(uid, (), f"gputide: the pod keeps to no planned seat: {str(exc)[:200]}")
        except (LookupError, TypeError, AttributeError, ValueError) as exc:
            raise Corrupt(f"cannot answer an admission review: its pod is not formed as one: {exc!r}") from exc
        why = seated["metadata"]["annotations"].get(UNPINNED_ANNOTATION) if patch else None
        return _answer(uid, patch, None if why is None else f"gputide: the pod is not pinned: {why[:200]}")

    def _seated(self, pod: Manifest, metadata: Mapping[str, Any], *, is_dry: bool) -> Manifest:
        """The pod in its seat, with the metadata that it came with but for annotations."""
        planned = planned_pod(pod, self._reader)
        if not planned.seats:
            return {**pod, "metadata": metadata}
        workload = planned.workload
        # One after the other: two that look at the same moment would take the same seat.
        with self._lock:
            there, unseen = self._siblings(pod, workload)
            admitted, others = self._admitted(pod, planned, [*there, *unseen], is_dry=is_dry)
            # More pods than its owner wants: creations failed, and are tried again.
            is_again = planned.wanted is None or len(there) + len(unseen) + others >= planned.wanted
            if unseen and is_again and _seat_of(admitted) is None:
                if not is_dry:
                    self._given.pop(workload, None)
                own = frozenset(given.seat for given in unseen)
                admitted, _ = self._admitted(pod, planned, there, is_dry=is_dry, own=own)
            seat = _seat_of(admitted)
            if seat is not None and not is_dry:
                self._given.setdefault(workload, []).append(_Given(seat=seat, at=self._clock()))
        why = (admitted["metadata"].get("annotations") or {}).get(UNPINNED_ANNOTATION)
        if why is not None and planned.owner is not None and not is_dry:
            self._departed(departure_of(planned.owner, str(why)))
        return {**admitted, "metadata": {**metadata, "annotations": admitted["metadata"].get("annotations") or {}}}

    def _admitted(
        self,
        pod: Manifest,
        planned: PlannedPod,
        siblings: list[Sibling],
        *,
        is_dry: bool,
        own: frozenset[str | None] = frozenset(),
    ) -> tuple[Manifest, int]:
        """The pod in a seat that no other replica has just given, and how many those have; `own` are our own."""
        elsewhere: list[Sibling] = []
        # Seats of one workload are often on one node, whose pods are asked for once.
        pods_on = cache(self._reader.pods_on)
        while True:
            admitted = admit(
                pod, planned.seats, [*siblings, *elsewhere], lambda seat: self._why_closed(seat, pod, planned, pods_on)
            )
            seat = _seat_of(admitted)
            if seat is None or is_dry or self._notes is None or seat in own:
                return admitted, len(elsewhere)
            is_offered_again = any(sibling.seat == seat for sibling in elsewhere)
            if is_offered_again or self._notes.take(planned.workload, seat, UNSEEN_SECONDS_MAX):
                return admitted, len(elsewhere)
            elsewhere.append(Sibling(name="", seat=seat, cards=()))

    def _why_closed(self, seat: PlannedSeat, pod: Manifest, planned: PlannedPod, pods_on: _PodsOn) -> str | None:
        """What stands against pinning a pod to a seat, by its node as it is now: an old look would pin it for good."""
        node = self._reader.get("Node", "", seat.node)
        cards = () if node is None or not seat.cards else self._dialect.cards_of_node(node)
        closed = () if node is None else cordoned_cards(node)
        open_cards = {card.card for card in cards if card.is_healthy and card.card not in closed}
        why = why_closed(seat, pod["spec"], node, open_cards)
        if why is not None or node is None:
            return why
        others = list(_staying(pods_on(seat.node), planned))
        return why_no_room(pod, node, others) or why_full(seat, cards, self._shares(others))

    def _shares(self, pods: Iterable[Manifest]) -> Iterator[SeatSlice]:
        """What pods hold of cards; whatever a tenant wrote there is no place that it holds."""
        for pod in pods:
            with suppress(Corrupt, Refused):
                yield from self._dialect.slices_of_pod(pod)

    def _siblings(self, pod: Manifest, workload: WorkloadId) -> tuple[list[Sibling], list[Sibling]]:
        """Who else of the workload is there, and who was given a seat and is not there yet."""
        found = [
            _sibling(other, self._dialect)
            for other in self._reader.list_objects("Pod", pod["metadata"]["namespace"])
            if _is_there(other) and workload_of_pod(other, {}) == workload
        ]
        seen = {sibling.seat for sibling in found}
        unseen = [
            given
            for given in self._given.get(workload, ())
            if self._clock() - given.at < UNSEEN_SECONDS_MAX and given.seat not in seen
        ]
        self._given = {name: kept for name, kept in self._given.items() if name != workload and self._is_fresh(kept)}
        if unseen:
            self._given[workload] = unseen
        return found, [Sibling(name="", seat=given.seat, cards=()) for given in unseen]

    def _is_fresh(self, given: list[_Given]) -> bool:
        return any(self._clock() - one.at < UNSEEN_SECONDS_MAX for one in given)


def _staying(pods: Sequence[Manifest], planned: PlannedPod) -> Iterator[Manifest]:
    """Pods on the node of a seat, but for those that leave or may leave before its turn.

    Of the workload's own these are all that the plan has not placed; of others only while a stage is under way, which a
    kind that does not roll never says.
    """
    owner = planned.owner or {}
    marks = owner["metadata"].get("annotations") or {} if owner else {}
    is_settled = owner and workload_kind(owner["kind"]).reach is Reach.ROLLS and HELD_ANNOTATION not in marks
    for other in pods:
        annotations = other["metadata"].get("annotations") or {}
        is_placed = SEAT_ANNOTATION in annotations or UNPINNED_ANNOTATION in annotations
        stays = is_placed and annotations.get(PLAN_ANNOTATION) == marks.get(PLAN_ANNOTATION)
        stays = stays or (is_settled and workload_of_pod(other, {}) != planned.workload)
        if stays and _is_there(other):
            yield other


def _answer(uid: str, patch: Sequence[Manifest], warning: str | None = None) -> Manifest:
    response: Manifest = {"uid": uid, "allowed": True}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    if warning is not None:
        response["warnings"] = [warning]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _let_go(request: Mapping[str, Any]) -> list[Manifest]:
    """Takes away what holds an owner, where somebody else than the enforcer changes its template."""
    before, after = request.get("oldObject"), request["object"]
    if not before or (request.get("options") or {}).get("fieldManager") == FIELD_MANAGER:
        return []
    return differences("", after, released(before, after))


def _answered(lease: Manifest) -> list[Manifest]:
    """The word that a lease carries, given back; nothing where it carries none."""
    annotations = lease["metadata"].get("annotations") or {}
    if ASKED_ANNOTATION not in annotations:
        return []
    answered = {**annotations, ANSWERED_ANNOTATION: annotations[ASKED_ANNOTATION]}
    return differences("", lease, {**lease, "metadata": {**lease["metadata"], "annotations": answered}})


def _seat_of(pod: Manifest) -> str | None:
    seat = (pod["metadata"].get("annotations") or {}).get(SEAT_ANNOTATION)
    return None if seat is None else str(seat)


def _is_there(pod: Manifest) -> bool:
    """Whether a pod keeps its place: one that was asked to go makes room for who comes instead."""
    return "deletionTimestamp" not in pod["metadata"] and not is_over(pod)


def _sibling(pod: Manifest, dialect: Dialect) -> Sibling:
    annotations = pod["metadata"].get("annotations") or {}
    try:
        cards = tuple(part.card for part in dialect.slices_of_pod(pod) if part.card is not None)
    except (Corrupt, Refused):
        # Whatever a tenant wrote there is no place that it holds.
        cards = ()
    return Sibling(name=str(pod["metadata"]["name"]), seat=annotations.get(SEAT_ANNOTATION), cards=cards)
