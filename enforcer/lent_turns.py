"""How often framebuffer came back to pods that lend it to each other, by who worked when.

Nothing that is kept shows pages that move. But CUDA's driver sends out what came to the card longest ago, so where a
pod works again and holds more, together with all that worked since it last did, than the card has, a part of its
framebuffer had left and came back (stack distance: R. L. Mattson et al., Evaluation Techniques for Storage Hierarchies,
IBM Systems Journal 9, 1970). A pod that starts loads all that it needs, which is no switch, and may push others out; of
pods that start in one step the last one stays, which nobody knows, so one switch a card may be too many. Turns within
one step are not seen. Pods that work in the same steps and don't fit together change places in each. Shares nothing
with `fleet.lending`, by which plans predict. Called by `verify`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from enforcer.judged_rows import JudgedRows
from fleet.decisions import Plan
from fleet.inventory import WorkloadId
from fleet.outcomes import LentCardOutcome
from fleet.schema import Measure
from fleet.units import MIB
from fleet.usage import SliceGrid


def turns(
    works: NDArray[np.bool_], starts: NDArray[np.bool_], held_bytes: NDArray[np.float64], capacity_bytes: float
) -> int:
    """Times that framebuffer came back.

    Args:
        works: (pods, steps).
        starts: steps in which a pod starts or is granted anew, (pods, steps).
        held_bytes: what each pod holds while it works, (pods,).
        capacity_bytes: framebuffer of the card.
    """
    found = 0
    works = works | starts
    since: dict[int, set[int]] = {}
    """Who worked since each pod did."""
    for step in np.flatnonzero(works.any(axis=0)).tolist():
        now = np.flatnonzero(works[:, step]).tolist()
        for pod in now:
            others = since.get(pod, set())
            found += bool(others and not starts[pod, step] and held_bytes[[pod, *others]].sum() > capacity_bytes)
        since |= {pod: set() for pod in now}
        for pod, others in since.items():
            others.update(other for other in now if other != pod)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Lender:
    """What a plan says of a workload that it lets lend framebuffer.

    Attributes:
        switches_per_day: how often its framebuffer comes back, predicted.
        scaling: its grants / the part of them that stays on the card.
    """

    switches_per_day: float
    scaling: float


def lenders_of(plan: Plan, chosen: Collection[str]) -> dict[WorkloadId, Lender]:
    """Workloads that a plan lets lend framebuffer.

    Args:
        chosen: recommendations of the plan that are in place.
    """
    said = [
        (workload, dict(clause.values))
        for entry in plan.recommendations
        if entry.id in chosen
        for clause in entry.why
        if clause.code == "lend"
        for workload in entry.workloads
    ]
    return {
        workload: Lender(
            switches_per_day=cast("float", values["switches_per_day"]), scaling=cast("float", values["scaling"])
        )
        for workload, values in said
    }


def unlent(lenders: Mapping[WorkloadId, Lender], lent: Iterable[LentCardOutcome]) -> Iterator[LentCardOutcome]:
    """Lenders on no card whose grants exceed it, by name."""
    found = {workload for one in lent for workload in one.workloads}
    for name in sorted(lenders.keys() - found):
        yield LentCardOutcome(
            card=None,
            workloads=(name,),
            predicted_switches_per_day=lenders[name].switches_per_day,
            switches_per_day=None,
            days=0.0,
        )


def lent_cards(lenders: Mapping[WorkloadId, Lender], grid: SliceGrid, rows: JudgedRows) -> Iterator[LentCardOutcome]:
    """What became of lending: each card whose grants exceed it with a workload that a plan lets lend.

    Args:
        rows: of the same history as the grid.
    """
    for card in sorted({int(rows.card[n]) for n, name in enumerate(rows.workload) if name in lenders}):
        own = np.flatnonzero(rows.card == card)
        granted, size = rows.granted_bytes[own], float(rows.card_bytes[own[0]])
        is_lent = (rows.lives[own] * granted[:, None]).sum(axis=0) > size + MIB
        names = sorted({rows.workload[n] for n in own.tolist() if rows.workload[n] in lenders})
        if not is_lent.any():
            continue
        works, is_seen = _works(grid, rows, own)
        seen = is_lent & is_seen
        days = int(seen.sum()) * grid.step_seconds / 86400
        kept = granted / np.array([_scaling(lenders, rows.workload[n]) for n in own.tolist()])
        held = _held_bytes(grid, rows, own, kept)
        together, starts, held_of_pod = _of_pods(rows.pod[own], works[:, seen], rows.lives[own][:, seen], held)
        yield LentCardOutcome(
            card=grid.keys[int(rows.row[own[0]])].card,
            workloads=tuple(names),
            predicted_switches_per_day=max(lenders[name].switches_per_day for name in names),
            switches_per_day=turns(together, starts, held_of_pod, size) / days if days >= 1.0 else None,
            days=round(days, 2),
        )


def _scaling(lenders: Mapping[WorkloadId, Lender], name: WorkloadId) -> float:
    return lenders[name].scaling if name in lenders else 1.0


def _of_pods(
    pod: NDArray[np.int64], works: NDArray[np.bool_], lives: NDArray[np.bool_], held: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64]]:
    """Steps in which each pod works and in which a grant of it begins, (pods, steps), and the most that it held."""
    begins = lives & ~np.pad(lives, ((0, 0), (1, 0)))[:, :-1]
    rows = [pod == one for one in np.unique(pod)]
    return (
        np.array([works[own].any(axis=0) for own in rows]),
        np.array([begins[own].any(axis=0) for own in rows]),
        np.array([(lives[own] * held[own][:, None]).sum(axis=0).max(initial=0.0) for own in rows]),
    )


def _works(grid: SliceGrid, rows: JudgedRows, own: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows of one card did anything in each step, (rows, steps), and steps in which that is known of all."""
    lives = rows.lives[own]
    for measure in (Measure.SM_ACTIVE, Measure.DUTY_CYCLE):
        values = grid.peak.get(measure, grid.mean.get(measure))
        if values is None:
            continue
        shown = np.where(lives, values[rows.row[own]], np.nan)
        is_seen: NDArray[np.bool_] = np.asarray((~np.isnan(shown) | ~lives).all(axis=0), bool)
        # Where all show the same, it is the card's figure and nobody's own.
        most, least = (np.nan_to_num(shown, nan=fill) for fill in (-1.0, 9.0))
        differs = most.max(axis=0) > least.min(axis=0)
        if (is_seen & differs).any():
            return np.nan_to_num(shown) > 0, is_seen
    return np.zeros(lives.shape, bool), np.zeros(lives.shape[1], bool)


def _held_bytes(
    grid: SliceGrid, rows: JudgedRows, own: NDArray[np.int64], kept: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The most that rows of one card held, (rows,): their grants where no more is shown than the part that stays."""
    values = grid.peak.get(Measure.FRAMEBUFFER_USED, grid.mean.get(Measure.FRAMEBUFFER_USED))
    granted = rows.granted_bytes[own]
    if values is None:
        return granted
    used = np.where(rows.lives[own], np.nan_to_num(values[rows.row[own]]), 0.0).max(axis=1)
    # Monitors of some backends count that part alone.
    return np.where(used > kept + MIB, np.minimum(used, granted), granted)
