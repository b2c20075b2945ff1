"""What the week took: idle card hours, hours of low priority, electricity and carbon, of the cluster or of one team.

Summed from the charged card hours of `fleet.money`, so that it is the same electricity that `gputide cost show`
tells. Pure; called by `gputide report`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from fleet.inventory import Priority
from fleet.money.charged_days import ChargedDay
from fleet.money.charges import ChargeSums, Owner
from fleet.money.split import MILLION
from fleet.money.tenancies import Tenancies
from fleet.profiles import CardState, Profiles

_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWeek:
    """Hours and electricity of a week.

    Attributes:
        idle_gpu_hours: card hours that nobody held (of the cluster only), and of cards that stand idle-held those since
            their last activity; a card hour is counted once, and of a shared card a team has its part.
        low_priority_gpu_hours: card hours granted to pods of low priority.
        kwh: electricity by use, with the data centre's overhead; None where none is known.
        kwh_known_ratio: share of the card hours, by use, whose electricity is known, 0-1.
        kg_co2: carbon of it; None where it or the grid's intensity is unknown.
        pue: power usage effectiveness that it was counted with.
        grid_kg_co2_per_kwh: carbon intensity that it was counted with; None where not set.
        kwh_by_team: electricity of each namespace; None where unknown.
    """

    idle_gpu_hours: float
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
    profiles: Profiles,
    *,
    since: datetime,
    until: datetime,
    pue: float,
    grid_kg_co2_per_kwh: float | None,
    team: str | None = None,
) -> MeasuredWeek:
    """Sum the days of a week.

    Args:
        days: its card hours.
        who: cards and grants that the days count by place.
        profiles: newest analysis, which says since when a card stands idle.
        since: start, UTC.
        until: end, UTC.
        pue: power usage effectiveness, 1 or more.
        grid_kg_co2_per_kwh: carbon intensity of the electricity; None where unknown.
        team: namespace to sum for; None for the cluster.
    """
    sums = ChargeSums(who, Owner.NAMESPACE, ())
    free = np.zeros(len(who.cards))
    is_own = np.array([team in (None, grant.namespace) for grant in who.grants], np.bool_)
    is_low = is_own & np.array([grant.priority is Priority.LOW for grant in who.grants], np.bool_)
    low_units = used_units = 0
    for day in days:
        sums.add(day)
        held = np.bincount(day.columns.card_hour, minlength=day.columns.count) > 0
        free += np.bincount(day.card[~held], minlength=len(who.cards))
        low_units += int(day.split.allocation.rows[is_low[day.grant]].sum())
        used_units += int(day.split.use.rows[is_own[day.grant]].sum())
    found = sums.chargeback(cluster=profiles.cluster, since=since, until=until, currency="")
    rows = {row.name: row for row in found.rows}
    charge = found.total if team is None else rows.get(team)
    hours = found.total.card_hours if team is None else used_units / MILLION
    kwh = None if charge is None or charge.kwh is None else round(charge.kwh * pue, 3)
    unknown = hours if charge is None or charge.kwh is None else charge.unknown_kwh_card_hours
    grid = grid_kg_co2_per_kwh
    return MeasuredWeek(
        idle_gpu_hours=round(_idle_hours(profiles, who, free, since, until, team), 1),
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


def _idle_hours(
    profiles: Profiles,
    who: Tenancies,
    free: NDArray[np.float64],
    since: datetime,
    until: datetime,
    team: str | None,
) -> float:
    """Card hours that nobody held, and those of idle-held cards since their last activity."""
    free_of = {card.card: float(hours) for card, hours in zip(who.cards, free, strict=True)}
    week_hours = (until - since).total_seconds() / _HOUR_SECONDS
    idle = 0.0 if team is not None else sum(free_of.values())
    for card in profiles.cards:
        if card.state is not CardState.IDLE_HELD or card.idle_since is None:
            continue
        hours = (until - max(card.idle_since, since)).total_seconds() / _HOUR_SECONDS
        # Hours in which nobody held it are counted already, of the cluster.
        held = max(0.0, min(hours, week_hours - free_of.get(card.card, 0.0)))
        idle += held * _part(card.workloads, team)
    return idle


def _part(workloads: tuple[str, ...], team: str | None) -> float:
    """A team's part of a card, shared in equal parts among its workloads as the tenants page does."""
    if team is None:
        return 1.0
    return sum(name.split("/", 1)[0] == team for name in workloads) / max(1, len(workloads))
