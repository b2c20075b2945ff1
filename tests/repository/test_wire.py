"""Sockets are spoken to in `wire/`: no other package has a client or a server of its own."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("fleet", "analyzer", "recommender", "exporter", "pipeline", "enforcer", "dashboards", "gputide")
CLIENTS = frozenset({"http.client", "urllib.request", "urllib.error", "ssl"})
SERVERS = frozenset({"http.server", "socketserver"})


def imported(path: Path) -> set[str]:
    """Modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def importers(modules: frozenset[str]) -> set[str]:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(files) > 100
    return {str(path.relative_to(ROOT)) for path in files if imported(path) & modules}


def test_only_wire_speaks_http_or_tls() -> None:
    assert importers(CLIENTS | SERVERS) == set()
