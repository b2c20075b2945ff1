"""A team's report holds the team's alone; figures of the week, forecasts and budgets; the same data, the same bytes."""

import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dashboards.report.report import Edition, Report, make_report
from dashboards.report.table import report_csv
from dashboards.report.text import report_html, report_json, report_markdown
from dashboards.report.weeks import WeekFacts
from dashboards.tokens import MEASURE_COLOURS
from dashboards.view_models.tenants import tenants
from enforcer.record.verdict import verdict_of
from fleet.money.charges import Owner
from fleet.money.week_hours import WASTED, part_of
from fleet.profiles import HourMeasure
from fleet.words import Language
from tests.dashboards.embedded import CLUSTER, NOW, PRICES, make_cost_days, make_measured, make_profiles, make_views

PROFILES = make_profiles()
VIEWS, _ = make_views()
TEAM = PROFILES.workloads[0].namespace
OTHERS = {profile.namespace for profile in PROFILES.workloads} - {TEAM}
MEASURED = make_measured(PROFILES)


def _report(edition: Edition | None = None, past: tuple[WeekFacts, ...] = ()) -> Report:
    return make_report(
        PROFILES,
        VIEWS.plans.plans(CLUSTER),
        VIEWS.outcomes.outcomes(CLUSTER),
        VIEWS.outcomes.ledger(CLUSTER),
        now=NOW,
        prices=PRICES,
        past_weeks=past,
        edition=edition,
    )


def test_report_of_a_team_names_nobody_elses_workload() -> None:
    found = _report(Edition(team=TEAM, measured=MEASURED))
    assert found.top
    assert {row.owner for row in found.top} == {TEAM}
    assert [line.tenant.name for line in found.teams] == [TEAM]
    assert all(budget.workload.startswith(f"{TEAM}/") for budget in found.harm_budgets)
    text = report_html(found) + report_markdown(found) + report_json(found) + report_csv(found)
    assert [name for name in OTHERS if f"{name}/" in text] == []


def test_report_of_a_team_leaves_out_what_was_measured_of_the_cluster_alone() -> None:
    found = _report(Edition(team=TEAM))
    assert found.figures[0].value is None
    assert [step.name for step in found.funnel] == ["found", "accepted", "applied"]
    assert found.forecasts == ()


def test_table_of_teams_is_that_of_the_tenants_page() -> None:
    found = _report(Edition(measured=MEASURED))
    assert tuple(line.tenant for line in found.teams) == tenants(PROFILES, MEASURED.hours)
    assert {line.tenant.name: line.kwh for line in found.teams}[TEAM] == 7.5
    assert {line.kwh for line in found.teams if line.tenant.name != TEAM} == {None}


def test_unknown_is_said_and_a_measured_nought_is_a_nought() -> None:
    idle, low, energy, carbon = _report(Edition(measured=MEASURED)).detail_figures
    total = part_of(MEASURED.hours.total, WASTED).card_hours
    assert idle.value == Decimal(str(round(total, 1)))
    assert (low.value, energy.value, carbon.value) == (Decimal(0), Decimal("120.5"), None)
    page = report_html(_report(Edition(measured=MEASURED)))
    assert "known for 25 % of the card hours, PUE 1.3" in page
    assert "energy.grid_kg_co2_per_kwh is not set" in page
    nothing = _report()
    assert {figure.value for figure in nothing.detail_figures} == {None}
    assert '<td class="n">unknown</td>' in report_html(nothing)


def test_figures_of_the_detail_stand_beside_last_week_and_the_mean_of_known_weeks() -> None:
    week = _report(Edition(measured=MEASURED)).week
    past = tuple(
        replace(week, week_start=week.week_start - timedelta(days=7 * ago), kwh=kwh)
        for ago, kwh in ((1, 100.0), (2, None), (4, 200.0))
    )
    energy = _report(Edition(measured=MEASURED), past).detail_figures[2]
    assert (energy.last_week, energy.mean_four_weeks) == (Decimal(100), Decimal(150))


