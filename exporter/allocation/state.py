"""The scheduler layer's state: what each card and pod was granted, who shares a card, what waits and why.

Records come in as objects come, change and go, in any order; what they stand for is worked out for those rows alone
that a change can reach. The same objects give the same rows, whatever happened before. No input or output, no clock,
and one thread at a time: `exporter.allocation.collector` sees to that.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice

from exporter.allocation import families
from exporter.allocation.index import Index, device_key
from exporter.allocation.places import Holding, card_books, devices_milli, holdings_of, published_card, reserved_card
from exporter.allocation.records import (
    AutoscalerRecord,
    CardRecord,
    DistrustReason,
    Key,
    NodeRecord,
    OwnedRecord,
    OwnerLinkRecord,
    PodRecord,
    PublishedRecord,
    QueueRecord,
    Record,
    WaitingRecord,
)
from exporter.allocation.rows import card_rows, node_rows, pod_counts, pod_rows, queue_rows, waiting_rows
from exporter.allocation.tables import Row, RowTables
from exporter.allocation.waiting import REASONS
from exporter.cluster.reader import Watched
from exporter.families import Family
from fleet.gpu_policy import GpuPolicy, with_policies
from fleet.grammars.claims import ClaimAllocation, TaintRule
from fleet.inventory import BY_POLICY_LABEL

OWNER_KINDS = frozenset({Watched.REPLICA_SETS, Watched.STATEFUL_SETS, Watched.JOBS})
"""Kinds that own pods and are owned themselves."""

AUTOSCALER_KINDS = frozenset({Watched.POD_AUTOSCALERS, Watched.SCALED_OBJECTS})
"""Kinds that say between which bounds a workload is scaled; a cluster may not serve them."""

_CardKey = tuple[str, str]
_NOTHING: dict[str, CardRecord] = {}


class Allocation:
    """Records of a cluster, and the families that they stand for."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._shelves: dict[Watched, dict[Key, Record]] = {watched: {} for watched in Watched}
        self._index = Index()
        self._tables = RowTables(families.FAMILIES)
        self._cards: dict[str, dict[str, CardRecord]] = {}
        self._held: dict[Key, tuple[str, dict[str, tuple[Holding, ...]]]] = {}
        self._holders: dict[_CardKey, dict[Key, tuple[Holding, ...]]] = {}
        self._counted: dict[Key, dict[tuple[str, tuple[str, ...]], int]] = {}
        self._counts: dict[tuple[str, tuple[str, ...]], int] = self._zero_counts()
        self._node_marks: set[str] = set()
        # A dictionary keeps the order in which pods changed: the first is worked out first.
        self._pod_marks: dict[Key, None] = {}
        self._card_marks: set[_CardKey] = set()
        self._granted_marks: set[str] = set()
        self._are_counts_marked = True

    def put(self, watched: Watched, key: Key, record: Record | None) -> None:
        """Takes in what is now known of an object.

        Args:
            key: namespace and name.
            record: its record; None where it is gone, or nothing of it matters.
        """
        shelf = self._shelves[watched]
        before = shelf.get(key)
        if before == record:
            return
        if record is None:
            del shelf[key]
        else:
            shelf[key] = record
        self._mark(watched, key, before, record)

    def retain(self, watched: Watched, keys: AbstractSet[Key]) -> None:
        """Forgets every object of a kind that is not among the keys: the end of reading a whole list."""
        for key in [key for key in self._shelves[watched] if key not in keys]:
            self.put(watched, key, None)

    def held(self, watched: Watched) -> int:
        """How many objects of a kind have a record."""
        return len(self._shelves[watched])

    def settle(self, pods_max: int) -> bool:
        """Works out the rows that changes have reached; True when nothing is left to do.

        Args:
            pods_max: most pods to work out by this call.
        """
        for node in self._node_marks:
            self._settle_node(node)
        self._node_marks.clear()
        for key in list(islice(self._pod_marks, pods_max)):
            del self._pod_marks[key]
            self._settle_pod(key)
        if self._pod_marks:
            return False
        for node, card in self._card_marks:
            self._settle_card(node, card)
        self._card_marks.clear()
        for node in self._granted_marks:
            self._settle_granted(node)
        self._granted_marks.clear()
        if self._are_counts_marked:
            self._settle_counts()
        return True

    def families(self, known: AbstractSet[Watched]) -> tuple[Family, ...]:
        """All families whose objects are known, settled before.

        Args:
            known: kinds of which a whole list has been read, or never can be.
        """
        shown = list(families.FAMILIES_OF_QUEUES)
        if Watched.NODES in known:
            shown += families.FAMILIES_OF_NODES
            if Watched.PODS in known:
                shown += families.FAMILIES_OF_PODS
                if known >= OWNER_KINDS | AUTOSCALER_KINDS:
                    shown += families.FAMILIES_OF_OWNERS
        return tuple(self._tables.family(catalogued) for catalogued in families.FAMILIES if catalogued in shown)

    def _mark(self, watched: Watched, key: Key, before: Record | None, record: Record | None) -> None:
        for one in (before, record):
            self._mark_reached(key, one)
        self._index.change(key, before, record)
        if isinstance(record, PodRecord):
            self._mark_pod(key, record)
        elif isinstance(record, PublishedRecord):
            self._mark_published(record)
        elif isinstance(record or before, QueueRecord | WaitingRecord):
            rows: list[Row] = []
            if isinstance(record, QueueRecord):
                rows += queue_rows(self._cluster, record)
            elif isinstance(record, WaitingRecord):
                rows += waiting_rows(self._cluster, record)
            self._tables.replace((watched.value, key), rows)

    def _mark_reached(self, key: Key, record: Record | None) -> None:
        """Marks what an object stands for or reaches, as things are linked now."""
        match record:
            case PodRecord():
                self._mark_pod(key, record)
            case NodeRecord():
                self._mark_node(record.node)
            case PublishedRecord():
                self._mark_published(record)
            case TaintRule():
                # Administrators write few, and a selector may mean any device.
                for node in self._index.published_nodes():
                    self._mark_node(node)
            case OwnedRecord():
                self._mark_pods(self._index.pods_of_owner.at(record.uid))
            case ClaimAllocation():
                self._mark_pods(self._index.pods_of_claim.at(key))
            case GpuPolicy(namespace=""):
                self._mark_pods(self._shelves[Watched.PODS].keys())
            case GpuPolicy():
                self._mark_pods(self._index.pods_in.at(record.namespace))
            case AutoscalerRecord():
                # Whom it scales is known of a pod only with its owner's owner: all of the namespace are asked.
                self._mark_pods(self._index.pods_in.at(record.namespace))

    def _mark_pod(self, key: Key, pod: PodRecord) -> None:
        self._pod_marks[key] = None
        if pod.node is not None:
            self._granted_marks.add(pod.node)
            node = self._node(pod.node) if pod.shares else None
            if node is not None and node.numbered:
                self._mark_node(pod.node)
        if pod.reserves:
            if pod.node is not None:
                self._mark_node(pod.node)
            for group, _ in pod.reserves:
                self._mark_pods(self._index.pods_of_group.at(group))

    def _mark_published(self, published: PublishedRecord) -> None:
        if published.node is not None:
            self._mark_node(published.node)
        for device in published.devices:
            for claim in self._index.claims_of.at(device_key(device)):
                self._mark_pods(self._index.pods_of_claim.at(claim))

    def _mark_node(self, node: str) -> None:
        self._node_marks.add(node)
        self._granted_marks.add(node)

    def _mark_pods(self, keys: AbstractSet[Key]) -> None:
        for key in keys:
            self._pod_marks[key] = None

    def _settle_node(self, name: str) -> None:
        node = self._node(name)
        cards = {} if node is None else {card.card: card for card in node.cards}
        if node is not None and node.numbered and self._is_numbered(node):
            cards |= {card.card: card for card in node.numbered}
        shelf = self._shelves[Watched.TAINT_RULES]
        rules = [rule for _, rule in sorted(shelf.items()) if isinstance(rule, TaintRule)]
        for device in self._index.published_on(name):
            card = published_card(device, rules)
            if card is not None:
                cards.setdefault(card.card, card)
        reserved = self._index.reserved_on(name)
        for uuid in reserved:
            cards.setdefault(uuid, reserved_card(uuid, node))
        self._card_marks.update((name, card) for card in {*self._cards.get(name, _NOTHING), *cards})
        if cards:
            self._cards[name] = cards
        else:
            self._cards.pop(name, None)
        rows = () if node is None else node_rows(self._cluster, node, cards, has_reservations=bool(reserved))
        self._tables.replace(("node", name), rows)
        self._mark_pods(self._index.pods_on.at(name))

    def _is_numbered(self, node: NodeRecord) -> bool:
        """Whether a pod of the node was granted one of the cards that HAMi would number there."""
        ids = {card.card for card in node.numbered}
        pods = (self._shelves[Watched.PODS][key] for key in self._index.pods_on.at(node.node))
        return any(share.card in ids for pod in pods if isinstance(pod, PodRecord) for share in pod.shares)

    def _settle_pod(self, key: Key) -> None:
        pod = self._shelves[Watched.PODS].get(key)
        holdings: tuple[Holding, ...] = ()
        rows: list[Row] = []
        node = ""
        counts: dict[tuple[str, tuple[str, ...]], int] = {}
        if isinstance(pod, PodRecord):
            node = pod.node or ""
            cards = self._cards.get(node, _NOTHING)
            if node and not pod.is_over:
                holdings = self._holdings(pod, cards)
            owner = self._owner(pod)
            pod = self._wished(pod)
            autoscaler = None if owner is None else self._index.autoscaler_of(pod.namespace, owner.kind, owner.name)
            rows = list(pod_rows(self._cluster, pod, holdings, cards, owner, autoscaler))
            counts = pod_counts(self._cluster, pod)
        self._tables.replace(("pod", key), rows)
        self._hold(key, node, holdings)
        self._count(key, counts)

    def _holdings(self, pod: PodRecord, cards: dict[str, CardRecord]) -> tuple[Holding, ...]:
        node = self._node(pod.node or "")
        caps_fractions = node is not None and node.caps_fractions
        return holdings_of(pod, cards, self._index, self._claims(pod), caps_fractions=caps_fractions)

    def _wished(self, pod: PodRecord) -> PodRecord:
        """The pod with what policies decide among its labels; what it says itself of policies counts for nothing."""
        places = ((Watched.CLUSTER_POLICIES, ""), (Watched.GPU_POLICIES, pod.namespace))
        found = (self._shelves[kind][key] for kind, space in places for key in self._index.policies_in(space))
        policies = [one for one in found if isinstance(one, GpuPolicy)]
        before = dict(pod.labels)
        own = {key: value for key, value in before.items() if key != BY_POLICY_LABEL}
        selectable = None if pod.selectable is None else dict(pod.selectable)
        labels = with_policies(own, policies, pod.namespace, selectable) if policies else own
        return pod if labels == before else replace(pod, labels=tuple(sorted(labels.items())))

    def _hold(self, key: Key, node: str, holdings: tuple[Holding, ...]) -> None:
        before_node, before = self._held.pop(key, ("", {}))
        for card in before:
            holders = self._holders[before_node, card]
            del holders[key]
            if not holders:
                del self._holders[before_node, card]
            self._card_marks.add((before_node, card))
        by_card: dict[str, tuple[Holding, ...]] = {}
        for holding in holdings:
            by_card[holding.card] = (*by_card.get(holding.card, ()), holding)
        for card, parts in by_card.items():
            self._holders.setdefault((node, card), {})[key] = parts
            self._card_marks.add((node, card))
        if by_card:
            self._held[key] = (node, by_card)

    def _settle_card(self, node: str, uuid: str) -> None:
        card = self._cards.get(node, _NOTHING).get(uuid)
        rows: tuple[Row, ...] = ()
        if card is not None:
            books = card_books(self._holders.get((node, uuid), {}).values())
            rows = tuple(card_rows(self._cluster, node, card, books))
        self._tables.replace(("card", node, uuid), rows)

    def _settle_granted(self, name: str) -> None:
        node = self._node(name)
        total = {} if node is None else {resource: 0 for resource, _ in node.devices}
        pods = self._shelves[Watched.PODS]
        for key in self._index.pods_on.at(name):
            pod = pods[key]
            if isinstance(pod, PodRecord) and not pod.is_over:
                for resource, milli in devices_milli(pod.containers).items():
                    total[resource] = total.get(resource, 0) + milli
        rows = [
            (families.NODE_DEVICES_GRANTED, (self._cluster, name, resource), milli / 1000)
            for resource, milli in total.items()
        ]
        self._tables.replace(("granted", name), rows)

    def _count(self, key: Key, counts: dict[tuple[str, tuple[str, ...]], int]) -> None:
        before = self._counted.pop(key, {})
        if counts:
            self._counted[key] = counts
        for sign, part in ((-1, before), (1, counts)):
            for row, milli in part.items():
                self._counts[row] = self._counts.get(row, 0) + sign * milli
                self._are_counts_marked = True

    def _settle_counts(self) -> None:
        by_name = {
            family.name: family
            for family in (families.DISTRUSTED_GRANTS, families.PENDING_PODS, families.PENDING_DEVICES)
        }
        # A resource that nobody waits for any more has no series; a reason that can occur has, of value 0.
        kept = self._zero_counts()
        kept.update({row: milli for row, milli in self._counts.items() if milli})
        self._counts = kept
        rows = [(by_name[name], labels, milli / 1000) for (name, labels), milli in kept.items()]
        self._tables.replace(("counts",), rows)
        self._are_counts_marked = False

    def _zero_counts(self) -> dict[tuple[str, tuple[str, ...]], int]:
        counts: dict[tuple[str, tuple[str, ...]], int] = {}
        for reason in DistrustReason:
            counts[families.DISTRUSTED_GRANTS.name, (self._cluster, reason.value)] = 0
        for word in REASONS:
            counts[families.PENDING_PODS.name, (self._cluster, word)] = 0
        return counts

    def _node(self, name: str) -> NodeRecord | None:
        node = self._shelves[Watched.NODES].get(("", name))
        return node if isinstance(node, NodeRecord) else None

    def _claims(self, pod: PodRecord) -> dict[Key, ClaimAllocation]:
        shelf = self._shelves[Watched.RESOURCE_CLAIMS]
        keys = ((pod.namespace, claim) for _, claim in pod.claims)
        return {key: claim for key in keys if isinstance(claim := shelf.get(key), ClaimAllocation)}

    def _owner(self, pod: PodRecord) -> OwnerLinkRecord | None:
        return None if pod.owner is None else self._index.owner_of(pod.owner)
