#!/usr/bin/env python3
"""Makes `.venv` from `uv.lock`, bringing uv from the package index where the machine has none.

Called by the Makefile. Needs nothing but a Python ≥ 3.11 with its standard library, and never downloads a Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PRIVATE = ROOT / ".bootstrap"
PYTHON_OLDEST = (3, 11)
UV_OLDEST = (0, 5)

# What each purpose installs beside the core. `--inexact` leaves alone what an earlier, larger purpose brought.
PURPOSES = {
    "run": ["--no-default-groups", "--inexact", "--extra", "exporter", "--extra", "dashboards"],
    "develop": ["--all-extras", "--all-groups"],
}


def main(arguments: list[str]) -> int:
    """Sync `.venv` for one purpose, `run` or `develop`.

    Returns:
        0 when `.venv` is ready, 2 for wrong use, 5 when uv or a package could not be had.
    """
    if len(arguments) != 1 or arguments[0] not in PURPOSES:
        return _fail(2, f"usage: bootstrap.py {'|'.join(PURPOSES)}, not {arguments}")
    if sys.version_info < PYTHON_OLDEST:
        return _fail(
            2, f"cannot set up with Python {sys.version.split()[0]} ({sys.executable}): Python ≥ 3.11 is needed"
        )
    uv = find_uv() or install_uv()
    if uv is None:
        return _fail(
            5,
            "cannot install uv from the package index: neither `python3 -m venv` nor `python3 -m pip` could do it.\n"
            "  Install uv yourself (for instance `pipx install uv`), or the packages python3-venv or python3-pip.",
        )
    command = [uv, "sync", "--frozen", *PURPOSES[arguments[0]]]
    print(f"setting up .venv ({arguments[0]}) from uv.lock", flush=True)
    status = subprocess.run(command, cwd=ROOT, env=uv_environment(), check=False).returncode
    if status != 0:
        return _fail(5, f"cannot set up .venv: `{' '.join(command)}` ended with status {status}")
    return 0


def find_uv() -> str | None:
    """Return a uv that is new enough: the one on PATH, or the private one of an earlier set-up."""
    for place in (shutil.which("uv"), PRIVATE / "bin" / "uv", PRIVATE / "site" / "bin" / "uv"):
        if place is not None and _is_new_enough(str(place)):
            return str(place)
    return None


def install_uv() -> str | None:
    """Install uv into `.bootstrap` from the package index, by whichever of venv and pip this Python has."""
    print("uv is not on PATH: bringing it from the package index into .bootstrap", flush=True)
    shutil.rmtree(PRIVATE, ignore_errors=True)
    requirement = f"uv>={'.'.join(map(str, UV_OLDEST))}"
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    attempts = (
        ([sys.executable, "-m", "venv", str(PRIVATE)], [str(PRIVATE / "bin" / "python"), *pip, requirement]),
        ([sys.executable, *pip, "--target", str(PRIVATE / "site"), requirement],),
    )
    for attempt in attempts:
        # `all` stops at the first command that fails; the next attempt then has its turn.
        if all(_succeeds(command) for command in attempt):
            return find_uv()
        shutil.rmtree(PRIVATE, ignore_errors=True)
    return None


def uv_environment() -> dict[str, str]:
    """Return the environment for uv: this Python, no download of another, certificates as pip has them."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["UV_PYTHON"] = sys.executable
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    environment["UV_PROJECT_ENVIRONMENT"] = str(ROOT / ".venv")
    # Behind a company proxy pip is often told about a certificate bundle that uv does not know by that name.
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE"):
        if name in environment:
            environment.setdefault("SSL_CERT_FILE", environment[name])
    return environment


def _is_new_enough(uv: str) -> bool:
    try:
        answer = subprocess.run([uv, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    version = re.match(r"uv (\d+)\.(\d+)", answer.stdout)
    return version is not None and (int(version[1]), int(version[2])) >= UV_OLDEST


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0


def _fail(status: int, message: str) -> int:
    print(message, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
