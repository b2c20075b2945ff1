"""`gputide analyze`: profiles of every workload and card, and what the history can't support."""

from __future__ import annotations

import typer

from gputide.answers import profiles_answer
from gputide.options import FormatOption, OutputOption
from gputide.output import Format, print_answer
from gputide.session import session_of
from gputide.wiring import load_profiles

app = typer.Typer()


@app.command(epilog="Example: gputide analyze --format json -o profiles.json")
def analyze(context: typer.Context, form: FormatOption = Format.TABLE, output: OutputOption = None) -> None:
    """Describe every workload: what it needs, when it is busy, how long it has been idle, how far to trust that."""
    session = session_of(context)
    _, profiles = load_profiles(session)
    print_answer(profiles_answer(profiles), form=form, target=output)
