"""The card map: one square per card, grouped model › node, the same square in the same place before and after a plan.

A square is read without colour: the bar inside is as high as SM active p95, the notch at its right edge stands where
the framebuffer was filled to, a free card is an empty frame, an untrusted one is crossed. Called by `figures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from dashboards.tokens import MID_GREY, STATE_COLOURS
from fleet.decisions import Plan
from fleet.profiles import CardProfile, CardState, Profiles

CARDS_MAX = 4000
"""Cards beyond which a square is a whole node."""
SMALL_FLEET_CARDS = 400
"""Cards up to which squares are drawn large."""
NODE_GAP = 0.5
ROW_STEP = 1.28
LABEL_ROW = 1.5
_INSET = 0.07
_TINTS: Mapping[CardState, float] = MappingProxyType({CardState.IDLE_HELD: 0.5})
"""How strongly the ground of a square is tinted; a square without a bar needs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """One square of the map.

    Attributes:
        key: card, or node where a square is a node.
        group: card model.
        node: node.
        state: its colour.
        fill_ratio: height of the bar, 0-1; None where nothing was collected.
        notch_ratio: height of the notch, 0-1; None where nothing was collected.
        text: what it says when pointed at.
        is_outlined: True where a plan moves something onto it.
    """

    key: str
    group: str
    node: str
    state: CardState
    fill_ratio: float | None
    notch_ratio: float | None
    text: str
    is_outlined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMap:
    """Squares with their places.

    Attributes:
        squares: squares.
        places: left and bottom of each square, in units of a square; y grows downwards.
        labels: (x, y, text) of each group.
        columns: width, squares.
        height: height, squares.
    """

    squares: tuple[Square, ...]
    places: tuple[tuple[float, float], ...]
    labels: tuple[tuple[float, float, str], ...]
    columns: float
    height: float


def fleet_squares(profiles: Profiles) -> tuple[Square, ...]:
    """Every card as it is now."""
    cards = sorted(profiles.cards, key=lambda card: (card.card_model, card.node, card.card))
    squares = [_square(card) for card in cards]
    return tuple(squares) if len(squares) <= CARDS_MAX else tuple(_node_squares(squares))


def plan_squares(profiles: Profiles, plan: Plan) -> tuple[tuple[Square, ...], tuple[Square, ...]]:
    """Every card before and after a plan; cards that the plan gives a pod from elsewhere are outlined afterwards."""
    holders = {card.card: set(card.workloads) for card in profiles.cards}
    after: dict[str, Square] = {}
    for place in plan.placement:
        workloads = {piece.workload for piece in place.slices}
        share = sum(piece.compute_ratio for piece in place.slices)
        granted = sum(piece.framebuffer_bytes for piece in place.slices)
        after[place.card] = Square(
            key=place.card,
            group=place.card_model,
            node=place.node or "",
            state=CardState.BUSY,
            fill_ratio=min(1.0, share),
            notch_ratio=min(1.0, granted / place.framebuffer_bytes) if place.framebuffer_bytes else None,
            text=f"{len(place.slices)} slices, {share:.0%} of compute granted",
            is_outlined=bool(workloads - holders.get(place.card, set())),
        )
    before = tuple(
        _square(card) for card in sorted(profiles.cards, key=lambda card: (card.card_model, card.node, card.card))
    )
    late = tuple(
        after.get(square.key)
        or Square(
            key=square.key,
            group=square.group,
            node=square.node,
            state=CardState.FREE,
            fill_ratio=None,
            notch_ratio=None,
            text="granted to nobody",
        )
        for square in before
    )
    # A square keeps its place: the plan's own words for node and model never reorder the map.
    late = tuple(_at(square, origin) for square, origin in zip(late, before, strict=True))
    if len(before) > CARDS_MAX:
        return tuple(_node_squares(before)), tuple(_node_squares(late))
    return before, late


def lay_out(squares: Sequence[Square], columns: int, *, label_height: float = LABEL_ROW) -> CardMap:
    """Gives every square its place: groups below one another, nodes side by side, wrapped at `columns`.

    Args:
        squares: squares, sorted by group and node.
        columns: width, squares.
        label_height: height of a group's label, squares.
    """
    places: list[tuple[float, float]] = []
    labels: list[tuple[float, float, str]] = []
    y = 0.0
    for group, members in groupby(squares, key=lambda square: square.group):
        listed = list(members)
        nodes = [list(cards) for _, cards in groupby(listed, key=lambda square: square.node)]
        labels.append((0.0, y + label_height * 0.6, f"{group}  ·  {len(listed):,} cards  ·  {len(nodes):,} nodes"))
        y += label_height
        x = 0.0
        gap = NODE_GAP if any(len(cards) > 1 for cards in nodes) else 0.0
        for cards in nodes:
            width = min(len(cards), columns)
            if x and x + width > columns:
                x, y = 0.0, y + ROW_STEP
            for _ in cards:
                if x + 1 > columns + 1e-9:
                    x, y = 0.0, y + ROW_STEP
                places.append((x, y))
                x += 1
            x += gap
        y += ROW_STEP + 0.3
    return CardMap(
        squares=tuple(squares), places=tuple(places), labels=tuple(labels), columns=columns, height=max(y, 1.0)
    )


