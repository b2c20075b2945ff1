"""How cards are cut by MIG: which layouts are valid, and the fewest cards that serve a set of instances.

A layout is a set of instances with their first memory slices. Valid are those where every instance starts where its
profile may, no two overlap, compute slices and the profile's own limit suffice, and the media engines go to one only.
Totals are not enough: 1g at slice 0 rules out 3g at 0 and 4g and 7g anywhere, two 3g leave no room for any 1g although
one compute slice of seven is left. So layouts are enumerated, once per family, and a covering program over the
maximal ones is solved; the same program in fractions is the bound. Called by the rule that proposes MIG.

Source: NVIDIA MIG user guide, "Supported MIG Profiles" and its placements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fleet.catalogue import CardModel, MigFamily, MigProfile, share_media_engines
from fleet.errors import Misconfigured
from recommender.packing.linear_program import Program, solve_fractional, solve_whole

FRAMEBUFFER_RATIO_MIN = 0.9
"""Least share of its memory slices that a profile without a verified framebuffer is trusted with: the least that any
verified profile of the catalogue has is 0.91 (1g.18gb of an H200)."""
NODES_MAX = 20_000
"""Nodes of the search for whole cards; a set of instances takes a few."""
_RECUT_COST = 1e-4
"""Cost of cutting a card anew, in cards: fewest cards first, then fewest cut anew."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MigPlacement:
    """One instance on a card.

    Attributes:
        start: first memory slice.
    """

    start: int
    profile: str


MigLayout = tuple[MigPlacement, ...]
"""All instances of one card, by their first slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigCard:
    """A card as it is cut now.

    Attributes:
        layout: its instances; empty where MIG is off or nothing is cut.
        is_pinned: True where it stays as it is, because somebody works on it who is not to be moved.
    """

    card: str
    layout: MigLayout = ()
    is_pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MigCut:
    """What becomes of one card.

    Attributes:
        card: UUID; None for one more card than were given.
        layout: its instances afterwards.
        served: how many instances of each profile the demand takes, sorted by profile.
        is_recut: True where the card has to be cut anew, and so be empty for a while.
    """

    card: str | None
    layout: MigLayout
    served: tuple[tuple[str, int], ...]
    is_recut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGeometry:
    """Layouts that serve a demand.

    Attributes:
        cuts: the cards that are needed: those that are pinned, those that stay as they are, those that are cut anew.
        cards_bound: no way of cutting serves the demand with fewer cards than this.
    """

    cuts: tuple[MigCut, ...]
    cards_bound: int

    @property
    def cards(self) -> int:
        """Cards needed."""
        return len(self.cuts)


def is_valid_layout(family: MigFamily, layout: Sequence[MigPlacement]) -> bool:
    """Whether these instances can stand on one card together.

    Raises:
        Misconfigured: a profile that the family does not have.
    """
    profiles = [_profile(family, placement.profile) for placement in layout]
    taken: set[int] = set()
    for placement, profile in zip(layout, profiles, strict=True):
        slices = set(range(placement.start, placement.start + profile.memory_slices))
        if placement.start not in profile.starts or slices & taken or max(slices) >= family.memory_slices:
            return False
        taken |= slices
    return _within_limits(family, profiles)


@lru_cache(maxsize=32)
def maximal_layouts(family: MigFamily) -> tuple[MigLayout, ...]:
    """One layout for every maximal set of instances: no valid layout has all of its instances and one more.

    Sets are distinguished by how many instances of each profile they have, not by where those stand.
    """
    found: dict[tuple[int, ...], MigLayout] = {}
    _extend(family, (), 0, found)
    counts = np.array(list(found))
    keep = [
        layout
        for row, layout in zip(counts, found.values(), strict=True)
        if np.count_nonzero((counts >= row).all(axis=1)) == 1
    ]
    return tuple(sorted(keep))


def smallest_profile(model: CardModel, *, framebuffer_bytes: int, compute_ratio: float) -> MigProfile | None:
    """The profile with the fewest slices that holds a need; None where the model has no MIG or none holds it.

    Profiles with extras (`+me`, `+gfx`) are passed over: a workload that needs media engines asks for them by name.

    Args:
        compute_ratio: compute needed, share of the whole card, 0-1.
    """
    if model.mig is None:
        return None
    fitting = [
        profile
        for profile in model.mig.profiles
        if "+" not in profile.name
        and profile_framebuffer_bytes(model, profile) >= framebuffer_bytes
        and profile_compute_ratio(model, profile) >= compute_ratio
    ]
    return min(fitting, key=lambda profile: (profile.memory_slices, profile.compute_slices), default=None)


def profile_framebuffer_bytes(model: CardModel, profile: MigProfile) -> int:
    """Framebuffer of one instance; a careful share of the card's where it was never verified."""
    if profile.framebuffer_bytes is not None:
        return profile.framebuffer_bytes
    slices = model.mig.memory_slices if model.mig is not None else profile.memory_slices
    return int(model.framebuffer_bytes * profile.memory_slices / slices * FRAMEBUFFER_RATIO_MIN)


