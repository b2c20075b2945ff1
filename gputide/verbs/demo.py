"""`gputide demo`: the whole loop on a synthetic fleet, then the web page."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dashboards.words.advice import verdict_words
from enforcer.record.verdict import verdict_of
from enforcer.simulated.systems import PLAYABLE
from fleet.capabilities.register import capabilities_of
from fleet.errors import Unavailable
from fleet.settings.settings import EnforcerSettings
from fleet.words import Language
from gputide.answers.plan import outcome_answer
from gputide.container.pages import views_of
from gputide.demo import DemoSummary, demo_settings, run_demo
from gputide.output import Format, print_answer
from gputide.session import Session, default_data_path, session_of, who

app = typer.Typer()


@app.command(epilog="Example: gputide demo --once --backend volcano")
def demo(
    context: typer.Context,
    once: Annotated[bool, typer.Option(help="End after the summary; no web page.")] = False,
    backend: Annotated[
        str | None, typer.Option(help=f"The simulated cluster shares cards as one of {', '.join(PLAYABLE)} does.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the web page.")] = None,
) -> None:
    """Run the whole loop on a synthetic fleet: plan, apply, verify, undo. No GPU, no cluster, no Java."""
    session = session_of(context).with_overrides([] if backend is None else [f"enforcer.backend={backend}"])
    session = replace(session, settings=demo_settings(session.settings))
    path = _demo_path(session.data_path)
    console = Console(stderr=True)

    def started(name: str) -> None:
        if not session.is_quiet:
            console.print(f"[dim]·[/dim] {name}")

    with session.progress("replaying (minutes of the fleet)") as tick:
        summary = run_demo(path, session.settings, started=started, tick=tick)
    _print_summary(summary, session.settings.enforcer.backend)
    if not once:
        _show_pages(replace(session, data_path=path), port)


def _show_pages(session: Session, port: int | None) -> None:
    """Serve the pages until Ctrl-C, where what draws them is installed."""
    try:
        # The loop itself needs none of it.
        from gputide.assistant import offer
        from gputide.container.access import open_web_app
        from gputide.verbs.serve import serve_until_stopped
    except ModuleNotFoundError as exc:
        typer.echo(f"no web page without {exc.name}: pip install 'gputide[dashboards]' brings it", err=True)
        return
    views = views_of(session, is_patient=False)
    settings = session.settings.dashboard
    try:
        server = open_web_app(views, settings, operator=who(), assistant=offer(session), port=port)
    except Unavailable:
        if port is not None:
            raise
        server = open_web_app(views, settings, operator=who(), assistant=offer(session), port=0)
    for cluster in views.fleet.clusters():
        views.fleet.profiles(cluster)
    serve_until_stopped(server, as_what="web page: ")


def _demo_path(data_path: Path) -> Path:
    """The demo keeps to a folder of its own, unless one was named."""
    return data_path.with_name(f"{data_path.name}-demo") if data_path == default_data_path() else data_path


def _print_summary(summary: DemoSummary, backend: str) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    table = Table(title="The loop", title_justify="left")
    table.add_column("step")
    table.add_column("result")
    table.add_column("seconds", justify="right")
    for step in summary.steps:
        table.add_row(step.name, step.result, f"{step.seconds:.1f}")
    console.print(table)
    verdict, waiting = verdict_of(summary.outcome), summary.waiting
    answer = outcome_answer(summary.outcome, verdict, summary.applied.currency)
    print_answer(replace(answer, headline=()), form=Format.TABLE, target=None)
    console.print(
        f"{verdict_words(verdict, Language.EN)} {summary.restored} was restored; plan {waiting.short_id} waits: "
        f"{waiting.totals.cards_freed} more cards",
        soft_wrap=True,
    )
    console.print(f"state: {summary.folder.path}")
    if backend != EnforcerSettings().backend:
        record = capabilities_of(backend)
        choices = (
            (True, f"enforcer.backend={backend}"),
            (record.is_experimental, "enforcer.experimental=true"),
            (not record.admits_pods, "guard.gaps_allowed=true"),
        )
        words = " ".join(f"--set {setting}" for is_needed, setting in choices if is_needed)
        console.print(f"look at it with: gputide --data-dir {summary.folder.path} {words} status", soft_wrap=True)
