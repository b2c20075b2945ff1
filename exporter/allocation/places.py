"""Who holds what of which card: a pod's record and its surroundings in, the rows that it stands for out.

Pure. Called by `exporter.allocation.state` for each pod, node and card that something has changed for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from exporter.allocation.index import Index
from exporter.allocation.records import (
    CardRecord,
    CardShare,
    ContainerNeeds,
    GroupShare,
    Key,
    NodeRecord,
    OwnerLinkRecord,
    PodRecord,
    SharingBackend,
)
from exporter.allocation.tables import Labels
from exporter.series_blocks import card_info_labels, grant_info_labels, node_info_labels
from fleet.autoscaling import Autoscaler
from fleet.grammars.claims import ClaimAllocation, ClaimedDevice, PublishedDevice, TaintRule
from fleet.inventory import AUTOSCALED_LABEL, Card, CardId, CardModelName, Grant, Node
from fleet.schema import CARD_INFO_LABELS, GRANT_LABELS, NODE_INFO_LABELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding(CardShare):
    """What one container holds of one card.

    Attributes:
        portion: name of the portion where several containers hold the very same one, so that it counts once; None
            for a portion of its own.
    """

    portion: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardBooks:
    """What of a card is granted in all.

    Attributes:
        granted_bytes: framebuffer, bytes; None where one of the holders' is unknown.
        granted_ratio: sum of the compute limits, share of the card.
    """

    granted_bytes: int | None
    granted_ratio: float
    tenants: int


def holdings_of(
    pod: PodRecord,
    cards: Mapping[str, CardRecord],
    index: Index,
    claims: Mapping[Key, ClaimAllocation],
    *,
    caps_fractions: bool,
) -> tuple[Holding, ...]:
    """What a pod's containers hold.

    Args:
        pod: a pod that is bound and not over.
        index: knows the cards of KAI's groups and what drivers publish.
        claims: those of the pod's claims that are allocated, by namespace and name.
        caps_fractions: KAI's `NvFractions` is ready on the pod's node, see `NodeRecord`.
    """
    holdings = [_annotated(share, cards) for share in pod.shares]
    for group_share in pod.groups:
        for card in _cards_shared(group_share, cards, index, caps_fractions=caps_fractions):
            granted, ratio = group_share.framebuffer_bytes, group_share.ratio
            if granted is None and ratio is not None and card in cards:
                whole = cards[card].framebuffer_bytes
                granted = None if whole is None else int(whole * ratio)
            # KAI keeps nobody from using more compute than its share.
            holdings.append(
                Holding(container=group_share.container, card=card, framebuffer_bytes=granted, compute_ratio=None)
            )
    for name, claim in pod.claims:
        allocation = claims.get((pod.namespace, claim))
        if allocation is not None and pod.uid in allocation.reserved_for:
            for needs in pod.containers:
                holdings += _claimed(needs.container, needs.given(name, allocation), allocation, index)
    return _merged(holdings)


def card_books(holders: Iterable[tuple[Holding, ...]]) -> CardBooks:
    """What of one card is granted."""
    granted: int | None = 0
    percent, tenants = 0, 0
    portions: set[str] = set()
    for holdings in holders:
        tenants += 1
        for holding in holdings:
            if holding.portion is not None:
                if holding.portion in portions:
                    continue
                portions.add(holding.portion)
            more = holding.framebuffer_bytes
            granted = None if granted is None or more is None else granted + more
            # Whole numbers, so that the order in which pods come leaves no trace in the last bit.
            percent += round((holding.compute_ratio or 0.0) * 10_000)
    return CardBooks(granted_bytes=granted, granted_ratio=percent / 10_000, tenants=tenants)


def published_card(device: PublishedDevice, rules: Iterable[TaintRule]) -> CardRecord | None:
    """The card that a driver publishes; None for MIG instances and for devices without a UUID.

    Args:
        rules: administrators' taints, of whatever devices.
    """
    if device.uuid is None or device.parent is not None or device.profile is not None:
        return None
    taints = device.tainted(rules)
    return CardRecord(
        card=device.uuid,
        card_model=sys.intern(device.product or ""),
        framebuffer_bytes=device.framebuffer_bytes,
        grantable_bytes=device.framebuffer_bytes,
        compute_ratio=None if device.core_percent is None else device.core_percent / 100,
        backend=SharingBackend.DRA,
        is_cordoned=any(taint.closes for taint in taints),
        taints=taints,
    )


def reserved_card(card: str, node: NodeRecord | None) -> CardRecord:
    """The card that a reservation pod of KAI's stands for; what is known of it, gpu-feature-discovery says."""
    framebuffer = None if node is None else node.framebuffer_bytes
    return CardRecord(
        card=card,
        card_model="" if node is None else node.card_model or "",
        framebuffer_bytes=framebuffer,
        grantable_bytes=framebuffer,
        backend=SharingBackend.KAI,
    )


