"""Report, pages, messages and command line say the same of a plan: harm first iff a service is over its budget."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.access.namespace_cut import namespace_of
from dashboards.access.sign_in import Ways
from dashboards.address import read_address
from dashboards.notify.digest import posts
from dashboards.notify.notices import Telling, notices
from dashboards.notify.team import Team
from dashboards.pages.frame import verdict_banner
from dashboards.pages.savings import layout
from dashboards.queries import PlanEntry
from dashboards.report.report import Edition, Report, make_report
from dashboards.report.text import report_html, report_json, report_lines, report_markdown
from dashboards.view_models.savings_series import SavingsReader
from dashboards.words.advice import headline_words, verdict_words
from dashboards.words.reading import READING
from enforcer.record.harm import harm_budgets, leading_verdict
from enforcer.record.savings import savings_steps
from enforcer.record.verdict import Standing, standing_of, verdict_of
from fleet.documents import document
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome, WorkloadOutcome
from fleet.settings.notify import NoticeTopic, NotifySettings
from fleet.units import format_percent, format_plan_id
from fleet.words import Language
from gputide.answers.plan import outcome_answer
from tests.dashboards.access.keys import HOST, an_app
from tests.dashboards.embedded import CLUSTER, NOW, PRICES, make_past, make_plan, make_profiles, make_views

PROFILES = make_profiles()
PLAN = make_plan(PROFILES)
ENTRY, OUTCOME, LEDGER = list(make_past(PROFILES, PLAN))[-1]
BUDGET = 0.01
LEADS = {Language.EN: "Harm above plan: ", Language.ZH: "损害超出方案："}

SERVICES = st.lists(st.tuples(st.none() | st.floats(0.0, 0.05), st.integers(0, 1000)), min_size=1, max_size=5)


def an_outcome(services: list[tuple[float | None, int]], *, is_final: bool = True) -> Outcome:
    return replace(
        OUTCOME,
        measured_at=NOW - timedelta(hours=1),
        is_final=is_final,
        harm_budget_ratio=BUDGET,
        workloads=tuple(
            WorkloadOutcome(
                workload=profile.workload,
                predicted_violation_ratio=0.001,
                violation_ratio=ratio,
                active_steps=windows,
                cause="contention",
            )
            for profile, (ratio, windows) in zip(PROFILES.workloads, services, strict=False)
        ),
    )


def a_report(outcome: Outcome, language: Language = Language.EN, entry: PlanEntry = ENTRY) -> Report:
    return make_report(
        PROFILES, [entry], [outcome], LEDGER, now=NOW, prices=PRICES, edition=Edition(language=language)
    )  # fmt: skip


def text_of(part: object) -> str:
    """What a part of a page shows."""
    if isinstance(part, list | tuple):
        return "".join(map(text_of, part))
    return part if isinstance(part, str) else text_of(getattr(part, "children", None) or "")


@settings(max_examples=60, deadline=None)
@given(
    services=SERVICES,
    is_final=st.booleans(),
    language=st.sampled_from(Language),
)
def test_everything_that_speaks_of_a_plan_leads_with_harm_iff_a_service_is_over_its_budget(
    services: list[tuple[float | None, int]], is_final: bool, language: Language
) -> None:
    outcome = an_outcome(services, is_final=is_final)
    is_harmed = any(standing_of(one, BUDGET) is Standing.OVER_BUDGET for one in outcome.workloads)
    verdict = verdict_of(outcome)
    assert leading_verdict([ENTRY], [outcome]) == verdict
    assert verdict.is_harmed is is_harmed
    said = headline_words(verdict, language).removesuffix("。")
    assert said.startswith(LEADS[language]) is is_harmed
    # Report, in text and as lines of mail and chat.
    report = a_report(outcome, language)
    assert report.headline.startswith(said) is is_harmed
    assert report_lines(report)[1] == report.headline
    assert report.verdict == verdict
    # Banner of the pages.
    token = READING.set(language)
    try:
        banner = verdict_banner(verdict, read_address("/savings", f"?cluster={CLUSTER}"))
    finally:
        READING.reset(token)
    assert text_of(banner).startswith(said)
    assert (banner.role, "failed" in banner.className) == ("alert" if is_harmed else "status", is_harmed)
    # Messages.
    telling = Telling(language=language)
    found = notices([ENTRY], [outcome], (), now=NOW, since=NOW - timedelta(days=1), telling=telling)
    harms = [one for one in found if one.topic is NoticeTopic.HARM]
    assert [one.leads for one in harms] == [True] * is_harmed
    assert all(said in one.title for one in harms)
    # Command line.
    answer = outcome_answer(outcome, verdict, "CNY")
    assert answer.headline[0].startswith(LEADS[Language.EN]) is is_harmed
    assert (answer.listings[0].title == "Most harmed services") is is_harmed


@settings(max_examples=30, deadline=None)
@given(newer=SERVICES, older=SERVICES)
def test_of_two_plans_everything_leads_with_what_verify_says_of_the_one_with_more_services_over_budget(
    newer: list[tuple[float | None, int]], older: list[tuple[float | None, int]]
) -> None:
    other = replace(ENTRY, plan=replace(ENTRY.plan, plan_id="0ld"))
    first = an_outcome(newer)
    second = replace(an_outcome(older), plan_id="0ld")
    entries, outcomes = [ENTRY, other], [first, second]
    budgets = harm_budgets(entries, outcomes)
    assert len({one.workload for one in budgets}) == len(budgets) == max(len(newer), len(older))
    over = [sum(one.standing is Standing.OVER_BUDGET and one.plan_id == plan.plan_id for one in budgets)
            for plan in outcomes]  # fmt: skip
    verdict = leading_verdict(entries, outcomes)
    assert verdict == verdict_of(second if over[1] > over[0] else first)
    # Report.
    report = make_report(PROFILES, entries, outcomes, LEDGER, now=NOW, prices=PRICES)
    assert report.verdict == verdict
    assert report.headline.startswith(headline_words(verdict, Language.EN)) is verdict.is_harmed
    # Messages: one for each plan with a service over budget, in the words of verify.
    news = notices(entries, outcomes, (), now=NOW, since=NOW - timedelta(days=1), telling=Telling())
    harms = [one.title for one in news if one.topic is NoticeTopic.HARM]
    expected = [
        headline_words(verdict_of(one), Language.EN) for one, count in zip(outcomes, over, strict=True) if count
    ]
    assert len(harms) == len(expected)
    assert all(any(said in title for title in harms) for said in expected)


def test_forty_harmed_services_of_an_older_plan_lead_before_one_of_the_newest() -> None:
    other = replace(ENTRY, plan=replace(ENTRY.plan, plan_id="0ld"))
    newest = an_outcome([(0.02, 1000)])
    item = newest.workloads[0]
    forty = tuple(replace(item, workload=WorkloadId(f"web/Deployment/s{n}"), violation_ratio=0.26) for n in range(40))
    older = replace(newest, plan_id="0ld", workloads=forty)
    report = make_report(PROFILES, [ENTRY, other], [newest, older], LEDGER, now=NOW, prices=PRICES)
    assert report.headline.startswith("Harm above plan: 40 of 40 services exceeded their budget (26.00 % observed")


def test_report_of_a_harmed_plan_does_not_open_with_its_saving() -> None:
    outcome = an_outcome([(0.0214, 1000), (0.0, 1000)], is_final=False)
    report = a_report(replace(outcome, promised_violation_ratio=0.005))
    expected = "Harm above plan: 1 of 2 services exceeded its budget (1.07 % observed, 0.50 % predicted). 93 cards"
    assert report.headline.startswith(expected)
    assert f'<h1 class="over">{report.headline}' in report_html(report)
    assert "Harm above plan: 1 of 2 services" in report_markdown(report).splitlines()[2].replace("\\", "")


@pytest.mark.parametrize("services", [
    [(0.02, 1000), (0.2, 60), (1 / 21, 21), (0.001, 5000)],  # two over budget, one not decided yet
    [(0.02, 1000), (0.0, 5000)],
    [(0.001, 5000), (0.0, 5000)],
    [(1 / 21, 21)],
])  # fmt: skip
def test_one_recorded_outcome_has_the_same_counts_rates_and_words_everywhere(
    services: list[tuple[float | None, int]],
) -> None:
    outcome = an_outcome(services)
    views, cluster = make_views(with_past=False)
    cluster.remember(ENTRY, outcome, LEDGER)
    verdict = verdict_of(outcome)
    said, lead = verdict_words(verdict, Language.EN), headline_words(verdict, Language.EN)
    observed = "–" if verdict.observed_ratio is None else format_percent(verdict.observed_ratio, digits=2)
    over = {one.workload: format_percent(one.violation_ratio or 0.0, digits=2) for one in verdict.over_budget}
    # Command line and API.
    answer = outcome_answer(outcome, verdict, "CNY")
    assert answer.headline[0] == said
    amounts = {row[0]: row[1:] for listing in answer.listings for row in listing.rows}
    assert amounts["harm"] == (format_percent(verdict.predicted_ratio, digits=2), observed)
    listed = {row[0]: row[2] for listing in answer.listings for row in listing.rows if "over budget" in row}
    assert listed == over
    client = an_app(views, Ways(operator="mei"))
    given = client.get(f"/api/v1/clusters/{CLUSTER}/outcomes", headers=HOST).get_json()
    (served,) = given["outcomes"]
    steps = savings_steps(views.plans.plans(CLUSTER), views.outcomes.outcomes(CLUSTER))
    assert {step["name"]: step["cards"] for step in given["savings"]} == {step.name: step.cards for step in steps}
    assert served == json.loads(json.dumps(answer.document))
    judged = served["verdict"]
    assert (judged["text"], judged["observed_ratio"], len(judged["over_budget"])) == (
        said, verdict.observed_ratio, len(over)
    )  # fmt: skip
    # Page.
    page = text_of(layout(views, read_address("/savings", f"?cluster={CLUSTER}"), PROFILES))
    assert lead in page
    assert said.removeprefix(lead).strip() in page
    assert f"{observed}harm of changed services" in page
    assert page.count("▲") == len(over)
    # Grafana's series.
    reading = SavingsReader(views, off_peak_ratio=0.2, clock=lambda: NOW).read(1.0)
    assert reading is not None
    series = {family.name: list(family.values) for family in reading.families}
    assert series["gputide_plan_services_over_harm_budget"] == [len(over)]
    assert series.get("gputide_plan_violation_ratio", [None]) == [verdict.observed_ratio]
    # Message.
    news = notices([ENTRY], [outcome], (), now=NOW, since=NOW - timedelta(days=1), telling=Telling())
    harms = [one for one in news if one.topic is NoticeTopic.HARM]
    assert len(harms) == bool(over)
    for message in harms:
        assert message.title.endswith(lead)
        assert message.lines[0] == said.removeprefix(lead).strip()
        assert message.lines[1:-1] == tuple(f"{name}: {ratio}" for name, ratio in over.items())
    # Report, whole and of each team.
    _agrees(a_report(outcome), outcome, None)
    for team in {namespace_of(one.workload) for one in outcome.workloads}:
        edition = Edition(team=team)
        report = make_report(PROFILES, [ENTRY], [outcome], LEDGER, now=NOW, prices=PRICES, edition=edition)
        _agrees(report, outcome, team)


def _agrees(report: Report, outcome: Outcome, team: str | None) -> None:
    """A report, as record, JSON, HTML and Markdown, has the counts, rates and words of the verdict on its services."""
    part = None if team is None else lambda workload: namespace_of(workload) == team
    verdict = verdict_of(outcome, part=part)
    lead = headline_words(verdict, Language.EN)
    assert report.verdict == verdict
    assert report.headline.startswith(lead.removesuffix(".")) is verdict.is_harmed
    assert report.week.violation_ratio == verdict.observed_ratio
    assert {one.workload for one in report.harm_budgets if one.standing is Standing.OVER_BUDGET} == {
        one.workload for one in verdict.over_budget
    }
    content = json.loads(report_json(report))
    assert content["verdict"] == document(verdict)
    observed = "–" if verdict.observed_ratio is None else format_percent(verdict.observed_ratio, digits=2)
    page, markdown = report_html(report), report_markdown(report)
    assert f"{observed} harm of changed services" in markdown.replace("**", "")
    assert report.headline in page
    for one in verdict.over_budget:
        for text in (page, markdown.replace("\\", "")):
            assert one.workload in text
            assert format_percent(one.violation_ratio or 0.0, digits=2) in text


def test_team_hears_of_harm_by_advice_that_it_shares_with_another_team() -> None:
    outcome = an_outcome([(0.02, 1000)])
    (harmed,) = outcome.workloads
    team = namespace_of(harmed.workload)
    shared = tuple(
        replace(item, workloads=(harmed.workload, WorkloadId("elsewhere/Deployment/other")))
        for item in ENTRY.plan.recommendations[:1]
    )
    entry = replace(ENTRY, plan=replace(ENTRY.plan, recommendations=shared, refused=()))
    report = make_report(
        PROFILES, [entry], [outcome], LEDGER, now=NOW, prices=PRICES, edition=Edition(team=team)
    )  # fmt: skip
    assert report.headline.startswith("Harm above plan: 1 of 1 service exceeded its budget")
    telling = Telling(team=Team(name=team, namespaces=(team,), workloads=frozenset(), channels=()))
    news = notices([entry], [outcome], (), now=NOW, since=NOW - timedelta(days=1), telling=telling)
    (message,) = [one for one in news if one.topic is NoticeTopic.HARM]
    assert (message.namespaces, message.workloads) == ((team,), (harmed.workload,))
    assert "elsewhere" not in "".join((message.title, *message.lines, report_html(report)))


def test_harm_on_the_savings_page_is_of_the_plan_that_its_banner_names() -> None:
    views, cluster = make_views(with_past=False)
    older = replace(ENTRY, plan=replace(ENTRY.plan, plan_id="0ld"))
    undone = replace(ENTRY, applied_stages=(), undone_at=NOW - timedelta(hours=2))
    harmed = replace(an_outcome([(0.05, 1000)]), plan_id="0ld", since=OUTCOME.since - timedelta(days=9))
    cluster.remember(older, harmed, ())
    cluster.remember(undone, an_outcome([(0.0, 5000)]), LEDGER)
    page = text_of(layout(views, read_address("/savings", f"?cluster={CLUSTER}"), PROFILES))
    assert "Harm above plan: 1 of 1 service exceeded its budget (5.00 % observed" in page
    assert "5.00 %harm of changed services" in page


def test_undone_plan_leads_nothing() -> None:
    outcome = an_outcome([(0.02, 1000)])
    undone = replace(ENTRY, applied_stages=(), undone_at=NOW - timedelta(hours=2))
    assert leading_verdict([undone], [outcome]) is None
    assert "Harm above plan" not in a_report(outcome, entry=undone).headline


def test_rate_of_undecided_is_shown_nowhere() -> None:
    outcome = an_outcome([(1 / 21, 21)])
    (budget,) = harm_budgets([ENTRY], [outcome])
    assert (budget.standing, budget.violation_ratio, budget.burn_ratio) == (Standing.UNDECIDED, None, None)
    report = a_report(outcome)
    for text in (report_html(report), report_markdown(report)):
        assert "not decided yet" in text
        assert "4.76 %" not in text
        assert "476 %" not in text
    views, cluster = make_views(with_past=False)
    cluster.remember(ENTRY, outcome, LEDGER)
    page = text_of(layout(views, read_address("/savings", f"?cluster={CLUSTER}"), PROFILES))
    assert page.count("not decided yet") >= 3
    assert "4.76 %" not in page


def test_digest_is_titled_by_the_harm_in_it_and_opens_with_it() -> None:
    outcome = an_outcome([(0.02, 1000)])
    undone = replace(LEDGER[0], action="undone", at=NOW - timedelta(minutes=5))
    news = notices([ENTRY], [outcome], [undone], now=NOW, since=NOW - timedelta(days=1), telling=Telling())
    assert len(news) == 2
    channel = {"kind": "slack", "url_file": "/run/secrets/url"}
    chosen = NotifySettings.model_validate({"everything": ["ops"], "channels": {"ops": channel}})
    (post,) = posts(lambda _team: news, (), chosen, (), now=NOW, time_zone="UTC")
    assert "Harm above plan: 1 of 1 service exceeded" in post.message.title
    assert post.message.title.endswith("1 more news of gputide")
    assert post.message.lines[0].startswith(f"{CLUSTER}: Harm above plan")


@pytest.mark.parametrize("language", list(Language))
def test_banner_reads_in_the_readers_language(language: Language) -> None:
    verdict = verdict_of(an_outcome([(0.02, 1000), (1 / 21, 21)], is_final=False))
    token = READING.set(language)
    try:
        text = text_of(verdict_banner(verdict, read_address("/plan", f"?cluster={CLUSTER}"), verdict.plan_id))
    finally:
        READING.reset(token)
    english_words = {"Harm", "exceeded", "budget", "Worst:", "Measured", "windows", "judge:"}
    assert (bool(english_words & set(text.split())) is False) is (language is Language.ZH)


@pytest.mark.parametrize(("shown", "is_linked"), [(ENTRY.plan.plan_id, False), (PLAN.plan_id, True), (None, True)])
def test_banner_links_the_plan_unless_the_page_shows_it(shown: str | None, is_linked: bool) -> None:
    verdict = verdict_of(an_outcome([(0.02, 1000)]))
    text = text_of(verdict_banner(verdict, read_address("/plan", f"?cluster={CLUSTER}"), shown))
    assert (f"Review plan {format_plan_id(verdict.plan_id)}" in text) is is_linked
