"""KubeRay's kinds: RayCluster with its head and groups of workers; RayService and RayJob, which make RayClusters.

KubeRay leaves pods that run as they are when a template changes, and makes those that were evicted from the new one. A
RayService answers a changed cluster by a second one and switches over when that is ready, so it needs room for both. A
RayJob makes its cluster once. Workers leave by their names, where the autoscaler leaves such choices too.

Source: ray-project/kuberay:ray-operator/apis/ray/v1/{raycluster,rayservice,rayjob}_types.go,
ray-project/kuberay:ray-operator/controllers/ray/{raycluster,rayservice}_controller.go,
ray-project/kuberay:ray-operator/controllers/ray/utils/constant.go (labels).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from enforcer.kinds.kind import (
    Fields,
    PodTemplate,
    Reach,
    Scaling,
    Size,
    WorkloadKind,
    condition,
    in_trouble,
    is_observed,
    stopped_whole,
)
from enforcer.manifest import Manifest, field_of
from fleet.errors import Refused
from fleet.sentences import Sentence, sentence

GROUP_LABEL = "ray.io/group"
HEAD_GROUP = "headgroup"

_NAMES_MAX = 63
_GROUP = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


def _templates_at(path: str) -> Callable[[Manifest], tuple[PodTemplate, ...]]:
    def templates(owner: Manifest) -> tuple[PodTemplate, ...]:
        held = _cluster_of(owner, path)
        found = []
        head = (held.get("headGroupSpec") or {}).get("template")
        if isinstance(head, dict):
            found.append(PodTemplate(role=HEAD_GROUP, path=f"{path}.headGroupSpec.template", body=head))
        for group in _groups(held):
            if isinstance(group.get("template"), dict):
                name = group["groupName"]
                where = f"{path}.workerGroupSpecs[{name}].template"
                found.append(PodTemplate(role=name, path=where, body=group["template"]))
        return tuple(found)

    return templates


def _cluster_of(owner: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    held: Any = owner
    for part in path.split("."):
        held = held.get(part) if isinstance(held, Mapping) else None
    return held if isinstance(held, Mapping) else {}


def _groups(held: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Groups whose names can be written in a path; KubeRay takes no others."""
    found = held.get("workerGroupSpecs") or ()
    return [
        group
        for group in found
        if isinstance(group, Mapping) and _GROUP.fullmatch(str(group.get("groupName", ""))[: _NAMES_MAX + 1])
    ]


def _role_of(labels: Mapping[str, Any]) -> str:
    return str(labels.get(GROUP_LABEL, HEAD_GROUP))


def _sizes(owner: Mapping[str, Any]) -> tuple[Size, ...]:
    return tuple(
        Size(
            role=group["groupName"],
            path=f"spec.workerGroupSpecs[{group['groupName']}].replicas",
            pods_each=_hosts(group),
        )
        for group in _groups(_cluster_of(owner, "spec"))
    )


def _hosts(group: Mapping[str, Any]) -> int:
    hosts = group.get("numOfHosts", 1)
    return hosts if isinstance(hosts, int) and hosts > 0 else 1


def _scale(scaling: Scaling) -> Fields:
    if any(pod.role == HEAD_GROUP for pod in scaling.leaving):
        return stopped_whole("spec.suspend")(scaling)
    if not scaling.staying and not scaling.others:
        return {"spec.suspend": "true"}
    fields: Fields = {}
    for size in _sizes(scaling.owner):
        names = sorted(pod.name for pod in scaling.leaving if pod.role == size.role)
        if not names:
            continue
        replicas, rest = divmod(len(names), size.pods_each)
        if rest:
            raise Refused(
                f"cannot stop {len(names)} pods of {scaling.name}: pods of group {size.role} go {size.pods_each} at "
                "once (numOfHosts)"
            )
        path = f"spec.workerGroupSpecs[{size.role}]"
        left = max(0, size.pods(scaling.owner) // size.pods_each - replicas)
        fields[size.path] = str(left)
        least = field_of(scaling.owner, f"{path}.minReplicas")
        if least is not None and least.isdigit() and int(least) > left:
            fields[f"{path}.minReplicas"] = str(left)
        fields[f"{path}.scaleStrategy.workersToDelete"] = json.dumps(names)
    return fields


def _trouble(owner: Mapping[str, Any]) -> Sentence | None:
    status = owner.get("status", {})
    if status.get("state") == "failed":
        return in_trouble(sentence("trouble.failed"), status.get("reason"))
    failure = condition(owner, "ReplicaFailure")
    return in_trouble(sentence("trouble.no_pods"), failure.get("message")) if failure.get("status") == "True" else None


def _is_switched(owner: Mapping[str, Any]) -> bool:
    return is_observed(owner) and condition(owner, "UpgradeInProgress").get("status", "False") != "True"


def _job_is_made_once(owner: Mapping[str, Any]) -> str:
    del owner
    return "KubeRay makes the cluster of a RayJob once and takes no change of it; make the RayJob anew"


def _service_refusal(owner: Mapping[str, Any]) -> str | None:
    if field_of(owner, "spec.upgradeStrategy.type") == "None":
        return "its upgrades are switched off (spec.upgradeStrategy.type=None): no pod would be made from the change"
    return None


RAY_CLUSTER = WorkloadKind(
    kind="RayCluster",
    reach=Reach.EVICTED,
    template_fields=re.compile(r"spec\.(headGroupSpec|workerGroupSpecs\[[^\[\]]+\])\.template\."),
    templates=_templates_at("spec"),
    role_of=_role_of,
    sizes=_sizes,
    stop_field="spec.suspend",
    scale=_scale,
    trouble=_trouble,
    note="tasks and actors on an evicted worker are lost and retried by Ray where the program allows it",
)
RAY_SERVICE = WorkloadKind(
    kind="RayService",
    reach=Reach.ROLLS,
    template_fields=re.compile(r"spec\.rayClusterConfig\.(headGroupSpec|workerGroupSpecs\[[^\[\]]+\])\.template\."),
    templates=_templates_at("spec.rayClusterConfig"),
    role_of=_role_of,
    refusal=_service_refusal,
    is_settled=_is_switched,
    note="a second Ray cluster is made and switched to, so both need room for a while",
)
RAY_JOB = WorkloadKind(
    kind="RayJob",
    reach=Reach.FIXED,
    template_fields=re.compile(r"spec\.rayClusterSpec\.(headGroupSpec|workerGroupSpecs\[[^\[\]]+\])\.template\."),
    templates=_templates_at("spec.rayClusterSpec"),
    role_of=_role_of,
    stop_field="spec.suspend",
    scale=stopped_whole("spec.suspend"),
    refusal=_job_is_made_once,
)
