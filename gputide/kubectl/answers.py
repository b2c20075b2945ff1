"""Answers of `kubectl gputide`: the objects that the cluster served, as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dashboards.usage_api.names import Object, said_bytes, said_ratio, summed
from fleet.units import (
    Money,
    format_count,
    format_money_short,
    format_plan_id,
    format_time,
    parse_time,
)
from gputide.output import Answer, Listing

_DAY_SECONDS = 86_400
_HOUR_SECONDS = 3600


class Order(StrEnum):
    """What comes first."""

    WASTE = "waste"
    """What is paid for and not used, per day."""
    COST = "cost"
    NAME = "name"


def pods_answer(pods: Sequence[Object], order: Order, *, namespace: str | None) -> Answer:
    """What `top` prints of pods.

    Args:
        namespace: the one that was asked for; None for all.
    """
    if not pods:
        where = "this cluster" if namespace is None else f"namespace {namespace}"
        more = "" if namespace is None else "; -A shows all namespaces"
        return Answer(document={"items": []}, headline=(f"no pod of {where} is on a card{more}",))
    idle = [pod for pod in pods if pod["isIdle"]]
    listing = Listing.of(
        "Pods",
        sorted(pods, key=_ORDERS[order]),
        {
            "namespace": lambda pod: pod["metadata"]["namespace"],
            "pod": lambda pod: pod["metadata"]["name"],
            "cards": lambda pod: len({part["card"] for part in pod["slices"]}),
            "granted": lambda pod: said_ratio(summed(pod, "grantedComputeRatio")),
            "used": lambda pod: said_ratio(summed(pod, "usedComputeRatio")),
            "peak": lambda pod: said_ratio(_most(pod, "usedComputeRatioMax")),
            "framebuffer": lambda pod: said_bytes(summed(pod, "grantedFramebufferBytes")),
            "held": lambda pod: said_bytes(summed(pod, "usedFramebufferBytesMax")),
            "state": lambda pod: pod["state"] or "unknown",
            "idle for": _idle_for,
            "cost a day": _cost,
        },
    )
    return Answer(
        document={"items": list(pods)},
        headline=(
            f"{format_count(len(pods))} pods hold {format_count(_cards(pods))} cards and cost {_total(pods)} a day",
            f"{format_count(len(idle))} of them are idle; their {format_count(_cards(idle))} cards cost {_total(idle)}",
        ),
        listings=(listing,),
        footnotes=_measured(pods),
    )


def cards_answer(cards: Sequence[Object], order: Order) -> Answer:
    """What `top cards` prints."""
    wasted = [card for card in cards if card["state"] in ("idle_held", "free")]
    listing = Listing.of(
        "Cards",
        sorted(cards, key=_CARD_ORDERS[order]),
        {
            "node": lambda card: card["node"],
            "card": lambda card: card["metadata"]["name"],
            "model": lambda card: card["cardModel"],
            "state": lambda card: card["state"],
            "used p95": lambda card: said_ratio(card["computeP95Ratio"]),
            "framebuffer": lambda card: said_bytes(card["framebufferBytes"]),
            "held": lambda card: said_bytes(card["usedFramebufferBytesMax"]),
            "workloads": lambda card: ", ".join(card["workloads"]) or "–",
            "idle for": _idle_for,
            "cost a day": _cost,
        },
    )
    return Answer(
        document={"items": list(cards)},
        headline=(
            f"{format_count(len(cards))} cards cost {_total(cards)} a day",
            f"{format_count(len(wasted))} of them are idle or granted to nobody, for {_total(wasted)}",
        ),
        listings=(listing,),
        footnotes=_measured(cards),
    )


def costs_answer(costs: Sequence[Object]) -> Answer:
    """What `cost` prints."""
    if not costs:
        return Answer(document={"items": []}, headline=("no card was granted there over the last seven days",))
    listing = Listing.of(
        "Last seven days",
        sorted(costs, key=lambda one: -_decimal(one["cost"])),
        {
            "namespace": lambda one: one["metadata"]["namespace"],
            "card hours": lambda one: round(one["cardHours"], 1),
            "cost": lambda one: _money(one["cost"], one["currency"]),
            "not used": lambda one: _money(one["notUsedCost"], one["currency"]),
            "not measured": lambda one: f"{one['unmeasuredCardHours']:,.1f} card hours",
        },
    )
    span = [f"{format_time(parse_time(one['since']))} to {format_time(parse_time(one['until']))}" for one in costs[:1]]
    return Answer(
        document={"items": list(costs)},
        headline=(
            f"{format_count(len(costs))} namespaces cost {_summed(costs, 'cost')}",
            f"{_summed(costs, 'notUsedCost')} of it was not used",
            *span,
        ),
        listings=(listing,),
        footnotes=("what nobody was granted is in no namespace: `gputide cost show` has it",),
    )


def advice_answer(found: Object) -> Answer:
    """What `why` prints."""
    pod = f"{found['metadata']['namespace']}/{found['metadata']['name']}"
    plan = found["planId"]
    nothing = (
        ("there is no plan yet",)
        if plan is None
        else (f"plan {format_plan_id(plan)} says nothing of it: no change of it frees a card within the limits",)
    )
    texts: list[Sequence[str]] = []
    for item in found["recommendations"]:
        where = "no stage" if item["stage"] is None else f"stage {item['stage']}"
        applied = ", applied" if item["isApplied"] else ""
        texts.append(
            (
                f"{item['id']} of plan {format_plan_id(plan)}, {where}{applied}: {item['headline']}",
                *item["why"],
                *item["whatWouldChangeIt"],
            )
        )
    refused = [
        f"not {(item['kind'] or 'changed at all').replace('_', ' ')}: {item['detail']}" for item in found["refused"]
    ]
    return Answer(
        document=found,
        headline=(
            f"{pod} is of {found['workload']}, {found['state'] or 'unknown'}: {found['why'] or 'not analysed'}",
            *found.get("policies", ()),
        ),
        texts=tuple(texts),
        warnings=refused,
        footnotes=() if texts or refused else nothing,
    )


def plans_answer(heads: Sequence[Object]) -> Answer:
    """What `plan` prints of all plans."""
    listing = Listing.of(
        "Plans",
        heads,
        {
            "plan": lambda one: format_plan_id(one["spec"]["plan"]),
            "cluster": lambda one: one["spec"]["cluster"],
            "created": lambda one: one["spec"]["createdAt"],
            "expires": lambda one: one["spec"]["expiresAt"],
            "cards freed": lambda one: one["spec"]["cardsFreed"],
            "per week": lambda one: one["spec"]["savingPerWeek"] or "no price",
            "state": lambda one: _status(one, "state") or "Proposed",
            "approved": lambda one: _status(one, "approved"),
            "applied": lambda one: _status(one, "applied"),
            "under way": lambda one: _status(one, "underWay"),
        },
    )
    return Answer(
        document=[plan_document(head) for head in heads],
        headline=(f"{format_count(len(heads))} plans",),
        listings=(listing,),
        footnotes=("next: kubectl gputide plan ID, kubectl gputide approve --plan ID",) if heads else (),
    )


def plan_answer(head: Object) -> Answer:
    """What `plan ID` prints."""
    spec, status = head["spec"], head.get("status") or {}
    wanted = set(spec.get("apply") or ())
    stands = {one["stage"]: one for one in status.get("stages") or ()}
    listing = Listing.of(
        "Stages",
        spec["stages"],
        {
            "stage": lambda one: one["stage"],
            "cards freed": lambda one: one["cardsFreed"],
            "pods moved": lambda one: one["moves"],
            "wanted": lambda one: "yes" if one["stage"] in wanted else "",
            "state": lambda one: stands.get(one["stage"], {}).get("state", "proposed"),
            "reason": lambda one: stands.get(one["stage"], {}).get("reason", ""),
        },
    )
    conditions = [
        f"{one['type']}: {one.get('message') or one.get('reason', '')}"
        for one in status.get("conditions") or ()
        if one.get("status") == "True" or one.get("message")
    ]
    progress = f", {status['progress']} stages in force" if status.get("progress") else ""
    return Answer(
        document=plan_document(head),
        headline=(
            f"plan {format_plan_id(spec['plan'])} for {spec['cluster']}: {status.get('state') or 'Proposed'}{progress}",
            f"frees {format_count(spec['cardsFreed'])} cards, {spec['savingPerWeek'] or 'no price known'} a week",
        ),
        listings=(listing,),
        warnings=conditions,
        footnotes=("why it says so of a pod: kubectl gputide why POD",),
    )


def plan_document(head: Object) -> dict[str, Any]:
    """A plan's object without what the API server keeps for itself."""
    return {"name": head["metadata"]["name"], "spec": head["spec"], "status": head.get("status") or {}}