def profile_compute_ratio(model: CardModel, profile: MigProfile) -> float:
    """Compute of one instance, share of the whole card's SMs; by compute slices where SMs were never verified."""
    if profile.sms is not None:
        return min(profile.sms / model.sms, 1.0)
    return profile.compute_slices / (model.mig.compute_slices if model.mig is not None else profile.compute_slices)


def cards_bound(family: MigFamily, demand: Mapping[str, int]) -> int:
    """Fewest cards by the linear program over all maximal layouts, rounded up: no cutting needs less.

    Raises:
        Misconfigured: a profile that the family does not have, or a count below 0.
    """
    wanted = _checked(family, demand)
    if not wanted:
        return 0
    layouts = maximal_layouts(family)
    program = Program(
        costs=np.ones(len(layouts)),
        rows=_count_rows(layouts, tuple(wanted)),
        row_least=np.array(list(wanted.values()), float),
        row_most=np.full(len(wanted), np.inf),
        most=np.full(len(layouts), np.inf),
    )
    return math.ceil(solve_fractional(program).cost - 1e-6)


def plan_geometry(family: MigFamily, demand: Mapping[str, int], *, cards: Sequence[MigCard] = ()) -> MigGeometry:
    """Serves a demand with the fewest cards, and of those answers with one that cuts the fewest anew.

    An instance is served by one of its own profile, because that is the resource its pod asks for. A card whose layout
    changes at all is cut anew: mig-parted clears a card before it cuts. Pinned cards are needed in any case and serve
    with what they have. Profiles are mixed on a card: the backend refuses a device plugin whose strategy is another.

    Args:
        demand: instances wanted of each profile, those in use included.
        cards: cards that are there, all of this family; where they don't suffice more are counted.

    Raises:
        Misconfigured: a profile that the family does not have, a count below 0, or a card whose layout is not valid.
    """
    wanted = _checked(family, demand)
    for card in cards:
        if not is_valid_layout(family, card.layout):
            raise Misconfigured(f"cannot plan MIG on card {card.card}: {card.layout} is no layout of {family.name}")
    left = Counter(wanted)
    pinned = tuple(_stays(card, left) for card in cards if card.is_pinned)
    rest = {name: count for name, count in left.items() if count}
    movable = [card for card in cards if not card.is_pinned]
    cuts = _cut(family, rest, movable, left) if rest else ()
    return MigGeometry(cuts=pinned + cuts, cards_bound=len(pinned) + cards_bound(family, rest))


