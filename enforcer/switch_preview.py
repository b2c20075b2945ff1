"""What putting a node into another mode would do: which modes it could be in, who must leave, and what that harms.

Called by `gputide admin node mode` and by the page of a node, before anybody asks for the switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enforcer.backends.node_mode import cuts_of, modes_of, offers_of, present_mode, render_switch, with_defaults
from enforcer.cluster import ClusterReader
from enforcer.disruption import disruptions_allowed, selects
from enforcer.manifest import Manifest
from enforcer.node_loss import homes_elsewhere
from enforcer.preview import StagePreview
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities
from fleet.decisions import Plan
from fleet.errors import Corrupt, Refused
from fleet.inventory import WorkloadId
from fleet.node_changes import NodeMode, NodeSwitch


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """How a node hands out its cards.

    Attributes:
        mode: the one that it is in; None where it shows no cards.
        offers: how many devices of each resource it has to give, taken or not.
        modes: those of its backend, each with why the node can't be put into it, None where it can; empty where pods or
            the scheduler choose, not the node.
        cuts: MIG profiles that its cards can be cut into beforehand, and how many instances of each alone; empty where
            there are none, or cards are cut when a pod asks.
    """

    node: str
    mode: NodeMode | None
    offers: tuple[tuple[str, int], ...]
    modes: tuple[tuple[NodeMode, str | None], ...]
    cuts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A pod that must leave a node.

    Attributes:
        pod: `namespace/pod`.
        home: a node that has room for it, which the scheduler may choose; None where no other has.
        budgets: disruption budgets that bind its eviction, each with how many pods it lets go now.
        emptied: its volumes that eviction empties.
        claimed: those that may keep it from coming up on another node.
    """

    pod: str
    workload: WorkloadId
    home: str | None
    budgets: tuple[tuple[str, int], ...]
    emptied: tuple[str, ...]
    claimed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPreview:
    """A switch, before anybody asks for it.

    Attributes:
        plan: that of the switch, kept nowhere.
        stage: what its one stage would change.
        approvals: how many people must approve it.
    """

    plan: Plan
    stage: StagePreview
    leavers: tuple[Leaver, ...]
    approvals: int


def node_standing(node: str, snapshot: Snapshot, record: Capabilities) -> NodeStanding:
    """How a node hands out its cards, and how it could.

    Raises:
        Refused: there is no such node.
    """
    return NodeStanding(
        node=node,
        mode=present_mode(node, snapshot),
        offers=tuple(offers_of(node, snapshot).items()),
        modes=tuple(
            (one, _why_not(NodeSwitch(node=node, mode=one), snapshot, record)) for one in modes_of(snapshot.dialect)
        ),
        cuts=cuts_of(node, snapshot),
    )


def leavers_of(node: str, reader: ClusterReader, snapshot: Snapshot) -> tuple[Leaver, ...]:
    """Pods that hold cards of a node, where each finds room, and what binds or harms its eviction."""
    seats = [snapshot.seats[f"{namespace}/{name}"] for namespace, name in snapshot.holders(node)]
    pods = [
        pod for namespace in sorted({seat.namespace for seat in seats}) for pod in reader.list_objects("Pod", namespace)
    ]
    manifests = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod for pod in pods}
    homes = homes_elsewhere(node, seats, snapshot, manifests)
    bound = _budgets(reader.list_objects("PodDisruptionBudget"), pods)
    found = []
    for seat in seats:
        volumes = manifests.get(seat.pod_id, {}).get("spec", {}).get("volumes") or ()
        found.append(
            Leaver(
                pod=seat.pod_id,
                workload=seat.workload,
                home=homes[seat.pod_id],
                budgets=tuple((name, allowed) for name, allowed, selected in bound if seat.pod_id in selected),
                emptied=tuple(
                    str(volume["name"])
                    for volume in volumes
                    if volume.get("emptyDir") is not None and volume["emptyDir"].get("medium") != "Memory"
                ),
                claimed=tuple(str(volume["name"]) for volume in volumes if "persistentVolumeClaim" in volume),
            )
        )
    return tuple(found)


def _budgets(budgets: Sequence[Manifest], pods: Sequence[Manifest]) -> list[tuple[str, int, frozenset[str]]]:
    """Name of each budget, how many pods it lets go now, and which of some pods it selects."""
    found = []
    for budget in budgets:
        selected = [pod for pod in pods if selects(budget, pod)]
        names = frozenset(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in selected)
        found.append((str(budget["metadata"]["name"]), disruptions_allowed(budget, selected), names))
    return found


def _why_not(switch: NodeSwitch, snapshot: Snapshot, record: Capabilities) -> str | None:
    """Why a node can't be put into a mode; None where nothing stands against it by what the node and its cards are."""
    try:
        render_switch("", with_defaults(switch, snapshot), snapshot, record)
    except (Refused, Corrupt) as exc:
        return str(exc)
    return None
