"""The objects of `usage.gputide.io/v1alpha1`: what pods, cards and namespaces hold, use and cost, and what a plan says.

Base units; money as decimal text; what is not known is null. Every object says of when it is. Pure: from what the ports
answered to lists of objects and to the tables that `kubectl get` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import groupby
from typing import Any

from dashboards.queries import PlanEntry
from dashboards.usage_api.names import (
    API_VERSION,
    CARDS_NAME,
    COSTS_NAME,
    PODS_NAME,
    Object,
    said_bytes,
    said_ratio,
    summed,
)
from dashboards.view_models.rows import price_per_week
from dashboards.view_models.slice_uses import USE_HOURS, SliceUse
from dashboards.words.advice import refusal_words, state_words
from dashboards.words.explain import explain, policy_words
from fleet.documents import iso
from fleet.inventory import Card
from fleet.money.prices import Prices
from fleet.money.week_hours import GRANTED, NOT_USED, Measures, WeekHours, part_of
from fleet.profiles import CardProfile, Profile, Profiles, WorkloadState
from fleet.words import Language, Words

WEEK_NAME = "last-seven-days"
"""Name of a namespace's only `GpuCost`."""
_DAYS_PER_WEEK = 7
_CENTS = Decimal("0.01")
_IDLE = frozenset({WorkloadState.IDLE, WorkloadState.IDLE_HELD})

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of object that is served.

    Attributes:
        name: plural, as in paths.
        columns: of its table: title, type (`string`, `integer` or `number`), and the cell of an object.
    """

    name: str
    kind: str
    is_namespaced: bool
    columns: tuple[tuple[str, str, Callable[[Object], Cell]], ...]


def pod_objects(slices: Iterable[SliceUse], profiles: Profiles, prices: Prices) -> list[Object]:
    """One `GpuPod` per pod that is on cards, by namespace and name."""
    by_workload = {profile.workload: profile for profile in profiles.workloads}
    found = []
    for (namespace, name), parts in groupby(slices, key=lambda use: (use.grant.namespace, use.grant.pod)):
        uses = tuple(parts)
        workload = uses[0].grant.workload_id
        profile = by_workload.get(workload)
        costs = [_per_day(use, prices) for use in uses]
        known = [cost for cost in costs if cost is not None]
        found.append(
            {
                **_head("GpuPod", name, namespace),
                **_measured(profiles),
                "workload": workload,
                "state": None if profile is None else profile.state.value,
                "isIdle": None if profile is None else _is_idle(profile, name),
                "idleSince": _idle_since(profile, name),
                "slices": [_slice(use, cost) for use, cost in zip(uses, costs, strict=True)],
                "costPerDay": str(sum(known, Decimal(0))) if known else None,
                "currency": prices.currency,
            }
        )
    return found


def card_objects(profiles: Profiles, prices: Prices) -> list[Object]:
    """One `GpuCard` per card, as the analysis has them."""
    return [
        {
            **_head("GpuCard", card.card),
            **_measured(profiles),
            "node": card.node,
            "cardModel": card.card_model,
            "state": card.state.value,
            "idleSince": None if card.idle_since is None else iso(card.idle_since),
            "computeP95Ratio": card.compute_p95,
            "framebufferBytes": card.framebuffer_bytes,
            "usedFramebufferBytesMax": card.framebuffer_used_max,
            "workloads": list(card.workloads),
            "coverageRatio": card.coverage_ratio,
            "reason": card.reason,
            "costPerDay": _card_per_day(card, profiles, prices),
            "currency": prices.currency,
        }
        for card in profiles.cards
    ]


def cost_objects(week: WeekHours) -> list[Object]:
    """One `GpuCost` per namespace that was granted cards in the week, by name."""
    return [
        {
            **_head("GpuCost", WEEK_NAME, namespace),
            "since": iso(week.since),
            "until": iso(week.until),
            "currency": week.currency,
            "hours": _hours(measures),
            "cardHours": part_of(measures, GRANTED).card_hours,
            "cost": _money(part_of(measures, GRANTED).cost),
            "notUsedCost": _money(part_of(measures, NOT_USED).cost),
            "unmeasuredCardHours": week.unmeasured.get(namespace, 0.0),
        }
        for namespace, measures in sorted(week.tenants.items())
    ]


def advice_object(pod: Object, profiles: Profiles, entry: PlanEntry | None) -> Object:
    """What is known of a pod's workload, and what the newest plan says of it, in sentences.

    Args:
        pod: its `GpuPod`.
        entry: the newest plan as the person may see it; None where there is none.
    """
    words, workload = Words(language=Language.EN), pod["workload"]
    profile = next((one for one in profiles.workloads if one.workload == workload), None)
    plan = None if entry is None else entry.plan
    about = () if plan is None else tuple(item for item in plan.recommendations if workload in item.workloads)
    refused = () if plan is None else tuple(item for item in plan.refused if item.workload == workload)
    explained = [] if plan is None else [explain(plan, profiles, item.id, words) for item in about]
    applied = frozenset(() if entry is None else entry.applied_stages)
    return {
        **_head("GpuPodAdvice", pod["metadata"]["name"], pod["metadata"]["namespace"]),
        "workload": workload,
        "state": pod["state"],
        "why": None if profile is None else state_words(profile, Language.EN),
        "confidence": None if profile is None else profile.confidence,
        "coverageRatio": None if profile is None else profile.coverage_ratio,
        "planId": None if plan is None else plan.plan_id,
        "planCreatedAt": None if plan is None else iso(plan.created_at),
        "policies": [] if plan is None else list(policy_words(plan, (workload,), words)),
        "recommendations": [
            {
                "id": one.recommendation.id,
                "kind": one.recommendation.kind.value,
                "riskLevel": one.recommendation.risk_level.value,
                "stage": one.stage,
                "isApplied": one.stage in applied,
                "headline": one.headline,
                "why": list(one.why),
                "whatWouldChangeIt": list(one.change_of_mind),
            }
            for one in explained
        ],
        "refused": [
            {
                "kind": None if item.kind is None else item.kind.value,
                "reason": item.reason,
                "detail": refusal_words(item, Language.EN),
            }
            for item in refused
        ],
    }


def listed(resource: Resource, items: Sequence[Object]) -> Object:
    """A list of objects."""
    return {"apiVersion": API_VERSION, "kind": f"{resource.kind}List", "metadata": {}, "items": items}


class Included(StrEnum):
    """What a row of a table has of its object, by the API's words: `kubectl get --sort-by` needs all of it."""

    NONE = "None"
    METADATA = "Metadata"
    OBJECT = "Object"


