"""Reads what HAMi's library (and Volcano's copy of it) knows of every container of a node: limits, use, state.

Each reading gives columns by (pod UID, container, card), which the node's reader joins with names and grants, and
columns by container. A region that can't be trusted is named with the reason; a figure that can't is NaN. A container
whose process never called CUDA has a directory and no region: it is listed, with no card. Never blocks on a process of
a container: no lock is taken, no byte is written.

Known errors of the library are corrected in `exporter.regions.decode`; two need the driver's view and are corrected
here. On some cards the driver reports no utilisation per process, and a container shows 0 under full load
(Project-HAMi/HAMi#2015). And a process that was killed can't clear its slot, and what it used stays in it until another
one of its container starts. The driver lists living processes by their ids on the host, which the library knows too. A
process counts as gone where the driver has listed it once and lists it no more: one that it never listed may have just
started, or the library may have mistaken its id, and its use is no 0.

Source: Project-HAMi/HAMi-core:src/multiprocess/multiprocess_memory_limit.c (clear_proc_slot_nolock).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from exporter.regions.columns import CardFacts, HamiReading
from exporter.regions.followed import FollowedRegion
from exporter.regions.looks import RegionLooks
from exporter.regions.slices import Seen, SliceRows, card_counts_of, container_columns, process_columns
from exporter.regions.tree import NO_CLAIMS, ClaimUsers, ContainerKey, ContainerPlace, RegionTree


class HamiReader:
    """Reads all regions of a node; used by one thread.

    Args:
        containers_dir: `<hook path>/vgpu/containers`; may not be there yet.
        claims_dir: `<hook path>/vgpu/claims`; may not be there. None not to look.
    """

    def __init__(self, containers_dir: Path, claims_dir: Path | None = None) -> None:
        self._tree = RegionTree(containers_dir, claims_dir)
        self._looks = RegionLooks()
        self._framebuffers: Mapping[str, float] = {}
        self._places: tuple[ContainerPlace, ...] = ()
        self._keys: tuple[ContainerKey, ...] = ()
        self._rows: SliceRows | None = None
        self._killed = KilledProcesses()

    def read(
        self,
        cards: Mapping[str, CardFacts],
        *,
        now_seconds: float,
        deadline_seconds: float,
        claims: ClaimUsers = NO_CLAIMS,
    ) -> HamiReading:
        """Reads every region once.

        Args:
            cards: what is known of the node's cards, by UUID; may be empty.

        Raises:
            Unavailable: it would take longer, or the directory is there and can't be read.
        """
        deadline_at = time.monotonic() + deadline_seconds
        places = self._tree.look(claims)
        if places is not self._places:
            self._places, self._keys = places, tuple(place.key for place in places)
        regions = _numbered(places)
        framebuffers = {
            card: facts.framebuffer_bytes for card, facts in cards.items() if facts.framebuffer_bytes is not None
        }
        if framebuffers != self._framebuffers:
            self._framebuffers = framebuffers
        gone = self._killed.gone(cards)
        looks = self._looks.at(
            regions,
            framebuffers=self._framebuffers,
            now_seconds=now_seconds,
            deadline_at=deadline_at,
            gone=np.fromiter(gone, dtype=np.int32, count=len(gone)),
        )
        seen = [Seen.of(look) for look in looks]
        card_counts = card_counts_of(len(places), seen)
        changed = [region for region in regions if region.cards_changed]
        if self._rows is None or changed or not self._rows.hold(self._keys, card_counts):
            self._rows = SliceRows(places, self._keys, card_counts, self._rows)
        for region in changed:
            region.cards_changed = False
        self._killed.forget_all_but(_standing(seen))
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


def _standing(seen: Sequence[Seen]) -> frozenset[int]:
    """Host pids in the slots of all regions, living or not."""
    return frozenset[int]().union(*(np.unique(part.figures.host_pid[part.rows]).tolist() for part in seen))


def _numbered(places: tuple[ContainerPlace, ...]) -> list[FollowedRegion]:
    """The open regions, each with the row of its container."""
    regions = []
    for row, place in enumerate(places):
        if place.region is not None:
            place.region.row = row
            regions.append(place.region)
    return regions


_NOBODY = frozenset[int]()


class KilledProcesses:
    """Remembers which host processes the driver has listed on which card."""

    def __init__(self) -> None:
        self._once: dict[str, frozenset[int]] = {}
        self._gone = _NOBODY

    def gone(self, cards: Mapping[str, CardFacts]) -> frozenset[int]:
        """Host ids of processes that live no more.

        Args:
            cards: what the driver reports now; of a card that does not report its processes, its last report stands.
        """
        told = {card: facts.host_pids for card, facts in cards.items() if facts.host_pids is not None}
        listed = _NOBODY.union(*told.values())
        self._once.update((card, self._once.get(card, _NOBODY) | pids) for card, pids in told.items())
        untold = _NOBODY.union(*(pids for card, pids in self._once.items() if card not in told))
        once = _NOBODY.union(*(self._once[card] for card in told))
        self._gone = (self._gone | (once - untold)) - listed
        return self._gone

    def forget_all_but(self, standing: frozenset[int]) -> None:
        """Forgets processes that have no slot in any region any more.

        Args:
            standing: host ids in the slots of all regions.
        """
        self._once = {card: pids & standing for card, pids in self._once.items()}
        self._gone &= standing
