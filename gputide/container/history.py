"""Reads a cluster's history from the warehouse and has it described by the analyzer. Called by verbs and pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer.profile import history_part, inventory_parts, part_rows, profile_parts
from fleet.coarse_grid import coarse_grid
from fleet.data_folder import DataFolder
from fleet.durable import unwritable
from fleet.inventory import Inventory
from fleet.profiles import Profiles
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.usage import Float32, History, UsageGrid
from gputide.container.warehouse import cluster_name, warehouse
from gputide.session import Session

if TYPE_CHECKING:
    from pipeline.warehouse.stored_history import StoredHistory
    from pipeline.warehouse.usage_grid import Layout

HISTORY_DAYS = 28
"""How far back a history goes: four weeks hold four of every hour of the week."""

PLAN_CELLS_MAX = 400_000_000
"""Steps of slices that a plan is made from at most: ten thousand cards over four weeks of minutes; beyond, of hours."""
COARSE_SECONDS = 3600

WHOLE_CELLS_MAX = 40_000_000
"""Steps of slices that are analysed as one: a thousand cards over four weeks of minutes."""
CELLS_PER_PART = 4_000_000
"""Steps of slices of a larger fleet that are analysed at a time: a hundred cards over four weeks of minutes."""


def load_history(folder: DataFolder, settings: Settings, now: datetime, *, cluster: str | None = None) -> History:
    """The newest four weeks until `now` of a cluster; of the one that the settings mean where `cluster` is None.

    Raises:
        NotEnoughData: there is none.
        Misconfigured: nothing is known of that cluster.
    """
    return _stored(folder, settings, now, cluster, rows_max=None).whole()


def load_profiles(session: Session, cluster: str | None = None) -> Profiles:
    """What the analyzer makes of that history as of the session's now; a large one is never in memory as a whole."""
    folder, settings, now = session.folder(), session.settings, session.now()
    stored = _stored(folder, settings, now, cluster, rows_max=WHOLE_CELLS_MAX)
    if stored.is_small:
        return profiled(stored.whole(), settings, now)
    parts = (part for part, _ in _parts(stored, _cuts(stored), folder))
    return profile_parts(parts, settings=settings.analyzer, now=now)


def load_planned(
    session: Session, cluster: str | None = None, *, cells_max: int = PLAN_CELLS_MAX
) -> tuple[History, Profiles]:
    """The history that a plan is made from, see `for_plan`, and its profiles, as of the session's now.

    Of a very large fleet only the hours stay in memory: each part is analysed, and then kept in hours.
    """
    folder, settings, now = session.folder(), session.settings, session.now()
    stored = _stored(folder, settings, now, cluster, rows_max=WHOLE_CELLS_MAX)
    if not _is_coarse(stored.slices.layout, cells_max):
        history = stored.whole()
        return history, profiled(history, settings, now)
    cuts = _cuts(stored)
    slices = _Hours(stored.slices.layout)
    cards = _Hours(stored.cards.layout) if stored.cards is not None and _has_hours(stored.cards.layout) else None

    def parts() -> Iterator[History]:
        for number, (part, (_, rows, card_rows)) in enumerate(_parts(stored, [*cuts, _rest(stored, cuts)], folder)):
            slices.add(part.slices, rows)
            if cards is not None and part.cards is not None:
                cards.add(part.cards, card_rows)
            if number < len(cuts):
                yield part

    profiles = profile_parts(parts(), settings=settings.analyzer, now=now)
    coarse = History(inventory=stored.inventory, slices=slices.grid(), cards=None if cards is None else cards.grid())
    return coarse, profiles


def for_plan(history: History, cells_max: int = PLAN_CELLS_MAX) -> History:
    """The history that a plan is made from: of a very large fleet in steps of an hour, so that it fits memory.

    Args:
        cells_max: slices times steps up to which the history stays as it is.
    """
    if not _is_coarse(history.slices, cells_max):
        return history
    cards = None
    if history.cards is not None and _has_hours(history.cards):
        cards = coarse_grid(history.cards, COARSE_SECONDS)
    return replace(history, slices=coarse_grid(history.slices, COARSE_SECONDS), cards=cards)


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


_Cut = tuple[Inventory, Sequence[int], Sequence[int]]
"""One part: its inventory, and its rows in the grids of slices and of cards."""


def _cuts(stored: StoredHistory) -> list[_Cut]:
    slices, cards = stored.slices.layout, stored.cards
    parts = inventory_parts(stored.inventory, _slices_per_part(slices))
    return [(part, *part_rows(part, slices.keys, () if cards is None else cards.layout.keys)) for part in parts]


def _rest(stored: StoredHistory, cuts: Sequence[_Cut]) -> _Cut:
    """Rows that no grant and no card explains: nobody analyses them."""
    nobody = replace(stored.inventory, cards=(), nodes=(), grants=())
    slices = set(range(len(stored.slices.layout.keys))).difference(*(rows for _, rows, _ in cuts))
    cards = set(range(0 if stored.cards is None else len(stored.cards.layout.keys)))
    return nobody, sorted(slices), sorted(cards.difference(*(rows for _, _, rows in cuts)))


def _parts(stored: StoredHistory, cuts: Sequence[_Cut], folder: DataFolder) -> Iterator[tuple[History, _Cut]]:
    try:
        spill = TemporaryDirectory(prefix=".parts-", dir=folder.path)
    except OSError as exc:
        raise unwritable(folder.path, exc) from exc
    with spill as name:
        yield from zip(stored.parts(cuts, Path(name)), cuts, strict=True)


def _slices_per_part(grid: Layout | UsageGrid[Any]) -> int:
    cells = WHOLE_CELLS_MAX if len(grid.keys) * grid.steps <= WHOLE_CELLS_MAX else CELLS_PER_PART
    return max(1, cells // max(1, grid.steps))


def _has_hours(grid: Layout | UsageGrid[Any]) -> bool:
    return COARSE_SECONDS % grid.step_seconds == 0


def _is_coarse(grid: Layout | UsageGrid[Any], cells_max: int) -> bool:
    return len(grid.keys) * grid.steps > cells_max and _has_hours(grid)


class _Hours:
    """A grid in hours; mutable: filled part by part."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._steps = layout.steps // (COARSE_SECONDS // layout.step_seconds)
        self._mean: dict[Measure, Float32] = {}
        self._peak: dict[Measure, Float32] = {}

    def add(self, part: UsageGrid[Any], rows: Sequence[int]) -> None:
        """Takes the rows of one part; `rows` says where they belong."""
        coarse = coarse_grid(part, COARSE_SECONDS)
        for planes, found in ((self._mean, coarse.mean), (self._peak, coarse.peak)):
            for measure, values in found.items():
                if measure not in planes:
                    planes[measure] = np.full((len(self._layout.keys), self._steps), np.nan, np.float32)
                planes[measure][np.array(rows, np.int64)] = values

    def grid(self) -> UsageGrid[Any]:
        """All that was added."""
        return UsageGrid(
            keys=self._layout.keys,
            since=self._layout.since,
            step_seconds=COARSE_SECONDS,
            steps=self._steps,
            mean=self._mean,
            peak=self._peak,
        )
