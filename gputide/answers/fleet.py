"""Profiles of workloads and cards, and all clusters, as answers of the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from dashboards.shown.clusters import ClusterLine, fleet_totals
from dashboards.words.advice import profiles_in_english, refusal_words, state_words
from dashboards.words.catalogue import Language
from fleet.documents import document, iso
from fleet.profiles import CardState, Profile, Profiles, WorkloadState
from fleet.units import Money, format_bytes_short, format_count, format_money_short, format_percent, format_time
from gputide.answers.plan import percent_text
from gputide.output import Answer, Listing


def profiles_answer(profiles: Profiles, notes: Sequence[str] = ()) -> Answer:
    """What `workloads` prints, with further notes first below."""
    states = Counter(profile.state for profile in profiles.workloads)
    cards = Counter(card.state for card in profiles.cards)
    ranked = sorted(profiles.workloads, key=_waste, reverse=True)
    return Answer(
        document=profiles_in_english(profiles),
        headline=(
            (
                f"{format_count(len(profiles.cards))} cards, {format_count(len(profiles.workloads))} workloads in "
                f"{profiles.cluster}; history {format_time(profiles.since)} to {format_time(profiles.until)}, coverage "
                f"{format_percent(profiles.coverage_ratio, digits=1)}"
            ),
        ),
        listings=(
            Listing(
                title="Workloads",
                columns=(
                    "workload",
                    "class",
                    "state",
                    "cards",
                    "compute p95",
                    "framebuffer need",
                    "granted",
                    "coverage",
                    "confidence",
                    "why",
                ),
                rows=[_profile_row(profile) for profile in ranked],
            ),
            Listing(
                title="Workloads by state",
                columns=("state", "workloads"),
                rows=[(state.value, states[state]) for state in WorkloadState if states[state]],
            ),
            Listing(
                title="Cards by state",
                columns=("state", "cards"),
                rows=[(state.value, cards[state]) for state in CardState if cards[state]],
            ),
        ),
        footnotes=(
            *notes,
            *(f"withheld: {item.kind.value}: {refusal_words(item, Language.EN)}" for item in profiles.withheld),
        ),
    )


def silence_note(cluster: str, since: datetime | None) -> tuple[str, ...]:
    """What is said beside figures of a cluster that sends nothing; nothing of one that sends.

    Args:
        cluster: cluster.
        since: since when it is silent, UTC; None while it sends.
    """
    if since is None:
        return ()
    said = f"silent: cluster {cluster} sends nothing since {format_time(since)} (cluster.silent_seconds)"
    return (f"{said}; these figures are the last that are known of it",)


def clusters_answer(lines: Sequence[ClusterLine]) -> Answer:
    """What `report clusters` prints."""
    totals = fleet_totals(lines)
    saved = ", ".join(
        format_money_short(Money(amount=amount, currency=name)) for name, amount in totals.saving_per_week
    )
    silent = f"; {format_count(totals.silent)} silent and in no sum" if totals.silent else ""
    return Answer(
        document={"totals": document(totals), "clusters": [_cluster_document(line) for line in lines]},
        headline=(
            (
                f"{format_count(totals.clusters)} clusters{silent}: {format_count(totals.cards)} cards, plans free "
                f"{format_count(totals.cards_freed)} and save {saved or 'nothing that has a price'} a week"
            ),
        ),
        listings=(
            Listing(
                title="Clusters",
                columns=(
                    "cluster",
                    "state",
                    "cards",
                    "newest window",
                    "plan",
                    "cards freed",
                    "per week",
                    "stages applied",
                ),
                rows=[_cluster_row(line) for line in lines],
            ),
        ),
    )


def _cluster_document(line: ClusterLine) -> dict[str, object]:
    sighting = line.sighting
    return {
        "cluster": sighting.cluster,
        "newest_at": iso(sighting.newest_at),
        "silent_since": None if sighting.silent_since is None else iso(sighting.silent_since),
        "cards": sighting.cards,
        "plan_id": line.plan_id,
        "cards_freed": line.cards_freed,
        "saving_per_week": document(line.saving_per_week),
        "currency": line.currency,
        "stages": line.stages,
        "approved_stages": line.approved_stages,
        "applied_stages": line.applied_stages,
    }


def _cluster_row(line: ClusterLine) -> tuple[object, ...]:
    sighting = line.sighting
    since = sighting.silent_since
    money = (
        ""
        if line.saving_per_week is None or line.currency is None
        else format_money_short(Money(amount=line.saving_per_week, currency=line.currency))
    )
    return (
        sighting.cluster,
        "sends" if since is None else f"silent since {format_time(since)}",
        sighting.cards,
        format_time(sighting.newest_at),
        line.plan_id or "",
        "" if line.cards_freed is None else line.cards_freed,
        money,
        f"{line.applied_stages} of {line.stages}" if line.stages else "",
    )


def _profile_row(profile: Profile) -> tuple[object, ...]:
    need = profile.framebuffer.need_max
    return (
        profile.workload,
        profile.workload_class.value,
        profile.state.value,
        len(profile.cards),
        percent_text(profile.compute.p95),
        format_bytes_short(need) if need is not None else "unknown",
        format_bytes_short(profile.framebuffer.granted),
        format_percent(profile.coverage_ratio),
        round(profile.confidence, 2),
        state_words(profile, Language.EN),
    )


def _waste(profile: Profile) -> tuple[bool, Decimal]:
    used = profile.compute.p95 if profile.compute.p95 is not None else 1.0
    return profile.state is not WorkloadState.UNKNOWN, len(profile.cards) * (1 - Decimal(str(round(used, 4))))
