"""Processes whose slots still stand in a region though they live no more, by what the driver lists on the cards.

A process that was killed can't clear its slot, and what it used stays in it until another one of its container starts.
The driver lists living processes by their ids on the host, which the library knows too. A process counts as gone where
the driver has listed it once and lists it no more: one that it never listed may have just started, or the library may
have mistaken its id, and its use is no 0. Owned by `exporter.reader_hami`.

Source: Project-HAMi/HAMi-core:src/multiprocess/multiprocess_memory_limit.c (clear_proc_slot_nolock).
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.regions.columns import CardFacts

_NOBODY = frozenset[int]()


class KilledProcesses:
    """Remembers which host processes the driver has listed on which card."""

    def __init__(self) -> None:
        self._once: dict[str, frozenset[int]] = {}
        self._gone = _NOBODY

    def gone(self, cards: Mapping[str, CardFacts]) -> frozenset[int]:
        """Host ids of processes that live no more.

        Args:
            cards: what the driver tells now; of a card that does not tell its processes, what it told before stands.
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
