"""Static plans on cut days of a recorded fleet, scored by the referee's own functions: shared by the bars of quality.

The days are those of `quality_stages`; a trace is read and cut in this process, so that a plan costs seconds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from analyzer.profile import profile_fleet
from bench.quality_stages import Cut
from exporter.trace.trace import Trace
from fleet.capabilities.register import HAMI
from fleet.decisions import Plan, RiskLevel
from fleet.settings.settings import Settings
from gputide.replay.history import read_history
from recommender.backtest import own_trials
from recommender.past_outcomes import OwnPast
from recommender.planner import make_plans

HINDSIGHT = "hindsight (first fit decreasing on the test days)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Sums of the referee: cards after, pods, active and violated pod-steps, and those short of framebuffer."""

    cards: int
    pods: int
    active: int
    bad: int
    memory: int

    @property
    def saved_ratio(self) -> float:
        """Cards saved, 0-1."""
        return 1 - self.cards / self.pods

    @property
    def violation_ratio(self) -> float:
        """Violated active time, 0-1."""
        return self.bad / max(1, self.active)

    def __str__(self) -> str:
        return f"{self.saved_ratio:.1%} at {self.violation_ratio:.3%}"


def pooled(scores: Sequence[Score]) -> Score:
    """The sums of several scores."""
    columns = zip(*((score.cards, score.pods, score.active, score.bad, score.memory) for score in scores), strict=True)
    cards, pods, active, bad, memory = (sum(column) for column in columns)
    return Score(cards=cards, pods=pods, active=active, bad=bad, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """What the referee needs of one card model."""

    card_model: str
    names: tuple[str, ...]
    capacity: float
    demand: Any
    need: Any
    counted: Any


class Fold:
    """One cut: the referee's arrays, its naive rules' scores, and the history that a plan may know."""

    def __init__(self, referee: ModuleType, trace: Trace, cut: Cut) -> None:
        self.cut = cut
        self._referee = referee
        since, now, until = cut.moments(trace)
        self.history = read_history(trace, since=since, until=now)
        pods, usage, _ = referee.load(trace.folder)
        # A sample's time is the end of its step.
        since, now, until = (pd.Timestamp(moment) for moment in (since, now, until))
        train = usage[(usage.ts > since) & (usage.ts <= now)]
        test = usage[(usage.ts > now) & (usage.ts <= until)]
        alive = set(train.pod) & set(test.pod) & set(pods.index)
        judged = [pod for pod in pods.index if pod in alive and pods.workload_kind[pod] == "Deployment"]
        self._models: list[_Model] = []
        naive: dict[str, list[Score]] = {}
        for model in sorted({pods.card_model[pod] for pod in judged}):
            names = [pod for pod in judged if pods.card_model[pod] == model]
            capacity = float(pods.framebuffer_bytes[names[0]])
            demand, used, need = referee.series(train, None, pods, names)
            test_demand, _, test_need = referee.series(test, None, pods, names)
            rules = referee.baselines(
                pods, names, demand.to_numpy(float), used, need, test_demand.to_numpy(float), test_need, capacity,
                demand.index,
            )  # fmt: skip
            found = _Model(
                card_model=model,
                names=tuple(names),
                capacity=capacity,
                demand=test_demand.to_numpy(float),
                need=test_need,
                counted=(pods.priority.reindex(names) != "low").to_numpy(),
            )
            self._models.append(found)
            for rule, (card_of, grant) in rules.items():
                got = referee.score(card_of, found.demand, found.need, grant, capacity)
                naive.setdefault(rule, []).append(_score(got, len(names)))
        self.naive: Mapping[str, Score] = {rule: pooled(scores) for rule, scores in naive.items()}

    def plans(self) -> dict[RiskLevel, Plan]:
        """The plan of each preset, as `gputide plan make` makes it from the days that it may know."""
        now, settings = self.history.inventory.as_of, Settings()
        return make_plans(
            self.history,
            profile_fleet(self.history, settings=settings.analyzer, now=now),
            settings=settings,
            capability=HAMI,
            now=now,
            past=OwnPast(trials=own_trials(self.history, settings=settings, capability=HAMI)),
            levels=tuple(RiskLevel),
        )

    def judge(self, plan: Plan) -> Score:
        """The referee's score of a plan; a pod that it does not place keeps its own whole card."""
        scores = []
        for model in self._models:
            placed = {
                part.pod: (str(card.card), float(part.framebuffer_bytes))
                for card in plan.placement
                if card.card_model == model.card_model
                for part in card.slices
            }
            numbers: dict[str, int] = {}
            where = [placed.get(name, (f"own {name}", model.capacity)) for name in model.names]
            card_of = np.array([numbers.setdefault(card, len(numbers)) for card, _ in where])
            grant = np.array([size for _, size in where])
            got = self._referee.score(card_of, model.demand, model.need, grant, model.capacity, model.counted)
            scores.append(_score(got, len(model.names)))
        return pooled(scores)


def _score(got: Mapping[str, Any], pods: int) -> Score:
    return Score(cards=got["cards"], pods=pods, active=got["active"], bad=got["bad"], memory=got["memory"])


def load_referee(path: Path) -> ModuleType:
    """The referee as a module."""
    spec = importlib.util.spec_from_file_location("judge_plan", path)
    if spec is None or spec.loader is None:
        raise AssertionError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
