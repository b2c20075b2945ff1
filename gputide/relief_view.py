"""Fulfils the pages' `ReliefLog`: what relief did, from its own ledger in the data folder."""

from __future__ import annotations

import threading

from dashboards.queries import FleetView
from dashboards.shown.relief_acts import MoveState, ReliefActs, ReliefMove, ReliefSleep
from enforcer.record.ledger import Ledger
from enforcer.relief.book import Manner, MovePhase, MoveRecord, ReliefBook
from fleet.data_folder import DataFolder
from fleet.inventory import CardId


class StoredRelief:
    """`ReliefLog` over a data folder.

    Args:
        folder: data folder.
        fleet: knows which cards are of which cluster: the ledger of relief names none.
    """

    def __init__(self, folder: DataFolder, fleet: FleetView) -> None:
        self._folder = folder
        self._fleet = fleet
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int], ReliefActs] | None = None

    def acts(self, cluster: str) -> ReliefActs:
        """What relief did in one cluster.

        Raises:
            Corrupt: the ledger was edited.
        """
        found = self._all()
        if (not found.moves and not found.sleeps) or self._fleet.clusters() == (cluster,):
            return found
        cards = {card.card for card in self._fleet.profiles(cluster).cards}
        return ReliefActs(
            sleeps=tuple(one for one in found.sleeps if one.card in cards),
            moves=tuple(move for move in found.moves if move.from_card in cards or move.to_card in cards),
        )

    def _all(self) -> ReliefActs:
        """Read anew when the ledger grew."""
        file = self._folder.relief
        if not file.exists():
            return ReliefActs()
        stat = file.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        with self._lock:
            if self._read is None or self._read[0] != version:
                self._read = version, acts_of(ReliefBook(Ledger(file)))
            return self._read[1]


def acts_of(book: ReliefBook) -> ReliefActs:
    """What a book of relief tells, as the pages show it.

    Raises:
        Corrupt: the ledger was edited.
    """
    return ReliefActs(
        sleeps=tuple(
            ReliefSleep(node=one.node, card=CardId(one.card), containers=len(one.containers), since=one.at)
            for one in book.open_squeezes()
        ),
        moves=tuple(_move(record) for record in reversed(book.moves())),
    )


def _move(record: MoveRecord) -> ReliefMove:
    order, ended = record.order, record.ended_at
    return ReliefMove(
        workload=order.workload,
        pod=order.pod,
        from_card=CardId(order.from_card),
        to_card=CardId(order.to_card),
        is_restart=order.manner is Manner.RESTART,
        is_home=order.is_home,
        state=_state(record),
        begun_at=record.begun_at,
        seconds=None if ended is None else (ended - record.begun_at).total_seconds(),
        reason=order.reason,
        why=record.why,
    )


def _state(record: MoveRecord) -> MoveState:
    if record.phase is MovePhase.TAKEN_BACK:
        return MoveState.TAKEN_BACK
    if record.is_open:
        return MoveState.UNDER_WAY
    if record.order.is_home or record.is_home_again:
        return MoveState.HOME_AGAIN
    return MoveState.AWAY if record.order.manner is Manner.WARM else MoveState.STAYS
