"""Every operation of the API, once: what it is called, takes and answers; routes and OpenAPI document come from here.

Answers are the documents of `fleet.documents` or small objects of base units; absent is null. What a request holds is
checked by fastjsonschema against the schemas that the OpenAPI 3.1 document shows (spec.openapis.org/oas/v3.1.0).

The document is made here because flask-openapi3 4.3 and spectree 3.0 lose by what was measured: both answer 500 to
60,000 brackets, refuse 2.0 and take the same stage twice, repeat all of a long list in their refusal, and describe what
may be left out as what may be null; the first takes one of two values of a name, the second shows no bounds of a path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import fastjsonschema

from dashboards.api.answers import (
    budget_answer,
    entry_answer,
    freshness_answer,
    history_answer,
    lag_answer,
    ledger_answer,
    object_answer,
    progress_answer,
    quota_answer,
    summary_answer,
    undo_answer,
    unit_cost_answer,
    week_answer,
)
from dashboards.queries import Views
from dashboards.view_models.quotas import quota_uses
from dashboards.view_models.tenants import tenants
from dashboards.words.advice import plan_in_english, profile_in_english, profiles_in_english, verdict_words
from enforcer.record.savings import savings_steps
from enforcer.record.verdict import verdict_document, verdict_of
from fleet.documents import document
from fleet.errors import NotEnoughData, Refused
from fleet.sentences import sentence
from fleet.words import Language

HOURS_MAX = 24 * 366
PLANS_MAX = 200

_TEXT = {"type": "string", "minLength": 1, "maxLength": 253, "pattern": r"^[^/\\\x00-\x20\x7f]+$"}
_STAGES = {
    "type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 10_000}, "minItems": 1, "maxItems": 1000,
    "uniqueItems": True,
}  # fmt: skip
STAGES_BODY: Mapping[str, Any] = {
    "type": "object", "properties": {"stages": _STAGES}, "required": ["stages"], "additionalProperties": False,
}  # fmt: skip
"""Body of an operation that takes stages."""
_PLAN_ID = {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[0-9a-f]+$"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks, checked against the operation's description.

    Attributes:
        query: values of the query that were given.
        stages: stages of the body; empty where the operation takes none.
    """

    path: Mapping[str, str]
    query: Mapping[str, Any]
    stages: tuple[int, ...]
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation.

    Attributes:
        name: its OpenAPI operationId.
        method: GET or POST.
        path: below `/api/v1`, names in braces.
        parameters: name in the path → JSON schema.
        query: name in the query → JSON schema; none is required.
        takes_stages: whether the body is an object with `stages`.
        status: status of a good answer.
        required: keys that its answer has.
    """

    name: str
    method: str
    path: str
    says: str
    answer: Callable[[Views, Asked], Mapping[str, Any]]
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    takes_stages: bool = False
    status: int = 200
    required: tuple[str, ...] = ()


def _clusters(views: Views, _: Asked) -> Mapping[str, Any]:
    return {"clusters": list(views.fleet.clusters())}


def _profiles(views: Views, asked: Asked) -> Mapping[str, Any]:
    return profiles_in_english(views.fleet.profiles(asked.path["cluster"]))


def _freshness(views: Views, asked: Asked) -> Mapping[str, Any]:
    return freshness_answer(views.fleet.freshness(asked.path["cluster"]))


def _workload(views: Views, asked: Asked) -> Mapping[str, Any]:
    workload = "/".join(asked.path[name] for name in ("namespace", "kind", "name"))
    known = views.fleet.profiles(asked.path["cluster"]).workloads
    found = next((profile for profile in known if profile.workload == workload), None)
    if found is None:
        raise NotEnoughData(f"workload {workload} of cluster {asked.path['cluster']} has no live pod")
    return profile_in_english(found)


def _history(views: Views, asked: Asked) -> Mapping[str, Any]:
    workload = "/".join(asked.path[name] for name in ("namespace", "kind", "name"))
    found = views.fleet.history(asked.path["cluster"], workload, asked.query.get("hours"))
    if found is None:
        raise NotEnoughData(f"nothing is known of workload {workload} of cluster {asked.path['cluster']}")
    return history_answer(found)


def _plans(views: Views, asked: Asked) -> Mapping[str, Any]:
    found = views.plans.plans(asked.path["cluster"])
    return {"plans": [summary_answer(entry) for entry in found[: asked.query.get("limit", PLANS_MAX)]]}


def _outcomes(views: Views, asked: Asked) -> Mapping[str, Any]:
    cluster = asked.path["cluster"]
    outcomes = views.outcomes.outcomes(cluster)
    return {
        "outcomes": [verdict_document(found, verdict_words(verdict_of(found), Language.EN)) for found in outcomes],
        "savings": document(
            [step for step in savings_steps(views.plans.plans(cluster), outcomes) if outcomes or not step.is_measured]
        ),
    }


def _ledger(views: Views, asked: Asked) -> Mapping[str, Any]:
    return {"entries": [ledger_answer(entry) for entry in views.outcomes.ledger(asked.path["cluster"])]}


def _plan(views: Views, asked: Asked) -> Mapping[str, Any]:
    entry = views.plans.plan(asked.path["plan_id"])
    if entry is None:
        raise NotEnoughData(f"there is no plan {asked.path['plan_id']}")
    return {"plan": plan_in_english(entry.plan), "status": entry_answer(entry)}


def _preview(views: Views, asked: Asked) -> Mapping[str, Any]:
    plan = _plan_of(views, asked)
    stages = asked.query.get("stages") or tuple(stage.stage for stage in plan.stages)
    return {"objects": [object_answer(item) for item in views.plans.preview(plan.plan_id, tuple(sorted(stages)))]}


def _progress(views: Views, asked: Asked) -> Mapping[str, Any]:
    return progress_answer(views.rollouts.progress(_plan_of(views, asked).plan_id))


def _undo_preview(views: Views, asked: Asked) -> Mapping[str, Any]:
    return undo_answer(views.rollouts.undo_preview(_plan_of(views, asked).plan_id))


def _approve(views: Views, asked: Asked) -> Mapping[str, Any]:
    plan = _plan_of(views, asked)
    return {"status": entry_answer(views.plans.approve(plan.plan_id, asked.stages, asked.by))}


def _apply(views: Views, asked: Asked) -> Mapping[str, Any]:
    plan = _plan_of(views, asked)
    entry = views.plans.plan(plan.plan_id)
    # `gputide run tide` plays the tide; apply has nothing to do with it.
    tides = plan.tide_stages
    unapproved = sorted(set(asked.stages) - tides - set(() if entry is None else entry.approved_stages))
    if unapproved:
        raise Refused(sentence("guard.unapproved", stages=str(unapproved), plan=plan.plan_id))
    rolled = tuple(stage for stage in asked.stages if stage not in tides)
    if rolled or not asked.stages:
        views.rollouts.apply(plan.plan_id, rolled, asked.by)
        return progress_answer(views.rollouts.progress(plan.plan_id))
    return progress_answer(replace(views.rollouts.progress(plan.plan_id), said=sentence("plan.left_to_tide")))


def _undo(views: Views, asked: Asked) -> Mapping[str, Any]:
    plan = _plan_of(views, asked)
    views.rollouts.undo(plan.plan_id, asked.by)
    return progress_answer(views.rollouts.progress(plan.plan_id))


def _lag(views: Views, asked: Asked) -> Mapping[str, Any]:
    return lag_answer(views.flow.lags(asked.path["cluster"]))


def _quotas(views: Views, asked: Asked) -> Mapping[str, Any]:
    cluster = asked.path["cluster"]
    week = views.money.week(cluster)
    teams = () if week is None else tenants(views.fleet.profiles(cluster), week)
    return {"quotas": [quota_answer(use) for use in quota_uses(views.money.quotas(cluster), teams)]}


def _card_hours(views: Views, asked: Asked) -> Mapping[str, Any]:
    cluster = asked.path["cluster"]
    week = views.money.week(cluster)
    if week is None:
        raise NotEnoughData(f"no card of cluster {cluster!r} was known over the last seven days")
    return week_answer(week)


def _budgets(views: Views, asked: Asked) -> Mapping[str, Any]:
    currency = views.money.currency
    return {"budgets": [budget_answer(found, currency) for found in views.money.budgets(asked.path["cluster"])]}


def _unit_costs(views: Views, asked: Asked) -> Mapping[str, Any]:
    currency = views.money.currency
    return {"units": [unit_cost_answer(found, currency) for found in views.money.unit_costs(asked.path["cluster"])]}


def _relief(views: Views, asked: Asked) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = document(views.relief.acts(asked.path["cluster"]))
    return answer


def _freeze_state(views: Views, asked: Asked) -> Mapping[str, Any]:
    frozen = views.freezes.frozen_by(asked.path["cluster"])
    return {"is_frozen": frozen is not None, "by": frozen}


def _freeze(views: Views, asked: Asked) -> Mapping[str, Any]:
    views.freezes.freeze(asked.path["cluster"], asked.by)
    return _freeze_state(views, asked)


def _thaw(views: Views, asked: Asked) -> Mapping[str, Any]:
    views.freezes.thaw(asked.path["cluster"], asked.by)
    return _freeze_state(views, asked)


def _plan_of(views: Views, asked: Asked) -> Any:
    entry = views.plans.plan(asked.path["plan_id"])
    if entry is None:
        raise NotEnoughData(f"there is no plan {asked.path['plan_id']}")
    return entry.plan


_CLUSTER = {"cluster": _TEXT}
_OF_PLAN = {"plan_id": _PLAN_ID}
_FREEZE = ("is_frozen", "by")
_PROGRESS = ("phase", "done", "total", "objects", "message")

OPERATIONS = (
    Operation(name="clusters", method="GET", path="/clusters", says="Clusters that you may see anything of.",
              answer=_clusters, required=("clusters",)),
    Operation(name="profiles", method="GET", path="/clusters/{cluster}/profiles", parameters=_CLUSTER,
              says="What every workload and card needs, does and may be trusted with (gputide.profiles/v1).",
              answer=_profiles, required=("schema", "cluster", "workloads", "cards")),
    Operation(name="freshness", method="GET", path="/clusters/{cluster}/freshness", parameters=_CLUSTER,
              says="Coverage and age of the data.", answer=_freshness, required=("coverage_ratio", "newest_at")),
    Operation(name="workload", method="GET", path="/clusters/{cluster}/workloads/{namespace}/{kind}/{name}",
              parameters={**_CLUSTER, "namespace": _TEXT, "kind": _TEXT, "name": _TEXT},
              says="What one workload needs, does and may be trusted with: its part of the profiles.",
              answer=_workload, required=("workload", "state", "hour_of_week", "reason")),
    Operation(name="history", method="GET", path="/clusters/{cluster}/workloads/{namespace}/{kind}/{name}/history",
              parameters={**_CLUSTER, "namespace": _TEXT, "kind": _TEXT, "name": _TEXT},
              query={"hours": {"type": "integer", "minimum": 1, "maximum": HOURS_MAX}},
              says="One workload over its last hours, at most about 2,000 steps.", answer=_history,
              required=("times", "compute_p95", "framebuffer_used_bytes")),
    Operation(name="plans", method="GET", path="/clusters/{cluster}/plans", parameters=_CLUSTER,
              query={"limit": {"type": "integer", "minimum": 1, "maximum": PLANS_MAX}},
              says="Plans of a cluster, newest first.", answer=_plans, required=("plans",)),
    Operation(name="outcomes", method="GET", path="/clusters/{cluster}/outcomes", parameters=_CLUSTER,
              says="What came of every plan that was applied and verified, and whole cards by step over all plans: "
              "found, accepted, applied and, once a plan was verified, verified and realised; each card once.",
              answer=_outcomes, required=("outcomes", "savings")),
    Operation(name="ledger", method="GET", path="/clusters/{cluster}/ledger", parameters=_CLUSTER,
              says="Everything that was done, newest first.", answer=_ledger, required=("entries",)),
    Operation(name="lag", method="GET", path="/clusters/{cluster}/lag", parameters=_CLUSTER,
              says="How far behind each step from the exporter to the warehouse is, and which holds the rest up.",
              answer=_lag, required=("newest_at", "sample_age_seconds", "waiting_bytes", "cause")),
    Operation(name="quotas", method="GET", path="/clusters/{cluster}/quotas", parameters=_CLUSTER,
              says="Quotas and queues: what is promised, held and used, those with most unused cards first.",
              answer=_quotas, required=("quotas",)),
    Operation(name="card_hours", method="GET", path="/clusters/{cluster}/card-hours", parameters=_CLUSTER,
              says="Card hours of the last seven days by tenant: unallocated, stranded, idle, idle_held, unused, used.",
              answer=_card_hours, required=("since", "until", "currency", "tenants", "rest", "total")),
    Operation(name="budgets", method="GET", path="/clusters/{cluster}/budgets", parameters=_CLUSTER,
              says="Budgets of this month: spent, forecast, and whether that is too much.", answer=_budgets,
              required=("budgets",)),
    Operation(name="unit_costs", method="GET", path="/clusters/{cluster}/unit-costs", parameters=_CLUSTER,
              says="What a million requests or tokens cost over the last week, where somebody counts them.",
              answer=_unit_costs, required=("units",)),
    Operation(name="relief", method="GET", path="/clusters/{cluster}/relief", parameters=_CLUSTER,
              says="What relief did: who sleeps, who was moved, why, for how long, and who is home again.",
              answer=_relief, required=("sleeps", "moves")),
    Operation(name="freeze_state", method="GET", path="/clusters/{cluster}/freeze", parameters=_CLUSTER,
              says="Whether every change is stopped, and who stopped it when.", answer=_freeze_state,
              required=_FREEZE),
    Operation(name="freeze", method="POST", path="/clusters/{cluster}/freeze", parameters=_CLUSTER,
              says="Stop every change from here at once, of every cluster; takes the role operator.", answer=_freeze,
              required=_FREEZE),
    Operation(name="thaw", method="POST", path="/clusters/{cluster}/thaw", parameters=_CLUSTER,
              says="Let changes go on; takes the role admin.", answer=_thaw, required=_FREEZE),
    Operation(name="plan", method="GET", path="/plans/{plan_id}", parameters=_OF_PLAN,
              says="One plan (gputide.plan/v1), and what people decided about it.", answer=_plan,
              required=("plan", "status")),
    Operation(name="preview", method="GET", path="/plans/{plan_id}/preview", parameters=_OF_PLAN,
              query={"stages": _STAGES}, says="What stages would change, asked of the cluster without changing it.",
              answer=_preview, required=("objects",)),
    Operation(name="progress", method="GET", path="/plans/{plan_id}/progress", parameters=_OF_PLAN,
              says="Where the rollout or the undo of a plan stands.", answer=_progress, required=_PROGRESS),
    Operation(name="undo_preview", method="GET", path="/plans/{plan_id}/undo", parameters=_OF_PLAN,
              says="What an undo would restore, and what it would keep.", answer=_undo_preview,
              required=("restores", "keeps", "cards_taken")),
    Operation(name="approve", method="POST", path="/plans/{plan_id}/approve", parameters=_OF_PLAN, takes_stages=True,
              says="Approve stages in your name.", answer=_approve, required=("status",)),
    Operation(name="apply", method="POST", path="/plans/{plan_id}/apply", parameters=_OF_PLAN, takes_stages=True,
              says="Start approved stages, canary first; ask for progress to see them end.", answer=_apply, status=202,
              required=_PROGRESS),
    Operation(name="undo", method="POST", path="/plans/{plan_id}/undo", parameters=_OF_PLAN,
              says="Start to restore everything that the plan changed.", answer=_undo, status=202, required=_PROGRESS),
)  # fmt: skip
"""In the order of the document."""


BASE = "/api/v1"
ERRORS = {
    400: "The request is not what the operation takes; `error` names the value and what was expected.",
    401: "You are not known, or your session has ended.",
    403: "You may not do this; `error` says who may.",
    404: "There is nothing of this name, or you may not see it.",
    405: "Another method is expected.",
    409: "A guard says no; `error` says why.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    503: "A service that this needs can't be reached, or data can't be read.",
}


def fits(value: object, schema: Mapping[str, Any]) -> bool:
    """Whether a value is what a schema describes."""
    try:
        _validator(json.dumps(schema))(value)
    except (fastjsonschema.JsonSchemaValueException, RecursionError):
        return False
    return True


@cache
def _validator(schema: str) -> Any:
    return fastjsonschema.compile(json.loads(schema))


def wanted(schema: Mapping[str, Any]) -> str:
    """What a schema of whole numbers expects, in words."""
    if schema["type"] == "array":
        return f"{schema['minItems']} to {schema['maxItems']} different numbers, each {wanted(schema['items'])}"
    if schema["type"] == "object":
        return f'{{"stages": [1, 2]}} with {wanted(schema["properties"]["stages"])}'
    return f"a whole number between {schema['minimum']} and {schema['maximum']}"


def openapi() -> dict[str, Any]:
    """The document."""
    paths: dict[str, dict[str, Any]] = {
        "/me": {"get": _described("me", "Who you are, and what a browser must send to change anything.",
                                  ("name", "role", "page_token"), 200)},
    }  # fmt: skip
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gputide",
            "version": "1",
            "description": "Where GPUs idle, what to do about it, and what came of it.",
        },
        "servers": [{"url": BASE}],
        "security": [{"token": []}, {"session": [], "page": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of dashboard.rights_file."},
                "session": {"type": "apiKey", "in": "cookie", "name": "gputide"},
                "page": {
                    "type": "apiKey", "in": "header", "name": "X-Gputide-Token",
                    "description": "`page_token` of /me; whatever changes something needs it beside a session.",
                },
            },
            "schemas": {
                "Error": {
                    "type": "object",
                    "properties": {"error": {"type": "string", "minLength": 1}},
                    "required": ["error"],
                    "additionalProperties": False,
                },
                "Stages": dict(STAGES_BODY),
            },
        },
    }  # fmt: skip


def _operation(operation: Operation) -> dict[str, Any]:
    found = _described(operation.name, operation.says, operation.required, operation.status)
    found["parameters"] = [
        {"name": name, "in": "path", "required": True, "schema": dict(schema)}
        for name, schema in operation.parameters.items()
    ] + [
        {"name": name, "in": "query", "required": False, "schema": dict(schema)}
        | ({"style": "form", "explode": False} if schema["type"] == "array" else {})
        for name, schema in operation.query.items()
    ]
    if operation.takes_stages:
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/Stages"}}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _described(name: str, says: str, required: tuple[str, ...], status: int) -> dict[str, Any]:
    schema = {"type": "object", "required": list(required)}
    return {
        "operationId": name,
        "summary": says,
        "responses": {
            str(status): {"description": "The answer.", "content": {"application/json": {"schema": schema}}},
            **{
                str(code): {
                    "description": words,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                }
                for code, words in ERRORS.items()
            },
        },
    }
