"""The cluster as it stands at one moment, read once: owners, seats, cards. Backend, guard and preview look at it."""

from __future__ import annotations

from dataclasses import dataclass

from enforcer.cluster import ClusterReader, identity
from enforcer.manifest import Manifest
from enforcer.seat import PodSeat, seat_of_pod, seats_by_workload
from fleet.errors import Corrupt
from fleet.grammar import NODE_REGISTER_ANNOTATION, parse_node_register
from fleet.inventory import WorkloadId

OWNER_KINDS = ("Deployment", "Job", "Notebook", "StatefulSet")
"""Kinds whose template or scale may be changed."""

DEVICE_CONFIG = ("ConfigMap", "kube-system", "hami-device-plugin")
"""HAMi's node configuration: kind, namespace, name."""

DEVICE_CONFIG_FIELD = "data[config.json]"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingCard:
    """One card as its node registers it.

    Attributes:
        card: UUID.
        device_type: type text of the register (`NVIDIA-` and the model).
        node: node.
        framebuffer_mib: framebuffer that may be granted, MiB.
        slices_max: most slices.
    """

    card: str
    device_type: str
    node: str
    framebuffer_mib: int
    slices_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What stands in the cluster.

    Attributes:
        owners: owner manifests by workload.
        seats: seats of pods by `namespace/pod`.
        pods: names of each workload's pods' seats.
        cards: cards by UUID.
        device_config: HAMi's node configuration, None where there is none.
    """

    owners: dict[WorkloadId, Manifest]
    seats: dict[str, PodSeat]
    pods: dict[WorkloadId, list[PodSeat]]
    cards: dict[str, StandingCard]
    device_config: Manifest | None


def take_snapshot(reader: ClusterReader) -> Snapshot:
    """Read the cluster.

    Raises:
        Unavailable: it can't be reached.
        Corrupt: an annotation of HAMi can't be read.
    """
    owners = {}
    for kind in OWNER_KINDS:
        for owner in reader.list_objects(kind):
            _, namespace, name = identity(owner)
            owners[WorkloadId(f"{namespace}/{kind}/{name}")] = owner
    seats = [seat_of_pod(pod) for pod in reader.list_objects("Pod")]
    cards = {}
    for node in reader.list_objects("Node"):
        name = node["metadata"]["name"]
        text = node["metadata"].get("annotations", {}).get(NODE_REGISTER_ANNOTATION, "[]")
        try:
            devices = parse_node_register(text)
        except Corrupt as exc:
            raise Corrupt(f"cannot read the cards of node {name}: {exc}") from exc
        for device in devices:
            cards[device.card] = StandingCard(
                card=device.card,
                device_type=device.device_type,
                node=name,
                framebuffer_mib=device.framebuffer_mib,
                slices_max=device.slices_max,
            )
    return Snapshot(
        owners=owners,
        seats={seat.pod_id: seat for seat in seats},
        pods=seats_by_workload(seats),
        cards=cards,
        device_config=reader.get(*DEVICE_CONFIG),
    )
