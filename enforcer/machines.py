"""What a node's machine belongs to, by what stands on the node: Karpenter, Cluster API, Cluster Autoscaler, or people.

Read by the backend that renders the release of a node, and by its dry run. What speaks against the machine leaving for
the sake of its owner is found here; what speaks against it for the sake of pods in `enforcer.node_release`.

Sources: kubernetes-sigs/karpenter:pkg/apis/v1 (labels.go, nodeclaim.go, nodepool.go),
kubernetes-sigs/cluster-api:api/core/v1beta2 (machine_types.go, common_types.go; annotations that it writes on nodes),
kubernetes/autoscaler:cluster-autoscaler/FAQ.md, cluster-autoscaler/cloudprovider/clusterapi/README.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from enforcer.backend import Departure, NodeOwner
from enforcer.cluster import ClusterReader, identity
from enforcer.manifest import Manifest
from fleet.sentences import Sentence, sentence

POOL_LABEL = "karpenter.sh/nodepool"
CAPACITY_TYPE_LABEL = "karpenter.sh/capacity-type"
STAY_ANNOTATION = "karpenter.sh/do-not-disrupt"
DELETE_MACHINE_ANNOTATION = "cluster.x-k8s.io/delete-machine"
SCALE_DOWN_DISABLED_ANNOTATION = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
_MACHINE, _MACHINE_NAMESPACE = "cluster.x-k8s.io/machine", "cluster.x-k8s.io/cluster-namespace"
_OWNER_KIND, _OWNER_NAME = "cluster.x-k8s.io/owner-kind", "cluster.x-k8s.io/owner-name"
_PAUSED = "cluster.x-k8s.io/paused"
_GROUP_MIN_SIZE = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
_AUTOSCALER_STATUS = ("ConfigMap", "kube-system", "cluster-autoscaler-status")
_GROUP_LABELS = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kubernetes.azure.com/agentpool",
)
"""Labels by which providers say of which group of theirs a node is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node's machine, and who takes it away.

    Attributes:
        manifest: the NodeClaim or Machine; None where there is none.
        scaled: the MachineDeployment or MachineSet that one fewer replica is asked of; None for other owners.
        newest: as in `Departure`.
        stays: why the owner would not take it, or why that would lower no bill; empty where it would.
    """

    owner: NodeOwner
    manifest: Manifest | None = None
    scaled: Manifest | None = None
    newest: str = ""
    stays: tuple[Sentence, ...] = ()

    def departure(self, node: str) -> Departure:
        """As the ledger keeps it."""
        machine = ("Node", "", node) if self.manifest is None else identity(self.manifest)
        return Departure(owner=self.owner, machine=machine, newest=self.newest)


def machine_of(node: Manifest, reader: ClusterReader) -> Machine:
    """Find out what a node's machine belongs to.

    Raises:
        Misconfigured: a right is missing.
        Unavailable: the cluster can't be reached.
    """
    labels, annotations = _texts(node, "labels"), _texts(node, "annotations")
    if POOL_LABEL in labels:
        return _of_karpenter(node, labels, reader)
    if _MACHINE in annotations:
        return _of_cluster_api(annotations, reader)
    is_grouped = bool((node.get("spec") or {}).get("providerID")) and any(label in labels for label in _GROUP_LABELS)
    if is_grouped and reader.get(*_AUTOSCALER_STATUS) is not None:
        return Machine(owner=NodeOwner.CLUSTER_AUTOSCALER, newest=newest_of(reader.list_objects("Node")))
    return Machine(owner=NodeOwner.NOBODY)


def newest_of(machines: Iterable[Manifest]) -> str:
    """When the newest of some objects was made; empty where there is none."""
    return max((str(one["metadata"].get("creationTimestamp") or "") for one in machines), default="")


def _of_karpenter(node: Manifest, labels: Mapping[str, str], reader: ClusterReader) -> Machine:
    claims, name = reader.list_objects("NodeClaim"), node["metadata"]["name"]
    owners = {one["name"] for one in node["metadata"].get("ownerReferences") or () if one.get("kind") == "NodeClaim"}
    claim = next(
        (
            one
            for one in claims
            if one["metadata"]["name"] in owners or (one.get("status") or {}).get("nodeName") == name
        ),
        None,
    )
    pool = reader.get("NodePool", "", labels[POOL_LABEL])
    stays: list[Sentence] = []
    if claim is None:
        stays.append(sentence("release.no_machine", kind="NodeClaim"))
    if pool is None:
        stays.append(sentence("release.no_pool", pool=labels[POOL_LABEL]))
    else:
        spec = pool.get("spec") or {}
        if spec.get("replicas") is not None:
            stays.append(sentence("release.static_pool", pool=labels[POOL_LABEL], nodes=int(spec["replicas"])))
        if (spec.get("disruption") or {}).get("consolidateAfter") == "Never":
            stays.append(sentence("release.never", pool=labels[POOL_LABEL], claim=_name(claim)))
    if labels.get(CAPACITY_TYPE_LABEL) == "reserved":
        stays.append(sentence("release.reserved"))
    return Machine(owner=NodeOwner.KARPENTER, manifest=claim, newest=newest_of(claims), stays=tuple(stays))


def _of_cluster_api(annotations: Mapping[str, str], reader: ClusterReader) -> Machine:
    namespace = annotations.get(_MACHINE_NAMESPACE, "")
    machine = reader.get("Machine", namespace, annotations[_MACHINE])
    scaled = None
    if annotations.get(_OWNER_KIND) == "MachineSet":
        scaled = reader.get("MachineSet", namespace, annotations.get(_OWNER_NAME, ""))
        references = () if scaled is None else scaled["metadata"].get("ownerReferences") or ()
        above = next((str(one["name"]) for one in references if one.get("kind") == "MachineDeployment"), None)
        scaled = scaled if above is None else reader.get("MachineDeployment", namespace, above)
    stays = [sentence("release.no_machine", kind="Machine")] if machine is None else []
    if scaled is None:
        owner = annotations.get(_OWNER_KIND, "no MachineSet")
        stays.append(sentence("release.no_scale", kind=owner, name=annotations.get(_OWNER_NAME, "")))
        return Machine(owner=NodeOwner.CLUSTER_API, manifest=machine, stays=tuple(stays))
    stays += [
        sentence("release.paused", kind=one["kind"], name=_name(one))
        for one in (machine, scaled)
        if one is not None and _PAUSED in _texts(one, "annotations")
    ]
    minimum = _texts(scaled, "annotations").get(_GROUP_MIN_SIZE)
    replicas = int((scaled.get("spec") or {}).get("replicas", 1))
    if minimum is not None and minimum.isdigit() and replicas <= int(minimum):
        stays.append(sentence("release.at_minimum", kind=scaled["kind"], name=_name(scaled), nodes=replicas))
    return Machine(
        # Where an autoscaler has its say over the replicas, it would set back what others write there.
        owner=NodeOwner.CLUSTER_API if minimum is None else NodeOwner.CLUSTER_AUTOSCALER,
        manifest=machine,
        scaled=scaled if minimum is None else None,
        newest=newest_of(reader.list_objects("Machine", namespace)),
        stays=tuple(stays),
    )


def _name(manifest: Manifest | None) -> str:
    return "" if manifest is None else str(manifest["metadata"]["name"])


def _texts(manifest: Manifest, part: str) -> Mapping[str, str]:
    found: Mapping[str, str] = manifest["metadata"].get(part) or {}
    return found
