"""Profiles of workloads and cards, and all clusters, as answers of the command line."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from dashboards.view_models.clusters import ClusterLine, fleet_totals
from dashboards.view_models.rows import most_unused_first
from dashboards.words.advice import finding_words, profile_in_english, profiles_in_english, refusal_words, state_words
from fleet.documents import document, iso
from fleet.errors import Misconfigured
from fleet.profiles import CardState, Profile, Profiles, WorkloadState
from fleet.units import (
    Money,
    format_bytes_short,
    format_count,
    format_money_short,
    format_percent,
    format_plan_id,
    format_time,
)
from fleet.words import Language
from gputide.answers.plan import percent_text
from gputide.output import Answer, Listing

_NAMES_SHOWN = 3


def profiles_answer(profiles: Profiles, notes: Sequence[str] = ()) -> Answer:
    """What `workloads` prints, with further notes first below."""
    workloads = Listing.of(
        "Workloads",
        sorted(profiles.workloads, key=most_unused_first),
        {
            "workload": lambda one: one.workload,
            "class": lambda one: one.workload_class.value,
            "state": lambda one: one.state.value,
            "cards": lambda one: len(one.cards),
            "compute p95": lambda one: percent_text(one.compute.p95),
            "framebuffer need": lambda one: _bytes(one.framebuffer.need_max),
            "granted": lambda one: format_bytes_short(one.framebuffer.granted),
            "coverage": lambda one: format_percent(one.coverage_ratio),
            "confidence": lambda one: round(one.confidence, 2),
            "why": lambda one: state_words(one, Language.EN),
        },
    )
    return Answer(
        document=profiles_in_english(profiles),
        headline=(
            (
                f"{format_count(len(profiles.cards))} cards, {format_count(len(profiles.workloads))} workloads in "
                f"{profiles.cluster}; history {format_time(profiles.since)} to {format_time(profiles.until)}, coverage "
                f"{format_percent(profiles.coverage_ratio, digits=1)}"
            ),
            f"workloads by state: {_counted(profile.state for profile in profiles.workloads)}",
            f"cards by state: {_counted(card.state for card in profiles.cards)}",
        ),
        listings=(workloads,),
        footnotes=(
            *notes,
            *(f"withheld: {item.kind.value}: {refusal_words(item, Language.EN)}" for item in profiles.withheld),
        ),
    )


def _counted(states: Iterable[WorkloadState | CardState]) -> str:
    """How many of each state, the most frequent first."""
    return ", ".join(f"{format_count(count)} {state.value}" for state, count in Counter(states).most_common())


def workload_named(profiles: Profiles, name: str) -> Profile:
    """The workload of a name: `namespace/Kind/name`, or as much of its end as only one workload has.

    Raises:
        Misconfigured: no workload has this name, or several have.
    """
    found = [one for one in profiles.workloads if f"/{one.workload}".endswith(f"/{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(sorted(one.workload for one in found)[:_NAMES_SHOWN])
        raise Misconfigured(f"cannot show workload {name[:200]!r}: {len(found)} have this name, such as {several}")
    by_end = {one.workload.rpartition("/")[2]: one.workload for one in profiles.workloads}
    near = [by_end[end] for end in difflib.get_close_matches(name.rpartition("/")[2], by_end, n=_NAMES_SHOWN)]
    hint = f"; did you mean {', '.join(near)}?" if near else "; `gputide workloads --all` lists them"
    raise Misconfigured(
        f"cannot show workload {name[:200]!r}: cluster {profiles.cluster!r} has none of this name{hint}"
    )


def profile_answer(profile: Profile, notes: Sequence[str] = ()) -> Answer:
    """What `workloads NAME` prints, with further notes below."""
    compute, held, rate = profile.compute, profile.framebuffer, profile.request_rate
    figures = (
        ("class", profile.workload_class.value),
        ("cards", len(profile.cards)),
        ("pods", len(profile.pods)),
        ("compute granted", percent_text(compute.granted_ratio)),
        ("compute p50", percent_text(compute.p50)),
        ("compute p95", percent_text(compute.p95)),
        ("compute p99", percent_text(compute.p99)),
        ("compute max", percent_text(compute.max)),
        ("framebuffer granted", format_bytes_short(held.granted)),
        ("framebuffer used at most", _bytes(held.used_max)),
        ("framebuffer needed at most", _bytes(held.need_max)),
        ("quiet hours of the week", len(profile.off_peak_hours)),
        ("repeats every", "–" if profile.period_hours is None else f"{profile.period_hours} h"),
        ("requests per second, p95", "–" if rate is None else f"{rate.p95:,.2f}"),
        ("last activity", "–" if profile.idle_since is None else format_time(profile.idle_since)),
        ("coverage", percent_text(profile.coverage_ratio)),
        ("confidence in the state", round(profile.confidence, 2)),
    )
    doubts = [
        (found.counter, found.check.replace("_", " "), finding_words(found, Language.EN)) for found in profile.trust
    ]
    beside = Listing.of(
        "Speed beside neighbours, as measured here",
        profile.beside,
        {
            "neighbour": lambda one: one.neighbour,
            "speed / alone": lambda one: percent_text(one.speed_ratio),
            "at least": lambda one: percent_text(one.speed_ratio_min),
            "at most": lambda one: percent_text(one.speed_ratio_max),
            "days": lambda one: one.days,
            "measured by": lambda one: one.measured_by,
        },
    )
    checks = Listing(title="Failed cross-checks", columns=("counter", "check", "detail"), rows=doubts)
    return Answer(
        document=profile_in_english(profile),
        headline=(f"{profile.workload} is {profile.state.value}: {state_words(profile, Language.EN)}",),
        listings=(
            Listing(title="Figures", columns=("figure", "value"), rows=figures, is_whole=True),
            *((beside,) if profile.beside else ()),
            *((checks,) if doubts else ()),
        ),
        footnotes=tuple(notes),
    )


def silence_note(cluster: str, since: datetime | None) -> tuple[str, ...]:
    """What is said beside figures of a cluster that sends nothing; nothing of one that sends.

    Args:
        since: since when it is silent, UTC; None while it sends.
    """
    if since is None:
        return ()
    said = f"silent: cluster {cluster} sends nothing since {format_time(since)} (cluster.silent_seconds)"
    return (f"{said}; these figures are the last that are known of it",)


def longer_steps_note(step_seconds: int, source_seconds: int) -> tuple[str, ...]:
    """What is said of a plan that was made in longer steps than the source's; nothing of another."""
    if step_seconds == source_seconds:
        return ()
    said = f"made in steps of {step_seconds} s, since the fleet is large, where its source has {source_seconds} s"
    return (f"{said}: contention that is over sooner is seen in part",)


