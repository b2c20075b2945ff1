"""Opens relief on the cluster that the settings choose, with the feed of what its nodes see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime

from enforcer.dialect import Dialect
from enforcer.record.ledger import ledger_at
from enforcer.relief.demand_feed import (
    AllObjectives,
    DemandFeed,
    NoObjectives,
    Objectives,
    PromisedObjectives,
    QueriedObjectives,
)
from enforcer.relief.feed_agents import AgentFeed
from enforcer.relief.feed_replay import ReplayFeed
from enforcer.relief.moving import Patience
from enforcer.relief.overload import overloads
from enforcer.relief.relief_context import ReliefContext, ReliefPolicy
from enforcer.relief.relief_journal import ReliefJournal, ReliefTiming, relief_timing
from enforcer.relief.runner import ReliefRunner
from enforcer.relief.squeeze import OrdersWriter
from enforcer.resource_names import Words
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.tide.early_home import Busy
from enforcer.trusted_series import TrustedSeries
from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured, Unavailable
from fleet.relief.overload import Cause
from fleet.relief.rules import ReliefRules
from fleet.settings.settings import Settings
from gputide.container.cluster import LiveCluster, backend, moment_of_change, open_cluster_to_change, own_cluster
from gputide.container.enforcer import guard, harm_budgets, lease_holder
from gputide.container.prometheus import instant_query
from gputide.container.warehouse import WarehouseMeasurements
from wire.credentials import TokenFile
from wire.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRelief:
    """Relief, ready to look.

    Attributes:
        feed: shows what nodes see.
        cluster: where it acts.
    """

    runner: ReliefRunner
    feed: DemandFeed
    cluster: LiveCluster


def relief_counted_on(folder: DataFolder, settings: Settings, now: datetime) -> ReliefRules | None:
    """Rules of the relief that plans count on, with the time that its moves took; None where they count on none.

    Raises:
        Misconfigured: the backend takes no card by its UUID.
    """
    if not settings.risk.counts_on_relief:
        return None
    words = getattr(backend(settings, now).dialect, "words", None)
    if not isinstance(words, Words) or words.use_card is None:
        raise Misconfigured(
            f"cannot count on relief: enforcer.backend={settings.enforcer.backend} takes no card by its UUID, so "
            "relief moves no pod there; risk.counts_on_relief=true, expected false"
        )
    return played_relief(settings, relief_timing(relief_journal(folder).measured()))


def played_relief(settings: Settings, timing: ReliefTiming) -> ReliefRules:
    """The rules that simulations play."""
    return replace(
        settings.relief.rules(working_ratio=settings.agent.working_ratio),
        sustain_seconds=timing.reaction_seconds,
        load_bytes_per_second=timing.load_bytes_per_second,
    )


def relief_journal(folder: DataFolder) -> ReliefJournal:
    """What relief did, from its ledger."""
    return ReliefJournal(ledger_at(folder, folder.relief))


@contextmanager
def open_relief(folder: DataFolder, settings: Settings, now: datetime, *, at_once: bool) -> Iterator[OpenRelief]:
    """Relief of the cluster that the settings choose.

    Args:
        at_once: one look decides; nothing must have lasted.

    Raises:
        Misconfigured: there is no way into the cluster or to an agent.
        Unavailable: the cluster can't be reached.
    """
    policy = relief_policy(settings)
    if settings.relief.slo_queries and settings.relief.prometheus_url is None:
        raise Misconfigured("cannot ask relief.slo_queries: relief.prometheus_url=none; name your Prometheus")
    if at_once:
        policy = replace(policy, rules=replace(policy.rules, sustain_seconds=0.0))
    with open_cluster_to_change(folder, settings, now) as cluster:
        dialect = backend(settings, moment_of_change(cluster, now)).dialect
        tools = ReliefContext(
            reader=cluster,
            writer=cluster,
            lease=cluster,
            # Not the name of `apply`: one of the two waits for the other.
            holder=f"{lease_holder(folder)} for relief",
            guard=guard(folder, settings),
            dialect=dialect,
            journal=relief_journal(folder),
            orders=OrdersWriter(
                cluster, cluster, namespace=settings.enforcer.namespace, name=settings.agent.orders_config_map
            ),
            objectives=_objectives(settings, cluster),
            harm=harm_budgets(folder, settings),
        )
        runner = ReliefRunner(tools, policy)
        with demand_feed(folder, settings, cluster, dialect) as feed:
            try:
                yield OpenRelief(runner=runner, feed=feed, cluster=cluster)
            finally:
                if not isinstance(cluster, SimulatedCluster):
                    runner.stop()


@contextmanager
def demand_feed(folder: DataFolder, settings: Settings, cluster: LiveCluster, dialect: Dialect) -> Iterator[DemandFeed]:
    """What shows how busy cards are: node agents; of the simulated cluster the usage that was recorded last.

    Raises:
        Misconfigured: there is no way to an agent.
    """
    if isinstance(cluster, SimulatedCluster):
        measurements = WarehouseMeasurements(folder, settings, cluster=own_cluster(folder, settings))
        yield ReplayFeed(cluster, dialect, measurements.history, cluster.now)
        return
    if not settings.relief.agents:
        raise Misconfigured("cannot ask how busy cards are: relief.agents is empty; name where node agents answer")
    relief = settings.relief
    feed = AgentFeed(
        relief.agents,
        wait_seconds=relief.wait_seconds,
        tls=Tls(
            authority_file=relief.agents_ca_file,
            server_name=relief.agents_server_name,
            certificate_file=relief.agents_certificate_file,
            key_file=relief.agents_key_file,
        ),
        credentials=None if relief.agents_token_file is None else TokenFile(relief.agents_token_file),
    )
    feed.start()
    try:
        yield feed
    finally:
        feed.close()


def busy_pods(folder: DataFolder, settings: Settings, cluster: LiveCluster, dialect: Dialect) -> Busy:
    """What pods use now, and those on cards that are filled up or where an objective is broken; for the tide.

    What relief moves pods for, but from where a card counts as likely to be full: replicas take minutes to come.
    Framebuffer counts for nothing, because more replicas do not empty it.

    Raises:
        Unavailable: no node says how busy its cards are.
        Misconfigured: nobody can be asked.
        NotEnoughData: nothing was recorded.
    """
    rules = relief_policy(settings).rules
    full_ratio = min(rules.full_ratio, rules.busy_ratio)
    rules = replace(rules, full_ratio=full_ratio, relieved_ratio=full_ratio, free_ratio_min=0.0)
    broken: dict[str, str] = {}
    with suppress(Unavailable):  # cards are measured by others than objectives
        broken = {entry.pod_id: entry.query for entry in _objectives(settings, cluster).broken()}
    with demand_feed(folder, settings, cluster, dialect) as feed:
        until, views = time.monotonic() + settings.relief.wait_seconds, feed.views(0.0)
        # A feed comes back as soon as one node is in trouble; those that answer later may be too.
        while isinstance(feed, AgentFeed) and (left := until - time.monotonic()) > 0:
            views = feed.views(left)
    if not views:
        raise Unavailable("no node says how busy its cards are")
    uses: dict[str, list[float]] = {}
    for part in (part for view in views.values() for part in view.slices):
        if part.duty_cycle_ratio is not None:
            uses.setdefault(part.pod_id, []).append(part.duty_cycle_ratio)
    crowded = {
        part.pod_id: str(entry.reason) if entry.cause is Cause.OBJECTIVE else f"{full_ratio:.0%} of its card or more"
        for entry in overloads(views, rules, broken)
        for part in views[entry.node].slices
        if part.card == entry.card
    }
    demand = {pod: sum(ratios) / len(ratios) for pod, ratios in uses.items()}
    return Busy(demand_ratio=demand, crowded=crowded, full_ratio=full_ratio)


def relief_policy(settings: Settings) -> ReliefPolicy:
    """What the settings say of relief, in the enforcer's words."""
    relief = settings.relief
    return ReliefPolicy(
        rules=relief.rules(working_ratio=settings.agent.working_ratio),
        patience=Patience(
            ready_seconds_max=float(relief.ready_seconds_max), leave_seconds_max=float(relief.leave_seconds_max)
        ),
        squeeze_seconds=float(relief.squeeze_seconds),
        calm_seconds=float(relief.calm_seconds),
        lease_seconds=float(settings.enforcer.lease_seconds),
    )


def _objectives(settings: Settings, cluster: LiveCluster) -> Objectives:
    relief = settings.relief
    if relief.prometheus_url is None:
        return NoObjectives()
    metrics = instant_query(relief.prometheus_url, "relief.prometheus_url", settings.prometheus)
    interval_seconds = float(relief.slo_seconds)
    return AllObjectives(
        QueriedObjectives(metrics, relief.slo_queries, interval_seconds=interval_seconds),
        PromisedObjectives(
            cluster, TrustedSeries(metrics, settings.provenance.rule), interval_seconds=interval_seconds
        ),
    )