def card_map_svg(card_map: CardMap) -> str:
    """The map as one SVG picture, a few long paths; stretches to any size.

    Colours are those that show on light and on dark paper, because a picture can't ask which it lies on.
    """
    width, height = card_map.columns, card_map.height
    both = list(zip(card_map.squares, card_map.places, strict=True))
    paths = []
    for state in CardState:
        chosen = [(square, place) for square, place in both if square.state is state]
        colour = STATE_COLOURS[state]
        frames = "".join(_box(x, y, 1.0) for _, (x, y) in chosen)
        if state is CardState.FREE:
            paths.append(
                f'<path d="{frames}" fill="{colour}" fill-opacity=".06" stroke="{colour}" stroke-width=".09"/>'
            )
            continue
        opacity = _TINTS.get(state, 0.22)
        paths.append(f'<path d="{frames}" fill="{colour}" fill-opacity="{opacity}"/>')
        bars = "".join(_box(x, y, square.fill_ratio) for square, (x, y) in chosen if square.fill_ratio)
        paths.append(f'<path d="{bars}" fill="{colour}"/>')
        if state is CardState.UNTRUSTED:
            crosses = "".join(
                f"M{x + 0.22:.2f} {y + 0.22:.2f}l.56 .56M{x + 0.78:.2f} {y + 0.22:.2f}l-.56 .56" for _, (x, y) in chosen
            )
            paths.append(f'<path d="{crosses}" stroke="{MID_GREY}" stroke-width=".1"/>')
    notches = "".join(
        f"M{x + 0.58:.2f} {y + 1 - _INSET - (1 - 2 * _INSET) * square.notch_ratio:.2f}h{0.42 - _INSET:.2f}"
        for square, (x, y) in both
        if square.notch_ratio
    )
    paths.append(f'<path d="{notches}" stroke="#fff" stroke-width=".26" stroke-opacity=".7"/>')
    paths.append(f'<path d="{notches}" stroke="#2B3742" stroke-width=".14"/>')
    outlined = "".join(_box(x, y, 1.0) for square, (x, y) in both if square.is_outlined)
    paths.append(f'<path d="{outlined}" fill="none" stroke="#fff" stroke-width=".3"/>')
    paths.append(f'<path d="{outlined}" fill="none" stroke="#17212B" stroke-width=".16"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.2f} {height:.2f}" '
        f'width="{width * 20:.0f}" height="{height * 20:.0f}" preserveAspectRatio="none">{"".join(paths)}</svg>'
    )


def _box(x: float, y: float, share: float | None) -> str:
    """A box that stands at the bottom of its square, as high as its share of it."""
    side = 1 - 2 * _INSET
    tall = side * min(1.0, max(0.06, share or 0.0))
    return f"M{x + _INSET:.2f} {y + 1 - _INSET:.2f}h{side:.2f}v{-tall:.2f}h{-side:.2f}z"


def _square(card: CardProfile) -> Square:
    used = card.framebuffer_used_max
    held = "not collected" if used is None else f"{used / card.framebuffer_bytes:.0%} of framebuffer"
    busy = "not collected" if card.compute_p95 is None else f"{card.compute_p95:.0%}"
    return Square(
        key=card.card,
        group=card.card_model,
        node=card.node,
        state=card.state,
        fill_ratio=card.compute_p95,
        notch_ratio=None if used is None else min(1.0, used / card.framebuffer_bytes),
        text=f"{card.node}<br>{card.state.value.replace('_', ' ')} · SM active p95 {busy}<br>{held}",
    )


def _at(square: Square, origin: Square) -> Square:
    return Square(
        key=square.key,
        group=origin.group,
        node=origin.node,
        state=square.state,
        fill_ratio=square.fill_ratio,
        notch_ratio=square.notch_ratio,
        text=square.text,
        is_outlined=square.is_outlined,
    )


def _node_squares(squares: Iterable[Square]) -> Iterator[Square]:
    for (group, node), members in groupby(squares, key=lambda square: (square.group, square.node)):
        cards = list(members)
        counts: Mapping[CardState, int] = {state: sum(card.state is state for card in cards) for state in CardState}
        state = max(counts, key=lambda name: counts[name])
        yield Square(
            key=node,
            group=group,
            node=node,
            state=state,
            fill_ratio=_mean([card.fill_ratio for card in cards]),
            notch_ratio=_mean([card.notch_ratio for card in cards]),
            text=f"{len(cards)} cards, most of them {state.value.replace('_', ' ')}",
            is_outlined=any(card.is_outlined for card in cards),
        )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
