"""Very large fleets: analysed in parts and planned by the hour, with the same profiles."""

from analyzer.profile import profile_fleet
from fleet.schema import Measure
from fleet.settings.settings import Settings
from gputide.container import history
from tests.recommender.second_fleet import second_fleet

FLEET = second_fleet(6, 40, 5)


def test_a_fleet_in_parts_has_the_profiles_of_the_whole(monkeypatch) -> None:
    now, settings = FLEET.inventory.as_of, Settings()
    monkeypatch.setattr(history, "CELLS_PER_PART", 10 * FLEET.slices.steps)
    found = history.profiled(FLEET, settings, now)
    assert found == profile_fleet(FLEET, settings=settings.analyzer, now=now)


def test_only_a_history_beyond_the_limit_is_planned_by_the_hour() -> None:
    cells = len(FLEET.slices.keys) * FLEET.slices.steps
    assert history.for_plan(FLEET, cells) is FLEET
    coarse = history.for_plan(FLEET, cells - 1)
    assert (coarse.slices.step_seconds, coarse.slices.steps) == (3600, 5 * 24)
    assert coarse.slices.mean[Measure.SM_ACTIVE].shape == (40, 5 * 24)
    assert coarse.slices.until == FLEET.slices.until