def _status(head: Object, name: str) -> str:
    return str((head.get("status") or {}).get(name) or "")


def _known(items: Iterable[Any]) -> list[Any]:
    return [item for item in items if item is not None]


def _most(pod: Object, name: str) -> Any:
    return max(_known(part[name] for part in pod["slices"]), default=None)


def _decimal(text: str | None) -> Decimal:
    return Decimal(0) if text is None else Decimal(text)


def _money(text: str | None, currency: str) -> str:
    return "no price" if text is None else format_money_short(Money(amount=Decimal(text), currency=currency))


def _cost(item: Object) -> str:
    return _money(item["costPerDay"], item["currency"])


def _total(items: Sequence[Object]) -> str:
    return _summed(items, "costPerDay")


def _summed(items: Sequence[Object], name: str) -> str:
    """Sum of what has a price, with how many have none."""
    known = [Decimal(item[name]) for item in items if item[name] is not None]
    if items and not known:
        return "what has no price"
    currency = items[0]["currency"] if items else ""
    total = format_money_short(Money(amount=sum(known, Decimal(0)), currency=currency)) if items else "nothing"
    left = len(items) - len(known)
    return f"{total} (without {format_count(left)} that have no price)" if left else total


def _cards(pods: Iterable[Object]) -> int:
    return len({part["card"] for pod in pods for part in pod["slices"]})


