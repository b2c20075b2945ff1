"""Reads a cluster's history from the warehouse and has it described by the analyzer. Called by verbs and pages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from analyzer.node_reports import grid_reports
from analyzer.parts import history_part, inventory_parts
from analyzer.presence import timeline
from analyzer.profile import joined_profiles, profile_fleet, profile_parts
from analyzer.survey import as_believed
from fleet.data_folder import DataFolder
from fleet.errors import NotEnoughData
from fleet.inventory import Inventory
from fleet.profiles import Profiles
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.usage import History, UsageGrid
from gputide.container.parts import Answer, Kept, Look, Steps, answered, in_steps, looked_at
from gputide.container.warehouse import cluster_name, warehouse
from gputide.session import Session

if TYPE_CHECKING:
    from pipeline.warehouse.stored_history import StoredHistory
    from pipeline.warehouse.usage_grid import Layout

HISTORY_DAYS = 28
"""How far back a history goes: four weeks hold four of every hour of the week."""

WHOLE_CELLS_MAX = 10_000_000
"""Steps of slices that are read, analysed and planned for as one: 250 cards over four weeks of minutes."""
PLAN_CELLS_MAX = 20_000_000
"""Steps of slices that a plan is made from where there are more: five thousand cards in steps of ten minutes."""
LONGER_SECONDS = (600, 1800, 3600)
"""Those steps; the first with which no more than these cells are left, else the last. Longer
steps see less of short contention: by the hour plans of the low preset realised two to three times what they do by ten
minutes, of the medium preset one and a half times."""
CELLS_PER_PART = 2_000_000
"""Steps of slices of a larger fleet that are analysed at a time: fifty cards over four weeks of minutes."""
PARTS_MAX = 400
"""Parts of a fleet, each of which has a file open while rows are sorted: those of more than twenty thousand cards grow,
up to what is read as one for a hundred thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """A history and what the analyzer made of it.

    Attributes:
        history: of a large fleet in longer steps than the source's.
        source_seconds: the source's own step.
    """

    history: History
    profiles: Profiles
    source_seconds: int


def load_history(folder: DataFolder, settings: Settings, now: datetime, *, cluster: str | None = None) -> History:
    """The newest four weeks until `now` of a cluster; of the one that the settings mean where `cluster` is None.

    Raises:
        NotEnoughData: there is none.
        Misconfigured: nothing is known of that cluster.
    """
    return _stored(folder, settings, now, cluster, rows_max=None).whole()


def load_profiles(session: Session, cluster: str | None = None) -> Profiles:
    """What the analyzer makes of that history as of the session's now; a large one is never in memory as a whole."""
    stored = _stored(session.folder(), session.settings, session.now(), cluster, rows_max=WHOLE_CELLS_MAX)
    if _is_small(stored):
        return profiled(stored.whole(), session.settings, session.now())
    return _analysed(session, stored, None)


def load_planned(session: Session, cluster: str | None = None) -> Analysed:
    """The history that a plan is made from, see `for_plan`, and its profiles, as of the session's now.

    Of a large fleet each part is analysed in its own steps, and then kept in longer ones.
    """
    stored = _stored(session.folder(), session.settings, session.now(), cluster, rows_max=WHOLE_CELLS_MAX)
    steps = _planned_steps(stored)
    return _whole(session, stored) if steps is None else _in_parts(session, stored, steps)


def load_judged(session: Session) -> History:
    """The history that a back-test plays plans on: the one that `plan make` would make its plan from."""
    stored = _stored(session.folder(), session.settings, session.now(), None, rows_max=WHOLE_CELLS_MAX)
    steps = _planned_steps(stored)
    if steps is None:
        return stored.whole()
    kept = Kept(stored, steps, session.folder().path)
    looked_at(_look(session, stored, analyses=False), stored, kept)
    return kept.history()


