"""The doctor names what a real cluster lacks, right by right, and changes nothing."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.measured_run import GPUTIDE
from fleet.settings.settings import EnforcerSettings, Settings
from gputide.doctor.checks import run_checks
from gputide.doctor.cluster import cluster_checks
from gputide.doctor.finding import Diagnosis, State
from tests.cluster.api import Api
from tests.cluster.audit import AuditLog
from tests.control_plane import ControlPlane, User
from tests.waiting import until

pytestmark = pytest.mark.cluster

HAMI_CARDS = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,24576,100,NVIDIA-NVIDIA A10,0,true:"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def look(
    kubeconfig: Path, *, account: str | None = None, roles: tuple[str, ...] = (), **enforcer: object
) -> list[Diagnosis]:
    settings = Settings(enforcer=EnforcerSettings.model_validate({"kubeconfig": kubeconfig, **enforcer}))
    return list(run_checks(cluster_checks(settings, roles=roles, account=account)))


def codes(found: list[Diagnosis]) -> set[str]:
    return {one.kind.code for one in found if one.kind is not None}


@pytest.fixture
def cleared(api: Api) -> Iterator[list[str]]:
    """Return a list of paths that are deleted at the end."""
    paths: list[str] = []
    yield paths
    for path in paths:
        if api.has(path):
            api.delete(path)


def test_documented_writer_has_its_rights_and_one_less_is_named(
    api: Api, control_plane: ControlPlane, writer_kubeconfig: Path, audit: AuditLog
) -> None:
    before = audit.size()
    found = look(writer_kubeconfig)
    assert "right-missing" not in codes(found)
    rights = next(one for one in found if one.check == "rights of writer")
    assert rights.state is State.OK
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gputide-writer"
    rules = api.ask("GET", path)["rules"]
    less = [
        {
            **rule,
            "verbs": [verb for verb in rule["verbs"] if not (verb == "patch" and "deployments" in rule["resources"])],
        }
        for rule in rules
    ]
    try:
        api.patch(path, {"rules": less})
        # As somebody who may ask about others.
        account = "system:serviceaccount:gputide:gputide-writer"
        told = [
            one
            for one in look(control_plane.kubeconfig(), account=account)
            if one.kind and one.kind.code == "right-missing"
        ]
        assert [one.subject for one in told] == ["writer"]
        assert "no patch on daemonsets.apps, deployments.apps, statefulsets.apps" in str(told[0].said)
        assert told[0].mend == (
            "kubectl create clusterrole gputide-writer-more --verb=patch "
            "--resource=daemonsets.apps,deployments.apps,statefulsets.apps && kubectl create clusterrolebinding "
            "gputide-writer-more --clusterrole=gputide-writer-more --serviceaccount=gputide:gputide-writer"
        )
    finally:
        api.patch(path, {"rules": rules})
    asked = ("selfsubjectaccessreviews", "subjectaccessreviews")
    mine = [one for one in audit.writes(before) if one.resource not in asked and one.user.endswith(":gputide-writer")]
    assert mine == []


def test_clock_that_differs_is_named(writer_kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr("gputide.doctor.cluster.time.time", lambda: now() - 600)
    assert "cluster-clock-skew" in codes(look(writer_kubeconfig))


def test_what_may_not_be_read_is_unchecked_and_what_is_not_there_unreachable(
    control_plane: ControlPlane, writer_kubeconfig: Path, tmp_path: Path
) -> None:
    stranger = control_plane.kubeconfig(User.STRANGER)
    webhooks = next(one for one in look(stranger) if one.check == "webhooks")
    assert webhooks.state is State.UNCHECKED
    assert "RBAC lacks verb list on resource mutatingwebhookconfigurations" in str(webhooks.said)
    away = tmp_path / "away"
    document = json.loads(writer_kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away.write_text(json.dumps(document))
    command = [str(GPUTIDE), "--data-dir", str(tmp_path), "--set", f"enforcer.kubeconfig={away}", "doctor", "cluster"]
    done = subprocess.run([*command, "--format", "csv"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 5, done.stderr
    assert "cluster-unreachable" in done.stdout


def test_traps_of_nodes_are_named(api: Api, control_plane: ControlPlane, cleared: list[str]) -> None:
    kubeconfig = control_plane.kubeconfig()
    api.create("/api/v1/namespaces", {"metadata": {"name": "gputide"}})
    before = codes(look(kubeconfig))
    traps = {"hami-register-stale", "mig-config-failed", "mig-two-managers", "time-slicing", "backend-conflict"}
    assert not traps & before
    register = "hami.io/node-nvidia-register"
    for name, labels, marks in (
        ("doctor-stale", {}, {"hami.io/node-handshake": "Deleted_2026.01.05 10:00:00"}),
        ("doctor-mig", {"nvidia.com/mig.config": "all-1g", "nvidia.com/mig.config.state": "failed"},
         {register: json.dumps([{"id": "GPU-a", "mode": "mig", "health": True}], separators=(",", ":"))}),
        ("doctor-sliced", {"nvidia.com/gpu.sharing-strategy": "time-slicing"}, {}),
        ("doctor-both", {"vke.node.gpu.schedule": "mgpu"}, {register: HAMI_CARDS}),
    ):  # fmt: skip
        cleared.append(f"/api/v1/nodes/{name}")
        api.node(name, cards=2, labels=labels, annotations=marks)
    found = look(kubeconfig)
    assert traps <= codes(found)
    conflict = next(one for one in found if one.kind is not None and one.kind.code == "backend-conflict")
    assert conflict.subject == "doctor-both"
    assert "backend-elsewhere" not in codes(found)


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("v2.4.0", "backend-version-old"),
        ("v2.10.0", None),
        ("v2.11.0", "backend-version-new"),
        ("latest", "backend-version-unseen"),
    ],
)
def test_version_of_the_backend_is_seen_by_the_images_that_run(
    api: Api, control_plane: ControlPlane, namespace: str, cleared: list[str], tag: str, code: str | None
) -> None:
    labels = {"app": "hami-device-plugin"}
    container = {"name": "device-plugin", "image": f"registry.local/mirror/projecthami/hami:{tag}"}
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    api.create(
        path,
        {
            "metadata": {"name": "hami-device-plugin"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [container], "nodeSelector": {"gpu": "on"}},
                },
            },
        },
    )
    cleared.append(f"{path}/hami-device-plugin")
    (said,) = (one for one in look(control_plane.kubeconfig()) if one.check == "backend's version")
    assert (None if said.kind is None else said.kind.code) == code
    assert tag in str(said.said)
    if code is None:
        assert f"DaemonSet {namespace}/hami-device-plugin" in str(said.said)


def test_traps_of_workloads_are_named(
    api: Api, control_plane: ControlPlane, namespace: str, cleared: list[str]
) -> None:
    kubeconfig = control_plane.kubeconfig()
    api.create("/api/v1/namespaces", {"metadata": {"name": "gputide"}})
    traps = {
        "gitops-owned",
        "autoscaled",
        "metrics-server-missing",
        "budget-blocks",
        "frozen",
        "admission-unready",
        "lease-held",
    }
    assert not traps & codes(look(kubeconfig))
    api.node("doctor-node", cards=4)
    limits = {"nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "registry/none:1", "resources": {"limits": limits, "requests": limits}}
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [container], "nodeName": "doctor-node", "tolerations": [{"operator": "Exists"}]},
    }
    paths: dict[str, dict[str, Any]] = {
        f"/apis/apps/v1/namespaces/{namespace}/deployments": {
            "metadata": {"name": "web", "labels": {"argocd.argoproj.io/instance": "shop"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        },
        f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers": {
            "metadata": {"name": "web"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 3,
                "metrics": [{"type": "Resource", "resource": {
                    "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50},
                }}],
            },
        },
        f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets": {
            "metadata": {"name": "web"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        },
        "/api/v1/namespaces/gputide/configmaps": {"metadata": {"name": "gputide-freeze"}},
        "/apis/coordination.k8s.io/v1/namespaces/gputide/leases": {
            "metadata": {"name": "enforcer"},
            "spec": {
                "holderIdentity": "another", "leaseDurationSeconds": 3600, "renewTime": "2100-01-01T00:00:00.000000Z",
            },
        },
        WEBHOOKS: {
            "metadata": {"name": "gputide-admission"},
            "webhooks": [{
                "name": "pods.gputide.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Ignore",
                "clientConfig": {"service": {"namespace": "gputide", "name": "gputide-admission", "path": "/pods"}},
                "rules": [{
                    "apiGroups": ["none.example"], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["none"],
                }],
            }],
        },
    }  # fmt: skip
    lease = "/apis/coordination.k8s.io/v1/namespaces/gputide/leases/enforcer"
    cleared += [
        "/api/v1/namespaces/gputide/configmaps/gputide-freeze", f"{WEBHOOKS}/gputide-admission",
        lease, "/api/v1/nodes/doctor-node",
    ]  # fmt: skip
    if api.has(lease):  # an enforcer of another test had it
        api.delete(lease)
    for path, manifest in paths.items():
        api.create(path, manifest)
    budget = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/web"
    until(lambda: api.ask("GET", budget).get("status", {}).get("currentHealthy") == 1)
    found = look(kubeconfig)
    assert traps <= codes(found)
    owned = next(one for one in found if one.kind is not None and one.kind.code == "gitops-owned")
    assert f"{namespace}/Deployment/web by Argo CD" in str(owned.said)


def test_missing_kind_of_plans_and_missing_policy_of_approvals_are_named(
    api: Api, control_plane: ControlPlane, writer_kubeconfig: Path
) -> None:
    assert writer_kubeconfig.exists()
    binding = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

    def found() -> set[str]:
        return codes(look(control_plane.kubeconfig(), cluster="kubernetes"))

    assert not found() & {"kinds-missing", "approval-policy-missing"}
    kept = {path: api.ask("GET", path) for path in (f"{binding}/gputide-approvals", f"{kinds}/gpuplanparts.gputide.io")}
    try:
        api.delete(f"{binding}/gputide-approvals")
        assert "approval-policy-missing" in found()
        api.delete(f"{kinds}/gpuplanparts.gputide.io")
        until(lambda: "kinds-missing" in found(), seconds_max=60.0)
    finally:
        for path, manifest in kept.items():
            del manifest["metadata"]["resourceVersion"], manifest["metadata"]["uid"]
            until(lambda: not api.has(path), seconds_max=60.0)  # noqa: B023 - called at once
            api.create(path.rpartition("/")[0], manifest)
    until(lambda: "kinds-missing" not in found(), seconds_max=60.0)
