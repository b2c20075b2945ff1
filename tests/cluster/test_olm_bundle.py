"""The bundle of the Operator Lifecycle Manager: the chart once more, and valid by the manager's own judge."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release.olm import NAME, VALUES, bundle, write_bundle
from fleet.errors import Unavailable
from tests.cluster.api import Manifest
from tests.cluster.conftest import CACHE, cannot_run
from tests.cluster.helm_release import HelmRelease
from tests.control_plane import KubernetesPrograms
from tests.engines.go_peers import build_operator_verify

pytestmark = pytest.mark.cluster
VERSION = "1.2.3"


@pytest.fixture(scope="module")
def judge() -> Path:
    try:
        return build_operator_verify(Path(str(CACHE)), tell=print)
    except Unavailable as absence:
        cannot_run(str(absence))


@pytest.fixture(scope="module")
def files(programs: KubernetesPrograms) -> dict[str, str]:
    return bundle(str(programs.helm), version=VERSION)


@pytest.fixture(scope="module")
def version_(files: dict[str, str]) -> Manifest:
    found: Manifest = yaml.safe_load(files[f"manifests/{NAME}.clusterserviceversion.yaml"])
    return found


@pytest.fixture(scope="module")
def chart(programs: KubernetesPrograms, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """Return what the chart renders for the same values."""
    release = HelmRelease(
        helm=programs.helm, kubeconfig=None, home=tmp_path_factory.mktemp("helm"), name=NAME, namespace=NAME
    )
    return release.template(dict(VALUES), "--no-hooks")


def judged(judge: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(judge), "manifests", str(folder)], capture_output=True, text=True, check=False)


def test_judge_of_the_lifecycle_manager_finds_nothing(
    judge: Path, programs: KubernetesPrograms, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "bundle", str(programs.helm), version=VERSION)
    done = judged(judge, tmp_path / "bundle" / "manifests")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("missing", ["install", "installModes", "customresourcedefinitions"])
def test_judge_of_the_lifecycle_manager_sees_what_is_missing(
    missing: str, judge: Path, programs: KubernetesPrograms, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "bundle", str(programs.helm), version=VERSION)
    path = tmp_path / "bundle" / "manifests" / f"{NAME}.clusterserviceversion.yaml"
    content = yaml.safe_load(path.read_text())
    del content["spec"][missing]
    path.write_text(yaml.safe_dump(content))
    done = judged(judge, path.parent)
    assert "rror" in done.stdout + done.stderr


def test_rights_images_and_pods_are_those_of_the_chart(version_: Manifest, chart: list[Manifest]) -> None:
    install = version_["spec"]["install"]["spec"]
    rules = {one["metadata"]["name"]: one["rules"] for one in chart if one["kind"] == "ClusterRole"}
    granted = {one["serviceAccountName"]: one["rules"] for one in install["clusterPermissions"]}
    assert granted == {f"{NAME}-reader": rules[f"{NAME}-reader"]}
    verbs = {verb for rule in granted[f"{NAME}-reader"] for verb in rule["verbs"]}
    assert verbs <= {"get", "list", "watch"}
    accounts = {one["metadata"]["name"] for one in chart if one["kind"] == "ServiceAccount"}
    assert {one["serviceAccountName"] for one in install["permissions"]} == accounts
    assert not any(one["rules"] for one in install["permissions"])

    pods = {one["metadata"]["name"]: containers(one) for one in chart if one["kind"] == "Deployment"}
    assert {one["name"]: containers(one) for one in install["deployments"]} == pods
    images = {image for found in pods.values() for image, _ in found}
    assert {one["image"] for one in version_["spec"]["relatedImages"]} == images


def test_whatever_the_chart_renders_is_in_the_bundle_or_named_as_missing(
    files: dict[str, str], version_: Manifest, chart: list[Manifest]
) -> None:
    beside = {(one["kind"], one["metadata"]["name"]) for one in map(yaml.safe_load, manifests_of(files))}
    inside = {"Deployment", "ServiceAccount", "ClusterRoleBinding"}
    for one in chart:
        kind, name = one["kind"], one["metadata"]["name"]
        said = f"{kind} {name}" in version_["spec"]["description"]
        bound = (kind, name) == ("ClusterRole", f"{NAME}-reader")
        assert (kind in inside or bound) + ((kind, name) in beside) + said == 1, (kind, name)
    assert "CronJob gputide-recommend" in version_["spec"]["description"]
    assert all("namespace" not in one["metadata"] for one in map(yaml.safe_load, manifests_of(files)))


def test_labels_of_the_image_are_those_of_the_metadata(files: dict[str, str], version_: Manifest) -> None:
    marks = yaml.safe_load(files["metadata/annotations.yaml"])["annotations"]
    labels = [line.removeprefix("LABEL ") for line in files["bundle.Dockerfile"].splitlines() if "LABEL" in line]
    assert labels == [f"{key}={value}" for key, value in marks.items()]
    assert version_["metadata"]["name"] == f"{NAME}.v{VERSION}"
    assert version_["metadata"]["labels"] == {
        "operatorframework.io/arch.amd64": "supported", "operatorframework.io/arch.arm64": "supported",
    }  # fmt: skip


def manifests_of(files: dict[str, str]) -> list[str]:
    return [text for name, text in files.items() if name.startswith("manifests/") and "clusterservice" not in name]


def containers(deployment: Manifest) -> list[tuple[Any, Any]]:
    spec = deployment["spec"]["template"]["spec"]
    return [(one["image"], one["args"]) for one in (*spec.get("initContainers", ()), *spec["containers"])]
