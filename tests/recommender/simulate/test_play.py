"""Days played step by step: the referee's rules where nothing acts, prorated where relief does, blind to the future."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.capabilities.register import HAMI
from fleet.decisions import RiskLevel
from fleet.inventory import Priority
from fleet.priority_holds import Holders
from fleet.relief.rules import ReliefRules
from fleet.schema import Measure
from fleet.settings.settings import RiskSettings, Settings
from fleet.sharing import Seats, fare
from fleet.units import GIB
from recommender.simulate.play import Played, play
from recommender.simulate.policies import Policy, Table, perform
from recommender.simulate.replan import Replan
from recommender.simulate.stage import Opening, Stage, cut_history, stage_of, whole_cards
from tests.recommender.builders import NOW, PER_DAY, STEP_SECONDS, Service, cluster

pytestmark = pytest.mark.long

SECONDS = float(STEP_SECONDS)


def stage(*services: Service, days: int = 2, seed: int = 1) -> Stage:
    """The last day of a small cluster, the days before it known."""
    history = cluster(*services, days=days, seed=seed)
    return cut_history(history, cut=NOW - timedelta(days=1), until=NOW)


def with_demand(found: Stage, demand: np.ndarray, need_gib: np.ndarray | None = None) -> Stage:
    """The same pods with other series on the day that is played."""
    compute, need = found.demand.compute.copy(), found.demand.need_bytes.copy()
    compute[:, found.past :] = demand
    if need_gib is not None:
        need[:, found.past :] = need_gib * GIB
    return replace(found, demand=replace(found.demand, compute=compute, need_bytes=need))


def seats(found: Stage, *cards: int, gib: float = 8.0) -> Opening:
    return replace(whole_cards(found), card=np.array(cards, np.int64), granted_bytes=np.full(found.rows, gib * GIB))


def relief(seconds: float, **rules: Any) -> ReliefRules:
    return ReliefRules(sustain_seconds=seconds, **rules)


def flat(*levels: float) -> np.ndarray:
    return np.repeat(np.array(levels, np.float32)[:, None], PER_DAY, axis=1)


PAIR = (Service(name="a"), Service(name="b"), Service(name="c"))


def test_whole_cards_harm_nobody_and_save_nothing() -> None:
    found = stage(*PAIR)
    played = play(found, whole_cards(found))
    assert (played.violation_ratio, played.saved_ratio, played.moves) == (0.0, 0.0, 0)


def lending(found: Stage, kept_gib: float) -> Opening:
    """Two pods of 16 GiB on a card of 24 GiB."""
    return replace(seats(found, 0, 0, gib=16.0), kept_bytes=np.full(2, kept_gib * GIB))


SHIFTS = (Service(name="a", hours=(0, 12)), Service(name="b", hours=(12, 24)))


def in_turn(found: Stage, *, overlap: int = 0) -> Stage:
    """One pod works in the first half of the day, the other in the second."""
    demand = np.zeros((2, PER_DAY), np.float32)
    demand[0, : PER_DAY // 2 + overlap], demand[1, PER_DAY // 2 :] = 0.5, 0.5
    return with_demand(found, demand, np.full((2, PER_DAY), 16.0))


def test_lent_framebuffer_is_waited_for_when_its_pod_works_again() -> None:
    found = in_turn(stage(*SHIFTS))
    played = play(found, lending(found, 8.0))
    waited = 16.0 * GIB / (0.5 * 31.5e9)
    assert played.switches.tolist() == [0, 1]
    np.testing.assert_allclose(played.switch_seconds, [0.0, waited])
    np.testing.assert_allclose(played.violated_steps, [0.0, waited / SECONDS])
    assert set(played.host_bytes.tolist()) == {8.0 * GIB}


def test_request_of_a_moment_pulls_framebuffer_back_although_the_mean_of_its_step_shows_nothing() -> None:
    found = in_turn(stage(*SHIFTS))
    grid = found.whole.slices
    peak = {measure: values.copy() for measure, values in grid.peak.items()}
    peak[Measure.SM_ACTIVE][0, found.past + 100] = 0.02
    touched = replace(found, whole=replace(found.whole, slices=replace(grid, peak=peak)))
    assert play(touched, lending(touched, 8.0)).switches.tolist() == [1, 1]


def test_pods_that_keep_too_much_or_work_at_once_fill_the_card() -> None:
    found = in_turn(stage(*SHIFTS))
    assert play(found, lending(found, 9.0)).violation_ratio == 1.0
    both = in_turn(found, overlap=6)
    assert play(both, lending(both, 8.0)).violated_steps[0] == 6.0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), bins=st.integers(1, 4))
def test_without_relief_a_step_is_judged_as_sharing_judges_it(seed: int, bins: int) -> None:
    random = np.random.default_rng(seed)
    found = stage(*(Service(name=f"s{n}") for n in range(6)), seed=seed)
    demand = random.uniform(0, 0.6, (6, PER_DAY)).astype(np.float32)
    demand[random.random((6, PER_DAY)) < 0.2] = np.nan
    found = with_demand(found, demand, random.uniform(2, 9, (6, PER_DAY)))
    opening = seats(found, *random.integers(0, bins, 6))
    played = play(found, opening)
    numbers, card = np.unique(opening.card, return_inverse=True)
    expected = fare(
        demand,
        found.demand.need_bytes[:, found.past :],
        Seats(
            card=card.reshape(-1).astype(np.int64),
            framebuffer_granted_bytes=opening.granted_bytes,
            compute_granted_ratio=np.ones(6),
            is_hard=np.zeros(6, bool),
            is_low=np.zeros(6, bool),
            kept_bytes=np.full(6, np.inf),
            capacity_bytes=np.full(len(numbers), 24.0 * GIB),
        ),
    )
    np.testing.assert_allclose(played.violated_steps, expected.violated.sum(axis=1))
    np.testing.assert_allclose(played.active_steps, expected.active.sum(axis=1))


def test_overload_counts_for_the_time_until_it_was_relieved() -> None:
    found = with_demand(stage(*PAIR), flat(0.8, 0.8, 0.0))
    played = play(found, seats(found, 0, 0, 1), relief(120.0, load_bytes_per_second=GIB))
    # 120 s of reaction and 8 s of loading 8 GiB, of the first step alone, for both pods on the card.
    np.testing.assert_allclose(played.violated_steps, [128 / SECONDS, 128 / SECONDS, 0])
    assert played.moves == 1


def test_slow_reaction_lets_the_overload_run_into_the_next_step() -> None:
    found = with_demand(stage(*PAIR), flat(0.8, 0.8, 0.0))
    played = play(found, seats(found, 0, 0, 1), relief(900.0, load_bytes_per_second=GIB))
    np.testing.assert_allclose(played.violated_steps[:2], 908 / SECONDS)


def test_spares_count_at_their_peak() -> None:
    demand = flat(0.8, 0.8, 0.9)
    demand[:, 10:] = 0.05
    found = with_demand(stage(*PAIR), demand)
    played = play(found, seats(found, 0, 0, 1), relief(60.0))
    assert (played.cards_opening, played.cards_peak) == (2, 3)
    assert played.saved_ratio == 0.0


def test_pod_that_cannot_have_a_second_replica_is_violated_while_it_moves() -> None:
    single = tuple(Service(name=name, kind="StatefulSet") for name in "ab")
    found = with_demand(stage(*single, Service(name="c")), flat(0.8, 0.7, 0.0))
    played = play(found, seats(found, 0, 0, 1), relief(120.0, load_bytes_per_second=GIB))
    # 120 s for both on the full card, then the one that moves is stopped for 8 s and the other has the card alone.
    assert sorted((played.violated_steps * SECONDS).round().tolist()) == [0, 120, 128]
    stays = play(found, seats(found, 0, 0, 1), relief(120.0, restarts=False))
    assert stays.moves == 0


def test_pod_returns_once_its_old_card_has_had_room_for_an_hour() -> None:
    demand = np.full((3, PER_DAY), 0.05, np.float32)
    demand[:, :10] = np.array([0.8, 0.8, 0.9])[:, None]
    found = with_demand(stage(*PAIR), demand)
    played = play(found, seats(found, 0, 0, 1), relief(60.0))
    assert played.moves == 2
    used = played.used.sum(axis=0).tolist()
    # Steps are ten minutes: the last full one is the tenth, and six must be quiet.
    assert (used[5], used[14], used[16]) == (3, 3, 2)


def test_no_more_pods_move_at_once_than_the_product_would() -> None:
    services = tuple(Service(name=f"s{n}") for n in range(8))
    found = with_demand(stage(*services), flat(*[0.7] * 8))
    opening = seats(found, 0, 0, 1, 1, 2, 2, 3, 3)
    slow = play(found, opening, relief(0.0, load_bytes_per_second=8 * GIB / (2 * SECONDS), moves_at_once_max=3))
    assert slow.used.sum(axis=0)[[0, 1, 2]].tolist() == [7, 7, 8]


def test_relief_never_sees_what_comes() -> None:
    random = np.random.default_rng(5)
    found = stage(*(Service(name=f"s{n}") for n in range(8)))
    demand = random.uniform(0, 0.5, (8, PER_DAY)).astype(np.float32)
    other = demand.copy()
    half = PER_DAY // 2
    other[:, half:] = random.uniform(0, 0.5, (8, PER_DAY - half))
    first, second = (
        play(with_demand(found, series), seats(found, 0, 0, 0, 1, 1, 1, 2, 2, gib=7), relief(120.0))
        for series in (demand, other)
    )
    assert first.moves > 0
    np.testing.assert_array_equal(first.used[:, :half], second.used[:, :half])
    np.testing.assert_array_equal(first.left[:, :half], second.left[:, :half])
    assert not np.array_equal(first.left, second.left)


def test_same_stage_gives_the_same_answer() -> None:
    found = stage(*(Service(name=f"s{n}", level=0.5) for n in range(8)))

    def once() -> Played:
        return play(found, seats(found, 0, 0, 0, 1, 1, 1, 2, 2, gib=7), relief(120.0))

    first, second = once(), once()
    np.testing.assert_array_equal(first.violated_steps, second.violated_steps)
    assert first.moves == second.moves


def test_opted_out_pod_is_not_moved() -> None:
    labels = (("gputide.io/opt-out", "true"),)
    services = (Service(name="a"), Service(name="b"), Service(name="c", labels=labels))
    found = with_demand(stage(*services), flat(0.8, 0.1, 0.7))
    played = play(found, seats(found, 0, 1, 0), relief(60.0))
    assert played.seat[:, -1].tolist() == [1, 1, 0]


def test_isolated_pod_gets_no_neighbour() -> None:
    alone = Service(name="c", labels=(("gputide.io/isolation", "hard"),))
    found = with_demand(stage(Service(name="a"), Service(name="b"), alone), flat(0.8, 0.8, 0.0))
    played = play(found, seats(found, 0, 0, 1), relief(60.0))
    assert played.cards_peak == 3


def test_replanning_moves_pods_and_stops_them_while_they_load() -> None:
    history = cluster(*PAIR, days=4)
    found = cut_history(history, cut=NOW - timedelta(days=3), until=NOW)
    found = with_demand(found, np.full((3, 3 * PER_DAY), 0.1, np.float32))
    together = seats(found, 0, 0, 0)
    played = play(found, whole_cards(found), None, Replan(every_seconds=86400, plan=lambda step: together))
    assert played.moves == 2
    assert played.used.sum(axis=0)[[0, -1]].tolist() == [3, 1]
    assert np.count_nonzero(played.violated_steps) == 2
    assert played.violated_steps.max() == pytest.approx(8 / SECONDS)


def table(**changes: Any) -> Table:
    chosen = Settings().model_copy(update={"risk": RiskSettings(preset=RiskLevel.HIGH)})
    return Table(settings=chosen, capability=HAMI, **changes)


MIX = (
    Service(name="day", replicas=4, level=0.6, hours=(8, 20)),
    Service(name="night", replicas=4, level=0.6, hours=(20, 24)),
    Service(name="flat", replicas=2, level=0.3),
    Service(name="silent", replicas=2, level=0.0),
)


@pytest.mark.parametrize("policy", list(Policy))
def test_every_policy_keeps_the_books(policy: Policy) -> None:
    found = stage(*MIX, days=5)
    done = perform(policy, found, table(relief=relief(120.0)))
    assert done.policy == policy.value
    assert done.cards_before == found.is_judged.sum() == 12
    assert done.saved_ratio == pytest.approx(1 - done.cards_peak / 12)
    assert 0 <= done.violation_ratio <= 1
    assert done.low_priority_gpu_hours >= 0


def test_hindsight_harms_nobody() -> None:
    found = stage(*MIX, days=5)
    done = perform(Policy.HINDSIGHT, found, table())
    assert done.violation_ratio == 0.0
    assert done.saved_ratio > 0.3


def test_culler_frees_cards_of_silent_services_and_makes_the_first_request_wait() -> None:
    done = perform(Policy.IDLE_CULLER, stage(*MIX, days=5), table())
    assert done.cards_peak < 12
    assert done.violation_ratio > 0
    assert done.low_priority_gpu_hours > 0


def test_tide_table_frees_nights_and_no_card_for_good() -> None:
    done = perform(Policy.TIDE_TABLE, stage(*MIX, days=5), table())
    assert done.saved_ratio == 0.0
    # Half of the replicas are away for eight of 24 hours; at half past seven their cards are taken back at once.
    assert done.low_priority_gpu_hours + done.low_priority_lost_gpu_hours == pytest.approx(6 * 8.0)
    assert done.evictions == 6


def test_low_priority_pod_never_counts_as_harmed() -> None:
    services = (Service(name="a"), Service(name="b", priority=Priority.LOW))
    found = with_demand(stage(*services), flat(0.9, 0.9))
    played = play(found, seats(found, 0, 0))
    assert played.violation_ratio == 0.0
    assert played.active_steps.sum() == PER_DAY


AGENTS = Holders(agents=frozenset({"node-0"}))


def test_low_priority_that_nothing_holds_back_contends_as_an_equal() -> None:
    services = (Service(name="a", level=0.3), Service(name="b", level=0.3, priority=Priority.LOW))
    found = with_demand(stage(*services), flat(0.9, 0.9))
    bare, held = (perform(Policy.PERCENTILE, found, table(holders=holders)) for holders in (Holders(), AGENTS))
    assert bare.cards_opening == held.cards_opening == 1
    assert (bare.violation_ratio, held.violation_ratio) == (1.0, 0.0)


def test_workers_sit_beside_services_only_where_something_holds_them_back() -> None:
    found = stage(Service(name="a", level=0.3), Service(name="b", level=0.3))
    bare, held = (perform(Policy.PERCENTILE, found, table(holders=holders)) for holders in (Holders(), AGENTS))
    assert bare.low_priority_gpu_hours == 0.0 < held.low_priority_gpu_hours


def test_what_came_later_is_not_in_the_plan() -> None:
    history = cluster(*MIX, days=5)
    cut = NOW - timedelta(days=1)
    one = cut_history(history, cut=cut, until=NOW)
    assert one.known.slices.until == cut
    assert one.known_at(PER_DAY // 2).slices.until == cut + timedelta(hours=12)
    same = stage_of(one.known, one.whole)
    np.testing.assert_array_equal(same.demand.compute, one.demand.compute)
    assert Measure.SM_ACTIVE in one.known.slices.mean
