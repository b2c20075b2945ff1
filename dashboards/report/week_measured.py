"""What the week took: card hours by measure, hours of low priority, electricity and carbon, of the cluster or a team.

Summed from the charged card hours of `fleet.money`, so that it is the electricity that `gputide cost show`
prints. Pure; called by `gputide report`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from fleet.inventory import Priority
from fleet.money.charged_day import ChargedDay
from fleet.money.charges import BillingPeriod, Charge, ChargeSums, Owner
from fleet.money.split import MILLION
from fleet.money.tenancies import Tenancies
from fleet.money.week_hours import WeekHours, week_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWeek:
    """Hours and electricity of a week.

    Attributes:
        hours: card hours by tenant and measure; of the whole cluster.
        low_priority_gpu_hours: card hours granted to pods of low priority.
        kwh: electricity by use, with the data centre's overhead; None where none is known.
        kwh_known_ratio: share of the card hours, by use, whose electricity is known, 0-1.
        kg_co2: carbon of it; None where it or the grid's intensity is unknown.
        pue: power usage effectiveness that it was counted with.
        grid_kg_co2_per_kwh: carbon intensity that it was counted with; None where not set.
        kwh_by_team: electricity of each namespace; None where unknown.
    """

    hours: WeekHours
    workloads: tuple[Charge, ...]
    low_priority_gpu_hours: float
    kwh: float | None
    kwh_known_ratio: float
    kg_co2: float | None
    pue: float
    grid_kg_co2_per_kwh: float | None
    kwh_by_team: tuple[tuple[str, float | None], ...]


def measured_week(
    days: Iterable[ChargedDay],
    who: Tenancies,
    billed: BillingPeriod,
    *,
    known_since: datetime,
    pue: float,
    grid_kg_co2_per_kwh: float | None,
    team: str | None = None,
) -> MeasuredWeek:
    """Sum the days of a week.

    Args:
        who: cards and grants that the days count by place.
        known_since: since when cards are known, UTC.
        pue: power usage effectiveness, 1 or more.
        grid_kg_co2_per_kwh: carbon intensity of the electricity; None where unknown.
        team: namespace to sum for; None for the cluster.
    """
    sums, by_workload = ChargeSums(who, Owner.NAMESPACE, ()), ChargeSums(who, Owner.WORKLOAD, ())
    is_own = np.array([team in (None, grant.namespace) for grant in who.grants], np.bool_)
    is_low = is_own & np.array([grant.priority is Priority.LOW for grant in who.grants], np.bool_)
    low_units = used_units = 0
    for day in days:
        sums.add(day)
        by_workload.add(day)
        low_units += int(day.split.allocation.rows[is_low[day.grant]].sum())
        used_units += int(day.split.use.rows[is_own[day.grant]].sum())
    found, workloads = sums.chargeback(billed), by_workload.chargeback(billed)
    rows = {row.name: row for row in found.rows}
    charge = found.total if team is None else rows.get(team)
    hours = found.total.card_hours if team is None else used_units / MILLION
    kwh = None if charge is None or charge.kwh is None else round(charge.kwh * pue, 3)
    unknown = hours if charge is None or charge.kwh is None else charge.unknown_kwh_card_hours
    grid = grid_kg_co2_per_kwh
    return MeasuredWeek(
        hours=week_hours(found, known_since=known_since),
        workloads=workloads.rows,
        low_priority_gpu_hours=round(low_units / MILLION, 1),
        kwh=kwh,
        kwh_known_ratio=min(1.0, max(0.0, 1 - unknown / hours)) if hours > 0 else 0.0,
        kg_co2=None if kwh is None or grid is None else round(kwh * grid, 3),
        pue=pue,
        grid_kg_co2_per_kwh=grid,
        kwh_by_team=tuple(
            (name, None if row.kwh is None else round(row.kwh * pue, 3)) for name, row in sorted(rows.items())
        ),
    )
