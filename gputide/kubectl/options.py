"""Options that verbs of `kubectl gputide` share, as kubectl names them."""

from __future__ import annotations

from typing import Annotated

import typer

NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="A namespace; that of the context unless given."),
]
EveryNamespaceOption = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")]
