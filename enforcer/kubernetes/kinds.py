"""Which kinds the enforcer may read and write, and how the API serves them; nothing else is ever asked for.

A kind stands here once: where two groups use one word (`Job` of batch and of Volcano), it means the first named here;
`Service` is Knative's, for nothing is ever asked of the core's.
Called by the reader and the writer.

Sources: kubernetes/api (groups of the core), argoproj/argo-rollouts:pkg/apis/rollouts, kserve/kserve:pkg/apis/serving,
kubernetes-sigs/lws:api/leaderworkerset, ray-project/kuberay:ray-operator/apis/ray,
kubeflow/kubeflow:components/notebook-controller/api, kubeflow/trainer:pkg/apis/kubeflow.org (release 1.9) and
pkg/apis/trainer, kubernetes-sigs/jobset:api/jobset, knative/serving:pkg/apis/serving, kedacore/keda:apis/keda,
volcano-sh/apis:pkg/apis/scheduling, kubernetes-sigs/kueue:apis/kueue, kubernetes-sigs/karpenter:pkg/apis/v1,
kubernetes-sigs/cluster-api:api/core.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet.errors import Refused
from wire.kubernetes.resource import ApiResource


def kind_named(kind: str) -> ApiResource:
    """How a kind is served.

    Raises:
        Refused: the enforcer has no business with this kind.
    """
    found = API_KINDS.get(kind)
    if found is None:
        raise Refused(f"cannot touch objects of kind {kind[:64]!r}: known are {', '.join(API_KINDS)}")
    return found


def _core(kind: str, plural: str, *, is_namespaced: bool = True) -> ApiResource:
    return ApiResource(kind=kind, group="", versions=("v1",), plural=plural, is_namespaced=is_namespaced)


def _of(group: str, version: str, kind: str, plural: str) -> ApiResource:
    return ApiResource(kind=kind, group=group, versions=(version,), plural=plural)


def _custom(group: str, versions: str, kind: str, plural: str, *, is_namespaced: bool = True) -> ApiResource:
    return ApiResource(
        kind=kind, group=group, versions=tuple(versions.split()), plural=plural, is_namespaced=is_namespaced,
        is_optional=True,
    )  # fmt: skip


_DRA_VERSIONS = "v1 v1beta2 v1beta1"
_CLUSTER_API_VERSIONS = "v1beta2 v1beta1"

API_KINDS: Mapping[str, ApiResource] = {
    found.kind: found
    for found in (
        _core("Pod", "pods"),
        _core("Node", "nodes", is_namespaced=False),
        _core("ConfigMap", "configmaps"),
        _core("ResourceQuota", "resourcequotas"),
        _core("Namespace", "namespaces", is_namespaced=False),
        _of("apps", "v1", "Deployment", "deployments"),
        _of("apps", "v1", "StatefulSet", "statefulsets"),
        _of("apps", "v1", "DaemonSet", "daemonsets"),
        _of("apps", "v1", "ReplicaSet", "replicasets"),
        _of("batch", "v1", "Job", "jobs"),
        _of("batch", "v1", "CronJob", "cronjobs"),
        _of("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
        _of("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
        _of("coordination.k8s.io", "v1", "Lease", "leases"),
        _custom("gputide.io", "v1alpha1", "GpuPolicy", "gpupolicies"),
        _custom("gputide.io", "v1alpha1", "ClusterGpuPolicy", "clustergpupolicies", is_namespaced=False),
        _custom("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"),
        _custom("argoproj.io", "v1alpha1", "Rollout", "rollouts"),
        _custom("serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices"),
        _custom("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
        _custom("ray.io", "v1 v1alpha1", "RayCluster", "rayclusters"),
        _custom("ray.io", "v1 v1alpha1", "RayService", "rayservices"),
        _custom("ray.io", "v1 v1alpha1", "RayJob", "rayjobs"),
        _custom("kubeflow.org", "v1 v1beta1", "Notebook", "notebooks"),
        _custom("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
        _custom("kubeflow.org", "v1", "TFJob", "tfjobs"),
        _custom("kubeflow.org", "v1", "XGBoostJob", "xgboostjobs"),
        _custom("kubeflow.org", "v1", "PaddleJob", "paddlejobs"),
        _custom("kubeflow.org", "v1", "JAXJob", "jaxjobs"),
        _custom("kubeflow.org", "v2beta1 v1", "MPIJob", "mpijobs"),
        _custom("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs"),
        _custom("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
        _custom("serving.knative.dev", "v1", "Revision", "revisions"),
        _custom("serving.knative.dev", "v1", "Configuration", "configurations"),
        _custom("serving.knative.dev", "v1", "Service", "services"),
        _custom("resource.k8s.io", _DRA_VERSIONS, "ResourceClaim", "resourceclaims"),
        _custom("resource.k8s.io", _DRA_VERSIONS, "ResourceClaimTemplate", "resourceclaimtemplates"),
        _custom("resource.k8s.io", _DRA_VERSIONS, "DeviceClass", "deviceclasses", is_namespaced=False),
        _custom("resource.k8s.io", _DRA_VERSIONS, "ResourceSlice", "resourceslices", is_namespaced=False),
        _custom("resource.k8s.io", "v1 v1beta2 v1alpha3", "DeviceTaintRule", "devicetaintrules", is_namespaced=False),
        _custom("karpenter.sh", "v1", "NodeClaim", "nodeclaims", is_namespaced=False),
        _custom("karpenter.sh", "v1", "NodePool", "nodepools", is_namespaced=False),
        _custom("cluster.x-k8s.io", _CLUSTER_API_VERSIONS, "Machine", "machines"),
        _custom("cluster.x-k8s.io", _CLUSTER_API_VERSIONS, "MachineSet", "machinesets"),
        _custom("cluster.x-k8s.io", _CLUSTER_API_VERSIONS, "MachineDeployment", "machinedeployments"),
        _custom("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),
        _custom("scheduling.volcano.sh", "v1beta1", "Queue", "queues", is_namespaced=False),
        _custom("kueue.x-k8s.io", "v1beta2 v1beta1", "Workload", "workloads"),
        _custom("kueue.x-k8s.io", "v1beta2 v1beta1", "ClusterQueue", "clusterqueues", is_namespaced=False),
    )
}
