"""The command line as a user meets it: what is written about it is so, and it loads only what a verb needs."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner

DRIVERS = ("babel", "dash", "duckdb", "highspy", "kafka", "numba", "pandas", "plotly", "pyhive", "pynvml")


@pytest.fixture
def app() -> Typer:
    found = importlib.import_module("gputide.cli").app
    assert isinstance(found, Typer)
    return found


def test_the_readme_lists_every_verb_and_no_other(app: Typer, repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| verb | does |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(
        {words[0] for words in _verbs(get_command(app))}
    )


def test_every_verb_shows_an_example_in_its_help(app: Typer) -> None:
    verbs = list(_verbs(get_command(app)))
    assert verbs
    without = []
    for words in verbs:
        shown = CliRunner().invoke(app, [*words, "--help"], prog_name="gputide")
        assert shown.exit_code == 0, shown.output
        body = "\n".join(line for line in shown.output.splitlines() if "Usage:" not in line)
        if re.search(rf"gputide .*{' '.join(words)}", body) is None:
            without.append(" ".join(words))
    assert without == []


def test_the_command_line_starts_without_loading_a_driver() -> None:
    code = f"import sys, gputide.cli; print([name for name in {DRIVERS} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_node_exporter_loads_no_words_for_people() -> None:
    code = "import sys, gputide.wiring_node; print([name for name in ('babel', 'dashboards') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _verbs(command: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every verb below a command; a group such as `plan` has verbs of its own."""
    for name in command.list_commands(None):
        below = command.get_command(None, name)
        if hasattr(below, "list_commands"):
            yield from _verbs(below, (*above, name))
        else:
            yield (*above, name)
