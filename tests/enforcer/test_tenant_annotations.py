"""What a tenant writes on an owner, and what the cluster does not let us read, stops no more than what it concerns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from enforcer.admission import PREVIOUS_ANNOTATION, SEATS_ANNOTATION
from enforcer.backends.hami import HamiBackend
from enforcer.preview import preview
from enforcer.record.journal import StageState
from enforcer.simulated.cluster import SimulatedCluster
from fleet.errors import Misconfigured, Refused
from fleet.sentences import Sentence
from tests.enforcer.builders import NOW, a_rollout, an_undo, let_all_go, some_tools
from tests.enforcer.test_availability import a_budget, a_fleet, set_fields, sliced

SEATS, PREVIOUS = (f"metadata.annotations[{name}]" for name in (SEATS_ANNOTATION, PREVIOUS_ANNOTATION))


class Unreadable(SimulatedCluster):
    """A cluster that does not let us look at its admission webhooks."""

    def why_unseated(self, namespaces: Sequence[str]) -> Sentence | None:
        del namespaces
        raise Misconfigured("cannot list mutatingwebhookconfigurations: forbidden")


def seats_of(cluster: SimulatedCluster, name: str) -> str | None:
    found = cluster.get("Deployment", "team", name)
    assert found is not None
    text: str | None = (found["metadata"].get("annotations") or {}).get(SEATS_ANNOTATION)
    return text


def test_plan_goes_over_seats_that_cannot_be_read_and_undo_restores_them(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, web=2, bad=2)
    let_all_go(cluster, "Deployment/web", "Deployment/bad")
    set_fields(cluster, "bad", {SEATS: "garbage"})
    plan, tools = sliced(web=2, bad=2), some_tools(cluster, tmp_path)
    assert [stage.refusal for stage in preview(plan, cluster, HamiBackend(NOW))] == [None]
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert seats_of(cluster, "bad") != "garbage"
    an_undo(tools).undo(plan.plan_id)
    assert seats_of(cluster, "bad") == "garbage"


@pytest.mark.parametrize("text", ["garbage", "[]", "[" * 100_000])
def test_previous_values_that_cannot_be_read_refuse_the_stage_by_name_and_leave_no_run_open(
    tmp_path: Path, text: str
) -> None:
    cluster = a_fleet(tmp_path, web=2, bad=2)
    let_all_go(cluster, "Deployment/web", "Deployment/bad")
    set_fields(cluster, "bad", {PREVIOUS: text})
    plan, tools = sliced(web=2, bad=2), some_tools(cluster, tmp_path)
    (stage,) = preview(plan, cluster, HamiBackend(NOW))
    assert f"cannot change Deployment team/bad: its annotation {PREVIOUS_ANNOTATION}" in str(stage.refusal)
    with pytest.raises(Refused, match="Deployment team/bad"):
        a_rollout(tools).apply(plan, by="ann")
    assert [run.is_open for run in tools.journal.runs()] == [False]
    (result,) = a_rollout(tools).apply(sliced(web=2), by="ann")
    assert result.state is StageState.PROMOTED


def test_right_that_is_missing_leaves_no_run_open(tmp_path: Path) -> None:
    a_fleet(tmp_path, web=2).close()
    cluster = Unreadable(tmp_path / "cluster.sqlite")
    let_all_go(cluster, "Deployment/web")
    tools = some_tools(cluster, tmp_path)
    with pytest.raises(Misconfigured):
        a_rollout(tools).apply(sliced(web=2), by="ann")
    assert [run.is_open for run in tools.journal.runs()] == [False]


def test_preview_shows_the_stage_and_says_which_right_it_lacks(tmp_path: Path) -> None:
    a_fleet(tmp_path, web=2).close()
    cluster = Unreadable(tmp_path / "cluster.sqlite")
    (stage,) = preview(sliced(web=2), cluster, HamiBackend(NOW))
    assert stage.refusal == "cannot list mutatingwebhookconfigurations: forbidden"
    assert [diff.name for diff in stage.objects] == ["web"]


def test_preview_shows_the_stage_and_says_which_limit_it_cannot_read(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, web=2)
    a_budget(cluster, "web", minAvailable="one")
    (stage,) = preview(sliced(web=2), cluster, HamiBackend(NOW), wave_max=10)
    assert "'one'" in str(stage.refusal)
    assert [diff.name for diff in stage.objects] == ["web"]
