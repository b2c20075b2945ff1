"""Which MIG instance the pods of a workload get: the smallest that holds what they showed, with a margin.

An instance is a wall on both sides: what passes its framebuffer fails, what passes its compute waits, and nothing is
lent. So the largest framebuffer seen gets the headroom of every slice, the largest compute seen a margin of one over
the days seen. How often the wall would have been hit is told by predicting every day seen from the others; where that
is more than the risk allows, the next larger instances are tried. Called by `mig.placement`; pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.catalogue import CardModel, MigProfile
from fleet.sentences import Value
from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX
from recommender.demand import Demand
from recommender.latency.inflation import SharingMode, inflation_of_hours
from recommender.mig.geometry import profile_compute_ratio, profile_framebuffer_bytes, smallest_profile

Float64 = NDArray[np.float64]

DAYS_MIN = 2
"""Days that must have been seen: each is predicted from the others."""
WIDENINGS = (1.0, 1.5, 2.0, 3.0, 5.0)
"""What the need is multiplied with until the risk is met."""
FULL_RATIO = 0.95
"""Use of an instance from which on it may be that its pod wants more than it gets."""
_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceAdvice:
    """The instance that every pod of a workload gets.

    Attributes:
        compute_ratio: compute of it, share of the whole card, 0-1.
        need_max_bytes: most framebuffer that a pod needed.
        load_max: most compute that a pod used, share of a whole card.
        violated: steps of active pods that an instance chosen without their day would not have held.
        active: steps of active pods.
        inflation: P99 latency in the instance / on the whole card; None where nobody asked.
    """

    profile: MigProfile
    framebuffer_bytes: int
    compute_ratio: float
    need_max_bytes: int
    load_max: float
    days: float
    violated: int
    active: int
    inflation: float | None = None

    @property
    def violation_ratio(self) -> float:
        """Share of the active steps that would have been violated, 0-1."""
        return self.violated / max(1, self.active)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoInstance:
    """Why a workload gets no instance: a short code, and what is in the message `refused.CODE`."""

    reason: str
    values: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A workload's pods: load in cards and framebuffer needed, (rows, steps), and the most of each day, (days,)."""

    load: Float64
    need: Float64
    day_of: NDArray[np.int64]
    load_by_day: Float64
    need_by_day: Float64
    days_by_day: Float64


def advise_instance(
    demand: Demand,
    rows: Sequence[int],
    model: CardModel,
    *,
    headroom_ratio: float,
    violation_ratio_max: float,
    inflation_max: float | None,
) -> InstanceAdvice | NoInstance:
    """The smallest instance for the pods of one workload, which have one template and so one profile.

    Args:
        demand: live slices and their series; what a MIG instance used counts in shares of that instance.
        headroom_ratio: kept free above the largest need of framebuffer.
        violation_ratio_max: harm that may be predicted for it, 0-1.
        inflation_max: most that its P99 latency may grow, times that alone; None where it need not answer fast.

    Returns:
        The instance, smaller than what each pod holds now or the very one that all hold; or why there is none.
    """
    held = {demand.grants[row].mig_profile for row in rows}
    own = _held_profiles(model, held)
    if len(own) < len(held - {None}):
        return NoInstance(reason="unknown_profile", values=(("card_model", model.name), ("profiles", _names(held))))
    seen = _seen(demand, rows, model)
    if not np.isfinite(seen.load_by_day).any() or not np.isfinite(seen.need_by_day).any():
        return NoInstance(reason="no_samples")
    if (kept := _kept(model, seen, held, own)) is not None:
        return kept
    largest = min((_size(profile) for profile in own), default=_whole(model))
    worst: tuple[tuple[str, Value], ...] = ()
    for widening in WIDENINGS:
        profile = _profile_for(model, seen, np.ones(len(seen.load_by_day), bool), headroom_ratio, widening)
        if profile is None or _size(profile) >= largest:
            break
        found = _judged(model, seen, profile, headroom_ratio, widening)
        if found.violation_ratio > violation_ratio_max:
            worst = (("profile", profile.name), ("violation_ratio", round(found.violation_ratio, 6)))
            continue
        if inflation_max is None:
            return found
        ratio = _inflation(demand, seen, found.compute_ratio)
        if ratio is not None and ratio <= inflation_max:
            return replace(found, inflation=ratio)
        worst = (("profile", profile.name), ("inflation_max", inflation_max))
    if len(held) == 1 and own:
        return _unchanged(model, seen, own[0])
    return NoInstance(
        reason="no_instance_fits",
        values=(
            ("need_bytes", round(float(np.nanmax(seen.need_by_day)))),
            ("load_max_ratio", round(float(np.nanmax(seen.load_by_day)), 4)),
            ("card_model", model.name),
            *worst,
        ),
    )


def _held_profiles(model: CardModel, held: set[str | None]) -> list[MigProfile]:
    profiles = () if model.mig is None else model.mig.profiles
    return [profile for profile in profiles if profile.name in held]


def _names(held: set[str | None]) -> str:
    return ", ".join(sorted(name for name in held if name is not None))


def _size(profile: MigProfile) -> tuple[int, int]:
    return profile.memory_slices, profile.compute_slices


