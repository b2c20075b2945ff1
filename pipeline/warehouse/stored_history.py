"""A cluster's history before its values are read: who and when, and the grids that come of them.

Called by `parquet_reads`, and for a history in parts by `history_parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet.inventory import CardId, CardModelName, Inventory
from fleet.schema import CARD_MEASURES, SLICE_MEASURES, MeasureColumn
from fleet.usage import CardKey, History, SliceKey, UsageGrid
from pipeline.warehouse.usage_grid import Layout, Span, UsageFiles, fill_grid, moment_of, read_span


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGrid:
    """One usage table of a history: its files, who and when, and the grid that it makes."""

    files: UsageFiles
    span: Span
    layout: Layout

    def whole(self) -> UsageGrid[Any]:
        """The grid, in memory."""
        return fill_grid(self.span if self.span.identity is not None else read_span(self.files), self.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistory:
    """What a cluster's history holds; `cards` is None where no source measures cards."""

    inventory: Inventory
    slices: StoredGrid
    cards: StoredGrid | None

    @property
    def is_small(self) -> bool:
        """Whether it has no more rows than may be read as a whole."""
        return all(grid.span.identity is not None for grid in (self.slices, self.cards) if grid is not None)

    def whole(self) -> History:
        """All of it, in memory."""
        return History(
            inventory=self.inventory,
            slices=self.slices.whole(),
            cards=None if self.cards is None else self.cards.whole(),
        )


def stored_slices(files: UsageFiles, span: Span, inventory: Inventory, since_ms: int, until_ms: int) -> StoredGrid:
    """The slices of a history; grid rows are the identities that name a card.

    A series that names a pod and no card (an inference server's own) counts for every slice of its pod. One that names
    pod and card and no container (KAI's GPU fractioning) is of the only container that was granted a part of the card,
    unless another source says what that one does.
    """
    named = [_slice_key(texts) for texts in span.identities]
    bare = {(key.namespace, key.pod, key.card) for key in named if key.card and not key.container}
    granted: dict[tuple[str, str, str], set[SliceKey]] = {}
    for grant in inventory.grants if bare else ():
        if (grant.namespace, grant.pod, grant.card) in bare:
            granted.setdefault((grant.namespace, grant.pod, grant.card), set()).add(SliceKey.of(grant))
    only = {place: next(iter(keys)) for place, keys in granted.items() if len(keys) == 1 and keys.isdisjoint(named)}
    own = [key if key.container else only.get((key.namespace, key.pod, key.card), key) for key in named]
    places: dict[SliceKey, int] = {}
    slices_of_pod: dict[tuple[str, str], list[int]] = {}
    for key in own:
        if key.card and key not in places:
            places[key] = len(places)
            slices_of_pod.setdefault((key.namespace, key.pod), []).append(places[key])
    rows = [(places[key],) if key.card else tuple(slices_of_pod.get((key.namespace, key.pod), ())) for key in own]
    return _stored(files, span, (tuple(places), SLICE_MEASURES, rows), since_ms, until_ms)


def stored_cards(files: UsageFiles, span: Span, since_ms: int, until_ms: int) -> StoredGrid:
    """The cards of a history, each identity a row."""
    keys = tuple(_card_key(texts) for texts in span.identities)
    return _stored(files, span, (keys, CARD_MEASURES, [(place,) for place in range(len(keys))]), since_ms, until_ms)


def _stored(
    files: UsageFiles,
    span: Span,
    made_of: tuple[tuple[Any, ...], tuple[MeasureColumn, ...], Sequence[tuple[int, ...]]],
    since_ms: int,
    until_ms: int,
) -> StoredGrid:
    keys, measures, rows = made_of
    steps = max(0, -((since_ms - until_ms) // (span.step_seconds * 1000)))
    layout = Layout(
        keys=keys, measures=measures, rows=rows, since=moment_of(since_ms), step_seconds=span.step_seconds, steps=steps
    )
    return StoredGrid(files=files, span=span, layout=layout)


def _slice_key(texts: tuple[str, ...]) -> SliceKey:
    cluster, namespace, pod, container, node, card, card_model = texts
    return SliceKey(
        cluster=cluster,
        namespace=namespace,
        pod=pod,
        container=container,
        node=node,
        card=CardId(card),
        card_model=CardModelName(card_model),
    )


def _card_key(texts: tuple[str, ...]) -> CardKey:
    cluster, node, card, card_model = texts
    return CardKey(cluster=cluster, node=node, card=CardId(card), card_model=CardModelName(card_model))
