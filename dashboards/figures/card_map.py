"""The card map: one square per card, grouped model › node, the same square in the same place before and after a plan.

A square is read without colour: the bar inside is as high as the 95th percentile of compute, the notch at its right
edge stands where the framebuffer was filled to, a free card is an empty frame, an untrusted one is crossed. Called by
the pages of the fleet and of the plan; `assets/drawn.js` draws it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple

from dashboards.view_models.made_once import MADE
from dashboards.view_models.node_groups import NodeGroup, node_groups
from dashboards.words.reading import READING, say, say_code
from fleet.decisions import CardPlacement, Plan
from fleet.profiles import CardProfile, CardState, Profiles

CARDS_MAX = 4000
"""Cards beyond which a square is a whole node."""
NODES_MAX = 2500
"""Nodes beyond which a square is a group of nodes, whose cards are a map of their own."""
SMALL_FLEET_CARDS = 400
"""Cards up to which squares are drawn large."""
NODE_GAP = 0.5
ROW_STEP = 1.28
LABEL_ROW = 1.5


class SquareKind(StrEnum):
    """What a square of the map is."""

    CARD = "card"
    NODE = "node"
    GROUP = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """One square of the map.

    Attributes:
        key: card; node where a square is a node; first node where it is a group of them.
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
    cards: int = 1
    nodes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMap:
    """Squares with their places.

    Attributes:
        places: left and bottom of each square, in units of a square; y grows downwards.
        labels: (x, y, text) of each group.
    """

    squares: tuple[Square, ...]
    places: tuple[tuple[float, float], ...]
    labels: tuple[tuple[float, float, str], ...]
    columns: float
    height: float


def square_kind(profiles: Profiles, group: NodeGroup | None) -> SquareKind:
    """What a square is: a card, of a large fleet a node, of a very large one a group of nodes.

    Args:
        group: the group that is looked into, whose squares are its cards; None for the whole fleet.
    """
    if len(profiles.cards) <= CARDS_MAX or group is not None:
        return SquareKind.CARD
    return SquareKind.NODE if len({card.node for card in profiles.cards}) <= NODES_MAX else SquareKind.GROUP


def fleet_squares(profiles: Profiles, group: NodeGroup | None = None) -> tuple[Square, ...]:
    """Every card as it is now, in squares of the kind that its number asks for.

    Args:
        group: shows the cards of this group alone; None for all.
    """
    kind = square_kind(profiles, group)
    if kind is not SquareKind.CARD:
        return _joined((_cell(card) for card in profiles.cards), kind, profiles)
    shown = (
        profiles.cards
        if group is None
        else [card for card in profiles.cards if card.card_model == group.card_model and card.node in group.nodes]
    )
    return tuple(_square(card) for card in sorted(shown, key=_place_of))


def plan_squares(profiles: Profiles, plan: Plan) -> tuple[tuple[Square, ...], tuple[Square, ...]]:
    """Every card before and after a plan; cards that the plan gives a pod from elsewhere are outlined afterwards."""
    return MADE.of((profiles, plan), ("plan squares", READING.get()), lambda: _plan_squares(profiles, plan))


def _plan_squares(profiles: Profiles, plan: Plan) -> tuple[tuple[Square, ...], tuple[Square, ...]]:
    placed = {place.card: place for place in plan.placement}
    kind = square_kind(profiles, None)
    if kind is not SquareKind.CARD:
        before = _joined((_cell(card) for card in profiles.cards), kind, profiles)
        return before, _joined((_later_cell(card, placed.get(card.card)) for card in profiles.cards), kind, profiles)
    cards = sorted(profiles.cards, key=_place_of)
    return tuple(map(_square, cards)), tuple(_later_square(card, placed.get(card.card)) for card in cards)


