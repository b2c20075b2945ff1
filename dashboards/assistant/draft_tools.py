"""Tools that draft: the manifest of a `GpuPolicy`, and a proposal of a plan's stages. A draft is text: none is kept."""

from __future__ import annotations

from typing import Any

import yaml

from dashboards.assistant.harmless import cleaned
from dashboards.assistant.plan_tools import plan_entry
from dashboards.assistant.tool import CLUSTER, PLAN_ID, Found, Question, Tool
from dashboards.words.advice import remark_words
from fleet.decisions import Plan
from fleet.documents import iso
from fleet.errors import Misconfigured
from fleet.gpu_policy import WARM_REPLICAS_MAX
from fleet.units import Money, format_money, format_percent
from fleet.words import Language, Words

_LABELS_MAX = 32
_WORKLOADS_NAMED_MAX = 10
_NAMESPACE = {"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"}
_OBJECT_NAME = {**_NAMESPACE, "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "maxLength": 253}
_LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
_LABEL_KEY = r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_WISHES = {
    "opt_out": "optOut",
    "latency_critical": "latencyCritical",
    "min_replicas_warm": "minReplicasWarm",
    "isolation": "isolation",
}


def _policy(question: Question) -> Found:
    asked = question.asked
    wishes = {field: asked[name] for name, field in _WISHES.items() if name in asked}
    if not wishes:
        raise Misconfigured(f"cannot draft a policy that asks for nothing: expected one of {', '.join(_WISHES)}")
    labels = asked.get("match_labels", {})
    manifest = {
        "apiVersion": "gputide.io/v1alpha1",
        "kind": "GpuPolicy",
        "metadata": {"name": asked["name"], "namespace": asked["namespace"]},
        "spec": {**({"selector": {"matchLabels": dict(labels)}} if labels else {}), **wishes},
    }
    return Found(
        cluster=question.cluster(),
        data={
            "manifest": yaml.safe_dump(manifest, sort_keys=False),
            "is_stored": False,
            "selects_all_pods_of_its_namespace": not labels,
        },
    )


def _proposal(question: Question) -> Found:
    entry = plan_entry(question)
    plan = entry.plan
    known = [stage.stage for stage in plan.stages]
    asked = question.asked.get("stages")
    unknown = sorted(set(asked or ()) - set(known))
    if unknown:
        raise Misconfigured(
            f"cannot propose stage {unknown[0]}: plan {plan.short_id} has stages {', '.join(map(str, known)) or 'none'}"
        )
    chosen = [stage for stage in known if asked is None or stage in asked]
    return Found(
        cluster=plan.cluster,
        data={
            "plan_id": plan.plan_id,
            "stages": chosen,
            "proposal": "\n".join(_lines(plan, chosen, entry.approve_command, is_whole=asked is None)) + "\n",
            "is_stored": False,
        },
    )


def _lines(plan: Plan, chosen: list[int], approve_command: str, *, is_whole: bool) -> list[str]:
    """The proposal, a line each; names are cleaned one by one, so that none begins a line of its own."""
    words, totals = Words(language=Language.EN), plan.totals
    saved = totals.saving_per_week.amortised
    worth = "value unknown: no price" if saved is None else format_money(Money(amount=saved, currency=plan.currency))
    coverage = format_percent(plan.history.coverage_ratio, digits=1)
    by_id = {item.id: item for item in plan.recommendations}
    lines = [
        f"# Proposal: plan {plan.short_id} for cluster {cleaned(plan.cluster)}",
        "",
        f"- The whole plan frees {totals.cards_freed} of {totals.cards_before} cards, a week: {worth}.",
        f"- Predicted violation: {format_percent(totals.predicted_violation_ratio, digits=2)} of active time.",
        f"- Made from {iso(plan.history.since)} to {iso(plan.history.until)}, coverage {coverage}.",
        f"- Expires {iso(plan.expires_at)}.",
        *(f"- {cleaned(remark)}" for remark in remark_words(plan, Language.EN)),
    ]
    for stage in plan.stages:
        if stage.stage not in chosen:
            continue
        named = list(dict.fromkeys(one for name in stage.recommendations for one in by_id[name].workloads))
        more = len(named) - _WORKLOADS_NAMED_MAX
        lines += [
            "",
            f"## Stage {stage.stage}: {cleaned(words.stage(stage.title))}",
            "",
            f"Frees {stage.cards_freed} cards, restarts {stage.moves} pods.",
            "",
            *(f"- `{cleaned(name).replace('`', ' ')}`" for name in named[:_WORKLOADS_NAMED_MAX]),
            *([f"- and {more} more"] if more > 0 else []),
        ]
    stages = "" if is_whole else "".join(f" --stage {stage}" for stage in chosen)
    command = approve_command if is_whole else f"gputide plan approve --plan {plan.short_id}{stages}"
    return [
        *lines,
        "",
        "A person who may approve it runs, after reading what would change:",
        "",
        f"    gputide plan diff --plan {plan.short_id}{stages}",
        f"    {command}",
    ]


def _checked_labels(pattern: str, text: str) -> dict[str, Any]:
    return {
        "type": "object",
        "maxProperties": _LABELS_MAX,
        "patternProperties": {f"^{pattern}$": {"type": "string", "maxLength": 63, "pattern": f"^{_LABEL_VALUE}$"}},
        "additionalProperties": False,
        "description": text,
    }


DRAFT_TOOLS = (
    Tool(
        name="draft_policy",
        says="Draft the manifest of a GpuPolicy: what a team asks for pods of its namespace (leave them alone, they "
        "answer people, replicas to keep warm, isolation). The draft is text and nothing is stored: a person reviews "
        "it and puts it into the cluster.",
        answer=_policy,
        parameters={
            "cluster": CLUSTER,
            "namespace": _NAMESPACE,
            "name": _OBJECT_NAME,
            "match_labels": _checked_labels(_LABEL_KEY, "Labels of the pods; all pods of the namespace unless given."),
            "opt_out": {"type": "boolean"},
            "latency_critical": {"type": "boolean"},
            "min_replicas_warm": {"type": "integer", "minimum": 0, "maximum": WARM_REPLICAS_MAX},
            "isolation": {"type": "string", "enum": ["soft", "hard"]},
        },
        required=("namespace", "name"),
        data={"manifest": {"type": "string"}, "is_stored": {"const": False}},
    ),
    Tool(
        name="draft_proposal",
        says="Draft a proposal of a plan's stages as text (Markdown) for the people who decide: what it frees, what it "
        "may harm, which workloads it touches, and the commands that show and approve it. Nothing is stored, approved "
        "or applied.",
        answer=_proposal,
        parameters={
            "cluster": CLUSTER,
            "plan_id": PLAN_ID,
            "stages": {
                "type": "array", "minItems": 1, "maxItems": 100, "uniqueItems": True,
                "items": {"type": "integer", "minimum": 1, "maximum": 10_000},
                "description": "Numbers of stages; all unless given.",
            },
        },
        data={"plan_id": {"type": "string"}, "proposal": {"type": "string"}, "is_stored": {"const": False}},
    ),
)  # fmt: skip
"""In the order in which a client lists them."""
