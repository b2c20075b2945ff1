"""Settings of the tide: how early everything is given back, and who works at night.

Part of `fleet.settings.settings`.
"""

from __future__ import annotations

from datetime import date

from pydantic import field_validator

from fleet.settings.kinds import Count, Seconds, Section


class TideSettings(Section):
    """How the tide goes out and comes home."""

    lead_seconds_min: Seconds = 3600
    """Giving back begins at least this long before the window ends; longer where earlier nights took longer."""
    plan_age_days_max: Count = 14
    """How old a plan may be when a night begins by it: what it foretells ages."""
    release_seconds_max: Seconds = 1800
    """How long services may take to step back; then what is free is used."""
    save_seconds: Seconds = 300
    """Between asking low priority to save and stopping it."""
    home_seconds_max: Seconds = 3600
    """How long services coming back are waited for before it is told that they are late."""
    interval_seconds: Seconds = 60
    """Time between two looks of `gputide tide run`."""
    queues: tuple[str, ...] = ()
    """Kueue's ClusterQueues that low priority waits in; they are held by day and opened at night."""
    holidays: tuple[str, ...] = ()
    """Days on which no tide begins, such as 2026-12-24."""

    @field_validator("holidays")
    @classmethod
    def _are_dates(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for day in value:
            date.fromisoformat(day)
        return value
