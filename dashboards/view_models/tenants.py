"""What each team was granted over the last seven days, and what became of it; the teams' parts sum to the fleet's.

Pure; called by the tenants page, the report and the API.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fleet.money.charges import MeasuredHours
from fleet.money.week_hours import GRANTED, IDLE, Measures, WeekHours, part_of
from fleet.profiles import HourMeasure, Profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One team (a namespace).

    Attributes:
        workloads: how many it has now.
        distrusted: workloads of them whose counters free nothing.
        measures: its granted card hours by what became of them.
        unmeasured_card_hours: those of them whose use was not measured: they count as used.
    """

    name: str
    workloads: int
    distrusted: int
    measures: Measures
    unmeasured_card_hours: float
    hours: float

    @property
    def granted(self) -> MeasuredHours:
        """All that it was granted."""
        return part_of(self.measures, GRANTED)

    @property
    def idle(self) -> MeasuredHours:
        """Granted, without compute; with or without framebuffer held."""
        return part_of(self.measures, IDLE)

    @property
    def cards_used(self) -> float | None:
        """Cards in use on average; None where nothing was measured."""
        if self.granted.card_hours <= self.unmeasured_card_hours or self.hours <= 0:
            return None
        return self.measures[HourMeasure.USED].card_hours / self.hours


def tenants(profiles: Profiles, week: WeekHours) -> tuple[Tenant, ...]:
    """Every team, the one with the dearest idle card hours first, then by their number."""
    workloads = Counter(profile.namespace for profile in profiles.workloads)
    distrusted = Counter(profile.namespace for profile in profiles.workloads if not profile.is_trusted)
    found = [
        Tenant(
            name=name,
            workloads=workloads[name],
            distrusted=distrusted[name],
            measures=measures,
            unmeasured_card_hours=week.unmeasured[name],
            hours=week.hours,
        )
        for name, measures in week.tenants.items()
    ]
    return tuple(sorted(found, key=lambda team: (-(team.idle.cost or 0), -team.idle.card_hours, team.name)))
