"""What `gputide scan` prints: the first answer in a few lines, the plan, and what was missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dashboards.words.advice import plan_in_english
from fleet.decisions import Plan
from fleet.documents import document
from fleet.inventory import CardModelName
from fleet.profiles import CardState, Profiles, WorkloadState
from fleet.units import format_bytes_short, format_count, format_duration, format_percent, format_time
from gputide.answers import no_price_words, plan_answer, saving_text
from gputide.output import Answer, Listing
from gputide.scanning.backend import AssumedBackend, Basis
from gputide.scanning.misses import Missed
from gputide.scanning.scan import Scanned

SCAN_SCHEMA = "gputide.scan/v1"


def scan_answer(
    scanned: Scanned,
    backend: AssumedBackend,
    profiles: Profiles,
    plan: Plan,
    missed: Sequence[Missed],
    unpriced: Sequence[CardModelName],
) -> Answer:
    """The answer of a scan.

    Args:
        scanned: what was read.
        backend: which backend the plan is for, and why.
        profiles: what the analyzer makes of it.
        plan: what could be done.
        missed: what was not found.
        unpriced: card models without a price.
    """
    states = Counter(card.state for card in profiles.cards)
    planned = plan_answer(plan)
    work, totals = scanned.work, plan.totals
    cards, workloads = len(profiles.cards), len(profiles.workloads)
    unknown = sum(profile.state is WorkloadState.UNKNOWN for profile in profiles.workloads)
    lasting = f"; plan with the same backend later: --set enforcer.backend={backend.name}"
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
            "plan": plan_in_english(plan),
        },
        headline=(
            backend.sentence,
            (
                f"{scanned.cluster}: {format_count(cards)} cards, {format_count(states[CardState.IDLE_HELD])} held and "
                f"idle, {format_count(states[CardState.FREE])} free, {format_count(states[CardState.LOW_USE])} of low "
                f"use, {format_count(states[CardState.BUSY])} busy"
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
            *planned.listings,
            Listing(
                title="Not found, and what that costs",
                columns=("what", "costs"),
                rows=[(item.what, item.costs) for item in missed],
            ),
        ),
        footnotes=(
            *planned.footnotes[:-1],
            "nothing was changed in the cluster; the history and the plan are in the data folder"
            + ("" if backend.basis is Basis.DEFAULT else lasting),
            f"next: gputide plan explain ID · gputide plan diff --plan {plan.plan_id} · gputide serve",
        ),
    )


def _money(plan: Plan, unpriced: Sequence[CardModelName]) -> str:
    if plan.totals.saving_per_week.amortised is None:
        return f"value unknown: {no_price_words(unpriced)}"
    return f"{saving_text(plan.totals.saving_per_week, plan.currency)} a week"
