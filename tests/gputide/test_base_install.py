"""Without extras every verb loads and the loop runs; what draws pages says what it lacks."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = ("aiohttp", "authlib", "dash", "fastjsonschema", "flask", "h2", "kafka", "mcp",
          "opentelemetry", "pg8000", "plotly", "pyhive", "pyiceberg", "pynvml", "requests", "sqlalchemy",
          "typst")  # fmt: skip
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}))"


def without_extras(program: str) -> subprocess.CompletedProcess[str]:
    """What comes of a program to which no extra is installed."""
    return subprocess.run([sys.executable, "-c", f"{WITHOUT}; {program}"], capture_output=True, text=True, check=False)


def test_every_verb_of_the_loop_loads() -> None:
    program = (
        "import importlib, pkgutil, gputide.verbs; "
        "names = {one.name for one in pkgutil.iter_modules(gputide.verbs.__path__, 'gputide.verbs.')}; "
        "[importlib.import_module(name) for name in sorted(names - {'gputide.verbs.serve'})]"
    )
    found = without_extras(program)
    assert found.returncode == 0, found.stderr


def test_verb_of_the_pages_says_what_it_lacks() -> None:
    found = without_extras("import sys; from gputide.cli import main; sys.argv = ['gputide', 'serve']; main()")
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "cannot run `gputide serve` without dash: pip install 'gputide[all]' brings it" in found.stderr


def test_verb_of_the_assistant_says_what_it_lacks() -> None:
    program = "import sys; from gputide.cli import main; sys.argv = ['gputide', 'run', 'assistant']; main()"
    found = without_extras(program)
    assert found.returncode == 2
    assert found.stderr.endswith("cannot answer an assistant without mcp: pip install 'gputide[assistant]' brings it\n")
    assert found.stderr.count("\n") == 1
