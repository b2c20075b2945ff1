"""Asks a Prometheus what it has now: the few questions of the doctor, each bounded, none tried twice.

`pipeline.history.prometheus` reads years of samples; this asks for one number or one list, and takes an endpoint that
others than Prometheus lack for untold. Source: prometheus/prometheus:docs/querying/api.md.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.errors import Corrupt, Misconfigured, Unavailable
from gputide.doctor.finding import shown
from wire.http_answer import TooLarge, read_body
from wire.http_client import HttpClient, Request

ANSWER_BYTES_MAX = 32 << 20
"""Longest answer that is read."""
SERIES_MAX = 100_000
"""Series of one answer that are looked at."""
QUERY_SECONDS_MAX = 10.0

_DENIED = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One series of an answer.

    Attributes:
        labels: its labels.
        value: its value; NaN is left out.
    """

    labels: Mapping[str, str]
    value: float


class PrometheusAsk:
    """Questions to one server; for several threads.

    Args:
        connection: to the server; the caller closes it.
        matchers: label matchers that every series must satisfy.
    """

    def __init__(self, connection: HttpClient, matchers: Sequence[str]) -> None:
        self._connection = connection
        self._matchers = tuple(matchers)
        self.warnings: list[str] = []
        """What the server said about answers that it gave in part."""

    @property
    def server(self) -> str:
        """Its address."""
        return self._connection.server

    def series(self, name: str, *further: str) -> str:
        """A selector of a metric, with the matchers of the settings.

        Args:
            name: name of the metric, or several divided by `|`.
            further: further matchers, such as `pod!=""`.
        """
        sign = "=~" if "|" in name else "="
        return "{" + ",".join((f'__name__{sign}"{name}"', *further, *self._matchers)) + "}"

    def vector(self, query: str, *, at_seconds: float | None = None) -> tuple[Reading, ...]:
        """Every series that a query has.

        Args:
            query: PromQL.
            at_seconds: at which moment, epoch seconds; None for the server's now.

        Raises:
            Unavailable: the server does not answer, or not in time.
            Misconfigured: it does not let us in, or is no Prometheus.
            Corrupt: the answer can't be read.
        """
        result = self._result(query, at_seconds)
        try:
            found = []
            for entry in result[:SERIES_MAX]:
                value = float(entry["value"][1])
                if not math.isnan(value):
                    labels = {str(name): str(text) for name, text in entry["metric"].items()}
                    found.append(Reading(labels=labels, value=value))
            return tuple(found)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            raise Corrupt(f"cannot read what {self.server} answers to {query[:200]!r}: no vector of series") from exc

    def times(self, query: str) -> tuple[tuple[float, ...], ...]:
        """Times of the samples of each series of a range selector, epoch seconds. Raises as `vector`."""
        try:
            return tuple(tuple(float(pair[0]) for pair in entry["values"]) for entry in self._result(query, None))
        except (LookupError, TypeError, ValueError) as exc:
            raise Corrupt(f"cannot read what {self.server} answers to {query[:200]!r}: no matrix") from exc

    def number(self, query: str) -> float | None:
        """The first value that a query has now; None where it has none. Raises as `vector`."""
        found = self.vector(query)
        return found[0].value if found else None

    def names(self, *, since_seconds: float) -> frozenset[str]:
        """Names of metrics with samples in the time before now. Raises as `vector`."""
        now = time.time()
        asked = {"start": f"{now - since_seconds:.0f}", "end": f"{now:.0f}"}
        pattern = {"match[]": "{" + ",".join(('__name__=~".+"', *self._matchers)) + "}"} if self._matchers else {}
        data = self._data("/api/v1/label/__name__/values", {**asked, **pattern})
        if not isinstance(data, list):
            raise Corrupt(f"cannot read the metrics of {self.server}: no list")
        return frozenset(name for name in data if isinstance(name, str))

    def told(self, path: str) -> Any:
        """What an endpoint of the server's own state says; None where this server does not have it.

        Raises:
            Unavailable: the server does not answer.
        """
        try:
            return self._data(path, {})
        except (Misconfigured, Corrupt):
            # Thanos, Mimir and VictoriaMetrics answer paths that they lack in ways of their own.
            return None

    def _result(self, query: str, at_seconds: float | None) -> list[Any]:
        moment = {} if at_seconds is None else {"time": f"{at_seconds:.3f}"}
        data = self._data("/api/v1/query", {"query": query, **moment})
        if data is None:
            raise Misconfigured(f"cannot ask {self.server}: nothing at /api/v1/query")
        result = data.get("result") if isinstance(data, dict) else None
        if not isinstance(result, list):
            raise Corrupt(f"cannot read what {self.server} answers to {query[:200]!r}: no result")
        return result

    def _data(self, path: str, query: Mapping[str, str]) -> Any:
        """`data` of a successful answer; None where there is nothing at the path."""
        target = Request(path=path, query=query, accept="application/json", seconds_max=QUERY_SECONDS_MAX)
        with self._connection.ask(target) as answer:
            try:
                body = read_body(answer, ANSWER_BYTES_MAX)
            except TooLarge as exc:
                raise Corrupt(
                    f"cannot read {path} of {self.server}: more than {ANSWER_BYTES_MAX} bytes; narrow it with "
                    "scan.matchers"
                ) from exc
        if answer.status == 404:
            return None
        if answer.status in _DENIED:
            raise Misconfigured(f"cannot read {path} of {self.server}: it answered {answer.status}{_said(body)}")
        if 300 <= answer.status < 400:
            raise Misconfigured(
                f"cannot read {path} of {self.server}: it sends on to another address, as login pages do"
            )
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as exc:
            raise Misconfigured(
                f"cannot read {path} of {self.server}: it answered {answer.status} with no JSON, as what is no "
                "Prometheus does"
            ) from exc
        if not isinstance(document, dict) or document.get("status") != "success":
            what = f"cannot read {path} of {self.server}: it answered {answer.status}{_said(body)}"
            raise Unavailable(what) if answer.status >= 500 or answer.status == 429 else Corrupt(what)
        warnings = document.get("warnings")
        if isinstance(warnings, list):
            self.warnings += [shown(str(text)) for text in warnings[:5]]
        return document.get("data")


def _said(body: bytearray) -> str:
    try:
        document = json.loads(body)
        text = document.get("error") or document.get("message") or ""
    except (ValueError, RecursionError, AttributeError):
        text = "" if body.lstrip().startswith(b"<") else body[:200].decode(errors="replace")
    return f": {shown(str(text))}" if text else ""
