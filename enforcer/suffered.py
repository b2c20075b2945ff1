"""Harm as a real cluster shows it, read off what was measured: of a whole fleet, or part by part.

Measured use ends at what a card and a grant can give: summed SM activity of high and normal priority that fills a
shared card though no pod fills it alone, framebuffer that fills a slice. It is the rule of `fleet.sharing`, read off
what was served where that one is read off what was asked for. Who has a whole card to itself is never harmed by
sharing. A window is judged where compute of the pod and of all that share its card is known: counters that fail a check
of the analyzer count as not collected.

A part holds whole workloads with all that share their cards (`analyzer.parts`), so what each workload suffered is known
from one part. Only which counter speaks, SM activity or the duty cycle, depends on the whole: a part without the first
is judged by both, and `joined` takes the one that the fleet has. Called by `verify` and for harm budgets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from enforcer.judged_rows import JudgedRows, judged_rows
from enforcer.lent_turns import Lender, lent_cards
from enforcer.safety.harm_budget import Harm
from fleet.inventory import WorkloadId
from fleet.outcomes import LentCardOutcome
from fleet.schema import Measure
from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX, sum_by_card
from fleet.units import MIB
from fleet.usage import Float32, History, SliceGrid

FULL_CARD_RATIO = 0.995
"""Summed SM activity from which a shared card is taken for contended: measured use ends at the card, and noise is half
a percent."""

FILLING_RATIO = 1.0 / CONTENTION_RATIO_MAX
"""SM activity from which a pod fills a card alone and its neighbours ask for no more than noise: pods share a card in
proportion to demand and nobody asks for more than one card, so a pod that waits for others is served less."""

FULL_CACHE_RATIO = 0.999
"""Usage of a pre-allocated KV cache from which a server is taken to want more framebuffer."""

_CELLS_AT_ONCE = 1_000_000
_CAUSES = ("contention", "short", "full")

_HARM = frozenset({Measure.SM_ACTIVE, Measure.DUTY_CYCLE, Measure.FRAMEBUFFER_USED, Measure.KV_CACHE_USAGE})
"""Measures of slices that say what was harmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of some rows, summed over them.

    Attributes:
        judged: that can be judged.
        active: in which a row is active, as far as its compute is known.
        violated: those of them that surely are violated, whatever is not known of those that share the card.
        active_judged: active ones that can be judged.
        violated_judged: those of them that are violated.
    """

    judged: int = 0
    active: int = 0
    violated: int = 0
    active_judged: int = 0
    violated_judged: int = 0

    def __add__(self, other: Steps) -> Steps:
        """Those of both."""
        return Steps(
            judged=self.judged + other.judged,
            active=self.active + other.active,
            violated=self.violated + other.violated,
            active_judged=self.active_judged + other.active_judged,
            violated_judged=self.violated_judged + other.violated_judged,
        )

    @property
    def harm(self) -> Harm:
        """Harm in the steps that are judged, and no less than what is sure in all steps that are known."""
        found = Harm(active_steps=self.active_judged, violated_steps=self.violated_judged)
        sure = Harm(active_steps=self.active, violated_steps=self.violated)
        return sure if (sure.ratio or 0.0) > (found.ratio or 0.0) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffered:
    """What one workload suffered.

    Attributes:
        steps: of all its rows.
        steps_not_low: of its rows of high and normal priority.
        cause: most frequent cause of violated steps (`contention`, `short`, `full`); None without any.
        is_low: all its rows have low priority.
        pods: how many it had.
        unjudged_pods: names, sorted, of those of which over half of the steps that they lived through can't be judged.
    """

    steps: Steps = Steps()
    steps_not_low: Steps = Steps()
    cause: str | None = None
    is_low: bool = False
    pods: int = 0
    unjudged_pods: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Violated share of its active steps, 0-1; 0 where it was only idle, None where no step can be judged."""
        ratio = self.steps.harm.ratio
        return 0.0 if ratio is None and self.steps.judged else ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHarm:
    """What the workloads of one part of a fleet suffered; small, however long the history is.

    Attributes:
        has_sm: SM activity of any of its rows is known.
        by_sm: what each workload suffered, judged by SM activity.
        by_duty: the same by the duty cycle; not asked for where `has_sm`.
        lived_steps: steps that its rows lived through, summed.
        measured_steps: those of them whose framebuffer is known.
        lent: what became of lending on its cards.
    """

    has_sm: bool
    by_sm: Mapping[WorkloadId, Suffered]
    by_duty: Mapping[WorkloadId, Suffered]
    lived_steps: int
    measured_steps: int
    lent: tuple[LentCardOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmQuestion:
    """What is asked of every part of a fleet; goes to any process.

    Attributes:
        equals: workloads whose low priority nothing holds, so that they count as equals.
        lenders: workloads that a plan lets lend framebuffer.
    """

    equals: frozenset[WorkloadId] = frozenset()
    lenders: Mapping[WorkloadId, Lender] = field(default_factory=dict)

    def __call__(self, history: History) -> PartHarm:
        """Asks it of one part, as far as that is believed."""
        rows = judged_rows(history, self.equals)
        mean = {measure: values for measure, values in history.slices.mean.items() if measure in _HARM}
        pieces = _pieces(replace(history.slices, mean=mean, peak={}), rows)
        has_sm = any(not np.isnan(_measured(*piece, Measure.SM_ACTIVE)).all() for piece in pieces)
        by_sm, by_duty = (
            _suffered(history.slices, rows, pieces, compute) if is_asked else {}
            for compute, is_asked in ((Measure.SM_ACTIVE, True), (Measure.DUTY_CYCLE, not has_sm))
        )
        used = mean.get(Measure.FRAMEBUFFER_USED)
        return PartHarm(
            has_sm=has_sm,
            by_sm=by_sm,
            by_duty=by_duty,
            lived_steps=int(rows.lives.sum()),
            measured_steps=0 if used is None else int((~np.isnan(used[rows.row]) & rows.lives).sum()),
            lent=tuple(lent_cards(self.lenders, history.slices, rows)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHarm:
    """What a fleet suffered.

    Attributes:
        suffered: what each workload did.
        coverage_ratio: share of the steps that rows lived through whose framebuffer is known, 0-1; 0 without any.
        lent: what became of lending, by card.
    """

    suffered: Mapping[WorkloadId, Suffered]
    coverage_ratio: float
    lent: tuple[LentCardOutcome, ...]

    def violation_ratio_without(self, workloads: Collection[WorkloadId]) -> float | None:
        """Violated share of the active steps of all others of high and normal priority; None without any."""
        others = (found.steps_not_low for name, found in self.suffered.items() if name not in workloads)
        steps = sum(others, Steps())
        return (steps.harm.ratio or 0.0) if steps.judged else None


def joined(parts: Iterable[PartHarm]) -> FleetHarm:
    """What all parts of a fleet suffered, the same however it was cut."""
    found = list(parts)
    has_sm = any(part.has_sm for part in found)
    lived = sum(part.lived_steps for part in found)
    measured = sum(part.measured_steps for part in found)
    return FleetHarm(
        suffered={name: one for part in found for name, one in (part.by_sm if has_sm else part.by_duty).items()},
        coverage_ratio=measured / lived if lived else 0.0,
        lent=tuple(sorted((one for part in found for one in part.lent), key=lambda one: one.card or "")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """What became of every row in every step; all (rows, steps).

    Attributes:
        violated: surely so, whatever is not known of those that share the card.
        cause: of each violation, its place in `_CAUSES`.
        judged: compute of the row and of all that share its card is known.
    """

    active: NDArray[np.bool_]
    violated: NDArray[np.bool_]
    cause: NDArray[np.int8]
    judged: NDArray[np.bool_]


_Piece = tuple[SliceGrid, JudgedRows]


def _pieces(grid: SliceGrid, rows: JudgedRows) -> list[_Piece]:
    """Some steps at a time, for each is judged by itself."""
    at_once = max(1, _CELLS_AT_ONCE // max(1, len(rows.row)))
    return [
        (grid.between(first, stop), replace(rows, lives=rows.lives[:, first:stop]))
        for first in range(0, max(1, grid.steps), at_once)
        for stop in [min(grid.steps, first + at_once)]
    ]


def _suffered(
    grid: SliceGrid, rows: JudgedRows, pieces: Iterable[_Piece], compute: Measure
) -> dict[WorkloadId, Suffered]:
    """What every workload suffered, by one counter of compute."""
    windows = _joined_windows([_judged(*piece, compute) for piece in pieces])
    return {workload: _of_workload(grid, rows, windows, own) for workload, own in _rows_of(rows).items()}


def _joined_windows(found: list[_Windows]) -> _Windows:
    return _Windows(
        active=np.concatenate([one.active for one in found], axis=1),
        violated=np.concatenate([one.violated for one in found], axis=1),
        cause=np.concatenate([one.cause for one in found], axis=1),
        judged=np.concatenate([one.judged for one in found], axis=1),
    )


def _judged(grid: SliceGrid, rows: JudgedRows, compute: Measure) -> _Windows:
    shape = (len(rows.row), grid.steps)
    use = _measured(grid, rows, compute)
    used = _measured(grid, rows, Measure.FRAMEBUFFER_USED)
    cache = _measured(grid, rows, Measure.KV_CACHE_USAGE)
    active = np.nan_to_num(use) > ACTIVE_RATIO_MIN
    cards = int(rows.card.max()) + 1 if len(rows.card) else 0
    is_shared = _sharers(rows, cards)[rows.card] > 1 if cards else np.zeros(shape, bool)
    asking = np.where(rows.is_low[:, None], 0, np.nan_to_num(use)).astype(np.float32)
    largest = np.zeros((cards, grid.steps), np.float32)
    np.maximum.at(largest, rows.card, asking)
    is_contended = (sum_by_card(asking, rows.card, cards) >= FULL_CARD_RATIO) & (largest < FILLING_RATIO)
    contention = is_shared & ~rows.is_low[:, None] & is_contended[rows.card]
    # A server that takes its share ahead fills it always; only its cache shows whether that is enough.
    fills = np.nan_to_num(used) >= rows.granted_bytes[:, None] - MIB
    wants = np.where(rows.preallocates[:, None], np.nan_to_num(cache) >= FULL_CACHE_RATIO, fills)
    short = wants & (rows.granted_bytes < rows.card_bytes - MIB)[:, None]
    # Grants that fit their card are short before the card is full.
    sizes = np.zeros(cards)
    sizes[rows.card] = rows.card_bytes
    granted = (rows.lives * rows.granted_bytes[:, None]).astype(np.float32)
    promised = sum_by_card(granted, rows.card, cards) > sizes[:, None] + MIB
    is_full = promised & (sum_by_card(used, rows.card, cards) >= sizes[:, None] - MIB)
    full = is_shared & is_full[rows.card]
    is_unknown = rows.lives & np.isnan(use)
    # Low priority gives way, so that others are judged without it.
    unknown = (is_unknown & ~rows.is_low[:, None]).astype(np.float32)
    return _Windows(
        active=active,
        violated=active & (contention | short | full),
        cause=np.where(contention, 0, np.where(short, 1, 2)).astype(np.int8),
        judged=rows.lives & ~is_unknown & ~(is_shared & (sum_by_card(unknown, rows.card, cards) > 0)[rows.card]),
    )


def _of_workload(grid: SliceGrid, rows: JudgedRows, windows: _Windows, own: NDArray[np.int64]) -> Suffered:
    of_pod = {grid.keys[rows.row[number]].pod: own[rows.pod[own] == rows.pod[number]] for number in own.tolist()}
    counted = Counter(windows.cause[own][windows.violated[own]].tolist())
    return Suffered(
        steps=_steps(windows, own),
        steps_not_low=_steps(windows, own[~rows.is_low[own]]),
        cause=_CAUSES[counted.most_common(1)[0][0]] if counted else None,
        is_low=bool(rows.is_low[own].all()),
        pods=len(of_pod),
        unjudged_pods=tuple(sorted(pod for pod, held in of_pod.items() if _is_unjudged(rows, windows, held))),
    )


def _steps(windows: _Windows, own: NDArray[np.int64]) -> Steps:
    judged, active, violated = windows.judged[own], windows.active[own], windows.violated[own]
    return Steps(
        judged=int(judged.sum()),
        active=int(active.sum()),
        violated=int(violated.sum()),
        active_judged=int((active & judged).sum()),
        violated_judged=int((violated & judged).sum()),
    )


def _is_unjudged(rows: JudgedRows, windows: _Windows, own: NDArray[np.int64]) -> bool:
    """Whether over half of the windows that rows of a pod lived through can't be judged."""
    return 2 * int(windows.judged[own].sum()) < int(rows.lives[own].sum())


def _rows_of(rows: JudgedRows) -> dict[WorkloadId, NDArray[np.int64]]:
    found: dict[WorkloadId, list[int]] = {}
    for number, workload in enumerate(rows.workload):
        found.setdefault(workload, []).append(number)
    return {workload: np.array(own, np.int64) for workload, own in found.items()}


def _sharers(rows: JudgedRows, cards: int) -> Float32:
    """Pods that live on each card in each step, (cards, steps); containers of one pod count once."""
    pairs, pair_of = np.unique(np.stack([rows.card, rows.pod]), axis=1, return_inverse=True)
    lives = sum_by_card(rows.lives.astype(np.float32), pair_of.reshape(-1), pairs.shape[1]) > 0
    return sum_by_card(lives.astype(np.float32), pairs[0], cards)


def _measured(grid: SliceGrid, rows: JudgedRows, measure: Measure) -> Float32:
    values = grid.mean.get(measure)
    if values is None:
        return np.full((len(rows.row), grid.steps), np.nan, np.float32)
    return np.where(rows.lives, values[rows.row], np.nan).astype(np.float32)
