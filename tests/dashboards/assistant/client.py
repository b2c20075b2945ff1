"""A real client of the protocol, the SDK's own, and the app that it asks, listening."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ListToolsResult

from dashboards.access.sign_in import Ways
from dashboards.app import create_app, open_server
from dashboards.assistant.route import Offer
from dashboards.assistant.server import HttpAnswers
from dashboards.assistant.tool import Tool
from dashboards.queries import Views
from tests.dashboards.access.keys import text_of

Call = tuple[str, dict[str, Any]]
Found = TypeVar("Found")


@contextmanager
def listening(views: Views, ways: Ways, tools: Sequence[Tool] = ()) -> Iterator[str]:
    """Address of the app that answers assistants, while it listens."""
    app = create_app(views, ways=ways, assistant=Offer(open=HttpAnswers, tools=tools))
    server = open_server(app, host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"{server.address}mcp"
    finally:
        server.close()
        thread.join()


def asked(address: str, *calls: Call, token: str | None = None, mode: str = "auto") -> list[CallToolResult]:
    """What a client is answered, call by call."""

    async def talk(client: Client) -> list[CallToolResult]:
        return [await client.call_tool(name, arguments) for name, arguments in calls]

    return _talked(address, token, mode, talk)


def listed(address: str, token: str | None = None) -> tuple[ListToolsResult, str]:
    """The tools that a client is shown, and the server's instructions."""

    async def talk(client: Client) -> tuple[ListToolsResult, str]:
        return await client.list_tools(), client.instructions or ""

    return _talked(address, token, "auto", talk)


def _talked(address: str, token: str | None, mode: str, talk: Callable[[Client], Awaitable[Found]]) -> Found:
    headers = {} if token is None else {"Authorization": f"Bearer {text_of(token)}"}

    async def go() -> Found:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(address, http_client=http), mode=mode) as client,
        ):
            return await talk(client)

    return anyio.run(go)
