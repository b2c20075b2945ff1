"""A controller and a console on what lies in the cluster: what one does, the other sees and lets be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from enforcer.controller import Controller, ControllerMetrics
from enforcer.record.journal import Journal, StageState
from enforcer.record.shared_ledger import SharedLedger
from enforcer.record.shared_plans import SharedPlans
from enforcer.rollout.abort import abort, open_run
from enforcer.rollout.reconciler import Delegated, Reconciler
from enforcer.rollout.tools import Tools
from enforcer.rollout.watch import ClusterSignals, PodHealth
from enforcer.safety.abort import SeldomAsked
from enforcer.safety.guard import Guard, GuardPolicy
from tests.enforcer.builders import NOW, a_cluster, a_rollout, some_tools, standard_plan, where
from tests.enforcer.objects_api import ObjectsApi
from tests.enforcer.test_abort import PLAN
from tests.enforcer.test_rollout import AFTER, BEFORE, STAGE_1, Killed
from wire.own_metrics import OwnMetrics

NEEDS_APPROVAL = Guard(GuardPolicy(gaps_allowed=True))
NEEDS_TWO = Guard(GuardPolicy(gaps_allowed=True, two_approvals_cards_min=1))
HEAD = f"plan-{PLAN}"


class Shared:
    """One cluster, and machines that act on it; `now` is the controller's clock."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.folder = folder
        self.api = ObjectsApi(folder)
        self.cluster = a_cluster(folder)
        self.plans, self.tools = self.machine("controller")
        reconciler = Reconciler(a_rollout(self.tools), self.plans, self.plans.report)
        metrics = ControllerMetrics(OwnMetrics("controller"))
        self.controller = Controller(self.plans, self.tools.journal, reconciler, metrics, lambda: self.now)

    def machine(self, name: str, **changes: object) -> tuple[SharedPlans, Tools]:
        """Plans and tools of a machine with a folder of its own."""
        place, opened = self.folder / name, self.api.cluster()
        plans = SharedPlans(place / "plans", opened.plans, "c1")
        journal = Journal(SharedLedger(place / "ledger.jsonl", opened.changes, "c1"), cluster="c1")
        made = {"journal": journal, "wishes": SeldomAsked(plans), "guard": NEEDS_APPROVAL, "holder": name, **changes}
        return plans, some_tools(self.cluster, self.folder, **made)

    def console(self) -> Delegated:
        """A console, beside which the controller looks as often as the console asks for it."""
        plans, tools = self.machine("console")
        plans.pull()

        def holder() -> str:
            self.now += 1000.0
            self.controller.look()
            return "controller"

        return Delegated(a_rollout(tools), plans, plans.report, holder)

    def approve(self) -> None:
        self.plans.add(standard_plan())
        self.plans.approve(standard_plan(), [1, 2], by="ann", at=NOW)

    def die_at(self, what: str) -> None:
        """Apply the first stage until a step, at which the process is gone."""

        def step(found: str) -> None:
            if found == what:
                raise Killed

        plans, tools = self.machine("dead", step=step)
        plans.pull()
        with pytest.raises(Killed):
            Reconciler(a_rollout(tools), plans, plans.report).apply(standard_plan(), [1], by="ann")

    @property
    def head(self) -> dict[str, Any]:
        """The plan's object."""
        return self.api.objects["gpuplans"][HEAD]

    def condition(self, name: str) -> dict[str, Any]:
        """One of its conditions."""
        (found,) = [one for one in self.head["status"]["conditions"] if one["type"] == name]
        return dict(found)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    """Return a cluster with a controller and an approved plan."""
    made = Shared(tmp_path)
    made.approve()
    yield made
    made.api.close()


def test_apply_that_is_repeated_while_its_stage_is_carried_out_never_unwants_it(shared: Shared) -> None:
    shared.die_at("promote 1")
    generation = shared.head["metadata"]["generation"]
    (result,) = shared.console().apply(standard_plan(), [1], by="ann")
    assert (result.state, where(shared.cluster)) == (StageState.PROMOTED, STAGE_1)
    assert shared.head["metadata"]["generation"] == generation


def test_stage_taken_back_long_ago_does_not_make_a_refusal_the_end_of_a_wish(shared: Shared) -> None:
    shared.die_at("promote 1")
    run = open_run(shared.tools.journal)
    assert run is not None
    abort(shared.tools, run, by="bob")
    for kind in ("gpuplans", "gpuplanparts", "gpuapprovals"):
        shared.api.objects[kind].clear()
    shared.approve()
    shared.console().want(PLAN, add=[1], by="ann")
    shared.tools.guard = NEEDS_TWO
    assert not shared.controller.look()
    assert shared.condition("Applied")["reason"] == "Refused"
    shared.tools.guard = NEEDS_APPROVAL
    shared.now = 1000.0
    assert shared.controller.look()
    assert where(shared.cluster) == STAGE_1


def test_stage_that_was_taken_back_is_tried_again_only_when_somebody_asks_again(shared: Shared) -> None:

    class Gone:
        def health(self, _: Sequence[str]) -> tuple[PodHealth, ...]:
            return ()

    shared.console().want(PLAN, add=[2], by="ann")
    shared.tools.signals = Gone()
    assert shared.controller.look()
    assert (where(shared.cluster), shared.condition("Failed")["status"]) == (BEFORE, "True")
    shared.tools.signals = ClusterSignals(shared.cluster)
    shared.now = 1000.0
    assert not shared.controller.look()
    (result,) = shared.console().apply(standard_plan(), [2], by="ann")
    assert (result.state, where(shared.cluster)["b-0"]) == (StageState.PROMOTED, AFTER["b-0"])
