"""Sockets are spoken to in `wire/`: no other package has a client or a server of its own."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("fleet", "analyzer", "recommender", "exporter", "pipeline", "enforcer", "dashboards", "gputide")
CLIENTS = frozenset({"http.client", "urllib.request", "urllib.error", "ssl"})
SERVERS = frozenset({"http.server", "socketserver"})
SERVER_FILES = frozenset(
    {
        "dashboards/app.py",
        "dashboards/web_channel.py",
        "enforcer/agent/view_server.py",
        "enforcer/kubernetes/admission_server.py",
        "exporter/server.py",
        "gputide/exporting.py",
        "gputide/wiring_access.py",
        "gputide/wiring_agent.py",
        "pipeline/receiver/http_server.py",
        "pipeline/receiver/receiver.py",
    }
)
"""Servers that are not in `wire/` yet; the list only shrinks."""


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


def test_only_wire_and_the_servers_that_are_to_move_there_speak_http_or_tls() -> None:
    assert importers(CLIENTS | SERVERS) - SERVER_FILES == set()


def test_no_server_has_a_client_of_its_own() -> None:
    assert importers(frozenset({"http.client", "urllib.request", "urllib.error"})) == set()
