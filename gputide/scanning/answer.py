"""What `gputide scan` prints: the first answer in a few lines, the plan, and what was missed at which cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.words.advice import plan_in_english
from fleet.decisions import Plan
from fleet.documents import document
from fleet.inventory import CardModelName
from fleet.money.prices import PriceBook
from fleet.profiles import CardState, Profiles, WorkloadState
from fleet.schema import Measure
from fleet.servers import preallocates
from fleet.settings.settings import Settings
from fleet.units import format_bytes_short, format_count, format_duration, format_percent, format_time
from fleet.usage import History
from gputide.answers.plan import no_price_words, plan_answer, saving_text
from gputide.output import Answer, Listing
from gputide.scanning.backend import AssumedBackend
from gputide.scanning.scan import Scanned

SCAN_SCHEMA = "gputide.scan/v1"


def scan_answer(
    scanned: Scanned,
    backend: AssumedBackend,
    profiles: Profiles,
    plans: Sequence[Plan],
    missed: Sequence[Missed],
    unpriced: Sequence[CardModelName],
) -> Answer:
    """The answer of a scan.

    Args:
        backend: which backend the plan is for, and why.
        plans: what could be done with that backend, then with others.
    """
    plan = plans[0]
    states = Counter(card.state for card in profiles.cards)
    planned = plan_answer(plan)
    work, totals = scanned.work, plan.totals
    cards, workloads = len(profiles.cards), len(profiles.workloads)
    unknown = sum(profile.state is WorkloadState.UNKNOWN for profile in profiles.workloads)
    return Answer(
        document={
            "schema": SCAN_SCHEMA,
            "url": scanned.url,
            "cluster": scanned.cluster,
            "since": format_time(profiles.since),
            "until": format_time(profiles.until),
            "step_seconds": scanned.step_seconds,
            "coverage_ratio": profiles.coverage_ratio,
            "backend": {"name": backend.name, "basis": backend.basis.value, "signs": dict(backend.signs)},
            "cards": {"all": cards, **{state.value: states[state] for state in CardState}},
            "workloads": workloads,
            "workloads_unknown": unknown,
            "metrics": sorted(scanned.names),
            "read": {
                "queries": work.queries,
                "bytes": work.bytes_read,
                "samples": sum(scanned.reading.samples.values()),
                "copies": scanned.reading.copies,
                "halved": work.halved,
                "tried_again": work.tried_again,
            },
            "missed": document(tuple(missed)),
            "backends": [_backend_document(one) for one in plans],
            "plan": plan_in_english(plan),
        },
        headline=(
            backend.sentence,
            (
                f"{scanned.cluster}: {format_count(cards)} cards, {format_count(states[CardState.IDLE_HELD])} "
                f"allocated but idle, {format_count(states[CardState.FREE])} free, "
                f"{format_count(states[CardState.LOW_USE])} of low use, {format_count(states[CardState.BUSY])} busy"
                + (f", {states[CardState.UNTRUSTED]:,} not to be trusted" if states[CardState.UNTRUSTED] else "")
                + f"; {format_count(unknown)} of {format_count(workloads)} workloads unknown"
                + (" (no advice for these; `gputide workloads` says why)" if unknown else "")
            ),
            (
                f"could be freed: {format_count(totals.cards_freed)} of {format_count(totals.cards_before)} cards "
                f"({format_count(totals.nodes_freed)} whole nodes), "
                f"{_money(plan, unpriced)}, predicted violation "
                f"{format_percent(totals.predicted_violation_ratio, digits=2)} (risk "
                f"{plan.risk.value})"
            ),
            (
                f"from {format_time(profiles.since)} to {format_time(profiles.until)} in steps of "
                f"{format_duration(scanned.step_seconds)}, coverage "
                f"{format_percent(profiles.coverage_ratio, digits=1)}; read now: {format_count(work.queries)} queries, "
                f"{format_bytes_short(work.bytes_read)}, {format_count(sum(scanned.reading.samples.values()))} samples"
            ),
        ),
        listings=(
            _backend_listing(plans),
            *planned.listings,
            Listing(
                title="Not found, and what that costs",
                columns=("what", "costs"),
                rows=[(item.what, item.costs) for item in missed],
            ),
        ),
        footnotes=(
            *planned.footnotes[:-1],
            "nothing was changed in the cluster; the history and the plan are in the data folder",
            f"next: gputide plan explain ID · gputide plan diff --plan {plan.plan_id} · gputide serve",
        ),
    )


def _backend_document(plan: Plan) -> dict[str, Any]:
    totals = plan.totals
    return {
        "backend": plan.backend,
        "cards_freed": totals.cards_freed,
        "nodes_freed": totals.nodes_freed,
        "saving_per_week": document(totals.saving_per_week),
        "currency": plan.currency,
        "predicted_violation_ratio": totals.predicted_violation_ratio,
    }


def _backend_listing(plans: Sequence[Plan]) -> Listing:
    rows = [
        (
            plan.backend,
            plan.totals.cards_freed,
            plan.totals.nodes_freed,
            saving_text(plan.totals.saving_per_week, plan.currency),
            format_percent(plan.totals.predicted_violation_ratio, digits=2),
        )
        for plan in plans
    ]
    columns = ("backend", "cards_freed", "nodes_freed", "saving_per_week", "predicted_violation")
    return Listing(title="With this backend and with others", columns=columns, rows=rows)


def _money(plan: Plan, unpriced: Sequence[CardModelName]) -> str:
    if plan.totals.saving_per_week.amortised is None:
        return f"value unknown: {no_price_words(unpriced)}"
    return f"{saving_text(plan.totals.saving_per_week, plan.currency)} a week"


STRANGERS_MAX = 20
"""Targets that may not speak for others of which a line is shown."""
COVERAGE_MIN = 0.9
"""Below it missing samples are worth a word."""
_MEASURES = {
    Measure.SM_ACTIVE: (
        "duty cycle is used instead: an upper bound, so about half as many cards are freed (enable "
        "DCGM_FI_PROF_SM_ACTIVE in dcgm-exporter: a day of it, or one pod of each workload, reads the rest)"
    ),
    Measure.FRAMEBUFFER_USED: "who holds how much framebuffer stays unknown: nothing can share a card",
    Measure.DUTY_CYCLE: "whether a card works at all stays unknown where SM active is missing too",
    Measure.KV_CACHE_USAGE: "what servers that pre-allocate really need stays unknown (scrape their own metrics)",
    Measure.ENCODER: "a transcoder looks like an idle pod (enable DCGM_FI_DEV_ENC_UTIL)",
    Measure.POWER: "energy of idle cards is not reported (enable DCGM_FI_DEV_POWER_USAGE)",
}
_NAMES = (
    (("kube_pod_owner",), "advice is for single pods and not for services (install kube-state-metrics)"),
    (
        ("kube_replicaset_owner",),
        "pods of one Deployment are distinguished by their ReplicaSet (let kube-state-metrics watch replicasets)",
    ),
    (
        ("kube_pod_container_resource_requests",),
        "whether moved pods find CPU and memory on another node, and which pods hold a card in silence",
    ),
    (("kube_node_status_allocatable",), "whether nodes have CPU and memory for pods that move there"),
    (
        ("kube_pod_labels", "kube_pod_annotations"),
        "opt-outs and other gputide.io labels of pods (kube-state-metrics: --metric-labels-allowlist)",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """One thing that a scan did not find.

    Attributes:
        costs: what is not possible or less sure without it, and how to mend it.
    """

    what: str
    costs: str


def misses_of(scanned: Scanned, history: History, profiles: Profiles, settings: Settings) -> tuple[Missed, ...]:
    """Everything that is missing, what costs most first."""
    return (
        *_whose(scanned, history),
        *_strangers(scanned),
        *_measures(history),
        *_facts(scanned),
        *_doubts(scanned, profiles),
        *_prices(history, settings),
    )


def _whose(scanned: Scanned, history: History) -> Iterator[Missed]:
    if not history.slices.keys:
        yield Missed(
            what="pods on cards",
            costs="whose the cards are stays unknown: no advice at all (run dcgm-exporter with "
            "DCGM_EXPORTER_KUBERNETES=true, or HAMi's monitor)",
        )
    if scanned.seats.unplaced:
        yield Missed(
            what=f"the cards of {format_count(scanned.seats.unplaced)} pods that ask for some",
            costs="they are left out, and their cards may look free (dcgm-exporter does not run on their nodes, or "
            "several pods share a card in a way that it does not tell)",
        )
    if scanned.seats.unmeasured:
        yield Missed(
            what=f"what {format_count(scanned.seats.unmeasured)} pods do that share cards",
            costs="only their grants are known: they are left as they are (run HAMi's monitor, or gputide's exporter)",
        )
    if scanned.seats.unsized:
        yield Missed(
            what=f"framebuffer of {', '.join(sorted(scanned.seats.unsized)[:5])}",
            costs="cards of that model are left out (enable DCGM_FI_DEV_FB_FREE)",
        )


def _strangers(scanned: Scanned) -> Iterator[Missed]:
    for stranger, names in sorted(scanned.strangers.items())[:STRANGERS_MAX]:
        yield Missed(
            what=f"{', '.join(sorted(names)[:3])} of namespace {stranger.namespace[:253]}, job {stranger.job[:253]}",
            costs="left out: pods there may not speak for others. If your exporters run there, name it in "
            "provenance.namespaces; if this Prometheus keeps no `up`, and labels of that job are honoured, name it in "
            "provenance.jobs; if neither, somebody forges them",
        )


def _measures(history: History) -> Iterator[Missed]:
    measured = set(history.slices.mean) | (set(history.cards.mean) if history.cards is not None else set())
    for measure, costs in _MEASURES.items():
        if measure not in measured:
            yield Missed(what=f"measure {measure.value}", costs=costs)
    unsized = {
        grant.pod_id
        for grant in history.inventory.live_grants()
        if preallocates(grant.server) and grant.kv_cache_pool_bytes is None
    }
    if unsized and Measure.KV_CACHE_USAGE in measured:
        yield Missed(
            what=f"size of the KV cache of {format_count(len(unsized))} pods",
            costs="what they really need stays unknown: they keep what they hold (which sizes are known: docs/scan.md)",
        )


def _facts(scanned: Scanned) -> Iterator[Missed]:
    for names, costs in _NAMES:
        if not any(name in scanned.names for name in names):
            yield Missed(what=" or ".join(names), costs=costs)
    for name, reason in sorted(scanned.facts.failed.items()):
        yield Missed(what=name, costs=f"could not be read: {reason}; what it tells of pods and owners is missing")


def _doubts(scanned: Scanned, profiles: Profiles) -> Iterator[Missed]:
    for name, scale in sorted(scanned.scales.items()):
        if scale.remark is not None:
            yield Missed(what=f"the unit of {name}", costs=f"{scale.remark}; check the rule that writes it")
    if profiles.coverage_ratio < COVERAGE_MIN:
        yield Missed(
            what=f"{format_percent(1 - profiles.coverage_ratio)} of the time",
            costs="what was not collected counts as unknown: advice is less sure, or withheld",
        )
    for text in scanned.work.partial:
        yield Missed(what="parts of answers", costs=f"the server said: {text}")
    if scanned.reading.bad_values:
        yield Missed(
            what=f"{format_count(scanned.reading.bad_values)} samples outside their range",
            costs="they are left out, as if they had not been collected",
        )
    if scanned.seats.unreadable:
        yield Missed(
            what=f"{format_count(len(scanned.seats.unreadable))} facts of cards, pods and servers",
            costs=f"they can't be true and are left out, such as: {scanned.seats.unreadable[0][:200]}",
        )
    for name, reason in sorted(scanned.reading.refused.items()):
        yield Missed(
            what=name,
            costs=f"the server does not compute it: {reason[:200]}; let it load gputide's recording rules "
            "(docs/grafana.md)",
        )
    for name, count in sorted(scanned.reading.nameless.items()):
        yield Missed(
            what=f"{format_count(count)} series of {name}",
            costs="their labels don't say whom they speak of: they are left out",
        )


def unpriced_models(history: History, settings: Settings) -> tuple[CardModelName, ...]:
    """Card models of which some card of a fleet has no price when the history ends, sorted."""
    inventory = history.inventory
    prices = PriceBook(settings, inventory.nodes).at(inventory.as_of)
    return tuple(sorted({card.card_model for card in inventory.cards if prices.of(card).amortised is None}))


def _prices(history: History, settings: Settings) -> Iterator[Missed]:
    unpriced = unpriced_models(history, settings)
    if unpriced:
        yield Missed(what=f"prices of {', '.join(unpriced[:5])}", costs=f"money: {no_price_words(unpriced)}")
