"""Opens what a chargeback is made from: the warehouse, the clock and the cluster that the settings mean."""

from __future__ import annotations

from datetime import datetime

from dashboards.money.charged_days import CostPeriod, period_of
from fleet.money.unit_costs import UnitCount
from gputide.container.plans import plan_store
from gputide.container.prometheus import unit_counts
from gputide.container.warehouse import cluster_name, warehouse
from gputide.session import Session


def cost_period(
    session: Session, since: datetime | None, until: datetime | None, *, cluster: str | None = None
) -> CostPeriod:
    """The period of a session's cluster; see `period_of`.

    Args:
        since: start, UTC; None for a week before the end.

    Raises:
        Misconfigured: the start is not before the end, or too long before it.
        NotEnoughData: the cluster had no card in that time.
    """
    folder, settings = session.folder(), session.settings
    name = cluster_name(folder, settings, cluster)
    return period_of(warehouse(folder, settings), settings, name, since, until, session.now())


def period_unit_counts(period: CostPeriod) -> tuple[UnitCount, ...]:
    """Requests and tokens that the settings have counted in a period; see `unit_counts`."""
    settings = period.settings
    return unit_counts(
        settings.prices, cluster=period.cluster, since=period.known_since, until=period.until, way=settings.prometheus
    )


def newest_advice(session: Session, cluster: str) -> dict[str, str]:
    """Id of a cluster's newest plan's first recommendation for each workload; empty where there is no plan."""
    plan = plan_store(session.folder()).newest(cluster)
    found: dict[str, str] = {}
    for item in plan.recommendations if plan is not None else ():
        for workload in item.workloads:
            found.setdefault(workload, item.id)
    return found
