"""A controller makes of each plan what is wanted what is in force, whatever was left half done."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bench.faulty_cluster import FaultyCluster
from enforcer.controller import Controller, ControllerMetrics
from enforcer.record.plan_store import Approval, PlanStore, Wish, WishChange
from enforcer.rollout.abort import open_run
from enforcer.rollout.reconciler import Reconciler, due, end_of
from enforcer.rollout.run_context import RunContext
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from fleet.decisions import Plan, ScheduledReplicas
from fleet.errors import Unavailable
from fleet.inventory import WorkloadId
from tests.enforcer.builders import (
    NOW,
    a_cluster,
    a_rollout,
    a_yes,
    an_undo,
    some_tools,
    standard_plan,
    where,
    with_tide,
)
from tests.enforcer.test_abort import NOTHING, PLAN, killed_at, steps_of_apply
from tests.enforcer.test_patience import Absence, a_faulty_cluster
from tests.enforcer.test_rollout import AFTER, BEFORE, STAGE_1, Killed
from wire.own_metrics import OwnMetrics

KNOWN = standard_plan()
NEEDS_APPROVAL = Guard(GuardPolicy(gaps_allowed=True))


class World:
    """A simulated cluster, its plans, and a controller; `now` is the controller's clock."""

    def __init__(
        self, folder: Path, cluster: SimulatedCluster | None = None, plans: PlanStore | None = None, plan: Plan = KNOWN
    ) -> None:
        self.now = 0.0
        self.plan = plan
        self.folder = folder
        self.cluster: SimulatedCluster = cluster or a_cluster(folder)
        self.plans = plans or PlanStore(folder / "plans")
        self.plans.add(plan)
        self.tools: RunContext = some_tools(self.cluster, folder, wishes=self.plans, guard=NEEDS_APPROVAL)
        self.states: list[str] = []
        reconciler = Reconciler(a_rollout(self.tools), self.plans, lambda _, status: self.states.append(status.state))
        self.own = OwnMetrics("controller")
        metrics = ControllerMetrics(self.own)
        self.controller = Controller(self.plans, self.tools.journal, reconciler, metrics, lambda: self.now)

    def want(self, *stages: int) -> None:
        self.plans.change_wish(self.plan.plan_id, WishChange(add=frozenset(stages), by="ann"))

    def approve(self, *stages: int) -> None:
        self.plans.approve(self.plan, stages, by="ann", at=NOW)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_stage_that_is_wanted_and_approved_is_applied_once(world: World) -> None:
    world.want(1, 2)
    world.approve(1)
    assert world.controller.look()
    assert where(world.cluster) == STAGE_1
    assert not world.controller.look()
    world.approve(2)
    assert world.controller.look()
    assert where(world.cluster) == AFTER
    assert world.states[-1] == "Applied"


def test_stage_of_the_tide_is_left_to_it_whoever_wants_it_in_force(tmp_path: Path) -> None:
    window = ScheduledReplicas(
        workload=WorkloadId("team/Deployment/a"), replicas=1, start="00:00", end="09:00", time_zone="UTC", frees=()
    )
    plan = with_tide(standard_plan(), [window])
    world = World(tmp_path, plan=plan)
    world.want(1, 3)
    world.approve(3)
    looks = len(world.states)
    assert not world.controller.look()
    assert where(world.cluster) == BEFORE
    assert not world.tools.journal.runs()
    assert world.states[looks:] == ["Approved"]
    world.approve(1)
    assert world.controller.look()
    assert where(world.cluster) == STAGE_1
    assert not world.controller.look()
    (run,) = world.tools.journal.runs(plan.plan_id)
    assert run.stages == (1,)
    rollout = a_rollout(world.tools)
    assert rollout.apply(plan, [3], by="ann", approved=lambda: a_yes(plan, 3)) == ()
    world.want(2)
    world.approve(2)
    kept = rollout.apply(plan, by="ann", approved=lambda: a_yes(plan, 1, 2))
    assert [result.stage for result in kept] == [1, 2], "the tide need not be approved for the others"


def test_stage_that_is_no_longer_wanted_is_taken_back(world: World) -> None:
    world.want(1, 2)
    world.approve(1, 2)
    world.controller.look()
    world.plans.change_wish(PLAN, WishChange(remove=frozenset({2}), by="bob"))
    assert world.controller.look()
    assert where(world.cluster) == STAGE_1
    world.plans.change_wish(PLAN, WishChange(remove=frozenset({1}), by="bob"))
    assert world.controller.look()
    assert where(world.cluster) == BEFORE
    assert world.states[-1] == "Undone"


def test_plan_of_which_nobody_has_said_anything_is_left_as_it_is(world: World) -> None:
    world.approve(1)
    a_rollout(world.tools).apply(standard_plan(), [1], by="ann", approved=lambda: a_yes(standard_plan(), 1))
    assert not world.controller.look()
    assert where(world.cluster) == STAGE_1


