"""Sockets are spoken to in `wire/`: no other package has a client or a server of its own, or makes its own TLS."""

from __future__ import annotations

from bench.shipped_modules import ShippedModules

CLIENTS = ("http.client", "urllib.request", "urllib.error", "ssl")
SERVERS = ("http.server", "socketserver", "waitress", "wsgiref", "asyncio")


def importers(shipped: ShippedModules, *beginnings: str) -> set[str]:
    """Modules that import something of such a name, wherever in them."""
    return {module for module in shipped.paths if any(name.startswith(beginnings) for name in shipped.imported(module))}


def test_only_wire_speaks_http_or_tls(shipped: ShippedModules) -> None:
    found = importers(shipped, *CLIENTS, *SERVERS)
    assert {module for module in found if not module.startswith("wire.")} == set()
    assert len(importers(shipped, "wire.http_server")) >= 4
    assert len(found) >= 4
