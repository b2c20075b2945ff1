"""Plans of all presets on days that they have not seen, beside naive rules and hindsight: a fold each, for one bar.

Generated fleets are played by `gputide plan backtest`'s own judge, which is given more rules; the recorded one by the
referee that stands beside the traces, which shares no code with us. Seeds are those that nothing was chosen with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bench.company_fleet import company_fleet
from bench.measured_run import traces
from bench.plan_folds import HINDSIGHT, Fold, Score, load_referee
from bench.quality_stages import Cut
from exporter.trace.trace import open_trace
from fleet.capabilities.register import HAMI
from fleet.decisions import RiskLevel
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.usage import Float32, History
from gputide.replay.history import read_history
from recommender.backtest import NAIVE, backtest
from recommender.demand import Demand
from recommender.judged_folds import BacktestScore, Rule
from recommender.policies.first_fit import first_fit_decreasing
from tests.recommender.second_fleet import second_fleet

RECORDED, SECOND, COMPANY = "recorded", "second", "company"
KINDS = ("mixed", "weekly", "drifting", "bursty", "night_batch", "newcomers", "gaps", "shifting")
SEEDS = (41, 42, 43, 44, 45)
CARDS, TEST_DAYS = 200, 7
"""Generated fleets are judged for as long as `verify` watches a plan: an office week has five days and two."""
WEEK, WEEKS = 7, 21
"""Days that are learned."""
CUTS = (Cut(cut=5, end=8), Cut(cut=6, end=9), Cut(cut=7, end=10), Cut(cut=8, end=10))
RISE_MIN = 1.15
"""A judged day on which the fleet as a whole is this many times as busy as on the busiest learned day: a shift that the
company made, for shifts of single services cancel out."""
MIB_STEP = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One fold to be judged.

    Attributes:
        fleet: fleets of one name are pooled.
        kind: of a second fleet; None for others.
        seed: None for the recorded fleet.
        learned: days, None where a cut of the recorded fleet says it.
    """

    fleet: str
    kind: str | None = None
    seed: int | None = None
    learned: int | None = None
    cut: Cut | None = None

    @property
    def label(self) -> str:
        """Fleet, seed and days."""
        return f"{self.fleet} {self.cut.label}" if self.cut else f"{self.fleet} {self.seed}, {self.learned} days"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one rule or preset did in one fold; ratios 0-1.

    Attributes:
        active: judged active pod-steps.
        framebuffer: violated for want of framebuffer.
        predicted: what a plan said before, None for rules.
        interval: between which it said nine of ten such plans stay.
        shifted: what it said of days on which the whole fleet is as busy as after a launch.
    """

    saved: float
    realised: float
    active: int
    framebuffer: float
    predicted: float | None = None
    interval: tuple[float, float] | None = None
    shifted: float | None = None

    @property
    def violated(self) -> int:
        """Violated windows."""
        return round(self.realised * self.active)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One fold.

    Attributes:
        rise: busiest judged day / busiest learned day, of the fleet as a whole.
        outcomes: by rule or preset, hindsight among them.
    """

    task: Task
    rise: float
    outcomes: dict[str, Outcome]

    @property
    def is_shifting(self) -> bool:
        """The company as a whole shifted."""
        return self.rise >= RISE_MIN


def tasks() -> list[Task]:
    """All folds, the longest first; those of the recorded fleet only where it and the referee are there."""
    found = [] if referee() is None else [Task(fleet=RECORDED, cut=cut) for cut in CUTS]
    for number, seed in enumerate(SEEDS):
        found += [Task(fleet=COMPANY, seed=seed, learned=learned) for learned in (WEEKS, WEEK)]
        # Each seed has half of the kinds, and each kind two or three of the seeds.
        kinds = [KINDS[(number + place) % len(KINDS)] for place in (0, 2, 4, 6)]
        for place, kind in enumerate(kinds):
            for learned in (WEEKS, WEEK) if place % 2 == 0 else (WEEK,):
                found.append(Task(fleet=f"{SECOND} {kind}", kind=kind, seed=seed, learned=learned))
    return found


@cache
def referee() -> ModuleType | None:
    """The referee, None where it is not beside the checkout."""
    folder = traces()
    path = None if folder is None else folder.parent / "tools" / "judge_plan.py"
    return load_referee(path) if path is not None and path.exists() else None


def judge(task: Task) -> Judged:
    """Makes the plans of a fold and judges them."""
    if task.cut is not None:
        return _recorded(task, task.cut)
    assert task.learned is not None
    assert task.seed is not None
    days = task.learned + TEST_DAYS
    if task.kind is None:
        history = company_fleet(task.seed, CARDS, days)
    else:
        history = second_fleet(task.seed, CARDS, days, task.kind)
    report = backtest(
        history, train_days=task.learned, test_days=TEST_DAYS, settings=Settings(), capability=HAMI, rules=RULES
    )
    outcomes = {score.rule: _outcome(score) for score in report.scores}
    return Judged(task=task, rise=rise(history, TEST_DAYS), outcomes=outcomes)


