"""The chart as a bundle of the Operator Lifecycle Manager: nothing in it is written a second time.

What helm renders for a release that reads and advises is sorted by what a bundle may hold: Deployments, and the rules
that bindings give to accounts, go into the ClusterServiceVersion; custom resources, Services, ConfigMaps, network
policies and roles that nobody is bound to stand beside it. What no bundle may hold is left out and named in the
description, the volume and the parts on nodes among it, and so is everything that may change a cluster: its admission
policies can't come along, and a writer without them would be free to write any field.

Source: olm.operatorframework.io/docs/tasks/creating-operator-bundle and operator-manifests; operator-framework/api:
pkg/operators/v1alpha1/clusterserviceversion_types.go. Called by `deploy.release.build`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.release.licences import ROOT
from fleet.errors import Unavailable

NAME = "gputide"
CHANNEL = "alpha"
CHART = ROOT / "deploy" / "helm" / NAME
VALUES: Mapping[str, object] = {
    # Only what a bundle can't hold; all else is as the chart has it.
    "nodeExporter": {"enabled": False},
    "data": {"existingClaim": "gputide-data"},
    "receiver": {"tokensSecret": "gputide-senders"},
}
_BESIDE = frozenset({"CustomResourceDefinition", "Service", "ConfigMap", "ClusterRole", "NetworkPolicy"})
"""Kinds that stand in files of their own (operator-registry:pkg/lib/bundle/supported_resources.go)."""
_ACCOUNTS = frozenset({"ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"})
_HELMS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
_CHAT = {"selector": {"matchLabels": {"app": "chat"}}, "latencyCritical": True, "minReplicasWarm": 2}
_EXAMPLES = [
    {"apiVersion": "gputide.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    for kind, name, spec in (("GpuPolicy", "chat", _CHAT), ("ClusterGpuPolicy", "base", {"minReplicasWarm": 1}))
]
_DESCRIPTION = """\
gputide shows what every GPU of a cluster does and costs, and plans which cards can be freed. As installed from this
bundle it reads and advises; no account of it may change anything.

Before the installation, in the namespace of the operator, which is to be `gputide` (the network policies let scrapers
of that namespace in):

- a PersistentVolumeClaim `gputide-data` (200 kB a card and day);
- a Secret `gputide-senders` with the key `tokens`: a line `TOKEN SENDER` for each Prometheus that may send.

A bundle can't hold these parts of the chart, which `helm template` renders: {left_out}; the exporters on nodes
(DaemonSet) and everything that changes a cluster come by the chart or by `kubectl apply` alone. Without the CronJobs
plans are made by hand: `kubectl exec deploy/gputide -c dashboard -- gputide plan make`.
"""
Manifest = dict[str, Any]


def bundle(helm: str, *, version: str, provider: str = NAME) -> dict[str, str]:
    """Path within the bundle to text.

    Args:
        provider: who publishes it.

    Raises:
        Unavailable: helm does not render the chart.
    """
    manifests = _rendered(helm, version)
    bound = {_key(one) for one in manifests if one["kind"] in ("Role", "ClusterRole")} & set(_bindings(manifests))
    beside = [one for one in manifests if one["kind"] in _BESIDE and _key(one) not in bound]
    left_out = sorted(
        f"{one['kind']} {one['metadata']['name']}"
        for one in manifests
        if one["kind"] not in _BESIDE | _ACCOUNTS | {"Deployment"}
    )
    files = {f"manifests/{one['kind'].lower()}-{one['metadata']['name']}.yaml": _text(one) for one in beside}
    files[f"manifests/{NAME}.clusterserviceversion.yaml"] = _text(
        _service_version(manifests, version=version, provider=provider, left_out=left_out)
    )
    marks = {
        "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
        "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
        "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
        "operators.operatorframework.io.bundle.package.v1": NAME,
        "operators.operatorframework.io.bundle.channels.v1": CHANNEL,
        "operators.operatorframework.io.bundle.channel.default.v1": CHANNEL,
    }
    files["metadata/annotations.yaml"] = _text({"annotations": marks})
    labels = "".join(f"LABEL {key}={value}\n" for key, value in marks.items())
    files["bundle.Dockerfile"] = f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n"
    return files


def write_bundle(folder: Path, helm: str, *, version: str) -> None:
    """Write the bundle into a folder that is not there yet. Raises as `bundle`."""
    for name, text in bundle(helm, version=version).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _rendered(helm: str, version: str) -> list[Manifest]:
    command = [helm, "template", NAME, str(CHART), "--namespace", NAME, "--no-hooks", "--values", "-"]
    done = subprocess.run(
        command, cwd=ROOT, input=yaml.safe_dump(dict(VALUES)), capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode != 0:
        raise Unavailable(f"cannot render the chart: {done.stderr.strip()[-500:]!r}")
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    for one in found:
        metadata = one["metadata"]
        # The namespace is whichever the operator is installed in.
        metadata.pop("namespace", None)
        _relabel(metadata.get("labels", {}), version)
        _relabel(one.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {}), version)
    return found


def _relabel(labels: dict[str, str], version: str) -> None:
    """Of the release's version, and not of helm."""
    for key in _HELMS:
        labels.pop(key, None)
    if "app.kubernetes.io/version" in labels:
        labels["app.kubernetes.io/version"] = version


