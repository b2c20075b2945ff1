"""Cards of this node through NVML, as a `DeviceReader`.

Its readings have cards and no slices: NVML knows processes, and not whose they are. Anybody who knows takes
`cards_reading`, the same figures as records, and joins them with pods. Chosen by the command line's `run export node`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import numpy as np

from exporter.card_families import CardFamilies
from exporter.nvml.cards import NvmlCards
from exporter.nvml.figures import Activity, CardReading, CardsReading, CardState, Gauge
from exporter.reader import Float64, InventoryChange, Reading
from fleet.inventory import Card, CardId, Node
from fleet.schema import CARD_MEASURES, Measure, MeasureColumn
from fleet.usage import CardKey

_SAMPLED: Mapping[Measure, Activity] = MappingProxyType(
    {
        column.measure: Activity(column.measure.value)
        for column in CARD_MEASURES
        if column.measure.value in Activity.__members__.values()
    }
)
"""Measures that are sampled several times per reading: an activity of NVML has the name of its measure."""


class NvmlReader:
    """Reads this node's cards.

    Args:
        cards: the cards; closed with the reader.
    """

    def __init__(
        self, cards: NvmlCards, *, cluster: str, node: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._cards = cards
        self._cluster = cluster
        self._node = Node(node=node, cluster=cluster)
        self._now = now
        self._families = CardFamilies(cluster=cluster, node=node)
        self._told: dict[CardId, Card] = {}
        self._is_first = True
        self._last_at: datetime | None = None
        self._cards_reading: CardsReading | None = None

    @property
    def cards_reading(self) -> CardsReading | None:
        """What the latest reading was made from; None before the first."""
        return self._cards_reading

    def read(self, deadline_seconds: float) -> Reading:
        """Reads once; see `DeviceReader`."""
        found = self._cards.read(deadline_seconds)
        self._cards_reading = found
        records = {card.card: card for reading in found.cards if (card := self._record(reading)) is not None}
        changed = tuple(card for card in records.values() if self._told.get(card.card) != card)
        self._told.update((card.card, card) for card in changed)
        # A card that has nothing new to tell has no row: a figure from before would count as one of now.
        fresh = [one for one in found.cards if one.is_new and one.identity.card in self._told]
        reading = Reading(
            at=self._moment(),
            cards=tuple(self._key(one) for one in fresh),
            card_values=_card_values(fresh),
            change=InventoryChange(cards=changed, nodes=(self._node,) if self._is_first else ()),
            families=self._families.of(found),
        )
        self._is_first = False
        return reading

    def close(self) -> None:
        """Ends the threads and gives the library back."""
        self._cards.close()

    def _moment(self) -> datetime:
        moment = self._now()
        if self._last_at is not None and moment <= self._last_at:
            # The node's clock was set back; readings stay in order.
            moment = self._last_at + timedelta(milliseconds=1)
        self._last_at = moment
        return moment

    def _key(self, reading: CardReading) -> CardKey:
        identity = reading.identity
        return CardKey(cluster=self._cluster, node=self._node.node, card=identity.card, card_model=identity.card_model)

    def _record(self, reading: CardReading) -> Card | None:
        identity, figures = reading.identity, reading.figures
        if reading.state is not CardState.OK or figures is None:
            return None
        framebuffer_bytes = identity.framebuffer_bytes
        if framebuffer_bytes is None and figures.framebuffer is not None:
            framebuffer_bytes = figures.framebuffer.total_bytes
        if framebuffer_bytes is None:
            return None
        return Card(
            card=identity.card,
            card_model=identity.card_model,
            framebuffer_bytes=framebuffer_bytes,
            node=self._node.node,
            cluster=self._cluster,
            mig_mode=figures.mig_mode,
        )


def _card_values(readings: Sequence[CardReading]) -> dict[Measure, Float64]:
    """One column per measure that any of the cards has."""
    columns: dict[Measure, Float64] = {}
    for column in CARD_MEASURES:
        values = np.array([_value(reading, column) for reading in readings], np.float64)
        if not np.isnan(values).all():
            columns[column.measure] = values
    return columns


def _value(reading: CardReading, column: MeasureColumn) -> float:
    figures = reading.figures
    if figures is None:
        return np.nan
    if column.measure is Measure.TEMPERATURE:
        value = figures.gauges.get(Gauge.TEMPERATURE)
    else:
        activity = _SAMPLED.get(column.measure)
        spread = None if activity is None else figures.activities.get(activity)
        value = None if spread is None else spread.mean
    return value if value is not None and column.value_min <= value <= column.value_max else np.nan
