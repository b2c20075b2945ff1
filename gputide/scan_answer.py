"""What `gputide scan` prints: the first answer in a few lines, the plan, and what was missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fleet.decisions import Plan
from fleet.documents import document, plan_document
from fleet.profiles import CardState, Profiles
from fleet.units import format_bytes_short, format_count, format_duration, format_percent, format_time
from gputide.answers import plan_answer, saving_text
from gputide.output import Answer, Listing
from gputide.scan import Scanned
from gputide.scan_misses import Missed

SCAN_SCHEMA = "gputide.scan/v1"


def scan_answer(scanned: Scanned, profiles: Profiles, plan: Plan, missed: Sequence[Missed]) -> Answer:
    """The answer of a scan.

    Args:
        scanned: what was read.
        profiles: what the analyzer makes of it.
        plan: what could be done.
        missed: what was not found.
    """
    states = Counter(card.state for card in profiles.cards)
    planned = plan_answer(plan)
    work, totals = scanned.work, plan.totals
    cards = len(profiles.cards)
    return Answer(
        document={
            "schema": SCAN_SCHEMA,
            "url": scanned.url,
            "cluster": scanned.cluster,
            "since": format_time(profiles.since),
            "until": format_time(profiles.until),
            "step_seconds": scanned.step_seconds,
            "coverage_ratio": profiles.coverage_ratio,
            "cards": {"all": cards, **{state.value: states[state] for state in CardState}},
            "workloads": len(profiles.workloads),
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
            "plan": plan_document(plan),
        },
        headline=(
            (
                f"{scanned.cluster}: {format_count(cards)} cards, {format_count(states[CardState.IDLE_HELD])} held and "
                f"idle, {format_count(states[CardState.FREE])} free, {format_count(states[CardState.LOW_USE])} of low "
                f"use, {format_count(states[CardState.BUSY])} busy"
                + (f", {states[CardState.UNTRUSTED]:,} not to be trusted" if states[CardState.UNTRUSTED] else "")
            ),
            (
                f"could be freed: {format_count(totals.cards_freed)} of {format_count(totals.cards_before)} cards "
                f"({format_count(totals.nodes_freed)} whole nodes), "
                f"{_money(plan)}, predicted violation "
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
            "nothing was changed in the cluster; the history and the plan are in the data folder",
            f"next: gputide explain ID · gputide analyze · gputide plan diff --plan {plan.plan_id} · gputide dashboard",
        ),
    )


def _money(plan: Plan) -> str:
    if plan.totals.saving_per_week.amortised is None:
        return "worth what nobody told (set prices.overrides)"
    return f"{saving_text(plan.totals.saving_per_week, plan.currency)} a week"
