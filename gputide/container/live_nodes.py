"""What a plan needs to know of a cluster as it is now: modes of nodes, whom workloads' own words keep off, policies.

A history does not say it: a scan sees no labels of nodes, somebody may have put a node into another mode since, what a
template selects is no metric, and a policy is older in it than the edit that a plan shall follow. Used by
`gputide plan make` and `gputide run planner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from enforcer.cluster import ClusterReader
from enforcer.kinds.register import WORKLOAD_KINDS, pod_templates
from enforcer.manifest import Manifest
from enforcer.node_choice import chooses
from enforcer.wishes import policies_in
from fleet.capabilities.register import capabilities_of
from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured, Refused, Unavailable
from fleet.gpu_policy import GpuPolicy, by_namespace, with_policies
from fleet.inventory import BY_POLICY_LABEL, NODE_MODE_LABEL, Grant, Inventory, Node, WorkloadId
from fleet.settings.settings import ClusterChoice, Settings
from fleet.usage import History
from gputide.container.cluster import check_uid, is_of_backend, open_cluster, own_cluster


def with_live_nodes(
    history: History, folder: DataFolder, settings: Settings, *, needs_policies: bool = False
) -> tuple[History, tuple[str, ...]]:
    """A history with the nodes of the enforcer's cluster as they are now, and a note where it can't be asked.

    Nodes are in the modes that a real cluster says, and pods carry what its policies decide now; other labels stay as
    they were collected. `kept_off` holds the nodes that selector or affinity of a workload's templates leaves out.

    Args:
        needs_policies: refuse where policies can't be read, for who asks says of each that the plan follows it.

    Raises:
        Misconfigured, Refused, Unavailable: they can't be, and are needed.
    """
    inventory = history.inventory
    if own_cluster(folder, settings) not in (None, inventory.cluster) or not is_of_backend(folder, settings):
        return history, ()
    try:
        with open_cluster(folder, settings) as cluster:
            check_uid(cluster, settings)
            nodes = {one["metadata"]["name"]: one for one in cluster.list_objects("Node")}
            kept_off, notes = _kept_off(inventory, nodes, cluster)
            inventory = replace(inventory, kept_off=kept_off)
            if settings.enforcer.cluster is ClusterChoice.KUBERNETES:
                inventory, unread = _with_policies(inventory, cluster, needs_policies=needs_policies)
                notes = (*notes, *unread)
    except (Misconfigured, Refused, Unavailable) as exc:
        if needs_policies:
            raise
        return history, (f"modes of nodes are those that were collected, for the cluster could not be asked: {exc}",)
    if settings.enforcer.cluster is ClusterChoice.KUBERNETES:
        names = {NODE_MODE_LABEL, capabilities_of(settings.enforcer.backend).node_policy_label}
        known = tuple(
            _with_labels(node, nodes[node.node]["metadata"].get("labels", {}), names) if node.node in nodes else node
            for node in inventory.nodes
        )
        inventory = replace(inventory, nodes=known)
    return replace(history, inventory=inventory), notes


def _kept_off(
    inventory: Inventory, nodes: Mapping[str, Manifest], reader: ClusterReader
) -> tuple[dict[WorkloadId, frozenset[str]], tuple[str, ...]]:
    """Nodes that none of a workload's templates chooses, of workloads that choose; notes of what is not known."""
    wanted = {grant.workload_id for grant in inventory.live_grants()}
    found: dict[WorkloadId, frozenset[str]] = {}
    notes: list[str] = []
    known: dict[str, frozenset[str]] = {}
    for kind in sorted({name.split("/")[1] for name in wanted} & WORKLOAD_KINDS.keys()):
        try:
            owners = reader.list_objects(kind)
        except (Misconfigured, Refused, Unavailable) as exc:
            notes.append(f"which nodes workloads of kind {kind} select is not known, for they could not be read: {exc}")
            continue
        for owner in owners:
            name = WorkloadId(f"{owner['metadata']['namespace']}/{kind}/{owner['metadata']['name']}")
            if name not in wanted:
                continue
            try:
                specs = [template.body["spec"] for template in pod_templates(owner)]
                # A fleet has few words and many owners.
                word = repr([(spec.get("nodeSelector"), spec.get("affinity")) for spec in specs])
                if word not in known:
                    known[word] = _left_out(specs, nodes)
            except (AttributeError, LookupError, TypeError, ValueError):
                # What its owner wrote there no API server has checked: it keeps nobody else from a plan.
                notes.append(f"which nodes {name} selects is not known, for its template is none")
                continue
            if known[word]:
                found[name] = known[word]
    return found, tuple(notes)


def _with_policies(
    inventory: Inventory, reader: ClusterReader, *, needs_policies: bool
) -> tuple[Inventory, tuple[str, ...]]:
    """What stands there, with what policies decide now on each grant; a note where they can't be read."""
    try:
        known = by_namespace(policies_in(reader.list_objects))
    except (Misconfigured, Refused, Unavailable) as exc:
        if needs_policies:
            raise
        return inventory, (f"policies are those that were collected, for the cluster could not be asked: {exc}",)
    grants = (_by_policies(grant, [*known.get("", ()), *known.get(grant.namespace, ())]) for grant in inventory.grants)
    return replace(inventory, grants=tuple(grants)), ()


def _by_policies(grant: Grant, policies: Sequence[GpuPolicy]) -> Grant:
    """A grant with what policies decide now among its labels."""
    if not policies and grant.label(BY_POLICY_LABEL) is None:
        return grant
    before = dict(grant.labels)
    labels = with_policies(before, policies, grant.namespace)
    return grant if labels == before else replace(grant, labels=tuple(sorted(labels.items())))


def _is_choosy(spec: Manifest) -> bool:
    return bool(spec.get("nodeSelector") or (spec.get("affinity") or {}).get("nodeAffinity"))


def _left_out(specs: Sequence[Manifest], nodes: Mapping[str, Manifest]) -> frozenset[str]:
    if not specs or not all(map(_is_choosy, specs)):
        return frozenset()
    return frozenset(name for name, node in nodes.items() if not any(chooses(spec, node) for spec in specs))


def _with_labels(node: Node, live: Mapping[str, str], names: AbstractSet[str | None]) -> Node:
    """A node with these of its labels as they are now."""
    kept = [(name, value) for name, value in node.labels if name not in names]
    return replace(node, labels=tuple(sorted([*kept, *(one for one in live.items() if one[0] in names)])))
