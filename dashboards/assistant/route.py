"""The assistant at `/mcp` of the web app, under its sign-in and rights. Called by `dashboards.app`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from flask import Flask, Response, request

from dashboards.access.sign_in import plain_answer
from dashboards.assistant.answers import REQUEST_BYTES_MAX, Assistant
from dashboards.assistant.tool import Tool

MCP_PATH = "/mcp"


class Answers(Protocol):
    """Answers single requests of an assistant, from any thread (`dashboards.assistant.server`)."""

    def answer(self, path: str, fields: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, header fields and body of the answer to a POST with these header fields."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the app needs to answer assistants.

    Attributes:
        open: loads and makes what speaks the protocol; called once somebody asks.
        tools: tools beside those that read the ports of the pages.
    """

    open: Callable[[Assistant], Answers]
    tools: Sequence[Tool] = ()


def register(server: Flask, assistant: Assistant, offer: Offer | None) -> None:
    """Add it to the app; without the SDK the path says what brings it."""
    if offer is None:
        server.add_url_rule(MCP_PATH, "assistant", _missing, methods=["GET", "POST"])
        return
    # At the first question: the SDK takes 28 MB of memory, of every app that nobody asks too.
    opened = cache(lambda: offer.open(assistant))

    def answer() -> Response:
        size = request.content_length or 0
        if size > REQUEST_BYTES_MAX:
            return plain_answer(f"cannot answer a request of {size} bytes: larger than {REQUEST_BYTES_MAX}", 413)
        status, fields, body = opened().answer(MCP_PATH, dict(request.headers), request.get_data(cache=False))
        return Response(body, status=status, headers=fields)

    server.add_url_rule(MCP_PATH, "assistant", answer, methods=["POST"])
    server.add_url_rule(MCP_PATH, "assistant_stream", _no_stream, methods=["GET"])


def _missing() -> Response:
    return plain_answer(f"cannot answer at {MCP_PATH} without mcp: pip install 'gputide[assistant]' brings it", 404)


def _no_stream() -> Response:
    """A server may have no streams and no sessions, and says so in this way."""
    found = plain_answer(
        f"cannot {request.method} {MCP_PATH}: POST is expected; there are no streams and sessions", 405
    )
    found.headers["Allow"] = "POST"
    return found
