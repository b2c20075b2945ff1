"""Tools about what stands in a cluster and what it does: fleet, workloads, one workload, cost of a week, health."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from dashboards.assistant.harmless import cleaned
from dashboards.assistant.tool import CLUSTER, LIMIT, NAME, Found, Question, Tool, listed, rows
from dashboards.view_models.rows import idle_nodes, most_unused_first, price_per_week, unused_cards
from dashboards.words.advice import profile_in_english, refusal_words, state_words
from fleet.documents import document, iso
from fleet.errors import Misconfigured
from fleet.money.prices import Prices
from fleet.profiles import CardProfile, CardState, Profile, Profiles, WorkloadState
from fleet.words import Language

_BY_HOUR = frozenset({"hour_of_week", "reservation", "why", "cluster", "workload_kind"})
"""Parts of a profile that are large, or said in words."""
_NEAR_MAX = 3


def _fleet(question: Question) -> Found:
    cluster = question.cluster()
    profiles = question.views.fleet.profiles(cluster)
    prices = question.views.money.prices(cluster)
    # A state without a card is shown with 0: were it left out, nobody could distinguish it from one that is not known.
    by_state = {state: [card for card in profiles.cards if card.state is state] for state in CardState}
    workloads = Counter(profile.state for profile in profiles.workloads)
    return Found(
        cluster=cluster,
        data={
            "cluster": cluster,
            "clusters": list(question.views.fleet.clusters()),
            "history_since": iso(profiles.since),
            "history_until": iso(profiles.until),
            "currency": prices.currency,
            "cards": len(profiles.cards),
            "workloads": len(profiles.workloads),
            **_price(profiles.cards, profiles, prices),
            "cards_by_state": [
                {"state": state.value, "cards": len(cards), **_price(cards, profiles, prices)}
                for state, cards in by_state.items()
            ],
            "cards_by_model": [
                {"card_model": str(model), "cards": count}
                for model, count in Counter(card.card_model for card in profiles.cards).most_common()
            ],
            "workloads_by_state": [{"state": state.value, "workloads": workloads[state]} for state in WorkloadState],
            "nodes_with_most_idle_cards": [
                {"node": node, "idle_cards": idle, "cards": count}
                for node, idle, count in idle_nodes(profiles, question.limit)
            ],
            "withheld_advice": [
                {"kind": item.kind.value, "detail": refusal_words(item, Language.EN)} for item in profiles.withheld
            ],
        },
    )


def _price(cards: Iterable[CardProfile], profiles: Profiles, prices: Prices) -> dict[str, Any]:
    """What cards cost a week as far as they have a price, and how many have none."""
    weeks = [price_per_week(card, profiles, prices) for card in cards]
    known = [week for week in weeks if week is not None]
    cost = float(round(sum(known, Decimal(0)), 2)) if known or not weeks else None
    return {"cost_per_week": cost, "unpriced_cards": len(weeks) - len(known)}


def _workloads(question: Question) -> Found:
    cluster = question.cluster()
    state, namespace = question.asked.get("state"), question.asked.get("namespace")
    found = [
        profile
        for profile in question.views.fleet.profiles(cluster).workloads
        if state in (None, profile.state.value) and namespace in (None, profile.namespace, cleaned(profile.namespace))
    ]
    found.sort(key=most_unused_first)
    left = len(found) - question.limit
    return Found(
        cluster=cluster,
        data={"matching": len(found), "workloads": [_row(one) for one in found[: question.limit]]},
        left_out={"workloads": left} if left > 0 else {},
    )


def _row(profile: Profile) -> dict[str, Any]:
    return {
        "workload": profile.workload,
        "namespace": profile.namespace,
        "state": profile.state.value,
        "workload_class": profile.workload_class.value,
        "cards": len(profile.cards),
        "pods": len(profile.pods),
        "unused_cards": unused_cards(profile),
        "compute_p95": profile.compute.p95,
        "framebuffer_granted_bytes": profile.framebuffer.granted,
        "framebuffer_need_max_bytes": profile.framebuffer.need_max,
        "idle_since": document(profile.idle_since),
        "coverage_ratio": profile.coverage_ratio,
        "confidence": profile.confidence,
        "reason": state_words(profile, Language.EN),
    }


def _workload(question: Question) -> Found:
    cluster = question.cluster()
    profiles = question.views.fleet.profiles(cluster)
    profile = workload_named(profiles, str(question.asked["workload"]))
    prices = question.views.money.prices(cluster)
    whole = profile_in_english(profile)
    held = set(profile.cards)
    shown = {key: value for key, value in whole.items() if key not in _BY_HOUR}
    shown["trust"] = [
        {key: item[key] for key in ("check", "counter", "detail", "since", "distrusts")} for item in whole["trust"]
    ]
    whole_cards = [card for card in profiles.cards if card.card in held]
    return Found(
        cluster=cluster,
        data={
            **shown,
            "unused_cards": unused_cards(profile),
            "currency": prices.currency,
            **{f"cards_{key}": value for key, value in _price(whole_cards, profiles, prices).items()},
        },
    )


def workload_named(profiles: Profiles, name: str) -> Profile:
    """The workload of a name as an answer shows it.

    Raises:
        Misconfigured: there is none of this name, or several look alike.
    """
    found = [one for one in profiles.workloads if name in (one.workload, cleaned(one.workload))]
    if len(found) == 1:
        return found[0]
    if found:
        raise Misconfigured(f"cannot show workload {name[:200]!r}: {len(found)} have names that look like it")
    ends = [one.workload for one in profiles.workloads if one.workload.endswith(f"/{name.rpartition('/')[2]}")]
    hint = f"; did you mean {', '.join(ends[:_NEAR_MAX])}?" if ends else "; the tool `workloads` lists them"
    raise Misconfigured(
        f"cannot show workload {name[:200]!r}: expected namespace/Kind/name of a workload of cluster "
        f"{profiles.cluster}{hint}"
    )


def _card_hours(question: Question) -> Found:
    cluster = question.cluster()
    week = question.operation("card_hours", cluster=cluster)
    tenants = [{"namespace": name, **_measures(measures)} for name, measures in week["tenants"].items()]
    tenants.sort(key=lambda one: (-(one["idle"]["cost"] or 0) - (one["idle_held"]["cost"] or 0), one["namespace"]))
    data, left_out = rows(
        "namespaces", tenants, question.limit, since=week["since"], until=week["until"], currency=week["currency"],
        nobodys=_measures(week["rest"]), total=_measures(week["total"]),
    )  # fmt: skip
    return Found(cluster=cluster, data=data, left_out=left_out)


def _measures(measures: Mapping[str, Any]) -> dict[str, Any]:
    """The API writes money as text; here every amount is a number."""
    return {
        name: {
            "card_hours": one["card_hours"],
            "cost": None if one["cost"] is None else round(float(one["cost"]), 2),
        }
        for name, one in measures.items()
    }


def _budgets(question: Question) -> Found:
    cluster = question.cluster()
    found: dict[str, Any] = {}
    left_out: dict[str, int] = {}
    for name in ("budgets", "quotas", "unit_costs"):
        listing = question.operation(name, cluster=cluster)
        (items,) = listing.values()
        found[name] = [{**item, **_number("per_million", item)} for item in items[: question.limit]]
        left_out |= {name: len(items) - question.limit} if len(items) > question.limit else {}
    return Found(cluster=cluster, data={"currency": question.views.money.currency, **found}, left_out=left_out)


def _number(key: str, item: Mapping[str, Any]) -> dict[str, float]:
    """An amount that the API writes as text, as a number; nothing where it has none."""
    return {} if item.get(key) is None else {key: float(item[key])}


def _health(question: Question) -> Found:
    cluster = question.cluster()
    sightings = question.views.sightings.sightings()
    return Found(
        cluster=cluster,
        data={
            "lag": dict(question.operation("lag", cluster=cluster)),
            "freeze": dict(question.operation("freeze_state", cluster=cluster)),
            "clusters": [
                {
                    "cluster": one.cluster,
                    "cards": one.cards,
                    "newest_at": iso(one.newest_at),
                    "age_seconds": one.age_seconds,
                    "silent_since": document(one.silent_since),
                }
                for one in sightings[: question.limit]
            ],
        },
        left_out={"clusters": len(sightings) - question.limit} if len(sightings) > question.limit else {},
    )


_STATE = {"type": "string", "enum": [state.value for state in WorkloadState]}

FLEET_TOOLS = (
    Tool(
        name="fleet",
        says="Totals of a cluster: cards by state and model, what they cost a week at the prices of now, workloads by "
        "state, nodes with most idle cards, advice that the history can't support. idle_held is granted and without "
        "compute while it holds framebuffer; free is granted to nobody; untrusted has counters that failed a check.",
        answer=_fleet,
        parameters={"cluster": CLUSTER, "limit": LIMIT},
        data={
            "cards": {"type": "integer"},
            "cost_per_week": {"type": ["number", "null"]},
            "cards_by_state": listed("state", "cards", "cost_per_week", "unpriced_cards"),
            "cards_by_model": listed("card_model", "cards"),
            "workloads_by_state": listed("state", "workloads"),
            "nodes_with_most_idle_cards": listed("node", "idle_cards", "cards"),
        },
    ),
    Tool(
        name="workloads",
        says="Workloads of a cluster, those first that leave most cards' worth of compute unused; `matching` counts "
        "all that fit the filters. Those in state unknown, and those whose compute is not known (unused_cards null), "
        "come last.",
        answer=_workloads,
        parameters={"cluster": CLUSTER, "state": _STATE, "namespace": NAME, "limit": LIMIT},
        data={"matching": {"type": "integer"}, "workloads": listed("workload", "state", "cards", "unused_cards")},
    ),
    Tool(
        name="workload",
        says="One workload with its evidence: state and why, compute, framebuffer, quiet hours, coverage, confidence, "
        "counters that failed a check, neighbours, what its cards cost a week.",
        answer=_workload,
        parameters={"cluster": CLUSTER, "workload": {**NAME, "description": "namespace/Kind/name."}},
        required=("workload",),
        data={
            "workload": {"type": "string"},
            "state": {"type": "string"},
            "reason": {"type": "string"},
            "compute": {"type": "object", "required": ["p50", "p95", "p99", "max"]},
            "framebuffer": {"type": "object", "required": ["granted", "used_max", "need_max"]},
            "cards": {"type": "array"},
            "trust": listed("check", "counter", "detail"),
        },
    ),
    Tool(
        name="card_hours",
        says="Card hours and their cost over the last seven days by namespace, those with most idle cost first: idle, "
        "idle_held, unused, used; what nobody held apart (unallocated, stranded); the total.",
        answer=_card_hours,
        parameters={"cluster": CLUSTER, "limit": LIMIT},
        data={
            "currency": {"type": "string"},
            "namespaces": listed("namespace", "idle", "idle_held", "unused", "used"),
            "nobodys": {"type": "object"},
            "total": {"type": "object"},
        },
    ),
    Tool(
        name="budgets",
        says="Budgets of this month (spent, forecast, state), quotas and queues with what is unused of them, and what "
        "a million requests or tokens cost over the last week where somebody counts them.",
        answer=_budgets,
        parameters={"cluster": CLUSTER, "limit": LIMIT},
        data={"budgets": {"type": "array"}, "quotas": {"type": "array"}, "unit_costs": {"type": "array"}},
    ),
    Tool(
        name="health",
        says="Whether the data can be trusted now: age of the newest sample, which step from exporter to warehouse "
        "holds the rest up, whether every change is frozen, when each cluster was last heard.",
        answer=_health,
        parameters={"cluster": CLUSTER, "limit": LIMIT},
        data={
            "lag": {"type": "object", "required": ["sample_age_seconds", "waiting_bytes", "cause"]},
            "freeze": {"type": "object", "required": ["is_frozen", "by"]},
            "clusters": listed("cluster", "cards", "newest_at", "silent_since"),
        },
    ),
)  # fmt: skip
"""In the order in which a client lists them."""
