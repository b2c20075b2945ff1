"""Reads what HAMi's library (and Volcano's copy of it) knows of every container of a node: limits, use, state.

Each reading gives columns by (pod UID, container, card), which the node's reader joins with names and grants, and
columns by container. A region that can't be believed is named with the reason; a figure that can't is NaN. A container
whose process never called CUDA has a directory and no region: it is listed, with no card. Never blocks on a process of
a container: no lock is taken, no byte is written.

What is done about the library's known lies stands in `exporter.regions.figures`; one needs the card's own duty cycle
and is caught here: on some cards the driver reports no utilisation per process, and a container shows 0 under full load
(Project-HAMi/HAMi#2015).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from exporter.regions.columns import CardFacts, HamiReading
from exporter.regions.followed import FollowedRegion
from exporter.regions.looks import RegionLooks
from exporter.regions.slices import Seen, SliceRows, card_counts_of, container_columns, process_columns
from exporter.regions.tree import ContainerKey, ContainerPlace, RegionTree


class HamiReader:
    """Reads all regions of a node; used by one thread.

    Args:
        containers_dir: `<hook path>/vgpu/containers`; may not be there yet.
    """

    def __init__(self, containers_dir: Path) -> None:
        self._tree = RegionTree(containers_dir)
        self._looks = RegionLooks()
        self._framebuffers: Mapping[str, float] = {}
        self._places: tuple[ContainerPlace, ...] = ()
        self._keys: tuple[ContainerKey, ...] = ()
        self._rows: SliceRows | None = None

    def read(self, cards: Mapping[str, CardFacts], *, now_seconds: float, deadline_seconds: float) -> HamiReading:
        """Reads every region once.

        Args:
            cards: what is known of the node's cards, by UUID; may be empty.
            now_seconds: Unix seconds.
            deadline_seconds: longest time that the call may take, above 0.

        Raises:
            Unavailable: it would take longer, or the directory is there and can't be read.
        """
        deadline_at = time.monotonic() + deadline_seconds
        places = self._tree.look()
        if places is not self._places:
            self._places, self._keys = places, tuple(place.key for place in places)
        regions = _numbered(places)
        framebuffers = {
            card: facts.framebuffer_bytes for card, facts in cards.items() if facts.framebuffer_bytes is not None
        }
        if framebuffers != self._framebuffers:
            self._framebuffers = framebuffers
        looks = self._looks.at(
            regions, framebuffers=self._framebuffers, now_seconds=now_seconds, deadline_at=deadline_at
        )
        seen = [Seen.of(look) for look in looks]
        card_counts = card_counts_of(len(places), seen)
        changed = [region for region in regions if region.cards_changed]
        if self._rows is None or changed or not self._rows.hold(self._keys, card_counts):
            self._rows = SliceRows(places, self._keys, card_counts, self._rows)
        for region in changed:
            region.cards_changed = False
        return HamiReading(
            at_seconds=now_seconds,
            slices=self._rows.columns(seen, cards),
            containers=container_columns(self._keys, places, seen),
            processes=process_columns(seen),
            foreign_directories=self._tree.foreign_directories,
        )

    def close(self) -> None:
        """Closes every region; more than once does no harm."""
        self._tree.close()
        self._places, self._keys, self._rows = (), (), None


def _numbered(places: tuple[ContainerPlace, ...]) -> list[FollowedRegion]:
    """The open regions, each with the row of its container."""
    regions = []
    for row, place in enumerate(places):
        if place.region is not None:
            place.region.row = row
            regions.append(place.region)
    return regions