def table(resource: Resource, items: Sequence[Object], included: Included) -> Object:
    """The same as `kubectl get` prints it (kubernetes.io/docs/reference/using-api/api-concepts, Table)."""
    return {
        "apiVersion": "meta.k8s.io/v1",
        "kind": "Table",
        "metadata": {},
        "columnDefinitions": [
            {"name": title, "type": kind, "format": "name" if title == "Name" else "", "description": "", "priority": 0}
            for title, kind, _ in resource.columns
        ],
        "rows": [
            {
                "cells": [cell(item) for _, _, cell in resource.columns],
                **_included(item, included),
            }
            for item in items
        ],
    }


def _included(item: Object, included: Included) -> Object:
    if included is Included.NONE:
        return {}
    part = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": item["metadata"]}
    return {"object": item if included is Included.OBJECT else part}


def _head(kind: str, name: str, namespace: str | None = None) -> Object:
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {**metadata, "creationTimestamp": None}}


def _measured(profiles: Profiles) -> Object:
    """The span that use was measured over."""
    since = max(profiles.since, profiles.until - timedelta(hours=USE_HOURS))
    return {"measuredSince": iso(since), "measuredUntil": iso(profiles.until)}


def _is_idle(profile: Profile, pod: str) -> bool | None:
    if profile.state is WorkloadState.UNKNOWN:
        return None
    return profile.state in _IDLE or pod in profile.idle_pods


def _idle_since(profile: Profile | None, pod: str) -> str | None:
    """Since when its workload is idle; of single idle pods of a workload that works that is not kept."""
    if profile is None or profile.idle_since is None or not _is_idle(profile, pod):
        return None
    return iso(profile.idle_since)


