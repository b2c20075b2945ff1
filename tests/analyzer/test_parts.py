"""A fleet in parts: nothing that belongs together is parted, and the answer is that of the whole."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.node_reports import NodeReports, grid_reports
from analyzer.parts import history_part, inventory_parts
from analyzer.profile import profile_fleet, profile_parts
from fleet.inventory import Inventory
from fleet.profiles import Profiles
from fleet.settings.settings import AnalyzerSettings
from fleet.usage import History
from tests.recommender.second_fleet import second_fleet

FLEET = second_fleet(5, 60, 8, step_seconds=3600)
SETTINGS = AnalyzerSettings()


def shared(moves: list[tuple[int, int]]) -> Inventory:
    """The fleet's inventory with some grants moved onto other grants' cards."""
    grants = list(FLEET.inventory.grants)
    for mover, target in moves:
        grants[mover] = replace(grants[mover], card=grants[target].card, node=grants[target].node)
    return replace(FLEET.inventory, grants=tuple(grants))


@given(st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), max_size=30), st.integers(1, 70))
@settings(deadline=None)
def test_parts_hold_everything_once_and_whole(moves: list[tuple[int, int]], slices_max: int) -> None:
    inventory = shared(moves)
    parts = list(inventory_parts(inventory, slices_max))
    assert sorted((g.pod_id, g.card) for part in parts for g in part.grants) == sorted(
        (g.pod_id, g.card) for g in inventory.grants
    )
    assert sorted(card.card for part in parts for card in part.cards) == [card.card for card in inventory.cards]
    for name in ("workload_id", "card"):
        homes = [{getattr(grant, name) for grant in part.grants} for part in parts]
        assert sum(map(len, homes)) == len(set().union(*homes))
    assert all({grant.card for grant in part.grants} <= {card.card for card in part.cards} for part in parts)


def test_parts_are_no_larger_than_asked_for_unless_more_belongs_together() -> None:
    largest = max(len([g for g in FLEET.inventory.grants if g.workload == name]) for name in workloads(FLEET))
    parts = list(inventory_parts(FLEET.inventory, 10))
    assert len(parts) > 3
    assert max(len(part.grants) for part in parts) < 10 + largest


@pytest.mark.parametrize("slices_max", [1, 13, 1000])
def test_profiles_of_the_parts_are_those_of_the_whole(slices_max: int) -> None:
    now = FLEET.inventory.as_of
    whole = profile_fleet(FLEET, settings=SETTINGS, now=now)
    parts = (history_part(FLEET, part) for part in inventory_parts(FLEET.inventory, slices_max))
    assert profile_parts(parts, settings=SETTINGS, now=now) == whole


def without_cards() -> History:
    """The fleet where no source measures cards: every other node is looked at every third hour, some pods never."""
    nodes = {key.node for key in FLEET.slices.keys}
    slow = np.array([sorted(nodes).index(key.node) % 2 == 1 for key in FLEET.slices.keys])
    silent = np.arange(len(slow)) % 7 == 3
    left_out = slow[:, None] & (np.arange(FLEET.slices.steps) % 3 != 0)
    kept = np.flatnonzero(~silent)
    planes = {
        measure: np.where(left_out, np.nan, values).astype(np.float32)[kept]
        for measure, values in FLEET.slices.mean.items()
    }
    keys = tuple(FLEET.slices.keys[row] for row in kept)
    return replace(FLEET, slices=replace(FLEET.slices, keys=keys, mean=planes, peak=planes))


@pytest.mark.parametrize("slices_max", [1, 13, 25])
def test_how_nodes_report_does_not_depend_on_how_the_fleet_is_cut(slices_max: int) -> None:
    fleet, now = without_cards(), FLEET.inventory.as_of
    whole = profile_fleet(fleet, settings=SETTINGS, now=now)
    reports = grid_reports(fleet.slices, fleet.slices.steps, asks_alive=True)
    assert {*reports.row_stride.values()} == {1, 3}
    cut = list(inventory_parts(fleet.inventory, slices_max))

    def found(reports: NodeReports | None) -> Profiles:
        parts = (history_part(fleet, part) for part in cut)
        return profile_parts(parts, settings=SETTINGS, now=now, reports=reports)

    assert found(reports) == whole
    assert found(None) != whole


def test_a_part_is_asked_for_when_the_one_before_was_looked_at() -> None:
    made: list[int] = []

    def parts():
        for part in inventory_parts(FLEET.inventory, 20):
            made.append(len(part.grants))
            yield history_part(FLEET, part)

    found = profile_parts(parts(), settings=SETTINGS, now=FLEET.inventory.as_of)
    assert sum(made) == len(FLEET.inventory.grants)
    assert len(found.workloads) == len(workloads(FLEET))


def test_an_empty_inventory_is_one_empty_part() -> None:
    nothing = replace(FLEET.inventory, cards=(), nodes=(), grants=())
    assert list(inventory_parts(nothing, 5)) == [nothing]


def workloads(history: History) -> set[str]:
    """Names of the workloads."""
    return {grant.workload for grant in history.inventory.grants}
