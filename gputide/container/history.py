"""Reads a cluster's history from the warehouse and has it described by the analyzer. Called by verbs and pages."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from analyzer.profile import history_part, inventory_parts, profile_parts
from fleet.coarse_grid import coarse_grid
from fleet.data_folder import DataFolder
from fleet.profiles import Profiles
from fleet.settings.settings import Settings
from fleet.usage import History
from gputide.container.warehouse import cluster_name, warehouse
from gputide.session import Session

HISTORY_DAYS = 28
"""How far back a history goes: four weeks hold four of every hour of the week."""

PLAN_CELLS_MAX = 400_000_000
"""Steps of slices that a plan is made from at most: ten thousand cards over four weeks of minutes; beyond, of hours."""

CELLS_PER_PART = 40_000_000
"""Steps of slices that are analysed at a time: a thousand cards over four weeks of minutes."""


def load_history(folder: DataFolder, settings: Settings, now: datetime, *, cluster: str | None = None) -> History:
    """The newest four weeks until `now` of a cluster; of the one that the settings mean where `cluster` is None.

    Raises:
        NotEnoughData: there is none.
        Misconfigured: nothing is known of that cluster.
    """
    return warehouse(folder, settings).history(
        cluster_name(folder, settings, cluster),
        since=now - timedelta(days=HISTORY_DAYS),
        until=now,
        time_zone=settings.cluster.time_zone,
    )


def load_profiles(session: Session, cluster: str | None = None) -> tuple[History, Profiles]:
    """The history that a plan is made from and what the analyzer makes of it, as of the session's now."""
    folder, now = session.folder(), session.now()
    history = load_history(folder, session.settings, now, cluster=cluster)
    profiles = profiled(history, session.settings, now)
    return for_plan(history), profiles


def for_plan(history: History, cells_max: int = PLAN_CELLS_MAX) -> History:
    """The history that a plan is made from: of a very large fleet in steps of an hour, so that it fits memory.

    Args:
        cells_max: slices times steps up to which the history stays as it is.
    """
    grid = history.slices
    if len(grid.keys) * grid.steps <= cells_max or 3600 % grid.step_seconds:
        return history
    return replace(history, slices=coarse_grid(grid, 3600))


def profiled(history: History, settings: Settings, now: datetime) -> Profiles:
    """What the analyzer makes of a history; of a large fleet part by part, so that its own tables stay small."""
    parts = inventory_parts(history.inventory, max(1, CELLS_PER_PART // max(1, history.slices.steps)))
    return profile_parts((history_part(history, part) for part in parts), settings=settings.analyzer, now=now)