def _service_version(
    manifests: Sequence[Manifest], *, version: str, provider: str, left_out: Sequence[str]
) -> Manifest:
    deployments = [one for one in manifests if one["kind"] == "Deployment"]
    images = sorted({box["image"] for one in deployments for box in one["spec"]["template"]["spec"]["containers"]})
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{NAME}.v{version}",
            "annotations": {
                "alm-examples": json.dumps(_EXAMPLES),
                "capabilities": "Basic Install",
                "categories": "Monitoring, AI/Machine Learning",
                "containerImage": images[0],
                "description": chart["description"],
                "operatorframework.io/suggested-namespace": NAME,
            },
            "labels": {f"operatorframework.io/arch.{machine}": "supported" for machine in ("amd64", "arm64")},
        },
        "spec": {
            "displayName": NAME,
            "description": _DESCRIPTION.format(left_out=", ".join(left_out)),
            "version": version,
            "maturity": CHANNEL,
            "minKubeVersion": str(chart["kubeVersion"]).removeprefix(">=").removesuffix("-0"),
            "keywords": chart["keywords"],
            "provider": {"name": provider},
            "installModes": [
                {"type": kind, "supported": kind in ("OwnNamespace", "AllNamespaces")}
                for kind in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "customresourcedefinitions": {
                "owned": [_owned(one) for one in manifests if "names" in one.get("spec", {})]
            },
            "relatedImages": [{"name": f"{NAME}-{number}", "image": image} for number, image in enumerate(images)],
            "install": {
                "strategy": "deployment",
                "spec": {
                    "deployments": [
                        {"name": one["metadata"]["name"], "label": one["metadata"]["labels"], "spec": one["spec"]}
                        for one in deployments
                    ],
                    "clusterPermissions": _permissions(manifests, "ClusterRole"),
                    "permissions": _permissions(manifests, "Role"),
                },
            },
        },
    }


def _owned(definition: Manifest) -> Manifest:
    spec = definition["spec"]
    return {
        "name": definition["metadata"]["name"],
        "version": spec["versions"][0]["name"],
        "kind": spec["names"]["kind"],
        "displayName": spec["names"]["kind"],
        "description": definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"],
    }


def _permissions(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    """What each account may, by roles of a kind; accounts without any right are made by an empty rule."""
    rules = {_key(one): one["rules"] for one in manifests if one["kind"] == kind}
    granted: dict[str, list[Any]] = {}
    for role, accounts in _bindings(manifests).items():
        for account in accounts:
            granted.setdefault(account, []).extend(rules.get(role, ()))
    accounts_ = [one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount"]
    if kind == "Role":
        return [{"serviceAccountName": name, "rules": granted.get(name, [])} for name in accounts_]
    return [{"serviceAccountName": name, "rules": granted[name]} for name in accounts_ if granted.get(name)]


def _bindings(manifests: Sequence[Manifest]) -> dict[tuple[str, str], list[str]]:
    """Kind and name of a role to names of the accounts that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in manifests:
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            names = [subject["name"] for subject in one["subjects"] if subject["kind"] == "ServiceAccount"]
            found.setdefault((one["roleRef"]["kind"], one["roleRef"]["name"]), []).extend(names)
    return found


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _text(content: Manifest) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=110)
