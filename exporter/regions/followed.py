"""One open region of a container, and what is remembered of it from one look to the next.

What changes seldom - layout, cards, number of processes - is found once and only compared afterwards, so that a reading
of a thousand regions costs two reads each and little more. Kept by `exporter.regions.tree`, read by
`exporter.regions.looks`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

import numpy as np

from fleet.regions.doubts import RegionDoubt, bit_of
from fleet.regions.fields import CARD_ID_BYTES, CARDS_MAX, MAGIC, PROCESSES_MAX
from fleet.regions.files import size_of
from fleet.regions.layouts import Layout, candidates, find_layout, parse_card_id

SLOTS_FOR_LAYOUT = 64
"""Slots that are asked which layout it is."""

_SLOT_STEPS = (2, 8, 32, 128, 512, PROCESSES_MAX)


class FollowedRegion:
    """One open region and what is remembered of it from look to look; changes in place.

    Attributes:
        fd: the open file; its opener closes it.
        layout: its layout; None before the first look, and after one that could not be read.
        card_bytes: the number of its cards and all their ids, as they stood there at the last look.
        cards: ids of its cards, by their place.
        framebuffers: what `card_framebuffers` was taken from.
        card_framebuffers: framebuffer of each, bytes; NaN = not known.
        doubts_of_cards: bit set of doubts about them.
        cards_changed: they changed since the reader set it to False.
        refused: bit set of doubts because of which the last reading has no look at it; 0 otherwise.
        slots: process slots that are read.
        table: digest of the process table at the last look; 0 before the first one.
        usage: digest of the usage at the last look.
        row: its place among the regions of its reader.
    """

    __slots__ = (
        "card_bytes", "card_framebuffers", "cards", "cards_changed", "doubts_of_cards", "fd", "framebuffers",
        "layout", "refused", "row", "slots", "table", "usage",
    )  # fmt: skip

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.layout: Layout | None = None
        self.slots = _SLOT_STEPS[0]
        self.cards: tuple[str, ...] = ()
        self.card_framebuffers: tuple[float, ...] = ()
        self.cards_changed = False
        self.doubts_of_cards = 0
        self.refused = 0
        self.table = 0
        self.usage = 0
        self.row = 0
        self.card_bytes = bytearray()
        self.framebuffers: Mapping[str, float] | None = None

    def find_layout(self) -> None:
        """Finds the layout anew, and how many slots are in use."""
        self.layout, self.refused = None, 0
        try:
            size = size_of(self.fd)
            shapes = candidates(size)
            if not shapes:
                self.refused = bit_of(RegionDoubt.UNKNOWN_SIZE)
                return
            # Layouts of one size differ in nothing that is asked here.
            raw = os.pread(self.fd, 4, shapes[0].tail_offset)
            claimed = struct.unpack("<i", raw)[0] if len(raw) == 4 else 0
            count = claimed if 0 <= claimed <= PROCESSES_MAX else 0
            asked = min(count, SLOTS_FOR_LAYOUT)
            head = os.pread(self.fd, shapes[0].slots_offset + asked * shapes[0].slot_bytes, 0)
        except OSError:
            self.refused = bit_of(RegionDoubt.UNREADABLE)
            return
        if len(head) < shapes[0].slots_offset:
            self.refused = bit_of(RegionDoubt.UNKNOWN_SIZE)
        elif head[:4] != MAGIC.to_bytes(4, "little"):
            self.refused = bit_of(RegionDoubt.UNINITIALISED)
        else:
            self.layout = find_layout(size, head, asked)
            self.refused = 0 if self.layout is not None else bit_of(RegionDoubt.UNKNOWN_VERSION)
            self.make_room(count)

    def make_room(self, process_count: int) -> None:
        """Reads at least as many slots as are in use, in few sizes, so that most regions lie in one batch."""
        self.slots = next(slots for slots in _SLOT_STEPS if slots >= process_count)

    def take_cards(self, raw: bytearray, framebuffers: Mapping[str, float]) -> None:
        """Parses the cards, which are others than before, and takes what is known of them.

        Args:
            raw: the number of cards and all their ids; kept.
            framebuffers: framebuffer by card, bytes; kept.
        """
        if raw != self.card_bytes:
            cards, self.doubts_of_cards = _cards_of(bytes(raw))
            self.cards_changed = self.cards_changed or cards != self.cards
            self.cards = cards
        self.card_bytes, self.framebuffers = raw, framebuffers
        self.card_framebuffers = tuple(framebuffers.get(card, np.nan) for card in self.cards)


def _cards_of(raw: bytes) -> tuple[tuple[str, ...], int]:
    """The cards' ids; empty, and a doubt, where they are not what the library writes."""
    count = int.from_bytes(raw[:8], "little")
    if count > CARDS_MAX:
        return (), bit_of(RegionDoubt.CARD_COUNT_IMPOSSIBLE)
    ids = [raw[start : start + CARD_ID_BYTES] for start in range(8, 8 + count * CARD_ID_BYTES, CARD_ID_BYTES)]
    # The library writes the number first, then the ids.
    if not all(text[0] for text in ids) or not ids:
        return (), bit_of(RegionDoubt.NO_CARDS)
    cards = tuple(card for text in ids if (card := parse_card_id(text)) is not None)
    if len(cards) < count:
        return (), bit_of(RegionDoubt.CARD_ID_MALFORMED)
    if len(set(cards)) < count:
        return (), bit_of(RegionDoubt.CARD_REPEATED)
    return cards, 0
