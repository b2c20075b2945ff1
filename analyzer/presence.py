"""When a slice lived, when it was seen, and what its silence means.

A row that is missing was not collected; it is never a zero. Coverage is counted at the source's own step over the
lifetime of each grant, so that a slow source is not mistaken for a broken one and a young pod not for a silent one.
A grant without a single row is the hardest case: a container that never touched CUDA is not exported by sources that
hook CUDA (HAMi#281), and neither is one whose labels were lost (dcgm-exporter#307). `silent_activity` decides it.

Called by `analyzer.profile` first, and by `analyzer.cards`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fleet.inventory import CardId, Grant, Inventory, WorkloadId
from fleet.usage import CardGrid, Float32, SliceGrid

Bools = NDArray[np.bool_]
"""Array of truth values."""

_SPARE_STEPS = 2
"""A life counts as a full day when at most this many steps are missing: pods start and clocks stop inside a step."""


class SilenceBasis(StrEnum):
    """Why a slice without a row is believed to be quiet."""

    CARD = "card"
    """Its card reports itself, and what its other tenants use explains all of it."""
    NODE = "node"
    """No source measures cards, but the node's exporter reported other slices meanwhile and nobody shares the card."""
    NOTHING = "nothing"
    """Nothing would have shown it: what it does is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The steps of a history that lie before the moment of the analysis.

    Attributes:
        since: start of the first step, UTC.
        steps: number of steps that ended by `now`.
    """

    since: datetime
    step_seconds: int
    steps: int
    now: datetime

    @property
    def until(self) -> datetime:
        """End of the last step."""
        return self.end_of(self.steps - 1)

    @property
    def missing_steps(self) -> int:
        """Whole steps that passed between the end of the history and now: nothing was seen in them."""
        return max(0, int((self.now - self.until).total_seconds() // self.step_seconds))

    @property
    def slack_seconds(self) -> int:
        """How much a span may fall short of a limit and still count, because steps are whole."""
        return _SPARE_STEPS * self.step_seconds

    def end_of(self, step: int) -> datetime:
        """End of a step, UTC; -1 gives the start of the history."""
        return self.since + timedelta(seconds=self.step_seconds * (step + 1))

    def ends_ms(self) -> NDArray[np.int64]:
        """End of every step, epoch milliseconds, shape (steps,)."""
        start = round(self.since.timestamp() * 1000)
        return start + (np.arange(self.steps, dtype=np.int64) + 1) * self.step_seconds * 1000

    def first_step_after(self, moment: datetime) -> int:
        """Number of the first step that begins at or after `moment`, within 0 and `steps`."""
        ahead = (moment - self.since).total_seconds() / self.step_seconds
        return min(self.steps, max(0, math.ceil(ahead - 1e-9)))

    def steps_until(self, moment: datetime) -> int:
        """Number of steps that ended by `moment`, within 0 and `steps`."""
        ahead = (moment - self.since).total_seconds() / self.step_seconds
        return min(self.steps, max(0, math.floor(ahead + 1e-9)))


def timeline(grid: SliceGrid, now: datetime) -> Timeline:
    """The part of a grid that lies before `now`."""
    passed = math.floor((now - grid.since).total_seconds() / grid.step_seconds + 1e-9)
    return Timeline(since=grid.since, step_seconds=grid.step_seconds, steps=min(grid.steps, max(0, passed)), now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """The life of one slice: one container of one pod on one card.

    Attributes:
        grants: its grants, by start, one that lives last; a grant that changed has several periods.
        row: row of the usage grid; None where no sample was ever seen.
        is_live: True when the last grant lasts at the inventory's moment.
    """

    grants: tuple[Grant, ...]
    row: int | None
    is_live: bool

    @property
    def latest(self) -> Grant:
        """The grant that holds now, or held last."""
        return self.grants[-1]

    @property
    def workload_id(self) -> WorkloadId:
        """Owner."""
        return self.latest.workload_id

    @property
    def begun_at(self) -> datetime:
        """Start of its first grant, UTC."""
        return min(grant.started_at for grant in self.grants)


def tenures(inventory: Inventory, grid: SliceGrid, now: datetime) -> tuple[Tenure, ...]:
    """Joins grants and rows; returns one per slice, in the order of the inventory's grants.

    A row is found by namespace, pod, container and card; where the two sources name the container differently, by
    the other three if that is unambiguous. Rows that no grant explains are left out: telemetry is no inventory.

    Args:
        now: grants that begin later are not known yet.
    """
    by_slice: dict[tuple[str, str, str, str], list[Grant]] = defaultdict(list)
    for grant in inventory.grants:
        if grant.started_at <= now:
            by_slice[grant.namespace, grant.pod, grant.container, grant.card].append(grant)
    rows = {(key.namespace, key.pod, key.container, str(key.card)): row for row, key in enumerate(grid.keys)}
    loose: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for identity, row in rows.items():
        if identity not in by_slice:
            loose[identity[0], identity[1], identity[3]].append(row)
    found = []
    for identity, grants in by_slice.items():
        row_or_none = rows.get(identity)
        if row_or_none is None:
            others = loose.get((identity[0], identity[1], identity[3]), [])
            row_or_none = others.pop() if len(others) == 1 else None
        # What a plan gave and took back lies between: the grant that lives is the one that holds, whatever began last.
        ordered = tuple(sorted(grants, key=lambda grant: (grant.lives_at(inventory.as_of), grant.started_at)))
        live = any(grant.lives_at(inventory.as_of) for grant in ordered)
        found.append(Tenure(grants=ordered, row=row_or_none, is_live=live))
    return tuple(found)


def alive(lives: Sequence[Tenure], line: Timeline) -> Bools:
    """Steps through which each slice lived, shape (slices, steps); a step that it lived in part is left out."""
    mask = np.zeros((len(lives), line.steps), bool)
    for number, life in enumerate(lives):
        for grant in life.grants:
            stop = line.steps if grant.ended_at is None else line.steps_until(grant.ended_at)
            mask[number, line.first_step_after(grant.started_at) : stop] = True
    return mask


def coverage(seen: Bools, lived: Bools, stride: NDArray[np.int64]) -> float:
    """Windows with a row / windows in which the slices lived, 0-1; 0 where none lived a whole step.

    Args:
        seen: (rows, steps).
        lived: (rows, steps).
        stride: own step of each row's source, (rows,).
    """
    windows = (lived.sum(axis=1) / stride).sum()
    if windows <= 0:
        return 0.0
    with_row = np.minimum((seen & lived).sum(axis=1), np.ceil(lived.sum(axis=1) / stride)).sum()
    return float(min(1.0, with_row / windows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What cards and nodes reported while a slice reported nothing; masks and levels are (steps,).

    Attributes:
        crowd: live slices per card and step.
        left_over: per card, its activity less that of its tenants, 0-1, NaN where the card was not seen; None where no
            source measures cards.
        node_alive: per node, steps in which it reported anything.
    """

    crowd: Mapping[CardId, NDArray[np.int16]]
    left_over: Mapping[CardId, Float32] | None
    node_alive: Mapping[str, Bools]


def silent_activity(
    silent: Sequence[Tenure], line: Timeline, around: Surroundings, *, idle_ratio_max: float
) -> tuple[Float32, tuple[SilenceBasis, ...]]:
    """What slices without any row were doing, as far as something else would have shown it.

    - Their card reports itself: what its other tenants do not explain is theirs. Nothing left over is a zero; more is
      this slice's when it is alone on the card, and nobody's (unknown) when several could have done it.
    - No source measures cards, and the slice is alone on its card: the node's exporter is alive where it reported
      another slice in the same step, and a container that it does not name never touched CUDA: a zero.
    - Otherwise nothing would have shown it: not known.

    Args:
        around: what cards and nodes reported meanwhile.

    Returns:
        Activity 0-1, (slices, steps), NaN where not known, and what each stands on.
    """
    activity = np.full((len(silent), line.steps), np.nan, np.float32)
    bases = []
    for number, life in enumerate(silent):
        card = life.latest.card
        alone = around.crowd[card] <= 1
        basis = SilenceBasis.NOTHING
        if around.left_over is not None:
            rest = around.left_over.get(card)
            if rest is not None and not np.isnan(rest).all():
                basis = SilenceBasis.CARD
                activity[number] = np.where(rest <= idle_ratio_max, 0.0, np.where(alone, rest, np.nan))
        elif life.latest.node in around.node_alive:
            basis = SilenceBasis.NODE
            activity[number] = np.where(around.node_alive[life.latest.node] & alone, 0.0, np.nan)
        bases.append(basis)
    return activity, tuple(bases)


def crowds(lives: Sequence[Tenure], lived: Bools) -> dict[CardId, NDArray[np.int16]]:
    """How many slices lived on each card in each step, (steps,)."""
    counts: dict[CardId, NDArray[np.int16]] = {}
    for number, life in enumerate(lives):
        card = life.latest.card
        if card not in counts:
            counts[card] = np.zeros(lived.shape[1], np.int16)
        counts[card] += lived[number]
    return counts


def card_rows(cards: CardGrid | None) -> dict[CardId, int]:
    """Row of each card in the card grid."""
    return {} if cards is None else {key.card: row for row, key in enumerate(cards.keys)}
