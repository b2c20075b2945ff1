"""Who was granted which slice of which card on one node, used or not, and which processes are on the cards.

Pure: what the driver, the kubelet, the API server and `/proc` said at one moment goes in, grants and what is odd about
them come out, from the moment of the grant. Which source counts depends on the component that handed the slice out:

- An id of the kubelet's that names a card or MIG instance (NVIDIA's plugin, GKE's) is the truth, and no annotation that
  a tenant may have written changes it.
- An id of HAMi's or Volcano's names a card that the pod may not hold; the scheduler's annotation is the truth. Without
  it, as when the API server can't be asked, the id is all there is, and the slice says so.
- Grants of dynamic resource allocation come from ResourceClaims, or from the kubelet's view of them.
- A share of KAI's is on the card that the group's reservation pod holds.

What one container holds of one card is one slice, be it several replicas or instances. The workload of a pod is found
by walking up its owners: the controller of the last object that is known is the workload, so custom kinds need no list
of their own. A reader that may not read ReplicaSets still finds Deployments, because a ReplicaSet is named after its
own and the template's hash, and the pod carries the hash as a label.

A process in a container that was granted the card belongs to that slice. A pod's process on a card that the pod was not
granted is a finding, because it takes from the pods that were (a privileged pod, or one that sees every card). The
server of MPS is no such process: it works for the tenants.

Called by the node exporter once per round; `exporter.node.reader` makes changes of it.

Source: kubernetes:pkg/controller/deployment/sync.go (getNewReplicaSet), argoproj/argo-rollouts:utils/defaults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from exporter.allocation.records import ContainerNeeds, OwnerLinkRecord
from exporter.attribution.cgroup import CgroupPlace, Occupant, place_that_counts
from exporter.attribution.pods import PodFacts
from exporter.attribution.records import (
    AttributedSlice,
    Attribution,
    Finding,
    FindingKind,
    GrantSource,
    NodeView,
    ProcessOnCard,
)
from exporter.attribution.sources import Held, Sources
from exporter.kubelet.pod_resources import DeviceRow, PodRow
from fleet.grammars.kai import RESERVATION_NAMESPACES
from fleet.inventory import CardId, Grant, Priority
from fleet.workload_kinds import NO_WORKLOADS, OWNER_LINKS_MAX, TEMPLATE_HASHES

FINDINGS_MAX = 1000
"""Most findings that are kept of one round."""

CLOCK_SKEW_MAX = timedelta(minutes=5)
"""How far the clock of the machine that binds pods may be ahead of this node's."""

PodName = tuple[str, str]
"""Namespace and name."""


class Attributor:
    """Joins one round after the other, and grants anew only where more has changed than processes. For one thread.

    Pods come and go far less often than they are looked at, and with 80 containers the join is most of a round. The
    plugin of a resource that lists nothing any more is away, or starts anew: what it listed last goes on telling how
    many share a card.
    """

    def __init__(self) -> None:
        self._view: NodeView | None = None
        self._listed: tuple[DeviceRow, ...] = ()
        self._granted = Attribution(slices=(), findings=())

    def attribute(self, view: NodeView, now: datetime) -> Attribution:
        """Joins all sources of one node, as `attribute` does; grants without a start of their own keep their first."""
        bare = replace(view, processes=(), allocatable=self._allocatable(view))
        if bare != self._view:
            self._granted = _granted(bare, now)
            self._view = bare
        return _seated(self._granted, view)

    def _allocatable(self, view: NodeView) -> tuple[DeviceRow, ...] | None:
        if view.allocatable is None:
            return None
        listed = tuple(row for row in view.allocatable if row.ids)
        resources = {row.resource for row in listed}
        self._listed = (*listed, *(row for row in self._listed if row.resource not in resources))
        return self._listed


def attribute(view: NodeView, now: datetime) -> Attribution:
    """Joins all sources of one node.

    Args:
        now: the moment, UTC; start of grants whose own start nobody knows.
    """
    return _seated(_granted(view, now), view)


def _granted(view: NodeView, now: datetime) -> Attribution:
    sources = Sources(view)
    facts_of = _living(view)
    over = {_name(facts) for facts in view.pods or () if facts.record.is_over} - facts_of.keys()
    rows_of: dict[PodName, list[PodRow]] = defaultdict(list)
    for row in view.rows or ():
        if _holds_something(row) and row.namespace not in RESERVATION_NAMESPACES:
            rows_of[row.namespace, row.pod].append(row)
    slices: list[AttributedSlice] = []
    for name in sorted(facts_of.keys() | rows_of.keys()):
        rows = rows_of.get(name, [])
        if name in over:
            sources.findings.append(_finding(FindingKind.FINISHED_POD, name))
            continue
        held = _held(sources, view, name, facts_of.get(name), rows)
        slices += _slices(_Pod(view=view, name=name, facts=facts_of.get(name), now=now), held, sources.findings)
    return Attribution(slices=tuple(slices), findings=_in_order(sources.findings))