@pytest.mark.parametrize("is_wanted", [True, False])
def test_run_that_a_dead_process_left_is_gone_on_with_or_taken_back(tmp_path: Path, is_wanted: bool) -> None:
    world = World(tmp_path)
    steps = steps_of_apply(tmp_path / "whole")
    killed_at(tmp_path, world.cluster, steps.index("watched canary"))
    world.want(1, 2)
    if not is_wanted:
        world.plans.change_wish(PLAN, NOTHING)
    world.approve(1, 2)
    for _ in range(3):
        world.controller.look()
    assert where(world.cluster) == (AFTER if is_wanted else BEFORE)
    assert open_run(world.tools.journal) is None


def test_undo_that_a_dead_process_left_is_ended(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.want(1, 2)
    world.approve(1, 2)
    world.controller.look()
    count = itertools.count()

    def step(_: str) -> None:
        if next(count) == 4:
            raise Killed

    dying = some_tools(world.cluster, tmp_path, step=step)
    world.plans.change_wish(PLAN, NOTHING)
    with pytest.raises(Killed):
        an_undo(dying).undo(PLAN)
    assert world.tools.journal.open_undos()
    assert world.controller.look()
    assert where(world.cluster) == BEFORE


def test_plan_that_is_refused_is_tried_again_later_and_at_once_when_it_is_approved(world: World) -> None:
    world.tools.guard = Guard(GuardPolicy(gaps_allowed=True, two_approvals_cards_min=1))
    world.want(1)
    world.approve(1)
    tried = []
    for world.now in range(600):
        before = len(world.states)
        assert not world.controller.look()
        tried.append(len(world.states) > before)
    assert 2 <= sum(tried) <= 12
    shown = world.own.text().decode()
    assert f'gputide_controller_reconcile_errors_total{{error="refused"}} {sum(tried):.1f}' in shown
    assert "gputide_controller_plans_waiting 1.0" in shown
    world.plans.approve(standard_plan(), [1], by="bob", at=NOW)
    assert world.controller.look()
    assert where(world.cluster) == STAGE_1


class PlansInCluster(PlanStore):
    """Plans that lie in a cluster: while it is away nobody says what is wanted."""

    def __init__(self, folder: Path, cluster: FaultyCluster) -> None:
        super().__init__(folder / "plans")
        self._cluster = cluster

    def _reach(self) -> None:
        if self._cluster.is_away:
            raise Unavailable("connection refused")

    def wish(self, plan_id: str) -> Wish:
        self._reach()
        return super().wish(plan_id)

    def approvals(self, plan_id: str) -> tuple[Approval, ...]:
        self._reach()
        return super().approvals(plan_id)


HOUR_AWAY_AT = ["look", "begin", "intend 1", "patch team/Deployment/a", "watched canary", "promote 2", "end"]


@pytest.mark.parametrize("at", HOUR_AWAY_AT)
def test_controller_ends_what_it_began_once_the_api_server_is_back_after_an_hour(tmp_path: Path, at: str) -> None:
    cluster = a_faulty_cluster(tmp_path)
    absence = Absence(cluster, at, hours=1)
    world = World(tmp_path, cluster, PlansInCluster(tmp_path, cluster))
    world.tools.step, world.tools.pause = absence.step, absence.pause
    world.want(1, 2)
    world.approve(1, 2)
    absence.step("look")
    looks, is_over = 0, False
    while not is_over:
        looks += 1
        try:
            is_over = not world.controller.look()
        except Unavailable:
            # As long as the process waits between two looks at a cluster that is away.
            absence.pause(60.0)
    assert 3600.0 <= absence.spent <= 3660.0
    assert looks <= 70
    assert where(cluster) == AFTER
    assert open_run(world.tools.journal) is None
    assert world.states[-1] == "Applied"


def test_stage_that_was_taken_back_is_tried_again_only_by_a_new_wish() -> None:
    wish = Wish(stages=frozenset({1}), generation=3, failed_generation=3)
    assert due(wish, (), frozenset({1}), is_undoing=False).is_nothing
    again = Wish(stages=frozenset({1}), generation=4, failed_generation=3)
    assert due(again, (), frozenset({1}), is_undoing=False).add == (1,)


def test_abort_of_a_run_takes_back_no_stage_of_an_earlier_one(world: World) -> None:
    world.approve(1)
    a_rollout(world.tools).apply(standard_plan(), [1], by="ann", approved=lambda: a_yes(standard_plan(), 1, 2))

    def step(what: str) -> None:
        if what == "watched canary":
            raise Killed

    with pytest.raises(Killed):
        a_rollout(some_tools(world.cluster, world.folder, step=step)).apply(standard_plan(), by="ann")
    runs = world.tools.journal.runs(PLAN)
    world.plans.change_wish(PLAN, end_of(runs[-1], runs, by="bob"))
    for _ in range(3):
        world.controller.look()
    assert where(world.cluster) == STAGE_1
    assert open_run(world.tools.journal) is None
