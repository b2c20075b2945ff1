"""The shell completes verbs without loading any, once it was told of gputide."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BESIDE_PYTHON = Path(sys.executable).parent


def test_verbs_are_named_without_loading_one() -> None:
    code = (
        "import sys, atexit; atexit.register(lambda: print(*(n for n in sys.modules if 'verb' in n), file=sys.stderr))"
    )
    environ = {**os.environ, "_GPUTIDE_COMPLETE": "complete_bash", "COMP_WORDS": "gputide rec", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", f"{code}; sys.argv[0] = 'gputide'; import gputide.cli; gputide.cli.main()"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr.strip()) == (["receive", "recommend"], "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_completion_is_installed_into_the_shell_that_asks(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "PATH": f"{BESIDE_PYTHON}:{os.environ['PATH']}"}
    # The second command keeps bash from becoming gputide, which looks for its parent.
    subprocess.run(["bash", "-c", "gputide --install-completion; true"], env=environ, capture_output=True, check=True)
    asked = ["bash", "--norc", "-c", 'source "$HOME/.bashrc"; complete -p gputide']
    told = subprocess.run(asked, env=environ, capture_output=True, text=True, check=True)
    assert "gputide" in told.stdout