def slice_labels(cluster: str, pod: PodRecord, holding: Holding, card: CardRecord | None) -> Labels:
    """Labels of a slice's series."""
    model = "" if card is None else card.card_model
    return (cluster, pod.namespace, pod.pod, holding.container, pod.node or "", holding.card, model)


def slice_info_labels(
    cluster: str,
    pod: PodRecord,
    holding: Holding,
    card: CardRecord | None,
    owner: OwnerLinkRecord | None,
    autoscaler: Autoscaler | None,
) -> Labels | None:
    """Labels of `gputide_slice_info`; None where not all is known that they must tell."""
    if card is None or not card.card_model or card.framebuffer_bytes is None or holding.framebuffer_bytes is None:
        return None
    if pod.bound_at is None:
        return None
    needs = next((needs for needs in pod.containers if needs.container == holding.container), None)
    if needs is None:
        return None
    grant = Grant(
        cluster=cluster,
        namespace=pod.namespace,
        pod=pod.pod,
        container=holding.container,
        workload=pod.pod if owner is None else owner.name,
        workload_kind="Pod" if owner is None else owner.kind,
        node=pod.node or "",
        card=CardId(holding.card),
        card_model=CardModelName(card.card_model),
        framebuffer_bytes=card.framebuffer_bytes,
        framebuffer_granted_bytes=holding.framebuffer_bytes,
        compute_granted_ratio=1.0 if holding.compute_ratio is None else holding.compute_ratio,
        priority=needs.priority,
        server=needs.server,
        kv_cache_pool_bytes=needs.kv_cache_pool_bytes,
        mig_profile=holding.mig_profile,
        cpu_request_cores=needs.cpu_cores,
        memory_request_bytes=needs.memory_bytes,
        labels=pod.labels if autoscaler is None else _scaled_by(autoscaler, pod.labels),
        started_at=datetime.fromtimestamp(pod.bound_at, UTC),
    )
    return _in_order(grant_info_labels(grant), GRANT_LABELS)


