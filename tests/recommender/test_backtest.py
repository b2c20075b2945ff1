"""The back-test judges pods as long as they have the grants that they had when the plan was made."""

from dataclasses import replace
from datetime import timedelta

from fleet.capabilities.register import HAMI
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.units import GIB
from fleet.usage import History
from recommender.backtest import backtest
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


def harm(history: History) -> float:
    report = backtest(
        history,
        train_days=4,
        test_days=2,
        settings=Settings.model_validate({"guard": {"gaps_allowed": True}}),
        capability=HAMI,
    )
    return next(score.framebuffer_ratio for score in report.scores if score.rule == "high")


def test_a_pod_that_outgrows_its_slice_is_violated() -> None:
    assert harm(grown_on_the_last_day(remade=False)) > 0.2


def test_what_a_pod_does_after_it_was_made_anew_is_not_held_against_the_plan() -> None:
    assert harm(grown_on_the_last_day(remade=True)) == 0.0