def _cut(
    family: MigFamily, rest: Mapping[str, int], cards: Sequence[MigCard], left: Counter[str]
) -> tuple[MigCut, ...]:
    """Serves what the pinned cards leave; `left` counts down."""
    present = Counter(card.layout for card in cards if card.layout)
    fresh = maximal_layouts(family)
    amounts = _amounts(rest, present, fresh)
    keep = Counter(dict(zip(present, amounts[: len(present)], strict=True)))
    recut = [layout for layout, times in zip(fresh, amounts[len(present) :], strict=True) for _ in range(times)]
    cuts: list[MigCut] = []
    free: list[MigCard] = []
    for card in cards:
        if keep[card.layout]:
            keep[card.layout] -= 1
            cuts.append(_stays(card, left))
        else:
            free.append(card)
    # Cards that were never cut go first: no instance has to leave them.
    free.sort(key=lambda card: len(card.layout))
    names: list[str | None] = [card.card for card in free[: len(recut)]]
    names += [None] * (len(recut) - len(names))
    cuts += [
        MigCut(card=name, layout=layout, served=_take(left, layout), is_recut=True)
        for name, layout in zip(names, recut, strict=True)
    ]
    return tuple(cuts)


def _amounts(wanted: Mapping[str, int], present: Mapping[MigLayout, int], fresh: Sequence[MigLayout]) -> list[int]:
    """How many cards get each layout: first the present ones, then those that are cut anew."""
    layouts = [*present, *fresh]
    program = Program(
        costs=np.array([1.0] * len(present) + [1.0 + _RECUT_COST] * len(fresh)),
        rows=_count_rows(layouts, tuple(wanted)),
        row_least=np.array(list(wanted.values()), float),
        row_most=np.full(len(wanted), np.inf),
        most=np.array([float(times) for times in present.values()] + [np.inf] * len(fresh)),
    )
    return [int(amount) for amount in solve_whole(program, nodes_max=NODES_MAX).amounts]


def _stays(card: MigCard, left: Counter[str]) -> MigCut:
    return MigCut(card=card.card, layout=card.layout, served=_take(left, card.layout), is_recut=False)


def _take(left: Counter[str], layout: MigLayout) -> tuple[tuple[str, int], ...]:
    served = Counter(placement.profile for placement in layout) & left
    left.subtract(served)
    return tuple(sorted(served.items()))


def _count_rows(layouts: Sequence[MigLayout], profiles: Sequence[str]) -> np.ndarray:
    """Instances of each profile in each layout, (profiles, layouts)."""
    counts = [Counter(placement.profile for placement in layout) for layout in layouts]
    return np.array([[count[profile] for count in counts] for profile in profiles], float)


def _checked(family: MigFamily, demand: Mapping[str, int]) -> dict[str, int]:
    for name, count in demand.items():
        _profile(family, name)
        if count < 0:
            raise Misconfigured(f"cannot plan MIG for {count} instances of {name}: less than 0")
    return {name: demand[name] for name in sorted(demand) if demand[name]}


def _profile(family: MigFamily, name: str) -> MigProfile:
    for profile in family.profiles:
        if profile.name == name:
            return profile
    known = ", ".join(profile.name for profile in family.profiles)
    raise Misconfigured(f"cannot plan MIG with profile {name!r}: {family.name} has {known}")


def _extend(family: MigFamily, layout: MigLayout, start: int, found: dict[tuple[int, ...], MigLayout]) -> None:
    """Every valid layout, slice by slice from the left; one is kept per set of instances."""
    counts = Counter(placement.profile for placement in layout)
    found.setdefault(tuple(counts[profile.name] for profile in family.profiles), layout)
    for at in range(start, family.memory_slices):
        for profile in family.profiles:
            longer = (*layout, MigPlacement(start=at, profile=profile.name))
            if at in profile.starts and is_valid_layout(family, longer):
                _extend(family, longer, at + profile.memory_slices, found)


def _within_limits(family: MigFamily, profiles: Sequence[MigProfile]) -> bool:
    counts = Counter(profile.name for profile in profiles)
    return (
        sum(profile.compute_slices for profile in profiles) <= family.compute_slices
        and all(counts[profile.name] <= profile.count_max for profile in profiles)
        and share_media_engines(profile.name for profile in profiles)
    )
