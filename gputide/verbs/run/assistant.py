"""`gputide run assistant`: an assistant asks about the data folder, over the Model Context Protocol on stdio."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from dashboards.access.people import everything
from fleet.errors import Misconfigured
from gputide.session import session_of, who

app = typer.Typer()


@app.command(epilog="Example: gputide --data-dir ./data run assistant")
def assistant(context: typer.Context) -> None:
    """Answer an assistant that started this process: it reads and proposes, and nothing that it asks changes anything.

    The client (an editor, a chat) starts the process and speaks to it by standard input and output; docs/assistant.md
    shows how to configure one. For an assistant on another machine `gputide serve` answers at /mcp.
    """
    if find_spec("mcp") is None or find_spec("fastjsonschema") is None:
        raise Misconfigured("cannot answer an assistant without mcp: pip install 'gputide[assistant]' brings it")
    session = session_of(context)
    session.folder()
    from dashboards.assistant.answers import Assistant
    from dashboards.assistant.server import run_on_stdio
    from gputide.assistant import session_tools
    from gputide.container.pages import views_of

    person = everything(who())
    run_on_stdio(Assistant(views_of(session), lambda: person, session_tools(session)))
