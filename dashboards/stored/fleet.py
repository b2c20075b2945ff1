"""The newest analysis of each cluster, from the warehouse and the analyzer; reads only, from any thread.

An analysis is kept until the warehouse holds something newer, so a page that polls costs nothing. The analysis of a
large fleet takes minutes: verbs wait for it, and a web app shows the last one while a thread makes the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from dashboards.queries import Event, Freshness, WorkloadHistory
from dashboards.stored.workload_series import WorkloadSeries
from fleet.errors import GputideError, NotEnoughData, Unavailable
from fleet.inventory import Node
from fleet.profiles import Profiles

WAIT_SECONDS_MAX = 20.0
"""How long a page waits for the first analysis of a cluster."""
QUICK_SECONDS_MAX = 0.5
"""A page waits for an analysis that took no longer last time, so a small fleet is always up to date."""
REST_RATIO = 4.0
"""Rest after an analysis over the time that it took: analysing takes a fifth of a processor at most."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """What is kept of one analysis.

    Attributes:
        series: use of every workload over time.
        interval_seconds: step of the history.
    """

    profiles: Profiles
    nodes: tuple[Node, ...]
    series: WorkloadSeries
    interval_seconds: float


class WarehouseFleet:
    """`Fleet` over the clusters of a warehouse."""

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
        """Hold nothing yet; the first question about a cluster has it analysed.

        Args:
            clusters: names of the clusters with data.
            version: text that changes when the warehouse holds something new.
            analyse: reads and profiles one cluster.
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
        self._fault: Exception | None = None

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
            Exception: it could not be made.
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
        except Exception as exc:  # noqa: BLE001 - a bug of ours, raised again for the reader who waits for the first one
            self._fault = exc
            _log.exception("analysis ended by a bug", cluster=self._cluster, shown="the last one")
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
