"""`gputide workloads`: profiles of every workload and card, and what the history can't support."""

from __future__ import annotations

import typer

from dashboards.stored.arrivals import silent_since
from gputide.answers.fleet import profiles_answer, silence_note
from gputide.container.history import load_profiles
from gputide.container.warehouse import warehouse
from gputide.options import ClusterOption, FormatOption, OutputOption
from gputide.output import Format, print_answer
from gputide.session import session_of

app = typer.Typer()


@app.command(epilog="Example: gputide workloads --format json -o profiles.json")
def workloads(
    context: typer.Context,
    cluster: ClusterOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Describe every workload: what it needs, when it is busy, how long it has been idle, how far to trust that."""
    session = session_of(context)
    _, profiles = load_profiles(session, cluster)
    since = silent_since(
        warehouse(session.folder(), session.settings), session.settings, profiles.cluster, session.now()
    )
    print_answer(profiles_answer(profiles, silence_note(profiles.cluster, since)), form=form, target=output)
