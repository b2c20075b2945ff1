"""The weekly report and its four forms."""

import csv
import io
import json
import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from html.parser import HTMLParser

import openpyxl
import pytest

from dashboards.report.pictures import state_bar_svg
from dashboards.report.report import Edition, Report, make_report
from dashboards.report.table import report_csv, report_excel
from dashboards.report.text import report_html, report_json, report_lines, report_markdown
from dashboards.report.weeks import WeekFacts
from fleet.inventory import WorkloadId
from fleet.profiles import CardState, Profiles, WorkloadState
from fleet.words import Language, Words
from tests.dashboards.embedded import (
    CLUSTER,
    HOSTILE,
    NOW,
    PRICES,
    make_measured,
    make_profiles,
    make_views,
    tide_only,
)
from tests.enforcer.test_billed import a_part, bill

pytestmark = pytest.mark.long

PROFILES = make_profiles()


def _report(profiles: Profiles = PROFILES, *, past: tuple[WeekFacts, ...] = (), with_past: bool = True) -> Report:
    views, _ = make_views(with_past=with_past)
    return make_report(
        profiles,
        views.plans.plans(CLUSTER),
        views.outcomes.outcomes(CLUSTER),
        views.outcomes.ledger(CLUSTER),
        now=NOW,
        prices=PRICES,
        past_weeks=past,
        edition=Edition(measured=make_measured(profiles)),
    )


def _week(weeks_ago: int, cards: int) -> WeekFacts:
    this = _report().week
    return replace(this, week_start=this.week_start - timedelta(days=7 * weeks_ago), cards_freed=cards)


def test_headline_names_the_freed_cards_while_no_service_is_over_its_budget() -> None:
    expected = "246 cards freed and still free; the plan that waits for approval would free 226 more."
    assert _report().headline == expected


def test_headline_without_any_past_names_what_the_plan_would_free() -> None:
    assert _report(with_past=False).headline == "The plan that waits for approval would free 226 cards."


def test_first_report_has_no_last_week_and_no_mean() -> None:
    freed = _report().figures[0]
    assert (freed.last_week, freed.mean_four_weeks) == (None, None)


def test_mean_takes_the_four_weeks_before_and_skips_missing_ones() -> None:
    past = (_week(1, 200), _week(3, 100), _week(5, 999))
    freed = _report(past=past).figures[0]
    assert (freed.value, freed.last_week, freed.mean_four_weeks) == (Decimal(246), Decimal(200), Decimal(150))


def test_gap_of_a_week_is_not_filled_with_an_older_one() -> None:
    assert _report(past=(_week(2, 200),)).figures[0].last_week is None


def test_top_list_holds_trusted_waste_by_money() -> None:
    top = _report().top
    assert len(top) == 10
    money = [row.unused_cost or Decimal(0) for row in top]
    assert money == sorted(money, reverse=True)
    trusted = {profile.workload for profile in PROFILES.workloads if profile.is_trusted}
    assert {row.workload for row in top} <= trusted


def test_approval_command_names_the_waiting_plan_and_an_expired_plan_asks_for_a_new_one() -> None:
    waiting = _report().next_plan
    assert waiting is not None
    assert waiting.command == f"gputide plan approve --plan {waiting.plan_id[:12]}"
    views, _ = make_views()
    late = make_report(
        PROFILES, views.plans.plans(CLUSTER), (), (), now=NOW + timedelta(days=2), prices=PRICES
    ).next_plan
    assert late is not None
    assert late.is_expired
    assert late.command == "gputide plan make"


def test_plan_of_a_tide_alone_waits_for_its_own_approval_and_is_done_with_it() -> None:
    views, _ = make_views()
    newest = views.plans.plans(CLUSTER)[0]
    made = [
        make_report(PROFILES, (entry,), (), (), now=NOW, prices=PRICES).next_plan
        for entry in (tide_only(newest), tide_only(newest, 1))
    ]
    assert made[0] is not None
    assert made[0].command == f"gputide plan approve --plan {newest.plan.short_id} --stage 1"
    assert made[1] is None


