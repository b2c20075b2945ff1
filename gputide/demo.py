"""The whole loop on a synthetic fleet in one process: no GPU, no cluster, no Java. Called by `gputide demo`.

Two and a half weeks are played and learned from; a plan is made, approved, applied canary first, watched and kept.
Three more days are played with the pods where the plan put them; then what was promised is compared with what was
observed, and the service that was harmed most is restored. The rest of the plan stays. While five more days are
played, teams deploy new services; the next plan is about those, and waits for a click on the web page.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from analyzer.profile import profile_fleet
from dashboards.words.advice import verdict_words
from enforcer.record.journal import StageState
from enforcer.record.outcome_store import keep_outcome, read_outcomes
from enforcer.record.verdict import standing_of, verdict_of
from enforcer.rollout.undo import Undo
from enforcer.simulated.systems import system_of
from exporter.synthetic.writer import write_synthetic_fleet
from exporter.trace.trace import open_trace
from exporter.trace.writer import label_workload
from fleet.capabilities.register import capabilities_of
from fleet.data_folder import DataFolder, open_data_folder, writing
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.errors import Misconfigured, NotEnoughData
from fleet.inventory import OPT_OUT_LABEL, WorkloadId
from fleet.outcomes import Outcome
from fleet.profiles import CardState, Profiles
from fleet.settings.settings import ClusterChoice, Settings
from fleet.usage import History
from fleet.words import Language
from gputide.container.enforcer import open_enforcer
from gputide.container.history import load_history
from gputide.container.measured_harm import verified
from gputide.container.plans import journal, keep_plan, plan_store
from gputide.replay.clock import read_replay_clock
from gputide.replay.play import Playback, Replayed, replay
from gputide.session import Tick
from recommender.backtest import own_past
from recommender.past_outcomes import calibration_of
from recommender.planner import make_plan

CARDS = 160
LEARNED_DAYS = 17
PLAYED_DAYS = 3
DAYS_AFTER = 5
"""Long enough that the verdict on the plan is final (`enforcer.verify_days`)."""
DAYS = LEARNED_DAYS + PLAYED_DAYS + DAYS_AFTER
NEWCOMERS_DAYS = LEARNED_DAYS + PLAYED_DAYS + 0.4
"""The morning after a service was restored, teams deploy new ones."""
OPERATOR = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStep:
    """One step of the loop, for the summary.

    Attributes:
        result: what came of it, one line.
    """

    name: str
    result: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """What the demo did.

    Attributes:
        restored: the workload whose change was undone.
        outcome: what the rest of the plan saved and harmed, measured at the end.
        waiting: the plan that waits for a click.
    """

    folder: DataFolder
    steps: tuple[DemoStep, ...]
    applied: Plan
    restored: WorkloadId
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
        started: told the name of each step as it begins.

    Raises:
        Corrupt: the folder holds something else, or can't be written.
        Misconfigured: as `demo_settings`.
    """
    settings = demo_settings(settings)
    if path.exists():
        # Only a folder that carries our stamp is removed; `open_data_folder` raises on any other.
        open_data_folder(path, create=True)
        shutil.rmtree(path)
    folder = open_data_folder(path, create=True)
    steps = _Steps(started)
    trace = path / "trace"
    with writing(folder):
        with steps.step("make a synthetic fleet") as said:
            write_synthetic_fleet(trace, cards=CARDS, days=DAYS, newcomers_days=NEWCOMERS_DAYS)
            begin = open_trace(trace).since
            said.append(
                f"{CARDS} cards, {DAYS} days at 10 minutes: inference, training, notebooks, unreliable counters"
            )
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
            said.append(verdict_words(verdict_of(outcome), Language.EN))
        with steps.step("restore the service that was harmed most") as said:
            restored, words = _restore_one(folder, settings, plan, outcome, trace)
            said.append(words)
        with steps.step(f"replay {DAYS_AFTER} more days, in which teams deploy new services") as said:
            said.append(_replayed_words(_play(folder, trace, None, settings, tick)))
        with steps.step("verify again") as said:
            outcome = _verify(folder, settings, plan)
            said.append(verdict_words(verdict_of(outcome), Language.EN))
        with steps.step("make the next plan") as said:
            profiles = profile_fleet(_history(folder, settings), settings=settings.analyzer, now=_now(folder))
            waiting = _plan(folder, settings, profiles)
            said.append(f"{_plan_words(waiting)}; it waits for your click")
    return DemoSummary(
        folder=folder, steps=tuple(steps.done), applied=plan, restored=restored, outcome=outcome, waiting=waiting
    )


def demo_settings(settings: Settings) -> Settings:
    """The settings of the demo and of whoever looks at it later: its own cluster, with which any backend may be tried.

    A backend that changes all replicas at once can't keep each of them ready meanwhile; the demo says yes to that.

    Raises:
        Misconfigured: no simulated cluster can play the settings' backend, or plans should count on relief.
    """
    if settings.risk.counts_on_relief:
        raise Misconfigured(
            "cannot play a demo whose plans count on relief: it replays whole days at once, and relief acts on the "
            "last recorded step alone; risk.counts_on_relief=true, expected false"
        )
    record = system_of(settings.enforcer.backend).capabilities
    own = settings.enforcer.model_copy(update={"cluster": ClusterChoice.SIMULATED, "experimental": True})
    gaps_allowed = settings.guard.gaps_allowed or not record.admits_pods
    guard = settings.guard.model_copy(update={"gaps_allowed": gaps_allowed})
    return settings.model_copy(update={"enforcer": own, "guard": guard})


