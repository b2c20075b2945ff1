"""The whole loop on a synthetic fleet in one process: no GPU, no cluster, no Java. Called by `gputide demo`.

Two and a half weeks are played and learned from, a plan is made, approved, applied canary first, watched and kept;
three more days are played with the pods where the plan put them; then the promise is held against what came. All of it
is taken back to show that it can be; after one more day a fresh plan is left open for the web page.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from analyzer.profile import profile_fleet
from enforcer.record.verdict import english, sentences, verdict_of
from enforcer.rollout.undo import Undo
from enforcer.verify import verify
from exporter.synthetic import write_synthetic_fleet
from exporter.trace import open_trace
from fleet.capabilities import capabilities_of
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.errors import NotEnoughData
from fleet.outcomes import Outcome
from fleet.profiles import CardState, Profiles
from fleet.settings import ClusterChoice, Settings
from fleet.usage import History
from gputide.clock import read_replay_clock
from gputide.data_folder import DataFolder, open_data_folder, writing
from gputide.guard_policy import harm_policy
from gputide.measurements import WarehouseMeasurements
from gputide.outcome_shelf import keep_outcome
from gputide.replay import Replayed, replay
from gputide.session import Tick
from gputide.wiring import journal, keep_plan, load_history, open_enforcer, plan_store
from recommender.planner import make_plan

CARDS = 160
LEARNED_DAYS = 17
PLAYED_DAYS = 3
DAYS_AFTER = 1
DAYS = LEARNED_DAYS + PLAYED_DAYS + DAYS_AFTER
OPERATOR = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStep:
    """One step of the loop, for the summary.

    Attributes:
        name: what was done.
        result: what came of it, one line.
        seconds: how long it took.
    """

    name: str
    result: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """What the demo did.

    Attributes:
        folder: where its state lies.
        steps: steps in order.
        applied: the plan that was applied.
        outcome: what came of it.
        waiting: the plan that waits for a click.
    """

    folder: DataFolder
    steps: tuple[DemoStep, ...]
    applied: Plan
    outcome: Outcome
    waiting: Plan


class _Steps:
    """Collects steps and their times."""

    def __init__(self, started: Callable[[str], None]) -> None:
        self.done: list[DemoStep] = []
        self._started = started

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Time one step; the caller puts its result into the list."""
        self._started(name)
        began = time.perf_counter()
        result: list[str] = []
        yield result
        self.done.append(DemoStep(name=name, result=" ".join(result), seconds=time.perf_counter() - began))


def run_demo(path: Path, settings: Settings, *, started: Callable[[str], None], tick: Tick) -> DemoSummary:
    """Run the loop in a fresh folder.

    Args:
        path: data folder of the demo; an earlier demo there is removed.
        settings: all settings.
        started: told the name of each step as it begins.
        tick: told how far a replay is.

    Raises:
        Corrupt: the folder holds something else, or can't be written.
    """
    # Whatever cluster the settings choose elsewhere: the demo's own is the one that it may do with as it likes.
    enforcer = settings.enforcer.model_copy(update={"cluster": ClusterChoice.SIMULATED})
    settings = settings.model_copy(update={"enforcer": enforcer})
    if path.exists():
        # Only a folder that carries our stamp is removed; `open_data_folder` raises on any other.
        open_data_folder(path, create=True)
        shutil.rmtree(path)
    folder = open_data_folder(path, create=True)
    steps = _Steps(started)
    trace = path / "trace"
    with writing(folder):
        with steps.step("make a synthetic fleet") as said:
            write_synthetic_fleet(trace, cards=CARDS, days=DAYS)
            begin = open_trace(trace).since
            said.append(f"{CARDS} cards, {DAYS} days at 10 minutes: inference, training, notebooks, liars")
        cut = begin + timedelta(days=LEARNED_DAYS)
        with steps.step(f"replay {LEARNED_DAYS} days through receiver, bus, rollup, warehouse") as said:
            said.append(_replayed_words(_play(folder, trace, cut, settings, tick)))
        with steps.step("describe cards and workloads") as said:
            profiles = profile_fleet(_history(folder, settings), settings=settings.analyzer, now=_now(folder))
            said.append(_profile_words(profiles))
        with steps.step("make a plan") as said:
            plan = _plan(folder, settings, profiles)
            said.append(_plan_words(plan))
        with steps.step("approve and apply it, canary first, watched") as said:
            said.append(_apply(folder, settings, plan))
        with steps.step(f"replay {PLAYED_DAYS} more days where the plan put the pods") as said:
            said.append(_replayed_words(_play(folder, trace, cut + timedelta(days=PLAYED_DAYS), settings, tick)))
        with steps.step("verify promised against realised") as said:
            outcome = _verify(folder, settings, plan)
            said.append(english(sentences(verdict_of(outcome))))
        with steps.step("take all of it back") as said:
            said.append(_undo(folder, settings, plan))
        with steps.step(f"replay {DAYS_AFTER} day more and make the next plan") as said:
            _play(folder, trace, None, settings, tick)
            profiles = profile_fleet(_history(folder, settings), settings=settings.analyzer, now=_now(folder))
            waiting = _plan(folder, settings, profiles)
            said.append(f"{_plan_words(waiting)}; it waits for your click")
    return DemoSummary(folder=folder, steps=tuple(steps.done), applied=plan, outcome=outcome, waiting=waiting)


