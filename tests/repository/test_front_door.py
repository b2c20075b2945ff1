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
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from gputide.verbs import VERBS

pytestmark = pytest.mark.long

DRIVERS = ("babel", "dash", "duckdb", "highspy", "kafka", "numba", "pandas", "plotly", "pyhive", "pynvml")
OF_VERBS = {"--format", "-f", "--output", "-o", "--cluster"}
"""Options that may stand before the verb that has them."""
TEXTS = (".md", ".py", ".toml", ".yaml", ".tpl", ".txt", ".j2", ".json", ".html", ".po")
NO_COMMANDS = {"CHANGELOG.md"}
TITLES = ("gputide / ", "gputide can reach you")
_SPAN = re.compile(r"`(gputide [^`\n]+)`")
_LINE = re.compile(r"^ *(?:\$ |-? ?run: )?(?:\.venv/bin/|ExecStart=\S+/)?(gputide [^\n]+)$", re.MULTILINE)
_STRING = re.compile(r"(?<!\w)[\"'](gputide(?: [\w{}./=:\[\]-]+)+)[\"']")
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def app() -> Typer:
    found = importlib.import_module("gputide.cli").app
    assert isinstance(found, Typer)
    return found


def test_the_readme_lists_every_verb_and_no_other(app: Typer, repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| verb | does |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)", table, re.M)
    assert [name for name, _ in rows] == [verb.name for verb in VERBS]
    for name, text in rows:
        group = next(verb for verb in VERBS if verb.name == name)
        missing = [verb.name for verb in group.verbs if f"`{verb.name}`" not in text]
        assert name == "cost" or missing == [], name


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


def test_every_command_that_is_quoted_exists(app: Typer, repository: Path) -> None:
    program: Any = get_command(app)
    listed = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True, check=True).stdout
    wrong = []
    count = 0
    for name in listed.splitlines():
        path = repository / name
        if path.suffix not in TEXTS or name in NO_COMMANDS or name.startswith("tests/fuzz/corpus/"):
            continue
        if not path.is_file() or path == Path(__file__):
            continue
        for command in _quoted(path):
            count += 1
            if (fault := _fault(program, command)) is not None:
                wrong.append(f"{name}: {command}: {fault}")
    assert count > 500
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", ["gputide recommend", "gputide plan mak", "gputide run rollup --drai"])
def test_a_command_that_does_not_exist_is_found_in_a_text(app: Typer, tmp_path: Path, command: str) -> None:
    (tmp_path / "page.md").write_text(f"Call `{command}`.\n")
    (quoted,) = _quoted(tmp_path / "page.md")
    assert _fault(get_command(app), quoted) is not None


def test_the_command_line_starts_without_loading_a_driver() -> None:
    code = f"import sys, gputide.cli; print([name for name in {DRIVERS} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_node_exporter_loads_no_words_settings_warehouse_or_pandas() -> None:
    unwanted = ("babel", "dashboards", "duckdb", "pandas", "pydantic")
    code = f"import sys, gputide.container.node; print([name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", ["run.agent", "run.admission", "apply", "undo"])
def test_what_runs_beside_every_pod_or_restores_one_loads_no_warehouse(verb: str) -> None:
    unwanted = ("duckdb", "numba", "pandas", "pyarrow")
    modules = f"gputide.cli, gputide.verbs.{verb}, enforcer.kubernetes.cluster"
    code = f"import sys, {modules}; print([name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_lists_verbs_without_loading_one() -> None:
    code = (
        "import sys, atexit; atexit.register(lambda: print(*(n for n in sys.modules if 'gputide.verbs.' in n),"
        " file=sys.stderr)); sys.argv = ['gputide', '--help']; import gputide.cli; gputide.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Start here:" in done.stdout
    assert done.stderr.strip() == ""


def _verbs(command: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every verb below a command; a group such as `plan` has verbs of its own."""
    for name in command.list_commands(None):
        below = command.get_command(None, name)
        if hasattr(below, "list_commands"):
            yield from _verbs(below, (*above, name))
        else:
            yield (*above, name)


def _quoted(path: Path) -> Iterator[str]:
    """Commands of a text: in backticks, in blocks of code, and as strings that are nothing else."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        for block in _BLOCK.findall(text):
            for line in _LINE.findall(block):
                yield from (part.strip() for part in re.split(r"&&|;", line) if part.strip().startswith("gputide "))
        text = _BLOCK.sub("", text)
    yield from _SPAN.findall(text)
    if path.suffix != ".md":
        yield from (
            found for found in _STRING.findall(text) if "{" not in found.split()[1] and not found.startswith(TITLES)
        )


def _fault(program: Any, text: str) -> str | None:
    """What of a command does not exist; None where all of it does."""
    command = program
    tokens = re.sub(r"'[^']*'|\"[^\"]*\"", "QUOTED", text).split()[1:]
    while tokens:
        token = tokens.pop(0)
        if token in ("#", "|", ">", "·", "…", "&"):
            break
        if token.startswith("-") and len(token) > 1:
            name = token.partition("=")[0].rstrip("`,.;:")
            own = [one for one in (*command.params, *program.params) if name in (*one.opts, *one.secondary_opts)]
            if not own and name not in {*OF_VERBS, "--help", "-h"}:
                return f"no option {name}"
            if tokens and "=" not in token and (name in OF_VERBS or (own and not own[0].is_flag)):
                tokens.pop(0)
        elif isinstance(command, TyperGroup) and re.match(r"[a-z]", token) and "|" not in token:
            inner: Any = command.get_command(None, token.rstrip(",.;:"))  # type: ignore[arg-type]
            if inner is None:
                return f"no verb {token}"
            command = inner
    return None
