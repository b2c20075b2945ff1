"""What a backend's record keeps a workload from, whatever its need: asked before it is cut. Called by `rules.slice`."""

from __future__ import annotations

from fleet.capabilities.register import CorePolicy, Division
from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import Priority
from recommender.advice.case import Case


def unshareable(case: Case, kind: RecommendationKind) -> Refusal | None:
    """Why the backend can't put pods of a workload on a card with others; None where it can.

    Args:
        case: the workload.
        kind: the advice that is refused.
    """
    record = case.capability
    name = record.backend
    if case.workload_kind == "Job" and not record.admits_pods:
        return case.refuse(
            kind,
            "job_template_fixed",
            f"a Job's template can't be changed, and backend {name} admits no pod by itself",
            backend=name,
        )
    if case.isolation == "hard" and not record.holds_limits:
        return case.refuse(
            kind,
            "backend_holds_no_limits",
            f"it wants hard isolation, and backend {name} has framebuffer_isolation="
            f"{record.framebuffer_isolation.value}, compute_isolation={record.compute_isolation.value}",
            backend=name,
        )
    if case.isolation == "hard" and case.node_policy is CorePolicy.BURST:
        return case.refuse(
            kind,
            "node_policy_is_burst",
            "it wants hard isolation, and all pods of its nodes may use more compute than their share",
        )
    if case.node_bar is not None:
        return case.refuse(kind, "node_shares_nothing", case.node_bar)
    return _unfit_template(case, kind) or _unfit_division(case, kind)


def _unfit_template(case: Case, kind: RecommendationKind) -> Refusal | None:
    if case.workload_kind != "Notebook":
        return None
    if case.capability.grants_by_annotation:
        return case.refuse(
            kind,
            "notebook_takes_no_annotations",
            f"backend {case.capability.backend} is asked for a share by annotations of a pod, and the pods of a "
            "Notebook get none",
            backend=case.capability.backend,
        )
    if not case.capability.bursts_by_annotation:
        return None
    if case.node_policy is CorePolicy.BURST or case.priority is Priority.LOW:
        return case.refuse(
            kind,
            "notebook_takes_no_annotations",
            f"backend {case.capability.backend} says burst and low priority by annotations of a pod, and the pods of a "
            "Notebook get none",
            backend=case.capability.backend,
        )
    return None


def _unfit_division(case: Case, kind: RecommendationKind) -> Refusal | None:
    division, name = case.capability.division, case.capability.backend
    pods = len({grant.pod_id for grant in case.grants})
    if division is Division.CLAIM and pods > 1:
        return case.refuse(
            kind,
            "claim_is_of_one_card",
            f"backend {name} shares a card by a claim that the pod template names: its {pods} pods would all sit on "
            "one card",
            backend=name,
            pods=pods,
        )
    if division in (Division.REPLICAS, Division.EQUAL_PARTS) and (case.is_latency_critical or case.isolation == "hard"):
        wish = "labelled latency-critical" if case.is_latency_critical else "it wants hard isolation"
        return case.refuse(
            kind,
            "neighbours_unknown",
            f"{wish}, and with backend {name} nobody says which pods of a node share a card",
            backend=name,
        )
    return None
