"""What the web app counts of itself, at `/metrics`: requests, how long they took, CPU and memory.

Behind the same sign-in as every page: a scraper shows a token of `dashboard.rights_file`, of any role. `OWN_METRICS` is
the one list of names, from which the documentation is made as well. Called by `app`.
"""

from __future__ import annotations

import time

from flask import Flask, Response, g, request
from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from dashboards.access.sign_in import HEALTH_PATH

PATH = "/metrics"
REQUESTS = "gputide_web_requests_total"
SECONDS = "gputide_web_request_seconds"
OWN_METRICS = (
    (REQUESTS, "counter", "kind, code", "Requests by what was asked for and the status of the answer."),
    (SECONDS, "histogram", "kind", "Time from the last byte of a request to its answer, seconds."),
)
"""Name, kind, labels and meaning of each."""
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_KINDS = (
    ("/_dash-update-component", "page"),
    ("/_dash", "file"),
    ("/assets/", "file"),
    ("/_favicon", "file"),
    ("/api/", "api"),
    (PATH, "metrics"),
    (HEALTH_PATH, "health"),
)
"""What is asked for, by the beginning of its path; other paths are pages."""


def measure(server: Flask) -> None:
    """Count the requests of an app, and show the counts. Called before anything may turn a request away."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    requests = Counter(REQUESTS, OWN_METRICS[0][-1], ("kind", "code"), registry=registry)
    seconds = Histogram(SECONDS, OWN_METRICS[1][-1], ("kind",), registry=registry, buckets=_BOUNDS)

    def _begin() -> None:
        g.began = time.perf_counter()

    def _count(response: Response) -> Response:
        kind = next((kind for start, kind in _KINDS if request.path.startswith(start)), "page")
        requests.labels(kind, str(response.status_code)).inc()
        seconds.labels(kind).observe(time.perf_counter() - g.began)
        return response

    server.before_request(_begin)
    server.after_request(_count)
    server.add_url_rule(
        PATH,
        "own_metrics",
        lambda: Response(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4),
        methods=["GET"],
    )
