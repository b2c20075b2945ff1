"""The cluster as it stands at one moment, read once: owners, seats, cards. Backend, guard and preview look at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from enforcer.backends.hami_dialect import HAMI_DIALECT
from enforcer.cluster import ClusterReader, identity
from enforcer.dialect import Dialect, ListingDialect, ObjectKey, StandingCard
from enforcer.kept_manifests import KeptManifests, with_texts
from enforcer.kinds.register import WORKLOAD_KINDS, workload_kind
from enforcer.manifest import Manifest, workload_parts
from enforcer.ownership import MAKERS, Parents, parents_of, workload_of_pod
from enforcer.seat import PodSeat, seat_of_pod, seats_by_workload
from enforcer.wishes import Wishes, wishes_in
from fleet.decisions import Plan
from fleet.errors import Corrupt, Misconfigured
from fleet.inventory import WISH_LABELS, WorkloadId, is_yes

__all__ = ["OWNER_KINDS", "Snapshot", "StandingCard", "cards_left_empty", "take_snapshot"]

OWNER_KINDS = tuple(sorted(WORKLOAD_KINDS))
"""Kinds whose template or scale may be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What stands in the cluster.

    Attributes:
        seats: seats of pods by `namespace/pod`.
        cards: cards by UUID (or by what the dialect names them).
        configs: the backend's configuration objects, those that there are.
        dialect: the words that all this was read in, with the cluster's own names.
        doubts: pods whose grant can't be read or can't be true, and why; their seats are empty.
        parents: controllers of what may own pods.
        asking: metadata of pods that ask for something themselves, by workload, in a manifest of nothing else.
    """

    owners: Mapping[WorkloadId, Manifest]
    seats: dict[str, PodSeat]
    pods: dict[WorkloadId, list[PodSeat]]
    cards: dict[str, StandingCard]
    configs: Mapping[ObjectKey, Manifest] = field(default_factory=dict)
    nodes: Mapping[str, Manifest] = field(default_factory=dict)
    dialect: Dialect = HAMI_DIALECT
    doubts: Mapping[str, str] = field(default_factory=dict)
    parents: Parents = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)
    asking: Mapping[WorkloadId, Sequence[Manifest]] = field(default_factory=dict)

    def asked(self, key: str, workload: WorkloadId) -> set[str]:
        """What is asked for by a label: by the owner of a workload, a policy, or one of the pods for itself."""
        owner = self.owners.get(workload)
        found = [self.wishes.of(key, owner), *(self.wishes.of(key, pod) for pod in self.asking.get(workload, ()))]
        return {value for value in found if value is not None}

    def holders(self, node: str) -> tuple[tuple[str, str], ...]:
        """Pods (`namespace`, `name`) that hold cards of a node, or say so in words that nobody can read, sorted."""
        return tuple(
            sorted(
                (seat.namespace, seat.pod)
                for seat in self.seats.values()
                if seat.node == node and (seat.slices or seat.pod_id in self.doubts)
            )
        )

    def cards_on(self, node: str) -> list[StandingCard]:
        """Cards of a node."""
        return [card for card in self.cards.values() if card.node == node]

    def is_flagged(self, key: str, workload: WorkloadId) -> bool:
        """Whether somebody sets a flag of a workload."""
        return any(map(is_yes, self.asked(key, workload)))


def cards_left_empty(plan: Plan, going: AbstractSet[WorkloadId], snapshot: Snapshot) -> set[str]:
    """Cards that hold pods now and none once a plan places some workloads anew, whatever it claims of itself.

    Cards that nodes only count are left out.

    Args:
        going: workloads that are placed as the plan says; all others stay.
    """
    held = {
        card
        for name in going
        for seat in snapshot.pods.get(name, ())
        for card in seat.cards
        if card in snapshot.cards and not snapshot.cards[card].is_counted
    }
    # Pods of a plan that the cluster does not have keep no card.
    kept: set[str] = {
        card.card for card in plan.placement if any(part.pod_id in snapshot.seats for part in card.slices)
    }
    staying = {
        card for name, seats in snapshot.pods.items() if name not in going for seat in seats for card in seat.cards
    }
    return held - kept - staying


def take_snapshot(reader: ClusterReader, dialect: Dialect = HAMI_DIALECT) -> Snapshot:
    """Read the cluster.

    Raises:
        Unavailable: it can't be reached.
        Corrupt: the backend's configuration or a node's cards can't be read. What a tenant wrote on a pod is doubted
            instead, so that nobody can stop the enforcer with an annotation.
    """
    found = {key: reader.get(*key) for key in dialect.config_objects}
    configs = {key: manifest for key, manifest in found.items() if manifest is not None}
    words = dialect.configured(configs)
    words = with_listed(reader, words)
    owners: KeptManifests[WorkloadId] = KeptManifests()
    parents = parents_of(_makers(reader, owners))
    nodes: KeptManifests[str] = KeptManifests()
    cards: dict[str, StandingCard] = {}
    for text, node in with_texts(reader.list_objects("Node")):
        name = str(node["metadata"]["name"])
        nodes.texts[name] = text
        try:
            cards.update({card.card: card for card in words.cards_of_node(node)})
        except Corrupt as exc:
            raise Corrupt(f"cannot read the cards of node {name}: {exc}") from exc
    seats, doubts, asking = _seats(reader.list_objects("Pod"), words, cards, parents)
    return Snapshot(
        owners=owners,
        seats={seat.pod_id: seat for seat in seats},
        pods=seats_by_workload(seats),
        cards=cards,
        configs=configs,
        nodes=nodes,
        dialect=words,
        doubts=doubts,
        parents=parents,
        wishes=wishes_in(reader),
        asking=asking,
    )


def _makers(reader: ClusterReader, owners: KeptManifests[WorkloadId]) -> Iterator[Manifest]:
    """What may own pods, one after the other; owners of workloads are kept."""
    for kind in dict.fromkeys((*OWNER_KINDS, *MAKERS)):
        for text, found in with_texts(reader.list_objects(kind)):
            if kind in OWNER_KINDS:
                _, namespace, name = identity(found)
                owners.texts[WorkloadId(f"{namespace}/{kind}/{name}")] = text
            yield found


def with_listed(reader: ClusterReader, dialect: Dialect) -> Dialect:
    """A dialect with the objects that it needs, as they are now; the same where it needs none.

    Raises:
        Unavailable: the cluster can't be reached.
        Misconfigured: a right is missing that it can't do without.
        Corrupt: an object of the backend's can't be read.
    """
    if not isinstance(dialect, ListingDialect):
        return dialect
    listed: dict[str, Sequence[Manifest]] = {}
    denied: dict[str, str] = {}
    for kind in dialect.listed_kinds:
        try:
            listed[kind] = reader.list_objects(kind)
        except Misconfigured as exc:
            if kind not in dialect.deniable_kinds:
                raise
            denied[kind] = str(exc)
    return dialect.with_objects(listed, denied)


def _seats(
    pods: Iterable[Manifest], dialect: Dialect, cards: Mapping[str, StandingCard], parents: Parents
) -> tuple[list[PodSeat], dict[str, str], dict[WorkloadId, list[Manifest]]]:
    seats: list[PodSeat] = []
    asking: dict[WorkloadId, list[Manifest]] = {}
    doubts: dict[str, str] = {}
    for pod in pods:
        try:
            seat = seat_of_pod(pod, dialect)
            doubt = _doubt(seat, cards)
        except Corrupt as exc:
            seat, doubt = seat_of_pod(_without_words(pod), dialect), str(exc)
        if doubt is not None:
            doubts[seat.pod_id] = doubt
            seat = replace(seat, slices=())
        workload = workload_of_pod(pod, parents)
        labels = pod["metadata"].get("labels") or {}
        role = workload_kind(workload_parts(workload)[1]).role_of(labels)
        seats.append(replace(seat, workload=workload, role=role))
        annotations = pod["metadata"].get("annotations") or {}
        if any(key in labels or key in annotations for key in WISH_LABELS):
            own = {key: annotations[key] for key in WISH_LABELS if key in annotations}
            metadata = {"namespace": seat.namespace, "labels": labels, "annotations": own}
            asking.setdefault(workload, []).append({"kind": "Pod", "metadata": metadata})
    return seats, doubts, asking


def _doubt(seat: PodSeat, cards: Mapping[str, StandingCard]) -> str | None:
    """Why a grant can't be true: a bound pod has cards of its own node only."""
    for part in seat.slices:
        standing = None if part.card is None else cards.get(part.card)
        if standing is not None and seat.node is not None and standing.node != seat.node:
            return f"pod {seat.pod_id} on node {seat.node} claims card {part.card}, which is on node {standing.node}"
    return None


def _without_words(pod: Manifest) -> Manifest:
    """The pod without what a tenant may have written of cards: annotations, labels, resources and claims."""
    spec = {key: value for key, value in pod["spec"].items() if key != "resourceClaims"}
    for kind in ("initContainers", "containers"):
        if kind in spec:
            spec[kind] = [{"name": container["name"]} for container in spec[kind]]
    return {**pod, "metadata": {**pod["metadata"], "annotations": {}, "labels": {}}, "spec": spec}
