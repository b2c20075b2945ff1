"""Gathers what recommendations are written from: evidence, money and rows per workload. Called by `planner`."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from fleet.decisions import Evidence
from fleet.inventory import WorkloadId
from fleet.profiles import Profile, Profiles
from fleet.schema import Measure
from fleet.usage import History
from recommender.cost import saving_of
from recommender.demand import Demand
from recommender.permits import Permits
from recommender.placement import Arrangement, cards_of, rows_by_workload
from recommender.prices import PriceBook
from recommender.proposals import Scene


def scene_of(
    demand: Demand,
    history: History,
    profiles: Profiles,
    permits: Permits,
    arrangement: Arrangement,
    book: PriceBook,
) -> Scene:
    """Everything `proposals.propose` wants."""
    rows_of = rows_by_workload(demand)
    profile_of = {profile.workload: profile for profile in profiles.workloads}
    changed = sorted({*arrangement.cuts, *permits.reclaimed})
    cards = cards_of(demand, history.inventory)
    return Scene(
        grants=demand.grants,
        rows_of=rows_of,
        profiles=profile_of,
        evidence={
            name: _evidence(name, rows_of[name], demand, history, profile_of.get(name), arrangement) for name in changed
        },
        savings={card: saving_of((cards[card],), book) for card in arrangement.freed},
        cuts=arrangement.cuts,
        moves=arrangement.moves,
        reclaimed=permits.reclaimed,
        freed=arrangement.freed,
    )


def _evidence(
    name: WorkloadId,
    rows: list[int],
    demand: Demand,
    history: History,
    profile: Profile | None,
    arrangement: Arrangement,
) -> Evidence:
    compute = demand.compute[rows]
    seen = np.isfinite(compute)
    first = int(seen.any(axis=0).argmax()) if seen.any() else 0
    since = history.slices.since + timedelta(seconds=first * demand.step_seconds)
    values = compute[seen].astype(float)
    numbers: list[tuple[str, float]] = [("pods", float(len(rows)))]
    if len(values):
        quantiles = np.quantile(values, (0.5, 0.95, 0.99, 1.0))
        stem = demand.counter.value.removesuffix("_ratio")
        numbers += [
            (f"{stem}_{label}_ratio", round(float(value), 6))
            for label, value in zip(("p50", "p95", "p99", "max"), quantiles, strict=True)
        ]
    need = demand.need_bytes[rows]
    if np.isfinite(need).any():
        numbers.append(("framebuffer_need_max_bytes", float(np.nanmax(need))))
    cut = arrangement.cuts.get(name)
    if cut is not None:
        numbers.append(("framebuffer_granted_bytes", float(cut.framebuffer_bytes)))
        numbers.append(("compute_granted_ratio", cut.compute_ratio))
    coverage = profile.coverage_ratio if profile is not None else float(seen.mean()) if seen.size else 0.0
    return Evidence(
        since=since,
        until=history.slices.until,
        samples=int(seen.sum()),
        coverage_ratio=coverage,
        counters=(demand.counter.value, Measure.FRAMEBUFFER_USED.value),
        numbers=tuple(numbers),
    )
