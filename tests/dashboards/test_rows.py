"""What tables, headlines and the search box show."""

from datetime import UTC, datetime, timedelta

import pytest

from dashboards.queries import Freshness
from dashboards.view_models.rows import (
    age_words,
    card_table,
    refusal_groups,
    search,
    stage_needs,
    state_sentence,
    state_shares,
)
from fleet.decisions import Need, Refusal
from fleet.inventory import WorkloadId
from fleet.profiles import Profiles, WorkloadState
from tests.dashboards.embedded import NOW, PRICES, make_plan, make_profiles, prices_of


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return make_profiles()


def test_state_bar_adds_up_to_every_card(profiles: Profiles) -> None:
    shares = state_shares(profiles)
    assert sum(share.cards for share in shares) == len(profiles.cards)
    assert sum(share.ratio for share in shares) == pytest.approx(1.0)


def test_fleet_without_prices_shows_no_money_rather_than_zero(profiles: Profiles) -> None:
    table = card_table(profiles, prices_of({}))
    assert {table.row(place)["price_per_week"] for place in range(len(table))} == {None}


def test_idle_held_cards_of_dearest_model_come_first(profiles: Profiles) -> None:
    first = card_table(profiles, PRICES).row(0)
    assert (first["state"], first["model"]) == ("idle_held", "NVIDIA A100-SXM4-80GB")


def test_search_finds_card_node_team_and_workload(profiles: Profiles) -> None:
    card = profiles.cards[10]
    assert ("card", "/") in {(hit.kind, hit.path) for hit in search(profiles, card.card.upper())}
    assert [hit.text for hit in search(profiles, card.node) if hit.kind == "node"] == [card.node]
    assert "team-16" in {hit.text for hit in search(profiles, "TEAM-16") if hit.kind == "team"}
    workload = profiles.workloads[99].workload
    assert search(profiles, workload)[0].query == (("w", workload),)


def test_search_for_nothing_finds_nothing(profiles: Profiles) -> None:
    assert search(profiles, "   ") == ()
    assert search(profiles, "no-such-thing") == ()


def test_refusals_are_grouped_by_reason_largest_first() -> None:
    refused = [
        Refusal(workload=WorkloadId(f"a/Deployment/{n}"), reason=reason)
        for n, reason in enumerate(["opt_out", "peak_clash", "peak_clash"])
    ]
    assert [(group.reason, len(group.workloads)) for group in refusal_groups(refused)] == [
        ("peak_clash", 2),
        ("opt_out", 1),
    ]


def test_idle_workload_says_since_when_and_how_sure(profiles: Profiles) -> None:
    idle = next(profile for profile in profiles.workloads if profile.state is WorkloadState.IDLE_HELD)
    sentence = state_sentence(idle, NOW)
    assert sentence.startswith("idle, held since 12 days; would change within a week with ")
    assert sentence.endswith(f"{(1 - idle.confidence) * 100:.0f} %")


def test_needs_of_a_stage_are_those_of_its_recommendations_only(profiles: Profiles) -> None:
    plan = make_plan(profiles)
    assert stage_needs(plan, plan.stages[0]) == ()
    assert stage_needs(plan, plan.stages[2]) == (Need.CORE_LIMIT, Need.FRAMEBUFFER_LIMIT)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (61, "1 min"), (3600, "1 h"), (86400, "24 h"), (12 * 86400, "12 days")]
)
def test_ages_are_written_for_the_eye(seconds: float, words: str) -> None:
    assert age_words(seconds) == words


@pytest.mark.parametrize(
    ("coverage", "age_seconds", "is_doubtful"),
    [(0.95, 60, False), (0.89, 60, True), (0.95, 121, True), (0.95, None, True), (0.9, 120, False)],
)
def test_data_is_amber_under_90_percent_or_after_two_intervals(
    coverage: float, age_seconds: float | None, is_doubtful: bool
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    newest = None if age_seconds is None else now - timedelta(seconds=age_seconds)
    fresh = Freshness(coverage_ratio=coverage, newest_at=newest, interval_seconds=60.0, now=now)
    assert fresh.is_doubtful is is_doubtful
