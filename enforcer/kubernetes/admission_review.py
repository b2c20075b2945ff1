"""Answers the API server's question about a new pod: the seat that the plan keeps for it, as a patch.

What is given is decided by `enforcer.admission`; here stands what it must know of a real cluster: who else belongs to
the workload, also those that were answered a moment ago and are not there yet, by this process or by another replica.
A pod is never held up: where something can't be read, it passes as it is, with a warning for whoever made it.

Source: kubernetes/api:admission/v1 (AdmissionReview),
kubernetes/website:content/en/docs/reference/access-authn-authz/extensible-admission-controllers.md.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from enforcer.admission import CARDS_ANNOTATION, SEAT_ANNOTATION, SEATS_ANNOTATION, Sibling, admit, parse_seats
from enforcer.backends.hami_dialect import HAMI_DIALECT, USE_CARD_ANNOTATION
from enforcer.cluster import ClusterReader
from enforcer.dialect import Dialect
from enforcer.kubernetes.json_patch import differences
from enforcer.manifest import Manifest
from enforcer.ownership import controller_of, workload_of_pod
from fleet.errors import Corrupt, GputideError, Refused
from fleet.inventory import WorkloadId

UNSEEN_SECONDS_MAX = 10.0
"""For how long a seat that was given counts as taken while no pod is seen in it: its creation may have failed since."""

NOTEBOOK_LABEL = "notebook-name"
"""On a pod of a Kubeflow Notebook: its name (kubeflow/kubeflow:components/notebook-controller/controllers)."""

_PLANNED = (SEATS_ANNOTATION, CARDS_ANNOTATION)
_OVER = ("Succeeded", "Failed")


class SeatNotes(Protocol):
    """What all replicas of the admission know of seats that were given a moment ago."""

    def take(self, workload: WorkloadId, seat: str, seconds: float) -> bool:
        """Note that a seat is given; False where somebody noted it less than `seconds` ago.

        Raises:
            Misconfigured: a right is missing.
            Unavailable: nobody can be asked.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A seat that was given, of a pod that was not seen yet.

    Attributes:
        seat: its name, None where it was given a card only.
        cards: its cards.
        at: monotonic seconds.
    """

    seat: str | None
    cards: tuple[str, ...]
    at: float


class PodAdmission:
    """Gives new pods their planned seats; for several threads.

    Args:
        reader: the cluster.
        clock: monotonic seconds.
        dialect: the words by which pods tell their cards.
        notes: what other replicas have given; None where this is the only one.
    """

    def __init__(
        self,
        reader: ClusterReader,
        clock: Callable[[], float] = time.monotonic,
        *,
        dialect: Dialect = HAMI_DIALECT,
        notes: SeatNotes | None = None,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._dialect = dialect
        self._notes = notes
        self._lock = threading.Lock()
        self._given: dict[WorkloadId, list[_Given]] = {}

    def review(self, review: Mapping[str, Any]) -> Manifest:
        """The answer to one `AdmissionReview` about a pod.

        Raises:
            Corrupt: this is no such question.
        """
        try:
            request = review["request"]
            uid, namespace, pod = str(request["uid"]), str(request["namespace"]), request["object"]
            is_dry = request.get("dryRun") is True
            # A pod's containers can't be changed once it is there, so a patch would only get in somebody's way.
            is_made = request.get("operation", "CREATE") == "CREATE" and not request.get("subResource")
            metadata = pod["metadata"]
            named = {**pod, "metadata": {**metadata, "namespace": namespace, "name": metadata.get("name") or ""}}
        except (LookupError, TypeError, AttributeError) as exc:
            raise Corrupt(f"cannot answer an admission review: {exc!r}") from exc
        answer: Manifest = {"uid": uid, "allowed": True}
        try:
            patch = differences("", pod, self._seated(named, metadata, is_dry=is_dry)) if is_made else []
        except GputideError as exc:
            answer["warnings"] = [f"gputide: the pod keeps to no planned seat: {str(exc)[:200]}"]
        except (LookupError, TypeError, AttributeError, ValueError) as exc:
            raise Corrupt(f"cannot answer an admission review: its pod is not formed as one: {exc!r}") from exc
        else:
            if patch:
                answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}

    def _seated(self, pod: Manifest, metadata: Mapping[str, Any], *, is_dry: bool) -> Manifest:
        """The pod in its seat, with the metadata that it came with but for annotations."""
        planned = self._with_seats_of_owner(pod)
        annotations = planned["metadata"].get("annotations") or {}
        if not any(annotations.get(name) for name in _PLANNED):
            return {**pod, "metadata": metadata}
        workload = workload_of_pod(planned, {})
        # One after the other: two that look at the same moment would take the same seat.
        with self._lock:
            there, unseen = self._siblings(planned, workload)
            admitted = self._admitted(planned, workload, [*there, *unseen], is_dry=is_dry)
            is_without = SEATS_ANNOTATION in annotations and SEAT_ANNOTATION not in admitted["metadata"]["annotations"]
            if unseen and is_without:
                # More seats were given than pods came: creations failed, and are tried again.
                if not is_dry:
                    self._given.pop(workload, None)
                own = frozenset(given.seat for given in unseen)
                admitted = self._admitted(planned, workload, there, is_dry=is_dry, own=own)
            if not is_dry:
                self._remember(admitted, workload, _choice_of(annotations))
        return {**admitted, "metadata": {**metadata, "annotations": admitted["metadata"]["annotations"]}}

    def _admitted(
        self,
        pod: Manifest,
        workload: WorkloadId,
        siblings: list[Sibling],
        *,
        is_dry: bool,
        own: frozenset[str | None] = frozenset(),
    ) -> Manifest:
        """The pod in a seat that no other replica has just given; those that this one gave itself are `own`."""
        elsewhere: list[Sibling] = []
        while True:
            admitted = admit(pod, [*siblings, *elsewhere])
            seat = admitted["metadata"].get("annotations", {}).get(SEAT_ANNOTATION)
            if seat is None or is_dry or self._notes is None or seat in own:
                return admitted
            is_offered_again = any(sibling.seat == seat for sibling in elsewhere)
            if is_offered_again or self._notes.take(workload, seat, UNSEEN_SECONDS_MAX):
                return admitted
            elsewhere.append(Sibling(name="", seat=seat, cards=()))

    def _with_seats_of_owner(self, pod: Manifest) -> Manifest:
        """A Job's template can't be changed, a Notebook's has no annotations: there the seats stand on the owner."""
        controller = controller_of(pod)
        notebook = (pod["metadata"].get("labels") or {}).get(NOTEBOOK_LABEL)
        if controller is None or not _wants_cards(pod):
            return pod
        if controller[0] == "Job":
            kind, name = controller
        elif controller[0] == "StatefulSet" and notebook is not None:
            kind, name = "Notebook", str(notebook)
        else:
            return pod
        metadata = pod["metadata"]
        owner = self._reader.get(kind, metadata["namespace"], name)
        seats = None if owner is None else (owner["metadata"].get("annotations") or {}).get(SEATS_ANNOTATION)
        if seats is None:
            return pod
        annotations = {**(metadata.get("annotations") or {}), SEATS_ANNOTATION: seats}
        return {**pod, "metadata": {**metadata, "annotations": annotations}}

    def _siblings(self, pod: Manifest, workload: WorkloadId) -> tuple[list[Sibling], list[Sibling]]:
        """Who else of the workload is there, and who was given a seat and is not there yet."""
        found = [
            _sibling(other, self._dialect)
            for other in self._reader.list_objects("Pod", pod["metadata"]["namespace"])
            if _is_there(other) and workload_of_pod(other, {}) == workload
        ]
        seen = [(sibling.seat, sibling.cards) for sibling in found]
        unseen = [
            given
            for given in self._given.get(workload, ())
            if self._clock() - given.at < UNSEEN_SECONDS_MAX and not _is_seen(given, seen)
        ]
        self._given = {name: kept for name, kept in self._given.items() if name != workload and self._is_fresh(kept)}
        if unseen:
            self._given[workload] = unseen
        return found, [Sibling(name="", seat=given.seat, cards=given.cards) for given in unseen]

    def _remember(self, admitted: Manifest, workload: WorkloadId, choice: str) -> None:
        annotations = admitted["metadata"].get("annotations") or {}
        cards = tuple(part.strip() for part in str(annotations.get(choice, "")).split(",") if part.strip())
        given = _Given(seat=annotations.get(SEAT_ANNOTATION), cards=cards, at=self._clock())
        self._given.setdefault(workload, []).append(given)

    def _is_fresh(self, given: list[_Given]) -> bool:
        return any(self._clock() - one.at < UNSEEN_SECONDS_MAX for one in given)


