"""Reads a cluster's history from the warehouse and has it described by the analyzer. Called by verbs and pages."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer.profile import (
    PartFigures,
    figures_of,
    history_part,
    inventory_parts,
    joined_profiles,
    part_rows,
    profile_parts,
)
from fleet.coarse_grid import coarse_grid
from fleet.data_folder import DataFolder
from fleet.durable import FolderLock, Held, unwritable
from fleet.errors import NotEnoughData
from fleet.inventory import Inventory
from fleet.profiles import Profiles
from fleet.schema import Measure
from fleet.settings.settings import AnalyzerSettings, Settings
from fleet.usage import Float32, History, Key, UsageGrid
from gputide.container.warehouse import cluster_name, warehouse
from gputide.container.workers import open_workers
from gputide.session import Session
from pipeline.warehouse.history_parts import Cut, StoredPart, sorted_parts

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
_SCRATCH, _ROLE = ".parts-", "parts"
_MADE_SECONDS = 60.0


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
    wanted = _planned_steps(stored)
    return _whole(session, stored) if wanted is None else _in_parts(session, stored, wanted)


def load_judged(session: Session) -> History:
    """The history that a back-test plays plans on: the one that `plan make` would make its plan from."""
    stored = _stored(session.folder(), session.settings, session.now(), None, rows_max=WHOLE_CELLS_MAX)
    wanted = _planned_steps(stored)
    if wanted is None:
        return stored.whole()
    _looked_at(session, stored, wanted, analyses=False)
    return wanted.history(stored.inventory)


def _planned_steps(stored: StoredHistory) -> _Wanted | None:
    """What is kept of each part for a plan; None where the whole is read."""
    slices, cards = stored.slices.layout, None if stored.cards is None else stored.cards.layout
    step_seconds = plan_step_seconds(slices)
    if _is_small(stored) and step_seconds == slices.step_seconds:
        return None
    return _Wanted(
        slices=_Kept(slices, step_seconds), cards=None if cards is None else _Kept(cards, _fitting(step_seconds, cards))
    )


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
    wanted = _Wanted(slices=_Kept(layout, step_seconds), cards=None, mean=frozenset(mean), peak=frozenset(peak))
    return _in_parts(session, stored, wanted)


def _is_small(stored: StoredHistory) -> bool:
    """Whether it is read as a whole: by its rows, and by its cells, for pods that lived for an hour have few rows."""
    grids = [grid.layout for grid in (stored.slices, stored.cards) if grid is not None]
    return stored.is_small and all(_cells(grid) <= WHOLE_CELLS_MAX for grid in grids)


def _whole(session: Session, stored: StoredHistory) -> Analysed:
    history = stored.whole()
    profiles = profiled(history, session.settings, session.now())
    return Analysed(history=history, profiles=profiles, source_seconds=history.slices.step_seconds)


def _in_parts(session: Session, stored: StoredHistory, wanted: _Wanted) -> Analysed:
    profiles = _analysed(session, stored, wanted)
    return Analysed(
        history=wanted.history(stored.inventory), profiles=profiles, source_seconds=stored.slices.layout.step_seconds
    )


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
        cards = _in_steps(cards, _fitting(step_seconds, cards))
    return replace(history, slices=_in_steps(history.slices, step_seconds), cards=cards)


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


def _in_steps(grid: UsageGrid[Key], step_seconds: int) -> UsageGrid[Key]:
    return grid if step_seconds == grid.step_seconds else coarse_grid(grid, step_seconds)


def profiled(history: History, settings: Settings, now: datetime) -> Profiles:
    """What the analyzer makes of a history; of a large fleet part by part, so that its own tables stay small."""
    parts = inventory_parts(history.inventory, _slices_per_part(history.slices))
    return profile_parts((history_part(history, part) for part in parts), settings=settings.analyzer, now=now)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is kept of each part beside its figures; `cards` is None for nothing, `mean` and `peak` for all measures."""

    slices: _Kept
    cards: _Kept | None
    mean: frozenset[Measure] | None = None
    peak: frozenset[Measure] | None = None

    def history(self, inventory: Inventory) -> History:
        """All that was kept."""
        cards = None if self.cards is None else self.cards.grid()
        return History(inventory=inventory, slices=self.slices.grid(), cards=cards)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartDone:
    """What is kept of one part; `figures` is None where there is nobody to analyse."""

    figures: PartFigures | None
    slices: UsageGrid[Any] | None
    cards: UsageGrid[Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartJob:
    """One part to be read and analysed, in any process.

    Attributes:
        slice_seconds: steps in which its slices are kept; None for nothing of them.
        card_seconds: the same of its cards.
    """

    part: StoredPart
    settings: AnalyzerSettings
    now: datetime
    has_workloads: bool
    slice_seconds: int | None
    card_seconds: int | None
    mean: frozenset[Measure] | None
    peak: frozenset[Measure] | None

    def run(self) -> _PartDone:
        """Do it."""
        history = self.part.read()
        figures = figures_of(history, settings=self.settings, now=self.now) if self.has_workloads else None
        slices, cards = history.slices, history.cards
        if self.slice_seconds is not None:
            slices = replace(slices, mean=_some(slices.mean, self.mean), peak=_some(slices.peak, self.peak))
        return _PartDone(
            figures=figures,
            slices=None if self.slice_seconds is None else _in_steps(slices, self.slice_seconds),
            cards=None if self.card_seconds is None or cards is None else _in_steps(cards, self.card_seconds),
        )


def _some(planes: Mapping[Measure, Float32], only: frozenset[Measure] | None) -> Mapping[Measure, Float32]:
    return planes if only is None else {measure: values for measure, values in planes.items() if measure in only}


def _analysed(session: Session, stored: StoredHistory, wanted: _Wanted | None) -> Profiles:
    """The profiles of a large fleet; fills what is wanted."""
    found = _looked_at(session, stored, wanted, analyses=True)
    return joined_profiles(found, settings=session.settings.analyzer)


def _looked_at(session: Session, stored: StoredHistory, wanted: _Wanted | None, *, analyses: bool) -> list[PartFigures]:
    """Figures of each part, if asked for, by as many processes as are set; fills what is wanted."""
    settings = session.settings.analyzer
    cuts = _cuts(stored)
    with_workloads = len(cuts) if analyses else 0
    if wanted is not None:
        cuts.append(_rest(stored, cuts))
    found: list[PartFigures] = []
    with _scratch(session.folder()) as scratch, open_workers(settings.processes, "analyzer.processes") as run:
        parts = list(sorted_parts(stored, cuts, scratch, run=run, processes=settings.processes))
        jobs = [
            _PartJob(
                part=part,
                settings=settings,
                now=session.now(),
                has_workloads=number < with_workloads,
                slice_seconds=None if wanted is None else wanted.slices.step_seconds,
                card_seconds=None if wanted is None or wanted.cards is None else wanted.cards.step_seconds,
                mean=None if wanted is None else wanted.mean,
                peak=None if wanted is None else wanted.peak,
            )
            for number, part in enumerate(parts)
        ]
        for part, done in zip(parts, run(_PartJob.run, jobs), strict=True):
            if done.figures is not None:
                found.append(done.figures)
            if wanted is not None and done.slices is not None:
                wanted.slices.add(done.slices, part.slice_rows)
            if wanted is not None and wanted.cards is not None and done.cards is not None:
                wanted.cards.add(done.cards, part.card_rows)
    return found


def _cuts(stored: StoredHistory) -> list[Cut]:
    slices, cards = stored.slices.layout, stored.cards
    parts = inventory_parts(stored.inventory, _slices_per_part(slices))
    return [(part, *part_rows(part, slices.keys, () if cards is None else cards.layout.keys)) for part in parts]


def _rest(stored: StoredHistory, cuts: Sequence[Cut]) -> Cut:
    """Rows that no grant and no card explains: nobody analyses them."""
    nobody = replace(stored.inventory, cards=(), nodes=(), grants=())
    slices = set(range(len(stored.slices.layout.keys))).difference(*(rows for _, rows, _ in cuts))
    cards = set(range(0 if stored.cards is None else len(stored.cards.layout.keys)))
    return nobody, sorted(slices), sorted(cards.difference(*(rows for _, _, rows in cuts)))


@contextmanager
def _scratch(folder: DataFolder) -> Iterator[Path]:
    """An empty folder below the data folder; those that killed processes have left go first."""
    for path in folder.path.glob(f"{_SCRATCH}*"):
        with suppress(Held, FileNotFoundError):
            if time.time() - (path / f"{_ROLE}.lock").stat().st_mtime < _MADE_SECONDS:
                continue  # perhaps just being made
            with FolderLock(path, _ROLE):
                shutil.rmtree(path, ignore_errors=True)
    try:
        made = TemporaryDirectory(prefix=_SCRATCH, dir=folder.path)
    except OSError as exc:
        raise unwritable(folder.path, exc) from exc
    with made as name, FolderLock(Path(name), _ROLE):
        yield Path(name)


def _slices_per_part(grid: Layout | UsageGrid[Any]) -> int:
    cells = WHOLE_CELLS_MAX if _cells(grid) <= WHOLE_CELLS_MAX else CELLS_PER_PART
    return max(1, cells // max(1, grid.steps))


class _Kept:
    """A grid in steps of some length; mutable: filled part by part."""

    def __init__(self, layout: Layout, step_seconds: int) -> None:
        self.step_seconds = step_seconds
        self._layout = layout
        self._steps = layout.steps // (step_seconds // layout.step_seconds)
        self._mean: dict[Measure, Float32] = {}
        self._peak: dict[Measure, Float32] = {}

    def add(self, part: UsageGrid[Any], rows: Sequence[int]) -> None:
        """Takes the rows of one part, in these steps; `rows` says where they belong."""
        for planes, found in ((self._mean, part.mean), (self._peak, part.peak)):
            for measure, values in found.items():
                if measure not in planes:
                    planes[measure] = np.full((len(self._layout.keys), self._steps), np.nan, np.float32)
                planes[measure][np.array(rows, np.int64)] = values

    def grid(self) -> UsageGrid[Any]:
        """All that was added."""
        return UsageGrid(
            keys=self._layout.keys,
            since=self._layout.since,
            step_seconds=self.step_seconds,
            steps=self._steps,
            mean=self._mean,
            peak=self._peak,
        )
