"""The measures of a reading, and what stands there, as families.

Measures become `gputide_card_…` and `gputide_slice_…`; cards, nodes and grants become `gputide_card_info`,
`gputide_node_info` and `gputide_slice_info` of value 1. Labels are made once per key and kept while it is there.
Called by `exporter.exposition.rendering`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import numpy as np

from exporter.collector import Snapshot
from exporter.families import CataloguedFamily, Column, gauge, info
from exporter.series_blocks import SeriesLabels, card_info_labels, grant_info_labels, key_labels, node_info_labels
from fleet.inventory import Card, Grant, Node
from fleet.schema import (
    CARD_IDENTITY,
    CARD_INFO_LABELS,
    CARD_MEASURES,
    GRANT_LABELS,
    NODE_INFO_LABELS,
    SLICE_IDENTITY,
    SLICE_MEASURES,
    Measure,
)
from fleet.series import CARD_INFO, NODE_INFO, SLICE_INFO, card_series, slice_series
from fleet.usage import CardKey, SliceKey

CARD_FAMILIES: Mapping[Measure, CataloguedFamily] = {
    column.measure: gauge(card_series(column.measure), column.help_text, CARD_IDENTITY) for column in CARD_MEASURES
}
"""The family of each measure of a card."""

SLICE_FAMILIES: Mapping[Measure, CataloguedFamily] = {
    column.measure: gauge(slice_series(column.measure), column.help_text, SLICE_IDENTITY) for column in SLICE_MEASURES
}
"""The family of each measure of a slice."""


CARD_INFO_FAMILY = info(CARD_INFO, "A card; always 1.", CARD_INFO_LABELS)
NODE_INFO_FAMILY = info(NODE_INFO, "A node that holds cards; always 1.", NODE_INFO_LABELS)
SLICE_INFO_FAMILY = info(SLICE_INFO, "A grant: what one container was given on one card; always 1.", GRANT_LABELS)

READING_FAMILIES: tuple[CataloguedFamily, ...] = (
    *CARD_FAMILIES.values(),
    *SLICE_FAMILIES.values(),
    CARD_INFO_FAMILY,
    NODE_INFO_FAMILY,
    SLICE_INFO_FAMILY,
)
"""Every family that is made here."""

Kept = TypeVar("Kept", CardKey, SliceKey, Card, Node, Grant)
"""What a label tuple is made of."""


class ReadingFamilies:
    """Turns the snapshots of one collector into families, and keeps the label tuples from one to the next."""

    def __init__(self) -> None:
        self._cards = _KeptLabels[CardKey](_key_values)
        self._slices = _KeptLabels[SliceKey](_key_values)
        self._card_infos = _KeptLabels[Card](lambda card: _values(CARD_INFO_LABELS, card_info_labels(card)))
        self._node_infos = _KeptLabels[Node](lambda node: _values(NODE_INFO_LABELS, node_info_labels(node)))
        self._slice_infos = _KeptLabels[Grant](lambda grant: _values(GRANT_LABELS, grant_info_labels(grant)))

    def of(self, snapshot: Snapshot) -> list[Column]:
        """The families of a snapshot's measures and of what stands there.

        Args:
            snapshot: the snapshot; a measure that nobody has gives no family.
        """
        reading = snapshot.reading
        cards, slices = self._cards.of(reading.cards), self._slices.of(reading.slices)
        columns: list[Column] = [
            (family, cards, reading.card_values[measure])
            for measure, family in CARD_FAMILIES.items()
            if measure in reading.card_values
        ]
        columns += [
            (family, slices, reading.slice_values[measure])
            for measure, family in SLICE_FAMILIES.items()
            if measure in reading.slice_values
        ]
        infos = (
            (CARD_INFO_FAMILY, self._card_infos.of(snapshot.cards)),
            (NODE_INFO_FAMILY, self._node_infos.of(snapshot.nodes)),
            (SLICE_INFO_FAMILY, self._slice_infos.of(snapshot.grants)),
        )
        columns += [(family, labels, np.ones(len(labels))) for family, labels in infos if labels]
        return columns


class _KeptLabels(Generic[Kept]):
    """Label tuples of a row of things, made anew only for things that are new."""

    def __init__(self, labels_of: Callable[[Kept], tuple[str, ...]]) -> None:
        self._labels_of: Callable[[Kept], tuple[str, ...]] = labels_of
        self._things: tuple[Kept, ...] = ()
        self._labels: tuple[tuple[str, ...], ...] = ()

    def of(self, things: tuple[Kept, ...]) -> tuple[tuple[str, ...], ...]:
        if things is not self._things and things != self._things:
            known = dict(zip(self._things, self._labels, strict=True))
            self._labels = tuple(known.get(thing) or self._labels_of(thing) for thing in things)
        self._things = things
        return self._labels


def _key_values(key: CardKey | SliceKey) -> tuple[str, ...]:
    return tuple(value for _, value in key_labels(key))


def _values(names: tuple[str, ...], labels: SeriesLabels) -> tuple[str, ...]:
    found = dict(labels)
    return tuple(found.get(name, "") for name in names)
