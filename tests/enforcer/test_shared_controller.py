"""A controller and a console on what lies in the cluster: what one does, the other sees and lets be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.faulty_cluster import Faults
from enforcer.controller import Controller, ControllerMetrics
from enforcer.record.journal import Journal, StageState
from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import WishChange
from enforcer.record.shared_ledger import SharedLedger, stored_runs
from enforcer.record.shared_plans import SharedPlans
from enforcer.rollout.abort import abort, open_run
from enforcer.rollout.reconciler import Delegated, Reconciler
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.undo import Undo
from enforcer.rollout.watch import ClusterSignals, PodHealth
from enforcer.safety.abort_wish import SeldomAsked
from enforcer.safety.guard import Guard, GuardPolicy
from fleet.errors import Corrupt, Refused
from tests.enforcer.builders import NOW, a_cluster, a_rollout, a_yes, some_tools, standard_plan, where
from tests.enforcer.objects_api import ObjectsApi
from tests.enforcer.test_abort import PLAN
from tests.enforcer.test_rollout import AFTER, BEFORE, STAGE_1, Killed
from tests.enforcer.test_two_undos import stopped_notebook
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
        self.faults = Faults()
        self.cluster = a_cluster(folder, faults=self.faults)
        self.plans, self.tools = self.machine("controller")
        reconciler = Reconciler(a_rollout(self.tools), self.plans, self.plans.report)
        self.metrics = ControllerMetrics(OwnMetrics("controller"))
        self.controller = Controller(self.plans, self.tools.journal, reconciler, self.metrics, lambda: self.now)

    def machine(self, name: str, **changes: object) -> tuple[SharedPlans, RunContext]:
        """Plans and tools of a machine with a folder of its own."""
        place, opened = self.folder / name, self.api.cluster()
        plans = SharedPlans(place / "plans", opened.plans, "c1", partial(stored_runs, opened.changes))
        # As the command has it.
        kept = SharedLedger(place / "ledger.jsonl", opened.changes, "c1", is_lean=name == "controller")
        journal = Journal(kept, cluster="c1")
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


def test_run_is_aborted_and_everything_undone_by_the_controller_alone(shared: Shared) -> None:
    shared.die_at("promote 1")
    run = open_run(shared.tools.journal)
    assert run is not None
    console = shared.console()
    console.tools.step = refused
    ended = console.abort(run, by="bob")
    assert ([result.stage for result in ended.restored], where(shared.cluster)) == ([1], BEFORE)
    console.apply(standard_plan(), [1], by="ann")
    assert where(shared.cluster) == STAGE_1
    (result,) = console.undo_all(by="bob")
    assert (result.stages, where(shared.cluster)) == ((1,), BEFORE)
    assert shared.head["status"]["state"] == "Undone"


def test_controller_holds_nothing_of_a_plan_of_which_nothing_stands_and_applies_it_again(shared: Shared) -> None:
    ledger = shared.tools.journal._ledger
    shared.console().apply(standard_plan(), [1, 2], by="ann")
    assert ledger.entries()
    shared.console().undo(PLAN, by="ann")
    shared.controller.look()
    assert ledger.entries() == ()
    (run,) = shared.tools.journal.runs(PLAN)
    assert {record.state for record in run.records.values()} == {StageState.UNDONE}
    assert shared.head["status"]["state"] == "Undone"
    shared.console().apply(standard_plan(), [1, 2], by="ann")
    assert where(shared.cluster) == AFTER
    assert len(shared.tools.journal.runs()) == 2


def test_undo_without_a_controller_is_shown_by_the_plan(shared: Shared) -> None:
    plans, tools = shared.machine("alone")
    plans.pull()
    alone = Reconciler(a_rollout(tools), plans, plans.report)
    alone.apply(standard_plan(), [1], by="ann")
    assert shared.head["status"]["state"] == "PartlyApplied"
    alone.undo(PLAN, by="ann")
    assert shared.head["status"]["state"] == "Undone"


def test_plan_whose_object_is_gone_is_undone_by_the_console_itself(shared: Shared) -> None:
    console = shared.console()
    console.apply(standard_plan(), [1], by="ann")
    shared.api.objects["gpuplans"].clear()
    assert console.undo(PLAN, by="ann").stages == (1,)
    assert where(shared.cluster) == BEFORE


def delete_plan(shared: Shared) -> None:
    """What `kubectl delete gpuplan` leaves: its parts and approvals go with it."""
    for kind in ("gpuplans", "gpuplanparts", "gpuapprovals"):
        shared.api.objects[kind].clear()


def test_run_that_a_dead_process_left_is_taken_back_once_its_plan_is_deleted_and_holds_up_no_other(
    shared: Shared,
) -> None:
    shared.die_at("promote 1")
    delete_plan(shared)
    other = stopped_notebook()
    shared.plans.add(other)
    shared.plans.approve(other, [1], by="ann", at=NOW)
    shared.plans.change_wish(other.plan_id, WishChange(add=frozenset({1}), by="ann"))
    assert shared.controller.look()
    assert open_run(shared.tools.journal) is None
    assert where(shared.cluster) == {**BEFORE, "book-0": "stopped"}


def test_plan_that_is_deleted_as_the_controller_turns_to_it_stays_in_force(shared: Shared) -> None:
    shared.console().apply(standard_plan(), [1], by="ann")
    delete_plan(shared)
    assert not Reconciler(a_rollout(shared.tools), shared.plans, shared.plans.report).reconcile(standard_plan())
    assert not shared.controller.look()
    assert where(shared.cluster) == STAGE_1


def test_plan_that_a_finalizer_of_somebody_keeps_counts_as_deleted(shared: Shared) -> None:
    shared.console().apply(standard_plan(), [1], by="ann")
    shared.console().want(PLAN, add=[2], by="ann")
    shared.api.change("gpuplans", HEAD, lambda head: head["metadata"].update(deletionTimestamp="2026-01-12T00:00:00Z"))
    assert not shared.controller.look()
    assert where(shared.cluster) == STAGE_1
    with pytest.raises(Refused, match="its GpuPlan is gone"):
        shared.console().want(PLAN, add=[2], by="ann")


def test_plan_of_which_nothing_is_due_is_shown_as_it_stands(shared: Shared) -> None:
    assert not shared.controller.look()
    assert shared.head["status"]["state"] == "Approved"
    asked = len(shared.api.heard("GET"))
    assert not shared.controller.look()
    assert len(shared.api.heard("GET")) - asked < 8
    plans, tools = shared.machine("alone")
    plans.pull()
    a_rollout(tools).apply(standard_plan(), [1], by="ann", approved=lambda: a_yes(standard_plan(), 1, 2))
    assert not shared.controller.look()
    assert shared.head["status"]["state"] == "PartlyApplied"


def refused(what: str) -> None:
    """Nothing may be done here."""
    raise AssertionError(f"the console did: {what}")


def test_undo_that_waits_for_a_pod_names_it_and_holds_up_no_other_plan(shared: Shared) -> None:
    shared.console().want(PLAN, add=[2], by="ann")
    assert shared.controller.look()
    shared.faults.never_ready = frozenset({"team/c-1"})
    shared.console().want(PLAN, remove=[2], by="ann")
    other = stopped_notebook()
    shared.plans.add(other)
    shared.plans.approve(other, [1], by="ann", at=NOW)
    shared.plans.change_wish(other.plan_id, WishChange(add=frozenset({1}), by="ann"))
    assert shared.controller.look()
    assert where(shared.cluster)["book-0"] == "stopped"
    assert shared.condition("Applied")["reason"] == "Refused"
    assert "team/Deployment/c" in shared.condition("Applied")["message"]
    with pytest.raises(Refused, match="team/Deployment/c"):
        shared.console().undo(PLAN, by="ann")
    shared.now += 1000.0
    shared.faults.never_ready = frozenset()
    for pod in shared.cluster.list_objects("Pod"):
        if pod["metadata"]["name"].startswith("c-"):
            shared.cluster.evict("team", pod["metadata"]["name"])
    shared.cluster.pause(120.0)
    assert shared.controller.look()
    assert (shared.head["status"]["state"], shared.tools.journal.open_undos()) == ("Undone", {})


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an entry is gone": lambda found: found["spec"]["entries"].pop(0),
    "no content": lambda found: found.pop("spec"),
    "a plan that is no text": lambda found: found["spec"].update(plan=7),
    "another plan's id": lambda found: found["spec"].update(plan=PLAN),
    "a page that is no number": lambda found: found["spec"].update(page="one"),
    "another page": lambda found: found["spec"].update(page=9),
    "entries that are none": lambda found: found["spec"].update(entries={"at": 1}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_record_of_one_plan_that_somebody_edited_stops_that_plan_alone(shared: Shared, edit: str) -> None:
    other = stopped_notebook()
    shared.plans.add(other)
    shared.plans.approve(other, [1], by="ann", at=NOW)
    shared.console().apply(other, [1], by="ann")
    shared.console().undo(other.plan_id, by="ann")
    shared.api.change("gpuchanges", f"plan-{other.plan_id}-1", EDITS[edit])
    shared.plans.change_wish(other.plan_id, WishChange(add=frozenset({1}), by="ann"))
    shared.console().want(PLAN, add=[2], by="ann")
    assert shared.controller.look()
    assert where(shared.cluster)["b-0"] == AFTER["b-0"]
    assert where(shared.cluster)["book-0"] == BEFORE["book-0"]
    with pytest.raises(Corrupt, match=f"GpuChange.*{other.plan_id}"):
        shared.console().undo(other.plan_id, by="ann")
    said = shared.api.objects["gpuplans"][f"plan-{other.plan_id}"]["status"]["conditions"]
    assert [one["status"] for one in said if "GpuChange" in one["message"]] == ["False"]
    # Another machine, with an empty folder, takes the rest back.
    assert Undo(shared.machine("other")[1]).undo(PLAN).stages == (2,)
    assert where(shared.cluster) == BEFORE


def test_object_that_speaks_of_no_plan_stops_none(shared: Shared) -> None:
    shared.console().want(PLAN, add=[1], by="ann")
    assert shared.controller.look()
    kept = shared.api.objects["gpuchanges"]
    kept["mine"] = {"metadata": {"name": "mine", "resourceVersion": "900"}, "spec": "nothing"}
    kept["copy"] = {**kept[f"{HEAD}-1"], "metadata": {"name": "copy", "resourceVersion": "901"}}
    assert Undo(shared.machine("other")[1]).undo(PLAN).stages == (1,)


def test_folder_that_tells_another_story_of_one_plan_keeps_no_other_from_its_undo(shared: Shared) -> None:
    other = stopped_notebook()
    shared.plans.add(other)
    shared.plans.approve(other, [1], by="ann", at=NOW)
    shared.console().apply(other, [1], by="ann")
    shared.console().apply(standard_plan(), [2], by="ann")
    _, tools = shared.machine("liar")
    kept = Ledger(shared.folder / "liar" / "ledger.jsonl")
    kept.append([("relief_begin", {})], plan_id=other.plan_id, at=NOW)
    with pytest.raises(Corrupt, match=f"entry 1 of plan {other.plan_id} in ledger"):
        Undo(tools).undo(other.plan_id)
    assert Undo(tools).undo(PLAN).stages == (2,)


def test_plan_that_is_damaged_in_the_cluster_is_shown_as_refused_until_its_maker_stores_it_again(
    shared: Shared,
) -> None:
    shared.console().want(PLAN, add=[1], by="ann")
    part = shared.api.objects["gpuplanparts"].pop(f"{HEAD}-1")
    _, tools = shared.machine("fresh")
    plans = SharedPlans(shared.folder / "fresh" / "plans", shared.api.cluster().plans, "c1", lambda _: ())
    reconciler = Reconciler(a_rollout(tools), plans, plans.report)
    fresh = Controller(plans, tools.journal, reconciler, shared.metrics, lambda: shared.now)
    assert not fresh.look()
    assert shared.condition("Applied")["reason"] == "Refused"
    assert f"{HEAD}-1" in shared.condition("Applied")["message"]
    shared.api.objects["gpuplanparts"][f"{HEAD}-1"] = part
    shared.now += 1000.0
    assert fresh.look()
    assert where(shared.cluster) == STAGE_1


def test_status_shows_each_step_of_a_stage_once(shared: Shared) -> None:
    seen: list[tuple[str, str, str]] = []

    def noted() -> None:
        status = shared.head["status"]
        seen.append((status["state"], status["progress"], status["underWay"]))

    shared.api.on_status = noted
    shared.console().want(PLAN, add=[1, 2], by="ann")
    assert shared.controller.look()
    assert seen == [
        ("Applying", "0/2", "1"), ("Applying", "1/2", ""), ("Applying", "1/2", "2"), ("Applying", "2/2", ""),
        ("Applied", "2/2", ""),
    ]  # fmt: skip
    seen.clear()
    shared.console().want(PLAN, remove=[2], by="ann")
    assert shared.controller.look()
    assert seen == [("Undoing", "1/2", "2 (undoing)"), ("PartlyApplied", "1/2", "")]


def test_pods_that_are_elsewhere_than_planned_are_named_by_the_plan_and_replicas_beyond_it_too(shared: Shared) -> None:
    shared.console().apply(standard_plan(), [1, 2], by="ann")
    shared.now += 1000.0
    assert not shared.controller.look()
    assert shared.condition("Departed")["status"] == "False"
    shared.cluster.delete("Node", "", "node-1")
    shared.cluster.pause(120.0)
    shared.now += 1000.0
    assert not shared.controller.look()
    departed = shared.condition("Departed")
    assert (departed["status"], departed["reason"]) == ("True", "PlacedElsewhere")
    assert "team/Deployment/" in departed["message"]
    assert "node node-1 is gone" in departed["message"]
    # A console that has not looked leaves it as it stands.
    plans, tools = shared.machine("alone")
    plans.pull()
    Reconciler(a_rollout(tools), plans, plans.report).say(PLAN)
    assert shared.condition("Departed") == departed


def test_plan_says_where_it_stands_once_it_is_made_and_approved_though_no_controller_runs(shared: Shared) -> None:
    delete_plan(shared)
    plans, tools = shared.machine("alone")
    plans.add(standard_plan())
    assert shared.head["status"]["state"] == "Proposed"
    plans.approve(standard_plan(), [1], by="ann", at=NOW)
    assert (shared.head["status"]["state"], shared.condition("Approved")["reason"]) == ("Approved", "PartlyApproved")
    Reconciler(a_rollout(tools), plans, plans.report).apply(standard_plan(), [1], by="ann")
    plans.approve(standard_plan(), [2], by="ann", at=NOW)
    assert (shared.head["status"]["state"], shared.head["status"]["approved"]) == ("PartlyApplied", "1, 2")
