"""`kubectl gputide` as a process of its own, as kubectl starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.gputide.conftest import Said

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS_MAX = 300


def kubectl_gputide(kubeconfig: Path, cache: Path, *arguments: str) -> Said:
    """Call it and wait for its end.

    Args:
        kubeconfig: whose rights it has.
        cache: the user's cache folder.
        arguments: verb and options.
    """
    ended = subprocess.run(
        [sys.executable, "-c", "from gputide.kubectl.program import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "XDG_CACHE_HOME": str(cache), "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )
    return Said(ended.returncode, ended.stdout, ended.stderr)
