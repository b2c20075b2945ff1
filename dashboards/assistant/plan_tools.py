"""Tools about advice: the plan, why something is advised or refused, what came of it, the audit log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dashboards.api.answers import summary_answer
from dashboards.assistant.fleet_tools import workload_named
from dashboards.assistant.tool import CLUSTER, LIMIT, NAME, PLAN_ID, Found, Question, Tool, listed, rows
from dashboards.queries import PlanEntry
from dashboards.view_models.rows import refusal_groups, stage_risk
from dashboards.words.advice import reason_words, refusal_words, remark_words, state_words
from dashboards.words.explain import Explanation, explain
from enforcer.record.harm import harm_budgets
from fleet.decisions import Recommendation, RecommendationKind
from fleet.documents import document
from fleet.errors import Misconfigured, NotEnoughData
from fleet.words import Language, Words

_OTHERS_MAX = 10
_EXPLAINED_MAX = 3


def plan_entry(question: Question) -> PlanEntry:
    """The plan that is meant: the one of `plan_id`, or the newest of the cluster.

    Raises:
        NotEnoughData: there is none, or the person may not see it.
    """
    named = question.asked.get("plan_id")
    if named is not None:
        entry = question.views.plans.plan(str(named))
        if entry is None:
            raise NotEnoughData(f"there is no plan {named!r}, or you may not see it")
        return entry
    cluster = question.cluster()
    entries = question.views.plans.plans(cluster)
    if not entries:
        raise NotEnoughData(f"there is no plan of cluster {cluster} yet; `gputide plan make` makes one")
    return entries[0]


def _plan(question: Question) -> Found:
    entry = plan_entry(question)
    plan, kind = entry.plan, question.asked.get("kind")
    chosen = [item for item in plan.recommendations if kind in (None, item.kind.value)]
    chosen.sort(key=lambda item: (-item.cards_freed, item.id))
    groups = refusal_groups(plan.refused)
    others = [one for one in question.views.plans.plans(plan.cluster) if one.plan.plan_id != plan.plan_id]
    data, left_out = rows(
        "recommendations",
        [_recommendation(item) for item in chosen[: question.limit]],
        question.limit,
        **summary_answer(entry),
        cluster=plan.cluster,
        matching=len(chosen),
        history=document(plan.history),
        backend=plan.backend,
        remarks=list(remark_words(plan, Language.EN)),
        recommendations_by_kind=_by_kind(plan.recommendations),
        stages=[
            {
                "stage": stage.stage,
                "title": Words(language=Language.EN).stage(stage.title),
                "recommendations": len(stage.recommendations),
                "cards_freed": stage.cards_freed,
                "moves": stage.moves,
                "risk": stage_risk(plan, stage),
            }
            for stage in plan.stages
        ],
        refused=[
            {"code": one.reason, "advice": one.kind, "workloads": len(one.workloads),
             "detail": refusal_words(one, Language.EN)}
            for one in groups
        ],
        other_plans=[
            {"plan_id": one.plan.plan_id, "created_at": document(one.plan.created_at),
             "cards_freed": one.plan.totals.cards_freed, "applied_stages": len(one.applied_stages)}
            for one in others[:_OTHERS_MAX]
        ],
    )  # fmt: skip
    left_out |= {"recommendations": len(chosen) - question.limit} if len(chosen) > question.limit else {}
    left_out |= {"other_plans": len(others) - _OTHERS_MAX} if len(others) > _OTHERS_MAX else {}
    return Found(cluster=plan.cluster, data=data, left_out=left_out)


def _by_kind(items: Sequence[Recommendation]) -> list[dict[str, Any]]:
    counts, freed = Counter(item.kind for item in items), Counter[RecommendationKind]()
    for item in items:
        freed[item.kind] += item.cards_freed
    return [
        {"kind": kind.value, "recommendations": count, "cards_freed": freed[kind]}
        for kind, count in counts.most_common()
    ]


def _recommendation(item: Recommendation) -> dict[str, Any]:
    return {
        "id": item.id,
        "kind": item.kind.value,
        "workloads": list(item.workloads),
        "pods": len(item.pods),
        "cards_freed": item.cards_freed,
        "saving_per_week": document(item.saving_per_week),
        "risk_level": item.risk_level.value,
        "confidence": item.confidence,
        "predicted_violation_ratio": item.violation_ratio,
        "reason": reason_words(item, Language.EN),
    }


def _why(question: Question) -> Found:
    named, workload = question.asked.get("recommendation"), question.asked.get("workload")
    if (named is None) == (workload is None):
        raise Misconfigured("cannot explain: expected one of recommendation and workload")
    plan = plan_entry(question).plan
    profiles = question.views.fleet.profiles(plan.cluster)
    words = Words(language=Language.EN)
    if named is not None:
        explained = explain(plan, profiles, str(named), words)
        return Found(
            cluster=plan.cluster, data={"plan_id": plan.plan_id, "explained": [_explained(explained)], "refused": []}
        )
    profile = workload_named(profiles, str(workload))
    about = [item for item in plan.recommendations if profile.workload in item.workloads]
    refused = [item for item in plan.refused if item.workload == profile.workload]
    left = len(about) - _EXPLAINED_MAX
    return Found(
        cluster=plan.cluster,
        data={
            "plan_id": plan.plan_id,
            "workload": profile.workload,
            "state": profile.state.value,
            "reason": state_words(profile, Language.EN),
            "explained": [_explained(explain(plan, profiles, item.id, words)) for item in about[:_EXPLAINED_MAX]],
            "refused": [
                {"code": item.reason, "kind": None if item.kind is None else item.kind.value,
                 "detail": refusal_words(item, Language.EN)}
                for item in refused
            ],
        },
        left_out={"explained": left} if left > 0 else {},
    )  # fmt: skip


def _explained(found: Explanation) -> dict[str, Any]:
    return {
        **_recommendation(found.recommendation),
        "headline": found.headline,
        "why": list(found.why),
        "change_of_mind": list(found.change_of_mind),
        "stage": found.stage,
        "evidence": document(found.evidence),
        "currency": found.currency,
    }


def _harm(question: Question) -> Found:
    # To others the API shows no outcome, which nobody could distinguish from no harm.
    cluster = question.whole_cluster("harm of applied plans")
    answer = question.operation("outcomes", cluster=cluster)
    budgets = harm_budgets(question.views.plans.plans(cluster), question.views.outcomes.outcomes(cluster))
    services = [{**document(one), "burn_ratio": one.burn_ratio} for one in budgets]
    data, left_out = rows(
        "services", services, question.limit, savings=answer["savings"],
        services_by_standing=[
            {"standing": standing.value, "services": count}
            for standing, count in Counter(one.standing for one in budgets).most_common()
        ],
        # The services of an outcome are those above.
        outcomes=[{key: value for key, value in one.items() if key != "workloads"} for one in answer["outcomes"]],
    )  # fmt: skip
    return Found(cluster=cluster, data=data, left_out=left_out)


def _ledger(question: Question) -> Found:
    cluster = question.cluster()
    entries = list(question.operation("ledger", cluster=cluster)["entries"])
    data, left_out = rows("entries", entries, question.limit)
    return Found(cluster=cluster, data=data, left_out=left_out)


_KIND = {"type": "string", "enum": [kind.value for kind in RecommendationKind]}

PLAN_TOOLS = (
    Tool(
        name="plan",
        says="A plan: totals (cards freed, saving, predicted harm), its stages, recommendations by kind, those that "
        "free most cards first, what was refused and why, what people approved and applied, and ids of other plans. "
        "A plan changes nothing until a person approves and applies it outside of this server.",
        answer=_plan,
        parameters={"cluster": CLUSTER, "plan_id": PLAN_ID, "kind": _KIND, "limit": LIMIT},
        data={
            "plan_id": {"type": "string"},
            "currency": {"type": "string"},
            "totals": {"type": "object", "required": ["cards_before", "cards_freed", "saving_per_week", "moves"]},
            "status": {"type": "object", "required": ["approved_stages", "applied_stages"]},
            "stages": listed("stage", "cards_freed", "moves", "risk"),
            "recommendations_by_kind": listed("kind", "recommendations", "cards_freed"),
            "recommendations": listed("id", "kind", "workloads", "cards_freed", "reason"),
            "refused": listed("code", "workloads", "detail"),
        },
    ),
    Tool(
        name="why",
        says="Why a recommendation is given, on what evidence and what would change it; or, of a workload, what is "
        "advised for it, what is refused and why. Give one of `recommendation` and `workload`.",
        answer=_why,
        parameters={
            "cluster": CLUSTER,
            "plan_id": PLAN_ID,
            "recommendation": {**NAME, "maxLength": 64, "description": "Id as the tool `plan` lists it."},
            "workload": {**NAME, "description": "namespace/Kind/name."},
        },
        data={
            "plan_id": {"type": "string"},
            "explained": listed("id", "kind", "why", "change_of_mind", "evidence"),
            "refused": listed("code", "kind", "detail"),
        },
    ),
    Tool(
        name="harm",
        says="What came of applied plans: the verdict of each, cards found, accepted, applied, verified and realised, "
        "and the harm of every changed service against its budget, those over it first; `restored` was taken back.",
        answer=_harm,
        parameters={"cluster": CLUSTER, "limit": LIMIT},
        data={
            "services": listed("workload", "standing", "violation_ratio", "predicted_ratio"),
            "services_by_standing": listed("standing", "services"),
            "outcomes": listed("verdict", "plan_id"),
            "savings": {"type": "array"},
        },
    ),
    Tool(
        name="ledger",
        says="The audit log of a cluster: who did what to which plan or workload, newest first.",
        answer=_ledger,
        parameters={"cluster": CLUSTER, "limit": LIMIT},
        data={"entries": listed("at", "actor", "action", "subject", "detail")},
    ),
)
"""In the order in which a client lists them."""
