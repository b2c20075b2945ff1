"""Specifications of a simulated cluster's workloads: how users write them, and what the API server refuses in them.

Pure. A trace knows pods and their owners' kinds; the rest is what a user of that kind would write. It says nothing of
update strategies: owners that surge by default get the strategy that services with whole cards usually have, one pod
unavailable and none beside the others (maxUnavailable 1, maxSurge 0), since a surge pod would need a card of its own.
Objects that are applied are taken as they are, with Kubernetes' defaults. Where a kind has several templates, the
pods of the trace are those that do the work: workers, predictors, groups of one pod. Refused is what a rollout could
trip over, in owners that roll.

Sources: `enforcer.kinds` for the fields; kubernetes:pkg/apis/apps/validation/validation.go (ValidateDeploymentSpec,
ValidateRollingUpdateDeployment, ValidateStatefulSetSpec).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from enforcer.kinds.kind import Reach
from enforcer.kinds.kserve import COMPONENT_LABEL
from enforcer.kinds.kubeflow import ROLE_LABELS
from enforcer.kinds.leader_worker import WORKER_INDEX_LABEL
from enforcer.kinds.ray import GROUP_LABEL
from enforcer.kinds.register import pod_templates, workload_kind
from enforcer.kubernetes.kinds import API_KINDS
from enforcer.manifest import Manifest, field_of, set_field
from fleet.errors import Refused

WORKERS = "workers"
"""Name of the one group of a simulated RayCluster."""

_ONE_AT_A_TIME: Manifest = {"maxSurge": 0, "maxUnavailable": 1}
_STRATEGY: Manifest = {"type": "RollingUpdate", "rollingUpdate": _ONE_AT_A_TIME}

_DEFAULTS: dict[str, Manifest] = {
    "Deployment": {"progressDeadlineSeconds": 600, "strategy": _STRATEGY},
    "StatefulSet": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}},
    "DaemonSet": {"updateStrategy": _STRATEGY},
    "Rollout": {"strategy": {"canary": _ONE_AT_A_TIME}},
}
"""What a user writes about strategies, or the API server fills in (kubernetes:pkg/apis/apps/v1/defaults.go)."""

_TRAINING = {
    "PyTorchJob": ("pytorchReplicaSpecs", "Worker"),
    "TFJob": ("tfReplicaSpecs", "Worker"),
    "MPIJob": ("mpiReplicaSpecs", "Worker"),
    "XGBoostJob": ("xgbReplicaSpecs", "Worker"),
    "PaddleJob": ("paddleReplicaSpecs", "Worker"),
    "JAXJob": ("jaxReplicaSpecs", "Worker"),
}
_WITHOUT_SIZE = frozenset({"DaemonSet", "Notebook", "TrainJob"})


def spec_of_kind(kind: str, template: Manifest) -> Manifest:
    """What a user writes for one pod of this template."""
    if kind in _TRAINING:
        field, role = _TRAINING[kind]
        return {field: {role: {"replicas": 1, "template": template}}}
    written = _WRITTEN.get(kind)
    if written is not None:
        return written(template)
    size = {} if kind in _WITHOUT_SIZE else {"replicas": 1}
    return {"template": template, **size, **copy.deepcopy(_DEFAULTS.get(kind, {}))}


def annotations_of_kind(kind: str) -> dict[str, str]:
    """Annotations by which the owner says what else its controller must know."""
    return {"serving.kserve.io/deploymentMode": "RawDeployment"} if kind == "InferenceService" else {}


def labels_of_pods(kind: str) -> dict[str, str]:
    """Labels that the controller of a kind puts on the pods of a trace."""
    if kind in _TRAINING:
        return {ROLE_LABELS[0]: _TRAINING[kind][1].lower()}
    match kind:
        case "LeaderWorkerSet":
            return {WORKER_INDEX_LABEL: "0"}
        case "RayCluster" | "RayService" | "RayJob":
            return {GROUP_LABEL: WORKERS}
        case "InferenceService":
            return {COMPONENT_LABEL: "predictor"}
        case _:
            return {}


def api_version(kind: str) -> str:
    """Group and version of a kind; those of the core where it is none of ours."""
    found = API_KINDS.get(kind)
    if found is None:
        return "v1"
    return f"{found.group}/{found.versions[0]}" if found.group else found.versions[0]


def template_of_trace(owner: Manifest) -> dict[str, Any]:
    """The template that the pods of a trace are made from: of several the last, for the first leads."""
    templates = pod_templates(owner)
    if not templates:
        # A TrainJob's stands in its runtime, which a trace knows nothing of.
        found: dict[str, Any] = owner.get("spec", {}).get("template", {})
        return found
    return templates[-1].body


def desired_pods(owner: Manifest) -> int | None:
    """How many pods an owner wants; None where it wants all that its users run."""
    kind = workload_kind(owner["kind"])
    if kind.reach is Reach.NEXT_RUN:
        # What runs goes on whatever is said of the runs that come.
        return None
    return kind.wanted(owner)


def rolling_spec(owner: Manifest) -> Mapping[str, Any]:
    """How an owner rolls, in the words of the built-in kind that rolls alike."""
    spec: dict[str, Any] = owner.get("spec", {})
    match owner["kind"]:
        case "Rollout":
            canary = (spec.get("strategy") or {}).get("canary") or {}
            return {"paused": spec.get("paused"), "strategy": {"rollingUpdate": canary}}
        case "InferenceService":
            return {"strategy": spec.get("predictor", {}).get("deploymentStrategy") or {}}
        case "RayService":
            return {"strategy": {"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}}}
        case "LeaderWorkerSet":
            rolling = (spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
            return {"updateStrategy": {"rollingUpdate": rolling}}
        case _:
            return spec


def resize(owner: Manifest, by: int) -> None:
    """Let a user run more pods or fewer, in place; nothing where the kind has no size."""
    if owner["kind"] == "Job":
        owner["spec"]["parallelism"] = max(0, int(owner["spec"].get("parallelism", 1)) + by)
        return
    for size in workload_kind(owner["kind"]).sizes(owner)[-1:]:
        set_field(owner, size.path, str(max(0, int(field_of(owner, size.path) or size.default) + by)))


def _predictor(template: Manifest) -> Manifest:
    held = {key: value for key, value in template["metadata"].items() if value}
    held |= {"minReplicas": 1, "deploymentStrategy": copy.deepcopy(_STRATEGY)}
    return {"predictor": {**template["spec"], **held}}


def _cron(template: Manifest) -> Manifest:
    return {"schedule": "0 3 * * *", "suspend": False, "jobTemplate": {"spec": {"template": template}}}


def _ray(template: Manifest) -> Manifest:
    head = {"spec": {"containers": [{"name": "ray-head", "resources": {"limits": {"cpu": "4"}}}]}}
    group = {"groupName": WORKERS, "replicas": 1, "minReplicas": 0, "maxReplicas": 1000, "template": template}
    return {"headGroupSpec": {"rayStartParams": {}, "template": head}, "workerGroupSpecs": [group]}


_WRITTEN: Mapping[str, Callable[[Manifest], Manifest]] = {
    "CronJob": _cron,
    "InferenceService": _predictor,
    "Job": lambda template: {"parallelism": 1, "suspend": False, "template": template},
    "LeaderWorkerSet": lambda template: {
        "replicas": 1,
        "leaderWorkerTemplate": {"size": 1, "workerTemplate": template},
    },
    "RayCluster": _ray,
    "RayJob": lambda template: {"rayClusterSpec": _ray(template)},
    "RayService": lambda template: {"rayClusterConfig": _ray(template)},
}


_DEADLINE_SECONDS = 600


def refuse_invalid(owner: Manifest) -> None:
    """Check the specification of an owner.

    Raises:
        Refused: the API server would not take it; the message names field and value.
    """
    spec = owner.get("spec", {})
    if owner["kind"] == "Deployment":
        _check_deployment(owner, spec)
    elif owner["kind"] == "StatefulSet":
        strategy = spec.get("updateStrategy", {})
        if strategy.get("type") == "OnDelete" and strategy.get("rollingUpdate") is not None:
            raise _invalid(owner, "spec.updateStrategy.rollingUpdate: only allowed for updateStrategy 'RollingUpdate'")


def _check_deployment(owner: Manifest, spec: Manifest) -> None:
    least, deadline = int(spec.get("minReadySeconds", 0)), int(spec.get("progressDeadlineSeconds", _DEADLINE_SECONDS))
    if deadline <= least:
        raise _invalid(owner, f"spec.progressDeadlineSeconds={deadline} must be greater than minReadySeconds={least}")
    strategy = spec.get("strategy", {})
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "Recreate" and rolling is not None:
        raise _invalid(owner, "spec.strategy.rollingUpdate may not be specified when strategy type is 'Recreate'")
    if rolling and all(_is_nothing(rolling.get(key, "25%")) for key in ("maxSurge", "maxUnavailable")):
        raise _invalid(owner, "spec.strategy.rollingUpdate.maxUnavailable may not be 0 when maxSurge is 0")


def _is_nothing(bound: Any) -> bool:
    if isinstance(bound, str) and not bound.endswith("%"):
        raise Refused(f"cannot change a Deployment: {bound!r} is neither a number nor a percentage")
    return bound in (0, "0%")


def _invalid(owner: Manifest, why: str) -> Refused:
    metadata = owner["metadata"]
    return Refused(f"cannot change {owner['kind']} {metadata['namespace']}/{metadata['name']}: invalid: {why}")
