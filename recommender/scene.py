"""Gathers what recommendations are written from: evidence, money and rows per workload. Called by `planner`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np

from fleet.decisions import Evidence, Saving
from fleet.inventory import Card, CardId
from fleet.money.book import Prices
from fleet.money.saving import saving_of
from fleet.profiles import Profile, Profiles
from fleet.schema import Measure
from fleet.usage import History
from recommender.demand import Demand
from recommender.mig.advice import InstanceAdvice
from recommender.permits import Permits
from recommender.placement import Arrangement, cards_of, rows_by_workload
from recommender.proposal_scene import Cut, Scene
from recommender.rehome import Rehoming


def scene_of(
    demand: Demand,
    history: History,
    profiles: Profiles,
    permits: Permits,
    arrangement: Arrangement,
    prices: Prices,
    *,
    admits_pods: bool = True,
) -> Scene:
    """Everything `proposals.propose` wants; `admits_pods` as in the backend's record."""
    rows_of = rows_by_workload(demand)
    profile_of = {profile.workload: profile for profile in profiles.workloads}
    fewer = {demand.grants[row].workload_id for row in arrangement.dropped}
    instances = {item.workload: item.advice for item in arrangement.carved if item.stage}
    rehomed = {item.workload for item in arrangement.rehomed}
    displaced = {demand.grants[row].workload_id for row in arrangement.displaced}
    changed = sorted({*arrangement.cuts, *permits.reclaimed, *fewer, *instances, *rehomed, *displaced})
    cards = cards_of(demand, history.inventory)
    return Scene(
        grants=demand.grants,
        rows_of=rows_of,
        profiles=profile_of,
        evidence={
            name: evidence_of(
                rows_of[name],
                demand,
                history,
                profile_of.get(name),
                arrangement.cuts.get(name),
                inflation=_inflation(rows_of[name], arrangement),
                instance=instances.get(name),
            )
            for name in changed
        },
        savings={card: saving_of((cards[card],), prices) for card in arrangement.freed},
        carved=arrangement.carved,
        rehomed=arrangement.rehomed,
        rehoming_savings={
            item.workload: _rehoming_saving(item, demand, cards, arrangement, prices) for item in arrangement.rehomed
        },
        cards_before=arrangement.cards_before,
        cuts=arrangement.cuts,
        moves=arrangement.moves,
        reclaimed=permits.reclaimed,
        dropped=arrangement.dropped,
        freed=arrangement.freed,
        admits_pods=admits_pods,
        together=arrangement.together,
        displaced=arrangement.displaced,
        replaced=_replaced(arrangement, cards),
    )


def _replaced(arrangement: Arrangement, cards: Mapping[CardId, Card]) -> frozenset[CardId]:
    """As many freed cards of each model as there are new ones on shared nodes, and with whoever made room for them."""
    nodes = {seat.node for seat in arrangement.seats if len(seat.rows) > 1} if arrangement.together else set()
    new = {seat.card for seat in arrangement.seats if seat.node in nodes} | set(arrangement.displaced.values())
    left = Counter(cards[card].card_model for card in new & arrangement.taken)
    sources = {move.source for move in arrangement.moves}
    found: set[CardId] = set()
    for card in sorted(arrangement.freed & sources):
        if left[cards[card].card_model]:
            left[cards[card].card_model] -= 1
            found.add(card)
    return frozenset(found)


def evidence_of(
    rows: Sequence[int],
    demand: Demand,
    history: History,
    profile: Profile | None,
    cut: Cut | None,
    *,
    inflation: float | None = None,
    instance: InstanceAdvice | None = None,
) -> Evidence:
    """What advice on a workload stands on.

    Args:
        rows: its rows of the demand.
        demand: live slices and their series.
        history: the history they come from.
        profile: its profile, None where it has none.
        cut: the slice that its pods get, None where they get none.
        inflation: P99 latency beside others / alone that is foretold; None where nobody asked.
        instance: the MIG instance that its pods get, None where they get none.
    """
    compute = demand.counted[list(rows)]
    seen = np.isfinite(compute)
    first = int(seen.any(axis=0).argmax()) if seen.any() else 0
    since = history.slices.since + timedelta(seconds=first * demand.step_seconds)
    values = compute[seen].astype(float)
    numbers: list[tuple[str, float]] = [("pods", float(len({demand.grants[row].pod_id for row in rows})))]
    if len(values):
        quantiles = np.quantile(values, (0.5, 0.95, 0.99, 1.0))
        stem = demand.counter.value.removesuffix("_ratio")
        numbers += [
            (f"{stem}_{label}_ratio", round(float(value), 6))
            for label, value in zip(("p50", "p95", "p99", "max"), quantiles, strict=True)
        ]
    need = demand.need_bytes[list(rows)]
    if np.isfinite(need).any():
        numbers.append(("framebuffer_need_max_bytes", float(np.nanmax(need))))
    if cut is not None:
        numbers.append(("framebuffer_granted_bytes", float(cut.framebuffer_bytes)))
        numbers.append(("compute_granted_ratio", cut.compute_ratio))
    if instance is not None:
        numbers.append(("card_load_max_ratio", round(instance.load_max, 6)))
        numbers.append(("instance_framebuffer_bytes", float(instance.framebuffer_bytes)))
        numbers.append(("instance_compute_ratio", round(instance.compute_ratio, 4)))
        inflation = instance.inflation
    if inflation is not None:
        numbers.append(("latency_p99_inflation_ratio", round(inflation, 3)))
    coverage = profile.coverage_ratio if profile is not None else float(seen.mean()) if seen.size else 0.0
    return Evidence(
        since=since,
        until=history.slices.until,
        samples=int(seen.sum()),
        coverage_ratio=coverage,
        counters=(demand.counter.value, Measure.FRAMEBUFFER_USED.value),
        numbers=tuple(numbers),
    )


def _inflation(rows: Sequence[int], arrangement: Arrangement) -> float | None:
    """The largest inflation foretold of a workload's pods."""
    return max((ratio for row in rows if (ratio := arrangement.inflations.get(row)) is not None), default=None)


def _rehoming_saving(
    item: Rehoming, demand: Demand, cards: Mapping[CardId, Card], arrangement: Arrangement, prices: Prices
) -> Saving:
    left = [cards[demand.grants[row].card] for row in sorted(item.targets)]
    taken = [card for _, card in sorted(item.targets.items()) if card.card in arrangement.taken]
    return saving_of(left, prices, taken=taken)
