"""Groups of neighbouring nodes, and the map of a very large fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.figures.card_map import NODES_MAX, SquareKind, fleet_groups, fleet_squares, plan_squares, square_kind
from dashboards.view_models.node_groups import GROUP_NODES_MAX, group_with, node_groups
from fleet.inventory import CardId, CardModelName
from fleet.profiles import CardProfile, Profiles
from tests.dashboards.embedded import make_plan, make_profiles

SMALL = make_profiles()


def card(node: str, model: str = "A", number: int = 0) -> CardProfile:
    return replace(SMALL.cards[0], card=CardId(f"{node}-{number}"), node=node, card_model=CardModelName(model))


@pytest.fixture(scope="module")
def large() -> Profiles:
    """Two cards on each of five thousand nodes."""
    cards = tuple(
        replace(SMALL.cards[number % len(SMALL.cards)], card=CardId(f"GPU-{number:06d}"), card_model=CardModelName("A"),
                node=f"rack{number // 80:03d}-{number // 2:05d}")
        for number in range(10_000)
    )  # fmt: skip
    return replace(SMALL, cards=cards)


def test_every_node_is_in_one_group_and_no_group_is_over_full() -> None:
    cards = [card(f"n-{number:04d}") for number in range(200)] + [card("odd", "B"), card("n-0001", "B")]
    groups = node_groups(cards)
    members = [(group.card_model, node) for group in groups for node in group.nodes]
    assert sorted(members) == sorted({(item.card_model, item.node) for item in cards})
    assert max(len(group.nodes) for group in groups) == GROUP_NODES_MAX


def test_groups_end_where_the_name_of_the_rack_changes() -> None:
    cards = [card(f"rack-{rack:02d}-{node:02d}") for rack in range(5) for node in range(20)]
    assert [group.nodes[0] for group in node_groups(cards)] == [f"rack-{rack:02d}-00" for rack in range(5)]
    assert {len(group.nodes) for group in node_groups(cards)} == {20}


def test_nodes_of_racks_that_are_small_share_a_group() -> None:
    cards = [card(f"rack-{rack:03d}-{node}") for rack in range(100) for node in range(2)]
    assert len(node_groups(cards)) == 13


def test_group_is_found_by_any_of_its_nodes_and_no_other() -> None:
    groups = node_groups([card(f"n-{number:04d}") for number in range(200)])
    assert group_with(groups, "n-0070") == groups[1]
    assert group_with(groups, "n-07") is None


def test_very_large_fleet_is_drawn_by_groups_and_each_group_by_card(large: Profiles) -> None:
    assert len({item.node for item in large.cards}) > NODES_MAX
    assert square_kind(large, None) is SquareKind.GROUP
    squares = fleet_squares(large)
    assert len(squares) < 200
    assert sum(square.cards for square in squares) == len(large.cards)
    group = group_with(fleet_groups(large), squares[3].key)
    assert group is not None
    assert square_kind(large, group) is SquareKind.CARD
    inside = fleet_squares(large, group)
    assert len(inside) == squares[3].cards
    assert {square.node for square in inside} == set(group.nodes)


def test_very_large_fleet_keeps_its_places_before_and_after_a_plan(large: Profiles) -> None:
    plan = replace(make_plan(SMALL), placement=())
    before, after = plan_squares(large, plan)
    assert [square.key for square in before] == [square.key for square in after]
    assert {square.state.value for square in after} == {"free"}
