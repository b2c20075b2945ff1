"""The control plane that other cluster tests stand on: what it is, and that it fails and comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.api import Api
from tests.cluster.conftest import CACHE
from tests.control_plane import KUBERNETES_VERSION, ControlPart, ControlPlane, KubernetesPrograms
from tests.waiting import until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]


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


def test_fault_matrix_that_is_ended_leaves_no_process(programs: KubernetesPrograms, tmp_path: Path):
    assert programs.kt.exists()
    command = [sys.executable, "-m", "bench.safe_matrix.matrix", "--only", "none", "--clusters", "1"]
    environ = {**os.environ, "GPUTIDE_ENGINES_CACHE": str(CACHE), "TMPDIR": str(tmp_path)}
    results = f"--results={tmp_path.with_suffix('.jsonl')}"
    matrix = subprocess.Popen([*command, results], cwd=ROOT, env=environ, stderr=subprocess.DEVNULL)
    try:
        until(lambda: [one for one in commands_in(tmp_path) if " apply " in one], seconds_max=180.0)
        assert len(commands_in(tmp_path)) >= len(ControlPart) + 2, "HAMi's scheduler and the verb beside the parts"
    finally:
        matrix.terminate()
        matrix.wait(30.0)
    until(lambda: commands_in(tmp_path) == [], seconds_max=10.0)


def commands_in(folder: Path) -> list[str]:
    """Command lines of processes that are told of something in a folder."""
    said = subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if f"{folder}/" in line]
