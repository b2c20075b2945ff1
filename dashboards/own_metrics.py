"""What the web app counts of itself, at `/metrics`: requests, how long they took, CPU and memory.

Behind the same sign-in as every page: a scraper shows a token of `dashboard.rights_file`, of any role. Called by `app`.
"""

from __future__ import annotations

import time

from flask import Flask, Response, g, request

from dashboards.access.sign_in import HEALTH_PATH
from wire.own_metrics import CONTENT_TYPE, PATH, OwnMetrics

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


class WebMetrics:
    """The metrics of one app."""

    def __init__(self, own: OwnMetrics) -> None:
        self.requests = own.counter(
            "requests_total", "Requests by what was asked for and the status of the answer.", "kind", "code"
        )
        self.seconds = own.histogram(
            "request_seconds",
            "Time from the last byte of a request to its answer, seconds.",
            "kind",
            buckets=_BOUNDS,
        )


def measure(server: Flask) -> None:
    """Count the requests of an app, and show the counts. Called before anything may turn a request away."""
    own = OwnMetrics("web")
    metrics = WebMetrics(own)

    def _begin() -> None:
        g.began = time.perf_counter()

    def _count(response: Response) -> Response:
        kind = next((kind for start, kind in _KINDS if request.path.startswith(start)), "page")
        metrics.requests.labels(kind, str(response.status_code)).inc()
        metrics.seconds.labels(kind).observe(time.perf_counter() - g.began)
        return response

    server.before_request(_begin)
    server.after_request(_count)
    server.add_url_rule(PATH, "own_metrics", lambda: Response(own.text(), content_type=CONTENT_TYPE), methods=["GET"])
