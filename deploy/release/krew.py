"""The plugin of kubectl as Krew installs it: an archive, and the manifest that names it.

The archive holds the wheel, a launcher and the plugin's share of `uv.lock`, each package with its hashes: the compiled
ones differ by processor and Python, and an archive with all of them would have hundreds of MB. So the first call makes
a virtual environment, and needs a Python package index; the manifest says so before anybody installs it.

Source: krew.sigs.k8s.io/docs/developer-guide/plugin-manifest and plugins naming guide;
kubernetes-sigs/krew:internal/index/validation. Called by `deploy.release.build`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import subprocess
import tarfile
from pathlib import Path

import yaml

from deploy.release.licences import ROOT
from deploy.release.locked_packages import closure
from fleet.errors import Misconfigured, Unavailable

PLUGIN = "gputide"
MACHINES = ("amd64", "arm64")
PACKAGES = (
    "babel", "numpy", "pandas", "platformdirs", "prometheus-client", "pydantic", "pyyaml", "rich", "structlog", "typer",
    "tzdata", "xlsxwriter",
)  # fmt: skip
"""What the plugin's modules import; what these need comes with them."""
_LAUNCHER = ROOT / "deploy" / "release" / "kubectl-gputide"
_URL = re.compile(r"https://[A-Za-z0-9.\-]+(:[0-9]+)?(/[A-Za-z0-9._~%+\-]+)*")


def requirements(uv: str) -> str:
    """The plugin's part of the lock, as pip takes it: each package with its version, marker and hashes.

    Raises:
        Unavailable: uv failed.
    """
    command = [uv, "export", "--frozen", "--no-default-groups", "--no-emit-project", "--no-header", "--no-annotate"]
    done = subprocess.run([*command, "--quiet"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"cannot export the lock: {done.stderr.strip()[-500:]!r}")
    names = closure(ROOT / "uv.lock", PACKAGES)
    blocks = re.split(r"\n(?=\S)", done.stdout.strip())
    return "\n".join(block for block in blocks if re.split(r"[=\[ ;]", block, maxsplit=1)[0] in names) + "\n"


def write_archive(dist: Path, *, version: str, seconds: int, uv: str) -> Path:
    """Write the archive beside the wheel, in the same bytes each time; returns its path.

    Args:
        dist: folder that holds the wheel of this version.
        seconds: time of everything in it, since 1970.

    Raises:
        Misconfigured: there is no such wheel.
        Unavailable: uv failed.
    """
    wheel = dist / f"gputide-{version}-py3-none-any.whl"
    if not wheel.exists():
        raise Misconfigured(f"cannot pack the plugin: there is no {wheel}")
    contents = {
        "LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
        "VERSION": (f"{version}\n".encode(), 0o644),
        wheel.name: (wheel.read_bytes(), 0o644),
        f"kubectl-{PLUGIN}": (_LAUNCHER.read_bytes(), 0o755),
        "requirements.txt": (requirements(uv).encode(), 0o644),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (content, mode) in sorted(contents.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), mode, seconds
            archive.addfile(member, io.BytesIO(content))
    path = dist / f"kubectl-{PLUGIN}-{version}.tar.gz"
    with path.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as written:
        written.write(packed.getvalue())
    return path


def manifest(archive: Path, *, version: str, url: str) -> str:
    """The manifest of an archive, for an index of Krew or `kubectl krew install --manifest`.

    Args:
        url: folder that the archive is published in, without a slash at the end.

    Raises:
        Misconfigured: it is no https address.
    """
    if _URL.fullmatch(url) is None:
        raise Misconfigured(
            f"cannot use RELEASE_URL={url!r}: expected https://HOST/PATH, where the files are published"
        )
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    content = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": PLUGIN},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Show what GPUs are granted, used and cost",
            "description": (
                "Shows per pod, card and namespace which GPUs are granted, used and idle, and what that costs; says\n"
                "why, and carries out plans that free cards: canary first, watched, undone on request. It asks the\n"
                "API server alone, by your kubeconfig.\n"
            ),
            "caveats": (
                "Needs Python 3.11 or newer with venv. The first call fetches some 45 MB of Python packages from your\n"
                "package index (pip's settings), each by its hash, into your cache folder.\n"
                "`top`, `why` and `cost` need gputide with `usageApi.enabled` in the cluster.\n"
            ),
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": "linux", "arch": machine}},
                    "uri": f"{url}/{archive.name}",
                    "sha256": sha256,
                    "files": [{"from": "*", "to": "."}],
                    "bin": f"kubectl-{PLUGIN}",
                }
                for machine in MACHINES
            ],
        },
    }
    return yaml.safe_dump(content, sort_keys=False, width=100)
