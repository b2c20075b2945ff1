"""Asks `gputide run assistant` as a client does: the protocol's own client over stdio. For tests and the bar."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one server said.

    Attributes:
        answers: content of each answer, call by call.
        offered: tools and instructions, as one text.
        tools: names of the tools.
    """

    answers: Sequence[dict[str, Any]]
    offered: str
    tools: Sequence[str]


def asked(data: Path, calls: Sequence[Call], *options: str) -> Said:
    """Starts the program on a data folder, with options before the verb, and makes calls."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "gputide.cli", "--data-dir", str(data), "--quiet", *options, "run", "assistant"],
    )

    async def go() -> Said:
        async with Client(stdio_client(server)) as client:
            listed = await client.list_tools()
            offered = listed.model_dump_json() + (client.instructions or "")
            found = [(await client.call_tool(name, arguments)).structured_content for name, arguments in calls]
            return Said(answers=found, offered=offered, tools=[tool.name for tool in listed.tools])

    return anyio.run(go)


def data_of(said: Said) -> list[Any]:
    """The data of answers, none of which is an error."""
    assert not [answer["error"] for answer in said.answers if "error" in answer]
    return [answer["data"] for answer in said.answers]
