"""Two enforcers on one ledger: who stood still while the other went on notices it, and nothing is done twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from enforcer.record.journal import StageState
from enforcer.simulated.cluster import SimulatedCluster
from fleet.errors import Unavailable
from tests.enforcer.builders import a_cluster, a_rollout, an_undo, some_tools, standard_plan, where


@pytest.mark.parametrize("stalls_at", ["intend 1", "watched rest", "promote 1", "patch team/Deployment/b"])
def test_who_stood_still_while_another_went_on_stops_and_the_plan_can_be_undone(tmp_path: Path, stalls_at: str) -> None:
    cluster = a_cluster(tmp_path)
    before = where(cluster)
    has_stalled: list[str] = []

    def stall(step: str) -> None:
        if step == stalls_at and not has_stalled:
            has_stalled.append(step)
            a_rollout(some_tools(cluster, tmp_path, holder="rival")).apply(standard_plan(), by="bob")

    tools = some_tools(cluster, tmp_path, step=stall)
    with pytest.raises(Unavailable, match="another enforcer"):
        a_rollout(tools).apply(standard_plan(), by="ann")
    (run,) = some_tools(cluster, tmp_path).journal.runs()
    assert {number: record.state for number, record in run.records.items()} == {
        1: StageState.PROMOTED,
        2: StageState.PROMOTED,
    }
    for name in ("a", "b", "c"):
        # The hold that a stage begins with would stay for ever.
        assert "minReadySeconds" not in cluster.get("Deployment", "team", name)["spec"]  # type: ignore[index]
    an_undo(some_tools(cluster, tmp_path)).undo(standard_plan().plan_id)
    assert where(cluster) == before


def test_who_stood_still_in_an_undo_that_another_finished_stops(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    before = where(cluster)
    a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")
    has_stalled: list[str] = []

    def stall(step: str) -> None:
        if step == "undo end" and not has_stalled:
            has_stalled.append(step)
            an_undo(some_tools(cluster, tmp_path, holder="rival")).undo(standard_plan().plan_id)

    with pytest.raises(Unavailable, match="another enforcer"):
        an_undo(some_tools(cluster, tmp_path, step=stall)).undo(standard_plan().plan_id)
    assert where(cluster) == before


def test_lease_that_cannot_be_given_back_does_not_make_a_finished_run_look_failed(tmp_path: Path) -> None:
    class Stuck(SimulatedCluster):
        def release(self, holder: str) -> None:
            raise Unavailable(f"cannot give the lease of {holder} back")

    a_cluster(tmp_path).close()
    cluster = Stuck(tmp_path / "cluster.sqlite")
    results = a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")
    assert [result.state for result in results] == [StageState.PROMOTED, StageState.PROMOTED]
