"""A workload outlives its pods: which earlier slice each live one took over from, and since when it behaves as now.

A new image, a new size and gputide's own plan and undo all give a workload pods of new names. What the earlier pods
did is the workload's history as much as what the new ones do, unless the new ones behave otherwise: then it counts
from the replacement on. Replicas that live side by side keep each its own past; a slice takes over from one of the
same container, role and card model that ended about when it began, and that one from the one before.

Roles are the ordinal of a StatefulSet's pod and what training and serving operators write on their pods:
`apps.kubernetes.io/pod-index` (Kubernetes), `training.kubeflow.org/replica-type` and `replica-index` (Kubeflow
Training Operator), `leaderworkerset.sigs.k8s.io/worker-index` (LeaderWorkerSet), `ray.io/node-type` (KubeRay).

Called by `analyzer.survey`, which leaves out pods of another behaviour, and by the recommender's `demand`, which puts
the rows together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from analyzer.compute_demand import DutyCurves, demand
from analyzer.presence import Tenure, Timeline
from fleet.inventory import Grant, WorkloadId
from fleet.schema import Measure
from fleet.usage import SliceGrid

ROLE_LABELS = (
    "apps.kubernetes.io/pod-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "ray.io/node-type",
    "training.kubeflow.org/replica-index",
    "training.kubeflow.org/replica-type",
)
"""Labels that distinguish one pod of a workload from the others: who differs in one of them does other work."""
OVERLAP_MAX = timedelta(hours=1)
"""How long a new pod and the one it replaces may both live: longer, and they are replicas of each other."""
ROLLING = timedelta(hours=6)
"""Replacements with less than this between them are one: a rolling update takes its time."""
COMPARED_SECONDS_MIN = 6 * 3600
"""How long new pods must have been seen before they are held against the old ones; until then these count."""
DAYS_BACK_MAX = 14
"""How many earlier days the first day of new pods is held against, at the same hours."""
DIFFERENT_FACTOR = 1.5
"""Beyond the earlier days by this factor (and the slack of the measure), new pods behave otherwise. It is the factor
by which replicas of one workload may differ and still count as alike (`recommender.demand`)."""
COMPUTE_SLACK_RATIO = 0.05
"""Demand, as a share of a card, by which quiet pods may differ."""
FRAMEBUFFER_SLACK_RATIO = 0.02
"""Framebuffer, as a share of the card, by which small pods may differ."""
_DAY_SECONDS = 86400
_SEEN_MIN = 0.5
"""Share of a span that must have been seen before its mean stands for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heir:
    """One live slice and those that it took over from.

    Attributes:
        number: the live slice, as a number of the tenures asked about.
        before: earlier slices, the latest first, with the step before which each counts: the one that came after it
            began there.
    """

    number: int
    before: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """Who took over from whom in a fleet.

    Attributes:
        heirs: live slices that took over from others, in the order of the tenures.
        changed_at: workloads whose pods were replaced by some that behave otherwise, and when; what was before says
            nothing of them, and no heir has it.
    """

    heirs: tuple[Heir, ...]
    changed_at: Mapping[WorkloadId, datetime]


def succession(lives: Sequence[Tenure], grid: SliceGrid, line: Timeline, curves: DutyCurves | None) -> Succession:
    """Links live slices with those that they replaced.

    Args:
        line: the steps that may be looked at: nothing later is.
    """
    by_workload: dict[WorkloadId, list[int]] = defaultdict(list)
    for number, life in enumerate(lives):
        by_workload[life.workload_id].append(number)
    heirs: list[Heir] = []
    changed: dict[WorkloadId, datetime] = {}
    for workload, numbers in by_workload.items():
        ended = [number for number in numbers if not lives[number].is_live and lives[number].row is not None]
        if not ended or len({lives[number].is_live for number in numbers}) == 1:
            continue
        chains = _chains(lives, [number for number in numbers if lives[number].is_live], ended)
        since = _changed_at(chains, lives, grid, line, curves)
        if since is not None:
            changed[workload] = since
        for number, before in chains:
            kept = [
                (earlier, line.first_step_after(end))
                for earlier, end in before
                if since is None or lives[earlier].begun_at >= since
            ]
            if kept:
                heirs.append(Heir(number=number, before=tuple(kept)))
    return Succession(heirs=tuple(sorted(heirs, key=lambda heir: heir.number)), changed_at=changed)


_Chain = tuple[int, list[tuple[int, datetime]]]
"""A live slice, and those before it with the moment at which each was replaced, the latest first."""


def _chains(lives: Sequence[Tenure], live: Sequence[int], ended: Sequence[int]) -> list[_Chain]:
    """Every ended slice goes to the one slice that took over from it; one that was only scaled away to none."""
    place = {number: place for numbers in _by_pod(lives, [*live, *ended]) for place, number in enumerate(numbers)}
    open_chains: dict[tuple[object, ...], list[_Chain]] = defaultdict(list)
    found: list[_Chain] = []
    for number in sorted(live, key=lambda number: (lives[number].begun_at, lives[number].latest.pod_id, place[number])):
        chain: _Chain = (number, [])
        found.append(chain)
        open_chains[_role(lives[number].latest), place[number]].append(chain)
    for number in sorted(ended, key=lambda number: (_end(lives[number]), lives[number].latest.pod_id), reverse=True):
        best = min(
            (
                chain
                for chain in open_chains.get((_role(lives[number].latest), place[number]), [])
                if _takes_over(lives[_head(chain)], lives[number])
            ),
            key=lambda chain: _distance(lives[_head(chain)], lives[number]),
            default=None,
        )
        if best is not None:
            best[1].append((number, lives[_head(best)].begun_at))
    return found


