"""The port `InstantQuery` over the query API of Prometheus, Thanos, Mimir or VictoriaMetrics.

What an answer says is bounded and checked: labels may come from tenants. Source: prometheus/prometheus:
docs/querying/api.md (instant queries).
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from enforcer.instant_query import Sample
from fleet.errors import Unavailable

ANSWER_BYTES_MAX = 4 << 20
SERIES_MAX = 10_000
_TIMEOUT_SECONDS = 5.0


class PrometheusQuery:
    """Asks a Prometheus.

    Args:
        url: its address; what follows `/api/v1/query` is added.
        setting: the setting that names it, for messages.
    """

    def __init__(self, url: str, *, setting: str) -> None:
        self._url = url.rstrip("/") + "/api/v1/query"
        self._setting = setting

    def vector(self, query: str) -> tuple[Sample, ...]:
        """Every series that a query has now; see the port."""
        request = urllib.request.Request(self._url, data=urllib.parse.urlencode({"query": query}).encode())
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                body = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as exc:
            told = exc.read(300).decode(errors="replace")
            raise Unavailable(f"cannot ask {self._url}: status {exc.code} to {query!r}: {told}") from exc
        except (OSError, ValueError) as exc:
            raise Unavailable(f"cannot ask {self._url}: {exc} (setting {self._setting})") from exc
        if len(body) > ANSWER_BYTES_MAX:
            raise Unavailable(f"cannot ask {self._url}: more than {ANSWER_BYTES_MAX} bytes answer {query!r}")
        try:
            return _samples(json.loads(body)["data"])
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as exc:
            raise Unavailable(f"cannot read what {self._url} answers to {query!r}: no vector of series") from exc


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
