"""A small fleet that really stands on the control plane, and the history that advice is made from.

The recommender's own builders say what each service needs; here its pods are made on the API server, placed by the
HAMi double, and the history is told of the places that they got.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime

from enforcer.cluster import ClusterReader
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.grammars.hami import RegisteredDevice
from fleet.inventory import CardId, Inventory, WorkloadId
from fleet.units import MIB
from fleet.usage import History
from tests.cluster.api import Api
from tests.cluster.hami_double import hami_node
from tests.cluster.workloads import deployment, until_ready
from tests.recommender.builders import STEP_SECONDS, Service, cluster


def stand_up(
    api: Api, reader: ClusterReader, namespace: str, *services: Service, prefix: str, spare_cards: int = 0
) -> History:
    """Make nodes and Deployments, wait until every pod runs, and return their history up to now.

    Args:
        api: by whose rights they are made.
        reader: by which their places are read.
        namespace: of all services.
        services: one Deployment each; a pod takes a whole card.
        prefix: of the names of nodes and cards, which no other test has.
        spare_cards: cards beyond those that the pods need.
    """
    told = cluster(*(replace(service, namespace=namespace) for service in services), spare_cards=spare_cards)
    inventory = _renamed(told.inventory, prefix)
    by_node = defaultdict(list)
    for card in inventory.cards:
        by_node[card.node].append(card)
    for node, cards in by_node.items():
        devices = [
            RegisteredDevice(
                card=card.card, slices_max=10, framebuffer_mib=card.framebuffer_bytes // MIB, core_percent=100,
                device_type=f"NVIDIA-{card.card_model}", numa=0, is_healthy=True, index=number, mode="hami-core",
            )
            for number, card in enumerate(cards)
        ]  # fmt: skip
        hami_node(api, node, devices)
    for service in services:
        deployment(
            api, namespace, service.name, replicas=service.replicas, container="main", limits={"nvidia.com/gpu": "1"}
        )
    for service in services:
        until_ready(api, namespace, service.name, service.replicas, seconds=60.0 + len(services))
    return _as_it_stands(told, inventory, take_snapshot(reader), datetime.now(UTC))


def cards_in_use(snapshot: Snapshot, prefix: str) -> set[str]:
    """Cards of a fleet that a pod holds a slice of."""
    return {card for seat in snapshot.seats.values() for card in seat.cards if card.startswith(f"GPU-{prefix}")}


def _renamed(inventory: Inventory, prefix: str) -> Inventory:
    return replace(
        inventory,
        cards=tuple(
            replace(card, card=CardId(f"GPU-{prefix}-{number}"), node=f"{prefix}-{card.node}")
            for number, card in enumerate(inventory.cards)
        ),
        nodes=tuple(replace(node, node=f"{prefix}-{node.node}") for node in inventory.nodes),
    )


def _as_it_stands(told: History, inventory: Inventory, snapshot: Snapshot, now: datetime) -> History:
    """The history with the pods' real names and places, its last step just over."""
    left = {workload: list(seats) for workload, seats in snapshot.pods.items()}
    moved = now - told.inventory.as_of
    grants, keys = [], {}
    for grant in told.inventory.grants:
        seat = left[WorkloadId(f"{grant.namespace}/{grant.workload_kind}/{grant.workload}")].pop()
        card = next(found for found in inventory.cards if found.card == seat.cards[0])
        grants.append(
            replace(
                grant, pod=seat.pod, card=card.card, node=card.node,
                started_at=grant.started_at + moved,
            )
        )  # fmt: skip
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