def _is_seen(given: _Given, seen: list[tuple[str | None, tuple[str, ...]]]) -> bool:
    if given.seat is not None:
        return any(seat == given.seat for seat, _ in seen)
    return any(set(given.cards) == set(cards) for _, cards in seen)


def _is_there(pod: Manifest) -> bool:
    """Whether a pod keeps its place: one that was asked to go makes room for who comes instead."""
    return "deletionTimestamp" not in pod["metadata"] and pod.get("status", {}).get("phase") not in _OVER


def _sibling(pod: Manifest, dialect: Dialect) -> Sibling:
    annotations = pod["metadata"].get("annotations") or {}
    try:
        cards = tuple(part.card for part in dialect.slices_of_pod(pod) if part.card is not None)
    except (Corrupt, Refused):
        # Whatever a tenant wrote there is no place that it holds.
        cards = ()
    return Sibling(name=str(pod["metadata"]["name"]), seat=annotations.get(SEAT_ANNOTATION), cards=cards)


def _choice_of(annotations: Mapping[str, Any]) -> str:
    """The annotation by which the seats of a plan choose cards."""
    seats = parse_seats(annotations.get(SEATS_ANNOTATION, "{}")).values()
    return next((seat.annotation for seat in seats), USE_CARD_ANNOTATION)


def _wants_cards(pod: Manifest) -> bool:
    return any("/" in name for container in pod["spec"]["containers"] for name in _limits(container))


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (container.get("resources") or {}).get("limits") or {}
    return found if isinstance(found, Mapping) else {}
