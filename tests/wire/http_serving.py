"""A small server over `HttpServer` for tests, and how a test speaks to any port."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from wire.http_connection import ServerLimits
from wire.http_head import Refusal
from wire.http_server import Exchange, HttpServer, listen

BODY_BYTES_MAX = 4096
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LONG = (b"x" * 2_000_000,) * 20


@dataclass(slots=True)
class Served:
    """A server that runs, with what it took; mutable: filled as requests come."""

    address: tuple[str, int] = ("", 0)
    bodies: list[bytes] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    in_body: Callable[[], None] = lambda: None

    def answer(self, exchange: Exchange) -> None:
        """`/bodies` takes one, `/healthz` says ok, `/long` is answered with 40 MB."""
        if exchange.head.path == "/bodies":
            exchange.check_method("POST")
            body = exchange.connection.body()
            self.in_body()
            self.bodies.append(body)
            exchange.connection.answer(204)
        elif exchange.head.path in ("/healthz", "/long"):
            exchange.check_method("GET", "HEAD")
            exchange.connection.answer(200, *(LONG if exchange.head.path == "/long" else (b"ok\n",)))
        else:
            raise Refusal(404, "there is nothing here")


@contextmanager
def served(tls: Any = None, in_body: Callable[[], None] = lambda: None, **limits: Any) -> Iterator[Served]:
    """A server with small bounds."""
    bounds: dict[str, Any] = {
        "connections_max": 512, "body_bytes_max": BODY_BYTES_MAX, "pending_bytes_max": 1 << 20, "idle_seconds": 30.0,
        "request_seconds": 10.0,
    }  # fmt: skip
    found = Served(in_body=in_body)
    server = HttpServer(
        listen("127.0.0.1", 0, setting="--listen"), found.answer, limits=ServerLimits(**{**bounds, **limits}),
        refused=found.refused.append, tls=tls,
    )  # fmt: skip
    found.address = server.address
    server.start()
    try:
        yield found
    finally:
        server.stop(grace_seconds=2.0)


def exchange(address: tuple[str, int], data: bytes, *, then_closes: bool = True, timeout_seconds: float = 10) -> bytes:
    """Send raw bytes on a connection of their own, and read until the server closes it."""
    with socket.create_connection(address, timeout=timeout_seconds) as opened:
        opened.sendall(data)
        if then_closes:
            opened.shutdown(socket.SHUT_WR)
        answer = b""
        while part := opened.recv(65536):
            answer += part
    return answer


def statuses(answers: bytes) -> list[int]:
    """Statuses of all answers in some bytes."""
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]
