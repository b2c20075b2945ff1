"""What there is to tell of a fleet with plans, outcomes and a ledger."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from dashboards.notify.message import Message
from dashboards.notify.notices import Telling, budget_notices, notices, report_notice, team_report_notice
from dashboards.notify.team import Team
from dashboards.queries import LedgerEntry, PlanEntry, Views
from dashboards.report.report import Edition, make_report
from fleet.outcomes import Outcome
from fleet.settings.notify import NoticeTopic
from fleet.words import Language
from tests.dashboards.embedded import CLUSTER, NOW, make_measured, make_views, tide_only

URL = "https://gputide.example/"


@pytest.fixture(scope="module")
def views() -> Views:
    """Make the embedded fleet, which no test here changes."""
    return make_views()[0]


def told(views: Views, **more: object) -> tuple[Message, ...]:
    """Return the notices of the embedded fleet."""
    given = {
        "entries": views.plans.plans(CLUSTER),
        "outcomes": views.outcomes.outcomes(CLUSTER),
        "ledger": views.outcomes.ledger(CLUSTER),
        **more,
    }
    return notices(
        given["entries"], given["outcomes"], given["ledger"], now=NOW, since=NOW - timedelta(days=60),  # type: ignore[arg-type]
        telling=given.get("telling", Telling(base_url=URL)),  # type: ignore[arg-type]
    )  # fmt: skip


def team(namespace: str) -> Team:
    """Return a team of a namespace."""
    return Team(name="search", namespaces=(namespace,), workloads=frozenset(), channels=("search",))


def test_a_plan_that_waits_is_told_with_its_link_until_somebody_decides(views: Views) -> None:
    newest = views.plans.plans(CLUSTER)[0]
    (waiting,) = [one for one in told(views) if one.topic is NoticeTopic.PLAN]
    assert waiting.key == f"plan-waits:{newest.plan.plan_id}"
    assert waiting.link == f"{URL}plan?cluster={CLUSTER}&plan={newest.plan.plan_id}"
    assert waiting.namespaces
    approved = replace(newest, approved_stages=(1,))
    by_hand = replace(newest, plan=replace(newest.plan, stages=()))
    for one in (approved, by_hand):
        assert not [message for message in told(views, entries=(one,)) if message.topic is NoticeTopic.PLAN]


def test_a_tide_waits_for_a_yes_of_its_own_and_other_stages_for_theirs(views: Views) -> None:
    def waits(entry: PlanEntry) -> list[str]:
        return [one.lines[-1] for one in told(views, entries=(entry,)) if one.topic is NoticeTopic.PLAN]

    newest = views.plans.plans(CLUSTER)[0]
    assert waits(tide_only(newest)) == [f"gputide plan approve --plan {newest.plan.short_id} --stage 1"]
    assert waits(tide_only(newest, 1)) == []
    tide = tide_only(newest).plan
    last = replace(tide.stages[0], stage=9)
    plan = replace(
        newest.plan, stages=(*newest.plan.stages, last),
        recommendations=(*newest.plan.recommendations, *tide.recommendations),
    )  # fmt: skip
    both = replace(newest, plan=plan, approved_stages=(9,), applied_stages=())
    assert waits(both) == [f"gputide plan approve --plan {newest.plan.short_id}"]
    assert waits(replace(both, approved_stages=(1,))) == []


def test_an_expired_plan_is_not_told(views: Views) -> None:
    entry = views.plans.plans(CLUSTER)[0]
    old = replace(entry, plan=replace(entry.plan, expires_at=NOW))
    assert not [one for one in told(views, entries=(old,)) if one.topic is NoticeTopic.PLAN]


def test_service_over_its_budget_leads_the_message_though_cards_are_missing_as_well(views: Views) -> None:
    outcome = views.outcomes.outcomes(CLUSTER)[0]
    entry = next(one for one in views.plans.plans(CLUSTER) if one.plan.plan_id == outcome.plan_id)
    worst = replace(outcome.workloads[0], violation_ratio=0.02)
    short = replace(outcome, is_final=True, promised_cards_freed=10, realised_cards_freed=7)
    harmed = replace(short, workloads=(worst, *outcome.workloads[1:]))

    def harms(bad: Outcome) -> list[Message]:
        found = told(views, entries=(replace(entry, undone_at=None),), outcomes=(bad,), ledger=())
        return [one for one in found if one.topic is NoticeTopic.HARM]

    (message,) = harms(harmed)
    assert (message.key, message.leads) == (f"plan-harms:{outcome.plan_id}", True)
    assert message.title.startswith(f"{CLUSTER}: Harm above plan: 1 of 12 services exceeded its budget")
    assert "7 of 10 promised cards were freed" in message.lines[0]
    assert message.lines[1:] == (f"{worst.workload}: 2.00 %", f"gputide undo --plan {outcome.plan_id[:12]}")
    (message,) = harms(short)
    assert (message.key, message.leads) == (f"plan-saves-less:{outcome.plan_id}", False)
    assert message.title.startswith(f"{CLUSTER}: 7 of 10 promised cards were freed. No more harm than predicted")
    assert not harms(replace(short, realised_cards_freed=8))


def test_what_was_taken_back_is_told_and_what_was_applied_is_not(views: Views) -> None:
    plan = views.plans.plans(CLUSTER)[0].plan
    lines = tuple(
        LedgerEntry(
            at=NOW - timedelta(hours=1),
            actor="anna",
            action=action,
            plan_id=plan.plan_id,
            subject="stage 1",
            detail="x",
        )
        for action in ("applied", "undone", "approved", "restored")
    )
    found = [one for one in told(views, outcomes=(), ledger=lines) if one.topic is NoticeTopic.HARM]
    assert sorted(one.title.rpartition(": ")[2] for one in found) == ["restored", "undone"]


def test_the_report_goes_in_five_lines_and_to_a_team_with_its_own_workloads(views: Views) -> None:
    profiles = views.fleet.profiles(CLUSTER)
    report = make_report(
        profiles, views.plans.plans(CLUSTER), views.outcomes.outcomes(CLUSTER), views.outcomes.ledger(CLUSTER),
        now=NOW, prices=views.money.prices(CLUSTER), top=1000, edition=Edition(measured=make_measured(profiles)),
    )  # fmt: skip
    whole = report_notice(report, base_url=None)
    assert whole.lines[0] == report.headline
    assert 4 <= len(whole.lines) <= 5
    assert whole.link is None
    owner = report.top[0].owner
    mine = team_report_notice(report, team(owner), base_url=URL)
    assert mine is not None
    assert mine.namespaces == (owner,)
    rows = [row for row in report.top if row.owner == owner]
    assert len(mine.lines) == 1 + len(rows)
    assert f"{sum(row.cards for row in rows)} card" in mine.lines[0]
    assert team_report_notice(report, team("nobody-*"), base_url=URL) is None


def test_a_team_is_told_its_own_totals_and_no_name_of_another(views: Views) -> None:
    plan = views.plans.plans(CLUSTER)[0].plan
    own = [item for item in plan.recommendations if item.workloads[0].startswith("team-3/")]
    assert 0 < len(own) < len(plan.recommendations)
    ledger = (
        LedgerEntry(
            at=NOW - timedelta(hours=1), actor="anna", action="taken back", plan_id=plan.plan_id, subject="stage 1",
            detail=f"{own[0].workloads[0]} and team-9/Deployment/secret restarted",
        ),
    )  # fmt: skip
    found = told(views, ledger=ledger, telling=Telling(base_url=URL, team=team("team-3")))
    waiting = next(one for one in found if one.topic is NoticeTopic.PLAN)
    cards = sum(not card.is_spare for item in own for card in item.freed)
    assert waiting.title == f"{CLUSTER}: a plan that frees {cards} cards of yours waits for approval"
    assert set(waiting.namespaces) == {"team-3"}
    text = " ".join(line for one in found for line in (one.title, *one.lines))
    assert "team-9" not in text
    assert f"{plan.totals.moves:,} moves" not in text
    assert not [one for one in found if one.key.startswith("plan-saves-less")]
    assert not told(views, telling=Telling(team=team("nobody")))


def test_budgets_are_told_when_nearly_spent_spent_or_foretold_to_be_and_to_their_team_alone(views: Views) -> None:
    def of(telling: Telling) -> list[Message]:
        statuses = views.money.budgets(CLUSTER)
        return list(budget_notices(statuses, cluster=CLUSTER, currency="CNY", now=NOW, ratio=0.8, telling=telling))

    states = {one.key.rsplit(":", 1)[1]: one for one in of(Telling(base_url=URL))}
    assert set(states) == {"over", "forecast_over"}
    assert states["over"].lines[0].startswith("¥ 1.2k of ¥ 1.0k spent (120 %)")
    assert states["over"].topic is NoticeTopic.BUDGET
    assert [one.namespaces for one in of(Telling(team=team("team-5")))] == [("team-5",)]
    assert of(Telling(language=Language.ZH))[0].title == f"{CLUSTER}：命名空间 team-3 已超出预算"
    near = replace(views.money.budgets(CLUSTER)[2], spent=Decimal(800))
    (message,) = budget_notices(
        [near], cluster=CLUSTER, currency="CNY", now=NOW, ratio=0.8, telling=Telling()
    )  # fmt: skip
    assert "nearly spent" in message.title
    assert not budget_notices([near], cluster=CLUSTER, currency="CNY", now=NOW, ratio=0.81, telling=Telling())


def test_messages_speak_chinese_where_it_is_set(views: Views) -> None:
    found = told(views, telling=Telling(base_url=URL, language=Language.ZH))
    assert found
    for message in found:
        assert all(re.search("[\u4e00-\u9fff]", text) for text in (message.title, message.link_text))
        # What is left of Latin letters are names, codes and commands.
        assert not re.search(r"\b(the|of|and|waits|harm|freed|predicted)\b", message.title)