def load_recorded(session: Session) -> History:
    """The history that a trace is written of: means in the source's own steps; of a large fleet they lie in files."""
    stored = _stored(session.folder(), session.settings, session.now(), None, rows_max=WHOLE_CELLS_MAX)
    if _is_small(stored):
        return stored.whole()
    cards = None if stored.cards is None else stored.cards.layout.step_seconds
    steps = Steps(slices=stored.slices.layout.step_seconds, cards=cards, peak=frozenset())
    kept = Kept(stored, steps, session.folder().path)
    looked_at(_look(session, stored, analyses=False), stored, kept)
    return kept.history()


def ask_believed(
    folder: DataFolder,
    settings: Settings,
    cluster: str | None,
    span: tuple[datetime, datetime],
    question: Callable[[History], Answer],
) -> tuple[Inventory, list[Answer]]:
    """Asks something of some days that are over, as far as they are believed (`analyzer.survey.as_believed`).

    Args:
        question: asked of the whole, or of each part of a large fleet in any process; parts without grants are not
            asked. A large fleet is never in memory as a whole.

    Returns:
        What stood there and who was granted what, and the answer of each part.

    Raises:
        NotEnoughData: nothing was collected then.
        Misconfigured: nothing is known of that cluster.
    """
    stored = stored_between(folder, settings, cluster, *span)
    if _is_small(stored):
        return stored.inventory, [question(as_believed(stored.whole(), settings.analyzer))]
    look = Look(
        folder=folder,
        settings=settings.analyzer,
        now=span[1],
        slices_max=_slices_per_part(stored.slices.layout),
        analyses=False,
    )
    return stored.inventory, answered(look, stored, question)


def stored_between(
    folder: DataFolder, settings: Settings, cluster: str | None, since: datetime, until: datetime
) -> StoredHistory:
    """The history of some days of a cluster, or of the one that the settings mean, before its values are read.

    Raises:
        NotEnoughData: nothing was collected then.
        Misconfigured: nothing is known of that cluster.
    """
    return warehouse(folder, settings).stored_history(
        cluster_name(folder, settings) if cluster is None else cluster,
        since=since,
        until=until,
        time_zone=settings.cluster.time_zone,
        rows_max=WHOLE_CELLS_MAX,
    )


def _look(session: Session, stored: StoredHistory, *, analyses: bool) -> Look:
    return Look(
        folder=session.folder(),
        settings=session.settings.analyzer,
        now=session.now(),
        slices_max=_slices_per_part(stored.slices.layout),
        analyses=analyses,
    )


def _planned_steps(stored: StoredHistory) -> Steps | None:
    """What is kept of each part for a plan; None where the whole is read."""
    slices, cards = stored.slices.layout, None if stored.cards is None else stored.cards.layout
    step_seconds = plan_step_seconds(slices)
    if _is_small(stored) and step_seconds == slices.step_seconds:
        return None
    return Steps(slices=step_seconds, cards=None if cards is None else _fitting(step_seconds, cards))


def load_drawn(
    session: Session, cluster: str, *, cells_max: int, mean: Collection[Measure], peak: Collection[Measure]
) -> Analysed:
    """The history that pages draw, and its profiles, as of the session's now.

    Args:
        cells_max: slices times steps up to which a large fleet's steps stay as they are; hours beyond.
        mean: measures of which the means of slices are kept, where the fleet is large; nothing of its cards is.
        peak: measures of which the peaks are kept.
    """
    stored = _stored(session.folder(), session.settings, session.now(), cluster, rows_max=WHOLE_CELLS_MAX)
    if _is_small(stored):
        return _whole(session, stored)
    layout = stored.slices.layout
    is_long = _cells(layout) > cells_max
    step_seconds = _fitting(LONGER_SECONDS[-1], layout) if is_long else layout.step_seconds
    steps = Steps(slices=step_seconds, cards=None, mean=frozenset(mean), peak=frozenset(peak))
    return _in_parts(session, stored, steps)


def _is_small(stored: StoredHistory) -> bool:
    """Whether it is read as a whole: by its rows, and by its cells, for pods that lived for an hour have few rows."""
    grids = [grid.layout for grid in (stored.slices, stored.cards) if grid is not None]
    return stored.is_small and all(_cells(grid) <= WHOLE_CELLS_MAX for grid in grids)


