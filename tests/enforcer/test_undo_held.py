"""An undo or restoration whose pods don't get ready is held where they need no room that is not there, and goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.faulty_cluster import Faults
from enforcer.cluster import FieldChange
from enforcer.manifest import Manifest, field_of
from enforcer.record.journal import StageState
from enforcer.simulated.cluster import SimulatedCluster
from fleet.errors import Refused, Unavailable
from tests.enforcer.builders import a_cluster, a_rollout, an_undo, some_tools, standard_plan, where
from tests.enforcer.test_rollout import AFTER, BEFORE, owners

OF_TEMPLATE = (
    "spec.template.metadata.annotations[gputide.io/seating]",
    "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]",
)


def applied(folder: Path, faults: Faults) -> tuple[SimulatedCluster, list[Manifest]]:
    """A cluster that the standard plan was applied to, and its owners before."""
    cluster = a_cluster(folder, faults=faults)
    before = owners(cluster)
    a_rollout(some_tools(cluster, folder)).apply(standard_plan(), by="ann")
    assert where(cluster) == AFTER
    return cluster, before


def mended(cluster: SimulatedCluster, faults: Faults) -> None:
    """Let the pods that were not ready start anew, and time pass."""
    faults.never_ready = frozenset()
    for pod in cluster.list_objects("Pod"):
        if not all(entry["ready"] for entry in pod["status"]["containerStatuses"]):
            cluster.evict(pod["metadata"]["namespace"], pod["metadata"]["name"])
    cluster.pause(120.0)


@pytest.mark.parametrize(
    ("broken", "held"),
    [
        # Both cards that it had are free: no pod leaves before another is ready.
        ("team/b-1", {"maxSurge": 1, "maxUnavailable": 0}),
        # Its pods hold the only card that it may go back to.
        ("team/c-1", {"maxSurge": 0, "maxUnavailable": 1}),
    ],
)
def test_undo_whose_pod_does_not_get_ready_stays_open_and_ends_restored_once_it_is(
    tmp_path: Path, broken: str, held: dict[str, int]
) -> None:
    faults = Faults()
    cluster, before = applied(tmp_path, faults)
    faults.never_ready = frozenset({broken})
    workload = f"team/Deployment/{broken[5]}"
    with pytest.raises(Unavailable, match=rf"cannot finish .* {workload} .* does not get ready.*call again"):
        an_undo(some_tools(cluster, tmp_path)).undo(standard_plan().plan_id)
    tools = some_tools(cluster, tmp_path)
    assert tools.journal.open_undos()
    owner = cluster.get("Deployment", "team", broken[5])
    assert owner is not None
    assert owner["spec"]["strategy"]["rollingUpdate"] == held
    mended(cluster, faults)
    an_undo(tools).undo(standard_plan().plan_id)
    assert granted(cluster) == {pod: gib for pod, (_, gib) in BEFORE.items()}
    assert owners(cluster) == before


def test_service_keeps_the_pods_that_run_while_its_undo_is_held(tmp_path: Path) -> None:
    faults = Faults()
    cluster, _ = applied(tmp_path, faults)
    faults.never_ready = frozenset({"team/c-0", "team/c-1"})
    with pytest.raises(Unavailable):
        an_undo(some_tools(cluster, tmp_path)).undo(standard_plan().plan_id)
    running = [pod for pod in cluster.list_objects("Pod") if pod["metadata"]["name"].startswith("c-")]
    assert sum(all(entry["ready"] for entry in pod["status"]["containerStatuses"]) for pod in running) == 1


def test_held_undo_lets_go_of_a_workload_that_its_owner_has_taken_over(tmp_path: Path) -> None:
    faults = Faults()
    cluster, _ = applied(tmp_path, faults)
    faults.never_ready = frozenset({"team/c-0", "team/c-1"})
    with pytest.raises(Unavailable):
        an_undo(some_tools(cluster, tmp_path)).undo(standard_plan().plan_id)
    cluster.delete("Deployment", "team", "c")
    result = an_undo(some_tools(cluster, tmp_path)).undo(standard_plan().plan_id)
    assert any("team/Deployment/c is gone" in str(left) for left in result.kept)


def test_undo_of_a_paused_deployment_waits_until_it_is_resumed(tmp_path: Path) -> None:
    cluster, before = applied(tmp_path, Faults())
    set_paused(cluster, "true")
    with pytest.raises(Unavailable, match=r"team/Deployment/c .* it is paused"):
        an_undo(some_tools(cluster, tmp_path)).undo(standard_plan().plan_id)
    set_paused(cluster, None)
    an_undo(some_tools(cluster, tmp_path)).undo(standard_plan().plan_id)
    assert granted(cluster) == {pod: gib for pod, (_, gib) in BEFORE.items()}
    assert owners(cluster) == before


def set_paused(cluster: SimulatedCluster, value: str | None) -> None:
    """Pause Deployment c as its user would, or resume it."""
    found = cluster.get("Deployment", "team", "c")
    assert found is not None
    change = [FieldChange(field="spec.paused", value=value)]
    cluster.patch("Deployment", "team", "c", change, found["metadata"]["resourceVersion"])


def granted(cluster: SimulatedCluster) -> dict[str, int | str]:
    """What each pod is granted, GiB, or its state."""
    return {pod: seat[1] if isinstance(seat, tuple) else seat for pod, seat in where(cluster).items()}


def test_restoration_of_a_stage_whose_former_pods_do_not_get_ready_stays_open(tmp_path: Path) -> None:
    faults = Faults(out_of_memory=frozenset({"team/c-1"}))
    cluster = a_cluster(tmp_path, faults=faults)
    before = owners(cluster)
    tools = some_tools(cluster, tmp_path)

    def break_former(step: str) -> None:
        if step.startswith("restoring"):
            faults.out_of_memory, faults.never_ready = frozenset(), frozenset({"team/c-0", "team/c-1"})

    tools.step = break_former
    with pytest.raises(Unavailable, match="team/Deployment/c"):
        a_rollout(tools).apply(standard_plan(), [2], by="ann")
    with pytest.raises(Unavailable, match="team/Deployment/c"):
        an_undo(tools).undo(standard_plan().plan_id)
    mended(cluster, faults)
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ann")
    assert result.state is StageState.RESTORED
    assert where(cluster) == BEFORE
    assert owners(cluster) == before


def test_object_that_the_server_refuses_beside_somebodys_edit_is_theirs_and_the_undo_ends(tmp_path: Path) -> None:
    memory = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"

    class Strict(SimulatedCluster):
        """Takes back no part of a container that somebody gave another amount of framebuffer."""

        def patch(
            self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str
        ) -> str:
            found = self.get(kind, namespace, name)
            is_theirs = found is not None and name == "c" and field_of(found, memory) == "9000"
            if is_theirs and any(change.field.startswith("spec.template.") for change in fields):
                raise Refused("cannot patch deployments.apps team/c: status 422: Limit must be set")
            return super().patch(kind, namespace, name, fields, resource_version)

    cluster, before = applied(tmp_path, Faults())
    found = cluster.get("Deployment", "team", "c")
    assert found is not None
    change = [FieldChange(field=memory, value="9000")]
    cluster.patch("Deployment", "team", "c", change, found["metadata"]["resourceVersion"])
    cluster.close()
    strict = Strict(tmp_path / "cluster.sqlite")
    tools = some_tools(strict, tmp_path)
    result = an_undo(tools).undo(standard_plan().plan_id)
    assert any("team/Deployment/c: what the plan set beside that was left too" in str(left) for left in result.kept)
    assert not tools.journal.open_undos()
    others = [owner for owner in owners(strict) if owner["metadata"]["name"] != "c"]
    assert others == [owner for owner in before if owner["metadata"]["name"] != "c"]


def test_undo_leaves_an_owner_to_which_somebody_gives_the_plans_template_again_meanwhile(tmp_path: Path) -> None:
    """`kubectl rollout undo` brings back the template before the last, which is the plan's."""
    cluster, _ = applied(tmp_path, Faults())
    owner = cluster.get("Deployment", "team", "a")
    assert owner is not None
    of_plan = {field: field_of(owner, field) for field in OF_TEMPLATE}
    waited = 0.0

    def pause(seconds: float) -> None:
        nonlocal waited
        now = cluster.get("Deployment", "team", "a")
        assert now is not None
        if not waited and field_of(now, OF_TEMPLATE[0]) != of_plan[OF_TEMPLATE[0]]:
            changes = [FieldChange(field=field, value=value) for field, value in of_plan.items()]
            cluster.patch("Deployment", "team", "a", changes, now["metadata"]["resourceVersion"])
            waited = seconds
        elif waited:
            waited += seconds
        cluster.pause(seconds)

    result = an_undo(some_tools(cluster, tmp_path, pause=pause)).undo(standard_plan().plan_id)
    assert any("team/Deployment/a" in str(said) and "somebody set it" in str(said) for said in result.kept)
    assert 0 < waited < 120.0
    after = cluster.get("Deployment", "team", "a")
    assert after is not None
    assert {field: field_of(after, field) for field in OF_TEMPLATE} == of_plan
    assert after["spec"]["strategy"] == owner["spec"]["strategy"]