def test_every_measured_plan_stands_with_its_forecast() -> None:
    outcomes = VIEWS.outcomes.outcomes(CLUSTER)
    found = _report().forecasts
    assert [one.plan_id for one in found] == [one.plan_id for one in outcomes]
    assert found[0].cards_promised == outcomes[0].promised_cards_freed
    assert found[0].harm_observed == verdict_of(outcomes[0]).observed_ratio
    page = report_html(_report())
    assert all(one.plan_id in page for one in found)


def test_report_names_the_version_of_its_prices() -> None:
    assert PRICES.book.version in report_html(_report())


@pytest.mark.parametrize("language", list(Language))
def test_same_data_give_the_same_bytes(language: Language) -> None:
    edition = Edition(language=language, measured=MEASURED)
    for render in (report_html, report_markdown, report_csv, report_json):
        assert render(_report(edition)) == render(_report(edition))


def test_links_lead_to_the_web_app_only_where_its_address_is_set() -> None:
    found = _report(Edition(base_url="https://gputide.example/"))
    page = report_html(found)
    assert f'href="https://gputide.example/workloads?cluster={CLUSTER}&amp;w=' in page
    assert found.next_plan is not None
    assert f"/plan?cluster={CLUSTER}&amp;plan={found.next_plan.plan_id}" in page
    assert "<a " not in report_html(_report())


def test_quota_of_each_team_stands_beside_what_it_holds_and_unit_costs_are_never_invented() -> None:
    whole = _report(Edition(measured=MEASURED))
    assert {line.quota for line in whole.teams} == {None}
    assert "Unit cost" not in report_html(whole) + report_markdown(whole)
    units = VIEWS.money.unit_costs(CLUSTER)
    found = _report(Edition(measured=MEASURED, quotas=VIEWS.money.quotas(CLUSTER), units=units))
    quota = {line.tenant.name: line.quota for line in found.teams}["team-3"]
    assert quota is not None
    assert (quota.quota, quota.granted) == (400.0, 60.0)
    # A quota of framebuffer counts no cards.
    assert {line.tenant.name: line.quota for line in found.teams}["team-5"] is None
    for text in (report_html(found), report_markdown(found)):
        assert "340" in text
        # 300 for two thousand million tokens; of the requests nobody knows how many there were.
        assert "0.1500" in text
        assert "unknown" in text
    other = _report(Edition(team="team-5", quotas=VIEWS.money.quotas(CLUSTER), units=units))
    own = units[0].workload.startswith("team-5/")
    assert bool(other.units) is own


def test_the_letter_shows_the_fleet_day_by_day_in_proportion() -> None:
    days = make_cost_days(PROFILES)
    found = _report(Edition(days=days))
    assert [day.start for day in found.days] == list(days.starts)
    total = sum(one.card_hours for one in days.total().values())
    assert sum(hours for day in found.days for _, hours in day.card_hours) == pytest.approx(total)
    picture, _, _ = report_html(found).partition("</svg>")
    heights = [
        float(height)
        for colour in (MEASURE_COLOURS[HourMeasure.USED], MEASURE_COLOURS[HourMeasure.UNALLOCATED])
        for height in re.findall(rf'height="([\d.]+)" fill="{colour}"', picture)
        if float(height) != 10.0  # of the legend
    ]
    used = sum(day.card_hours[-1][1] for day in found.days) / total
    assert heights == pytest.approx([120 * used] * 3 + [120 * (1 - used)] * 3, abs=0.1)


def test_days_of_a_team_are_its_own() -> None:
    days = make_cost_days(PROFILES)
    found = _report(Edition(team=TEAM, days=days))
    own = days.of({Owner.NAMESPACE: TEAM}).total()
    assert sum(hours for day in found.days for _, hours in day.card_hours) == own[HourMeasure.USED].card_hours
    assert {measure for day in found.days for measure, _ in day.card_hours} == {HourMeasure.USED}
