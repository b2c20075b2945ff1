"""Faults of the matrix do what they say, and one that met nothing that it could hurt says so."""

from __future__ import annotations

import copy
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.live_cluster import LiveCluster
from bench.live_faults import CARD_MIB, CARDS, REPLICAS
from bench.live_stages import LiveStage
from bench.safe_matrix import faults
from bench.safe_matrix.case import NODES, Case, Phase, Wanted
from bench.safe_matrix.judge import ALLOCATED
from tests.cluster.api import Api, Manifest

APPROVALS = "/apis/gputide.io/v1alpha1/gpuapprovals"
DEPLOYMENTS = "/apis/apps/v1/namespaces/n/deployments"
SETS = "/apis/apps/v1/namespaces/n/replicasets?labelSelector=app%3D{}"
REVISION, HASH = "deployment.kubernetes.io/revision", "pod-template-hash"


class KeptApi(Api):
    """Keeps objects by path; a list is what was put there, and each write is noted."""

    def __init__(self, objects: dict[str, Manifest]) -> None:
        self.objects = objects
        self.written: list[tuple[str, str, Any]] = []

    def ask(self, method: str, path: str, body: Any = None, **_: Any) -> Manifest:
        """Answer from what is kept; a JSON patch replaces a template."""
        if method != "GET":
            self.written.append((method, path, copy.deepcopy(body)))
        if method == "PATCH":
            self.objects[path]["spec"]["template"] = copy.deepcopy(body[0]["value"])
        return copy.deepcopy(self.objects.get(path, {"items": []}))


def a_case(
    fault: str, objects: dict[str, Manifest], folder: Path, phase: Phase = Phase.APPLIED
) -> tuple[Case, KeptApi]:
    api = KeptApi(objects)
    case = Case(
        live=cast(LiveCluster, SimpleNamespace(api=api)), slot=0, name="n", folder=folder,
        wanted=Wanted(fault=fault, phase=Phase.APPLIED, seed=0),
    )  # fmt: skip
    case.chance = random.Random(0)
    return case, api


def struck(case: Case) -> Case:
    faults.FAULTS[case.wanted.fault].strike(case)
    return case


def a_template(image: str) -> Manifest:
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"image": image}]}}


def a_set(app: str, revision: int) -> Manifest:
    template = a_template(f"{app}:{revision}")
    template["metadata"]["labels"][HASH] = f"hash-{revision}"
    return {"metadata": {"annotations": {REVISION: str(revision)}}, "spec": {"template": template}}


def test_rollback_brings_the_template_before_the_last_one_by_number(tmp_path: Path) -> None:
    objects: dict[str, Manifest] = {
        SETS.format(app): {"items": [a_set(app, number) for number in (10, 2, 9)]} for app in REPLICAS
    }
    objects |= {f"{DEPLOYMENTS}/{app}": {"spec": {"template": a_template("new")}} for app in REPLICAS}
    case, api = a_case("rollback", objects, tmp_path)
    struck(case)
    assert case.has_struck
    ((method, path, _),) = api.written
    app = path.rpartition("/")[2]
    assert (method, api.objects[path]["spec"]["template"]) == ("PATCH", a_template(f"{app}:9"))
    assert case.theirs == {one: {"template"} if one == app else set() for one in REPLICAS}


def test_rollback_without_a_former_template_strikes_nothing(tmp_path: Path) -> None:
    objects = {SETS.format(app): {"items": [a_set(app, 1)]} for app in REPLICAS}
    case, api = a_case("rollback", objects, tmp_path)
    assert not struck(case).has_struck
    assert api.written == []


def reverted(tmp_path: Path, **templates: str) -> tuple[Case, KeptApi]:
    """A case with templates as they are; all of Git's say `git`."""
    objects = {
        f"{DEPLOYMENTS}/{app}": {"spec": {"template": a_template(templates.get(app, "git"))}} for app in REPLICAS
    }
    case, api = a_case("reverter", objects, tmp_path)
    in_git = {app: {"spec": {"template": a_template("git")}} for app in REPLICAS}
    case.stage = cast(LiveStage, SimpleNamespace(before=SimpleNamespace(objects=in_git)))
    return case, api


def test_reverter_writes_what_differs_from_git_and_only_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_REVERTED_SECONDS", 0.5)
    case, api = reverted(tmp_path, b="applied")
    struck(case)
    case.cures.pop()()  # waits until it is over
    path = f"{DEPLOYMENTS}/b"
    assert [(method, at) for method, at, _ in api.written] == [("PATCH", path)]
    assert api.objects[path]["spec"]["template"] == a_template("git")
    api.objects[path]["spec"]["template"] = a_template("applied again")
    time.sleep(1.2)
    assert len(api.written) == 1
    assert case.has_struck
    assert case.complaints == []


def test_reverter_that_finds_all_as_in_git_strikes_nothing(tmp_path: Path) -> None:
    case, api = reverted(tmp_path)
    assert not struck(case).has_struck
    assert api.written == []


def pods_on(cards: int) -> dict[str, Manifest]:
    """Pods of which each holds a card, and one that is not bound."""
    pods = [
        {
            "metadata": {"name": f"a-{card}", "labels": {"app": "a"}, "annotations": {ALLOCATED: f"G-{card},N,9,0:;"}},
            "spec": {"nodeName": "slot-0"},
        }
        for card in range(cards)
    ]  # fmt: skip
    pods.append({"metadata": {"name": "waits", "labels": {"app": "a"}}, "spec": {}})
    return {"/api/v1/namespaces/n/pods": {"items": pods}}


def test_every_free_card_is_taken_whole(tmp_path: Path) -> None:
    case, api = a_case("pods Pending", pods_on(5), tmp_path)
    struck(case)
    ((_, path, made),) = api.written
    assert (path, made["spec"]["replicas"]) == (DEPLOYMENTS, NODES * CARDS - 5)
    limits = made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpumem"] == str(CARD_MIB)
    assert case.has_struck


def test_no_free_card_to_take_strikes_nothing(tmp_path: Path) -> None:
    case, api = a_case("pods Pending", pods_on(NODES * CARDS), tmp_path)
    assert not struck(case).has_struck
    assert api.written == []


@pytest.mark.parametrize(("plan", "is_struck"), [("mine", True), ("another", False)])
def test_approval_of_this_plan_alone_is_withdrawn(tmp_path: Path, plan: str, is_struck: bool) -> None:
    given = {"items": [{"metadata": {"name": "yes"}, "spec": {"plan": plan}}]}
    case, api = a_case("approval withdrawn", {APPROVALS: given}, tmp_path)
    case.stage = cast(LiveStage, SimpleNamespace(planned=SimpleNamespace(plan_id="mine")))
    assert struck(case).has_struck is is_struck
    assert [path for _, path, _ in api.written] == ([f"{APPROVALS}/yes"] if is_struck else [])
