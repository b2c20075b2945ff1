"""The assistant's tools over the Model Context Protocol, by its official SDK: on stdio, and for one HTTP request.

The only module that knows the SDK. HTTP is the streamable transport without sessions and streams: each request is
served whole by an event loop of its own, which ends with it, so a WSGI app needs no second server beside it. Source:
modelcontextprotocol.io/specification (streamable HTTP; tools). Called by `dashboards.assistant.route` and
`gputide run assistant`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import anyio
from anyio import to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool

from dashboards.assistant.answers import INSTRUCTIONS, REQUEST_BYTES_MAX, Assistant, output_schema


def run_on_stdio(assistant: Assistant) -> None:
    """Serve the client at standard input and output until it goes; what prints meanwhile goes to standard error."""
    server = _server(assistant)

    async def serve() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(serve)


class HttpAnswers:
    """Answers single HTTP requests, from any thread."""

    def __init__(self, assistant: Assistant) -> None:
        self._server = _server(assistant)

    def answer(self, path: str, fields: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, header fields and body of the answer to a POST.

        Args:
            fields: header fields of the request.
        """
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()],
        }  # fmt: skip
        sent: list[dict[str, Any]] = []
        bodies = [body]

        async def receive() -> dict[str, Any]:
            if not bodies:
                await anyio.sleep_forever()
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        async def serve() -> None:
            # Host and origin are checked before, for all of the app.
            manager = StreamableHTTPSessionManager(
                self._server, json_response=True, stateless=True, max_request_body_size=REQUEST_BYTES_MAX
            )
            async with manager.run():
                await manager.handle_request(scope, receive, send)

        anyio.run(serve)
        start = next(message for message in sent if message["type"] == "http.response.start")
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
        return int(start["status"]), found, content


def _server(assistant: Assistant) -> Server[Any]:
    listed = ListToolsResult(
        tools=[
            ListedTool(
                name=tool.name,
                description=tool.says,
                input_schema=tool.input_schema,
                output_schema=output_schema(tool),
                annotations=ToolAnnotations(
                    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
                ),
            )
            for tool in assistant.known()
        ]
    )

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return listed

    async def call_tool(_: ServerRequestContext[Any], asked: CallToolRequestParams) -> CallToolResult:
        # In a thread, so that a client that waits for one answer still gets its pings answered.
        found = await to_thread.run_sync(assistant.ask, asked.name, asked.arguments or {})
        content = dict(found.content)
        # The same for clients that read text alone, as the specification asks.
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
        return CallToolResult(
            content=[TextContent(type="text", text=text)], structured_content=content, is_error=found.is_error
        )

    return Server(
        "gputide",
        version=version("gputide"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
