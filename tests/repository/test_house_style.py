"""Rules of the house that no linter knows: what files may be called, how long they may grow, what they never name."""

import ast
import re
from pathlib import Path

from bench.shipped_modules import PACKAGES, ShippedModules

NAMES_WITHOUT_AN_IDEA = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
# About 450 and 80 are wanted; the slack keeps a last good line from forcing a bad cut.
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 90
CLIENTS = ("http.client", "urllib.request", "urllib.error", "ssl")
SERVERS = ("http.server", "socketserver", "waitress", "wsgiref", "aiohttp")
ASYNC_SOCKETS = re.compile(r"\b((open|start)_(unix_)?connection|start_(unix_)?server)\(|\.create_(connection|server)\(")
"""What is spoken to sockets by; in `wire/` alone."""
TEXT_SUFFIXES = {".py", ".md", ".toml", ".html", ".css", ".js", ".yaml", ".yml", ".json", ""}


def test_no_module_is_named_after_nothing(shipped: ShippedModules) -> None:
    assert [name for name in shipped.paths if NAMES_WITHOUT_AN_IDEA & set(re.split(r"[._]", name))] == []


def test_a_file_holds_one_idea_and_so_stays_short(shipped: ShippedModules) -> None:
    lengths = {name: shipped.lines(name) for name in shipped.paths}
    assert {name: length for name, length in lengths.items() if length > FILE_LINES_MAX} == {}


def test_a_function_stays_short(shipped: ShippedModules) -> None:
    long = {
        f"{name}:{node.lineno} {node.name}": length
        for name, tree in shipped.trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_records_cannot_be_changed_after_they_were_made(shipped: ShippedModules) -> None:
    loose = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in shipped.trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        if re.fullmatch(r"(dataclasses\.)?dataclass\b.*", ast.unparse(decorator))
        and "frozen=True" not in ast.unparse(decorator)
        # What is filled or counted in place says so in its docstring.
        and "mutable:" not in (ast.get_docstring(node) or "")
    ]
    assert loose == []


def test_only_wire_speaks_http_or_tls(shipped: ShippedModules) -> None:
    found = _importers(shipped, *CLIENTS, *SERVERS)
    found |= {module for module, path in shipped.paths.items() if ASYNC_SOCKETS.search(_text(path))}
    assert {module for module in found if not module.startswith("wire.")} == set()
    assert len(_importers(shipped, "wire.http_server")) >= 4
    assert len(found) >= 4


def test_tests_never_mock_our_own_code(repository: Path) -> None:
    mocking = [
        str(path.relative_to(repository))
        for path in sorted((repository / "tests").rglob("*.py"))
        if re.search(
            r"^\s*(from unittest import mock|from unittest\.mock|import unittest\.mock|import mock)", _text(path), re.M
        )
    ]
    assert mocking == []


def test_no_file_names_a_place_of_one_machine(repository: Path) -> None:
    # Spelt in two halves, so that this file does not name one itself.
    place = re.compile(r"(?<![\w.])/" + r"(work|home|root|Users)/\w")
    folders = (*PACKAGES, "tests", "bench", "docs", "deploy")
    files = [path for folder in folders if (repository / folder).is_dir() for path in (repository / folder).rglob("*")]
    files += [path for path in repository.iterdir() if path.name not in ("uv.lock", ".git")]
    naming = [
        str(path.relative_to(repository))
        for path in files
        if path.is_file()
        and path.suffix in TEXT_SUFFIXES
        and "__pycache__" not in path.parts
        and place.search(_text(path))
    ]
    assert naming == []


def _importers(shipped: ShippedModules, *beginnings: str) -> set[str]:
    """Modules that import something of such a name, wherever in them."""
    return {module for module in shipped.paths if any(name.startswith(beginnings) for name in shipped.imported(module))}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
