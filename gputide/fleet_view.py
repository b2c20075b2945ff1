"""Fulfils the pages' `FleetView` from the warehouse and the analyzer; reads only, from any thread.

An analysis is kept until the warehouse holds something newer, so a page that polls costs nothing. Of a large fleet it
takes minutes: whoever is patient waits for it, and a web app shows the last one while a thread makes the next.

Fulfils the pages' `Flow`: how far each step from the receiver to the warehouse is, from the files that it left.

Fulfils the pages' `ReliefLog`: what relief did, from its own ledger in the data folder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from dashboards.queries import Event, FleetView, Freshness, WorkloadHistory
from dashboards.shown.lag_chain import LagChain
from dashboards.shown.relief_acts import MoveState, ReliefActs, ReliefMove, ReliefSleep
from dashboards.stored.workload_series import WorkloadSeries
from enforcer.record.ledger import Ledger
from enforcer.relief.book import Manner, MovePhase, MoveRecord, ReliefBook
from fleet.data_folder import DataFolder
from fleet.errors import GputideError, NotEnoughData, Unavailable
from fleet.inventory import CardId, Node
from fleet.profiles import Profiles
from fleet.settings.pipeline import BusKind
from fleet.settings.settings import Settings
from gputide.wiring_bus import file_bus
from gputide.wiring_warehouse import warehouse_folder

WAIT_SECONDS_MAX = 20.0
"""How long an impatient reader waits for the first analysis of a cluster."""
QUICK_SECONDS_MAX = 0.5
"""An analysis that took no longer is waited for: of a small fleet nobody is shown the last one."""
REST_RATIO = 4.0
"""Rest after an analysis over the time that it took: analysing takes a fifth of a processor at most."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """What is kept of one analysis.

    Attributes:
        profiles: what the analyzer made of the history.
        nodes: nodes of the history's inventory.
        series: use of every workload over time.
        interval_seconds: step of the history.
    """

    profiles: Profiles
    nodes: tuple[Node, ...]
    series: WorkloadSeries
    interval_seconds: float


class WarehouseFleetView:
    """`FleetView` over the clusters of a warehouse."""

    def __init__(
        self,
        *,
        clusters: Callable[[], tuple[str, ...]],
        version: Callable[[], str],
        analyse: Callable[[str], Analysed],
        now: Callable[[], datetime],
        newest: Callable[[str], datetime | None],
        events: Callable[[str, str], tuple[Event, ...]],
        is_patient: bool = True,
    ) -> None:
        """Make the view.

        Args:
            clusters: names of the clusters with data.
            version: text that changes when the warehouse holds something new.
            analyse: reads and profiles one cluster.
            now: the clock of the data.
            newest: end of the newest window that a cluster sent, UTC; None where it never sent usage.
            events: what happened to one workload of a cluster.
            is_patient: True to wait for the newest analysis; else the last one is given while the next is made.
        """
        self._clusters = clusters
        self._version = version
        self._analyse = analyse
        self._now = now
        self._newest = newest
        self._events = events
        self._is_patient = is_patient
        self._lock = threading.Lock()
        self._analyses: dict[str, _Analysis] = {}

    def clusters(self) -> tuple[str, ...]:
        """Names of all clusters with data."""
        return self._clusters()

    def profiles(self, cluster: str) -> Profiles:
        """The newest analysis, the same object while nothing changed."""
        return self._analysed(cluster).profiles

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        """Nodes of the newest analysis, the same object while nothing changed."""
        return self._analysed(cluster).nodes

    def history(self, cluster: str, workload: str, hours: int | None) -> WorkloadHistory | None:
        """One workload over its last hours; None where it is unknown."""
        series = self._analysed(cluster).series
        if workload not in series.grants:
            return None
        return series.history(workload, hours, self._events(cluster, workload))

    def freshness(self, cluster: str) -> Freshness:
        """Coverage and age of the data."""
        analysed = self._analysed(cluster)
        return Freshness(
            coverage_ratio=analysed.profiles.coverage_ratio,
            newest_at=self._newest(cluster),
            interval_seconds=analysed.interval_seconds,
            now=self._now(),
        )

    def _analysed(self, cluster: str) -> Analysed:
        with self._lock:
            found = self._analyses.get(cluster)
            if found is None:
                if cluster not in self._clusters():
                    raise NotEnoughData(
                        f"nothing is known of cluster {cluster!r}; feed it with `gputide admin replay` or `run receive`"
                    )
                found = self._analyses[cluster] = _Analysis(cluster, self._analyse)
        version = self._version()
        return found.newest(version) if self._is_patient else found.last(version)


class _Analysis:
    """The analysis of one cluster, made by one thread at a time."""

    def __init__(self, cluster: str, analyse: Callable[[str], Analysed]) -> None:
        self._cluster = cluster
        self._analyse = analyse
        self._making = threading.Lock()
        self._made: tuple[str, Analysed] | None = None
        self._worker: threading.Thread | None = None
        self._begun_at = 0.0
        self._rests_until = 0.0
        self._took_seconds = 0.0
        self._fault: GputideError | None = None

    def newest(self, version: str) -> Analysed:
        """Of this version; waits until it is made."""
        with self._making:
            if self._made is None or self._made[0] != version:
                self._made = (version, self._analyse(self._cluster))
            return self._made[1]

    def last(self, version: str) -> Analysed:
        """The last that was made, while a newer one is made beside.

        Raises:
            Unavailable: the first one is still being made.
            GputideError: it could not be made.
        """
        made = self._made
        if made is None or made[0] != version:
            self._begin(version)
        if made is None:
            return self._first()
        worker = self._worker
        if made[0] != version and worker is not None and self._took_seconds <= QUICK_SECONDS_MAX:
            worker.join(QUICK_SECONDS_MAX)
        return made[1] if self._made is None else self._made[1]

    def _begin(self, version: str) -> None:
        """Start a thread that makes it, unless one does or has just done so."""
        with self._making:
            is_busy = self._worker is not None and self._worker.is_alive()
            if is_busy or (self._made is not None and time.monotonic() < self._rests_until):
                return
            self._begun_at = time.monotonic()
            self._worker = threading.Thread(
                target=self._make, args=(version,), name=f"analysis of {self._cluster}", daemon=True
            )
            self._worker.start()

    def _make(self, version: str) -> None:
        try:
            self._made, self._fault = (version, self._analyse(self._cluster)), None
        except GputideError as exc:
            self._fault = exc
            _log.warning("analysis failed", cluster=self._cluster, reason=str(exc), shown="the last one")
        ended = time.monotonic()
        self._took_seconds = ended - self._begun_at
        self._rests_until = ended + REST_RATIO * self._took_seconds

    def _first(self) -> Analysed:
        if self._worker is not None:
            self._worker.join(WAIT_SECONDS_MAX)
        if self._made is not None:
            return self._made[1]
        if self._fault is not None:
            raise self._fault
        raise Unavailable(
            f"cannot show cluster {self._cluster!r} yet: its history is being read and analysed since "
            f"{time.monotonic() - self._begun_at:.0f} s; ask again in a moment"
        )


class StoredFlow:
    """`Flow` over a data folder.

    Args:
        folder: data folder.
        settings: all settings.
        fleet: knows the newest window of each cluster.
        clock: the machine's clock, UTC, by which files are dated; for tests.
    """

    def __init__(
        self,
        folder: DataFolder,
        settings: Settings,
        fleet: FleetView,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._fleet = fleet
        self._clock = clock

    def lags(self, cluster: str) -> LagChain:
        """The chain of one cluster.

        Raises:
            NotEnoughData: nothing is known of it.
        """
        fresh = self._fleet.freshness(cluster)
        is_here = self._settings.bus.kind is BusKind.FILE
        # A folder that nobody wrote to is not made by looking.
        lanes = [lane for lane in self._folder.bus_lanes if self._folder.bus(lane).is_dir()] if is_here else []
        waiting = 0
        written: list[float | None] = []
        for lane in lanes:
            bus = file_bus(self._folder, self._settings, lane)
            try:
                waiting += bus.waiting_bytes
                written.append(bus.written_seconds)
            finally:
                bus.close()
        return LagChain(
            newest_at=fresh.newest_at,
            sample_age_seconds=fresh.age_seconds,
            interval_seconds=fresh.interval_seconds,
            received_age_seconds=self._age(written),
            waiting_bytes=waiting if is_here else None,
            stored_age_seconds=self._age([_written(warehouse_folder(self._folder, self._settings) / "MANIFEST")]),
            is_shared=len(self._fleet.clusters()) > 1,
        )

    def _age(self, moments: Sequence[float | None]) -> float | None:
        known = [moment for moment in moments if moment is not None]
        return max(0.0, self._clock().timestamp() - max(known)) if known else None


def _written(path: Path) -> float | None:
    """When a file was last written, epoch seconds; None where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


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
