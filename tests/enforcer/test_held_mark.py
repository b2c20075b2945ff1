"""A change of a held owner's template by anybody else ends the hold in the same write, and nothing else does."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.kubernetes.admission_review import PodAdmission
from enforcer.manifest import Manifest, field_of, set_field
from enforcer.record.journal import HoldIntent
from enforcer.rollout.held_mark import HELD_ANNOTATION, marked, released
from enforcer.rollout.holding import Phase, Way, held_values, holds_of
from tests.enforcer.plugin_cluster import StandingCluster

MARK = f"metadata.annotations[{HELD_ANNOTATION}]"
IMAGE = "spec.template.spec.containers[server].image"
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "server", "image": "one"}]}}
SPECS: dict[str, dict[str, Any]] = {
    "Deployment": {"replicas": 3, "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}},
    "StatefulSet": {"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}},
    "DaemonSet": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}},
    "Rollout": {"replicas": 3, "strategy": {"canary": {"maxSurge": 1}}},
}


def a_held(kind: str, phase: Phase) -> tuple[Manifest, Manifest]:
    """An owner as its users set it, and as a stage holds it."""
    spec = {**copy.deepcopy(SPECS[kind]), "template": copy.deepcopy(TEMPLATE)}
    free: Manifest = {"kind": kind, "metadata": {"name": "a", "namespace": "team"}, "spec": spec}
    held = copy.deepcopy(free)
    holds = marked(holds_of(free, 3, Way.GAP, watch_seconds=60.0))
    for field, value in held_values(free, holds, phase):
        set_field(held, field, value)
    return free, held


@pytest.mark.parametrize("phase", [Phase.CANARY, Phase.REST])
@pytest.mark.parametrize("kind", SPECS)
def test_hotfix_of_a_held_owner_rolls_by_its_own_strategy(kind: str, phase: Phase) -> None:
    free, held = a_held(kind, phase)
    assert held != free
    hotfix = copy.deepcopy(held)
    set_field(hotfix, IMAGE, "two")
    set_field(free, IMAGE, "two")
    assert released(held, hotfix) == free


@pytest.mark.parametrize("kind", SPECS)
def test_change_beside_the_template_leaves_the_hold(kind: str) -> None:
    _, held = a_held(kind, Phase.CANARY)
    beside = copy.deepcopy(held)
    beside["metadata"]["labels"] = {"team": "a"}
    beside["spec"]["revisionHistoryLimit"] = 3
    assert released(held, beside) == beside


def test_field_that_the_hotfix_sets_itself_stays_as_set() -> None:
    _, held = a_held("Deployment", Phase.CANARY)
    hotfix = copy.deepcopy(held)
    set_field(hotfix, IMAGE, "two")
    set_field(hotfix, "spec.minReadySeconds", "7")
    found = released(held, hotfix)
    assert found["spec"]["minReadySeconds"] == 7
    assert found["spec"]["strategy"] == SPECS["Deployment"]["strategy"]


@given(st.one_of(st.text(), st.dictionaries(st.text(), st.lists(st.text(), max_size=3)).map(json.dumps)))
def test_spoilt_mark_of_a_tenant_changes_nothing_but_itself(text: str) -> None:
    _, held = a_held("Deployment", Phase.CANARY)
    held["metadata"]["annotations"][HELD_ANNOTATION] = text
    hotfix = copy.deepcopy(held)
    set_field(hotfix, IMAGE, "two")
    found = released(held, hotfix)
    assert {**found, "metadata": None} == {**hotfix, "metadata": None}


def test_mark_that_a_rollback_brings_back_to_an_owner_that_is_not_held_changes_no_field() -> None:
    free, held = a_held("Deployment", Phase.CANARY)
    free["metadata"]["annotations"] = {HELD_ANNOTATION: field_of(held, MARK)}
    free["spec"]["strategy"]["rollingUpdate"] = {"maxSurge": "50%", "maxUnavailable": "50%"}
    hotfix = copy.deepcopy(free)
    set_field(hotfix, IMAGE, "two")
    assert released(free, hotfix)["spec"] == hotfix["spec"]


def answer(before: Manifest, after: Manifest, manager: str) -> list[Manifest]:
    request = {
        "uid": "u", "kind": {"kind": before["kind"]}, "operation": "UPDATE", "namespace": "team",
        "oldObject": before, "object": after, "options": {"kind": "UpdateOptions", "fieldManager": manager},
    }  # fmt: skip
    response = PodAdmission(StandingCluster(())).review({"request": request})["response"]
    assert response["allowed"]
    found: list[Manifest] = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return found


def test_admission_lets_go_of_what_kubectl_changes_and_not_of_what_the_enforcer_writes() -> None:
    _, held = a_held("Deployment", Phase.CANARY)
    hotfix = copy.deepcopy(held)
    set_field(hotfix, IMAGE, "two")
    paths = {operation["path"] for operation in answer(held, hotfix, "kubectl-edit")}
    assert "/spec/minReadySeconds" in paths
    assert answer(held, hotfix, "gputide") == []
    assert answer(held, held, "kubectl-edit") == []


def test_hold_that_is_none_gets_no_mark() -> None:
    assert marked(()) == ()
    assert marked((HoldIntent(field="spec.a", old="1", canary="2", rest="1"),))[-1].field == MARK
