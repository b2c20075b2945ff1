"""Which part of the tide a moment belongs to: by the cluster's own clock, with days on which there is none.

A window begins at a local time of a day and ends at a local time, on the next day where that is earlier. Its last part,
as long as giving back takes, belongs to giving back. Where a clock is changed in the night the window is an hour longer
or shorter, and its ends stay where people expect them. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo


class TidePhase(StrEnum):
    """Part of the tide."""

    DAY = "day"
    """Services have all they want."""
    NIGHT = "night"
    """They have scaled in; others work on what is free."""
    GIVE_BACK = "give_back"
    """Others stop, and services come back before the window ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TideMoment:
    """Where a moment stands.

    Attributes:
        night: day on which the window began, by the local calendar; None by day.
    """

    phase: TidePhase
    night: date | None
    ends_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TideCalendar:
    """When the tide goes out and comes in.

    Attributes:
        end: local time at which services have everything again; at or before `start` it is the next day's.
        holidays: days on which no window begins: demand is another one then.
    """

    start: time
    end: time
    time_zone: ZoneInfo
    holidays: Collection[date] = field(default_factory=frozenset)

    def at(self, now: datetime, lead: timedelta) -> TideMoment:
        """Where a moment stands.

        Args:
            now: the moment, aware.
            lead: how long giving back takes.
        """
        here = now.astimezone(self.time_zone).date()
        for night in (here, here - timedelta(days=1)):
            begins, ends = self._absolute(night, self.start), self._absolute(self._last_day(night), self.end)
            if night in self.holidays or not begins <= now < ends:
                continue
            # A window that is shorter than giving back takes is none.
            if ends - begins <= lead:
                continue
            phase = TidePhase.GIVE_BACK if now >= ends - lead else TidePhase.NIGHT
            return TideMoment(phase=phase, night=night, ends_at=ends)
        return TideMoment(phase=TidePhase.DAY, night=None, ends_at=None)

    def _last_day(self, night: date) -> date:
        return night if self.start < self.end else night + timedelta(days=1)

    def _absolute(self, day: date, clock: time) -> datetime:
        """A local time as a moment; one that a changed clock skips is the moment an hour later."""
        return datetime.combine(day, clock, tzinfo=self.time_zone).astimezone(UTC)
