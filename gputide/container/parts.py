"""A large history, looked at part by part by several processes. Called by `gputide.container.history`.

First the stored rows are sorted by part. Where profiles are asked for, all parts then say how nodes report, so that no
figure depends on how the fleet was cut. At last each part is read and described, and some of it is kept. Where
something else is asked of a fleet, each part is read and answers it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from analyzer.node_reports import NodeReports, NodesSeen, joined_reports, nodes_seen
from analyzer.parts import inventory_parts, rows_of_parts
from analyzer.profile import PartFigures, figures_of
from analyzer.state.idleness import COMPUTE
from analyzer.survey import as_believed
from fleet.coarse_grid import coarse_grid
from fleet.data_folder import DataFolder
from fleet.durable import FolderLock, Held, unwritable
from fleet.schema import Measure
from fleet.settings.settings import AnalyzerSettings
from fleet.usage import Float32, History, Key, UsageGrid
from gputide.container.planes import StoredPlanes
from gputide.container.workers import Run, open_workers
from pipeline.warehouse.history_parts import Cut, StoredPart, sorted_parts

if TYPE_CHECKING:
    from pipeline.warehouse.stored_history import StoredHistory
    from pipeline.warehouse.usage_grid import Layout

_SCRATCH, _ROLE = ".parts-", "parts"
_MADE_SECONDS = 60.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is kept of each part beside its figures.

    Attributes:
        slices: seconds of the steps in which its slices are kept.
        cards: the same of its cards; None for nothing of them.
        mean: measures of which the means of slices are kept; None for all.
        peak: measures of which the peaks of slices are kept; None for all.
    """

    slices: int
    cards: int | None
    mean: frozenset[Measure] | None = None
    peak: frozenset[Measure] | None = None


class Kept:
    """What is kept of all parts; mutable: filled part by part.

    Args:
        folder: on a disk with room for it.
    """

    def __init__(self, stored: StoredHistory, steps: Steps, folder: Path) -> None:
        self.steps = steps
        self._inventory = stored.inventory
        self._slices = _Grid(stored.slices.layout, steps.slices, folder)
        cards = stored.cards
        self._cards = None if cards is None or steps.cards is None else _Grid(cards.layout, steps.cards, folder)

    def history(self) -> History:
        """All that was kept."""
        cards = None if self._cards is None else self._cards.grid()
        return History(inventory=self._inventory, slices=self._slices.grid(), cards=cards)

    def add(self, part: StoredPart, slices: UsageGrid[Any] | None, cards: UsageGrid[Any] | None) -> None:
        """Takes what is kept of one part."""
        if slices is not None:
            self._slices.add(slices, part.slice_rows)
        if cards is not None and self._cards is not None:
            self._cards.add(cards, part.card_rows)