def _seated(granted: Attribution, view: NodeView) -> Attribution:
    seated = seat_processes(granted.slices, view)
    odd = seated.findings
    return replace(seated, findings=_in_order((*granted.findings, *odd)) if odd else granted.findings)


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    ordered = sorted(
        set(findings),
        key=lambda finding: (
            finding.kind.value, finding.namespace, finding.pod, finding.container, finding.card, finding.detail,
        ),
    )  # fmt: skip
    return tuple(ordered[:FINDINGS_MAX])


def _living(view: NodeView) -> Mapping[PodName, PodFacts]:
    """Pods of this node that hold what they were granted; reservation pods hold it for others."""
    return {
        _name(facts): facts
        for facts in view.pods or ()
        if not facts.record.is_over
        and facts.record.node == view.node
        and facts.record.namespace not in RESERVATION_NAMESPACES
    }


def _held(
    sources: Sources, view: NodeView, name: PodName, facts: PodFacts | None, rows: Sequence[PodRow]
) -> list[tuple[Held, bool]]:
    """All that a pod's containers hold; with each, whether the kubelet confirms it."""
    annotated = [] if facts is None else sources.of_annotations(facts)
    claimed = [] if facts is None else sources.of_claims(facts.record)
    grouped = [] if facts is None else sources.of_groups(facts.record)
    handed: dict[str, list[Held]] = defaultdict(list)
    for row in rows:
        for given in row.containers:
            is_annotated = any(part.container == given.container for part in annotated)
            handed[given.container] += sources.of_kubelet(row, given, is_annotated=is_annotated)
    if len(rows) > 1:
        # The kubelet gives no UID: what was handed out may belong to the life before.
        handed = {container: [replace(part, is_certain=False) for part in parts] for container, parts in handed.items()}
        sources.findings.append(_finding(FindingKind.TWO_LIVES, name))
    if rows and facts is None and view.pods is not None:
        sources.findings.append(_finding(FindingKind.UNKNOWN_POD, name))
    has_devices = {given.container for row in rows for given in row.containers if given.devices or given.claims}
    found: list[tuple[Held, bool]] = [(part, False) for part in grouped]
    for container in dict.fromkeys([*(part.container for part in (*annotated, *claimed)), *handed]):
        chosen = _chosen(
            [part for part in annotated if part.container == container],
            [part for part in claimed if part.container == container],
            handed.get(container, []),
        )
        found += chosen.held
        if chosen.differs:
            cards = ", ".join(sorted(chosen.differs))
            sources.findings.append(_finding(FindingKind.CARD_DIFFERS, name, container, detail=cards))
        is_annotated = any(part.container == container for part in annotated)
        if is_annotated and view.rows is not None and container not in has_devices:
            sources.findings.append(_finding(FindingKind.NOT_HANDED_OUT, name, container))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """What counts of one container's sources, and the cards on which they disagree."""

    held: tuple[tuple[Held, bool], ...]
    differs: frozenset[str] = frozenset()


