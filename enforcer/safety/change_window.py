"""When plans may change the cluster: days, hours and holidays by the cluster's own clock.

Pure. The guard asks before a run begins; one that has begun is gone on with and ended, for a stage that is left half
way for a night is worse than one that ends after hours.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWindow:
    """Days, hours and holidays.

    Attributes:
        days: days of the week, 0 is Monday.
        end: the moment after its last; at or before `begin` it reaches into the next day.
        holidays: days on which no window begins.
        time_zone: clock by which all this is meant.
    """

    days: frozenset[int] = frozenset(range(7))
    begin: time = time(0)
    end: time = time(0)
    holidays: Collection[date] = ()
    time_zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))

    def is_open(self, now: datetime) -> bool:
        """Whether changes may begin now."""
        here = now.astimezone(self.time_zone)
        clock = here.time().replace(tzinfo=None)
        today, yesterday = here.date(), here.date() - timedelta(days=1)
        if self.begin < self.end:
            return self.begin <= clock < self.end and self._counts(today)
        return (clock >= self.begin and self._counts(today)) or (clock < self.end and self._counts(yesterday))

    def _counts(self, day: date) -> bool:
        return day.weekday() in self.days and day not in self.holidays