def _slice(use: SliceUse, cost: Decimal | None) -> Object:
    grant = use.grant
    return {
        "container": grant.container,
        "card": grant.card,
        "cardModel": grant.card_model,
        "node": grant.node,
        "migProfile": grant.mig_profile,
        "grantedComputeRatio": grant.compute_granted_ratio,
        "usedComputeRatio": use.compute_mean,
        "usedComputeRatioMax": use.compute_max,
        "grantedFramebufferBytes": grant.framebuffer_granted_bytes,
        "usedFramebufferBytesMax": use.framebuffer_used_max,
        "costPerDay": None if cost is None else str(cost),
    }


def _per_day(use: SliceUse, prices: Prices) -> Decimal | None:
    """What its part of the card costs a day by allocation, in cents."""
    grant = use.grant
    week = prices.per_week(
        Card(
            card=grant.card, card_model=grant.card_model, framebuffer_bytes=grant.framebuffer_bytes, node=grant.node,
            cluster=grant.cluster,
        )
    )  # fmt: skip
    if week is None:
        return None
    return (week / _DAYS_PER_WEEK * Decimal(str(use.price_ratio))).quantize(_CENTS)


def _card_per_day(card: CardProfile, profiles: Profiles, prices: Prices) -> str | None:
    week = price_per_week(card, profiles, prices)
    return None if week is None else str((week / _DAYS_PER_WEEK).quantize(_CENTS))


def _hours(measures: Measures) -> Object:
    return {
        measure.value: {"cardHours": hours.card_hours, "cost": _money(hours.cost)}
        for measure, hours in measures.items()
    }


def _money(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount.quantize(_CENTS))


def _per_day_cell(item: Object) -> str:
    return "no price" if item["costPerDay"] is None else f"{item['costPerDay']} {item['currency']}"


PODS = Resource(
    name=PODS_NAME,
    kind="GpuPod",
    is_namespaced=True,
    columns=(
        ("Name", "string", lambda item: item["metadata"]["name"]),
        ("Cards", "integer", lambda item: len({part["card"] for part in item["slices"]})),
        ("Granted", "string", lambda item: said_ratio(summed(item, "grantedComputeRatio"))),
        ("Used", "string", lambda item: said_ratio(summed(item, "usedComputeRatio"))),
        ("FB granted", "string", lambda item: said_bytes(summed(item, "grantedFramebufferBytes"))),
        ("FB used", "string", lambda item: said_bytes(summed(item, "usedFramebufferBytesMax"))),
        ("State", "string", lambda item: item["state"] or "unknown"),
        ("Idle since", "string", lambda item: item["idleSince"] or ""),
        ("Cost a day", "string", _per_day_cell),
    ),
)
CARDS = Resource(
    name=CARDS_NAME,
    kind="GpuCard",
    is_namespaced=False,
    columns=(
        ("Name", "string", lambda item: item["metadata"]["name"]),
        ("Node", "string", lambda item: item["node"]),
        ("Model", "string", lambda item: item["cardModel"]),
        ("State", "string", lambda item: item["state"]),
        ("Used p95", "string", lambda item: said_ratio(item["computeP95Ratio"])),
        ("FB used", "string", lambda item: said_bytes(item["usedFramebufferBytesMax"])),
        ("Workloads", "integer", lambda item: len(item["workloads"])),
        ("Idle since", "string", lambda item: item["idleSince"] or ""),
        ("Cost a day", "string", _per_day_cell),
    ),
)
COSTS = Resource(
    name=COSTS_NAME,
    kind="GpuCost",
    is_namespaced=True,
    columns=(
        ("Name", "string", lambda item: item["metadata"]["name"]),
        ("Card hours", "number", lambda item: round(item["cardHours"], 1)),
        ("Cost", "string", lambda item: _cost_cell(item, "cost")),
        ("Not used", "string", lambda item: _cost_cell(item, "notUsedCost")),
    ),
)
RESOURCES = (PODS, CARDS, COSTS)


def _cost_cell(item: Mapping[str, Any], name: str) -> str:
    return "no price" if item[name] is None else f"{item[name]} {item['currency']}"