def _whole(session: Session, stored: StoredHistory) -> Analysed:
    history = stored.whole()
    profiles = profiled(history, session.settings, session.now())
    return Analysed(history=history, profiles=profiles, source_seconds=history.slices.step_seconds)


def _in_parts(session: Session, stored: StoredHistory, steps: Steps) -> Analysed:
    kept = Kept(stored, steps, session.folder().path)
    profiles = _analysed(session, stored, kept)
    return Analysed(history=kept.history(), profiles=profiles, source_seconds=stored.slices.layout.step_seconds)


def _analysed(session: Session, stored: StoredHistory, kept: Kept | None) -> Profiles:
    """The profiles of a large fleet; fills what is kept."""
    found = looked_at(_look(session, stored, analyses=True), stored, kept)
    return joined_profiles(found, settings=session.settings.analyzer)


def load_inventory(session: Session, cluster: str | None = None) -> Inventory:
    """What stands in a cluster as of the session's now, without its use.

    Raises:
        NotEnoughData: no node and no card was ever seen there.
        Misconfigured: nothing is known of that cluster.
    """
    folder, settings = session.folder(), session.settings
    name = cluster_name(folder, settings, cluster)
    found = warehouse(folder, settings).inventory(name, as_of=session.now(), time_zone=settings.cluster.time_zone)
    if not found.nodes and not found.cards:
        raise NotEnoughData(f"cannot read what stands in cluster {name!r}: no node and no card was seen until now")
    return found


def for_plan(history: History) -> History:
    """The history that a plan is made from: of a large fleet in longer steps, so that it fits memory."""
    step_seconds = plan_step_seconds(history.slices)
    if step_seconds == history.slices.step_seconds:
        return history
    cards = history.cards
    if cards is not None:
        cards = in_steps(cards, _fitting(step_seconds, cards))
    return replace(history, slices=in_steps(history.slices, step_seconds), cards=cards)


def plan_step_seconds(grid: Layout | UsageGrid[Any]) -> int:
    """Length of the steps in which a plan is made from these."""
    longer = [it for it in LONGER_SECONDS if it > grid.step_seconds and it % grid.step_seconds == 0]
    if _cells(grid) <= WHOLE_CELLS_MAX:
        return grid.step_seconds
    few = [it for it in longer if _cells(grid) * grid.step_seconds // it <= PLAN_CELLS_MAX]
    return few[0] if few else [grid.step_seconds, *longer][-1]


def _cells(grid: Layout | UsageGrid[Any]) -> int:
    return len(grid.keys) * grid.steps


def _fitting(step_seconds: int, grid: Layout | UsageGrid[Any]) -> int:
    """That step where it is a multiple of the grid's own, else the grid's."""
    return step_seconds if step_seconds % grid.step_seconds == 0 else grid.step_seconds


def profiled(history: History, settings: Settings, now: datetime) -> Profiles:
    """What the analyzer makes of a history; of a large fleet part by part, so that its own tables stay small."""
    parts = list(inventory_parts(history.inventory, _slices_per_part(history.slices)))
    if len(parts) == 1:
        return profile_fleet(history, settings=settings.analyzer, now=now)
    steps = timeline(history.slices, now).steps
    reports = grid_reports(history.slices, steps, asks_alive=history.cards is None)
    pieces = (history_part(history, part) for part in parts)
    return profile_parts(pieces, settings=settings.analyzer, now=now, reports=reports)


def _stored(
    folder: DataFolder, settings: Settings, now: datetime, cluster: str | None, *, rows_max: int | None
) -> StoredHistory:
    return warehouse(folder, settings).stored_history(
        cluster_name(folder, settings, cluster),
        since=now - timedelta(days=HISTORY_DAYS),
        until=now,
        time_zone=settings.cluster.time_zone,
        rows_max=rows_max,
    )


def _slices_per_part(grid: Layout | UsageGrid[Any]) -> int:
    whole = _cells(grid)
    cells = whole if whole <= WHOLE_CELLS_MAX else max(CELLS_PER_PART, whole // PARTS_MAX)
    return max(1, cells // max(1, grid.steps))
