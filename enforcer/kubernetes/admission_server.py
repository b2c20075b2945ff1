"""Serves the admission of pods over TLS, as the API server asks for it: `/pods` for reviews, `/healthz` for a kubelet.

Called by `gputide run admission`. The API server waits for the answer, so a request that takes too long is ended; with
the documented failure policy the pod then passes as it is. Reviews are counted, and no line is logged per pod.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enforcer.kubernetes.admission_review import PodAdmission
from fleet.errors import Corrupt, Misconfigured
from fleet.listener_files import ListenerFiles
from fleet.logs import logger
from wire.http_connection import ServerLimits
from wire.http_head import Refusal
from wire.http_server import Exchange, HttpServer, listen
from wire.listener_tls import ListenerContexts

if TYPE_CHECKING:
    from wire.own_metrics import OwnMetrics

REVIEW_BYTES_MAX = 8 * 1024 * 1024
"""Longest review that is read; an object of the API server has less than two MiB."""

CONNECTIONS_MAX = 64

_LIMITS = ServerLimits(
    connections_max=CONNECTIONS_MAX,
    body_bytes_max=REVIEW_BYTES_MAX,
    pending_bytes_max=16 * REVIEW_BYTES_MAX,
    idle_seconds=15.0,
    request_seconds=15.0,
)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_RESULTS = ("seated", "unpinned", "unchanged", "asked", "unreadable")
_CHECK_SECONDS = 0.0
_STOP_SECONDS = 1.0
_JSON = "application/json"


class AdmissionMetrics:
    """What the admission counts of itself."""

    def __init__(self, own: OwnMetrics) -> None:
        self.reviews = own.counter(
            "reviews_total",
            "Reviews by what became of them: seated (the pod got its planned seat), unpinned (it should have got one), "
            "unchanged (no plan is for it), asked (the enforcer asked for an answer), unreadable.",
            "result",
        )
        for result in _RESULTS:
            self.reviews.labels(result)  # a first one counts as an increase only where there was a zero before
        self.seconds = own.histogram("review_seconds", "Time of one review, seconds.", buckets=_SECONDS)
        self.freed = own.counter(
            "freed_pods_total", "Pods that waited in vain for their planned seats and were evicted."
        )
        self.api_requests = own.followed_counter("api_requests_total", "Requests to the Kubernetes API.")


class AdmissionServer:
    """Answers reviews.

    Args:
        port: port; 0 picks a free one.
        certificate_file: chain of its certificate, PEM; read anew when it changes.
        key_file: its key, PEM.
        client_ca_file: authorities, one of which must have signed the certificate that the API server shows; None
            where it shows none.

    Raises:
        Misconfigured: the address or a file can't be used.
        Unavailable: another process listens there.
    """

    def __init__(
        self,
        admission: PodAdmission,
        metrics: AdmissionMetrics,
        *,
        host: str,
        port: int,
        certificate_file: Path,
        key_file: Path,
        client_ca_file: Path | None = None,
    ) -> None:
        self._admission, self._metrics = admission, metrics
        files = ListenerFiles(
            section="admission",
            certificate_file=str(certificate_file),
            key_file=str(key_file),
            client_ca_file=None if client_ca_file is None else str(client_ca_file),
        )
        try:
            self._contexts = ListenerContexts(
                files, needs_client=True, now_seconds=time.monotonic, check_seconds=_CHECK_SECONDS
            )
        except Misconfigured as exc:
            asked = "" if client_ca_file is None else f" and --client-ca {client_ca_file}"
            raise Misconfigured(
                f"cannot serve by --certificate {certificate_file} and --key {key_file}{asked}: {exc.__cause__ or exc}"
            ) from exc
        self._log = logger("enforcer.kubernetes.admission_server")
        self._server = HttpServer(
            listen(host, port, setting="--listen"), self._answer, limits=_LIMITS, tls=self._contexts.context
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._server.address

    def serve(self) -> None:
        """Answer until `stop` is called from another thread."""
        self._server.serve()

    def stop(self) -> None:
        """End `serve`."""
        self._server.stop(grace_seconds=_STOP_SECONDS)

    def _answer(self, exchange: Exchange) -> None:
        if exchange.head.path == "/healthz":
            exchange.check_method("GET")
            exchange.connection.answer(200)
        elif exchange.head.path == "/pods":
            exchange.check_method("POST")
            exchange.connection.answer(200, self._review(exchange.connection.body()), kind=_JSON)
        else:
            raise Refusal(404, "ask /pods")

    def _review(self, body: bytes) -> bytes:
        """The answer to the body of a review."""
        with self._metrics.seconds.time():
            try:
                asked = json.loads(body)
                found = self._admission.review(asked if isinstance(asked, dict) else {})
            except (ValueError, RecursionError, Corrupt) as exc:
                self._metrics.reviews.labels("unreadable").inc()
                self._log.warning("an admission review can't be read", reason=str(exc)[:300])
                raise Refusal(400, "cannot read the admission review") from exc
        self._metrics.reviews.labels(_result(asked["request"], found["response"])).inc()
        if warnings := found["response"].get("warnings"):
            self._log.warning("a pod passed without its planned seat", reason=warnings[0])
        return json.dumps(found).encode()


def _result(request: Mapping[str, Any], response: Mapping[str, Any]) -> str:
    """What became of a review that was answered, as `AdmissionMetrics.reviews` counts it."""
    if "warnings" in response:
        return "unpinned"
    if (request.get("kind") or {}).get("kind") == "Lease":
        return "asked"
    return "seated" if "patch" in response else "unchanged"
