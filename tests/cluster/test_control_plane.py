"""The control plane that other cluster tests stand on: what it is, and that it fails and comes back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.api import Api
from tests.control_plane import KUBERNETES_VERSION, ControlPart, ControlPlane, KubernetesPrograms

pytestmark = pytest.mark.cluster


def test_api_server_is_the_version_that_is_claimed(api: Api):
    assert api.ask("GET", "/version")["gitVersion"] == f"v{KUBERNETES_VERSION}"


def test_helm_renders_for_the_version_that_it_was_built_with(programs: KubernetesPrograms, tmp_path: Path):
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: tiny\nversion: 0.1.0\n", encoding="utf-8")
    template = "kind: ConfigMap\ndata:\n  version: {{ .Capabilities.KubeVersion.Version }}\n"
    (tmp_path / "templates" / "one.yaml").write_text(template, encoding="utf-8")
    rendered = subprocess.run(
        [str(programs.helm), "template", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert f"version: v{KUBERNETES_VERSION.rpartition('.')[0]}" in rendered


def test_kubectl_speaks_to_it(programs: KubernetesPrograms, control_plane: ControlPlane, api: Api):
    api.node("node-kubectl")
    said = subprocess.run(
        [str(programs.kt), "kubectl", f"--kubeconfig={control_plane.kubeconfig()}", "get", "nodes", "-o", "name"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "node/node-kubectl" in said.splitlines()


def test_part_that_was_killed_comes_back_with_its_data(control_plane: ControlPlane, api: Api, namespace: str):
    api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    control_plane.kill(ControlPart.API_SERVER)
    control_plane.start()
    assert api.ask("GET", f"/api/v1/namespaces/{namespace}/configmaps/kept")["data"] == {"a": "b"}