def _idle_for(item: Object) -> str:
    if item["idleSince"] is None:
        return ""
    seconds = (parse_time(item["measuredUntil"]) - parse_time(item["idleSince"])).total_seconds()
    return f"{seconds / _DAY_SECONDS:.0f} d" if seconds >= _DAY_SECONDS else f"{seconds / _HOUR_SECONDS:.0f} h"


def _measured(items: Sequence[Object]) -> tuple[str, ...]:
    if not items:
        return ()
    since, until = (_moment(items[0][name]) for name in ("measuredSince", "measuredUntil"))
    return (f"used and held: {format_time(since)} to {format_time(until)}; idle and state: the whole history",)


def _moment(text: str) -> datetime:
    return parse_time(text)


def _wasted(pod: Object) -> Decimal:
    """What of a pod's cost a day goes for compute that it does not use; of one that is not known nothing."""
    granted, used = summed(pod, "grantedComputeRatio"), summed(pod, "usedComputeRatio")
    if not granted or used is None or pod["isIdle"] is None:
        return Decimal(0)
    return _decimal(pod["costPerDay"]) * Decimal(str(max(0.0, 1 - used / granted)))


def _name(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _card_wasted(card: Object) -> Decimal:
    used = 0.0 if card["state"] in ("idle_held", "free") else card["computeP95Ratio"]
    if card["state"] == "untrusted":
        return Decimal(0)
    return Decimal(0) if used is None else _decimal(card["costPerDay"]) * Decimal(str(max(0.0, 1 - used)))


_Key = Callable[[Object], Any]
_ORDERS: dict[Order, _Key] = {
    Order.WASTE: lambda pod: (-_wasted(pod), _name(pod)),
    Order.COST: lambda pod: (-_decimal(pod["costPerDay"]), _name(pod)),
    Order.NAME: _name,
}
_CARD_ORDERS: dict[Order, _Key] = {
    Order.WASTE: lambda card: (-_card_wasted(card), _name(card)),
    Order.COST: lambda card: (-_decimal(card["costPerDay"]), _name(card)),
    Order.NAME: lambda card: (card["node"], *_name(card)),
}
