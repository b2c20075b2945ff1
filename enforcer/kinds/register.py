"""Every kind of workload whose template or size may be changed, in one list, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enforcer.kinds.argo import ROLLOUT
from enforcer.kinds.built_in import CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, STATEFUL_SET
from enforcer.kinds.kind import PodTemplate, Reach, WorkloadKind, is_observed
from enforcer.kinds.kserve import INFERENCE_SERVICE
from enforcer.kinds.kubeflow import JAX_JOB, MPI_JOB, NOTEBOOK, PADDLE_JOB, PYTORCH_JOB, TF_JOB, TRAIN_JOB, XGBOOST_JOB
from enforcer.kinds.leader_worker import LEADER_WORKER_SET
from enforcer.kinds.ray import RAY_CLUSTER, RAY_JOB, RAY_SERVICE
from enforcer.manifest import Manifest
from fleet.sentences import Sentence

WORKLOAD_KINDS: Mapping[str, WorkloadKind] = {
    found.kind: found
    for found in (
        CRON_JOB,
        DAEMON_SET,
        DEPLOYMENT,
        INFERENCE_SERVICE,
        JAX_JOB,
        JOB,
        LEADER_WORKER_SET,
        MPI_JOB,
        NOTEBOOK,
        PADDLE_JOB,
        PYTORCH_JOB,
        RAY_CLUSTER,
        RAY_JOB,
        RAY_SERVICE,
        ROLLOUT,
        STATEFUL_SET,
        TF_JOB,
        TRAIN_JOB,
        XGBOOST_JOB,
    )
}

_UNKNOWN = WorkloadKind(kind="", reach=Reach.EVICTED)


def workload_kind(kind: str) -> WorkloadKind:
    """What a kind is to a change; one that nothing is known of has one template and no size."""
    return WORKLOAD_KINDS.get(kind, _UNKNOWN)


def pod_templates(owner: Manifest) -> tuple[PodTemplate, ...]:
    """All pod templates of an owner."""
    return workload_kind(str(owner.get("kind", ""))).templates(owner)


def is_template_field(kind: str, path: str) -> bool:
    """Whether a field of an owner is part of what its pods are made from."""
    return workload_kind(kind).template_fields.match(path) is not None


def is_rolled_out(owner: Mapping[str, Any] | None) -> bool:
    """Whether an owner has nothing on its way any more, as far as its status says."""
    if owner is None:
        return True
    kind = workload_kind(str(owner["kind"]))
    if kind.counts_rolled:
        rolled = rolled_pods(owner)
        return rolled is not None and rolled >= int(owner.get("status", {}).get("replicas", 0))
    return True if kind.is_settled is None else kind.is_settled(owner)


def is_begun(owner: Mapping[str, Any] | None) -> bool:
    """Whether an owner has begun to make pods of its template as it stands, as far as its status says."""
    if owner is None or not is_observed(owner):
        return False
    return not workload_kind(str(owner["kind"])).counts_rolled or (rolled_pods(owner) or 0) > 0


def trouble_of(owner: Mapping[str, Any] | None) -> Sentence | None:
    """What an owner's controller says went wrong with it; None where nothing did, or it has not looked yet."""
    if owner is None or not is_observed(owner):
        return None
    return workload_kind(str(owner["kind"])).trouble(owner)


def rolled_pods(owner: Mapping[str, Any] | None) -> int | None:
    """How many replicas an owner has made from its template as it stands; None where its controller has not looked yet.

    Kinds whose status counts no such replicas give None as well.
    """
    if owner is None or not is_observed(owner) or not workload_kind(str(owner["kind"])).counts_rolled:
        return None
    return int(owner.get("status", {}).get("updatedReplicas", 0))
