"""Argo's Rollout: a Deployment with steps of its own.

Its pods are those of ReplicaSets, as a Deployment's are, so its canary strategy is held in the same way. Steps of its
own (weights, pauses, analyses) go on counting: the Rollout decides the pace, and one that pauses for a person is
restored when its time is over. What can't be changed here: a Rollout that takes its template from elsewhere
(`spec.workloadRef`), and the strategy blueGreen, which runs all new pods beside all old ones.

Source: argoproj/argo-rollouts:pkg/apis/rollouts/v1alpha1/types.go, argoproj/argo-rollouts:rollout/canary.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enforcer.kinds.kind import Reach, WorkloadKind, condition, fewer_replicas, in_trouble, one_size
from fleet.sentences import Sentence, sentence


def _refusal(owner: Mapping[str, Any]) -> str | None:
    spec = owner.get("spec", {})
    reference = spec.get("workloadRef")
    if isinstance(reference, Mapping) and reference:
        where = f"{reference.get('kind')} {reference.get('name')}"
        return f"its template is that of {where} (spec.workloadRef): change that one"
    if (spec.get("strategy") or {}).get("blueGreen") is not None:
        return "its strategy blueGreen runs all new pods beside all old ones, which want the same cards"
    return None


def _trouble(owner: Mapping[str, Any]) -> Sentence | None:
    status = owner.get("status", {})
    if status.get("abort") is True:
        return in_trouble(sentence("trouble.aborted"), status.get("message"))
    if status.get("phase") == "Degraded":
        detail = status.get("message") or condition(owner, "Progressing").get("message")
        return in_trouble(sentence("trouble.degraded"), detail)
    return None


ROLLOUT = WorkloadKind(
    kind="Rollout",
    reach=Reach.ROLLS,
    sizes=one_size,
    scale=fewer_replicas,
    refusal=_refusal,
    counts_rolled=True,
    by_replica_sets=True,
    trouble=_trouble,
)