def clusters_answer(lines: Sequence[ClusterLine]) -> Answer:
    """What `report clusters` prints."""
    totals = fleet_totals(lines)
    saved = ", ".join(
        format_money_short(Money(amount=amount, currency=name)) for name, amount in totals.saving_per_week
    )
    silent = f"; {format_count(totals.silent)} silent and in no sum" if totals.silent else ""
    clusters = Listing.of(
        "Clusters",
        lines,
        {
            "cluster": lambda line: line.sighting.cluster,
            "state": _sends_or_silent,
            "cards": lambda line: line.sighting.cards,
            "newest window": lambda line: format_time(line.sighting.newest_at),
            "plan": lambda line: format_plan_id(line.plan_id or ""),
            "cards freed": lambda line: "" if line.cards_freed is None else line.cards_freed,
            "per week": _saved_per_week,
            "stages applied": lambda line: f"{line.applied_stages} of {line.stages}" if line.stages else "",
        },
    )
    return Answer(
        document={"totals": document(totals), "clusters": [_cluster_document(line) for line in lines]},
        headline=(
            (
                f"{format_count(totals.clusters)} clusters{silent}: {format_count(totals.cards)} cards, plans free "
                f"{format_count(totals.cards_freed)} and save {saved or 'nothing that has a price'} a week"
            ),
        ),
        listings=(clusters,),
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


def _sends_or_silent(line: ClusterLine) -> str:
    since = line.sighting.silent_since
    return "sends" if since is None else f"silent since {format_time(since)}"


def _saved_per_week(line: ClusterLine) -> str:
    if line.saving_per_week is None or line.currency is None:
        return ""
    return format_money_short(Money(amount=line.saving_per_week, currency=line.currency))


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else format_bytes_short(count)
