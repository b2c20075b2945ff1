"""Undos of several plans, each left open by a process that died: each ends by itself, and no other is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.record.journal import StageState
from enforcer.record.ledger import Ledger
from enforcer.rollout.run_context import RunContext
from enforcer.safety.guard import GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Refused, Unavailable
from tests.enforcer.builders import (
    OpenGuard,
    a_cluster,
    a_grant,
    a_plan,
    a_recommendation,
    a_rollout,
    a_slice,
    an_undo,
    some_tools,
    standard_plan,
    undo_all,
    where,
    whole,
)
from tests.enforcer.test_rollout import BEFORE, STAGE_1, Killed

OTHERS = {0: [whole("a-0")], 1: [whole("a-1")], 2: [whole("b-0")], 3: [whole("b-1")], 7: [whole("train-0", kind="Job")]}


def stopped_notebook() -> Plan:
    stays = {**OTHERS, 4: [whole("c-0")], 5: [whole("c-1")]}
    return a_plan(
        stays, [[a_recommendation("reclaim-1", RecommendationKind.RECLAIM, ["book-0"], ["Notebook/book"], 1)]]
    )


def shared_card() -> Plan:
    shared = {**OTHERS, 4: [a_slice("c-0"), a_slice("c-1")]}
    advice = a_recommendation("slice-1", RecommendationKind.SLICE, ["c-0", "c-1"], ["Deployment/c"], 1)
    return a_plan(shared, [[advice]], cards_before=7)


A, B = stopped_notebook(), shared_card()


@pytest.fixture
def cluster(tmp_path: Path) -> SimulatedCluster:
    """Return a cluster on which both plans are applied."""
    made = a_cluster(tmp_path)
    for plan in (A, B):
        a_rollout(some_tools(made, tmp_path)).apply(plan, by="ann")
    return made


def die_in_undo(tools: RunContext, plan: Plan) -> None:
    def step(what: str) -> None:
        if what == "undo end":
            raise Killed

    tools.step = step
    with pytest.raises(Killed):
        an_undo(tools).undo(plan.plan_id)


def state(tools: RunContext, plan: Plan) -> StageState:
    (run,) = tools.journal.runs(plan.plan_id)
    return run.records[1].state


def test_undo_of_one_plan_ends_no_open_undo_of_another(tmp_path: Path, cluster: SimulatedCluster) -> None:
    die_in_undo(some_tools(cluster, tmp_path), A)
    die_in_undo(some_tools(cluster, tmp_path), B)
    tools = some_tools(cluster, tmp_path)
    assert list(tools.journal.open_undos()) == [A.plan_id, B.plan_id]
    assert an_undo(tools).undo(B.plan_id).plan_id == B.plan_id
    assert (state(tools, A), state(tools, B)) == (StageState.UNDOING, StageState.UNDONE)
    assert an_undo(tools).undo(A.plan_id).plan_id == A.plan_id
    assert (state(tools, A), state(tools, B)) == (StageState.UNDONE, StageState.UNDONE)
    assert where(cluster) == BEFORE


def test_undo_of_a_plan_restores_it_while_that_of_another_is_open(tmp_path: Path, cluster: SimulatedCluster) -> None:
    die_in_undo(some_tools(cluster, tmp_path), A)
    tools = some_tools(cluster, tmp_path)
    assert an_undo(tools).undo(B.plan_id).plan_id == B.plan_id
    assert state(tools, B) is StageState.UNDONE


def test_undo_of_everything_ends_what_is_open_and_takes_the_rest(tmp_path: Path, cluster: SimulatedCluster) -> None:
    die_in_undo(some_tools(cluster, tmp_path), A)
    tools = some_tools(cluster, tmp_path)
    assert [result.plan_id for result in undo_all(tools, tmp_path)] == [B.plan_id, A.plan_id]
    assert (state(tools, A), state(tools, B)) == (StageState.UNDONE, StageState.UNDONE)
    assert where(cluster) == BEFORE


def test_undo_of_a_plan_goes_on_after_an_open_undo_of_a_part_of_it(tmp_path: Path) -> None:
    cluster, plan_id = a_cluster(tmp_path), standard_plan().plan_id
    a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")

    def step(what: str) -> None:
        if what == "undo end":
            raise Killed

    with pytest.raises(Killed):
        an_undo(some_tools(cluster, tmp_path, step=step)).undo(plan_id, stages=[2])
    assert where(cluster) == STAGE_1
    result = an_undo(some_tools(cluster, tmp_path)).undo(plan_id)
    assert (result.stages, where(cluster)) == ((1, 2), BEFORE)


def at(what: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Do something once, just before a step."""
    done: list[str] = []

    def step(found: str) -> None:
        if found == what and not done:
            done.append(found)
            act()

    return step


def test_undo_that_another_makes_first_is_no_bug_of_ours(tmp_path: Path, cluster: SimulatedCluster) -> None:
    rival = some_tools(cluster, tmp_path, holder="rival")
    tools = some_tools(cluster, tmp_path, step=at("undo begin", lambda: an_undo(rival).undo(B.plan_id)))
    with pytest.raises(Unavailable, match="another enforcer"):
        an_undo(tools).undo(B.plan_id)
    assert state(tools, B) is StageState.UNDONE


def test_open_undo_moves_nothing_while_the_cluster_is_frozen(tmp_path: Path, cluster: SimulatedCluster) -> None:
    die_in_undo(some_tools(cluster, tmp_path), A)
    frozen = tmp_path / "frozen"
    frozen.write_text("ann")
    guard = OpenGuard(GuardPolicy(gaps_allowed=True, freeze_file=frozen))
    tools = some_tools(cluster, tmp_path, guard=guard)
    with pytest.raises(Refused, match="ann"):
        an_undo(tools).resume(A.plan_id)
    assert state(tools, A) is StageState.UNDOING
    frozen.unlink()
    assert an_undo(tools).resume(A.plan_id) is not None
    assert state(tools, A) is StageState.UNDONE


def test_pods_that_an_earlier_plan_pinned_go_home_before_those_that_may_come_up_on_their_cards(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("a", 0, 0), a_grant("b", 0, 1)])
    advice = a_recommendation("slice-1", RecommendationKind.SLICE, ["a-0"], ["Deployment/a"], 0)
    first = a_plan({2: [a_slice("a-0")], 1: [whole("b-0")]}, [[advice]])
    a_rollout(some_tools(cluster, tmp_path)).apply(first, by="ann")
    (name,) = [seat.name for seat in cluster.seats() if seat.pod == "a-0"]
    again = a_recommendation("slice-1", RecommendationKind.SLICE, [name], ["Deployment/a"], 0)
    other = a_recommendation("slice-2", RecommendationKind.SLICE, ["b-0"], ["Deployment/b"], 0)
    second = a_plan({7: [replace(a_slice("a-0"), pod=name), a_slice("b-0")]}, [[again, other]])
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(second, by="ann")
    undone = an_undo(tools).undo(second.plan_id)
    assert (undone.kept, where(cluster)) == ((), {"a-0": (2, 12), "b-0": (1, 24)})
    back = [
        entry.content["pods"] for entry in Ledger(tmp_path / "ledger.jsonl").entries() if entry.event == "evict_back"
    ]
    assert back == [[f"team/{name}"], ["team/b-0"]]
