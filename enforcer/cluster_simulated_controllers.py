"""What runs inside a cluster without anybody's doing: owners keep their pods, admission, the scheduler.

One piece of the simulated cluster. An owner's template reaches its pods when they are made; a pod keeps its name when
it is made anew, because recorded traces know pods by their names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from enforcer.admission import SEATS_ANNOTATION, admit
from enforcer.cluster import DELETION_COST_ANNOTATION, STOPPED_ANNOTATION
from enforcer.cluster_simulated_store import Books, PodRow, SimulatedStore
from enforcer.hami_scheduler import Allocation, CardBook, Unplaced, place
from enforcer.hami_webhook import PodAsk, ask_of, mutate
from enforcer.manifest import Manifest, template_of
from enforcer.seat import WHOLE_CORE_PERCENT
from fleet.grammar import DEVICES_ALLOCATED_ANNOTATION, VGPU_NODE_ANNOTATION, DeviceGrant, render_devices_allocated

START_SECONDS = 20.0
"""How long a pod needs from its placement until it is ready."""


class Controllers:
    """Keeps pods as their owners want them.

    Args:
        store: the state.
        with_admission: whether gputide's admission step runs.
    """

    def __init__(self, store: SimulatedStore, *, with_admission: bool) -> None:
        self._store = store
        self._with_admission = with_admission
        self.never_ready: frozenset[str] = frozenset()
        self.out_of_memory: frozenset[str] = frozenset()

    def reconcile(self, owner: Manifest) -> None:
        """Make or end pods until an owner has as many as it wants."""
        kind, namespace, name = owner["kind"], owner["metadata"]["namespace"], owner["metadata"]["name"]
        pods = self._store.pods("namespace=? AND owner_kind=? AND owner_name=?", namespace, kind, name)
        roster = self._store.rows(
            "SELECT pod, homes FROM roster WHERE namespace=? AND owner_kind=? AND owner_name=? ORDER BY pod",
            namespace, kind, name,
        )  # fmt: skip
        desired = desired_pods(owner)
        # The trace tells how many pods the users run; nobody else scales up.
        wanted = len(roster) if desired is None else min(desired, len(roster))
        for pod in sorted(pods, key=_scale_in_order)[: max(0, len(pods) - wanted)]:
            self._store.drop_pod(pod)
        names = {pod.name for pod in pods}
        missing = [(pod, json.loads(homes)) for pod, homes in roster if pod not in names]
        for pod_name, homes in missing[: max(0, wanted - len(pods))]:
            self.make_pod(owner, pod_name, homes)
        if len(pods) > wanted:
            self.retry_pending()

    def make_pod(self, owner: Manifest, name: str, homes: Sequence[str], *, is_ready: bool = False) -> None:
        """Make one pod of an owner and place it.

        Args:
            owner: its owner.
            name: its name.
            homes: cards that it takes if it may and they have the room.
            is_ready: True where it is known to run already.
        """
        store, namespace = self._store, owner["metadata"]["namespace"]
        pod = _pod_of(owner, name)
        if self._with_admission:
            pod = admit(pod, self._held_by_siblings(owner, name))
        pod = mutate(pod)
        ask = ask_of(pod)
        now_ms = store.number("clock_ms")
        placed = self._place(ask, homes)
        pod_id = f"{namespace}/{name}"
        started = now_ms if is_ready else now_ms + round(START_SECONDS * 1000)
        row = PodRow(
            namespace=namespace,
            name=name,
            owner_kind=owner["kind"],
            owner_name=owner["metadata"]["name"],
            node=None,
            made_ms=now_ms,
            ready_ms=None if pod_id in self.never_ready else started,
            restarts=1 if pod_id in self.out_of_memory else 0,
            is_oom=pod_id in self.out_of_memory,
            reason=placed.reason if isinstance(placed, Unplaced) else None,
            cpu_cores=ask.cpu_cores,
            memory_bytes=ask.memory_bytes,
            body=pod,
        )
        if isinstance(placed, Unplaced):
            store.put_pod(row, ())
            store.record_event("Pod", namespace, name, "FailedScheduling", placed.reason)
        else:
            store.put_pod(_bound(row, placed, store.books()), placed)

    def retry_pending(self) -> None:
        """Give every pending pod another try, oldest first."""
        store = self._store
        now_ms = store.number("clock_ms")
        for pod in sorted(store.pods("node IS NULL"), key=lambda row: (row.made_ms, row.name)):
            homes = store.rows("SELECT homes FROM roster WHERE namespace=? AND pod=?", pod.namespace, pod.name)
            placed = self._place(ask_of(pod.body), json.loads(homes[0][0]) if homes else ())
            if isinstance(placed, Unplaced):
                continue
            ready = None if pod.ready_ms is None else now_ms + round(START_SECONDS * 1000)
            store.drop_pod(pod)
            store.put_pod(_bound(pod, placed, store.books(), ready_ms=ready), placed)

    def _place(self, ask: PodAsk, homes: Sequence[str]) -> tuple[Allocation, ...] | Unplaced:
        books = self._store.books()
        if not ask.containers:
            return Unplaced(reason="asks for no card")
        if ask.use_cards:
            cards: Iterable[CardBook] = [books.cards[card] for card in sorted(ask.use_cards) if card in books.cards]
        else:
            own = [books.cards[card] for card in homes if card in books.cards]
            if len(own) == len(homes) and own:
                at_home = place(ask, own, books.nodes)
                if not isinstance(at_home, Unplaced):
                    return at_home
            cards = books.cards.values()
        return place(ask, cards, books.nodes)

    def _held_by_siblings(self, owner: Manifest, name: str) -> list[str]:
        metadata = owner["metadata"]
        found = self._store.rows(
            "SELECT card FROM slots JOIN pods ON slots.namespace = pods.namespace AND slots.pod = pods.name "
            "WHERE pods.namespace=? AND owner_kind=? AND owner_name=? AND pods.name<>?",
            metadata["namespace"], owner["kind"], metadata["name"], name,
        )  # fmt: skip
        return [row[0] for row in found]


def desired_pods(owner: Manifest) -> int | None:
    """How many pods an owner wants; None where it wants all that its users run."""
    spec = owner.get("spec", {})
    if STOPPED_ANNOTATION in owner["metadata"].get("annotations", {}) or spec.get("suspend") is True:
        return 0
    found: Any = spec.get("replicas")
    return None if found is None else int(found)


def _pod_of(owner: Manifest, name: str) -> Manifest:
    template = template_of(owner)
    metadata = template.get("metadata", {})
    annotations = dict(metadata.get("annotations", {}))
    # A Job's template can't be changed, so its seats stand on the Job itself, where an admission webhook looks them up.
    own_seats = owner["metadata"].get("annotations", {}).get(SEATS_ANNOTATION)
    if own_seats is not None:
        annotations[SEATS_ANNOTATION] = own_seats
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": owner["metadata"]["namespace"],
            "name": name,
            "annotations": annotations,
            "labels": dict(metadata.get("labels", {})),
            "ownerReferences": [{**reference, "controller": True}],
        },
        "spec": dict(template.get("spec", {})),
    }


def _bound(pod: PodRow, allocations: Sequence[Allocation], books: Books, *, ready_ms: int | None = None) -> PodRow:
    """The pod with what the scheduler writes on it."""
    node = books.cards[allocations[0].card].node
    per_container = [
        [
            DeviceGrant(
                card=part.card,
                device_type="NVIDIA",
                framebuffer_mib=part.framebuffer_mib,
                core_percent=min(part.core_percent, WHOLE_CORE_PERCENT),
            )
            for part in allocations
            if part.container == container["name"]
        ]
        for container in pod.body["spec"]["containers"]
    ]
    metadata = pod.body["metadata"]
    annotations = {
        **metadata["annotations"],
        VGPU_NODE_ANNOTATION: node,
        DEVICES_ALLOCATED_ANNOTATION: render_devices_allocated(per_container),
    }
    body = {
        **pod.body,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**pod.body["spec"], "nodeName": node},
    }
    return PodRow(
        namespace=pod.namespace,
        name=pod.name,
        owner_kind=pod.owner_kind,
        owner_name=pod.owner_name,
        node=node,
        made_ms=pod.made_ms,
        ready_ms=pod.ready_ms if ready_ms is None else ready_ms,
        restarts=pod.restarts,
        is_oom=pod.is_oom,
        reason=None,
        cpu_cores=pod.cpu_cores,
        memory_bytes=pod.memory_bytes,
        body=body,
    )


def _scale_in_order(pod: PodRow) -> tuple[int, bool, tuple[int, str]]:
    """Lowest deletion cost first, then pending before running, then the youngest name."""
    cost = pod.body["metadata"]["annotations"].get(DELETION_COST_ANNOTATION, "0")
    backwards = "".join(chr(0x10FFFF - ord(letter)) for letter in pod.name)
    return int(cost), pod.node is not None, (-len(pod.name), backwards)