def _scaled_by(autoscaler: Autoscaler, labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The labels with who scales the workload: what is read there goes before what somebody wrote."""
    others = (pair for pair in labels if pair[0] != AUTOSCALED_LABEL)
    return tuple(sorted((*others, (AUTOSCALED_LABEL, autoscaler.told))))


def card_labels(cluster: str, node: str, card: CardRecord) -> Labels:
    """Labels of a card's series."""
    return (cluster, node, card.card, card.card_model)


def card_details(cluster: str, node: str, card: CardRecord) -> Labels | None:
    """Labels of `gputide_card_info`; None where model or framebuffer are not known."""
    if not card.card_model or card.framebuffer_bytes is None:
        return None
    known = Card(
        card=CardId(card.card),
        card_model=CardModelName(card.card_model),
        framebuffer_bytes=card.framebuffer_bytes,
        node=node,
        cluster=cluster,
        mig_mode=None if card.mode is None else card.mode == "mig",
    )
    return _in_order(card_info_labels(known), CARD_INFO_LABELS)


def node_details(cluster: str, node: NodeRecord) -> Labels:
    """Labels of `gputide_node_info`."""
    known = Node(
        node=node.node,
        cluster=cluster,
        cpu_cores=node.cpu_cores,
        memory_bytes=node.memory_bytes,
        taints=node.taints,
        labels=node.labels,
        provider_id=node.provider_id,
    )
    return _in_order(node_info_labels(known), NODE_INFO_LABELS)


def devices_milli(containers: Iterable[ContainerNeeds]) -> dict[str, int]:
    """Devices that a pod takes of each resource, in thousandths.

    What its containers take together, or an init container alone where that is more
    (kubernetes/kubernetes:pkg/api/v1/resource/helpers.go).
    """
    together: dict[str, int] = {}
    alone: dict[str, int] = {}
    for needs in containers:
        for resource, number in needs.devices:
            milli = round(number * 1000)
            if needs.is_init:
                alone[resource] = max(alone.get(resource, 0), milli)
            else:
                together[resource] = together.get(resource, 0) + milli
    return {resource: max(together.get(resource, 0), alone.get(resource, 0)) for resource in {**together, **alone}}


def _cards_shared(
    share: GroupShare, cards: Mapping[str, CardRecord], index: Index, *, caps_fractions: bool
) -> list[str]:
    """The cards that a container sees, as long as all are its node's; else those that its groups' reservations hold.

    Where KAI does not run in that mode, nothing keeps a tenant from writing there which cards its container sees.
    """
    is_said = share.is_capped and caps_fractions
    if is_said and share.cards and all(card in cards for card in share.cards):
        return list(share.cards)
    return [card for group in share.groups if (card := index.card_of_group(group)) is not None]


def _annotated(share: CardShare, cards: Mapping[str, CardRecord]) -> Holding:
    granted = share.framebuffer_bytes
    if granted is None and (card := cards.get(share.card)) is not None:
        # Nothing is said of framebuffer where a whole card is granted.
        granted = card.grantable_bytes if card.grantable_bytes is not None else card.framebuffer_bytes
    return Holding(
        container=share.container,
        card=share.card,
        framebuffer_bytes=granted,
        compute_ratio=share.compute_ratio,
        mig_profile=share.mig_profile,
    )


def _merged(holdings: list[Holding]) -> tuple[Holding, ...]:
    """One holding per container and card: a text may name a card twice."""
    found: dict[tuple[str, str, str | None], Holding] = {}
    for holding in holdings:
        key = (holding.container, holding.card, holding.portion)
        former = found.get(key)
        if former is not None and holding.portion is None:
            first, second = former.framebuffer_bytes, holding.framebuffer_bytes
            limits = (former.compute_ratio, holding.compute_ratio)
            holding = replace(  # noqa: PLW2901
                former,
                framebuffer_bytes=None if first is None or second is None else first + second,
                compute_ratio=None if limits[0] is None or limits[1] is None else min(limits[0] + limits[1], 1.0),
            )
        found[key] = holding
    return tuple(found.values())


def _claimed(
    container: str, devices: Iterable[ClaimedDevice], allocation: ClaimAllocation, index: Index
) -> list[Holding]:
    holdings = []
    for device in devices:
        published = index.device((device.driver, device.pool, device.device))
        card = None if published is None else published.parent or published.uuid
        if published is None or card is None or device.is_admin:
            continue
        consumed = device.framebuffer_bytes
        granted = published.framebuffer_bytes if consumed is None else consumed
        ratio = None if device.core_percent is None else min(device.core_percent / 100, 1.0)
        portion = f"{allocation.namespace}/{allocation.claim}/{device.device}/{device.share_id or ''}"
        holdings.append(
            Holding(
                container=container,
                card=card,
                framebuffer_bytes=granted,
                compute_ratio=ratio,
                mig_profile=published.profile,
                portion=portion,
            )
        )
    return holdings


def _in_order(labels: Iterable[tuple[str, str]], names: tuple[str, ...]) -> Labels:
    known = dict(labels)
    # Most texts come many times: a workload's labels, a model's framebuffer, a node's name.
    return tuple(sys.intern(known.get(name, "")) for name in names)
