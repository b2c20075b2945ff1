"""Which services would not survive the loss of a node, before it happens.

Pure. For each node that carries pods with cards the cluster is thought of without it: every pod that it carries needs a
place on the nodes that are left, by what it may run on and by what their cards have to grant. Pods are placed the
largest first, each on the fullest card that takes it; a scheduler may find room where this does not, and the other way
round, so what is said is a forecast. Pods of a DaemonSet go with their node and count for nothing. Pods whose cards the
API does not name are left out. Called by `gputide plan drift`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from enforcer.admission import unpinned
from enforcer.card_room import CardRoom, card_rooms
from enforcer.dialect import SeatSlice, StandingCard
from enforcer.manifest import Manifest, workload_parts
from enforcer.node_choice import may_run_on, why_node_closed
from enforcer.seat import PodSeat
from enforcer.snapshot import Snapshot
from fleet.inventory import WorkloadId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoss:
    """What the loss of a node would do to one workload.

    Attributes:
        pods: how many of its pods the node carries.
        stranded: how many of those would not come up elsewhere: no card has room, or nothing makes them anew.
        left: how many of its pods would go on elsewhere meanwhile.
    """

    node: str
    workload: WorkloadId
    pods: int
    stranded: int
    left: int


def node_losses(snapshot: Snapshot, pods: Sequence[Manifest]) -> tuple[NodeLoss, ...]:
    """Workloads that would lose pods for good with a node, by node and workload.

    Args:
        pods: all pods of the namespaces that it has seats in.
    """
    manifests = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod for pod in pods}
    nodes = dict(snapshot.nodes)
    healthy = {name: card for name, card in snapshot.cards.items() if card.is_healthy}
    by_node: dict[str, list[PodSeat]] = {}
    for seat in snapshot.seats.values():
        if seat.node is not None and seat.slices and all(part.card is not None for part in seat.slices):
            by_node.setdefault(seat.node, []).append(seat)
    found = []
    for node, lost in sorted(by_node.items()):
        left = {name: card for name, card in healthy.items() if card.node != node}
        rooms = card_rooms((seat for seat in snapshot.seats.values() if seat.node != node), left)
        homeless = [
            seat
            for seat in sorted(lost, key=_size, reverse=True)
            if workload_parts(seat.workload)[1] != "DaemonSet"
            and not _finds_room(seat, manifests.get(seat.pod_id), nodes, left, rooms)
        ]
        for workload in sorted({seat.workload for seat in homeless}):
            own = sum(seat.workload == workload for seat in lost)
            found.append(
                NodeLoss(
                    node=node,
                    workload=workload,
                    pods=own,
                    stranded=sum(seat.workload == workload for seat in homeless),
                    left=len(snapshot.pods.get(workload, ())) - own,
                )
            )
    return tuple(found)


def _size(seat: PodSeat) -> tuple[int, int, str]:
    return len(seat.cards), sum(part.framebuffer_mib for part in seat.slices), seat.pod_id


def _finds_room(
    seat: PodSeat,
    pod: Manifest | None,
    nodes: Mapping[str, Manifest],
    cards: Mapping[str, StandingCard],
    rooms: Mapping[str, CardRoom],
) -> bool:
    """Place a pod on one node, and count it there; False where no node has room. A pod without an owner is not made."""
    if pod is None or workload_parts(seat.workload)[1] == "Pod":
        return False
    free = unpinned(pod)
    for node in sorted({card.node for card in cards.values()}):
        if node not in nodes or why_node_closed(nodes[node]) is not None or not may_run_on(free, nodes[node]):
            continue
        placed = _placed(seat.slices, {name for name, card in cards.items() if card.node == node}, rooms)
        if placed is not None:
            for card, part in placed:
                rooms[card].count(part, 1)
            return True
    return False


def _placed(
    slices: Sequence[SeatSlice], cards: Collection[str], rooms: Mapping[str, CardRoom]
) -> list[tuple[str, SeatSlice]] | None:
    """A card for each share, other cards for shares of other cards; None where one has none."""
    found: list[tuple[str, SeatSlice]] = []
    for part in slices:
        taken = {card for card, _ in found}
        fitting = [card for card in cards if card not in taken and rooms[card].takes(part)]
        if not fitting:
            return None
        found.append((min(fitting, key=lambda card: (rooms[card].framebuffer_mib - rooms[card].used_mib, card)), part))
    return found
