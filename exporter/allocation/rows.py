"""The rows that a pod, a node, a card and a queue stand for, in the families of the scheduler layer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exporter.allocation import families
from exporter.allocation.places import (
    CardBooks,
    Holding,
    card_details,
    card_labels,
    devices_milli,
    node_details,
    slice_info_labels,
    slice_labels,
)
from exporter.allocation.records import (
    CardRecord,
    NodeRecord,
    OwnerLinkRecord,
    PodRecord,
    QueueRecord,
    SharingBackend,
    WaitingRecord,
)
from exporter.allocation.tables import Labels, Row
from fleet.autoscaling import Autoscaler


def pod_rows(
    cluster: str,
    pod: PodRecord,
    holdings: tuple[Holding, ...],
    cards: Mapping[str, CardRecord],
    owner: OwnerLinkRecord | None,
    autoscaler: Autoscaler | None,
) -> Iterator[Row]:
    """Rows of a pod that lives."""
    if pod.is_over:
        return
    place = (cluster, pod.namespace, pod.pod)
    if pod.node is None:
        kind, name = ("Pod", pod.pod) if owner is None else (owner.kind, owner.name)
        yield families.PENDING_POD_INFO, (*place, pod.waits_for or "", pod.queue or "", pod.scheduler, name, kind), 1.0
        if pod.waits_since is not None:
            yield families.PENDING_SINCE, place, pod.waits_since
        return
    for needs in pod.containers:
        for resource, number in () if needs.is_init else needs.devices:
            yield families.CONTAINER_DEVICES_GRANTED, (*place, needs.container, pod.node, resource), number
    for holding in holdings:
        card = cards.get(holding.card)
        yield from holding_rows(slice_labels(cluster, pod, holding, card), holding)
        details = slice_info_labels(cluster, pod, holding, card, owner, autoscaler)
        if details is not None:
            yield families.SLICE_GRANT_INFO, details, 1.0


def holding_rows(labels: Labels, holding: Holding) -> Iterator[Row]:
    """Rows of what a container holds of a card."""
    if holding.framebuffer_bytes is not None:
        yield families.SLICE_FRAMEBUFFER_GRANTED, labels, float(holding.framebuffer_bytes)
    yield families.SLICE_COMPUTE_GRANTED, labels, 1.0 if holding.compute_ratio is None else holding.compute_ratio


def pod_counts(cluster: str, pod: PodRecord) -> dict[tuple[str, tuple[str, ...]], int]:
    """What a pod adds to the counts over all pods, in thousandths, by family and labels."""
    counts: dict[tuple[str, tuple[str, ...]], int] = {}
    if pod.distrust is not None:
        counts[families.DISTRUSTED_GRANTS.name, (cluster, pod.distrust.value)] = 1000
    if pod.waits_for is not None:
        counts[families.PENDING_PODS.name, (cluster, pod.waits_for)] = 1000
        for resource, milli in devices_milli(pod.containers).items():
            counts[families.PENDING_DEVICES.name, (cluster, resource)] = milli
    return counts


def node_rows(
    cluster: str, node: NodeRecord, cards: Mapping[str, CardRecord], *, has_reservations: bool
) -> Iterator[Row]:
    """Rows of a node and of what its device plugins say of its cards; none for a node without cards.

    Args:
        cards: every card that is known to sit in it.
        has_reservations: KAI holds cards of it for those who share them.
    """
    sharing = set(node.sharing) | {(card.backend, card.mode or "") for card in cards.values()}
    if has_reservations:
        sharing.add((SharingBackend.KAI, "fraction"))
    if not sharing and not node.devices and not node.unreadable:
        return
    yield families.NODE_GRANT_INFO, node_details(cluster, node), 1.0
    for backend, mode in sharing:
        yield families.NODE_SHARING_INFO, (cluster, node.node, backend.value, mode), 1.0
    if node.mig_strategy or node.mig_config or node.mig_state:
        words = (node.mig_strategy or "", node.mig_config or "", node.mig_state or "")
        yield families.NODE_MIG_INFO, (cluster, node.node, *words), 1.0
    for resource, number in node.devices:
        yield families.NODE_DEVICES, (cluster, node.node, resource), number
    if node.unreadable:
        yield families.NODE_UNREADABLE, (cluster, node.node), float(node.unreadable)


def card_rows(cluster: str, node: str, card: CardRecord, books: CardBooks) -> Iterator[Row]:
    """Rows of a card."""
    labels = card_labels(cluster, node, card)
    details = card_details(cluster, node, card)
    if details is not None:
        yield families.CARD_GRANT_INFO, details, 1.0
    yield families.CARD_SHARING_INFO, (*labels, card.backend.value, card.mode or ""), 1.0
    yield from books_rows(labels, books)
    if card.grantable_bytes is not None:
        yield families.CARD_GRANTABLE, labels, float(card.grantable_bytes)
        if books.granted_bytes is not None:
            left = 0 if card.is_cordoned else max(0, card.grantable_bytes - books.granted_bytes)
            yield families.CARD_FREE, labels, float(left)
    if card.compute_ratio is not None:
        left_ratio = 0.0 if card.is_cordoned else max(0.0, round(card.compute_ratio - books.granted_ratio, 4))
        yield families.CARD_COMPUTE_FREE, labels, left_ratio
    if card.slices_max is not None:
        yield families.CARD_SLICES_MAX, labels, float(card.slices_max)
    if card.is_healthy is not None:
        yield families.CARD_HEALTHY, labels, float(card.is_healthy)
    if card.is_healthy is not None or card.is_cordoned:
        yield families.CARD_CORDONED, labels, float(card.is_cordoned)
    for taint in card.taints:
        yield families.CARD_TAINT_INFO, (*labels, taint.key, taint.value, taint.effect, taint.by), 1.0


def books_rows(labels: Labels, books: CardBooks) -> Iterator[Row]:
    """Rows of what of a card is granted."""
    yield families.CARD_TENANTS, labels, float(books.tenants)
    yield families.CARD_COMPUTE_GRANTED, labels, books.granted_ratio
    if books.granted_bytes is not None:
        yield families.CARD_GRANTED, labels, float(books.granted_bytes)


def queue_rows(cluster: str, queue: QueueRecord) -> Iterator[Row]:
    """Rows of a queue or quota."""
    for amount in queue.amounts:
        amounts = (amount.deserved, amount.limit, amount.used)
        told = ("" if value is None else f"{value:.15g}" for value in amounts)
        whose = (cluster, queue.kind, queue.namespace, queue.name, queue.parent or "", amount.resource)
        yield families.QUOTA_DETAILS, (*whose, *told), 1.0
    if queue.kind == "ResourceQuota":
        for amount in queue.amounts:
            labels = (cluster, queue.namespace, queue.name, amount.resource)
            if amount.limit is not None:
                yield families.QUOTA_LIMIT, labels, amount.limit
            if amount.used is not None:
                yield families.QUOTA_USED, labels, amount.used
        return
    place = (cluster, queue.kind, queue.namespace, queue.name)
    yield families.QUEUE_INFO, (*place, queue.parent or ""), 1.0
    for amount in queue.amounts:
        for family, value in (
            (families.QUEUE_DESERVED, amount.deserved),
            (families.QUEUE_LIMIT, amount.limit),
            (families.QUEUE_USED, amount.used),
        ):
            if value is not None:
                yield family, (*place, amount.resource), value
    if queue.pending is not None:
        yield families.QUEUE_PENDING, place, float(queue.pending)
    if queue.admitted is not None:
        yield families.QUEUE_ADMITTED, place, float(queue.admitted)


def waiting_rows(cluster: str, waiting: WaitingRecord) -> Iterator[Row]:
    """The row of a group that waits."""
    labels = (cluster, waiting.kind, waiting.namespace, waiting.name, waiting.queue or "", waiting.reason)
    yield families.WAITING_GROUP_INFO, labels, 1.0