def _now(folder: DataFolder) -> datetime:
    clock = read_replay_clock(folder)
    return clock.now if clock is not None else datetime.now(UTC)


def _history(folder: DataFolder, settings: Settings) -> History:
    return load_history(folder, settings, _now(folder))


def _play(folder: DataFolder, trace: Path, until: datetime | None, settings: Settings, tick: Tick) -> Replayed:
    return replay(folder, settings, Playback(trace=trace, until=until), tick=tick)


def _plan(folder: DataFolder, settings: Settings, profiles: Profiles) -> Plan:
    capability = capabilities_of(settings.enforcer.backend)
    history = _history(folder, settings)
    plan = make_plan(
        history,
        profiles,
        settings=settings,
        capability=capability,
        now=_now(folder),
        past=replace(
            own_past(history, settings=settings, capability=capability),
            calibration_ratio=calibration_of(read_outcomes(folder)),
        ),
    )
    sealed = seal_plan(plan)
    keep_plan(folder, settings, sealed)
    return sealed


def _apply(folder: DataFolder, settings: Settings, plan: Plan) -> str:
    store, now = plan_store(folder), _now(folder)
    stages = _first_stages(plan)
    if not stages:
        raise NotEnoughData(
            f"cannot apply the demo's plan: it proposes nothing with {plan.backend}; see `gputide --data-dir "
            f"{folder.path} plan show`, or try --backend hami"
        )
    store.approve(plan, stages, by=OPERATOR, at=now)
    with open_enforcer(folder, settings, now, on_progress=lambda _news: None) as enforcer:
        results = enforcer.reconciler.apply(plan, stages, by=OPERATOR)
    kept = {result.stage for result in results if result.state is StageState.PROMOTED}
    moves = sum(stage.moves for stage in plan.stages if stage.stage in kept)
    later = len(plan.rollout_stages) - len(stages)
    left = f"; {later} more wait for another week" if later else ""
    return f"{len(kept)} of {len(stages)} stages kept, {moves} pods restarted in their new slices{left}"


def _first_stages(plan: Plan) -> tuple[int, ...]:
    """The stages that somebody careful begins with: those that free two thirds of the cards, the first at least."""
    chosen: list[int] = []
    freed = 0
    rolled = set(plan.rollout_stages)
    for stage in (one for one in plan.stages if one.stage in rolled):
        if chosen and 3 * freed >= 2 * plan.totals.cards_freed:
            break
        chosen.append(stage.stage)
        freed += stage.cards_freed
    return tuple(chosen)


def _verify(folder: DataFolder, settings: Settings, plan: Plan) -> Outcome:
    outcome = verified(folder, settings, plan, _now(folder))
    keep_outcome(folder, outcome)
    return outcome


def _restore_one(
    folder: DataFolder, settings: Settings, plan: Plan, outcome: Outcome, trace: Path
) -> tuple[WorkloadId, str]:
    """Undo the change of the most harmed workload that can be judged, of the first where none was harmed; opt it out.

    Returns:
        The workload, and what was done in words.
    """
    # Most harmed first; of one that is not decided yet nothing can be said.
    budget = outcome.harm_budget_ratio
    judged = [one for one in outcome.workloads if standing_of(one, budget).is_judged]
    worst = (judged or outcome.workloads)[0]
    namespace, _, name = worst.workload.split("/")
    objects = [
        intent
        for run in journal(folder).runs(plan.plan_id)
        for record in run.records.values()
        for intent in record.objects
    ]
    own = next(intent.recommendation for intent in objects if intent.workload == worst.workload)
    with open_enforcer(folder, settings, _now(folder), on_progress=lambda _news: None) as enforcer:
        Undo(enforcer.tools).undo(plan.plan_id, recommendation=own)
    label_workload(trace, worst.workload, OPT_OUT_LABEL, "true")
    if worst.violation_ratio:
        why = (
            f"{namespace}/{name} got less than it needed in {worst.violation_ratio:.1%} of its active time "
            f"({worst.predicted_violation_ratio:.1%} predicted)"
        )
    else:
        why = f"nothing was harmed, but the team of {namespace}/{name} asks for its cards"
    return worst.workload, f"{why}: its change is undone, and its team opts it out; the rest of the plan stays"


def _replayed_words(done: Replayed) -> str:
    return f"{done.samples:,} samples in {done.requests:,} remote-write bodies, {done.rows:,} rows"


def _profile_words(profiles: Profiles) -> str:
    idle = sum(card.state is CardState.IDLE_HELD for card in profiles.cards)
    free = len(profiles.unallocated)
    return (
        f"{len(profiles.workloads)} workloads; {idle} cards allocated but idle, {free} free; "
        f"coverage {profiles.coverage_ratio:.1%}"
    )


def _plan_words(plan: Plan) -> str:
    totals = plan.totals
    return (
        f"{totals.cards_freed} of {totals.cards_before} cards, {plan.totals.moves} moves, "
        f"predicted violation {totals.predicted_violation_ratio:.2%}"
    )
