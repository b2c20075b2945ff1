"""Which part of the tide a moment belongs to, also where clocks change."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from enforcer.tide.calendar import TideCalendar, TideMoment, TidePhase

LEAD = timedelta(hours=1)
SHANGHAI = TideCalendar(start=time(22, 30), end=time(7, 30), time_zone=ZoneInfo("Asia/Shanghai"))


def at(calendar: TideCalendar, text: str) -> TideMoment:
    return calendar.at(datetime.fromisoformat(text).replace(tzinfo=calendar.time_zone).astimezone(UTC), LEAD)


@pytest.mark.parametrize(
    ("text", "phase", "night"),
    [
        ("2026-03-04T22:29:59", TidePhase.DAY, None),
        ("2026-03-04T22:30:00", TidePhase.NIGHT, date(2026, 3, 4)),
        ("2026-03-05T06:29:59", TidePhase.NIGHT, date(2026, 3, 4)),
        ("2026-03-05T06:30:00", TidePhase.GIVE_BACK, date(2026, 3, 4)),
        ("2026-03-05T07:30:00", TidePhase.DAY, None),
    ],
)
def test_window_reaches_into_the_next_day(text: str, phase: TidePhase, night: date | None) -> None:
    moment = at(SHANGHAI, text)
    assert (moment.phase, moment.night) == (phase, night)
    if night is not None:
        assert moment.ends_at == datetime(2026, 3, 4, 23, 30, tzinfo=UTC)


def test_window_within_a_day() -> None:
    noon = TideCalendar(start=time(12), end=time(15), time_zone=ZoneInfo("UTC"))
    assert at(noon, "2026-03-04T13:00").phase is TidePhase.NIGHT
    assert at(noon, "2026-03-04T14:30").phase is TidePhase.GIVE_BACK
    assert at(noon, "2026-03-04T15:00").phase is TidePhase.DAY


def test_no_window_begins_on_a_holiday_and_the_one_of_the_eve_goes_on() -> None:
    calendar = TideCalendar(
        start=time(22, 30), end=time(7, 30), time_zone=ZoneInfo("UTC"), holidays={date(2026, 3, 5)}
    )  # fmt: skip
    assert at(calendar, "2026-03-05T03:00").phase is TidePhase.NIGHT
    assert at(calendar, "2026-03-05T23:00").phase is TidePhase.DAY
    assert at(calendar, "2026-03-06T03:00").phase is TidePhase.DAY


@pytest.mark.parametrize(("day", "hours"), [("2026-03-28", 8.0), ("2026-10-24", 10.0), ("2026-06-01", 9.0)])
def test_ends_stay_where_people_expect_them_when_clocks_change(day: str, hours: float) -> None:
    berlin = TideCalendar(start=time(22, 30), end=time(7, 30), time_zone=ZoneInfo("Europe/Berlin"))
    moment = at(berlin, f"{day}T22:30")
    begins = datetime.fromisoformat(f"{day}T22:30").replace(tzinfo=berlin.time_zone).astimezone(UTC)
    assert moment.ends_at is not None
    assert (moment.ends_at - begins).total_seconds() / 3600 == hours
    assert moment.ends_at.astimezone(berlin.time_zone).strftime("%H:%M") == "07:30"


def test_window_shorter_than_giving_back_takes_is_none() -> None:
    short = TideCalendar(start=time(1), end=time(2), time_zone=ZoneInfo("UTC"))
    assert at(short, "2026-03-04T01:30").phase is TidePhase.DAY
