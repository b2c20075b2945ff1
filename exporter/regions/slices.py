"""Puts what the looks of one reading gave into columns that keep their order from reading to reading.

Looks come in the order of their layouts and sizes; columns go by container, then by card. Which row a figure goes to is
worked out when a container or card came or went, and only used in between. Called by `exporter.regions.reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporter.regions.columns import CardFacts, ContainerColumns, ProcessColumns, SliceColumns, SliceOfRegion
from exporter.regions.decode import CardColumns, DutyDoubt, Figures, StateColumns
from exporter.regions.looks import Look
from exporter.regions.tree import ContainerKey, ContainerPlace
from fleet.regions.doubts import OF_REGION_BITS, bit_of

LYING_READINGS = 3
"""Readings in a row that show 0 on a busy card of one's own before the 0 is no longer believed."""
BUSY_RATIO = 0.05
"""Duty cycle from which on a card counts as busy there."""

Float64 = NDArray[np.float64]
Index = NDArray[np.int64]

_OF_CARD = tuple(column.name for column in fields(CardColumns))
_OF_STATE = tuple(column.name for column in fields(StateColumns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The rows of one look that count; copies, for the look's bytes are written over.

    Attributes:
        containers: container of each row of the look that counts; shape `(rows,)`.
        rows: which rows of the figures they are.
        is_believed: per row: its figures count, not only its doubts.
        doubts: per row.
        card_counts: per row, 0 where it isn't believed.
    """

    containers: Index
    rows: Index
    is_believed: NDArray[np.bool_]
    doubts: NDArray[np.uint32]
    card_counts: Index
    figures: Figures

    @staticmethod
    def of(look: Look) -> Seen:
        """What counts of a look."""
        rows = np.flatnonzero(look.is_final)
        doubts = look.doubts[rows]
        is_believed = doubts & np.uint32(OF_REGION_BITS) == 0
        card_counts = np.fromiter((len(region.cards) for region in look.regions), dtype=np.int64)[rows]
        return Seen(
            containers=np.fromiter((region.row for region in look.regions), dtype=np.int64)[rows],
            rows=rows,
            is_believed=is_believed,
            doubts=doubts,
            card_counts=np.where(is_believed, card_counts, 0),
            figures=look.figures,
        )


def container_columns(
    keys: tuple[ContainerKey, ...], places: Sequence[ContainerPlace], seen: Sequence[Seen]
) -> ContainerColumns:
    """What is said of each container as a whole."""

    def gathered(column: Callable[[Figures], Float64]) -> Float64:
        found = np.full(len(places), np.nan)
        for part in seen:
            found[part.containers] = np.where(part.is_believed, column(part.figures)[part.rows], np.nan)
        return found

    regions = [place.region for place in places]
    doubts = np.fromiter(
        (region.refused if (region := place.region) is not None else _bits_of(place) for place in places),
        dtype=np.uint32,
        count=len(places),
    )
    for part in seen:
        doubts[part.containers] = part.doubts
    return ContainerColumns(
        keys=keys,
        layouts=tuple(
            region.layout.name if region is not None and region.layout is not None else None for region in regions
        ),
        has_region=np.fromiter((place.has_file for place in places), dtype=np.bool_, count=len(places)),
        doubts=doubts,
        files=np.fromiter((place.files for place in places), dtype=np.int32, count=len(places)),
        processes=gathered(lambda figures: figures.is_live.sum(axis=1).astype(np.float64)),
        suspended=gathered(lambda figures: figures.is_suspended.sum(axis=1).astype(np.float64)),
        **{column: gathered(attrgetter(f"state.{column}")) for column in _OF_STATE},
    )


def process_columns(seen: Sequence[Seen]) -> ProcessColumns:
    """The living processes of all regions that are believed, in the order of their containers."""
    containers, pids, host_pids = [], [], []
    for part in seen:
        rows = part.rows[part.is_believed]
        row, slot = np.nonzero(part.figures.is_live[rows])
        containers.append(part.containers[part.is_believed][row].astype(np.int32))
        pids.append(part.figures.pid[rows[row], slot])
        host_pids.append(part.figures.host_pid[rows[row], slot])
    none = np.zeros(0, dtype=np.int32)
    of_all = np.concatenate([none, *containers])
    order = np.argsort(of_all, kind="stable")
    return ProcessColumns(
        containers=of_all[order],
        pids=np.concatenate([none, *pids])[order],
        host_pids=np.concatenate([none, *host_pids])[order],
    )


class SliceRows:
    """Which rows the cards of each container have, and how long a container has shown 0 on a busy card.

    Args:
        card_counts: cards of each that are shown; shape `(containers,)`.
    """

    def __init__(
        self,
        places: Sequence[ContainerPlace],
        keys: tuple[ContainerKey, ...],
        card_counts: Index,
        before: SliceRows | None,
    ) -> None:
        self.keys = tuple(
            SliceOfRegion(container=key, card=card)
            for key, place, count in zip(keys, places, card_counts.tolist(), strict=True)
            if count and place.region is not None
            for card in place.region.cards
        )
        self._container_keys = keys
        self._card_counts = card_counts
        self._containers = np.repeat(np.arange(len(keys), dtype=np.int32), card_counts)
        self._first_rows = np.cumsum(card_counts) - card_counts
        self._cards = tuple(dict.fromkeys(slice_.card for slice_ in self.keys))
        numbers = {card: number for number, card in enumerate(self._cards)}
        self._card_numbers = np.fromiter((numbers[slice_.card] for slice_ in self.keys), dtype=np.int64)
        tenants = np.bincount(self._card_numbers, minlength=len(self._cards))
        self._is_alone = tenants[self._card_numbers] == 1
        streaks = {} if before is None else before.streaks()
        self._zeros_on_busy_card: Index = np.fromiter((streaks.get(slice_, 0) for slice_ in self.keys), dtype=np.int64)

    def streaks(self) -> Mapping[SliceOfRegion, int]:
        """Readings in a row for which each slice has shown 0 on a busy card of its own."""
        return dict(zip(self.keys, self._zeros_on_busy_card.tolist(), strict=True))

    def hold(self, keys: tuple[ContainerKey, ...], card_counts: Index) -> bool:
        """Whether these rows still stand, as long as no container's cards became others."""
        return keys is self._container_keys and np.array_equal(card_counts, self._card_counts)

    def columns(self, seen: Sequence[Seen], cards: Mapping[str, CardFacts]) -> SliceColumns:
        """The figures of one reading in these rows.

        Args:
            cards: what is known of cards; counts one more reading for containers that show 0 on a busy one.
        """
        targets = [self._targets(part) for part in seen]

        def gathered(column: Callable[[Figures], Float64]) -> Float64:
            found = np.full(len(self.keys), np.nan)
            for part, (target, source) in zip(seen, targets, strict=True):
                found[target] = column(part.figures)[source]
            return found

        columns: dict[str, NDArray[Any]] = {name: gathered(attrgetter(f"cards.{name}")) for name in _OF_CARD}
        doubts = columns["duty_doubt"] = columns["duty_doubt"].astype(np.int8)
        uses_card = (columns["framebuffer_used"] > 0) | (columns["framebuffer_of_driver"] > 0)
        is_lying = self._count_zeros(columns["duty_cycle"], uses_card, cards)
        columns["duty_cycle"][is_lying] = np.nan
        doubts[is_lying] = DutyDoubt.ZERO_WHILE_CARD_BUSY
        return SliceColumns(keys=self.keys, containers=self._containers, **columns)

    def _targets(self, part: Seen) -> tuple[Index, tuple[Index, Index]]:
        """Rows here, and where in the look's figures (row, card) what belongs there stands."""
        row = np.repeat(np.arange(len(part.rows)), part.card_counts)
        ends = np.cumsum(part.card_counts)
        card = np.arange(len(row)) - np.repeat(ends - part.card_counts, part.card_counts)
        return self._first_rows[part.containers[row]] + card, (part.rows[row], card)

    def _count_zeros(
        self, duty_cycle: Float64, uses_card: NDArray[np.bool_], cards: Mapping[str, CardFacts]
    ) -> NDArray[np.bool_]:
        """Whether each slice has shown 0 long enough on a busy card that nobody else was granted."""
        facts = [cards.get(card) for card in self._cards]
        busy = np.fromiter(
            (fact is not None and (fact.duty_cycle_ratio or 0.0) >= BUSY_RATIO for fact in facts), dtype=np.bool_
        )
        is_odd = (duty_cycle == 0) & self._is_alone & uses_card
        is_odd &= busy[self._card_numbers] if len(busy) else False
        self._zeros_on_busy_card = np.where(is_odd, self._zeros_on_busy_card + 1, 0)
        return np.asarray(self._zeros_on_busy_card >= LYING_READINGS)


def card_counts_of(containers: int, seen: Sequence[Seen]) -> Index:
    """Cards of each container that are shown; shape `(containers,)`."""
    counts = np.zeros(containers, dtype=np.int64)
    for part in seen:
        counts[part.containers] = part.card_counts
    return counts


def _bits_of(place: ContainerPlace) -> int:
    return 0 if place.doubt is None else bit_of(place.doubt)
