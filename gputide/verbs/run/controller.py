"""`gputide run controller`: does what is wanted of each plan, and goes on with what a dead process left."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from enforcer.controller import Controller, ControllerMetrics, Leadership
from fleet.errors import Corrupt, Misconfigured, Refused, Unavailable
from gputide.container.cluster import own_cluster
from gputide.container.enforcer import copy_changes, open_enforcer
from gputide.container.own_metrics import open_own_metrics
from gputide.options import YesOption
from gputide.session import session_of
from wire.kubernetes.backoff import Backoff

app = typer.Typer()

LOOK_SECONDS = 5.0
_STANDBY_SECONDS = 5.0
_AWAY_SECONDS_MIN, _AWAY_SECONDS_MAX = 5.0, 60.0


@app.command(epilog="Example: gputide --set enforcer.cluster=kubernetes run controller --yes")
def controller(
    context: typer.Context,
    yes: YesOption = False,
    once: Annotated[bool, typer.Option("--once", help="Do what is due now and end.")] = False,
) -> None:
    """Apply the approved stages that spec.apply of a GpuPlan names, take back those it no longer names.

    One process acts, others stand by. While it runs, `gputide apply --yes` and `undo --yes` let it act and watch.
    """
    if not yes:
        raise Refused("cannot act on plans without --yes; `kubectl get gpuplans` shows what is wanted")
    session = session_of(context)
    folder, settings = session.folder(create=True), session.settings
    with ExitStack() as opened:
        metrics = opened.enter_context(open_own_metrics(settings, "controller", ControllerMetrics))
        # What it knows lies in the cluster; the folder's copy is another process's to write.
        ledger = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "ledger.jsonl"
        enforcer = opened.enter_context(
            open_enforcer(folder, settings, session.now(), on_progress=lambda _: None, ledger=ledger)
        )
        if enforcer.cluster.controller is None:
            raise Misconfigured("cannot control a simulated cluster: set enforcer.cluster=kubernetes")
        opened.enter_context(metrics.api_requests.following(lambda: enforcer.cluster.requests))
        holder = f"gputide controller {os.getpid()} on {socket.gethostname()}"
        leadership = Leadership(enforcer.cluster.controller, holder, metrics.is_leader.set)
        leadership.start()
        opened.callback(leadership.stop)
        own = own_cluster(folder, settings)
        looking = Controller(enforcer.plans, enforcer.tools.journal, enforcer.reconciler, metrics, time.monotonic)
        backoff = Backoff(seconds_min=_AWAY_SECONDS_MIN, seconds_max=_AWAY_SECONDS_MAX)
        typer.echo("the controller runs; Ctrl-C stops", err=True)
        while True:
            if not leadership.wait(_STANDBY_SECONDS):
                continue
            try:
                if looking.look():
                    copy_changes(folder, enforcer.cluster, own)
            except (Corrupt, Refused, Unavailable) as exc:
                typer.echo(f"not now: {exc}", err=True)
                time.sleep(backoff.failed())
            else:
                backoff.recovered()
                if once:
                    return
                time.sleep(LOOK_SECONDS)
