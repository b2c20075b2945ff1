"""The shell completes verbs without loading any, once it was told of gputide."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BESIDE_PYTHON = Path(sys.executable).parent


@pytest.mark.parametrize(
    ("words", "named"), [("d", ["demo", "doctor"]), ("plan s", ["show", "simulate"]), ("run re", ["receive", "relief"])]
)
def test_verbs_are_named_without_loading_one(words: str, named: list[str]) -> None:
    code = (
        "import sys, atexit; "
        "atexit.register(lambda: print(*(n for n in sys.modules if 'verbs.' in n), file=sys.stderr))"
    )
    typed = {"COMP_WORDS": f"gputide {words}", "COMP_CWORD": str(len(words.split()))}
    environ = {**os.environ, "_GPUTIDE_COMPLETE": "complete_bash", **typed}
    command = [sys.executable, "-c", f"{code}; sys.argv[0] = 'gputide'; import gputide.cli; gputide.cli.main()"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr.strip()) == (named, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_completion_is_installed_into_the_shell_that_asks(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "PATH": f"{BESIDE_PYTHON}:{os.environ['PATH']}"}
    # The second command keeps bash from becoming gputide, which looks for its parent.
    subprocess.run(["bash", "-c", "gputide --install-completion; true"], env=environ, capture_output=True, check=True)
    asked = ["bash", "--norc", "-c", 'source "$HOME/.bashrc"; complete -p gputide']
    told = subprocess.run(asked, env=environ, capture_output=True, text=True, check=True)
    assert "gputide" in told.stdout
