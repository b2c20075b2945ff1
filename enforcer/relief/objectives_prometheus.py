"""Latency objectives by PromQL: every series of an answer names a pod that suffers now, as an alert's does.

The port `Objectives` over the query API of Prometheus, Thanos, Mimir or VictoriaMetrics. What an answer says is
bounded and checked: labels may come from tenants. Asked no more often than is set, whoever asks.

Source: prometheus/prometheus:docs/querying/api.md (instant queries).
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from enforcer.relief.demand_feed import BrokenObjective
from fleet.errors import Unavailable

ANSWER_BYTES_MAX = 4 << 20
SERIES_MAX = 10_000
_TIMEOUT_SECONDS = 5.0
_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII)


class PrometheusObjectives:
    """Asks a Prometheus.

    Args:
        url: its address; what follows `/api/v1/query` is added.
        queries: PromQL; every series of an answer is a broken objective of the pod in `namespace` and `pod`.
        interval_seconds: an answer counts for so long.
        clock: monotonic seconds; for tests.
    """

    def __init__(
        self,
        url: str,
        queries: Sequence[str],
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url.rstrip("/") + "/api/v1/query"
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
        request = urllib.request.Request(self._url, data=urllib.parse.urlencode({"query": query}).encode())
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                body = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as exc:
            told = exc.read(300).decode(errors="replace")
            raise Unavailable(f"cannot ask {self._url}: status {exc.code} to {query!r}: {told}") from exc
        except (OSError, ValueError) as exc:
            raise Unavailable(f"cannot ask {self._url}: {exc} (setting relief.prometheus_url)") from exc
        if len(body) > ANSWER_BYTES_MAX:
            raise Unavailable(f"cannot ask {self._url}: more than {ANSWER_BYTES_MAX} bytes answer {query!r}")
        return _broken(body, query, self._url)


def _broken(body: bytes, query: str, url: str) -> list[BrokenObjective]:
    try:
        data = json.loads(body)["data"]
        series: list[Any] = data["result"] if data["resultType"] == "vector" else []
        labels = [entry["metric"] for entry in series[:SERIES_MAX]]
        named = [(str(entry["namespace"]), str(entry["pod"])) for entry in labels if {"namespace", "pod"} <= set(entry)]
    except (ValueError, RecursionError, LookupError, TypeError) as exc:
        raise Unavailable(f"cannot read what {url} answers to {query!r}: no vector of series") from exc
    return [
        BrokenObjective(namespace=namespace, pod=pod, query=query)
        for namespace, pod in dict.fromkeys(named)
        if _NAME.fullmatch(namespace) and _NAME.fullmatch(pod)
    ]