def _by_pod(lives: Sequence[Tenure], numbers: Iterable[int]) -> Iterable[list[int]]:
    """Slices that began together in one container of one pod, by card: the cards of a pod keep their order."""
    found: dict[tuple[str, str, datetime], list[int]] = defaultdict(list)
    for number in sorted(numbers, key=lambda number: lives[number].latest.card):
        life = lives[number]
        found[life.latest.pod_id, life.latest.container, life.begun_at].append(number)
    return found.values()


def _role(grant: Grant) -> tuple[object, ...]:
    ordinal = grant.pod.rpartition("-")[2] if grant.workload_kind == "StatefulSet" else None
    return (grant.container, grant.card_model, grant.mig_profile, ordinal, *(grant.label(key) for key in ROLE_LABELS))


def _head(chain: _Chain) -> int:
    return chain[1][-1][0] if chain[1] else chain[0]


def _takes_over(later: Tenure, earlier: Tenure) -> bool:
    return earlier.begun_at < later.begun_at and _end(earlier) <= later.begun_at + OVERLAP_MAX


def _distance(later: Tenure, earlier: Tenure) -> tuple[float, bool, bool]:
    """The closest in time first; among those the one on the same card, then on the same node."""
    gap = abs((later.begun_at - _end(earlier)).total_seconds())
    return gap, later.latest.card != earlier.latest.card, later.latest.node != earlier.latest.node


def _end(life: Tenure) -> datetime:
    """Of a slice that has ended: when its last grant did."""
    return max(grant.ended_at or grant.started_at for grant in life.grants)


def _changed_at(
    chains: Sequence[_Chain], lives: Sequence[Tenure], grid: SliceGrid, line: Timeline, curves: DutyCurves | None
) -> datetime | None:
    """The latest replacement after which the pods behave otherwise; None where none of them does."""
    replacements = _waves([end for _, before in chains for _, end in before])
    if not replacements:
        return None
    chained = [chain for chain in chains if chain[1]]
    numbers = [number for chain in chained for number in (chain[0], *(earlier for earlier, _ in chain[1]))]
    compute, framebuffer = _behaviour(chained, lives, grid, line, curves)
    sizes = {lives[number].latest.framebuffer_granted_bytes for number in numbers}
    card_bytes = max(lives[number].latest.framebuffer_bytes for number in numbers)
    border = line.steps
    for first, last in reversed(replacements):
        begin, stop = line.first_step_after(last), line.steps_until(first)
        span = slice(begin, min(border, begin + _DAY_SECONDS // line.step_seconds))
        differs = _differs(compute, span, stop, line, COMPUTE_SLACK_RATIO)
        # Servers and frameworks that take a share of their grant hold more of a larger one, whatever they need.
        if len(sizes) == 1:
            differs |= _differs(framebuffer, span, stop, line, FRAMEBUFFER_SLACK_RATIO * card_bytes)
        if differs:
            return first
        border = max(0, stop)
    return None


def _waves(moments: Sequence[datetime]) -> list[tuple[datetime, datetime]]:
    """First and last replacement of every rolling update, in the order of time."""
    waves: list[tuple[datetime, datetime]] = []
    for moment in sorted(moments):
        if waves and moment - waves[-1][1] < ROLLING:
            waves[-1] = (waves[-1][0], moment)
        else:
            waves.append((moment, moment))
    return waves


def _behaviour(
    chained: Sequence[_Chain], lives: Sequence[Tenure], grid: SliceGrid, line: Timeline, curves: DutyCurves | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean demand of a slice and framebuffer that one held, over all that were replaced, (steps,), NaN not seen."""
    total, held, count, counted = (np.zeros(line.steps) for _ in range(4))
    used = grid.mean.get(Measure.FRAMEBUFFER_USED)
    for live, before in chained:
        stop = line.steps
        for number, end in [(live, None), *before]:
            row = lives[number].row
            if end is not None:
                stop = min(stop, line.first_step_after(end))
            if row is None:
                continue
            span = slice(min(stop, line.first_step_after(lives[number].begun_at)), stop)
            values = demand(grid, np.array([row], np.int64), line.steps, curves)[0][0, span]
            total[span] += np.nan_to_num(values)
            count[span] += ~np.isnan(values)
            if used is not None:
                values = used[row, : line.steps][span]
                held[span] += np.nan_to_num(values)
                counted[span] += ~np.isnan(values)
    return _mean(total, count), _mean(held, counted)


def _mean(total: NDArray[np.float64], count: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.where(count > 0, total / np.maximum(1, count), np.nan)
    return found


def _differs(values: NDArray[np.float64], span: slice, stop: int, line: Timeline, slack: float) -> bool:
    """Whether a span lies beyond the same hours of all days that ended by step `stop`."""
    per_day = _DAY_SECONDS // line.step_seconds
    after = values[span]
    if not _is_seen(after) or len(after) * line.step_seconds < COMPARED_SECONDS_MIN:
        return False
    days = [
        values[span.start - per_day * back : span.stop - per_day * back]
        for back in range(1, DAYS_BACK_MAX + 2)
        if span.start >= per_day * back and span.stop - per_day * back <= stop
    ][:DAYS_BACK_MAX]
    means = [float(np.nanmean(day)) for day in days if _is_seen(day)]
    if not means:
        return False
    now = float(np.nanmean(after))
    return now > max(means) * DIFFERENT_FACTOR + slack or now < min(means) / DIFFERENT_FACTOR - slack


def _is_seen(values: NDArray[np.float64]) -> bool:
    return len(values) > 0 and float(np.mean(~np.isnan(values))) >= _SEEN_MIN
