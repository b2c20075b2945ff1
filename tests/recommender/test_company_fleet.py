"""The third fleet has the habits that it is for."""

from collections import Counter

import numpy as np

from bench.company_fleet import FIRST_MONDAY, STEPS_PER_DAY, calendar_of, company_fleet
from fleet.schema import Measure
from fleet.usage import History

CARDS, DAYS = 160, 14
FLEET = company_fleet(4, CARDS, DAYS)


def busy_of(history: History):
    return history.slices.mean[Measure.SM_ACTIVE]


def test_the_same_arguments_give_the_same_company() -> None:
    again, other = company_fleet(4, CARDS, DAYS), company_fleet(5, CARDS, DAYS)
    assert again.inventory == FLEET.inventory
    for measure, values in FLEET.slices.mean.items():
        np.testing.assert_array_equal(values, again.slices.mean[measure])
    assert other.inventory.grants != FLEET.inventory.grants


def test_a_card_has_one_pod_at_a_time() -> None:
    alive = np.zeros((DAYS * STEPS_PER_DAY, CARDS), int)
    number = {card.card: place for place, card in enumerate(FLEET.inventory.cards)}
    for row, grant in enumerate(FLEET.inventory.grants):
        assert grant.ended_at is None or grant.ended_at > grant.started_at, row
        since = FLEET.slices.since
        first = int((grant.started_at - since).total_seconds() // FLEET.slices.step_seconds)
        stop = (
            len(alive)
            if grant.ended_at is None
            else int((grant.ended_at - since).total_seconds() // FLEET.slices.step_seconds)
        )
        alive[first:stop, number[grant.card]] += 1
    assert alive.max() == 1
    assert len(FLEET.slices.keys) == len(set(FLEET.slices.keys)) == len(FLEET.inventory.grants)


def test_autoscaled_services_have_more_pods_while_they_are_busier() -> None:
    counts = Counter(grant.workload for grant in FLEET.inventory.grants)
    scaled = [name for name, many in counts.items() if many > 2 * DAYS]
    assert scaled
    workload = [key.pod.rsplit("-", 2)[0] for key in FLEET.slices.keys]
    for name in scaled:
        rows = busy_of(FLEET)[[own == name for own in workload]]
        replicas = np.isfinite(rows).sum(axis=0)
        demand = np.nansum(rows, axis=0)
        assert np.corrcoef(replicas, demand)[0, 1] > 0.5, name


def test_releases_give_pods_and_at_times_workloads_new_names() -> None:
    workloads = {grant.workload for grant in FLEET.inventory.grants}
    ended = {grant.workload for grant in FLEET.inventory.grants if grant.ended_at is not None}
    assert any(f"{name}-v2" in workloads and name in ended for name in workloads)


def test_collectors_of_whole_nodes_fall_silent_for_hours() -> None:
    nodes = np.array([key.node for key in FLEET.slices.keys])
    longest = 0
    for node in set(nodes):
        silent = ~np.isfinite(busy_of(FLEET)[nodes == node]).any(axis=0)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], silent, [False]]).astype(np.int8))).reshape(-1, 2)
        longest = max(longest, *(int(stop - first) for first, stop in edges), 0)
    assert longest * FLEET.slices.step_seconds >= 3 * 3600


def test_a_launch_lifts_the_company_as_a_whole() -> None:
    lifts = []
    for seed in range(20, 40):
        _, calendar = calendar_of(seed, DAYS)
        days = [int(hour // 24) for hour in calendar.launches]
        if len(days) != 1 or not 8 <= days[0] < DAYS - 1:
            continue
        fleet = company_fleet(seed, CARDS, DAYS)
        values = busy_of(fleet).reshape(len(fleet.slices.keys), DAYS, STEPS_PER_DAY)
        total = np.nansum(values, axis=(0, 2))
        # The same weekday of the week before.
        lifts.append(total[days[0] + 1] / total[days[0] - 6])
    assert len(lifts) >= 2
    assert np.mean(lifts) > 1.1


def test_companies_begin_on_different_weekdays() -> None:
    starts = {calendar_of(seed, DAYS)[0] for seed in range(40)}
    assert sorted((start - FIRST_MONDAY).days for start in starts) == list(range(7))
