"""Places of squares on the card map, and the figures drawn from them."""

import json
from itertools import pairwise

import pytest

from dashboards.figures.card_map import CARDS_MAX, card_map_drawing, fleet_squares, lay_out, plan_squares
from dashboards.figures.figures import hour_of_week_figure, strips_figure
from fleet.profiles import CardState, HourOfWeek, Profiles
from tests.dashboards.embedded import CLUSTER, EmbeddedFleet, make_plan, make_profiles


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return make_profiles()


def test_every_card_has_one_square_and_no_two_squares_overlap(profiles: Profiles) -> None:
    card_map = lay_out(fleet_squares(profiles), 85)
    assert sorted(square.key for square in card_map.squares) == sorted(card.card for card in profiles.cards)
    rows: dict[float, list[float]] = {}
    for x, y in card_map.places:
        rows.setdefault(y, []).append(x)
    for xs in rows.values():
        ordered = sorted(xs)
        assert all(right - left >= 1 for left, right in pairwise(ordered))
        assert ordered[0] >= 0
        assert ordered[-1] + 1 <= card_map.columns
    tops = sorted(rows)
    assert all(below - above >= 1 for above, below in pairwise(tops))
    assert tops[-1] + 1 <= card_map.height


def test_drawing_says_of_every_square_where_it_stands_and_what_it_is(profiles: Profiles) -> None:
    card_map = lay_out(fleet_squares(profiles), 85)
    drawing = json.loads(json.dumps(card_map_drawing(card_map, square_px=10), allow_nan=False))
    squares = drawing["squares"]
    cards = {card.card: card for card in profiles.cards}
    for place, key in enumerate(squares["key"]):
        card = cards[key]
        assert (squares["x"][place], squares["y"][place]) == pytest.approx(card_map.places[place], abs=0.01)
        assert drawing["states"][squares["state"][place]] == card.state.value.replace("_", "-")
        assert squares["fill"][place] == (None if card.compute_p95 is None else round(100 * card.compute_p95))
        assert squares["text"][place].startswith(f"{card.node}\n")


def test_square_keeps_its_place_before_and_after_a_plan(profiles: Profiles) -> None:
    before, after = plan_squares(profiles, make_plan(profiles))
    assert [square.key for square in before] == [square.key for square in after]
    assert lay_out(before, 60).places == lay_out(after, 60).places


def test_freed_card_is_an_empty_frame_and_only_receivers_are_outlined(profiles: Profiles) -> None:
    plan = make_plan(profiles)
    _, after = plan_squares(profiles, plan)
    placed = {place.card for place in plan.placement}
    holders = {card.card: set(card.workloads) for card in profiles.cards}
    receivers = {p.card for p in plan.placement if {s.workload for s in p.slices} - holders[p.card]}
    assert {square.key for square in after if square.state is not CardState.FREE} == placed
    assert {square.key for square in after if square.is_outlined} == receivers
    assert receivers


def test_large_fleet_is_drawn_by_node(profiles: Profiles) -> None:
    large = make_profiles(scale=3)
    assert len(large.cards) > CARDS_MAX
    squares = fleet_squares(large)
    assert {square.key for square in squares} == {card.node for card in large.cards}


def test_figures_hold_no_nan(profiles: Profiles) -> None:
    fleet = EmbeddedFleet(profiles)
    for profile in profiles.workloads[:20]:
        history = fleet.history(CLUSTER, profile.workload, 168)
        assert history is not None
        json.dumps(strips_figure(history), allow_nan=False)


def test_request_rate_has_a_strip_only_where_a_server_exports_it(profiles: Profiles) -> None:
    fleet = EmbeddedFleet(profiles)
    strips = {}
    for has_rate in (True, False):
        chosen = next(item for item in profiles.workloads if (item.request_rate is not None) is has_rate)
        history = fleet.history(CLUSTER, chosen.workload, 24)
        assert history is not None
        strips[has_rate] = [key for key in strips_figure(history)["layout"] if key.startswith("yaxis")]
    assert len(strips[True]) == len(strips[False]) + 1


def test_off_peak_outline_runs_around_the_hours_and_not_through_them() -> None:
    week = HourOfWeek(p50=(0.1,) * 168, p95=(0.2,) * 168, max=(0.3,) * 168)
    lone = hour_of_week_figure(week, [24])["data"][1]
    assert len([x for x in lone["x"] if x is None]) == 4
    block = hour_of_week_figure(week, [24, 25, 48, 49])["data"][1]
    assert len([x for x in block["x"] if x is None]) == 8


def test_hour_that_was_never_seen_stays_empty() -> None:
    values = (None, *(0.2,) * 167)
    heat = hour_of_week_figure(HourOfWeek(p50=values, p95=values, max=values), [])["data"][0]
    assert heat["z"][0][0] is None
    assert "not seen" in heat["text"][0][0]
