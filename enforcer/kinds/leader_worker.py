"""LeaderWorkerSet: groups of one leader and its workers, replaced group by group from the highest number down.

A leader without a template of its own is made from the workers' template, and then all pods of a group are alike.

Source: kubernetes-sigs/lws:api/leaderworkerset/v1/leaderworkerset_types.go (labels, partition, status),
kubernetes-sigs/lws:pkg/controllers/leaderworkerset_controller.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from enforcer.kinds.kind import Fields, PodTemplate, Reach, Scaling, Size, WorkloadKind
from enforcer.manifest import Manifest, field_of
from fleet.errors import Refused

WORKER_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
LEADER, WORKER = "leader", "worker"

_SIZE = "spec.leaderWorkerTemplate.size"


def _templates(owner: Manifest) -> tuple[PodTemplate, ...]:
    held = owner.get("spec", {}).get("leaderWorkerTemplate", {})
    leader, worker = held.get("leaderTemplate"), held.get("workerTemplate")
    path = "spec.leaderWorkerTemplate"
    found = []
    if isinstance(leader, dict):
        found.append(PodTemplate(role=LEADER, path=f"{path}.leaderTemplate", body=leader))
    if isinstance(worker, dict):
        role = WORKER if found else ""
        found.append(PodTemplate(role=role, path=f"{path}.workerTemplate", body=worker))
    return tuple(found)


def _role_of(labels: Mapping[str, Any]) -> str:
    return LEADER if str(labels.get(WORKER_INDEX_LABEL, "0")) == "0" else WORKER


def _group_pods(owner: Mapping[str, Any]) -> int:
    text = field_of(owner, _SIZE)
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) else 1


def _sizes(owner: Mapping[str, Any]) -> tuple[Size, ...]:
    return (Size(role="", path="spec.replicas", pods_each=_group_pods(owner)),)


def _scale(scaling: Scaling) -> Fields:
    if not scaling.staying:
        return {"spec.replicas": "0"}
    (size,) = _sizes(scaling.owner)
    groups, rest = divmod(len(scaling.leaving), size.pods_each)
    if rest:
        raise Refused(
            f"cannot stop {len(scaling.leaving)} pods of {scaling.name}: its pods go in groups of {size.pods_each} "
            f"({_SIZE})"
        )
    return {"spec.replicas": str(max(0, size.pods(scaling.owner) // size.pods_each - groups))}


LEADER_WORKER_SET = WorkloadKind(
    kind="LeaderWorkerSet",
    reach=Reach.ROLLS,
    template_fields=re.compile(r"spec\.leaderWorkerTemplate\.(leader|worker)Template\."),
    templates=_templates,
    role_of=_role_of,
    sizes=_sizes,
    scale=_scale,
    counts_rolled=True,
    note="a group is replaced as a whole, leader and workers",
)
