"""The tutorial, followed to the letter: every command of it works in its order, and its page opens."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

COMMANDS_MIN = 14
_BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[list[str]]:
    """The commands in the page's blocks, in order, each without the program's name."""
    lines = [line for block in _BLOCK.findall(page) for line in block.splitlines()]
    assert all(line.startswith("gputide ") for line in lines)
    return [shlex.split(line)[1:] for line in lines]


def test_every_command_of_the_tutorial_works_in_its_order(repository: Path, tmp_path: Path, page: Page) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only who runs the browser tier has it loaded

    commands = commands_of((repository / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    assert len(commands) >= COMMANDS_MIN
    program = [sys.executable, "-m", "gputide.cli"]
    environ = {**os.environ, "PYTHONPATH": str(repository), "PYTHONUNBUFFERED": "1"}
    *before, last = commands
    for command in before:
        done = subprocess.run(
            [*program, *command], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr[-2000:])
        if command[-2:] == ["drift"]:
            assert "as applied plans left it" in done.stdout
    report = (tmp_path / "tide" / "report.html").read_text(encoding="utf-8")
    assert "<html" in report
    assert last[-1] == "serve"
    serving = [*program, *last, "--port", "0"]
    with subprocess.Popen(serving, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        page.goto(server.stdout.readline().split()[0])
        expect(page.get_by_role("link", name="Plan", exact=True).first).to_be_visible()
        page.goto("about:blank")  # what the page still asks for would be refused once the server is gone
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
