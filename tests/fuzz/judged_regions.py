"""The reader of shared regions, held against the naive one: what it believes must be what stands there.

One fault is any exception, any claim of trust that the naive reader's rules don't bear out (and any doubt that they
don't), any figure that is not the naive reader's.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

from exporter.regions.columns import CardFacts, HamiReading
from exporter.regions.reader import HamiReader
from fleet.regions.doubts import RegionDoubt, bit_of, doubts_of
from tests.fuzz.hostile_regions import FRAMEBUFFERS, HostileRegions
from tests.regions.plain_regions import NOW, PlainCard, Verdict, judge

FACTS = {card: CardFacts(framebuffer_bytes=framebuffer) for card, framebuffer in FRAMEBUFFERS.items()}


class JudgedRegions:
    """Rounds of regions in one folder.

    Args:
        folder: an empty folder; best in memory.
        seed: seed of the regions.
        regions: regions per round.
    """

    def __init__(self, folder: Path, seed: int, regions: int) -> None:
        self.told: Counter[str] = Counter()
        """How often each doubt, and trust, was told."""
        self._folder = folder
        self._hostile = HostileRegions(seed)
        self._files = []
        for number in range(regions):
            place = folder / f"{number:08x}-0000-4000-8000-000000000000_main"
            place.mkdir()
            name = place / f"{number:08x}-1111-4000-8000-000000000000.cache"
            self._files.append(os.open(name, os.O_RDWR | os.O_CREAT, 0o666))

    def round(self) -> str | None:
        """Read and judge one round; the first fault, None where there is none."""
        for fd in self._files:
            self._hostile.write_into(fd)
        reader = HamiReader(self._folder)
        try:
            reading = reader.read(FACTS, now_seconds=NOW, deadline_seconds=60)
        finally:
            reader.close()
        cards = _cards_of(reading)
        for number, fd in enumerate(self._files):
            doubts = int(reading.containers.doubts[number])
            self.told.update(map(str, doubts_of(doubts)) if doubts else ("trusted",))
            verdict = judge(fd, FRAMEBUFFERS)
            fault = _fault(doubts, cards.get(number, {}), reading.containers.layouts[number], verdict)
            if fault is not None:
                return f"region {number}: {fault}"
        return None

    def close(self) -> None:
        """Close the files."""
        for fd in self._files:
            os.close(fd)


def _fault(doubts: int, cards: dict[str, PlainCard], layout: str | None, verdict: Verdict) -> str | None:
    named = ", ".join(doubts_of(doubts))
    if doubts == bit_of(RegionDoubt.TOO_MANY_PROCESSES) and not cards:
        return None  # not looked at, so nothing was claimed
    if (doubts == 0) != verdict.is_trusted:
        return f"the naive reader says trusted={verdict.is_trusted}, the reader {named or 'trusted'}"
    if cards.keys() != verdict.cards.keys():
        return f"cards {sorted(cards)}, by the naive reader {sorted(verdict.cards)} ({named})"
    if verdict.cards and layout != verdict.layout:
        return f"layout {layout}, by the naive reader {verdict.layout} ({named})"
    for card, figures in cards.items():
        if figures != verdict.cards[card]:
            return f"{figures}, by the naive reader {verdict.cards[card]} ({named})"
    return None


def _cards_of(reading: HamiReading) -> dict[int, dict[str, PlainCard]]:
    """Figures by container and card, in the naive reader's words."""
    slices = reading.slices
    columns = (
        slices.framebuffer_used, slices.framebuffer_context, slices.framebuffer_module, slices.framebuffer_data,
        slices.framebuffer_of_driver, slices.framebuffer_limit, slices.compute_limit, slices.duty_cycle,
    )  # fmt: skip
    found: dict[int, dict[str, PlainCard]] = {}
    rows = zip(slices.containers.tolist(), slices.keys, *(column.tolist() for column in columns), strict=True)
    for container, key, *values in rows:
        used, context, module, data, driver, limit, compute, duty = (
            None if math.isnan(value) else value for value in values
        )
        found.setdefault(container, {})[key.card] = PlainCard(
            used=used, context=context, module=module, data=data, driver=driver, limit=limit, compute_limit=compute,
            duty=duty,
        )  # fmt: skip
    return found
