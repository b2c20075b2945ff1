"""What somebody else changes of an owner while a stage is under way stays: the stage ends restored around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from enforcer.cluster import FieldChange
from enforcer.manifest import Manifest, field_of
from enforcer.record.journal import StageState
from enforcer.rollout.holding import HOLD_MARGIN_SECONDS, HOLD_SECONDS_MAX, Way, hold_seconds, holds_of
from enforcer.rollout.progress import Progress
from enforcer.rollout.restore import StageResult
from enforcer.simulated.cluster import SimulatedCluster
from tests.enforcer.builders import a_cluster, a_rollout, some_tools, standard_plan, where
from tests.enforcer.test_rollout import AFTER, owners

IMAGE = "spec.template.spec.containers[server].image"
GRANT = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"
REPLICAS = "spec.replicas"
HELD = ("minReadySeconds", "progressDeadlineSeconds", "strategy")
MOMENTS = ("moving canary", "watching canary", "moving rest", "watching rest")


def phase_of(news: Progress) -> str:
    """The phase and, where there is one, the batch."""
    return f"{news.phase.value} {dict(news.said.values).get('batch')}"


def changed(cluster: SimulatedCluster, name: str, field: str, value: str | None) -> None:
    found = standing(cluster, name)
    change = FieldChange(field=field, value=value)
    cluster.patch("Deployment", "team", name, [change], found["metadata"]["resourceVersion"])


def standing(cluster: SimulatedCluster, name: str) -> Manifest:
    found = cluster.get("Deployment", "team", name)
    assert found is not None
    return found


def applied_while(
    folder: Path, cluster: SimulatedCluster, moment: str, act: Callable[[], None]
) -> tuple[StageResult, list[Manifest]]:
    """Apply the second stage; somebody acts once, in the first pause of a moment."""
    phases: list[str] = []
    seen: list[Manifest] = []

    def pause(seconds: float) -> None:
        cluster.pause(seconds)
        if phases and phases[-1] == moment and not seen:
            seen.extend(owners(cluster))
            act()

    def hear(news: Progress) -> None:
        phases.append(phase_of(news))

    tools = some_tools(cluster, folder, pause=pause, on_progress=hear)
    (result,) = a_rollout(tools).apply(standard_plan(), [2], by="ann")
    assert seen, phases
    return result, seen


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("field", "value", "named"),
    [(IMAGE, "hot:fix", "spec.template"), (REPLICAS, "4", "spec.replicas"), (GRANT, "999", GRANT)],
)
def test_change_of_somebody_else_stays_and_the_stage_is_restored_around_it(
    tmp_path: Path, moment: str, field: str, value: str, named: str
) -> None:
    cluster = a_cluster(tmp_path)
    before = owners(cluster)
    result, _ = applied_while(tmp_path, cluster, moment, lambda: changed(cluster, "a", field, value))
    assert result.state is StageState.RESTORED
    assert str(result.reason) == f"team/Deployment/a was changed by somebody else meanwhile: {named}"
    assert field_of(standing(cluster, "a"), field) == value
    changed(cluster, "a", field, field_of(next(found for found in before if found["metadata"]["name"] == "a"), field))
    assert owners(cluster) == before


@pytest.mark.parametrize("moment", MOMENTS)
def test_rollback_by_somebody_else_is_not_written_over(tmp_path: Path, moment: str) -> None:
    cluster = a_cluster(tmp_path)
    before = owners(cluster)
    former = standing(cluster, "a")["spec"]["template"]
    grant = field_of({"spec": {"template": former}}, GRANT)
    result, _ = applied_while(tmp_path, cluster, moment, lambda: changed(cluster, "a", GRANT, grant))
    assert result.state is StageState.RESTORED
    assert "team/Deployment/a was changed by somebody else meanwhile" in str(result.reason)
    assert GRANT in str(result.reason)
    assert owners(cluster) == before


@pytest.mark.parametrize("moment", MOMENTS[:2])
def test_hold_ends_with_the_look_that_sees_somebody_elses_change(tmp_path: Path, moment: str) -> None:
    cluster = a_cluster(tmp_path)
    writes: list[tuple[float, str]] = []
    spent = [0.0]
    free = {name: standing(cluster, "a")["spec"].get(name) for name in HELD}

    def pause(seconds: float) -> None:
        spent[0] += seconds
        cluster.pause(seconds)
        held = {name: standing(cluster, "a")["spec"].get(name) for name in HELD}
        if phases and phases[-1] == moment and not writes:
            assert held != free
            writes.append((spent[0], "hotfix"))
            changed(cluster, "a", IMAGE, "hot:fix")
        elif writes and len(writes) == 1 and held == free:
            writes.append((spent[0], "free"))

    phases: list[str] = []
    tools = some_tools(cluster, tmp_path, pause=pause, on_progress=lambda news: phases.append(phase_of(news)))
    a_rollout(tools).apply(standard_plan(), [2], by="ann")
    (pushed, _), (freed, _) = writes
    assert freed - pushed <= 2 * tools.policy.moving.poll_seconds


def test_annotation_of_somebody_else_or_another_workloads_change_does_not_end_a_stage(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)

    def act() -> None:
        changed(cluster, "a", "metadata.annotations[team/owner]", "ann")
        job = cluster.get("Job", "team", "train")
        assert job is not None
        change = FieldChange(field="spec.backoffLimit", value="2")
        cluster.patch("Job", "team", "train", [change], job["metadata"]["resourceVersion"])

    result, _ = applied_while(tmp_path, cluster, "watching canary", act)
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert where(cluster)["a-1"] == AFTER["a-1"]


@pytest.mark.parametrize("own", [None, 30, 900])
@pytest.mark.parametrize("deadline", [None, 600, 3600])
@pytest.mark.parametrize("watch_seconds", [1.0, 600.0, 86_400.0])
def test_hold_of_a_deployment_ends_by_the_clock_of_the_api_server_within_ten_minutes(
    own: int | None, deadline: int | None, watch_seconds: float
) -> None:
    spec = {"minReadySeconds": own, "progressDeadlineSeconds": deadline, "replicas": 2}
    given = {name: value for name, value in spec.items() if value is not None}
    owner = {"kind": "Deployment", "spec": given}
    holds = {hold.field: hold for hold in holds_of(owner, 2, Way.GAP, watch_seconds=watch_seconds)}
    held = int(holds["spec.minReadySeconds"].canary or "0") if "spec.minReadySeconds" in holds else own or 0
    late = deadline or 600
    if "spec.progressDeadlineSeconds" in holds:
        late = int(holds["spec.progressDeadlineSeconds"].canary or "0")
    assert held == max(own or 0, hold_seconds(watch_seconds))
    assert hold_seconds(watch_seconds) <= HOLD_SECONDS_MAX
    assert hold_seconds(watch_seconds) >= min(watch_seconds, HOLD_SECONDS_MAX - HOLD_MARGIN_SECONDS)
    # As much time is left for a pod to start as before.
    assert late - held == (deadline or 600) - (own or 0)
