"""Asks for what holds now: the port behind watching a change and behind latency objectives, and its adapter."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Protocol

from fleet.errors import Corrupt, Misconfigured, Unavailable
from wire.prometheus_query import PrometheusQuery, Sample

_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII)


def pod_named(sample: Sample) -> tuple[str, str] | None:
    """Namespace and name of the pod that a sample speaks of; None where it names none that could be."""
    namespace, pod = sample.labels.get("namespace", ""), sample.labels.get("pod", "")
    return (namespace, pod) if _NAME.fullmatch(namespace) and _NAME.fullmatch(pod) else None


class InstantQuery(Protocol):
    """Answers PromQL."""

    def vector(self, query: str) -> tuple[Sample, ...]:
        """Every series that a query has now; empty where it has none.

        Raises:
            Unavailable: it can't be asked, or answers something else.
        """
        ...


class InstantQueryPrometheus:
    """`InstantQuery` by a Prometheus: a server that refuses is unavailable, so that a watch goes on without it.

    Args:
        setting: the setting that names it, for messages.
        at: the moment that is asked for, UTC; None for now.
    """

    def __init__(self, prometheus: PrometheusQuery, *, setting: str, at: datetime | None = None) -> None:
        self._prometheus = prometheus
        self._setting = setting
        self._at_seconds = None if at is None else at.timestamp()

    def vector(self, query: str) -> tuple[Sample, ...]:
        """See the port."""
        try:
            return self._prometheus.vector(query, at_seconds=self._at_seconds)
        except (Unavailable, Misconfigured, Corrupt) as exc:
            raise Unavailable(f"cannot ask {query[:200]!r} (setting {self._setting}): {exc}") from exc

    def close(self) -> None:
        """Closes the connections to it."""
        self._prometheus.close()