def _now(folder: DataFolder) -> datetime:
    clock = read_replay_clock(folder)
    return clock.now if clock is not None else datetime.now(UTC)


def _history(folder: DataFolder, settings: Settings) -> History:
    return load_history(folder, settings, _now(folder))


def _play(folder: DataFolder, trace: Path, until: datetime | None, settings: Settings, tick: Tick) -> Replayed:
    return replay(folder, trace, since=None, until=until, settings=settings, speed=None, tick=tick, sleep=time.sleep)


def _plan(folder: DataFolder, settings: Settings, profiles: Profiles) -> Plan:
    plan = make_plan(
        _history(folder, settings),
        profiles,
        settings=settings,
        capability=capabilities_of(settings.enforcer.backend),
        now=_now(folder),
    )
    sealed = seal_plan(plan)
    keep_plan(folder, settings, sealed)
    return sealed


def _apply(folder: DataFolder, settings: Settings, plan: Plan) -> str:
    store, now = plan_store(folder), _now(folder)
    stages = tuple(stage.stage for stage in plan.stages)
    if not stages:
        raise NotEnoughData("cannot apply the demo's plan: it proposes nothing")
    store.approve(plan, stages, by=OPERATOR, at=now)
    with open_enforcer(folder, settings, now, on_progress=lambda _news: None) as enforcer:
        results = enforcer.rollout.apply(
            plan, stages, by=OPERATOR, approved=stages, fingerprint=store.fingerprint(plan.plan_id)
        )
    kept = sum(result.state.value == "promoted" for result in results)
    return f"{kept} of {len(stages)} stages kept, {plan.totals.moves} pods restarted in their new slices"


def _verify(folder: DataFolder, settings: Settings, plan: Plan) -> Outcome:
    outcome = verify(
        plan,
        journal(folder).runs(plan.plan_id),
        WarehouseMeasurements(folder, settings),
        now=_now(folder),
        verify_days=settings.enforcer.verify_days,
        harm_policy=harm_policy(settings),
    )
    keep_outcome(folder, outcome)
    return outcome


def _undo(folder: DataFolder, settings: Settings, plan: Plan) -> str:
    with open_enforcer(folder, settings, _now(folder), on_progress=lambda _news: None) as enforcer:
        result = Undo(enforcer.tools).undo(plan.plan_id)
    return "; ".join((f"{len(result.workloads)} workloads are as they were", *result.kept))


def _replayed_words(done: Replayed) -> str:
    return f"{done.samples:,} samples in {done.requests:,} remote-write bodies, {done.rows:,} rows"


def _profile_words(profiles: Profiles) -> str:
    idle = sum(card.state is CardState.IDLE_HELD for card in profiles.cards)
    free = len(profiles.unallocated)
    return (
        f"{len(profiles.workloads)} workloads; {idle} cards held and idle, {free} free; "
        f"coverage {profiles.coverage_ratio:.1%}"
    )


def _plan_words(plan: Plan) -> str:
    totals = plan.totals
    return (
        f"{totals.cards_freed} of {totals.cards_before} cards, {plan.totals.moves} moves, "
        f"predicted violation {totals.predicted_violation_ratio:.2%}"
    )
