"""The tide: who steps back when, which machines fall free, and what the days seen say against it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.words.advice import refusal_words
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Misconfigured
from fleet.inventory import CardId
from fleet.usage import History
from fleet.words import Language
from recommender.demand import Demand, demand_of
from recommender.past_outcomes import OwnPast
from recommender.tide import LOAD_MAX, WINDOW_HOURS_MAX, WINDOW_HOURS_MIN, Candidate, Tide, tide_of
from tests.recommender.builders import Service, cluster, plan_of


def candidates(demand: Demand, *, replicas_min: int = 1) -> list[Candidate]:
    held = Counter(grant.card for grant in demand.grants)
    found = []
    for number, name in enumerate(demand.workloads):
        rows = tuple(int(row) for row in np.flatnonzero(demand.workload_of == number))
        alone = tuple(row for row in rows if held[demand.grants[row].card] == 1)
        found.append(Candidate(workload=name, rows=rows, free_rows=alone, replicas_min=replicas_min))
    return found


def tide(
    history: History, *, zone: str = "UTC", limit: float = 0.02, replicas_min: int = 1, window: str | None = None
) -> Tide | None:
    demand = demand_of(history)
    return tide_of(
        demand,
        candidates(demand, replicas_min=replicas_min),
        since=history.slices.since,
        time_zone=zone,
        violation_ratio_max=limit,
        node_of={grant.card: grant.node for grant in demand.grants},
        window=window,
    )


DAY_SHIFT = cluster(Service(name="web", replicas=8, level=0.8, hours=(8, 20)))


def test_a_service_of_the_day_steps_back_at_night() -> None:
    found = tide(DAY_SHIFT)
    assert found is not None
    (ebb,) = found.ebbs
    assert (found.start_hour, found.hours) == (20, 12)
    # A quarter of the 6.4 cards of the day, should they come back at once, needs three at a load of 0.7.
    assert (ebb.replicas, ebb.replicas_all, len(ebb.frees)) == (3, 8, 5)
    assert ebb.violation_ratio == 0.0
    (scheduled,) = found.schedule
    assert (scheduled.start, scheduled.end, scheduled.replicas) == ("20:00", "08:00", 3)


def test_the_window_is_local() -> None:
    found = tide(DAY_SHIFT, zone="Asia/Shanghai")
    assert found is not None
    assert found.start_hour == 4  # 20:00 UTC


def test_window_that_a_person_sets_is_kept_and_who_leaves_in_it_is_computed() -> None:
    # At 19:00 eight replicas at 0.8 still work, so nobody can leave then; from 20:00 five can.
    assert tide(DAY_SHIFT, window="19-06") is None
    found = tide(DAY_SHIFT, window="23-06")
    assert found is not None
    assert (found.start_hour, found.hours, found.cards_freed) == (23, 7, 5)
    with pytest.raises(Misconfigured, match=r"recommender\.tide_window=01-03; 4 to 16 h"):
        tide(DAY_SHIFT, window="01-03")


def test_machines_fall_free_whole_where_they_can() -> None:
    found = tide(DAY_SHIFT)
    assert found is not None
    # Eight replicas on two machines of four; one stays, so one machine falls free.
    assert len(found.nodes_freed) == 1


def test_replicas_that_are_to_stay_stay() -> None:
    found = tide(DAY_SHIFT, replicas_min=5)
    assert found is not None
    assert found.ebbs[0].replicas == 5
    assert tide(DAY_SHIFT, replicas_min=8) is None


def test_nobody_steps_back_who_works_round_the_clock() -> None:
    assert tide(cluster(Service(name="web", replicas=8, level=0.8))) is None


def test_two_days_are_no_habit() -> None:
    assert tide(cluster(Service(name="web", replicas=8, level=0.8, hours=(8, 20)), days=2)) is None


def test_noise_frees_no_window_that_it_would_break() -> None:
    noise = cluster(Service(name="web", replicas=8, level=0.2))
    draw = np.random.default_rng(3)
    for series in noise.slices.mean.values():
        series[:] = np.where(draw.random(series.shape[1]) < 0.02, 0.95, 0.02).astype(np.float32)[None, :]
    found = tide(noise, limit=0.001)
    assert found is None or all(ebb.violation_ratio <= 0.001 for ebb in found.ebbs)


def test_a_night_shift_on_one_day_is_counted_against_the_window() -> None:
    history = cluster(Service(name="web", replicas=8, level=0.8, hours=(8, 20)))
    history.slices.mean[next(iter(history.slices.mean))][:, 144 * 5 : 144 * 5 + 36] = 0.9
    for series in history.slices.mean.values():
        series[:, 144 * 5 : 144 * 5 + 36] = 0.9
    found = tide(history)
    assert found is not None
    (ebb,) = found.ebbs
    # The hours of that night are needed in full from now on: the window keeps clear of them.
    assert (found.start_hour, found.hours) == (20, 4)
    assert ebb.violation_ratio == 0.0


def test_a_service_that_is_busier_than_ever_at_this_hour_keeps_more_than_its_habit() -> None:
    history = cluster(Service(name="web", replicas=8, level=0.8, hours=(8, 20)))
    for series in history.slices.mean.values():
        series[:, -3:] = 0.5
    found = tide(history)
    assert found is not None
    (ebb,) = found.ebbs
    # Four cards were busy as the day ended: what of that is foretold for the small hours needs more than one replica.
    assert ebb.replicas >= 3
    assert ebb.replicas_all == 8


def test_replicas_that_our_own_nights_had_away_carried_no_load() -> None:
    """The rest carried all of it, so the next plan asks for no more than the night did."""
    history = cluster(Service(name="web", replicas=8, level=0.8, hours=(8, 20)))
    hour = np.arange(history.slices.steps) * history.slices.step_seconds // 3600 % 24
    night = (hour >= 20) | (hour < 8)
    for series in history.slices.mean.values():
        series[:2, night], series[2:, night] = 0.4, np.nan
    demand = demand_of(history)
    days = [history.slices.since + timedelta(days=day) for day in range(-1, 7)]
    nights = tuple((day + timedelta(hours=20), day + timedelta(hours=32), 2) for day in days)

    def stays(absences: tuple[tuple[datetime, datetime, int], ...]) -> int:
        (service,) = candidates(demand)
        found = tide_of(
            demand, [replace(service, absences=absences)], since=history.slices.since, time_zone="UTC",
            violation_ratio_max=0.02,
            node_of={grant.card: grant.node for grant in demand.grants},
        )  # fmt: skip
        assert found is not None
        return found.ebbs[0].replicas

    assert stays(nights) == 3  # a quarter of the day's
    assert stays(()) == 6


def test_a_card_that_others_share_does_not_fall_free() -> None:
    demand = demand_of(DAY_SHIFT)
    shared = [
        Candidate(workload=item.workload, rows=item.rows, free_rows=(), replicas_min=1) for item in candidates(demand)
    ]
    found = tide_of(
        demand, shared, since=DAY_SHIFT.slices.since, time_zone="UTC", violation_ratio_max=1.0,
        node_of={grant.card: grant.node for grant in demand.grants},
    )  # fmt: skip
    assert found is None


@settings(max_examples=25, deadline=None)
@given(
    services=st.lists(
        st.tuples(st.integers(2, 6), st.floats(0.05, 0.95), st.integers(0, 20), st.integers(1, 12)),
        min_size=1,
        max_size=4,
    ),
    days=st.integers(1, 9),
)
def test_what_stays_carries_every_hour_that_was_seen(
    services: Sequence[tuple[int, float, int, int]], days: int
) -> None:
    history = cluster(
        *(
            Service(name=f"s{number}", replicas=replicas, level=level, hours=(start, min(24, start + length)))
            for number, (replicas, level, start, length) in enumerate(services)
        ),
        days=days,
    )
    found = tide(history)
    if found is None:
        return
    assert WINDOW_HOURS_MIN <= found.hours <= WINDOW_HOURS_MAX
    demand = demand_of(history)
    hour = np.arange(demand.steps) * demand.step_seconds // 3600 % 24
    inside = np.isin(hour, (found.start_hour + np.arange(found.hours)) % 24)
    freed: list[CardId] = [card for ebb in found.ebbs for card in ebb.frees]
    assert len(freed) == len(set(freed)) == found.cards_freed
    for ebb in found.ebbs:
        rows = np.flatnonzero(demand.workload_of == demand.workloads.index(ebb.workload))
        load = np.nansum(demand.compute[rows], axis=0)[inside].max()
        assert 1 <= ebb.replicas < ebb.replicas_all
        assert load <= ebb.replicas * LOAD_MAX + 1e-6
        assert ebb.load_max == pytest.approx(load, rel=1e-5)


def test_nights_that_ended_early_too_often_withhold_the_tide() -> None:
    def planned(rate: float | None) -> Plan:
        return plan_of(DAY_SHIFT, only=RecommendationKind.TIDE, past=OwnPast(night_evictions_per_hour=rate))

    assert planned(None).schedule
    assert planned(0.05).schedule
    plan = planned(0.06)
    assert plan.schedule == ()
    (why,) = [item for item in plan.withheld if item.reason == "nights_cut_short"]
    assert dict(why.values) == {"evictions_per_hour": 0.06, "limit_per_hour": 0.05}
    assert "0.06" in refusal_words(why, Language.EN)


def test_nights_unlike_those_seen_are_harm_until_the_service_is_home_and_less_the_more_were_seen() -> None:
    web = Service(name="web", replicas=8, level=0.8, hours=(8, 20))

    def said(days: int, home_seconds: float, limit: float = 0.02, *others: Service) -> float | None:
        history = cluster(web, *others, days=days)
        demand = demand_of(history)
        found = tide_of(
            demand, [replace(item, home_seconds=home_seconds) for item in candidates(demand)],
            since=history.slices.since, time_zone="UTC", violation_ratio_max=limit,
            node_of={grant.card: grant.node for grant in demand.grants},
        )  # fmt: skip
        return None if found is None else next(ebb for ebb in found.ebbs if "web" in ebb.workload).violation_ratio

    # Active 12 h a day: one night in 9 lacks replicas for 432 s of them.
    assert said(7, 432.0) == pytest.approx(432 / 9 / (12 * 3600))
    assert said(14, 432.0) == pytest.approx(432 / 16 / (12 * 3600))
    assert said(7, 0.0) == 0.0
    assert said(7, 432.0, 0.001) is None
    # It is a third of the active hours of all, and less than 0.1 % of those.
    assert said(7, 432.0, 0.001, Service(name="busy", replicas=8, level=0.8)) == said(7, 432.0)


def test_who_harms_most_for_a_card_stays_at_home_until_all_together_are_within_the_limit() -> None:
    history = cluster(
        Service(name="large", replicas=16, level=0.8, hours=(8, 20)),
        Service(name="small", replicas=4, level=0.8, hours=(8, 20)),
    )
    demand = demand_of(history)

    def scale_in(limit: float) -> list[str]:
        found = tide_of(
            demand, [replace(item, home_seconds=432.0) for item in candidates(demand)],
            since=history.slices.since, time_zone="UTC", violation_ratio_max=limit,
            node_of={grant.card: grant.node for grant in demand.grants},
        )  # fmt: skip
        return [] if found is None else [ebb.workload.rpartition("/")[2] for ebb in found.ebbs]

    # Both lack as much in a night unlike those seen, 432 / 9 / 12 h of their active time.
    assert [scale_in(limit) for limit in (0.00112, 0.00111, 0.00056, 0.00055)] == [
        ["large", "small"], ["large"], ["large"], [],
    ]  # fmt: skip