def _later_square(card: CardProfile, place: CardPlacement | None) -> Square:
    """A card after a plan. It keeps its place: the plan's own words for node and model never reorder the map."""
    cell = _later_cell(card, place)
    return Square(
        key=card.card,
        group=cell.group,
        node=cell.node,
        state=cell.state,
        fill_ratio=cell.fill_ratio,
        notch_ratio=cell.notch_ratio,
        text=_granted_words(place),
        is_outlined=cell.is_outlined,
    )


def _granted_words(place: CardPlacement | None) -> str:
    if place is None:
        return say("fleet.granted_to_nobody")
    share = _compute_granted(place)
    if share is None:
        return say("fleet.count_slices_compute_not_limited", count=len(place.slices))
    return say("fleet.count_slices_ratio_compute_granted", count=len(place.slices), ratio=f"{share:.0%}")


def _compute_granted(place: CardPlacement) -> float | None:
    """Sum of the shares of a card's compute, 1 is the card; None where nothing limits one of them."""
    shares = [piece.compute_ratio for piece in place.slices]
    return None if None in shares else sum(share for share in shares if share is not None)


def _cell(card: CardProfile) -> _Cell:
    used = card.framebuffer_used_max
    notch = None if used is None else min(1.0, used / card.framebuffer_bytes)
    return _Cell(card.card_model, card.node, card.state, card.compute_p95, notch, False)


def _later_cell(card: CardProfile, place: CardPlacement | None) -> _Cell:
    if place is None:
        return _Cell(card.card_model, card.node, CardState.FREE, None, None, False)
    share = _compute_granted(place)
    granted = sum(piece.framebuffer_bytes for piece in place.slices)
    notch = min(1.0, granted / place.framebuffer_bytes) if place.framebuffer_bytes else None
    receives = any(piece.workload not in card.workloads for piece in place.slices)
    return _Cell(
        card.card_model, card.node, CardState.BUSY, None if share is None else min(1.0, share), notch, receives
    )


def lay_out(squares: Sequence[Square], columns: int, *, label_height: float = LABEL_ROW) -> CardMap:
    """Gives every square its place: groups below one another, nodes side by side, wrapped at `columns`.

    Args:
        label_height: height of a group's label, squares.
    """
    places: list[tuple[float, float]] = []
    labels: list[tuple[float, float, str]] = []
    y = 0.0
    for group, members in groupby(squares, key=lambda square: square.group):
        listed = list(members)
        nodes = [list(cards) for _, cards in groupby(listed, key=lambda square: square.node)]
        hosts = sum(members[0].nodes for members in nodes)
        sizes = (say("count.cards", count=sum(square.cards for square in listed)), say("count.nodes", count=hosts))
        labels.append((0.0, y + label_height * 0.6, "  ·  ".join((group, *sizes))))
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


def card_map_drawing(card_map: CardMap, *, square_px: float) -> dict[str, Any]:
    """The map as `assets/drawn.js` draws it; the width follows the page.

    Args:
        square_px: height of a square.
    """
    squares, places = card_map.squares, card_map.places
    states = list(CardState)
    return {
        "columns": card_map.columns,
        "height": max(card_map.height, 60 / square_px),
        "square_px": round(square_px, 2),
        "labels": card_map.labels,
        "states": [state.value.replace("_", "-") for state in states],
        "squares": {
            "key": [square.key for square in squares],
            "x": [round(x, 2) for x, _ in places],
            "y": [round(y, 2) for _, y in places],
            "state": [states.index(square.state) for square in squares],
            "fill": [_hundredths(square.fill_ratio) for square in squares],
            "notch": [_hundredths(square.notch_ratio) for square in squares],
            "text": [square.text for square in squares],
            "outlined": [place for place, square in enumerate(squares) if square.is_outlined],
        },
    }


def _hundredths(ratio: float | None) -> int | None:
    return None if ratio is None else round(100 * ratio)