class _Grid:
    """A grid in steps of some length; mutable: filled part by part."""

    def __init__(self, layout: Layout, step_seconds: int, folder: Path) -> None:
        self._layout, self._step_seconds = layout, step_seconds
        self._steps = layout.steps // (step_seconds // layout.step_seconds)
        self._mean, self._peak = (StoredPlanes(folder, len(layout.keys), self._steps) for _ in range(2))

    def add(self, part: UsageGrid[Any], rows: Sequence[int]) -> None:
        """Takes the rows of one part, in these steps; `rows` says where they belong."""
        for planes, found in ((self._mean, part.mean), (self._peak, part.peak)):
            for measure, values in found.items():
                planes.put(measure, rows, values)

    def grid(self) -> UsageGrid[Any]:
        """All that was added."""
        return UsageGrid(
            keys=self._layout.keys,
            since=self._layout.since,
            step_seconds=self._step_seconds,
            steps=self._steps,
            mean=self._mean,
            peak=self._peak,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodesJob:
    """One part of which it is asked what its rows show of their nodes, in any process.

    Attributes:
        rows: places of those of its rows that no part before has; one may belong to several, and counts once.
    """

    part: StoredPart
    rows: Sequence[int]
    now: datetime
    asks_alive: bool

    def run(self) -> NodesSeen:
        """Do it."""
        layout = self.part.slices.layout
        seen, known = self.part.collected(COMPUTE)
        steps = min(layout.steps, max(0, int((self.now - layout.since).total_seconds() // layout.step_seconds)))
        nodes = [layout.keys[row].node for row in self.rows]
        own = np.array(self.rows, np.int64)
        return nodes_seen(nodes, seen[own, :steps], known[own, :steps], asks_alive=self.asks_alive)


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
        reports: how its nodes report; None where nobody analyses it.
        steps: what is kept of it; None for nothing.
    """

    part: StoredPart
    settings: AnalyzerSettings
    now: datetime
    reports: NodeReports | None
    steps: Steps | None

    def run(self) -> _PartDone:
        """Do it."""
        history, steps, figures = self.part.read(), self.steps, None
        if self.reports is not None:
            figures = figures_of(history, settings=self.settings, now=self.now, reports=self.reports)
        if steps is None:
            return _PartDone(figures=figures, slices=None, cards=None)
        slices, cards = history.slices, history.cards
        slices = replace(slices, mean=_some(slices.mean, steps.mean), peak=_some(slices.peak, steps.peak))
        return _PartDone(
            figures=figures,
            slices=in_steps(slices, steps.slices),
            cards=None if steps.cards is None or cards is None else in_steps(cards, steps.cards),
        )


def _some(planes: Mapping[Measure, Float32], only: frozenset[Measure] | None) -> Mapping[Measure, Float32]:
    return planes if only is None else {measure: values for measure, values in planes.items() if measure in only}


def in_steps(grid: UsageGrid[Key], step_seconds: int) -> UsageGrid[Key]:
    """A grid in longer steps, or as it is where these are its own."""
    return grid if step_seconds == grid.step_seconds else coarse_grid(grid, step_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look over all parts of a history, by as many processes as are set.

    Attributes:
        folder: where the sorted rows go meanwhile.
        now: moment of the analysis, UTC.
        slices_max: slices of a part, unless more belong together.
        analyses: whether each part is described.
    """

    folder: DataFolder
    settings: AnalyzerSettings
    now: datetime
    slices_max: int
    analyses: bool


def looked_at(look: Look, stored: StoredHistory, kept: Kept | None) -> list[PartFigures]:
    """Figures of each part, if asked for; fills what is kept."""
    settings, now = look.settings, look.now
    found: list[PartFigures] = []
    with _open_parts(look, stored) as (cut, run):
        *parts, rest = cut
        reports = None
        if look.analyses:
            asked = _nodes_jobs((*parts, rest), now, asks_alive=stored.cards is None)
            reports = joined_reports(run(_NodesJob.run, asked))
        parts += [] if kept is None else [rest]
        jobs = (
            _PartJob(
                part=part,
                settings=settings,
                now=now,
                reports=None if reports is None or part is rest else reports.of(_nodes_of(part)),
                steps=None if kept is None else kept.steps,
            )
            for part in parts
        )
        for part, done in zip(parts, run(_PartJob.run, jobs), strict=True):
            if done.figures is not None:
                found.append(done.figures)
            if kept is not None:
                kept.add(part, done.slices, done.cards)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskJob(Generic[Answer]):
    """One part of which something is asked, in any process."""

    part: StoredPart
    settings: AnalyzerSettings
    question: Callable[[History], Answer]

    def run(self) -> Answer:
        """Do it."""
        return self.question(as_believed(self.part.read(), self.settings))


def answered(look: Look, stored: StoredHistory, question: Callable[[History], Answer]) -> list[Answer]:
    """What each part answers, as far as it is believed (`analyzer.survey.as_believed`).

    Args:
        question: a picklable one; rows that no grant and no card explains are not asked.
    """
    settings = look.settings
    with _open_parts(look, stored) as (parts, run):
        jobs = (_AskJob(part=part, settings=settings, question=question) for part in parts[:-1])
        return list(run(_AskJob.run, jobs))


@contextmanager
def _open_parts(look: Look, stored: StoredHistory) -> Iterator[tuple[list[StoredPart], Run]]:
    """The parts, last the rows that no grant and no card explains, and what runs jobs; all end with the block."""
    processes = look.settings.processes
    with _scratch(look.folder) as scratch, open_workers(processes, "analyzer.processes") as run:
        cuts = _cuts(stored, look.slices_max)
        yield list(sorted_parts(stored, cuts, scratch, run=run, processes=processes)), run


def _nodes_jobs(parts: Iterable[StoredPart], now: datetime, *, asks_alive: bool) -> Iterator[_NodesJob]:
    counted: set[int] = set()
    for part in parts:
        rows = [place for place, row in enumerate(part.slice_rows) if row not in counted]
        counted.update(part.slice_rows)
        yield _NodesJob(part=part, rows=rows, now=now, asks_alive=asks_alive)


def _nodes_of(part: StoredPart) -> set[str]:
    grants = {grant.node for grant in part.inventory.grants}
    return grants | {key.node for key in part.slices.layout.keys}


def _cuts(stored: StoredHistory, slices_max: int) -> list[Cut]:
    """The parts, and last the rows that no grant and no card explains: nobody analyses them."""
    slices, cards = stored.slices.layout.keys, () if stored.cards is None else stored.cards.layout.keys
    parts = list(inventory_parts(stored.inventory, slices_max))
    rows = rows_of_parts(parts, slices, cards)
    other_slices = set(range(len(slices))).difference(*(own for own, _ in rows))
    other_cards = set(range(len(cards))).difference(*(own for _, own in rows))
    nobody = replace(stored.inventory, cards=(), nodes=(), grants=())
    return [
        *((part, *own) for part, own in zip(parts, rows, strict=True)),
        (nobody, sorted(other_slices), sorted(other_cards)),
    ]


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