def test_undone_plan_says_so_in_the_report() -> None:
    views, _ = make_views()
    report = make_report(
        PROFILES,
        views.plans.plans(CLUSTER),
        views.outcomes.outcomes(CLUSTER),
        views.outcomes.ledger(CLUSTER),
        now=NOW - timedelta(days=10),
        prices=PRICES,
    )
    assert any("It was undone on 2026-01-08" in item.went for item in report.done)


def test_json_is_of_its_schema_and_absent_is_null() -> None:
    content = json.loads(report_json(_report()))
    assert content["schema"] == "gputide.report/v1"
    assert content["figures"][0]["last_week"] is None
    assert content["created_at"].endswith("Z")
    assert sum(content["week"]["cards_by_state"].values()) == len(PROFILES.cards)


def test_tenant_names_are_harmless_in_every_form() -> None:
    owner = next(profile for profile in PROFILES.workloads if profile.workload.endswith(HOSTILE))
    name = WorkloadId(HOSTILE)
    card = max((c for c in PROFILES.cards if c.card_model == "NVIDIA A100-SXM4-80GB"), key=lambda c: c.card)
    hostile = replace(
        owner, workload=name, namespace=HOSTILE, cards=(card.card,) * 8, trust=(), state=WorkloadState.IDLE_HELD,
        compute=replace(owner.compute, p95=0.0),
    )  # fmt: skip
    cards = tuple(replace(one, workloads=(name,)) if one.card == card.card else one for one in PROFILES.cards)
    report = _report(replace(PROFILES, workloads=(hostile,), cards=cards))
    assert report.top[0].workload == name
    tags = _tags(report_html(report))
    assert "img" not in tags
    assert "script" not in tags
    markdown = report_markdown(report)
    assert "<img" not in markdown.replace("\\<", "")
    row = list(csv.reader(io.StringIO(report_csv(report))))[1]
    assert row[0] == "'" + HOSTILE
    cells = [cell.value for cell in list(openpyxl.load_workbook(io.BytesIO(report_excel(report))).active)[1]]
    assert cells[0] == "'" + HOSTILE
    assert f"{cells[5]:.2f}" == row[5]


def test_html_loads_nothing_from_anywhere() -> None:
    text = report_html(_report())
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in text


def test_bar_of_a_week_reads_in_grey_by_its_letters() -> None:
    text = report_html(_report())
    assert all(f">{letter} " in text for letter in "BLHF")
    facts = dict(_report().week.cards_by_state)
    assert f"H {facts[CardState.IDLE_HELD] / len(PROFILES.cards):.0%}" in text


def test_segment_of_a_week_is_as_wide_as_its_share_and_a_small_one_is_named_below() -> None:
    counts = {CardState.BUSY: 1100, CardState.LOW_USE: 300, CardState.IDLE_HELD: 1, CardState.UNTRUSTED: 4}
    week = replace(_report().week, cards_by_state=tuple(counts.items()))
    text = state_bar_svg((week,), Words(language=Language.EN))
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', text)]
    for width, count in zip(widths, counts.values(), strict=True):
        assert abs(width - 640 * count / 1405) < 6, width
        assert width > 1.5
    assert "H idle, held 0.1 %" in text
    assert "? untrusted 0.3 %" in text


def test_chat_gets_headline_and_figures_in_the_first_five_lines() -> None:
    first = report_markdown(_report(past=(_week(1, 200),))).splitlines()[:5]
    assert "246 cards freed" in first[2]
    assert "last week 200" in first[4]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.found.add(tag)


def _tags(text: str) -> set[str]:
    parser = _Tags()
    parser.feed(text)
    return parser.found


def test_report_says_one_line_of_the_bill_where_one_was_imported_and_a_teams_says_none() -> None:
    bills = (bill(a_part({"n-a": dict.fromkeys(range(1, 12), "70.01")})),)
    chinese = Edition(bills=bills, language=Language.ZH)
    made = make_report(PROFILES, (), (), (), now=NOW, prices=PRICES, edition=chinese)
    assert "账单上至今节省 €560.08" in made.bill
    assert made.bill in report_html(made)
    assert "€560.08" in report_markdown(made)
    assert "€560.08" in report_lines(made)[-1]
    team = replace(chinese, team=PROFILES.workloads[0].namespace)
    assert make_report(PROFILES, (), (), (), now=NOW, prices=PRICES, edition=team).bill == ""
