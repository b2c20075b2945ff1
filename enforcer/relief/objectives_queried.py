"""Latency objectives by PromQL: every series of an answer names a pod that suffers now, as an alert's does.

The port `Objectives` over `InstantQuery`. It asks no more often than is set.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from enforcer.instant_query import InstantQuery
from enforcer.relief.demand_feed import BrokenObjective

_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII)


class QueriedObjectives:
    """Asks for broken objectives.

    Args:
        metrics: answers PromQL.
        queries: PromQL; every series of an answer is a broken objective of the pod in `namespace` and `pod`.
        interval_seconds: an answer counts for so long.
        clock: monotonic seconds; for tests.
    """

    def __init__(
        self,
        metrics: InstantQuery,
        queries: Sequence[str],
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._queries = tuple(queries)
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._asked_at: float | None = None
        self._found: tuple[BrokenObjective, ...] = ()

    def broken(self) -> tuple[BrokenObjective, ...]:
        """Objectives that are broken now; see the port."""
        now = self._clock()
        if self._asked_at is not None and now - self._asked_at < self._interval_seconds:
            return self._found
        self._asked_at, self._found = now, ()
        self._found = tuple(entry for query in self._queries for entry in self._ask(query))
        return self._found

    def _ask(self, query: str) -> list[BrokenObjective]:
        labels = [sample.labels for sample in self._metrics.vector(query)]
        named = [(entry["namespace"], entry["pod"]) for entry in labels if {"namespace", "pod"} <= set(entry)]
        return [
            BrokenObjective(namespace=namespace, pod=pod, query=query)
            for namespace, pod in dict.fromkeys(named)
            if _NAME.fullmatch(namespace) and _NAME.fullmatch(pod)
        ]
