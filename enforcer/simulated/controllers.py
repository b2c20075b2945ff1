"""What runs inside a cluster without anybody's doing: owners keep and roll their pods, admission, the scheduler.

One piece of the simulated cluster. A changed template rolls at once where the kind rolls by itself (`rolling`), under
new names but for those kinds that keep them. Whatever its name, a pod plays one pod of the recorded trace: it takes
over what the one that it replaces had to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from enforcer.admission import SEAT_ANNOTATION, PlannedSeat, Sibling, admit, may_go_to, seats_for, why_closed
from enforcer.cluster import DELETION_COST_ANNOTATION
from enforcer.manifest import Manifest, field_of
from enforcer.node_choice import may_run_on, why_node_closed
from enforcer.simulated.books import Allocation, CardBook, Unplaced
from enforcer.simulated.kind_specs import WORKERS, desired_pods, rolling_spec, template_of_trace
from enforcer.simulated.nodes import closed_places, node_manifests
from enforcer.simulated.pod_making import REVISION_KINDS, ROLLING_KINDS, bound, labelled, pod_of, reference_to
from enforcer.simulated.revisions import (
    HASH_LABEL,
    HASH_LABELS,
    NAME_KEEPING,
    REVISION_LABEL,
    pod_name,
    pod_uid,
    revision_name,
    revision_of,
)
from enforcer.simulated.rolling import RollingPod, RollingStep, daemon_step, deployment_step, group_step, stateful_step
from enforcer.simulated.store import PodRow, SimulatedStore
from enforcer.simulated.system import SharingSystem
from fleet.errors import Corrupt, Refused

START_SECONDS = 20.0
"""How long a pod needs from its placement until it is ready."""

_EVENTS_MAX = 100_000
"""Steps of rolls in one pause beyond which the controllers go in circles."""

_TO_DELETE = f"spec.workerGroupSpecs[{WORKERS}].scaleStrategy.workersToDelete"


class Controllers:
    """Keeps pods as their owners want them.

    Attributes:
        never_ready: pods (`namespace/pod` of the trace) that never become ready once made anew, for tests.
        out_of_memory: the same for pods whose container is killed for want of memory.
    """

    def __init__(self, store: SimulatedStore, system: SharingSystem, *, with_admission: bool) -> None:
        self._store = store
        self._system = system
        self._with_admission = with_admission
        self.never_ready: frozenset[str] = frozenset()
        self.out_of_memory: frozenset[str] = frozenset()

    def reconcile(self, owner: Manifest) -> None:
        """Make, end and roll pods until an owner has what it wants, or has to wait for one of them."""
        kind, namespace, name = owner["kind"], owner["metadata"]["namespace"], owner["metadata"]["name"]
        revision = revision_of(template_of_trace(owner))
        is_paused = bool(owner.get("spec", {}).get("paused"))
        if not is_paused:
            self.keep_revision(owner, revision)
        wanted = self._wanted(owner)
        has_dropped = False
        while True:
            pods = self.pods_of(kind, namespace, name)
            step = self._step(owner, wanted, pods, revision)
            if step.is_nothing:
                break
            for pod in pods:
                if pod.name in step.drop:
                    self._store.drop_pod(pod)
                    has_dropped = True
            own = self._template_before(owner, pods) if is_paused else (template_of_trace(owner), revision)
            if not self._make_missing(owner, step.make, *own) and not step.drop:
                break
        if has_dropped:
            self.retry_pending()
        self._note_rolling(owner, any(pod.revision != revision for pod in pods))

    def run_until(self, target_ms: int) -> None:
        """Let time pass, with what rolls by itself meanwhile."""
        store = self._store
        for _ in range(_EVENTS_MAX):
            rolling = store.rows("SELECT kind, namespace, name FROM rolling ORDER BY 1, 2, 3")
            now_ms = store.number("clock_ms")
            found = [moment for key in rolling for moment in self._moments(*key) if now_ms < moment <= target_ms]
            if not found:
                break
            store.set_number("clock_ms", min(found))
            for kind, namespace, name in rolling:
                owner = store.object_body(kind, namespace, name)
                if owner is None:
                    store.write(
                        "DELETE FROM rolling WHERE kind=? AND namespace=? AND name=?", [(kind, namespace, name)]
                    )
                else:
                    self.reconcile(owner[1])
        if target_ms > store.number("clock_ms"):
            store.set_number("clock_ms", target_ms)

    def remake(self, owner: Manifest, evicted: PodRow) -> None:
        """Make the pod anew that was evicted, if its owner still wants as many: of its own ReplicaSet's template."""
        kind, metadata = owner["kind"], owner["metadata"]
        left = self.pods_of(kind, metadata["namespace"], metadata["name"])
        homes = self._homes(metadata["namespace"], evicted.plays)
        if len(left) >= self._wanted(owner) or homes is None:
            return
        template: Mapping[str, Any] = template_of_trace(owner)
        revision = revision_of(template)
        keeps_old = REVISION_KINDS.get(kind) == "ReplicaSet" or _is_below_partition(owner, evicted.name)
        if keeps_old and evicted.revision != revision:
            template, revision = self._template_of_revision(owner, evicted.revision) or (template, revision)
        self._make(owner, evicted.plays, homes, template, revision)

    def begin_pod(self, owner: Manifest, name: str, homes: Sequence[str]) -> None:
        """Make a pod that a user of the trace runs, under its own name, ready at once."""
        revision = revision_of(template_of_trace(owner))
        self.keep_revision(owner, revision)
        self._make(owner, name, homes, template_of_trace(owner), revision, name=name)

    def enter(
        self,
        pod: Manifest,
        owner: tuple[str, str],
        plays: str,
        homes: Sequence[str] = (),
        revision: str = "",
        *,
        is_begun: bool = False,
    ) -> None:
        """Place a new pod and keep it, pending where no card has room.

        Args:
            owner: kind and name.
            plays: pod of the trace that it stands for.
            homes: cards that it takes if it may and they have the room.
            is_begun: it is ready at once; else it takes its time, or shows the fault that was asked for.
        """
        store, metadata, ask = self._store, pod["metadata"], self._system.ask_of(pod)
        now_ms = store.number("clock_ms")
        plays_id = f"{metadata['namespace']}/{plays}"
        is_oom = not is_begun and plays_id in self.out_of_memory
        started = now_ms if is_begun else now_ms + round(START_SECONDS * 1000)
        row = PodRow(
            namespace=metadata["namespace"],
            name=metadata["name"],
            owner_kind=owner[0],
            owner_name=owner[1],
            node=None,
            made_ms=now_ms,
            ready_ms=None if not is_begun and plays_id in self.never_ready else started,
            restarts=1 if is_oom else 0,
            is_oom=is_oom,
            reason=None,
            cpu_cores=ask.cpu_cores,
            memory_bytes=ask.memory_bytes,
            body=pod,
            plays=plays,
            revision=revision,
        )
        placed = self._place(pod, homes if is_begun or self._system.names_cards else ())
        if isinstance(placed, Unplaced):
            store.put_pod(replace(row, reason=placed.reason), ())
            store.record_event("Pod", row.namespace, row.name, "FailedScheduling", placed.reason)
        else:
            store.put_pod(bound(row, placed, store.books(), self._system), placed)

    def pods_of(self, kind: str, namespace: str, name: str) -> list[PodRow]:
        """Pods of one owner, by name."""
        return self._store.pods("namespace=? AND owner_kind=? AND owner_name=?", namespace, kind, name)

    def rolling_pods(self, owner: Manifest, pods: Sequence[PodRow]) -> list[RollingPod]:
        """What an owner's controller knows of its pods."""
        now_ms = self._store.number("clock_ms")
        revision = revision_of(template_of_trace(owner))
        found = []
        for pod in pods:
            wait_ms = 1000 * self._least_ready_seconds(owner, pod.revision)
            ready_ms = None if pod.node is None else pod.ready_ms
            is_ready = ready_ms is not None and ready_ms <= now_ms
            found.append(
                RollingPod(
                    name=pod.name,
                    is_current=pod.revision == revision,
                    is_ready=is_ready,
                    is_available=ready_ms is not None and is_ready and ready_ms + wait_ms <= now_ms,
                    going=_scale_in_order(pod, is_ready=is_ready),
                )
            )
        return found

    def keep_revision(self, owner: Manifest, revision: str) -> None:
        """Keep the ReplicaSet, or the ControllerRevision, of an owner's template."""
        kind, metadata = REVISION_KINDS.get(owner["kind"]), owner["metadata"]
        if kind is None:
            return
        name = revision_name(metadata["name"], revision)
        found = self._store.object_body(kind, metadata["namespace"], name)
        seconds = owner["spec"].get("minReadySeconds", 0)
        if found is not None and found[1]["spec"].get("minReadySeconds", 0) == seconds:
            return
        label = HASH_LABELS.get(owner["kind"], HASH_LABEL) if kind == "ReplicaSet" else REVISION_LABEL
        spec = {"template": template_of_trace(owner), "minReadySeconds": seconds}
        if kind == "ReplicaSet":
            spec |= {
                "template": labelled(template_of_trace(owner), label, revision),
                "selector": {"matchLabels": {label: revision}},
            }
        self._store.put_object(
            {
                "apiVersion": "apps/v1",
                "kind": kind,
                "metadata": {
                    "namespace": metadata["namespace"],
                    "name": name,
                    "labels": {label: revision},
                    "ownerReferences": [reference_to(owner)],
                },
                "spec": spec,
            }
        )

    def _wanted(self, owner: Manifest) -> int:
        # The trace says how many pods the users run; nobody else scales up.
        run = len(self._store.roster(owner["kind"], owner["metadata"]["namespace"], owner["metadata"]["name"]))
        desired = desired_pods(owner)
        return run if desired is None else min(desired, run)

    def _step(self, owner: Manifest, wanted: int, pods: Sequence[PodRow], revision: str) -> RollingStep:
        kind, spec = owner["kind"], rolling_spec(owner)
        known = self.rolling_pods(owner, pods)
        if kind in ("Deployment", "InferenceService", "RayService", "Rollout"):
            return deployment_step(spec, wanted, known)
        if kind in ("LeaderWorkerSet", "StatefulSet"):
            order = {pod.name: pod for pod in known}
            step = stateful_step if kind == "StatefulSet" else group_step
            return step(spec, wanted, [order[name] for name in sorted(order, key=_ordinal)])
        if kind == "DaemonSet":
            return daemon_step(spec, wanted, known)
        named = json.loads(field_of(owner, _TO_DELETE) or "[]") if kind == "RayCluster" else []
        going = sorted(known, key=lambda pod: (pod.name not in named, pod.going))
        excess = len(known) - wanted
        return RollingStep(drop=tuple(pod.name for pod in going[: max(0, excess)]), make=-excess)

    def _note_rolling(self, owner: Manifest, is_rolling: bool) -> None:
        key = (owner["kind"], owner["metadata"]["namespace"], owner["metadata"]["name"])
        if is_rolling and owner["kind"] in ROLLING_KINDS:
            self._store.write("INSERT OR IGNORE INTO rolling VALUES (?, ?, ?)", [key])
        else:
            self._store.write("DELETE FROM rolling WHERE kind=? AND namespace=? AND name=?", [key])

    def _moments(self, kind: str, namespace: str, name: str) -> list[int]:
        """When pods of an owner become ready or available."""
        owner = self._store.object_body(kind, namespace, name)
        if owner is None:
            return []
        found = []
        for pod in self.pods_of(kind, namespace, name):
            if pod.ready_ms is not None and pod.node is not None:
                wait_ms = 1000 * self._least_ready_seconds(owner[1], pod.revision)
                found += [pod.ready_ms, pod.ready_ms + wait_ms]
        return found

    def _least_ready_seconds(self, owner: Manifest, revision: str) -> int:
        """How long a pod must be ready to count; a ReplicaSet that is rolled away keeps what it was made with."""
        if REVISION_KINDS.get(owner["kind"]) == "ReplicaSet":
            namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
            found = self._store.object_body("ReplicaSet", namespace, revision_name(name, revision))
            return 0 if found is None else int(found[1]["spec"].get("minReadySeconds", 0))
        return int(owner.get("spec", {}).get("minReadySeconds", 0))

    def _template_of_revision(self, owner: Manifest, revision: str) -> tuple[Mapping[str, Any], str] | None:
        metadata = owner["metadata"]
        kind = REVISION_KINDS[owner["kind"]]
        found = self._store.object_body(kind, metadata["namespace"], revision_name(metadata["name"], revision))
        return None if found is None else (found[1]["spec"]["template"], revision)

    def _template_before(self, owner: Manifest, pods: Sequence[PodRow]) -> tuple[Mapping[str, Any], str]:
        """What a paused Deployment makes its pods from: the revision that most of them have."""
        counted = sorted({pod.revision for pod in pods}, key=lambda name: sum(pod.revision != name for pod in pods))
        found = self._template_of_revision(owner, counted[0]) if counted else None
        return found or (template_of_trace(owner), revision_of(template_of_trace(owner)))

    def _make_missing(self, owner: Manifest, count: int, template: Mapping[str, Any], revision: str) -> int:
        """Make up to `count` pods for those of the trace that nobody plays, then for those that are rolled away."""
        if count <= 0:
            return 0
        kind, namespace, name = owner["kind"], owner["metadata"]["namespace"], owner["metadata"]["name"]
        roster = self._store.roster(kind, namespace, name)
        pods = self.pods_of(kind, namespace, name)
        played = {pod.plays for pod in pods}
        free = [row for row in roster if row[0] not in played]
        current = {pod.plays for pod in pods if pod.revision == revision}
        doubled = [row for row in roster if row[0] in played and row[0] not in current]
        chosen = (free + doubled)[:count] if kind not in NAME_KEEPING else free[:count]
        made = [self._make(owner, plays, json.loads(homes), template, revision) for plays, homes in chosen]
        return sum(made)

    def _homes(self, namespace: str, plays: str) -> list[str] | None:
        found = self._store.rows("SELECT homes FROM roster WHERE namespace=? AND pod=?", namespace, plays)
        return list(json.loads(found[0][0])) if found else None

    def _make(
        self,
        owner: Manifest,
        plays: str,
        homes: Sequence[str],
        template: Mapping[str, Any],
        revision: str,
        *,
        name: str | None = None,
    ) -> bool:
        """Make one pod of an owner and place it; False where the sharing system's webhook denies it.

        Args:
            plays: pod of the trace that it stands for.
            name: its name, where it is the trace's and it runs already; None where a controller makes it.
        """
        store, namespace = self._store, owner["metadata"]["namespace"]
        is_begun = name is not None
        if name is None:
            name = self._name(owner, plays, revision)
        pod = pod_of(owner, name, template, revision)
        pod["metadata"]["uid"] = pod_uid(namespace, name, store.number("version"))
        try:
            seats = seats_for(pod, owner) if self._with_admission else {}
        except Corrupt:
            # As the webhook: a pod whose owner has seats that nobody can read passes as it is.
            seats = {}
        if seats:
            pod = admit(pod, seats, self._siblings(owner, name), partial(self._why_closed, spec=pod["spec"]))
        try:
            pod = self._system.mutate(pod)
        except Refused as exc:
            maker = pod["metadata"]["ownerReferences"][0]
            store.record_event(maker["kind"], namespace, maker["name"], "FailedCreate", str(exc))
            return False
        self.enter(pod, (owner["kind"], owner["metadata"]["name"]), plays, homes, revision, is_begun=is_begun)
        return True

    def _name(self, owner: Manifest, plays: str, revision: str) -> str:
        if owner["kind"] in NAME_KEEPING:
            return plays
        namespace, owner_name = owner["metadata"]["namespace"], owner["metadata"]["name"]
        found = self._store.rows("SELECT remade FROM roster WHERE namespace=? AND pod=?", namespace, plays)
        number = int(found[0][0]) if found else 0
        self._store.write("UPDATE roster SET remade=? WHERE namespace=? AND pod=?", [(number + 1, namespace, plays)])
        by_set = REVISION_KINDS.get(owner["kind"]) == "ReplicaSet"
        maker = revision_name(owner_name, revision) if by_set else owner_name
        return pod_name(maker, plays, number)

    def retry_pending(self) -> None:
        """Give every pending pod another try, oldest first."""
        store = self._store
        now_ms = store.number("clock_ms")
        for pod in sorted(store.pods("node IS NULL"), key=lambda row: (row.made_ms, row.name)):
            homes = self._homes(pod.namespace, pod.plays) if self._system.names_cards else None
            placed = self._place(pod.body, homes or ())
            if isinstance(placed, Unplaced):
                continue
            ready = None if pod.ready_ms is None else now_ms + round(START_SECONDS * 1000)
            store.drop_pod(pod)
            store.put_pod(bound(pod, placed, store.books(), self._system, ready_ms=ready), placed)

    def _place(self, pod: Manifest, homes: Sequence[str]) -> tuple[Allocation, ...] | Unplaced:
        books, system = self._store.books(), self._system
        ask = system.ask_of(pod)
        if not ask.containers:
            return Unplaced(reason="asks for no card")
        closed, written = closed_places(self._store)
        allowed = self._allowed(pod, books.nodes, written)
        cards: Iterable[CardBook] = books.cards.values()
        used = [books.cards[card] for card in ask.use_cards if card in books.cards]
        if ask.use_cards and len({card.node for card in used}) <= 1:
            # Where only one node can be chosen, its score says nothing.
            cards = sorted(used, key=lambda card: card.card)
        own = [books.cards[card] for card in homes if card in books.cards and card not in closed]
        if not ask.use_cards and len(own) == len(homes) and own:
            at_home = system.place(ask, own, books.nodes, (), allowed)
            if not isinstance(at_home, Unplaced):
                return at_home
        return system.place(ask, cards, books.nodes, closed, allowed)

    def _allowed(self, pod: Manifest, nodes: Iterable[str], written: Mapping[str, Manifest]) -> frozenset[str] | None:
        """Nodes that a pod may go to by its own word, their cordon and the sharing system; None for all."""
        spec, may_run = pod["spec"], self._system.may_run
        is_open = not any(why_node_closed(node) for node in written.values())
        if is_open and may_run is None and not (spec.get("affinity") or spec.get("nodeSelector")):
            return None
        named = {name for name in nodes if may_go_to(spec, name)}
        return frozenset(
            str(node["metadata"]["name"])
            for node in node_manifests(self._store, self._system, named)
            if why_node_closed(node) is None and may_run_on(pod, node) and (may_run is None or may_run(pod, node))
        )

    def _why_closed(self, seat: PlannedSeat, spec: Manifest) -> str | None:
        """What stands against pinning a pod to a seat, by the books."""
        books = self._store.books()
        if seat.node not in books.nodes:
            return why_closed(seat, spec, None, ())
        closed, _ = closed_places(self._store)
        (node,) = node_manifests(self._store, self._system, {seat.node})
        here = (card for card in seat.cards if card in books.cards and books.cards[card].node == seat.node)
        cards = {card for card in here if card not in closed}
        return why_closed(seat, spec, node, cards)

    def _siblings(self, owner: Manifest, name: str) -> list[Sibling]:
        metadata = owner["metadata"]
        found = []
        for pod in self.pods_of(owner["kind"], metadata["namespace"], metadata["name"]):
            if pod.name != name:
                cards = tuple(part.card for part in self._store.allocations(pod.namespace, pod.name))
                seat = pod.body["metadata"]["annotations"].get(SEAT_ANNOTATION)
                found.append(Sibling(name=pod.name, seat=seat, cards=cards))
        return found


def _scale_in_order(pod: PodRow, *, is_ready: bool) -> tuple[Any, ...]:
    """Pending before running, unready before ready, then the lowest deletion cost, then the youngest name."""
    try:
        cost = int(pod.body["metadata"]["annotations"].get(DELETION_COST_ANNOTATION, "0"))
    except ValueError:
        cost = 0
    backwards = "".join(chr(0x10FFFF - ord(letter)) for letter in pod.plays)
    return pod.node is not None, is_ready, cost, (-len(pod.plays), backwards)


def _ordinal(name: str) -> tuple[int, str]:
    """Place of a StatefulSet's pod; traces may hold names without a number."""
    number = name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0), name


def _is_below_partition(owner: Manifest, name: str) -> bool:
    if owner["kind"] not in ("LeaderWorkerSet", "StatefulSet"):
        return False
    rolling = rolling_spec(owner).get("updateStrategy", {}).get("rollingUpdate") or {}
    return _ordinal(name)[0] < int(rolling.get("partition", 0))
