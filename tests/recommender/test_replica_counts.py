"""An autoscaler is seen by what it does, and the tide does not work against it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleet.decisions import Plan, RecommendationKind
from fleet.inventory import AUTOSCALED_LABEL, WARM_REPLICAS_LABEL, CardId, Grant, WorkloadId
from fleet.usage import History
from recommender.replica_counts import scalings
from tests.english import english
from tests.recommender.builders import NOW, Service, cluster, plan_of

WEB = WorkloadId("team/Deployment/web")
BY_DAY = Service(name="web", replicas=6, level=0.9, used_gib=20.0, hours=(8, 20))
WEEK = timedelta(days=7)


def lived(grant: Grant, spans: Sequence[tuple[float, float | None]]) -> list[Grant]:
    """Pods like this one that began and ended so many hours before now."""
    return [
        replace(
            grant,
            pod=f"{grant.pod}-{number}",
            started_at=NOW - timedelta(hours=began),
            ended_at=None if ended is None else NOW - timedelta(hours=ended),
        )
        for number, (began, ended) in enumerate(spans)
    ]


def counted(grants: Sequence[Grant]) -> int:
    return scalings(grants, now=NOW, since=NOW - WEEK).get(WEB, 0)


GRANT = cluster(BY_DAY).inventory.grants[0]
NIGHTLY = [(24.0 * day + 14, 24.0 * day + 2) for day in range(4)]


def test_replicas_that_come_by_day_and_go_by_night_are_counted() -> None:
    assert counted([GRANT, *lived(GRANT, NIGHTLY)]) == 8


def test_what_our_own_tide_moved_is_not_counted() -> None:
    moments = [
        (NOW - timedelta(hours=at), NOW - timedelta(hours=at)) for began, ended in NIGHTLY for at in (began, ended)
    ]
    grants = [GRANT, *lived(GRANT, NIGHTLY)]
    assert scalings(grants, now=NOW, since=NOW - WEEK, own={WEB: moments}) == {}
    assert scalings(grants, now=NOW, since=NOW - WEEK, own={WEB: moments[2:]})[WEB] == 2
    assert scalings(grants, now=NOW, since=NOW - WEEK, own={WorkloadId("team/Deployment/other"): moments})[WEB] == 8


def test_restart_within_the_hour_changes_nothing() -> None:
    assert counted(lived(GRANT, [(200, 50.4), (50.3, None)])) == 0


def test_pods_that_were_there_before_anybody_looked_say_nothing() -> None:
    assert counted(lived(GRANT, [(1000, None), (500, None)])) == 0
    assert counted(lived(GRANT, [(1000, 400), (500, 300)])) == 0


def test_slices_and_later_grants_of_one_pod_are_one_pod() -> None:
    pod = lived(GRANT, [(200, 60)])[0]
    later = replace(pod, started_at=NOW - timedelta(hours=60), ended_at=None)
    other_card = replace(pod, card=CardId("GPU-other"), started_at=NOW - timedelta(hours=100), ended_at=None)
    assert counted([pod, later, other_card]) == 0


def test_clock_that_ran_ahead_counts_as_now() -> None:
    assert counted(lived(GRANT, [(-5, None), (-3, -4)])) == 0


def with_past(history: History, grants: Sequence[Grant]) -> History:
    return replace(history, inventory=replace(history.inventory, grants=(*history.inventory.grants, *grants)))


def tide_refusals(history: History) -> set[str]:
    plan = plan_of(history)
    steps_back = {item.kind for item in plan.recommendations} & {RecommendationKind.TIDE}
    refused = {item.reason for item in plan.refused if item.kind is RecommendationKind.TIDE}
    assert bool(steps_back) != bool(refused)
    assert bool(plan.schedule) == bool(steps_back)
    return refused


def test_service_that_nobody_scales_steps_back() -> None:
    assert tide_refusals(cluster(BY_DAY)) == set()


def test_service_that_is_scaled_already_does_not_step_back() -> None:
    assert tide_refusals(with_past(cluster(BY_DAY), lived(GRANT, NIGHTLY))) == {"autoscaled"}


@pytest.mark.parametrize(("value", "refused"), [("true", {"autoscaled"}), ("keda", {"autoscaled"}), ("false", set())])
def test_annotation_says_so_as_well(value: str, refused: set[str]) -> None:
    assert tide_refusals(cluster(replace(BY_DAY, labels=((AUTOSCALED_LABEL, value),)))) == refused


def beside(told: str, **changes: Any) -> Plan:
    return plan_of(cluster(replace(BY_DAY, labels=((AUTOSCALED_LABEL, told),), **changes)))


def test_beside_a_known_autoscaler_its_lower_bound_is_what_steps_back() -> None:
    plan = beside("HorizontalPodAutoscaler 4-10")
    (scheduled,) = plan.schedule
    (advice,) = [item for item in plan.recommendations if item.kind is RecommendationKind.TIDE]
    alone = plan_of(cluster(BY_DAY)).schedule[0]
    # Without an autoscaler two stay: they carry a quarter of the day's demand, which may come back in the night.
    assert (scheduled.replicas, alone.replicas) == (1, 2)
    # Two of its six replicas are the autoscaler's own business: four less one are what the bound gives back.
    assert len(scheduled.frees) == 3
    assert len(alone.frees) == 4
    assert "its HorizontalPodAutoscaler keeps at least 4; with that bound lowered to 1" in english(advice)


def test_counts_that_a_known_autoscaler_changed_are_no_reason_against_its_bound() -> None:
    history = with_past(
        cluster(replace(BY_DAY, labels=((AUTOSCALED_LABEL, "ScaledObject 3-10"),))), lived(GRANT, NIGHTLY)
    )
    assert tide_refusals(history) == set()


@pytest.mark.parametrize("told", ["HorizontalPodAutoscaler 1-10", "ScaledObject 0-10"])
def test_an_autoscaler_without_a_bound_to_lower_is_left_alone(told: str) -> None:
    (refusal,) = [item for item in beside(told).refused if item.kind is RecommendationKind.TIDE]
    assert refusal.reason == "autoscaled"
    assert "no bound is left to lower" in english(refusal)


def test_replicas_that_are_to_stay_warm_bound_the_autoscaler_as_well() -> None:
    history = cluster(
        replace(BY_DAY, labels=((AUTOSCALED_LABEL, "HorizontalPodAutoscaler 4-10"), (WARM_REPLICAS_LABEL, "3")))
    )
    (scheduled,) = plan_of(history).schedule
    assert (scheduled.replicas, len(scheduled.frees)) == (3, 1)
