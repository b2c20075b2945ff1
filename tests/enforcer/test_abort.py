"""A run can be ended at every step: its open stage is taken back, what was promoted before stays, nothing is held."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from enforcer.record.journal import StageState
from enforcer.record.plan_store import Approval, PlanStore, Wish, WishChange
from enforcer.rollout.abort import abort, open_run
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.stages import Rollout
from enforcer.safety.abort_wish import Aborted, SeldomAsked, stopped
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from fleet.data_folder import open_data_folder, writing
from fleet.errors import Unavailable
from tests.enforcer.builders import NOW, a_cluster, a_rollout, an_undo, some_tools, standard_plan, where
from tests.enforcer.test_rollout import AFTER, BEFORE, STAGE_1, Killed, owners

PLAN = standard_plan().plan_id


TWO_APPROVE = Guard(GuardPolicy(gaps_allowed=True, two_approvals_cards_min=1))
NOTHING = WishChange(remove=frozenset({1, 2}), by="bob")


def wanted(folder: Path) -> PlanStore:
    """Plans of which both stages of the standard one are wanted."""
    store = PlanStore(folder / "plans")
    store.change_wish(PLAN, WishChange(add=frozenset({1, 2}), by="ann"))
    return store


def steps_of_apply(folder: Path) -> list[str]:
    """What an apply does that nobody stops."""
    folder.mkdir()
    seen: list[str] = []
    a_rollout(some_tools(a_cluster(folder), folder, step=seen.append)).apply(standard_plan(), by="ann")
    return seen


def is_whole(cluster: SimulatedCluster, tools: RunContext) -> bool:
    """Whether each stage is promoted or restored, pods sit accordingly, and no run is open."""
    states = {number: record.state for run in tools.journal.runs() for number, record in run.records.items()}
    kept = {number for number, state in states.items() if state is StageState.PROMOTED}
    wanted = {frozenset(): BEFORE, frozenset({1}): STAGE_1, frozenset({1, 2}): AFTER}[frozenset(kept)]
    is_over = all(state in (StageState.PROMOTED, StageState.RESTORED) for state in states.values())
    return where(cluster) == wanted and open_run(tools.journal) is None and is_over


def holds(cluster: SimulatedCluster) -> list[object]:
    return [
        owner["spec"].get(name)
        for owner in owners(cluster)
        if owner["kind"] == "Deployment"
        for name in ("minReadySeconds", "progressDeadlineSeconds", "strategy")
    ]


def abort_by_wish(plans: PlanStore) -> None:
    plans.change_wish(PLAN, NOTHING)


def withdraw_one_approval(plans: PlanStore) -> None:
    plans.keep_approvals(PLAN, plans.approvals(PLAN)[:1])


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (abort_by_wish, "aborted by bob"),
        (withdraw_one_approval, "an approval was withdrawn: .* two different people must have approved, and one has"),
    ],
)
def test_run_that_is_no_longer_wanted_or_approved_ends_whole_at_every_step(
    tmp_path: Path, end: Callable[[PlanStore], None], reason: str
) -> None:
    steps = steps_of_apply(tmp_path / "whole")
    ends: set[str] = set()
    for number in range(len(steps)):
        folder = tmp_path / str(number)
        folder.mkdir()
        cluster = a_cluster(folder)
        free, count, plans = holds(cluster), itertools.count(), wanted(folder)
        for person in ("ann", "bob"):
            plans.approve(standard_plan(), [1, 2], by=person, at=NOW)

        def step(_: str, count: itertools.count[int] = count, number: int = number, plans: PlanStore = plans) -> None:
            if next(count) == number:
                end(plans)

        tools = some_tools(cluster, folder, step=step, wishes=plans, guard=TWO_APPROVE)
        try:
            results = a_rollout(tools).apply(standard_plan(), by="ann", approved=partial(plans.approvals, PLAN))
            ends.add(results[-1].state)
            if results[-1].state is StageState.RESTORED:
                assert re.search(reason, str(results[-1].reason)), steps[number]
        except Aborted:
            ends.add("between stages")
        assert is_whole(cluster, tools), steps[number]
        assert holds(cluster) == free, steps[number]
        cluster.close()
    assert ends == {StageState.PROMOTED, StageState.RESTORED, "between stages"}


@pytest.mark.parametrize("way", ["abort", "undo"])
def test_run_that_a_kill_left_open_is_taken_back_by_abort_and_by_undo(tmp_path: Path, way: str) -> None:
    steps = steps_of_apply(tmp_path / "whole")
    for number in range(2, len(steps), 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        cluster = a_cluster(folder)
        before, free = owners(cluster), holds(cluster)
        killed_at(folder, cluster, number)
        tools = some_tools(cluster, folder)
        if way == "undo":
            an_undo(tools).undo(PLAN)
            assert where(cluster) == BEFORE, steps[number]
            assert owners(cluster) == before, steps[number]
        else:
            run = open_run(tools.journal)
            assert run is not None
            abort(tools, run, by="bob")
            assert is_whole(cluster, tools), steps[number]
        assert holds(cluster) == free, steps[number]
        cluster.close()


def killed_at(folder: Path, cluster: SimulatedCluster, number: int) -> None:
    """Apply the standard plan until a step, at which the process is gone."""
    count = itertools.count()

    def step(_: str) -> None:
        if next(count) == number:
            raise Killed

    with pytest.raises(Killed):
        a_rollout(some_tools(cluster, folder, step=step)).apply(standard_plan(), by="ann")


def test_abort_of_a_run_that_has_ended_meanwhile_reports_how(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    steps = steps_of_apply(tmp_path / "whole")
    killed_at(tmp_path, cluster, steps.index("watched canary"))
    tools = some_tools(cluster, tmp_path)
    run = open_run(tools.journal)
    assert run is not None
    a_rollout(tools).apply(standard_plan(), by="ann")
    found = abort(tools, run, by="bob")
    assert (found.restored, found.promoted) == ((), (1, 2))
    assert where(cluster) == AFTER


def test_run_ends_before_a_stage_that_is_not_wanted_and_keeps_those_before(tmp_path: Path) -> None:
    cluster, plans = a_cluster(tmp_path), wanted(tmp_path)
    plans.change_wish(PLAN, WishChange(remove=frozenset({2}), by=""))
    tools = some_tools(cluster, tmp_path, wishes=plans)
    with pytest.raises(Aborted, match="aborted by somebody"):
        a_rollout(tools).apply(standard_plan(), by="ann")
    assert where(cluster) == STAGE_1
    assert open_run(tools.journal) is None


def test_cluster_is_asked_what_is_wanted_once_a_second_and_less_while_it_is_away() -> None:
    asked: list[float] = []
    asked_for_approvals: list[float] = []
    now = 0.0

    class Cluster:
        def approvals(self, plan_id: str) -> tuple[Approval, ...]:
            asked_for_approvals.append(now)
            if now < 20.0:
                raise Unavailable(f"no answer about {plan_id}")
            return (Approval(plan_id=plan_id, stages=(1,), by="ann", at=NOW),)

        def wish(self, plan_id: str) -> Wish:
            asked.append(now)
            if 10.0 <= now < 20.0:
                raise Unavailable(f"no answer about {plan_id}")
            return Wish(stages=frozenset({len(asked)}))

    seldom = SeldomAsked(Cluster(), clock=lambda: now)
    for tenth in range(320):
        now = tenth / 10
        with suppress(Unavailable):
            assert seldom.wish(PLAN).stages is not None
        with suppress(Unavailable):
            assert seldom.approvals(PLAN)
    assert len(asked) <= 25
    assert max(late - early for early, late in pairwise(asked)) <= 10.0
    assert sum(10.0 <= at < 20.0 for at in asked) == 1
    assert asked_for_approvals == [0.0, 10.0, 20.0, 25.0, 30.0]


@pytest.mark.parametrize("end", [abort_by_wish, withdraw_one_approval])
def test_stage_is_not_kept_by_what_was_known_a_moment_ago(tmp_path: Path, end: Callable[[PlanStore], None]) -> None:
    cluster, store = a_cluster(tmp_path), wanted(tmp_path)
    for by in ("ann", "bob"):
        store.approve(standard_plan(), [1, 2], by=by, at=NOW)
    batches = 0

    def step(what: str) -> None:
        nonlocal batches
        batches += what == "watched rest"
        if what == "watched rest" and batches == 2:
            end(store)

    seldom = SeldomAsked(store, clock=lambda: 0.0)
    tools = some_tools(cluster, tmp_path, wishes=seldom, guard=TWO_APPROVE, step=step)
    a_rollout(tools).apply(standard_plan(), by="ann", approved=lambda: store.approvals(PLAN))
    assert where(cluster) == STAGE_1


def test_preview_of_an_undo_shows_the_stage_that_is_under_way(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    steps = steps_of_apply(tmp_path / "whole")
    killed_at(tmp_path, cluster, steps.index("watched canary"))
    undo = an_undo(some_tools(cluster, tmp_path))
    assert undo.preview(PLAN).stages == (1, 2)
    assert undo.applied_plans() == (PLAN,)


def test_folder_is_waited_for_until_the_process_that_applies_has_stopped(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    held = writing(folder)
    held.__enter__()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            held.__exit__(None, None, None)

    with stopped(folder, PLAN, pause=pause):
        assert len(pauses) == 3


def test_process_that_does_not_stop_is_named(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    waited: list[float] = []
    with (
        writing(folder),
        pytest.raises(Unavailable, match=r"process \d+, which applies it, still takes .*the wish is noted"),
        stopped(folder, PLAN, pause=waited.append),
    ):
        raise AssertionError("the folder was held")
    assert 59.0 <= sum(waited) <= 61.0


def test_rollout_that_waits_looks_every_second_for_a_wish(tmp_path: Path) -> None:
    cluster, plans = a_cluster(tmp_path), wanted(tmp_path)
    phases: list[str] = []
    after: list[float] = []

    def pause(seconds: float) -> None:
        cluster.pause(seconds)
        if phases and phases[-1] == "watching":
            plans.change_wish(PLAN, NOTHING)
            after.append(seconds)

    tools = some_tools(
        cluster, tmp_path, pause=pause, wishes=plans, on_progress=lambda news: phases.append(news.phase.value)
    )
    rollout: Rollout = a_rollout(tools)
    assert rollout.apply(standard_plan(), by="ann")[-1].state is StageState.RESTORED
    assert sum(after) <= 1.0
