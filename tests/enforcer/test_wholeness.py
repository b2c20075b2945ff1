"""The judge of the bar of faults says so where an object, a pod, a mark or the ledger stands half way."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.wholeness import APPLIED, HALF, RESTORED, Sight, Spared, WholenessJudge
from enforcer.cluster import FieldChange
from enforcer.record.journal import Journal
from enforcer.record.ledger import Ledger
from enforcer.simulated.cluster import SimulatedCluster
from fleet.errors import Corrupt
from tests.enforcer.builders import NOW, a_cluster, a_rollout, some_tools, standard_plan

STAGES = {1: ("team/Notebook/book",), 2: ("team/Deployment/a", "team/Deployment/b", "team/Deployment/c")}


def applied(folder: Path) -> tuple[SimulatedCluster, WholenessJudge]:
    """A cluster with the standard plan, and the judge of it."""
    cluster = a_cluster(folder)
    before = Sight.of(cluster)
    a_rollout(some_tools(cluster, folder)).apply(standard_plan(), by="ann")
    cluster.pause(600.0)
    return cluster, WholenessJudge(before=before, after=Sight.of(cluster), stages=STAGES)


def complaints(cluster: SimulatedCluster, judge: WholenessJudge, folder: Path) -> tuple[tuple[str, ...], str]:
    found = judge.judge(cluster, Ledger(folder / "ledger.jsonl"), standard_plan().plan_id, Spared())
    return found.ends, "; ".join(found.complaints)


def test_applied_plan_is_whole_and_half_changed_object_is_not(tmp_path: Path) -> None:
    cluster, judge = applied(tmp_path)
    assert complaints(cluster, judge, tmp_path) == ((APPLIED, APPLIED), "")
    version = cluster.get("Deployment", "team", "c")["metadata"]["resourceVersion"]  # type: ignore[index]
    field = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"
    cluster.patch("Deployment", "team", "c", [FieldChange(field=field, value=None)], version)
    ends, said = complaints(cluster, judge, tmp_path)
    assert ends == (APPLIED, HALF)
    assert "team/Deployment/c is neither" in said


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("Deployment", "spec.minReadySeconds", "60"),
        ("Deployment", "spec.strategy.rollingUpdate.maxUnavailable", "100%"),
        ("Pod", "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]", "-2"),
    ],
)
def test_helper_field_that_was_left_behind_is_half_way(tmp_path: Path, kind: str, field: str, value: str) -> None:
    cluster, judge = applied(tmp_path)
    name = "c" if kind == "Deployment" else next(seat.name for seat in cluster.seats() if seat.pod == "c-0")
    version = cluster.get(kind, "team", name)["metadata"]["resourceVersion"]  # type: ignore[index]
    cluster.patch(kind, "team", name, [FieldChange(field=field, value=value)], version)
    assert complaints(cluster, judge, tmp_path)[1]


def test_restored_objects_under_a_ledger_that_says_promoted_are_not_whole(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    _, judge = applied(tmp_path)
    untouched = a_cluster(tmp_path / "other")
    ends, said = complaints(untouched, judge, tmp_path)
    assert ends == (RESTORED, RESTORED)
    assert "the ledger says" in said


def test_open_run_and_edited_ledger_are_found(tmp_path: Path) -> None:
    cluster, judge = applied(tmp_path)
    path = tmp_path / "ledger.jsonl"
    Journal(Ledger(path)).write(standard_plan().plan_id, NOW, "begin", stages=[2], by="ann", cards_granted=[])
    assert "open run" in complaints(cluster, judge, tmp_path)[1]
    path.write_bytes(path.read_bytes().replace(b'"by":"ann"', b'"by":"bob"', 1))
    with pytest.raises(Corrupt):
        complaints(cluster, judge, tmp_path)
