"""A release on the real API server, from its installation to its removal: who is admitted, who may what, what stays.

One release lives through all of it, since an installation takes seconds: as the chart stands, then with every part that
may change a cluster, back again, and away. Each test looks at what was noted at its stage.
"""

from __future__ import annotations

import base64
import re
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.api import Api, Manifest
from tests.cluster.helm_release import ROOT, HelmRelease
from tests.cluster.rights import Authorizer, Right, documented, more_than_reading, others
from tests.control_plane import ControlPlane, KubernetesPrograms
from tests.waiting import until

pytestmark = pytest.mark.cluster

NAMESPACE = "test-chart-life"
NAME = "watch-gputide"
NODE = "node-chart-life"
CERTIFICATES = ROOT / "tests" / "pipeline" / "certificates"
LOOKED_AT = (NAMESPACE, f"{NAMESPACE}-nodes", "kube-system", "default")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
# Other tests leave nodes behind that lack what a kubelet would say of them.
HERE = {"nodeSelector": {"gputide.io/test": "chart-life"}}
DEFAULT: Manifest = {
    "data": {"storageClass": "-", "size": "1Gi"}, "server": HERE, "clusterExporter": HERE, "nodeExporter": HERE,
}  # fmt: skip
WRITING: Manifest = DEFAULT | {
    "enforcer": {"enabled": True, "tide": True},
    "relief": {"enabled": True},
    "agent": {"enabled": True} | HERE,
    "admission": {
        "enabled": True, "tlsSecret": "any", "seatsNamespace": "test-chart-seats",
        "caBundle": base64.b64encode((CERTIFICATES / "authority.pem").read_bytes()).decode(),
    },
    "settings": {"prices": {"currency": "EUR"}},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What was noted of the release at one moment.

    Attributes:
        pods: `namespace/what made it` → whether all its pods run.
        claim: UID of the volume's claim.
        token: of the sender.
        settings: the server's TOML.
        changing: rights of its accounts that are more than to read.
    """

    pods: dict[str, bool]
    claim: str
    token: str
    settings: str
    changing: dict[str, set[Right]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The stages, what helm tells after the installation, and what was left at the end."""

    notes: str
    installed: Stage
    writing: Stage
    rolled_back: Stage
    returned: Stage
    writer_has: dict[Right, bool]
    writer_lacks: dict[Right, bool]
    left: list[str]


@pytest.fixture(scope="module")
def life(
    programs: KubernetesPrograms, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Life]:
    control_plane.start()
    api = Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": RESTRICTED}})
    api.node(
        NODE,
        labels={**HERE["nodeSelector"], "kubernetes.io/hostname": NODE, "nvidia.com/gpu.present": "true", "gpu": "on"},
    )
    volume = {
        "metadata": {"name": "test-chart-life"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/none"},
            "claimRef": {"namespace": NAMESPACE, "name": f"{NAME}-data"},
        },
    }  # fmt: skip
    api.create("/api/v1/persistentvolumes", volume)
    release = HelmRelease(
        helm=programs.helm, kubeconfig=control_plane.kubeconfig(), home=tmp_path_factory.mktemp("helm"), name="watch",
        namespace=NAMESPACE,
    )  # fmt: skip
    release.install(DEFAULT, "--wait", "--timeout", "120s")
    installed, notes = noted(api), release.run("get", "notes", "watch")
    as_root = {"metadata": {"name": "root"}, "spec": {"containers": [{"name": "main", "image": "registry/none:1"}]}}
    with pytest.raises(urllib.error.HTTPError, match="403"):  # what the namespace is labelled for holds
        api.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", as_root)
    release.install(WRITING, "--wait", "--timeout", "120s")
    writing, page = noted(api), documented(NAMESPACE)
    authorizer = Authorizer(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    has = {right: authorizer.may(NAMESPACE, f"{NAME}-writer", right) for right in page}
    lacks = {right: authorizer.may(NAMESPACE, f"{NAME}-writer", right) for right in others(page, NAMESPACE)}
    authorizer.close()
    release.roll_back(1, "--wait", "--timeout", "120s")
    rolled_back = noted(api)
    release.install(DEFAULT | {"data": DEFAULT["data"] | {"existingClaim": "another"}})
    release.roll_back(1)
    returned = noted(api)
    release.remove()
    yield Life(
        notes=notes, installed=installed, writing=writing, rolled_back=rolled_back, returned=returned,
        writer_has=has, writer_lacks=lacks, left=left_over(api),
    )  # fmt: skip
    api.delete(f"/api/v1/namespaces/{NAMESPACE}")
    api.delete("/api/v1/persistentvolumes/test-chart-life")
    api.delete(f"/api/v1/nodes/{NODE}")


def test_parts_are_admitted_where_pods_must_be_restricted_and_node_parts_beside_them(life: Life) -> None:
    nodes = f"{NAMESPACE}-nodes"
    assert life.installed.pods == {
        f"{NAMESPACE}/Deployment/{NAME}": True,
        f"{NAMESPACE}/Deployment/{NAME}-cluster-exporter": True,
        f"{nodes}/DaemonSet/{NAME}-exporter": True,
    }
    assert life.writing.pods == life.installed.pods | {
        f"{NAMESPACE}/Deployment/{NAME}-enforcer": True,
        f"{NAMESPACE}/Deployment/{NAME}-admission": True,
        f"{nodes}/DaemonSet/{NAME}-agent": True,
    }


def test_as_it_stands_the_chart_may_change_nothing(life: Life) -> None:
    assert set(life.installed.changing) == {NAME, f"{NAME}-reader", f"{NAME}-node"}
    assert not any(life.installed.changing.values()), life.installed.changing
    # The same look finds what the writer may.
    assert (
        Right(verb="patch", group="apps", resource="deployments", namespace=NAMESPACE)
        in life.writing.changing[f"{NAME}-writer"]
    )


def test_notes_name_the_next_commands_with_the_names_of_the_release(life: Life) -> None:
    assert f"url: http://{NAME}-receiver.{NAMESPACE}.svc:9009/api/v1/write" in life.notes
    assert f"kubectl -n {NAMESPACE} exec deploy/{NAME} -c dashboard -- gputide doctor" in life.notes
    assert f"kubectl -n {NAMESPACE} port-forward deploy/{NAME} 8050" in life.notes


def test_writer_has_every_right_of_its_page(life: Life) -> None:
    assert len(life.writer_has) > 100
    assert [right for right, is_allowed in life.writer_has.items() if not is_allowed] == []


def test_writer_has_no_other_right(life: Life) -> None:
    assert len(life.writer_lacks) > 400
    assert [right for right, is_allowed in life.writer_lacks.items() if is_allowed] == []


def test_upgrade_and_roll_back_keep_the_volume_and_the_token_of_the_sender(life: Life) -> None:
    stages = (life.installed, life.writing, life.rolled_back, life.returned)  # the last from another volume
    assert len({stage.claim for stage in stages}) == 1
    assert len({stage.token for stage in stages}) == 1
    assert len(life.installed.token) == 48
    assert "EUR" in life.writing.settings
    assert life.rolled_back.settings == life.installed.settings


def test_roll_back_takes_the_right_to_write_away(life: Life) -> None:
    assert life.rolled_back.pods == life.installed.pods
    assert set(life.rolled_back.changing) == set(life.installed.changing)
    assert not any(life.rolled_back.changing.values())


def test_removed_release_leaves_its_volume_and_nothing_else(life: Life) -> None:
    assert life.left == [f"PersistentVolumeClaim/{NAME}-data"]


def noted(api: Api) -> Stage:
    base = f"/api/v1/namespaces/{NAMESPACE}"
    token = api.ask("GET", f"{base}/secrets/{NAME}-senders")["data"]["token"]
    changing = {}
    for namespace in (NAMESPACE, f"{NAMESPACE}-nodes"):
        for account in api.ask("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"]:
            name = account["metadata"]["name"]
            if name != "default":
                changing[name] = more_than_reading(api, namespace, name, look_at=LOOKED_AT)
    return Stage(
        pods=pods(api),
        claim=api.ask("GET", f"{base}/persistentvolumeclaims/{NAME}-data")["metadata"]["uid"],
        token=base64.b64decode(token).decode(),
        settings=api.ask("GET", f"{base}/configmaps/{NAME}")["data"]["gputide.toml"],
        changing=changing,
    )


def pods(api: Api) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for namespace in (NAMESPACE, f"{NAMESPACE}-nodes"):
        for plural, wanted, ready in (
            ("deployments", "replicas", "readyReplicas"),
            ("daemonsets", "desiredNumberScheduled", "numberReady"),
        ):
            for one in api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/{plural}")["items"]:
                status = one["status"]
                kind = plural.removesuffix("s").replace("deployment", "Deployment").replace("daemonset", "DaemonSet")
                are_ready = status.get(wanted, 0) > 0 and status.get(ready, 0) == status[wanted]
                found[f"{namespace}/{kind}/{one['metadata']['name']}"] = are_ready
    return found


def left_over(api: Api) -> list[str]:
    """Whatever bears the release's label, once what ends has ended, beside the kinds of objects, which are kept."""
    lists = [("/api/v1", one) for one in api.ask("GET", "/api/v1")["resources"]]
    for group in api.ask("GET", "/apis")["groups"]:
        version = f"/apis/{group['preferredVersion']['groupVersion']}"
        lists += [(version, one) for one in api.ask("GET", version)["resources"]]

    def look() -> list[str]:
        found = []
        for version, kind in lists:
            if "list" not in kind["verbs"] or kind["kind"] in ("Event", "ComponentStatus"):
                continue
            query = "?labelSelector=app.kubernetes.io/instance%3Dwatch"
            try:
                items = api.ask("GET", f"{version}/{kind['name']}{query}")["items"]
            except urllib.error.HTTPError:
                continue
            found += [f"{kind['kind']}/{item['metadata']['name']}" for item in items]
        kinds = re.compile(r"CustomResourceDefinition/(cluster)?gpu\w+\.gputide\.io")
        return sorted(name for name in found if not kinds.fullmatch(name))

    until(lambda: len(look()) <= 1, seconds_max=120.0, pause_seconds=0.5)
    return look()
