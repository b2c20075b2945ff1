"""What a trace says beyond its measures, as the live exporters of nodes and clusters show it: framebuffer and grants.

A derivation for the collector of `gputide run export node --replay`. Names, labels and the rules by which grants add
up are those of `exporter.card_families` and `exporter.allocation`. Left out is what no trace says: who hands out cards,
and how much of them may be granted.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporter.allocation.places import Holding, card_books
from exporter.allocation.rows import books_rows, holding_rows
from exporter.allocation.tables import Labels, Row
from exporter.card_families import FRAMEBUFFER_CAPACITY, FRAMEBUFFER_FREE
from exporter.collector import Snapshot
from exporter.families import CataloguedFamily, Family, KeptLabels
from fleet.inventory import CardId, Grant
from fleet.schema import CARD_IDENTITY, SLICE_IDENTITY, Measure
from fleet.usage import SliceKey


class ReplayedFamilies:
    """Names what the snapshots of one replay show."""

    def __init__(self) -> None:
        self._kept = KeptLabels()

    def __call__(self, snapshot: Snapshot) -> tuple[Family, ...]:
        """The families of a snapshot."""
        found: dict[str, tuple[CataloguedFamily, list[tuple[Labels, float]]]] = {}
        for family, labels, value in _rows(snapshot):
            found.setdefault(family.name, (family, []))[1].append((labels, value))
        return tuple(self._kept.family(family, rows) for family, rows in found.values())


def _rows(snapshot: Snapshot) -> Iterator[Row]:
    reading = snapshot.reading
    measured = reading.card_values.get(Measure.FRAMEBUFFER_USED, ())
    used = dict(zip((key.card for key in reading.cards), measured, strict=False))
    held: dict[CardId, dict[str, tuple[Holding, ...]]] = {}
    for grant in snapshot.grants:
        holding = _holding(grant)
        yield from holding_rows(tuple(str(getattr(SliceKey.of(grant), name)) for name in SLICE_IDENTITY), holding)
        pods = held.setdefault(grant.card, {})
        pods[grant.pod_id] = (*pods.get(grant.pod_id, ()), holding)
    for card in snapshot.cards:
        labels = tuple(str(getattr(card, name)) for name in CARD_IDENTITY)
        yield FRAMEBUFFER_CAPACITY, labels, float(card.framebuffer_bytes)
        if card.card in used:
            # Not a number where nothing was collected, and left out then.
            yield FRAMEBUFFER_FREE, labels, card.framebuffer_bytes - float(used[card.card])
        yield from books_rows(labels, card_books(held.get(card.card, {}).values()))


def _holding(grant: Grant) -> Holding:
    """A trace writes a share of 1 where nothing limits the compute."""
    ratio = grant.compute_granted_ratio
    return Holding(
        container=grant.container,
        card=grant.card,
        framebuffer_bytes=grant.framebuffer_granted_bytes,
        compute_ratio=ratio if ratio < 1 else None,
        mig_profile=grant.mig_profile,
    )
