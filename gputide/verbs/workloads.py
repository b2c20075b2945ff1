"""`gputide workloads`: profiles of every workload and card, or of one; and what the history can't support."""

from __future__ import annotations

from typing import Annotated

import typer

from dashboards.stored.arrivals import silent_since
from gputide.answers.fleet import profile_answer, profiles_answer, silence_note, workload_named
from gputide.container.history import load_profiles
from gputide.container.warehouse import warehouse
from gputide.options import ClusterOption, answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide workloads --format json -o profiles.json")
@answering
def workloads(
    session: Session,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="One workload: namespace/Kind/name, or its unique end.",
        ),
    ] = None,
    cluster: ClusterOption = None,
) -> Answer:
    """Describe every workload, or one: its need, busy hours and idle time, and how far to trust them."""
    profiles = load_profiles(session, cluster)
    since = silent_since(
        warehouse(session.folder(), session.settings), session.settings, profiles.cluster, session.now()
    )
    notes = silence_note(profiles.cluster, since)
    return profiles_answer(profiles, notes) if name is None else profile_answer(workload_named(profiles, name), notes)
