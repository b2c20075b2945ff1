"""`kubectl gputide freeze`: stops every change in the cluster at once, or lifts that."""

from __future__ import annotations

from typing import Annotated

import typer

from gputide.container.cluster import open_kubernetes
from gputide.output import printable
from gputide.session import session_of

app = typer.Typer()


@app.command(epilog="Example: kubectl gputide freeze")
def freeze(
    context: typer.Context,
    is_lifted: Annotated[bool, typer.Option("--lift", help="Let changes go on.")] = False,
) -> None:
    """Stop every enforcer of this cluster before its next batch, by a ConfigMap; nothing is applied until it is lifted.

    Node agents go on. What is half done stays as it is, and goes on once the freeze is lifted.
    """
    settings = session_of(context).settings
    with open_kubernetes(settings) as cluster:
        freezer = cluster.freezer()
        if is_lifted:
            was_frozen = freezer.lift()
            typer.echo("changes are allowed again" if was_frozen else "nothing was frozen")
        else:
            by = freezer.freeze()
            typer.echo(
                f"every change in this cluster is stopped, by {printable(by)}; kubectl gputide freeze --lift ends it"
            )
