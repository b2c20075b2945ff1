"""A redeployed service keeps its history: pods of new names are the same workload."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from fleet.inventory import Grant
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import History
from recommender.demand import demand_of
from tests.recommender.builders import NOW, PER_DAY, Service, cluster, plan_of

WEB = (Service(name="web", replicas=3, level=0.3, hours=(8, 20)), Service(name="api", replicas=3, level=0.25))


def redeployed(history: History, *, days_ago: float, factor: float = 1.0, workload: str = "web") -> History:
    """The history with every pod of a workload replaced at a moment by one of another name, `factor` times as busy."""
    moment = NOW - timedelta(days=days_ago)
    grid = history.slices
    cut = grid.steps - round(days_ago * PER_DAY)
    grants: list[Grant] = []
    keys, rows = list(grid.keys), list(range(len(grid.keys)))
    for grant in history.inventory.grants:
        if grant.workload != workload or grant.ended_at is not None:
            grants.append(grant)
            continue
        fresh = replace(grant, pod=f"{grant.pod.rpartition('-n')[0] or grant.pod}-n{days_ago}", started_at=moment)
        grants += [replace(grant, ended_at=moment), fresh]
        place = next(row for row, key in enumerate(keys) if key.pod == grant.pod)
        keys.append(replace(keys[place], pod=fresh.pod))
        rows.append(place)
    new = np.arange(len(rows)) >= len(grid.keys)
    mean = {}
    for measure, values in grid.mean.items():
        taken = values[rows].copy()
        taken[new, :cut] = np.nan
        taken[: len(grid.keys)][[rows[place] for place in np.flatnonzero(new)], cut:] = np.nan
        if measure is not Measure.FRAMEBUFFER_USED:
            taken[new] *= factor
        mean[measure] = taken
    return replace(
        history,
        inventory=replace(history.inventory, grants=tuple(sorted(grants, key=lambda grant: grant.pod_id))),
        slices=replace(grid, keys=tuple(keys), mean=mean, peak=mean),
    )


def too_short(history: History) -> set[str]:
    return {item.workload for item in plan_of(history).refused if item.reason == "history_too_short"}


@pytest.mark.parametrize("days_ago", [0.05, 1.0])
def test_a_service_that_was_redeployed_is_advised_as_before(days_ago: float) -> None:
    before = cluster(*WEB)
    after = redeployed(before, days_ago=days_ago)
    assert too_short(before) == too_short(after) == set()
    assert plan_of(after).totals.cards_freed == plan_of(before).totals.cards_freed > 0


def test_the_past_of_a_new_pod_is_that_of_the_pod_it_replaced() -> None:
    before = cluster(*WEB)
    first, second = demand_of(before), demand_of(redeployed(redeployed(before, days_ago=3), days_ago=1))
    assert [grant.workload for grant in first.grants] == [grant.workload for grant in second.grants]
    np.testing.assert_array_equal(first.compute, second.compute)
    np.testing.assert_array_equal(first.need_bytes, second.need_bytes)


@pytest.mark.parametrize("factor", [2.5, 0.2])
def test_pods_that_behave_otherwise_count_since_they_came(factor: float) -> None:
    history = redeployed(cluster(*WEB), days_ago=1, factor=factor, workload="api")
    demand = demand_of(history)
    rows = [row for row, grant in enumerate(demand.grants) if grant.workload == "api"]
    assert np.isnan(demand.compute[rows, :-PER_DAY]).all()
    assert np.isfinite(demand.compute[rows, -PER_DAY:]).all()
    assert too_short(history) == {"team/Deployment/api"}


def test_a_replica_that_was_scaled_away_is_nobodys_past() -> None:
    history = cluster(Service(name="web", replicas=2, level=0.3))
    gone = replace(history.inventory.grants[0], ended_at=NOW - timedelta(days=2))
    left = replace(history.inventory.grants[1], started_at=NOW - timedelta(days=5))
    grid = history.slices
    mean = {measure: values.copy() for measure, values in grid.mean.items()}
    for values in mean.values():
        values[1, : -5 * PER_DAY] = np.nan
    lived_beside = replace(
        history,
        inventory=replace(history.inventory, grants=(gone, left)),
        slices=replace(grid, mean=mean, peak=mean),
    )
    assert np.isnan(demand_of(lived_beside).compute[0, : -5 * PER_DAY]).all()


def test_ordinals_of_a_stateful_set_keep_apart() -> None:
    history = cluster(Service(name="db", replicas=2, level=0.3, kind="StatefulSet"))
    grid, (leader, follower) = history.slices, history.inventory.grants
    moment = NOW - timedelta(days=2)
    mean = {measure: values[[0, 1, 0, 1]].copy() for measure, values in grid.mean.items()}
    for values in mean.values():
        values[:2, -2 * PER_DAY :] = np.nan
        values[2:, : -2 * PER_DAY] = np.nan
    # Both come back under their own names, each on the other's card.
    back = [
        replace(grant, card=other.card, node=other.node, started_at=moment)
        for grant, other in ((leader, follower), (follower, leader))
    ]
    keys = (*grid.keys, *(replace(key, card=grant.card) for key, grant in zip(grid.keys, back, strict=True)))
    swapped = replace(
        history,
        inventory=replace(
            history.inventory,
            grants=(replace(leader, ended_at=moment), back[0], replace(follower, ended_at=moment), back[1]),
        ),
        slices=replace(grid, keys=keys, mean=mean, peak=mean),
    )
    np.testing.assert_array_equal(demand_of(swapped).compute, grid.mean[Measure.SM_ACTIVE])


def test_a_server_that_takes_its_share_needs_what_it_needed_under_its_old_grant() -> None:
    history = cluster(Service(name="llm", level=0.3, server="vllm", pool_gib=16.0, used_gib=21.6))
    usage = {Measure.KV_CACHE_USAGE: np.full((1, history.slices.steps), 0.25, np.float32)}
    mean = {**history.slices.mean, **usage}
    before = replace(history, slices=replace(history.slices, mean=mean, peak=mean))
    after = redeployed(before, days_ago=1, workload="llm")
    live = next(grant for grant in after.inventory.grants if grant.ended_at is None)
    halved = replace(live, framebuffer_granted_bytes=12 * GIB, kv_cache_pool_bytes=6 * GIB)
    grants = tuple(halved if grant is live else grant for grant in after.inventory.grants)
    demand = demand_of(replace(after, inventory=replace(after.inventory, grants=grants)))
    np.testing.assert_array_equal(demand.need_bytes[0, :-PER_DAY], demand_of(before).need_bytes[0, :-PER_DAY])
    assert np.isnan(demand.used_bytes[0, :-PER_DAY]).all()


def test_a_plan_of_an_earlier_day_knows_nothing_of_pods_that_came_later() -> None:
    before = cluster(*WEB, days=8)
    after = redeployed(before, days_ago=1, factor=3.0)
    cut = NOW - timedelta(days=2)
    told = []
    for history in (before, after):
        known = tuple(replace(grant, ended_at=None) for grant in history.inventory.grants if grant.started_at < cut)
        # The usage reaches beyond the cut on purpose: nothing later than `as_of` may be looked at.
        told.append(demand_of(replace(history, inventory=replace(history.inventory, as_of=cut, grants=known))))
    np.testing.assert_array_equal(told[0].compute[:, : 6 * PER_DAY], told[1].compute[:, : 6 * PER_DAY])
