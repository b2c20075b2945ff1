"""Workloads that were measured to slow each other down do not meet on a card."""

from dataclasses import replace
from datetime import timedelta
from itertools import product

import numpy as np
import pytest

from analyzer.profile import profile_fleet
from fleet.decisions import Plan
from fleet.inventory import CardId, Priority
from fleet.priority_holds import Holders
from fleet.profiles import NeighbourEffect
from fleet.schema import Measure
from fleet.settings.settings import AnalyzerSettings
from recommender.demand import demand_of
from recommender.harm.interference import Interference, MeasuredPair, Subject, learn_interference
from recommender.harm.pair_guard import pair_guard
from recommender.past_outcomes import OwnPast
from tests.recommender.builders import NOW, Service, cluster, plan_of

GENTLE = ("calm", "small", "mild", "soft")
HARSH = ("harsh",)


@pytest.fixture(scope="module")
def interference() -> Interference:
    """Everybody keeps its speed beside the gentle ones, and nobody beside the harsh one."""
    names = (*GENTLE, *HARSH)
    return learn_interference(
        [
            MeasuredPair(
                victim=Subject(family=victim, variant=str(number)),
                aggressor=Subject(family=aggressor),
                speed_ratio=0.5 if aggressor in HARSH else 1.0,
            )
            for number, victim, aggressor in product(range(3), names, names)
        ]
    )


def shared(plan: Plan) -> list[list[str]]:
    return [sorted(part.workload.rpartition("/")[2] for part in card.slices) for card in plan.placement]


def test_who_slows_others_gets_a_card_of_its_own(interference: Interference) -> None:
    fleet = cluster(Service(name="calm", level=0.1), Service(name="small", level=0.1), Service(name="harsh", level=0.1))
    assert shared(plan_of(fleet)) == [["calm", "harsh", "small"]]
    assert sorted(shared(plan_of(fleet, past=OwnPast(interference=interference)))) == [["calm", "small"], ["harsh"]]


def test_of_two_the_one_of_low_priority_leaves(interference: Interference) -> None:
    fleet = cluster(
        Service(name="calm", level=0.3),
        Service(name="harsh", kind="Job", level=0.6, priority=Priority.LOW, server="pytorch"),
    )
    seen = OwnPast(holders=Holders(agents=frozenset({"node-0"})))
    assert shared(plan_of(fleet, past=seen)) == [["calm", "harsh"]]
    learned = replace(seen, interference=interference)
    assert sorted(shared(plan_of(fleet, past=learned))) == [["calm"], ["harsh"]]


def test_a_label_names_the_family(interference: Interference) -> None:
    labelled = Service(name="blaster-v2", level=0.1, labels=(("gputide.io/family", "harsh"),))
    fleet = cluster(Service(name="calm", level=0.1), labelled)
    assert sorted(shared(plan_of(fleet, past=OwnPast(interference=interference)))) == [["blaster-v2"], ["calm"]]


def test_who_was_never_measured_is_left_to_the_packing(interference: Interference) -> None:
    fleet = cluster(Service(name="calm", level=0.1), Service(name="stranger", level=0.1))
    assert shared(plan_of(fleet, past=OwnPast(interference=interference))) == [["calm", "stranger"]]


def test_what_was_measured_is_part_of_what_a_plan_is_made_from(interference: Interference) -> None:
    fleet = cluster(Service(name="calm", level=0.1))
    assert plan_of(fleet).inputs_sha256 != plan_of(fleet, past=OwnPast(interference=interference)).inputs_sha256


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.LOW])
def test_who_says_that_all_others_slow_it_leaves_itself(priority: Priority) -> None:
    others = [Service(name=name, level=0.1, priority=priority) for name in ("a", "b", "c")]
    fleet = cluster(Service(name="victim", level=0.1), *others)
    demand = demand_of(fleet)
    effects = [
        NeighbourEffect(
            neighbour=grant.workload_id, measured_by="latency_p99_seconds", days=9, speed_ratio=0.5,
            speed_ratio_min=0.4, speed_ratio_max=0.6,
        )
        for grant in demand.grants
        if grant.workload != "victim"
    ]  # fmt: skip
    profiles = profile_fleet(fleet, settings=AnalyzerSettings(), now=NOW)
    said = [replace(one, beside=tuple(effects) if "victim" in one.workload else ()) for one in profiles.workloads]
    guard = pair_guard(demand, fleet, replace(profiles, workloads=tuple(said)), None)
    groups = guard.parted(range(len(demand.grants)))
    assert [sorted(demand.grants[row].workload for row in rows) for rows in groups] == [["a", "b", "c"], ["victim"]]
    # Of two the one that slows leaves, no matter which it is.
    pair = [row for row, grant in enumerate(demand.grants) if grant.workload in ("a", "victim")]
    kept, left = guard.parted(pair)
    assert [demand.grants[row].workload for row in (*kept, *left)] == ["victim", "a"]


@pytest.mark.parametrize(
    ("speed_ratio", "cards"), [(0.7, [["calm", "victim"], ["loud"]]), (1.0, [["calm", "loud", "victim"]])]
)
def test_who_slows_a_service_on_this_very_fleet_gets_a_card_of_its_own(
    speed_ratio: float, cards: list[list[str]]
) -> None:
    # The two shared a card until yesterday; a week shows what that did.
    shared_it = {"card": CardId("GPU-0000"), "framebuffer_granted_bytes": 8 * 2**30}
    moved = {**shared_it, "pod": "loud-before", "ended_at": NOW - timedelta(days=1)}
    fleet = cluster(
        Service(name="victim", level=0.1, changes=shared_it),
        Service(name="loud", level=0.1, hours=(0, 12), changes=moved),
        Service(name="loud", level=0.1, hours=(0, 12)),
        Service(name="calm", level=0.1),
    )
    grid = fleet.slices
    works = np.arange(grid.steps) % 144 < 72
    latency = np.full((4, grid.steps), np.nan, np.float32)
    rate = latency.copy()
    row = next(row for row, key in enumerate(grid.keys) if key.pod.startswith("victim"))
    rate[row] = 5.0
    latency[row] = 0.2 / np.where(works, speed_ratio, 1.0) * np.random.default_rng(1).uniform(0.9, 1.1, grid.steps)
    mean = {**grid.mean, Measure.REQUEST_RATE: rate, Measure.LATENCY_P99: latency}
    assert sorted(shared(plan_of(replace(fleet, slices=replace(grid, mean=mean, peak=mean))))) == cards
