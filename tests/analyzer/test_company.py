"""Replicas and workloads that rise together are named, those that don't are not."""

import numpy as np
import pytest

from analyzer import company
from analyzer.company import companions, replica_correlation
from tests.analyzer.build import Slice, by_hour, history, noise, profile, profiles, work

DAY = [0.8 if 8 <= hour < 18 else 0.05 for hour in range(24)]
NIGHT = [0.05 if 8 <= hour < 18 else 0.8 for hour in range(24)]


def test_replicas_behind_one_balancer_rise_together() -> None:
    pods = [Slice(pod=f"p-{n}", usage=work(by_hour(4, DAY) * noise(4, low=0.9, high=1, seed=n))) for n in range(3)]
    assert (profile(history(pods, days=4)).replica_correlation or 0.0) > 0.9


def test_replicas_of_their_own_minds_do_not() -> None:
    pods = [Slice(pod=f"p-{n}", usage=work(noise(4, low=0.1, high=0.8, seed=n))) for n in range(3)]
    found = profile(history(pods, days=4)).replica_correlation
    assert found is not None
    assert abs(found) < 0.15


def test_one_replica_and_constant_ones_have_no_correlation() -> None:
    assert profile(history([Slice(usage=work(0.5))])).replica_correlation is None
    assert replica_correlation(np.full((3, 500), 0.4, np.float32)) is None
    assert replica_correlation(np.full((2, 500), np.nan, np.float32)) is None


def test_workloads_of_the_same_hours_are_companions_and_others_are_not() -> None:
    slices = [
        Slice(workload=name, usage=work(by_hour(5, levels)))
        for name, levels in (("day-one", DAY), ("day-two", DAY), ("night", NIGHT), ("flat", [0.3] * 24))
    ]
    near = {one.workload.rsplit("/", 1)[1]: one.rises_with for one in profiles(history(slices, days=5)).workloads}
    assert near["day-one"] == ("team/Deployment/day-two",)
    assert near["night"] == near["flat"] == ()


def test_the_correlation_of_pairs_is_that_of_what_both_have_seen() -> None:
    random = np.random.default_rng(3)
    levels = random.uniform(0, 1, (6, 300)).astype(np.float32)
    levels[1] = levels[0] + random.normal(0, 0.05, 300)
    levels[random.random(levels.shape) < 0.2] = np.nan
    assert companions(levels)[0] == (1,)
    assert companions(levels)[1] == (0,)
    assert all(not one for one in companions(levels)[2:])


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (1, 200)])
def test_too_little_to_compare_gives_nobody(shape) -> None:
    assert companions(np.zeros(shape, np.float32)) == [()] * shape[0]


def test_a_large_fleet_finds_its_twins_without_comparing_every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    walks = np.cumsum(random.normal(0, 0.05, (300, 240)), axis=1)
    noisy = np.repeat(walks, 2, axis=0) + random.normal(0, 0.02, (600, 240))
    levels = noisy.astype(np.float32)[random.permutation(600)]
    every_pair = companions(levels)
    monkeypatch.setattr(company, "EXACT_MAX", 100)
    by_cells = companions(levels)
    assert all(one for one in every_pair)
    assert sum(found[:1] == wanted[:1] for found, wanted in zip(by_cells, every_pair, strict=True)) > 0.98 * 600
    assert all(row not in found for row, found in enumerate(by_cells))
