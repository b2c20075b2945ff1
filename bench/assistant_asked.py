"""Asks `gputide run assistant` as a client does: the SDK's own client over stdio. Shared by the bar's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from bench.measured_run import GPUTIDE

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one server said.

    Attributes:
        answers: content of each answer, call by call.
        offered: tools and instructions, as one text.
    """

    answers: Sequence[dict[str, Any]]
    offered: str


def asked(data: Path, calls: Sequence[Call], *options: str) -> Said:
    """Starts the program on a data folder, with options before the verb, and makes calls."""
    server = StdioServerParameters(
        command=str(GPUTIDE), args=["--data-dir", str(data), "--quiet", *options, "run", "assistant"]
    )

    async def go() -> Said:
        async with Client(stdio_client(server)) as client:
            tools = await client.list_tools()
            offered = tools.model_dump_json() + (client.instructions or "")
            found = [(await client.call_tool(name, arguments)).structured_content for name, arguments in calls]
            return Said(answers=found, offered=offered)

    return anyio.run(go)
