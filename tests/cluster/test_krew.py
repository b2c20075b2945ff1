"""The plugin as people get it: Krew judges its manifest and installs its archive, and kubectl starts it."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from bootstrap import find_uv
from deploy.release.build import build_distributions, project_version
from deploy.release.krew import MACHINES, manifest, write_archive
from fleet.errors import Unavailable
from tests.cluster.conftest import CACHE, cannot_run
from tests.control_plane import ControlPlane, KubernetesPrograms
from tests.engines.go_peers import KrewPeer, build_krew

pytestmark = pytest.mark.cluster
URL = "https://downloads.example.org/gputide/v0.1.0"
EPOCH = 1_767_225_600


@pytest.fixture(scope="module")
def peer() -> KrewPeer:
    try:
        return build_krew(Path(str(CACHE)), tell=print)
    except Unavailable as absence:
        cannot_run(str(absence))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    uv = find_uv()
    if uv is None:
        cannot_run("there is no uv on PATH or in .bootstrap")
    folder = tmp_path_factory.mktemp("dist")
    build_distributions(folder, EPOCH)
    return write_archive(folder, version=project_version(), seconds=EPOCH, uv=uv)


@pytest.fixture(scope="module")
def written(archive: Path) -> Path:
    path = archive.with_name("gputide.yaml")
    path.write_text(manifest(archive, version=project_version(), url=URL))
    return path


def test_manifest_passes_what_krews_index_is_checked_with(peer: KrewPeer, written: Path) -> None:
    done = run([str(peer.judge), "-manifest", str(written), "-skip-install"], {})
    assert done.returncode == 0, done.stderr
    platforms = yaml.safe_load(written.read_text())["spec"]["platforms"]
    assert [one["selector"]["matchLabels"]["arch"] for one in platforms] == list(MACHINES)
    assert {one["uri"].startswith(f"{URL}/") for one in platforms} == {True}


def test_manifest_that_breaks_a_rule_is_refused_by_the_same_judge(peer: KrewPeer, written: Path) -> None:
    broken = written.with_name("broken") / written.name
    broken.parent.mkdir()
    broken.write_text(written.read_text().replace("sha256: ", "sha256: x"))
    assert run([str(peer.judge), "-manifest", str(broken), "-skip-install"], {}).returncode != 0


def test_kubectl_starts_the_plugin_that_krew_installed(
    peer: KrewPeer,
    archive: Path,
    written: Path,
    tmp_path: Path,
    programs: KubernetesPrograms,
    control_plane: ControlPlane,
) -> None:
    try:
        urllib.request.urlopen("https://pypi.org/simple/typer/", timeout=20).close()
    except (OSError, urllib.error.URLError) as exc:
        cannot_run(f"the first call fetches packages, and there is no package index: {exc}")
    root, cache = tmp_path / "krew", tmp_path / "cache"
    installing = [str(peer.krew), "install", f"--manifest={written}", f"--archive={archive}"]
    # Its first step asks for updates of its index, which is a repository of GitHub.
    done = run(installing, {"KREW_ROOT": str(root), "KREW_NO_UPGRADE_CHECK": "1"})
    assert (root / "bin" / "kubectl-gputide").is_symlink(), done.stderr
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f'#!/bin/sh\nexec "{programs.kt}" kubectl "$@"\n')
    kubectl.chmod(0o755)
    environ = {
        "PATH": f"{root / 'bin'}:{kubectl.parent}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(cache),
        "KUBECONFIG": str(control_plane.kubeconfig()), "PYTHONPATH": str(tmp_path),
    }  # fmt: skip
    # What stands in the folder of the call, or in PYTHONPATH, is not what is loaded.
    (tmp_path / "typer.py").write_text("raise SystemExit('loaded from the folder')\n")
    first = run([str(kubectl), "gputide", "--version"], environ, folder=tmp_path)
    assert (first.returncode, first.stdout) == (0, f"kubectl gputide {project_version()}\n"), first.stderr
    assert "first call" in first.stderr
    again = run([str(kubectl), "gputide", "plan", "--help"], environ, folder=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    asked = run([str(kubectl), "gputide", "freeze", "--lift"], environ, folder=tmp_path)
    assert asked.returncode == 0, asked.stderr
    table = run([str(kubectl), "gputide", "plan", "--format", "csv"], environ, folder=tmp_path)
    assert "No module named" not in table.stderr
    everything = "import pkgutil, gputide.kubectl.verbs as v\n"
    everything += "for one in pkgutil.walk_packages(v.__path__, v.__name__ + '.'): __import__(one.name)"
    python = next((cache / "gputide").glob("kubectl-*")) / "bin" / "python"
    loaded = run([str(python), "-I", "-c", everything], environ, folder=tmp_path)
    assert loaded.returncode == 0, loaded.stderr


def run(command: list[str], environ: dict[str, str], *, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environ}, cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )  # fmt: skip
