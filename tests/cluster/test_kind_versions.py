"""The way of our kinds from one version to the next, on a real API server whose etcd is looked into."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml

from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.wishes import wishes_in
from fleet.errors import Refused
from tests.cluster.api import Api, Manifest
from tests.cluster.workloads import until
from tests.control_plane import ControlPart, ControlPlane, KubernetesPrograms
from tests.gputide.conftest import Program

pytestmark = pytest.mark.cluster

DOCS = Path(__file__).resolve().parents[2] / "docs"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "/apis/gputide.io"
PLAN = "a" * 64
KINDS = ("gpupolicies", "gpuapprovals")


@pytest.fixture
def plane(programs: KubernetesPrograms, tmp_path: Path) -> Iterator[ControlPlane]:
    """Return a control plane of its own: the kinds that all other tests use stay as they are."""
    running = ControlPlane(programs, tmp_path / "plane", parts=(ControlPart.ETCD, ControlPart.API_SERVER))
    try:
        running.start()
        yield running
    finally:
        running.end()


@pytest.fixture
def own(plane: ControlPlane) -> Api:
    """Return an administrator of it, where our kinds are served and one policy and one approval are stored."""
    api = Api(plane.url, plane.ca, plane.kubeconfig())
    pages = [(DOCS / page).read_text(encoding="utf-8") for page in ("gpu-policy.yaml", "custom-resources.yaml")]
    manifests = [manifest for page in pages for manifest in yaml.safe_load_all(page)]
    for manifest in manifests:
        if manifest["kind"] == "CustomResourceDefinition":
            api.apply(manifest)
    until(lambda: {api.status("GET", f"{GROUP}/v1alpha1/{kind}") for kind in KINDS} == {200}, "they are served", 60.0)
    api.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    api.create(f"{GROUP}/v1alpha1/namespaces/team/gpupolicies", a_policy("v1alpha1", "old", optOut=True))
    api.create(f"{GROUP}/v1alpha1/gpuapprovals", an_approval("by-ann"))
    for manifest in manifests:
        api.apply(manifest)
    until(lambda: is_guarded(api), "approvals are held to the name of who makes them", 60.0)
    return api


def a_policy(version: str, name: str, **spec: Any) -> Manifest:
    head = {"apiVersion": f"gputide.io/{version}", "kind": "GpuPolicy"}
    return {**head, "metadata": {"name": name, "namespace": "team"}, "spec": spec}


def an_approval(name: str) -> Manifest:
    head = {"apiVersion": "gputide.io/v1alpha1", "kind": "GpuApproval", "metadata": {"name": name}}
    return {**head, "spec": {"plan": PLAN, "stages": [1], "approvedBy": "ann"}}


def is_guarded(api: Api) -> bool:
    try:
        api.ask("POST", f"{GROUP}/v1alpha1/gpuapprovals?dryRun=All", an_approval("forged"))
    except HTTPError as refused:
        return refused.code == 403
    return False


def with_versions(api: Api, kind: str, change: Any) -> None:
    """Change the versions of a kind's definition, as a release that brings another one does."""
    path = f"{DEFINITIONS}/{kind}.gputide.io"
    definition = api.ask("GET", path)
    versions = definition["spec"]["versions"]
    definition["spec"]["versions"] = change(versions)
    api.ask("PUT", path, definition)


