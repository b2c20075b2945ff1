"""`gputide run planner`: makes the plan anew when a policy changes, and keeps the status of every policy."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection
from contextlib import ExitStack
from typing import Annotated

import typer

from enforcer.controller import Leadership
from enforcer.kubernetes.cluster import KubernetesCluster
from enforcer.policy_follower import FollowerMetrics, Planned, PolicyFollower
from fleet.data_folder import DataFolder
from fleet.errors import Corrupt, Misconfigured, NotEnoughData, Refused, Unavailable
from fleet.logs import logger
from fleet.policy_standing import Subject, subjects_of
from fleet.settings.settings import ClusterChoice
from gputide.container.cluster import check_uid, open_kubernetes, own_cluster
from gputide.container.history import load_inventory
from gputide.container.own_metrics import open_own_metrics
from gputide.container.plans import plan_store
from gputide.options import YesOption
from gputide.session import Session, session_of
from gputide.verbs.plan.make import kept_plan
from recommender.problem import PlanScope
from wire.kubernetes.backoff import Backoff

app = typer.Typer()

LOOK_SECONDS = 5.0
_STANDBY_SECONDS = 5.0
_AWAY_SECONDS_MIN, _AWAY_SECONDS_MAX = 5.0, 60.0


@app.command(epilog="Example: gputide --set enforcer.cluster=kubernetes run planner --yes")
def planner(
    context: typer.Context,
    yes: YesOption = False,
    once: Annotated[bool, typer.Option("--once", help="Do what is due now and end.")] = False,
) -> None:
    """Make a plan when a GpuPolicy or ClusterGpuPolicy changes, and say in each one's status what became of it.

    Plans are proposals: nothing is applied. One process acts, others stand by.
    """
    if not yes:
        raise Refused("cannot write plans and statuses without --yes; `kubectl get gpupolicies -A` shows what is asked")
    session = session_of(context)
    folder, settings = session.folder(create=True), session.settings
    if settings.enforcer.cluster is ClusterChoice.SIMULATED:
        raise Misconfigured("cannot follow policies of a simulated cluster: set enforcer.cluster=kubernetes")
    with ExitStack() as opened:
        metrics = opened.enter_context(open_own_metrics(settings, "planner", FollowerMetrics))
        cluster = opened.enter_context(open_kubernetes(settings))
        leadership = Leadership(
            cluster.planner, f"gputide planner {os.getpid()} on {socket.gethostname()}", metrics.is_leader.set
        )
        leadership.start()
        opened.callback(leadership.stop)
        own = own_cluster(folder, settings)
        follower = PolicyFollower(
            cluster.policies, lambda: _subjects(session, own),
            lambda: kept_plan(session, PlanScope(), own, needs_policies=True)[0].plan_id,
            lambda plan: _superseded(folder, cluster, plan),
            Planned(folder.policies), metrics, time.monotonic,
        )  # fmt: skip
        backoff = Backoff(seconds_min=_AWAY_SECONDS_MIN, seconds_max=_AWAY_SECONDS_MAX)
        typer.echo("the planner runs; Ctrl-C stops", err=True)
        while True:
            if not leadership.wait(_STANDBY_SECONDS):
                continue
            try:
                check_uid(cluster, settings)
                follower.look()
            except (Corrupt, Refused, Unavailable) as exc:
                typer.echo(f"not now: {exc}", err=True)
                time.sleep(backoff.failed())
            else:
                backoff.recovered()
                if once:
                    return
                time.sleep(LOOK_SECONDS)


def _superseded(folder: DataFolder, cluster: KubernetesCluster, plan: str) -> Collection[str]:
    """Let older proposals of the planner go, here and in the cluster; ids of the plans that stand there."""
    try:
        standing, gone = cluster.plans.supersede(plan)
    except (Misconfigured, Refused) as exc:
        logger("gputide.planner").warning("older plans that nobody approved are not deleted", why=str(exc))
        return plan_store(folder).ids()
    plan_store(folder).drop(gone)
    return standing


def _subjects(session: Session, cluster: str | None) -> tuple[Subject, ...]:
    """The workloads of the cluster, none before anything was collected."""
    try:
        return subjects_of(load_inventory(session, cluster).live_grants())
    except (NotEnoughData, Misconfigured):
        return ()
