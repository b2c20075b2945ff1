"""Plans on the first part of a history, judged on the days after it: what our advice would have been worth.

Every fold cuts the history, makes profiles and plans anew from what was known at the cut, and plays the following days
with `fleet.sharing`. As in `verify`, a window is judged where compute of the pod and of all that share its card is
known and believed. Naive rules are judged beside it on the same pods. Called by the command line (`backtest`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from analyzer.parts import history_part, sampled_inventory
from fleet.capabilities.register import Capabilities
from fleet.decisions import RiskLevel
from fleet.errors import NotEnoughData
from fleet.relief.rules import ReliefRules
from fleet.settings.settings import PackingChoice, Settings
from fleet.usage import History
from recommender.demand import DAY_SECONDS
from recommender.judged_folds import BacktestScore, Rule, fold_of, judged_presets, judged_rules, part_until
from recommender.naive import NAIVE_RULES, naive_packing
from recommender.past_outcomes import OwnPast, Trial, TriedPlan

TRIAL_LEARNED_DAYS = 3
"""Days that a plan of earlier days is made from at least; it is made from all that lie before it."""
TRIAL_JUDGED_DAYS = 5
"""Days that it is judged on at most."""
TRIAL_PAST_DAYS = 15
"""Newest days of a history on which such plans are judged, each day once."""
TRIAL_SLICES_MAX = 600
"""Slices of a large fleet that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestReport:
    """All folds.

    Attributes:
        train_days: days a plan was made from.
        scores: per fold and rule, folds in order of time.
    """

    train_days: int
    test_days: int
    scores: tuple[BacktestScore, ...]


def _named(rule: str) -> Rule:
    return lambda past, _, rows, capacity_bytes: naive_packing(rule, past, rows, capacity_bytes)


NAIVE: Mapping[str, Rule] = MappingProxyType({rule: _named(rule) for rule in NAIVE_RULES})
"""Rules that plans are judged beside, by name."""


def backtest(
    history: History,
    *,
    train_days: int,
    test_days: int,
    settings: Settings,
    capability: Capabilities,
    folds: int = 1,
    relief: ReliefRules | None = None,
    rules: Mapping[str, Rule] = NAIVE,
) -> BacktestReport:
    """Judges plans made at earlier moments.

    Args:
        history: the whole history; the last fold is judged on its last days.
        settings: settings; every preset is judged.
        folds: cuts, one day apart.
        relief: rules of the relief that plans count on; they are judged with it, naive rules without.
        rules: what is judged beside the presets, by name.

    Raises:
        NotEnoughData: the history does not hold one fold.
    """
    per_day = max(1, DAY_SECONDS // history.slices.step_seconds)
    needed = (train_days + test_days + folds - 1) * per_day
    if history.slices.steps < needed:
        raise NotEnoughData(
            f"cannot back-test {folds} folds of {train_days} + {test_days} days: the history holds "
            f"{history.slices.steps / per_day:.1f} days, {needed / per_day:.0f} are needed"
        )
    scores: list[BacktestScore] = []
    for fold in range(1, folds + 1):
        end = history.slices.steps - (folds - fold) * per_day
        cut = end - test_days * per_day
        known = part_until(history, cut - train_days * per_day, cut)
        part = fold_of(known, history, cut, end, number=fold, settings=settings, capability=capability)
        # As `plan make` would have made it then.
        past = own_past(known, settings=settings, capability=capability, relief=relief)
        scores += judged_presets(part, known, history, settings, capability, past, relief, is_trial=False)
        scores += judged_rules(part, rules)
    return BacktestReport(train_days=train_days, test_days=test_days, scores=tuple(scores))


def own_past(
    history: History, *, settings: Settings, capability: Capabilities, relief: ReliefRules | None = None
) -> OwnPast:
    """What a history by itself teaches: its trials, and whether plans count on relief; see `own_trials`."""
    return _past(own_trials(history, settings=settings, capability=capability, relief=relief), settings, relief)


def past_settings(settings: Settings) -> Settings:
    """The settings as far as `own_past` depends on them: it tries every preset, whichever one is asked for."""
    if settings.risk.violation_ratio_max is not None:
        return settings
    return settings.model_copy(update={"risk": settings.risk.model_copy(update={"preset": RiskLevel.MEDIUM})})


def _past(trials: tuple[Trial, ...], settings: Settings, relief: ReliefRules | None) -> OwnPast:
    return OwnPast(trials=trials, relief_moves_max=None if relief is None else settings.risk.relief_moves_max)


def own_trials(
    history: History, *, settings: Settings, capability: Capabilities, relief: ReliefRules | None = None
) -> tuple[Trial, ...]:
    """Plans of earlier days of a history, each from what was known then, judged on the days that followed.

    Of a large fleet some workloads are tried, whole ones with all that share their cards: how dense a packing is and
    what it harms depends on who meets, hardly on how many there are. For the same reason they are packed greedily.

    Args:
        history: what a plan is to be made from.
        settings: settings of that plan.
        capability: what the backend enforces.
        relief: rules of the relief that the plan counts on: denser plans are tried, and played with it.

    Returns:
        Trials in order of time, judged on days apart; none where the history is shorter than `TRIAL_LEARNED_DAYS` + 1
        days, or holds nobody to judge.
    """
    part = sampled_inventory(history.inventory, TRIAL_SLICES_MAX)
    tried = history_part(history, part)
    packing = settings.recommender.model_copy(update={"packing": PackingChoice.GREEDY})
    greedy = settings.model_copy(update={"recommender": packing})
    per_day = max(1, DAY_SECONDS // tried.slices.step_seconds)
    days = tried.slices.steps // per_day
    found: list[Trial] = []
    for first, last in _trial_days(days):
        # Days are counted from the end, so that the last one is whole.
        cut, end = (tried.slices.steps - (days - day) * per_day for day in (first, last))
        known = part_until(tried, 0, cut)
        fold = fold_of(known, tried, cut, end, number=len(found) + 1, settings=greedy, capability=capability)
        if not len(fold.judged):
            continue
        judged = judged_presets(
            fold, known, tried, greedy, capability, _past((), settings, relief), relief, is_trial=True
        )
        if plans := _tried_plans(judged):
            found.append(Trial(since=fold.since, until=fold.until, plans=plans))
    return tuple(found)


def _tried_plans(judged: Sequence[BacktestScore]) -> tuple[TriedPlan, ...]:
    """What came of the plans that could be judged."""
    day = timedelta(days=1)
    return tuple(
        TriedPlan(
            forecast_ratio=score.predicted_violation_ratio,
            violation_ratio=score.violation_ratio,
            saved_ratio=score.saved_ratio,
            spare_ratio=score.spare_cards / max(1, score.cards_after - score.spare_cards),
            moves_per_pod_day=score.moves / max(1, score.cards_before) / ((score.until - score.since) / day),
        )
        for score in judged
        if score.predicted_violation_ratio is not None and score.violation_ratio is not None
    )


def _trial_days(days: int) -> list[tuple[int, int]]:
    """First day and end of what each trial is judged on, of a history of so many days; the newest days are full."""
    first = max(TRIAL_LEARNED_DAYS, days - TRIAL_PAST_DAYS)
    ends = range(days, first, -TRIAL_JUDGED_DAYS)
    return [(max(first, end - TRIAL_JUDGED_DAYS), end) for end in reversed(ends)]