def next_version_stored(versions: list[Any]) -> list[Any]:
    """The older version beside one that holds a field more and is stored."""
    (old,) = versions
    new = deepcopy(old)
    new["name"] = "v1beta1"
    new["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["note"] = {"type": "string"}
    return [{**old, "storage": False}, new]


def in_etcd(plane: ControlPlane, kind: str) -> dict[str, str]:
    """`apiVersion` of each object of a kind as it lies in etcd, by its name."""
    start = f"/registry/gputide.io/{kind}/"
    asked = {"key": coded(start), "range_end": coded(start[:-1] + "0")}
    request = urllib.request.Request(f"{plane.etcd_url}/v3/kv/range", data=json.dumps(asked).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = json.load(answer).get("kvs", [])
    objects = [json.loads(base64.b64decode(one["value"])) for one in found]
    return {one["metadata"]["name"]: one["apiVersion"] for one in objects}


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def stored_versions(api: Api, kind: str) -> list[str]:
    found: list[str] = api.ask("GET", f"{DEFINITIONS}/{kind}.gputide.io")["status"]["storedVersions"]
    return found


def test_stored_objects_go_from_one_version_to_the_next(
    plane: ControlPlane, own: Api, caller: Program, tmp_path: Path
) -> None:
    for kind in KINDS:
        with_versions(own, kind, next_version_stored)
    until(lambda: {own.status("GET", f"{GROUP}/v1beta1/{kind}") for kind in KINDS} == {200}, "both are served", 60.0)
    lists = "namespaces/team/gpupolicies"
    old = own.ask("GET", f"{GROUP}/v1beta1/{lists}/old")
    assert (old["apiVersion"], old["spec"]) == ("gputide.io/v1beta1", {"optOut": True}), "read by the new version"
    own.create(f"{GROUP}/v1beta1/{lists}", a_policy("v1beta1", "new", isolation="hard", note="why"))
    own.patch(f"{GROUP}/v1beta1/{lists}/new", {"spec": {"minReplicasWarm": 2}})
    new = own.ask("GET", f"{GROUP}/v1alpha1/{lists}/new")
    assert new["spec"] == {"isolation": "hard", "minReplicasWarm": 2}, "written by the new version, read by the old"
    assert in_etcd(plane, "gpupolicies") == {"old": "gputide.io/v1alpha1", "new": "gputide.io/v1beta1"}
    for kind in KINDS:
        assert stored_versions(own, kind) == ["v1alpha1", "v1beta1"]
        with pytest.raises(HTTPError, match="422"):
            with_versions(own, kind, lambda versions: versions[1:])
    way = ("--set", "enforcer.cluster=kubernetes", "--set", f"enforcer.kubeconfig={plane.kubeconfig()}")
    shown = caller(tmp_path / "data", *way, "admin", "kinds")
    assert "gpupolicies.gputide.io, gpuapprovals.gputide.io may lie in an older version" in shown.out
    assert stored_versions(own, "gpupolicies") == ["v1alpha1", "v1beta1"], "nothing was asked for yet"
    done = caller(tmp_path / "data", *way, "admin", "kinds", "--yes")
    assert "stored 3 objects of 2 kinds in the new version" in done.out
    assert set(in_etcd(plane, "gpupolicies").values()) == {"gputide.io/v1beta1"}
    assert in_etcd(plane, "gpuapprovals") == {"by-ann": "gputide.io/v1beta1"}, "by another than approved it"
    assert own.ask("GET", f"{GROUP}/v1beta1/{lists}/new")["spec"]["note"] == "why"
    for kind in KINDS:
        assert stored_versions(own, kind) == ["v1beta1"]
        with_versions(own, kind, lambda versions: versions[1:])
    assert (
        "everything is stored in the version that is written" in caller(tmp_path / "data", *way, "admin", "kinds").out
    )


@pytest.mark.parametrize(("version", "words"), [("v1alpha0", "older: helm upgrade"), ("v1", "newer: use the gputide")])
def test_kinds_of_versions_that_are_not_spoken_are_refused_and_not_taken_for_none(
    plane: ControlPlane, own: Api, version: str, words: str
) -> None:
    def renamed(versions: list[Any]) -> list[Any]:
        return [{**versions[0], "name": version}, {**versions[0], "storage": False, "served": False}]

    for kind in ("gpupolicies", "gpuplans"):
        with_versions(own, kind, renamed)
    until(lambda: own.status("GET", f"{GROUP}/{version}/gpuplans") == 200, "it is served", 60.0)
    until(lambda: own.status("GET", f"{GROUP}/v1alpha1/gpuplans") == 404, "the other one is not", 60.0)
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=plane.kubeconfig()))
    says = (
        rf"this cluster serves it in {version} alone, and this program speaks v1alpha1; the cluster's kinds are {words}"
    )
    try:
        for use in (lambda: wishes_in(cluster), cluster.plans.listed):
            with pytest.raises(Refused, match=says):
                use()
    finally:
        cluster.close()
