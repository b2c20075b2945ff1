"""Plans in the cluster, among objects that somebody wrote to mislead or stop who reads them."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.plan_objects import CONTENT_BYTES_MAX, PARTS_MAX, STAGES_MAX, GpuPlans
from enforcer.record.plan_store import Approval
from fleet.documents import seal_plan
from fleet.errors import Corrupt, Refused
from tests.enforcer.builders import NOW, standard_plan
from tests.enforcer.scripted_api import Heard, ScriptedApi, Told

PLAN = standard_plan()
MADE_AT = "2026-01-12T00:00:00Z"


class Kept:
    """Keeps objects by path, as an API server that knows our kinds, no admission policies, and checks nothing."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    def __call__(self, heard: Heard, number: int) -> Told:
        if heard.path.endswith("selfsubjectreviews"):
            return Told(document={"status": {"userInfo": {"username": "ada"}}})
        if heard.method == "POST":
            metadata = heard.body["metadata"]
            name = metadata.get("name") or f"{metadata['generateName']}{number}"
            path = f"{heard.path}/{name}"
            if path in self.objects:
                return Told(status=409, document={"reason": "AlreadyExists"})
            self.put(path, name, heard.body["spec"])
            return Told(document=self.objects[path])
        if heard.path in self.objects:
            return Told(document=self.objects[heard.path])
        if heard.path.count("/") > 4 or "admissionregistration" in heard.path:
            return Told(status=404, document={})
        own = [one for path, one in self.objects.items() if path.rpartition("/")[0] == heard.path]
        return Told(document={"metadata": {"resourceVersion": "1"}, "items": own})

    def put(self, path: str, name: str, spec: Any, **metadata: Any) -> None:
        full = {"name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": MADE_AT, **metadata}
        self.objects[path] = {"metadata": full, "spec": spec}

    def put_plan(self, name: str = f"plan-{PLAN.plan_id}", **spec: Any) -> None:
        self.put(f"/apis/gputide.io/v1alpha1/gpuplans/{name}", name, {"plan": PLAN.plan_id, **spec})

    def put_content(self, *contents: bytes) -> None:
        """A plan of these parts, each a piece of one deflated stream."""
        packed = [base64.b64encode(content).decode() for content in contents]
        digest = hashlib.sha256("".join(packed).encode()).hexdigest()
        self.put_plan(parts=len(packed), sha256=digest)
        for number, data in enumerate(packed, start=1):
            name = f"plan-{PLAN.plan_id}-{number}"
            self.put(f"/apis/gputide.io/v1alpha1/gpuplanparts/{name}", name, {"data": data})


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def plans(tmp_path: Path, kept: Kept) -> Iterator[GpuPlans]:
    api = ScriptedApi(tmp_path, kept)
    place = ClusterPlace(kubeconfig=api.kubeconfig, requests_per_second=1000.0, requests_burst=1000)
    cluster = KubernetesCluster(place)
    yield cluster.plans
    cluster.close()
    api.close()


def test_object_of_another_name_does_not_hide_what_is_wanted_of_a_plan(kept: Kept, plans: GpuPlans) -> None:
    kept.put_plan("aa", apply=[2])
    kept.put_plan(apply=[1])
    kept.put_plan("zz", apply=[2])
    assert plans.listed()[PLAN.plan_id].wish.stages == frozenset({1})


def test_plan_is_read_as_it_was_stored(plans: GpuPlans) -> None:
    plans.add(PLAN, None)
    content, inputs = plans.content(PLAN.plan_id)
    assert (json.loads(content)["plan_id"], inputs) == (PLAN.plan_id, None)


def test_small_object_that_unpacks_to_more_than_any_plan_is_read_no_further_than_the_limit(
    kept: Kept, plans: GpuPlans
) -> None:
    bomb = zlib.compressobj()
    half = bomb.compress(b" " * (CONTENT_BYTES_MAX // 2)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    rest = bomb.compress(b" " * (CONTENT_BYTES_MAX // 2 + 2**20)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    kept.put_content(half, rest, b"never looked at")
    with pytest.raises(Corrupt, match=f"more than {CONTENT_BYTES_MAX} bytes"):
        plans.content(PLAN.plan_id)


def test_plan_of_more_parts_than_any_has_is_not_read(kept: Kept, plans: GpuPlans) -> None:
    kept.put_plan(parts=10**9, sha256="0" * 64)
    with pytest.raises(Corrupt, match=f"1000000000 parts, limit {PARTS_MAX}"):
        plans.content(PLAN.plan_id)


def test_part_that_was_exchanged_is_found(kept: Kept, plans: GpuPlans) -> None:
    plans.add(PLAN, None)
    path = f"/apis/gputide.io/v1alpha1/gpuplanparts/plan-{PLAN.plan_id}-1"
    other = zlib.compress(json.dumps({"plan": "{}", "inputs": None}).encode())
    kept.objects[path]["spec"]["data"] = base64.b64encode(other).decode()
    with pytest.raises(Corrupt, match="not those that it was stored with"):
        plans.content(PLAN.plan_id)


def test_plan_of_more_stages_than_the_kind_holds_is_refused_before_anything_is_stored(
    kept: Kept, plans: GpuPlans
) -> None:
    stages = tuple(replace(PLAN.stages[0], stage=number) for number in range(1, STAGES_MAX + 2))
    with pytest.raises(Refused, match=f"{STAGES_MAX + 1} stages, limit {STAGES_MAX}"):
        plans.add(seal_plan(replace(PLAN, stages=stages)), None)
    assert not kept.objects


def test_approval_is_given_although_somebody_else_made_an_object_of_every_name_that_can_be_guessed(
    kept: Kept, plans: GpuPlans
) -> None:
    plans.add(PLAN, None)
    spec = {"plan": PLAN.plan_id, "stages": [1], "approvedBy": "ada"}
    guessed = f"plan-{PLAN.plan_id}-{hashlib.sha256(json.dumps(spec).encode()).hexdigest()[:10]}"
    kept.put(f"/apis/gputide.io/v1alpha1/gpuapprovals/{guessed}", guessed, {**spec, "approvedBy": "mallory"})
    yes = Approval(plan_id=PLAN.plan_id, stages=(1,), by="ada", at=NOW)
    assert plans.approve(yes).by == "ada"
    assert plans.approve(yes).by == "ada"
    assert [one.by for one in plans.listed()[PLAN.plan_id].approvals] == ["ada", "mallory"]


@pytest.mark.parametrize("note", ['{"by": "x" , "apply": [1]}', "x" * 300, "[" * 100_000, '{"by": "\\u001b[2J"}'])
def test_note_of_who_wants_a_plan_is_a_name_or_nothing(kept: Kept, plans: GpuPlans, note: str) -> None:
    annotation = json.dumps({"by": note, "apply": [1]}) if note.startswith("x") else note
    kept.put_plan(apply=[1])
    head = kept.objects[f"/apis/gputide.io/v1alpha1/gpuplans/plan-{PLAN.plan_id}"]
    head["metadata"]["annotations"] = {"gputide.io/wanted-by": annotation}
    wish = plans.wish(PLAN.plan_id)
    assert wish is not None
    assert wish.by == ("x" if '"x"' in note else "")
