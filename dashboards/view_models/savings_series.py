"""What gputide found, promised and brought, as series for Prometheus: plans, savings, promises, the warehouse's age.

Served by `gputide run export savings`; the dashboards Savings, Tenant and Pipeline and the alerts on plans stand on it.
Reads through the pages' ports only, so the figures are those of the pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np

from dashboards.queries import PlanEntry, Views
from enforcer.record.harm import harm_budgets, standing_outcomes
from enforcer.record.savings import expected_of, realised_of, savings_steps
from enforcer.record.verdict import Standing, verdict_of
from exporter.families import CataloguedFamily, Family, gauge, info
from exporter.reader import Reading
from fleet.errors import NotEnoughData
from fleet.money.saving import cards_in
from fleet.money.week_hours import WeekHours
from fleet.outcomes import Outcome
from fleet.profiles import Profile, Profiles

_PLAN = ("cluster", "plan_id")
_WORKLOAD = ("cluster", "namespace", "workload", "workload_kind")
PLANS_MAX = 50
"""Newest plans that have series; older ones are in the plan store."""


_PLAN_INFO = info(
    "gputide_plan_info",
    "A plan and where it stands: waiting, approved, applied, undone or expired; always 1.",
    (*_PLAN, "state"),
)
_PROMISED = gauge("gputide_plan_cards_promised", "Whole cards that a plan frees, as planned.", _PLAN)
_REALISED = gauge(
    "gputide_plan_cards_realised", "Whole cards that a plan freed, as measured; absent once it is undone.", _PLAN
)
_EXPECTED = gauge(
    "gputide_plan_cards_expected",
    "Whole cards that the measured stages of a plan were to free, without what was undone.",
    _PLAN,
)
_GIVEN_BACK = gauge("gputide_plan_cards_given_back", "Cards of a plan that were free and are granted again.", _PLAN)
_PREDICTED = gauge(
    "gputide_plan_violation_ratio_predicted", "Violated share of active time as a plan predicts it, 0-1.", _PLAN
)
_HARM = gauge(
    "gputide_plan_violation_ratio",
    "Violated share of active time as observed for the services that a plan changed last, 0-1; absent "
    "while not decided yet.",
    _PLAN,
)
_OVER_BUDGET = gauge(
    "gputide_plan_services_over_harm_budget",
    "Services that a plan changed last and that are over their harm budget now.",
    _PLAN,
)
_EXPIRES = gauge("gputide_plan_expires_timestamp_seconds", "When a plan expires, epoch seconds.", _PLAN)
_STEP_CARDS = gauge(
    "gputide_savings_cards",
    "Whole cards by step of the funnel: found, accepted, applied, verified, realised.",
    ("cluster", "step"),
)
_STEP_MONEY = gauge(
    "gputide_savings_per_week",
    "Amortised price of a week of these cards, in the currency.",
    ("cluster", "step", "currency"),
)
_HOURS = gauge(
    "gputide_week_card_hours",
    "Card-hours of the last seven days by namespace and measure: unallocated, stranded (both without a namespace), "
    "idle, idle_held, unused, used.",
    ("cluster", "namespace", "measure"),
)
_HOURS_COST = gauge(
    "gputide_week_card_hours_cost",
    "Amortised price of these card-hours, in the currency.",
    ("cluster", "namespace", "measure", "currency"),
)
_CARDS = gauge("gputide_cards", "Cards by model and state, as the analyzer says.", ("cluster", "card_model", "state"))
_WORKLOAD_CARDS = gauge(
    "gputide_workload_cards", "Cards that a workload holds, with its state as the analyzer says.", (*_WORKLOAD, "state")
)
_LIMIT = gauge(
    "gputide_workload_off_peak_limit_ratio",
    "Activity that a workload is promised to stay under in this hour, 0-1; no series in hours without a promise.",
    _WORKLOAD,
)
_DISTRUSTED = gauge(
    "gputide_distrusted_workloads", "Workloads whose counters failed a cross-check, by check.", ("cluster", "check")
)
_AGE = gauge(
    "gputide_warehouse_data_age_seconds", "Age of the newest window in the warehouse, by the clock of the data.",
    ("cluster",),
)  # fmt: skip
_COVERAGE = gauge(
    "gputide_warehouse_coverage_ratio", "Windows with a row of those expected over the last day, 0-1.", ("cluster",)
)

_SILENT = gauge(
    "gputide_cluster_silent_since_timestamp_seconds",
    "Since when a cluster sends nothing (cluster.silent_seconds), epoch seconds; no series while it sends.",
    ("cluster",),
)

SAVINGS_FAMILIES: tuple[CataloguedFamily, ...] = (
    _PLAN_INFO, _PROMISED, _REALISED, _EXPECTED, _GIVEN_BACK, _PREDICTED, _HARM, _OVER_BUDGET, _EXPIRES, _STEP_CARDS,
    _STEP_MONEY, _HOURS, _HOURS_COST, _CARDS, _WORKLOAD_CARDS, _LIMIT, _DISTRUSTED, _AGE, _COVERAGE, _SILENT,
)  # fmt: skip
"""Every family that the savings reader shows."""

_Point = tuple[CataloguedFamily, tuple[str, ...], float]


class SavingsReader:
    """A `DeviceReader` whose readings are families alone.

    Args:
        off_peak_ratio: an hour is low up to this share of the workload's p95, 0-1 (`analyzer.off_peak_ratio`).
        clock: the time of the reading, UTC; for tests.
    """

    def __init__(
        self, views: Views, *, off_peak_ratio: float, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._views = views
        self._off_peak_ratio = off_peak_ratio
        self._clock = clock

    def read(self, deadline_seconds: float) -> Reading | None:
        """Everything that is known now; the analysis is made anew only when the warehouse holds something newer.

        Args:
            deadline_seconds: not used: an analysis can't be cut short, and the last figures are served meanwhile.

        Raises:
            NotEnoughData: nothing was analysed yet.
            Corrupt: the data folder can't be read.
        """
        del deadline_seconds
        points = list(self._silences())
        silent = {labels[0] for _, labels, _ in points}
        for cluster in self._views.fleet.clusters():
            try:
                points += self._points(cluster)
            except NotEnoughData:
                # Of a cluster that fell silent before the history begins nothing else can be said.
                if cluster not in silent:
                    raise
        return Reading(at=self._clock(), families=tuple(_families(points)))

    def close(self) -> None:
        """Nothing is held."""

    def _silences(self) -> Iterator[_Point]:
        for sighting in self._views.sightings.sightings():
            if sighting.silent_since is not None:
                yield _SILENT, (sighting.cluster,), sighting.silent_since.timestamp()
                yield _AGE, (sighting.cluster,), sighting.age_seconds

    def _points(self, cluster: str) -> Iterator[_Point]:
        profiles = self._views.fleet.profiles(cluster)
        fresh = self._views.fleet.freshness(cluster)
        entries = self._views.plans.plans(cluster)
        outcomes = self._views.outcomes.outcomes(cluster)
        if fresh.age_seconds is not None:
            yield _AGE, (cluster,), fresh.age_seconds
        yield _COVERAGE, (cluster,), fresh.coverage_ratio
        yield from _plan_points(cluster, entries, outcomes, fresh.now)
        for step in savings_steps(entries, outcomes):
            yield _STEP_CARDS, (cluster, step.name), float(step.cards)
            yield from _money(_STEP_MONEY, (cluster, step.name), step.amortised_per_week, self._views.money.currency)
        yield from _hour_points(cluster, self._views.money.week(cluster))
        yield from _profile_points(profiles, fresh.now, self._off_peak_ratio)


def _hour_points(cluster: str, week: WeekHours | None) -> Iterator[_Point]:
    if week is None:
        return
    for namespace, measures in (*week.tenants.items(), ("", week.rest)):
        for measure, hours in measures.items():
            labels = (cluster, namespace, measure.value)
            yield _HOURS, labels, hours.card_hours
            yield from _money(_HOURS_COST, labels, hours.cost, week.currency)


def _plan_points(
    cluster: str, entries: tuple[PlanEntry, ...], outcomes: tuple[Outcome, ...], now: datetime
) -> Iterator[_Point]:
    realised, expected = realised_of(entries, outcomes), expected_of(entries, outcomes)
    standing = {own.plan_id: own for _, own in standing_outcomes(entries, outcomes)}
    over = Counter(one.plan_id for one in harm_budgets(entries, outcomes) if one.standing is Standing.OVER_BUDGET)
    for entry in entries[:PLANS_MAX]:
        plan = entry.plan
        of_plan = (cluster, plan.plan_id)
        yield _PLAN_INFO, (*of_plan, _state_of(entry, now)), 1.0
        yield _PROMISED, of_plan, float(plan.totals.cards_freed)
        yield _PREDICTED, of_plan, plan.totals.predicted_violation_ratio
        yield _EXPIRES, of_plan, plan.expires_at.timestamp()
        own = standing.get(plan.plan_id)
        if own is None:
            continue
        yield _REALISED, of_plan, float(cards_in(realised[plan.plan_id]))
        yield _EXPECTED, of_plan, float(cards_in(expected[plan.plan_id]))
        yield _GIVEN_BACK, of_plan, float(own.given_back)
        yield _OVER_BUDGET, of_plan, float(over[plan.plan_id])
        observed = verdict_of(own).observed_ratio
        if observed is not None:
            yield _HARM, of_plan, observed


def _state_of(entry: PlanEntry, now: datetime) -> str:
    if entry.applied_stages:
        return "applied"
    if entry.undone_at is not None:
        return "undone"
    if now >= entry.plan.expires_at:
        return "expired"
    return "approved" if entry.approved_stages else "waiting"


def _profile_points(profiles: Profiles, now: datetime, off_peak_ratio: float) -> Iterator[_Point]:
    cluster = profiles.cluster
    cards = Counter((card.card_model, card.state.value) for card in profiles.cards)
    for (model, state), count in cards.items():
        yield _CARDS, (cluster, model, state), float(count)
    checks = Counter(
        check
        for profile in profiles.workloads
        for check in {finding.check for finding in profile.trust if finding.distrusts}
    )
    for check, count in checks.items():
        yield _DISTRUSTED, (cluster, check), float(count)
    for profile in profiles.workloads:
        of_workload = _labels_of(profile)
        yield _WORKLOAD_CARDS, (*of_workload, profile.state.value), float(len(profile.cards))
        if profile.compute.p95 is not None and _hour_of_week(now, profile.time_zone) in profile.off_peak_hours:
            yield _LIMIT, of_workload, off_peak_ratio * profile.compute.p95


def _labels_of(profile: Profile) -> tuple[str, str, str, str]:
    """A workload is written `namespace/Kind/name`; its name may hold no slash in Kubernetes, but does in a trace."""
    name = profile.workload.split("/", 2)[-1]
    return profile.cluster, profile.namespace, name, profile.workload_kind


def _hour_of_week(now: datetime, time_zone: str) -> int:
    local = now.astimezone(ZoneInfo(time_zone))
    return local.weekday() * 24 + local.hour


def _money(
    family: CataloguedFamily, labels: tuple[str, ...], amount: Decimal | None, currency: str
) -> Iterator[_Point]:
    if amount is not None:
        yield family, (*labels, currency), float(amount)


def _families(points: list[_Point]) -> Iterator[Family]:
    by_family: dict[str, dict[tuple[str, ...], float]] = {}
    for family, labels, value in points:
        by_family.setdefault(family.name, {})[labels] = value
    for family in SAVINGS_FAMILIES:
        found = by_family.get(family.name)
        if found:
            yield family.of(tuple(found), np.array(list(found.values()), np.float64))
