"""One HTTP server: no room opens a port of its own beside `wire`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.repository.test_house_style import ROOMS

pytestmark = pytest.mark.long

SERVER_MODULES = ("http.server", "socketserver", "waitress", "wsgiref", "asyncio")


@pytest.fixture(scope="module")
def modules(repository: Path) -> list[Path]:
    return sorted(path for room in ROOMS for path in (repository / room).rglob("*.py"))


def test_servers_are_imported_in_wire_alone(repository: Path, modules: list[Path]) -> None:
    found = {
        f"{path.relative_to(repository)}: {name}"
        for path in modules
        for name in imported(path)
        if name.startswith(SERVER_MODULES) and path.relative_to(repository).parts[0] != "wire"
    }
    assert found == set()


def test_files_that_answer_requests_leave_tls_to_wire(repository: Path, modules: list[Path]) -> None:
    serving = {path for path in modules if any(name.startswith("wire.http_server") for name in imported(path))}
    assert len(serving) >= 4
    assert {str(path.relative_to(repository)) for path in serving if "ssl" in imported(path)} <= {"wire/http_server.py"}


def imported(path: Path) -> set[str]:
    """Modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found