def _whole(model: CardModel) -> tuple[int, int]:
    return (0, 0) if model.mig is None else (model.mig.memory_slices, model.mig.compute_slices)


def _kept(model: CardModel, seen: _Seen, held: set[str | None], own: Sequence[MigProfile]) -> InstanceAdvice | None:
    """The instance that all pods hold, where it may be too small already: how much more they want is not seen."""
    if len(held) != 1 or not own:
        return None
    share = profile_compute_ratio(model, own[0])
    return _unchanged(model, seen, own[0]) if float(np.nanmax(seen.load_by_day)) >= FULL_RATIO * share else None


def _unchanged(model: CardModel, seen: _Seen, profile: MigProfile) -> InstanceAdvice:
    return _advice(model, seen, profile, violated=0)


def _advice(model: CardModel, seen: _Seen, profile: MigProfile, *, violated: int) -> InstanceAdvice:
    return InstanceAdvice(
        profile=profile,
        framebuffer_bytes=profile_framebuffer_bytes(model, profile),
        compute_ratio=profile_compute_ratio(model, profile),
        need_max_bytes=int(np.nanmax(seen.need_by_day)),
        load_max=float(np.nanmax(seen.load_by_day)),
        days=float(seen.days_by_day.sum()),
        violated=violated,
        active=int((seen.load > ACTIVE_RATIO_MIN).sum()),
    )


def _seen(demand: Demand, rows: Sequence[int], model: CardModel) -> _Seen:
    """The series of a workload and what they peak at by day, days counted back from the end."""
    shares = np.array([_share_now(demand, row, model) for row in rows])
    load = demand.compute[list(rows)].astype(np.float64) * shares[:, None]
    need = demand.need_bytes[list(rows)].astype(np.float64)
    day_of = (demand.steps - 1 - np.arange(demand.steps, dtype=np.int64)) // demand.steps_per_day
    days = int(day_of[0]) + 1 if demand.steps else 0
    counted = np.bincount(day_of[np.isfinite(load).any(axis=0)], minlength=days) / demand.steps_per_day
    return _Seen(
        load=load,
        need=need,
        day_of=day_of,
        load_by_day=_most_by_day(load, day_of, days),
        need_by_day=_most_by_day(need, day_of, days),
        days_by_day=counted,
    )


def _share_now(demand: Demand, row: int, model: CardModel) -> float:
    """Share of the card that a pod's figures are of: an instance's counters know nothing of the rest."""
    found = _held_profiles(model, {demand.grants[row].mig_profile})
    return profile_compute_ratio(model, found[0]) if found else 1.0


def _most_by_day(values: Float64, day_of: NDArray[np.int64], days: int) -> Float64:
    most = np.full(days, -np.inf)
    if values.size:
        np.maximum.at(most, day_of, np.where(np.isfinite(values), values, -np.inf).max(axis=0))
    return np.where(np.isfinite(most), most, np.nan)


def _profile_for(
    model: CardModel, seen: _Seen, days: NDArray[np.bool_], headroom_ratio: float, widening: float
) -> MigProfile | None:
    """The smallest profile that some days ask for; None where only the whole card, or nothing seen, holds them."""
    load, need = seen.load_by_day[days], seen.need_by_day[days]
    if not np.isfinite(load).any() or not np.isfinite(need).any():
        return None
    margin = 1.0 + 1.0 / max(1.0, float(seen.days_by_day[days].sum()))
    return smallest_profile(
        model,
        framebuffer_bytes=int(np.ceil(np.nanmax(need) * (1.0 + headroom_ratio) * widening)),
        compute_ratio=float(np.nanmax(load)) * margin * widening,
    )


def _judged(
    model: CardModel, seen: _Seen, profile: MigProfile, headroom_ratio: float, widening: float
) -> InstanceAdvice:
    """The advice with what it would have done: every day is held against the instance that the others ask for."""
    violated = 0
    for day in np.flatnonzero(np.isfinite(seen.load_by_day)):
        others = np.arange(len(seen.load_by_day)) != day
        other = _profile_for(model, seen, others, headroom_ratio, widening)
        if other is None:
            continue
        steps = seen.day_of == day
        load, need = seen.load[:, steps], seen.need[:, steps]
        over = load > profile_compute_ratio(model, other) * CONTENTION_RATIO_MAX
        short = need > profile_framebuffer_bytes(model, other)
        violated += int(((load > ACTIVE_RATIO_MIN) & (over | short)).sum())
    return _advice(model, seen, profile, violated=violated)


def _inflation(demand: Demand, seen: _Seen, share: float) -> float | None:
    """The worst P99 latency of a pod in an instance / on the whole card; None where requests would queue."""
    per_hour = max(1, _HOUR_SECONDS // demand.step_seconds)
    hours = demand.steps // per_hour
    worst = 1.0
    for series in np.nan_to_num(seen.load[:, : hours * per_hour]):
        own = series.reshape(hours, per_hour).mean(axis=1)
        ratio = inflation_of_hours(SharingMode.HARD, own_load=own, neighbour_load=np.zeros(hours), share=share)
        if ratio is None:
            return None
        worst = max(worst, ratio)
    return worst