def _chosen(annotated: Sequence[Held], claimed: Sequence[Held], handed: Sequence[Held]) -> _Chosen:
    exact = [part for part in handed if part.is_certain]
    if claimed:
        # The kubelet lists a claim's devices too; how much of them was given, the claim alone says.
        rest = [part for part in exact if part.unit not in [given.unit for given in claimed]]
        confirmed = {part.unit for part in exact}
        return _Chosen(held=(*((part, part.unit in confirmed) for part in claimed), *((part, False) for part in rest)))
    if exact:
        cards, said = _cards(exact), _cards(annotated)
        differs = cards ^ said if annotated else frozenset()
        return _Chosen(held=tuple((part, False) for part in exact), differs=frozenset(differs))
    if annotated:
        differs = _cards(annotated) ^ _cards(handed) if handed else frozenset()
        return _Chosen(held=tuple((part, bool(handed)) for part in annotated), differs=frozenset(differs))
    return _Chosen(held=tuple((part, False) for part in handed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pod:
    """A pod while its slices are made."""

    view: NodeView
    name: PodName
    facts: PodFacts | None
    now: datetime


def _slices(pod: _Pod, held: Iterable[tuple[Held, bool]], findings: list[Finding]) -> list[AttributedSlice]:
    by_slice: dict[tuple[str, CardId], list[tuple[Held, bool]]] = defaultdict(list)
    for part, is_confirmed in held:
        by_slice[part.container, part.unit.card.card].append((part, is_confirmed))
    slices = []
    for (container, card), parts in sorted(by_slice.items()):
        made = _slice(pod, container, parts)
        slices.append(made)
        if not made.is_certain:
            findings.append(_finding(FindingKind.UNCERTAIN_CARD, pod.name, container, str(card)))
        elif not made.is_amount_known:
            findings.append(_finding(FindingKind.UNKNOWN_AMOUNT, pod.name, container, str(card)))
    return slices


def _slice(pod: _Pod, container: str, parts: Sequence[tuple[Held, bool]]) -> AttributedSlice:
    held = [part for part, _ in parts]
    card = held[0].unit.card
    record = None if pod.facts is None else pod.facts.record
    needs = _needs(pod.facts, container)
    labels = () if record is None else record.labels
    workload = workload_of(pod.name[1], None if record is None else record.owner, dict(labels), pod.view.owners)
    framebuffer = sum(
        card.framebuffer_bytes if part.framebuffer_bytes is None else part.framebuffer_bytes for part in held
    )
    ratio = sum(1.0 if part.compute_ratio is None else part.compute_ratio for part in held)
    instances = sorted(
        (part.unit.instance for part in held if part.unit.instance is not None),
        key=lambda instance: (-(instance.framebuffer_bytes or 0), instance.instance or ""),
    )
    sources = dict.fromkeys(part.source for part in held)
    if any(is_confirmed for _, is_confirmed in parts):
        sources.setdefault(GrantSource.POD_RESOURCES)
    return AttributedSlice(
        grant=Grant(
            cluster=pod.view.cluster,
            namespace=pod.name[0],
            pod=pod.name[1],
            container=container,
            workload=workload.name,
            workload_kind=workload.kind,
            node=pod.view.node,
            card=card.card,
            card_model=card.card_model,
            framebuffer_bytes=card.framebuffer_bytes,
            # Several replicas of a card give no more of it than it has; to oversubscribe one is a scheduler's decision.
            framebuffer_granted_bytes=framebuffer if len(held) == 1 else min(framebuffer, card.framebuffer_bytes),
            compute_granted_ratio=min(1.0, ratio),
            priority=Priority.NORMAL if needs is None else needs.priority,
            server=None if needs is None else needs.server,
            kv_cache_pool_bytes=None if needs is None else needs.kv_cache_pool_bytes,
            # Of several instances the largest: a slice has one profile.
            mig_profile=instances[0].profile if instances else None,
            cpu_request_cores=None if needs is None else needs.cpu_cores,
            memory_request_bytes=None if needs is None else needs.memory_bytes,
            labels=labels,
            started_at=_started_at(pod),
        ),
        pod_uid=None if record is None else record.uid,
        instances=tuple(sorted(instance.instance for instance in instances if instance.instance is not None)),
        sources=tuple(sources),
        is_certain=all(part.is_certain for part in held),
        is_amount_known=all(part.framebuffer_bytes is not None and part.compute_ratio is not None for part in held),
    )


def _started_at(pod: _Pod) -> datetime:
    bound_at = None if pod.facts is None else pod.facts.record.bound_at
    if bound_at is None:
        return pod.now
    started_at = datetime.fromtimestamp(bound_at, UTC)
    # The scheduler's clock may be a little ahead of this node's, and the scheduler layer reports the same pod's start
    # by it; what lies further ahead is nonsense, and no grant begins in the future.
    return started_at if started_at <= pod.now + CLOCK_SKEW_MAX else pod.now


def _needs(facts: PodFacts | None, container: str) -> ContainerNeeds | None:
    if facts is None:
        return None
    return next((needs for needs in facts.record.containers if needs.container == container), None)


def _holds_something(row: PodRow) -> bool:
    return any(container.devices or container.claims for container in row.containers)


def _cards(held: Iterable[Held]) -> set[str]:
    return {str(part.unit.card.card) for part in held}


def _name(facts: PodFacts) -> PodName:
    return facts.record.namespace, facts.record.pod


def _finding(kind: FindingKind, name: PodName, container: str = "", card: str = "", detail: str = "") -> Finding:
    return Finding(kind=kind, namespace=name[0], pod=name[1], container=container, card=card, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadName:
    """The object that a pod belongs to in the end; the pod itself where nothing owns it."""

    kind: str
    name: str


def workload_of(
    pod: str, owner: OwnerLinkRecord | None, labels: Mapping[str, str], owners: Mapping[str, OwnerLinkRecord]
) -> WorkloadName:
    """Walks from a pod to the topmost owner that is known.

    Args:
        owners: controller of each object that may own pods, by the object's UID; what is missing could not be read, or
            has none.
    """
    here = WorkloadName(kind="Pod", name=pod)
    seen: set[str] = set()
    while owner is not None and owner.kind not in NO_WORKLOADS and len(seen) < OWNER_LINKS_MAX:
        if owner.uid in seen:
            # Owners in a circle: the last that is new is as good as any.
            break
        seen.add(owner.uid)
        here = WorkloadName(kind=owner.kind, name=owner.name)
        owner = owners.get(owner.uid)
    return _maker_of_replica_set(here, labels) if here.kind == "ReplicaSet" else here


def _maker_of_replica_set(replica_set: WorkloadName, labels: Mapping[str, str]) -> WorkloadName:
    for label, kind in TEMPLATE_HASHES:
        template_hash = labels.get(label)
        name = replica_set.name.removesuffix(f"-{template_hash}")
        if template_hash and name and name != replica_set.name:
            return WorkloadName(kind=kind, name=name)
    return replica_set


def seat_processes(slices: Sequence[AttributedSlice], view: NodeView) -> Attribution:
    """Puts each process into its container's slice.

    Returns:
        The same slices with their processes, and what is odd about these. Without the API server nobody knows which
        container has which id: then every slice has none, and nothing is odd.
    """
    if view.pods is None:
        return Attribution(slices=tuple(slices), findings=())
    uids = {facts.record.uid for facts in view.pods}
    names = {facts.record.uid: (facts.record.namespace, facts.record.pod) for facts in view.pods}
    containers = {
        (facts.record.uid, identity.container_id): identity.container
        for facts in view.pods
        for identity in facts.identities
    }
    nameless = {found.grant.card for found in slices if found.pod_uid is None}
    by_place: dict[tuple[str, CardId], list[int]] = defaultdict(list)
    for number, found in enumerate(slices):
        if found.pod_uid is not None:
            by_place[found.pod_uid, found.grant.card].append(number)
    holders = {found.pod_uid for found in slices}
    pids: dict[int, set[int]] = defaultdict(set)
    findings, servers = [], []
    for process in view.processes:
        place = place_that_counts(process.places, view.enclosing)
        # Who holds cards himself serves himself by MPS, and takes from others what he uses elsewhere.
        if process.is_mps_server and (place is None or place.pod_uid not in holders):
            servers.append(process)
            continue
        if place is None or place.occupant is Occupant.MONITOR:
            continue
        if place.occupant is Occupant.VIRTUAL_MACHINE:
            findings.append(_seat_finding(FindingKind.VIRTUAL_MACHINE, place, process, names))
        container = containers.get((place.pod_uid, place.container_id or ""))
        there = by_place.get((place.pod_uid, process.card), [])
        seat = _seat(slices, there, container)
        if seat is None and place.pod_uid not in uids and process.card in nameless:
            # It may well be the pod that the kubelet lists there and the API server has not named yet.
            continue
        if seat is None:
            findings.append(_seat_finding(FindingKind.STRANGER, place, process, names, container or ""))
        else:
            pids[seat].add(process.pid)
    seated = (
        replace(found, pids=tuple(sorted(pids[number]))) if number in pids else found
        for number, found in enumerate(slices)
    )
    return Attribution(slices=tuple(seated), findings=tuple(findings), mps_servers=tuple(servers))


def _seat(slices: Sequence[AttributedSlice], there: Sequence[int], container: str | None) -> int | None:
    """The slice of a pod's on a card that a process belongs to; None for a stranger."""
    if container is None:
        # A container that was restarted a moment ago has an id that the API does not show yet.
        return there[0] if len(there) == 1 else None
    return next((number for number in there if slices[number].grant.container == container), None)


def _seat_finding(
    kind: FindingKind,
    place: CgroupPlace,
    process: ProcessOnCard,
    names: Mapping[str, tuple[str, str]],
    container: str = "",
) -> Finding:
    namespace, pod = names.get(place.pod_uid, ("", place.pod_uid))
    return Finding(kind=kind, namespace=namespace, pod=pod, container=container, card=str(process.card))
