"""The port `InstantQuery` over the query API of Prometheus, Thanos, Mimir or VictoriaMetrics.

What an answer says is bounded and checked: labels may come from tenants. Source: prometheus/prometheus:
docs/querying/api.md (instant queries).

Latency objectives by PromQL: every series of an answer names a pod that suffers now, as an alert's does.

The port `Objectives` over `InstantQuery`. Asked no more often than is set, whoever asks.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from enforcer.instant_query import InstantQuery, Sample
from enforcer.relief.demand_feed import BrokenObjective
from fleet.errors import Corrupt, Unavailable
from wire.credentials import Credentials, FixedHeader
from wire.tls import Tls, TlsContexts

ANSWER_BYTES_MAX = 4 << 20
SERIES_MAX = 10_000
_TIMEOUT_SECONDS = 5.0


class PrometheusQuery:
    """Asks a Prometheus.

    Args:
        url: its address; what follows `/api/v1/query` is added.
        setting: the setting that names it, for messages.
        at: the moment that is asked for, UTC; None for now.
        tls: how an https server is checked, and what it is shown.
        credentials: what requests are signed with.
    """

    def __init__(
        self,
        url: str,
        *,
        setting: str,
        at: datetime | None = None,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._contexts = TlsContexts(tls or Tls())
        self._credentials = credentials or FixedHeader(None)
        self._url = url.rstrip("/") + "/api/v1/query"
        self._setting = setting
        self._more = {} if at is None else {"time": f"{at.timestamp():.3f}"}

    def vector(self, query: str) -> tuple[Sample, ...]:
        """Every series that a query has now; see the port."""
        request = urllib.request.Request(
            self._url, data=urllib.parse.urlencode({"query": query, **self._more}).encode()
        )
        authorization = self._credentials.header()
        if authorization is not None:
            request.add_header("Authorization", authorization)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if self._url.startswith("https://"):
            handlers.append(urllib.request.HTTPSHandler(context=self._contexts.context()))
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_SECONDS) as answer:
                body = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as exc:
            told = _told(exc)
            if authorization is not None:
                # Some proxies repeat what they were shown; at the end of what was read it may be cut.
                token = authorization.partition(" ")[2]
                told = told.replace(token, "…").partition(token[:8])[0]
            raise Unavailable(f"cannot ask {self._url}: status {exc.code} to {query!r}: {told}") from exc
        except (OSError, ValueError, http.client.HTTPException) as exc:
            raise Unavailable(
                f"cannot ask {self._url}: {str(exc).strip() or type(exc).__name__} (setting {self._setting})"
            ) from exc
        if len(body) > ANSWER_BYTES_MAX:
            raise Unavailable(f"cannot ask {self._url}: more than {ANSWER_BYTES_MAX} bytes answer {query!r}")
        try:
            return read_vector(body)
        except Corrupt as exc:
            raise Unavailable(f"cannot read what {self._url} answers to {query!r}: no vector of series") from exc


def _told(exc: urllib.error.HTTPError) -> str:
    """Begin of what a server says about its error; empty where that breaks off."""
    try:
        return exc.read(300).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the library would carry the token to wherever it leads."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def read_vector(body: bytes) -> tuple[Sample, ...]:
    """The series of an answer; those without a value are left out.

    Raises:
        Corrupt: it is no vector.
    """
    try:
        return _samples(json.loads(body)["data"])
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError) as exc:
        raise Corrupt(f"cannot read an answer of {len(body)} bytes: it is no vector of series") from exc


def _samples(data: Any) -> tuple[Sample, ...]:
    if data["resultType"] != "vector":
        raise ValueError(f"expected a vector, got {data['resultType']!r}")
    found = []
    for entry in data["result"][:SERIES_MAX]:
        labels = {str(name): str(value) for name, value in entry["metric"].items()}
        value = float(entry["value"][1])
        if not math.isnan(value):
            found.append(Sample(labels=labels, value=value))
    return tuple(found)


_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII)


class QueriedObjectives:
    """Asks for broken objectives.

    Args:
        metrics: whoever answers PromQL.
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
