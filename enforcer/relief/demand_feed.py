"""What relief sees: the newest view of every node, and whose latency objective is broken. Ports, in relief's words."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from enforcer.agent.node_view import NodeView
from enforcer.cluster import ClusterReader
from enforcer.instant_query import InstantQuery, pod_named
from enforcer.latency_objectives import OBJECTIVES, latencies, objective_seconds, objectives_of
from enforcer.trusted_series import TrustedSeries

REMEMBERED_SECONDS = 600.0
"""For so long relief goes by the promise that it read of a pod: pods seldom change theirs."""


class DemandFeed(Protocol):
    """Reports what nodes see."""

    def views(self, wait_seconds: float) -> Mapping[str, NodeView]:
        """The newest view of every node that reported one lately, by node.

        Comes back as soon as a node reported that other cards are in trouble than before, or after `wait_seconds`. A
        node that can't be asked is left out: its cards are neither relieved nor taken.

        Args:
            wait_seconds: longest wait; 0 for what is known now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenObjective:
    """A latency objective that is broken now.

    Attributes:
        query: the question whose answer it is.
    """

    namespace: str
    pod: str
    query: str

    @property
    def pod_id(self) -> str:
        """`namespace/pod`."""
        return f"{self.namespace}/{self.pod}"


class Objectives(Protocol):
    """Says which latency objectives are broken."""

    def broken(self) -> tuple[BrokenObjective, ...]:
        """Those that are broken now.

        Raises:
            Unavailable: nobody can be asked; what was broken before is not known to be so now.
        """
        ...


class NoObjectives:
    """Nobody set an objective (the port `Objectives`)."""

    def broken(self) -> tuple[BrokenObjective, ...]:
        """None."""
        return ()


class AllObjectives:
    """Objectives of several sources (the port `Objectives`)."""

    def __init__(self, *sources: Objectives) -> None:
        self._sources = sources

    def broken(self) -> tuple[BrokenObjective, ...]:
        """Those of all; see the port."""
        return tuple(entry for source in self._sources for entry in source.broken())


class QueriedObjectives:
    """Asks for broken objectives by PromQL, no more often than is set (the port `Objectives`).

    Args:
        queries: PromQL; every series of an answer is a broken objective of the pod in `namespace` and `pod`.
        interval_seconds: an answer counts for so long.
    """

    def __init__(self, metrics: InstantQuery, queries: Sequence[str], *, interval_seconds: float) -> None:
        self._metrics = metrics
        self._queries = tuple(queries)
        self._interval_seconds = interval_seconds
        self._asked_at = -math.inf
        self._found: tuple[BrokenObjective, ...] = ()

    def broken(self) -> tuple[BrokenObjective, ...]:
        """Objectives that are broken now; see the port."""
        now = time.monotonic()
        if now - self._asked_at < self._interval_seconds:
            return self._found
        self._asked_at, self._found = now, ()
        self._found = tuple(entry for query in self._queries for entry in self._ask(query))
        return self._found

    def _ask(self, query: str) -> list[BrokenObjective]:
        named = dict.fromkeys(pod_named(sample) for sample in self._metrics.vector(query))
        return [BrokenObjective(namespace=pod[0], pod=pod[1], query=query) for pod in named if pod is not None]


class PromisedObjectives:
    """Objectives that pods promise (the port `Objectives`); only pods that answer requests are looked up."""

    def __init__(
        self,
        reader: ClusterReader,
        metrics: TrustedSeries,
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader, self._metrics, self._clock = reader, metrics, clock
        self._interval_seconds = interval_seconds
        self._asked_at = -math.inf
        self._found: tuple[BrokenObjective, ...] = ()
        self._promises: dict[tuple[str, str], tuple[float, Mapping[str, float]]] = {}

    def broken(self) -> tuple[BrokenObjective, ...]:
        """Objectives that are broken now; see the port."""
        now = self._clock()
        if now - self._asked_at >= self._interval_seconds:
            self._asked_at, self._found = now, ()
            measured = {label: latencies(self._metrics, label) for label in OBJECTIVES}
            answering = {pod for found in measured.values() for pod in found}
            self._promises = {pod: kept for pod, kept in self._promises.items() if pod in answering}
            self._found = tuple(
                BrokenObjective(namespace=pod[0], pod=pod[1], query=f"{label}={promised:g}")
                for label, found in measured.items()
                for pod, seconds in sorted(found.items())
                if (promised := self._promised(pod, now).get(label)) is not None and seconds > promised
            )
        return self._found

    def _promised(self, name: tuple[str, str], now: float) -> Mapping[str, float]:
        read_at, promised = self._promises.get(name, (-math.inf, {}))
        if now - read_at >= REMEMBERED_SECONDS:
            pod = self._reader.get("Pod", *name)
            texts = () if pod is None else objectives_of(pod)
            promised = {label: seconds for label, text in texts if (seconds := objective_seconds(text)) is not None}
            self._promises[name] = now, promised
        return promised
