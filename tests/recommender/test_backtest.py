"""The back-test judges pods as long as they have the grants that they had when the plan was made."""

from dataclasses import replace
from datetime import timedelta

import numpy as np

from fleet.capabilities.register import HAMI
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.units import GIB
from fleet.usage import History
from recommender.backtest import backtest
from recommender.judged_folds import BacktestScore
from tests.recommender.builders import NOW, PER_DAY, Service, cluster

SMALL = (Service(name="small", replicas=4, level=0.1), Service(name="other", replicas=4, level=0.1))


def grown_on_the_last_day(*, remade: bool) -> History:
    """Pods of one service hold far more framebuffer on the last day: as they were, or made anew for it."""
    history = cluster(*SMALL, days=6)
    rows = [row for row, key in enumerate(history.slices.keys) if key.pod.startswith("small")]
    for table in (history.slices.mean, history.slices.peak):
        table[Measure.FRAMEBUFFER_USED][rows, -PER_DAY:] = 20.0 * GIB
    if not remade:
        return history
    back = NOW - timedelta(days=1)
    grants = [
        part
        for grant in history.inventory.grants
        for part in (
            (replace(grant, ended_at=back), replace(grant, started_at=back)) if grant.workload == "small" else (grant,)
        )
    ]
    return replace(history, inventory=replace(history.inventory, grants=tuple(grants)))


def harm(history: History) -> float | None:
    report = backtest(
        history,
        train_days=4,
        test_days=2,
        settings=Settings.model_validate({"guard": {"gaps_allowed": True}}),
        capability=HAMI,
    )
    return next(score.framebuffer_ratio for score in report.scores if score.rule == "high")


def test_a_pod_that_outgrows_its_slice_is_violated() -> None:
    found = harm(grown_on_the_last_day(remade=False))
    assert found is not None
    assert found > 0.2


def test_what_a_pod_does_after_it_was_made_anew_is_not_held_against_the_plan() -> None:
    assert harm(grown_on_the_last_day(remade=True)) == 0.0


def with_counters(history: History, service: str, value: float) -> History:
    """Compute counters of a service read a value on the judged days, while its servers go on answering."""
    rows = [row for row, key in enumerate(history.slices.keys) if key.pod.startswith(service)]
    grid = history.slices
    mean = {measure: values.copy() for measure, values in grid.mean.items()}
    mean[Measure.REQUEST_RATE] = np.full((len(grid.keys), grid.steps), 5.0, np.float32)
    for measure in (Measure.SM_ACTIVE, Measure.DUTY_CYCLE):
        if measure in mean:
            mean[measure][rows, -2 * PER_DAY :] = value
    return replace(history, slices=replace(grid, mean=mean, peak=mean))


def scores(history: History) -> dict[str, BacktestScore]:
    report = backtest(history, train_days=4, test_days=2, settings=Settings(), capability=HAMI)
    return {score.rule: score for score in report.scores}


def test_counters_that_lie_on_the_judged_days_are_judged_as_missing_ones() -> None:
    history = cluster(*SMALL, days=6)
    lying, missing = (scores(with_counters(history, "small", value)) for value in (0.0, float(np.nan)))
    for rule, found in lying.items():
        assert found.unjudged_pods >= 4, rule
        assert found == missing[rule]
    assert all(found.unjudged_pods == 0 for found in scores(history).values())


def test_nothing_is_known_of_harm_where_all_counters_lie() -> None:
    found = scores(with_counters(cluster(SMALL[0], days=6), "small", 0.0))
    assert {(one.violation_ratio, one.unjudged_pods) for one in found.values()} == {(None, 4)}