def _square(card: CardProfile) -> Square:
    used = card.framebuffer_used_max
    held = (
        say("savings.not_collected")
        if used is None
        else say("fleet.ratio_framebuffer", ratio=f"{used / card.framebuffer_bytes:.0%}")
    )
    busy = say("savings.not_collected") if card.compute_p95 is None else f"{card.compute_p95:.0%}"
    return Square(
        key=card.card,
        group=card.card_model,
        node=card.node,
        state=card.state,
        fill_ratio=card.compute_p95,
        notch_ratio=None if used is None else min(1.0, used / card.framebuffer_bytes),
        text=f"{card.node}\n{say_code('state', card.state)} · {say('fleet.compute_p95')} {busy}\n{held}",
    )


def _place_of(card: CardProfile) -> tuple[str, str, str]:
    return card.card_model, card.node, card.card


def _joined(cells: Iterable[_Cell], kind: SquareKind, profiles: Profiles) -> tuple[Square, ...]:
    """One square per node, or per group of nodes."""
    if kind is SquareKind.NODE:
        nodes = sorted({(card.card_model, card.node) for card in profiles.cards})
        group_of: dict[tuple[str, str], str] = {pair: pair[1] for pair in nodes}
    else:
        groups = fleet_groups(profiles)
        group_of = {(group.card_model, node): group.name for group in groups for node in group.nodes}
    sums: dict[tuple[str, str], _Sum] = {}
    for cell in cells:
        key = (cell.group, group_of[cell.group, cell.node])
        found = sums.get(key)
        if found is None:
            found = sums[key] = _Sum()
        found.add(cell)
    return tuple(
        Square(
            key=name,
            group=model,
            node=name,
            state=found.state,
            fill_ratio=found.mean_fill_ratio,
            notch_ratio=found.mean_notch_ratio,
            text=found.words(kind),
            is_outlined=found.is_outlined,
            cards=found.cards,
            nodes=found.nodes,
        )
        for (model, name), found in sorted(sums.items())
    )


def fleet_groups(profiles: Profiles) -> tuple[NodeGroup, ...]:
    """The groups of a fleet's nodes, found once."""
    return MADE.of((profiles,), "node groups", lambda: node_groups(profiles.cards))


class _Cell(NamedTuple):
    """One card of many: what a square of several of them is made of."""

    group: str
    node: str
    state: CardState
    fill_ratio: float | None
    notch_ratio: float | None
    is_outlined: bool


class _Sum:
    """What several cards come to."""

    __slots__ = ("_fill", "_nodes", "_notch", "_states", "is_outlined")

    def __init__(self) -> None:
        self._states: Counter[CardState] = Counter()
        self._nodes: set[str] = set()
        self._fill: list[float] = []
        self._notch: list[float] = []
        self.is_outlined = False

    def add(self, cell: _Cell) -> None:
        self._states[cell.state] += 1
        self._nodes.add(cell.node)
        if cell.fill_ratio is not None:
            self._fill.append(cell.fill_ratio)
        if cell.notch_ratio is not None:
            self._notch.append(cell.notch_ratio)
        self.is_outlined |= cell.is_outlined

    @property
    def cards(self) -> int:
        return self._states.total()

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    @property
    def state(self) -> CardState:
        """The state of most; of equals the first in the order of states."""
        return max(CardState, key=lambda state: self._states[state])

    @property
    def mean_fill_ratio(self) -> float | None:
        return sum(self._fill) / len(self._fill) if self._fill else None

    @property
    def mean_notch_ratio(self) -> float | None:
        return sum(self._notch) / len(self._notch) if self._notch else None

    def words(self, kind: SquareKind) -> str:
        told = ", ".join(
            f"{self._states[state]} {say_code('state', state)}" for state in CardState if self._states[state]
        )
        cards = say("count.cards", count=self.cards)
        if kind is SquareKind.NODE:
            return f"{cards}: {told}"
        return f"{say('fleet.cards_on_count_nodes', cards=cards, count=self.nodes)}\n{told}"
