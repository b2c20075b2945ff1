"""Which services would not survive the loss of a node, and where its pods would find room, before it happens.

Pure. For each node that carries pods with cards the cluster is thought of without it: every pod that it carries needs a
place on the nodes that are left, by what it may run on and by what their cards have to grant. Pods are placed the
largest first, each on the fullest card that takes it; a scheduler may find room where this does not, and the other way
round, so what is said is a forecast. Pods of a DaemonSet go with their node and count for nothing. Where the API names
no cards, devices are counted by node; shares that nodes don't count either are left out. Called by `gputide plan
drift`, and by the guard and `gputide admin node mode` for nodes that are to be emptied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from enforcer.admission import SEAT_ANNOTATION, unpinned
from enforcer.backends.device_plugin import hands_out, offered
from enforcer.card_room import CardRoom, card_rooms
from enforcer.dialect import SeatSlice, StandingCard
from enforcer.manifest import Manifest, workload_parts
from enforcer.node_choice import may_run_on, why_node_closed
from enforcer.resource_names import Words, listed_words, names_model
from enforcer.seat import PodSeat
from enforcer.snapshot import Snapshot
from fleet.errors import Refused
from fleet.inventory import OPT_OUT_LABEL, WorkloadId


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
    # Parsed once for all nodes.
    snapshot = replace(snapshot, nodes=dict(snapshot.nodes))
    by_node: dict[str, list[PodSeat]] = {}
    for seat in snapshot.seats.values():
        if seat.node is not None and seat.slices and all(map(_is_known, seat.slices)):
            by_node.setdefault(seat.node, []).append(seat)
    found = []
    for node, lost in sorted(by_node.items()):
        made_anew = [seat for seat in lost if workload_parts(seat.workload)[1] != "DaemonSet"]
        homes = homes_elsewhere(node, made_anew, snapshot, manifests)
        homeless = [seat for seat in made_anew if homes[seat.pod_id] is None]
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


def homes_elsewhere(
    node: str, leaving: Iterable[PodSeat], snapshot: Snapshot, pods: Mapping[str, Manifest]
) -> dict[str, str | None]:
    """A node on which each pod that leaves a node finds room, None where no other has any; by `namespace/pod`.

    Where it comes up is the scheduler's choice.

    Args:
        pods: manifests of pods by `namespace/pod`. One that is not among them finds no place, nor does one without an
            owner, which nobody makes anew.
    """
    cards = {name: card for name, card in snapshot.cards.items() if card.is_healthy and card.node != node}
    staying = [seat for seat in snapshot.seats.values() if seat.node != node]
    others = {name: other for name, other in snapshot.nodes.items() if name != node and why_node_closed(other) is None}
    rooms = _Rooms(cards_free=card_rooms(staying, cards), devices_free=_devices_free(staying, others))
    found: dict[str, str | None] = {}
    for seat in sorted(leaving, key=_size, reverse=True):
        pod = pods.get(seat.pod_id)
        is_made_anew = pod is not None and workload_parts(seat.workload)[1] != "Pod"
        free = unpinned(pod) if pod is not None and is_made_anew else None
        fitting = [] if free is None else [name for name in sorted(others) if may_run_on(free, others[name])]
        usable = {} if free is None else _chosen(free, cards, getattr(snapshot.dialect, "words", None))
        found[seat.pod_id] = next((name for name in fitting if rooms.takes(seat, name, usable)), None)
    return found


def pods_leaving(node: str, snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """Pods (`namespace`, `name`) that hold cards of a node and must leave it, sorted.

    Raises:
        Refused: one of them would be lost, would come back at once, or may not be touched.
    """
    found = snapshot.holders(node)
    for seat in (snapshot.seats[f"{namespace}/{name}"] for namespace, name in found):
        kind = workload_parts(seat.workload)[1]
        if kind == "Pod":
            raise Refused(
                f"cannot empty node {node}: nobody makes pod {seat.pod_id} anew; delete it, or wait for its end"
            )
        if kind == "DaemonSet":
            raise Refused(f"cannot empty node {node}: pod {seat.pod_id} of a DaemonSet comes back to it at once")
        if snapshot.is_flagged(OPT_OUT_LABEL, seat.workload):
            raise Refused(
                f"cannot empty node {node}: {seat.workload} says {OPT_OUT_LABEL}=true, and {seat.pod_id} is there"
            )
    return found


@dataclass(slots=True, kw_only=True)
class _Rooms:
    """What nodes have left; mutable: it changes as pods are placed.

    Attributes:
        devices_free: devices of a node that nobody asks for, by node and resource.
    """

    cards_free: dict[str, CardRoom]
    devices_free: Counter[tuple[str, str]]

    def takes(self, seat: PodSeat, node: str, cards: Mapping[str, StandingCard]) -> bool:
        """Place a pod on a node and count it there; False where none of these cards there has room."""
        asked = Counter(part.resource or "" for part in seat.slices if part.card is None)
        if any(self.devices_free[node, resource] < count for resource, count in asked.items()):
            return False
        named = [part for part in seat.slices if part.card is not None]
        placed = _placed(named, {name for name, card in cards.items() if card.node == node}, self.cards_free)
        if placed is None:
            return False
        for card, part in placed:
            self.cards_free[card].count(part, 1)
        self.devices_free.subtract({(node, resource): count for resource, count in asked.items()})
        return True


def _chosen(pod: Manifest, cards: Mapping[str, StandingCard], words: Words | None) -> Mapping[str, StandingCard]:
    """Cards that a pod may have by the models and cards that it names; of a pinned one the plan named the cards."""
    said = pod["metadata"].get("annotations") or {}
    if words is None:
        return cards
    used, avoided = said.get(words.use_model, ""), said.get(words.avoid_model, "")
    is_pinned = SEAT_ANNOTATION in said
    named = () if is_pinned else listed_words(said.get(words.use_card))
    barred = listed_words(said.get(words.avoid_card))
    return {
        name: card
        for name, card in cards.items()
        if (not used or names_model(used, card.device_type)) and not names_model(avoided, card.device_type)
        if (not named or name in named) and name not in barred
    }


def _devices_free(staying: Iterable[PodSeat], nodes: Mapping[str, Manifest]) -> Counter[tuple[str, str]]:
    free: Counter[tuple[str, str]] = Counter()
    for name, node in nodes.items():
        for resource in node.get("status", {}).get("allocatable") or {}:
            if hands_out(resource):
                free[name, resource] = offered(node, resource)
    for seat in staying:
        free.subtract((seat.node or "", part.resource or "") for part in seat.slices if part.card is None)
    return free


def _is_known(part: SeatSlice) -> bool:
    """Whether a share's card is named, or its device is one that nodes count."""
    return part.card is not None or hands_out(part.resource or "")


def _size(seat: PodSeat) -> tuple[int, int, str]:
    return len(seat.cards) or len(seat.slices), sum(part.framebuffer_mib for part in seat.slices), seat.pod_id


def _placed(
    slices: Sequence[SeatSlice], cards: Collection[str], rooms: Mapping[str, CardRoom]
) -> list[tuple[str, SeatSlice]] | None:
    """A card for each share, other cards for shares of other cards; None where one has none."""
    found: list[tuple[str, SeatSlice]] = []
    for part in slices:
        taken = {card for card, _ in found}
        # A whole card that is smaller would be granted, but is no place for what runs on this one.
        large = [card for card in cards if rooms[card].framebuffer_mib >= part.framebuffer_mib]
        fitting = [card for card in large if card not in taken and rooms[card].takes(part)]
        if not fitting:
            return None
        found.append((min(fitting, key=lambda card: (rooms[card].framebuffer_mib - rooms[card].used_mib, card)), part))
    return found
