"""Whose own latency objective is broken, for relief: what is measured of all pods against what each promises.

Only pods that answer requests are looked up. Called by `gputide.container.relief`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from enforcer.cluster import ClusterReader
from enforcer.instant_query import InstantQuery
from enforcer.latency_objectives import latencies, objective_seconds, objective_text
from enforcer.relief.demand_feed import BrokenObjective
from fleet.inventory import LATENCY_OBJECTIVE_LABEL

REMEMBERED_SECONDS = 600.0
"""For so long relief goes by the promise that it read of a pod: pods seldom change theirs."""


class PromisedObjectives:
    """Objectives that pods promise (the port `enforcer.relief.demand_feed.Objectives`).

    Args:
        reader: the cluster, for the pods that answer requests.
        metrics: answers PromQL.
        interval_seconds: an answer counts for so long.
        clock: monotonic seconds; for tests.
    """

    def __init__(
        self,
        reader: ClusterReader,
        metrics: InstantQuery,
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader, self._metrics, self._clock = reader, metrics, clock
        self._interval_seconds = interval_seconds
        self._asked_at = -math.inf
        self._found: tuple[BrokenObjective, ...] = ()
        self._promises: dict[tuple[str, str], tuple[float, float | None]] = {}

    def broken(self) -> tuple[BrokenObjective, ...]:
        """Objectives that are broken now; see the port."""
        now = self._clock()
        if now - self._asked_at >= self._interval_seconds:
            self._asked_at, self._found = now, ()
            measured = latencies(self._metrics)
            self._promises = {pod: kept for pod, kept in self._promises.items() if pod in measured}
            self._found = tuple(
                BrokenObjective(namespace=namespace, pod=name, query=f"{LATENCY_OBJECTIVE_LABEL}={promised:g}")
                for (namespace, name), seconds in sorted(measured.items())
                if (promised := self._promised(namespace, name, now)) is not None and seconds > promised
            )
        return self._found

    def _promised(self, namespace: str, name: str, now: float) -> float | None:
        read_at, seconds = self._promises.get((namespace, name), (-math.inf, None))
        if now - read_at >= REMEMBERED_SECONDS:
            pod = self._reader.get("Pod", namespace, name)
            text = None if pod is None else objective_text(pod)
            seconds = None if text is None else objective_seconds(text)
            self._promises[namespace, name] = now, seconds
        return seconds