def rise(history: History, test_days: int) -> float:
    """Busiest of the last days / busiest before, summed over slices that were seen on every day."""
    busy = history.slices.mean[Measure.SM_ACTIVE]
    per_day = 86400 // history.slices.step_seconds
    days = busy.shape[1] // per_day
    by_day = busy[:, : days * per_day].reshape(len(busy), days, per_day)
    seen = np.isfinite(by_day).sum(axis=2)
    daily = np.nansum(by_day, axis=2) / np.maximum(1, seen)
    total = daily[(2 * seen >= per_day).all(axis=1)].sum(axis=0)
    return float(total[-test_days:].max() / max(1e-9, total[:-test_days].max()))


def _outcome(score: BacktestScore) -> Outcome:
    return Outcome(
        saved=score.saved_ratio,
        realised=score.violation_ratio or 0.0,
        active=score.active_steps,
        framebuffer=score.framebuffer_ratio or 0.0,
        predicted=score.predicted_violation_ratio,
        interval=score.predicted_violation_interval,
        shifted=score.shifted_violation_ratio,
    )


def _recorded(task: Task, cut: Cut) -> Judged:
    folder, judge_module = traces(), referee()
    assert folder is not None
    assert judge_module is not None
    trace = open_trace(folder / "fleet-servegen")
    fold = Fold(judge_module, trace, cut)
    outcomes = {rule: _scored(score) for rule, score in fold.naive.items() if rule != "keep whole cards"}
    for level, plan in fold.plans().items():
        said = plan.totals
        outcomes[level.value] = _scored(
            fold.judge(plan),
            said.predicted_violation_ratio,
            said.predicted_violation_interval,
            said.shifted_violation_ratio,
        )
    since, _, until = cut.moments(trace)
    whole = read_history(trace, since=since, until=until)
    return Judged(task=task, rise=rise(whole, cut.end - cut.cut), outcomes=outcomes)


def _scored(
    score: Score,
    predicted: float | None = None,
    interval: tuple[float, float] | None = None,
    shifted: float | None = None,
) -> Outcome:
    return Outcome(
        saved=score.saved_ratio, realised=score.violation_ratio, active=score.active,
        framebuffer=score.memory / max(1, score.active), predicted=predicted, interval=interval,
        shifted=shifted,
    )  # fmt: skip


def _by_first_fit(profile: Float32, need: NDArray[np.float64], capacity: float, limit: float) -> tuple[
    NDArray[np.int32], NDArray[np.float64]
]:  # fmt: skip
    return first_fit_decreasing(need, profile, capacity, limit).astype(np.int32), need


def _hindsight(_: Demand, coming: Demand, rows: NDArray[np.int64], capacity: float) -> tuple[
    NDArray[np.int32], NDArray[np.float64]
]:  # fmt: skip
    need = np.minimum(capacity, np.nan_to_num(coming.need_bytes[rows]).max(axis=1).astype(float))
    return _by_first_fit(np.nan_to_num(coming.compute[rows]), need, capacity, 1.0)


def _flat(level: str) -> Rule:
    """A rule that gives each pod one number of compute for all hours."""

    def packed(past: Demand, _: Demand, rows: NDArray[np.int64], capacity: float) -> tuple[
        NDArray[np.int32], NDArray[np.float64]
    ]:  # fmt: skip
        peak = np.nan_to_num(past.need_bytes[rows]).max(axis=1).astype(float)
        need = np.minimum(capacity, np.ceil(peak * 1.10 / MIB_STEP) * MIB_STEP)
        known = [row[np.isfinite(row)] for row in past.compute[rows]]
        each = [FLAT[level](row) if len(row) else 0.0 for row in known]
        return _by_first_fit(np.minimum(1.0, each).astype(np.float32)[:, None], need, capacity, 1.0)

    return packed


FLAT = {
    "sum of p99": lambda row: float(np.quantile(row, 0.99)),
    "sum of p95 + 15 %": lambda row: 1.15 * float(np.quantile(row, 0.95)),
    "mean + 3 sigma": lambda row: float(row.mean() + 3 * row.std()),
}
RULES: dict[str, Rule] = {**NAIVE, **{level: _flat(level) for level in FLAT}, HINDSIGHT: _hindsight}
"""What plans are judged beside; the referee has the same and one hour profile more."""
PRESETS = tuple(level.value for level in RiskLevel)


def naive_of(folds: list[Judged]) -> Iterator[str]:
    """Rules that every fold was judged by, hindsight and presets aside."""
    for rule in folds[0].outcomes:
        if rule not in (*PRESETS, HINDSIGHT) and all(rule in fold.outcomes for fold in folds):
            yield rule
