"""Drift between applied plans and the cluster: found, told by field, mended only when asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.cluster import FieldChange
from enforcer.manifest import field_of
from enforcer.reconcile import find_drift, repair
from enforcer.rollout.run_context import RunContext
from enforcer.simulated.cluster import SimulatedCluster
from tests.enforcer.builders import a_cluster, a_rollout, an_undo, some_tools, standard_plan

REPLICAS = "spec.replicas"
LIMIT = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"


@pytest.fixture
def tools(tmp_path: Path) -> RunContext:
    """Return the tools of a cluster on which the standard plan was applied."""
    made = some_tools(a_cluster(tmp_path), tmp_path)
    a_rollout(made).apply(standard_plan(), by="ada")
    return made


def change(tools: RunContext, field: str, value: str | None, name: str = "a", kind: str = "Deployment") -> None:
    manifest = tools.reader.get(kind, "team", name)
    assert manifest is not None
    version = manifest["metadata"]["resourceVersion"]
    tools.writer.patch(kind, "team", name, [FieldChange(field=field, value=value)], version)


def test_cluster_as_the_plan_left_it_shows_none(tools: RunContext) -> None:
    assert find_drift(tools.journal, tools.reader) == ()


def test_changed_field_is_told_with_both_values(tools: RunContext) -> None:
    change(tools, LIMIT, "9999")
    (drift,) = find_drift(tools.journal, tools.reader)
    assert (drift.workload, drift.field, drift.found) == ("team/Deployment/a", LIMIT, "9999")
    assert drift.planned == "12288"
    assert (drift.recommendation, drift.stage) == ("colocate-1", 2)


def test_fields_that_no_plan_wrote_are_nobodys_business(tools: RunContext) -> None:
    change(tools, "metadata.annotations[owner]", "somebody")
    assert find_drift(tools.journal, tools.reader) == ()


def test_object_that_is_gone_is_told(tools: RunContext) -> None:
    cluster = tools.reader
    assert isinstance(cluster, SimulatedCluster)
    cluster.delete("Deployment", "team", "a")
    found = find_drift(tools.journal, tools.reader)
    assert {(drift.workload, drift.is_gone) for drift in found} == {("team/Deployment/a", True)}
    assert repair(found, tools.reader, tools.writer, tools.journal, "ada") == ("team/Deployment/a is gone",)


def test_undone_plan_has_no_drift(tools: RunContext) -> None:
    an_undo(tools).undo(standard_plan().plan_id)
    assert find_drift(tools.journal, tools.reader) == ()


def test_undone_recommendation_has_no_drift(tools: RunContext) -> None:
    an_undo(tools).undo(standard_plan().plan_id, recommendation="colocate-1")
    assert find_drift(tools.journal, tools.reader) == ()


def test_repair_writes_the_plan_again_and_the_ledger_keeps_what_was_there(tools: RunContext) -> None:
    change(tools, LIMIT, "9999")
    found = find_drift(tools.journal, tools.reader)
    assert repair(found, tools.reader, tools.writer, tools.journal, "ada") == ()
    assert find_drift(tools.journal, tools.reader) == ()
    manifest = tools.reader.get("Deployment", "team", "a")
    assert manifest is not None
    assert field_of(manifest, LIMIT) == "12288"


def test_container_that_was_renamed_is_told_and_keeps_nobody_else_as_he_is(tools: RunContext) -> None:
    cluster = tools.reader
    assert isinstance(cluster, SimulatedCluster)
    change(tools, LIMIT, "9999")
    found = find_drift(tools.journal, tools.reader)
    renamed = replace(found[0], name="b", field=LIMIT.replace("server", "other"), found=None)
    refused = repair((renamed, *found), tools.reader, tools.writer, tools.journal, "ada")
    assert [text for text in refused if "there is no 'other'" in text] == list(refused)
    assert len(refused) == 1
    assert find_drift(tools.journal, tools.reader) == ()


def test_plan_can_be_undone_after_a_repair(tools: RunContext) -> None:
    change(tools, LIMIT, "9999")
    repair(find_drift(tools.journal, tools.reader), tools.reader, tools.writer, tools.journal, "ada")
    an_undo(tools).undo(standard_plan().plan_id)
    manifest = tools.reader.get("Deployment", "team", "a")
    assert manifest is not None
    assert field_of(manifest, LIMIT) is None
