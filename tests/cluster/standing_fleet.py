"""A small fleet that really stands on the control plane, and the history that advice is made from.

The recommender's own builders say what each service needs; here its pods are made on the API server, placed by a
backend's double, and the history has the places that they got.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from enforcer.snapshot import Snapshot
from fleet.inventory import CardId, Inventory, Priority, WorkloadId
from fleet.units import MIB
from fleet.usage import History
from tests.cluster.api import Api
from tests.cluster.backend_doubles import PlayedCard
from tests.cluster.played_backends import FLEET, HAMI_PLAYED, PlayedBackend
from tests.cluster.workloads import until_ready
from tests.recommender.builders import STEP_SECONDS, Service, cluster
from tests.waiting import until


def stand_up(
    api: Api,
    namespace: str,
    *services: Service,
    prefix: str,
    spare_cards: int = 0,
    played: PlayedBackend = HAMI_PLAYED,
    **pool: Any,
) -> History:
    """Make nodes and Deployments, wait until every pod runs, and return their history up to now.

    Args:
        api: by whose rights they are made.
        namespace: of all services.
        services: one Deployment or StatefulSet each; a pod takes a whole card.
        prefix: of the names of nodes and cards, which no other test has.
        spare_cards: cards beyond those that the pods need.
        played: the backend that shares the cards.
        pool: what else `cluster` takes: its cards' model and framebuffer, its nodes' memory.
    """
    own = (replace(service, namespace=namespace) for service in services)
    told = cluster(*own, spare_cards=spare_cards, **pool)
    inventory = _renamed(told.inventory, prefix)
    by_node = defaultdict(list)
    for card in inventory.cards:
        by_node[card.node].append(card)
    for node, cards in by_node.items():
        shown = [PlayedCard(card=one.card, mib=one.framebuffer_bytes // MIB, model=one.card_model) for one in cards]
        played.make_node(api, node, shown)
        # Other fleets may stand on nodes beside these.
        api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {FLEET: namespace}}})
    for service in services:
        is_low = service.priority is Priority.LOW
        played.deploy(api, namespace, service.name, service.replicas, service.kind, is_low=is_low)
        if service.args:
            path = f"/apis/apps/v1/namespaces/{namespace}/{service.kind.lower()}s/{service.name}"
            change = [{"op": "add", "path": "/spec/template/spec/containers/0/args", "value": list(service.args)}]
            api.ask("PATCH", path, change, content_type="application/json-patch+json")
    for service in services:
        until_ready(api, namespace, service.name, service.replicas, seconds=60.0 + len(services))
    pods = {grant.pod_id for grant in inventory.grants}
    # Some schedulers write who holds which card after its pod is there.
    until(lambda: len(played.holders(api, namespace)) >= len(pods))
    return _as_it_stands(told, inventory, played.holders(api, namespace), datetime.now(UTC))


def cards_in_use(snapshot: Snapshot, prefix: str) -> set[str]:
    """Cards of a fleet that a pod holds a slice of."""
    return {card for seat in snapshot.seats.values() for card in seat.cards if card.startswith(_card(prefix))}


def _card(prefix: str) -> str:
    return f"GPU-{zlib.crc32(prefix.encode()):08x}-0000-4000-8000-"


def _renamed(inventory: Inventory, prefix: str) -> Inventory:
    return replace(
        inventory,
        cards=tuple(
            replace(card, card=CardId(f"{_card(prefix)}{number:012d}"), node=f"{prefix}-{card.node}")
            for number, card in enumerate(inventory.cards)
        ),
        nodes=tuple(replace(node, node=f"{prefix}-{node.node}") for node in inventory.nodes),
    )


def _as_it_stands(
    told: History, inventory: Inventory, holders: dict[str, tuple[str, tuple[str, ...]]], now: datetime
) -> History:
    """The history with the pods' real names and places, its last step just over."""
    left: dict[WorkloadId, list[tuple[str, str]]] = defaultdict(list)
    for pod, (workload, cards) in sorted(holders.items()):
        left[WorkloadId(workload)].append((pod, cards[0]))
    moved = now - told.inventory.as_of
    grants, keys = [], {}
    for grant in told.inventory.grants:
        pod, held = left[WorkloadId(f"{grant.namespace}/{grant.workload_kind}/{grant.workload}")].pop()
        card = next(found for found in inventory.cards if found.card == held)
        grants.append(replace(grant, pod=pod, card=card.card, node=card.node, started_at=grant.started_at + moved))
        keys[grant.pod] = grants[-1]
    slices = replace(
        told.slices,
        keys=tuple(
            replace(key, pod=keys[key.pod].pod, card=keys[key.pod].card, node=keys[key.pod].node)
            for key in told.slices.keys
        ),
        since=_on_step(told.slices.since + moved),
    )
    stands = replace(inventory, as_of=now, grants=tuple(sorted(grants, key=lambda grant: (grant.pod_id, grant.card))))
    return replace(told, inventory=stands, slices=slices)


def _on_step(moment: datetime) -> datetime:
    return datetime.fromtimestamp(int(moment.timestamp()) // STEP_SECONDS * STEP_SECONDS, UTC)
