"""The remote-write receiver: what is asked of which path, by whom, and what is answered.

`POST /api/v1/write` takes bodies of both versions, `POST /v1/metrics` those of OpenTelemetry (OTLP over HTTP, binary
protobuf), which go the same way; `GET /healthz` says that it listens, `GET /-/ready` that the bus
takes records, `GET /metrics` gives its own counters. Started by `gputide run receive` and by a replay, which sends real
bodies through it. `wire.http_server` speaks HTTP, `intake` takes bodies, `senders` knows who may send.

Answers: 204 written and durable; 400 corrupt, or part of it invalid or of new series beyond `receiver.series_max` (the
rest is written); 401, 403 an unknown sender; 411, 413 no body, or one that costs too much; 415 another content type or
encoding; 429 with Retry-After when the bus or the queue of requests is full or a sender sends too much (let Prometheus
set `retry_on_http_429: true`, its default drops them); 503 with Retry-After when storage does not let us.
Protocol: prometheus.io/docs/specs/prw/remote_write_spec_2_0. OTLP has 200 for 204, also where part is refused for good,
and its own messages (`pipeline.otlp.answer`).
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.settings.pipeline import ReceiverSettings
from pipeline.otlp.answer import CONTENT_TYPE as OTLP_CONTENT_TYPE
from pipeline.otlp.answer import response_of, status_of
from pipeline.otlp.decode import Otlp
from pipeline.receiver.counts import ProcessCounts, SharedCounts
from pipeline.receiver.intake import Answer, Intake
from pipeline.receiver.senders import ANYONE, RateLimit, Sender, Senders
from pipeline.receiver.turns import Message
from pipeline.remote_write.decode import Version
from wire.http_connection import RETRY_AFTER_SECONDS, ServerLimits
from wire.http_head import Refusal
from wire.http_server import Exchange, HttpServer, TlsContexts
from wire.own_metrics import CONTENT_TYPE
from wire.port_guard import PortGuard
from wire.telemetry import TRACEPARENT, record

WRITE_PATH = "/api/v1/write"
METRICS_PATH = "/v1/metrics"
"""Where OTLP's exporters send metrics below the endpoint that they are given."""
READY_PATH = "/-/ready"
SENDERS_MAX = 1000
"""Senders whose series are kept apart at once."""

_PROTOS = {"": Version.V1, "prometheus.WriteRequest": Version.V1, "io.prometheus.write.v2.Request": Version.V2}
_TEXT = "text/plain; charset=utf-8"
_OTLP_ENCODINGS = frozenset({"", "gzip", "identity"})
_WRITTEN = "X-Prometheus-Remote-Write-"


class Receiver:
    """A receiver on a listening socket.

    Args:
        intake_of: makes the intake of a sender, when it sends for the first time.
        listener: bound and listening (`wire.http_server.listen`); `stop` closes it.
        limits: what all senders together may cost this process.
        senders: who may send; everybody unless given.
        tls: gives the context for a new connection; None for plain HTTP.
        counts: what this process counts, beside the others; its own unless given.
        guard: says who may read `/metrics`; None for everybody.
        is_ready: says whether the bus takes records.
    """

    def __init__(
        self,
        intake_of: Callable[[Sender], Intake],
        *,
        listener: socket.socket,
        limits: ReceiverSettings,
        senders: Senders | None = None,
        tls: TlsContexts | None = None,
        counts: ProcessCounts | None = None,
        guard: PortGuard | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_ready = is_ready
        self._guard = guard
        self._intake_of = intake_of
        self._limits = limits
        self._senders = senders
        self._counts = SharedCounts().of_process(0) if counts is None else counts
        self._pending = 0
        self._lock = threading.Lock()
        self._desks: dict[str, _Desk] = {}
        self._server = HttpServer(
            listener,
            self._serve,
            limits=ServerLimits(
                section="receiver",
                connections_max=limits.connections_max,
                body_bytes_max=limits.body_bytes_max,
                pending_bytes_max=limits.pending_bytes_max,
                idle_seconds=limits.idle_seconds,
                request_seconds=limits.request_seconds,
            ),
            refused=self._refused,
            tls=tls,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._server.address

    def start(self) -> None:
        """Serves in threads of its own until `stop`."""
        self._counts.set("processes", 1)
        self._server.start()

    def stop(self) -> None:
        """Takes no further connection and answers what is under way."""
        self._server.stop(grace_seconds=self._limits.stop_seconds)
        for gauge in ("processes", "connections", "pending_requests", "pending_bytes"):
            self._counts.set(gauge, 0)

    def _serve(self, exchange: Exchange) -> None:
        path = exchange.head.path
        if path == WRITE_PATH:
            exchange.check_method("POST")
            self._write(exchange)
        elif path == METRICS_PATH:
            exchange.check_method("POST")
            self._take_otlp(exchange)
        elif path == "/healthz":
            exchange.check_method("GET")
            self._say(exchange, b"ok\n")
        elif path == READY_PATH:
            exchange.check_method("GET")
            if not self._is_ready():
                raise Refusal(503, "the bus is not open yet: see the receiver's log")
            self._say(exchange, b"ready\n")
        elif path == "/metrics":
            exchange.check_method("GET")
            if self._guard is not None:
                self._guard.check(exchange)
            self._gauge()
            self._say(exchange, self._counts.text(), CONTENT_TYPE)
        else:
            raise Refusal(404, f"there is nothing at {path[:200]!r}: bodies go to {WRITE_PATH} or {METRICS_PATH}")

    def _write(self, exchange: Exchange) -> None:
        fields = exchange.head.fields
        desk = self._admitted(exchange)
        version = version_of(fields.get("content-type", ""), fields.get("content-encoding", "snappy"))
        answer = self._taken(exchange, desk, version)
        text = f"{answer.text}\n" if answer.text else ""
        exchange.connection.answer(answer.status, text.encode(), fields=_fields_of(answer, version))

    def _take_otlp(self, exchange: Exchange) -> None:
        fields = exchange.head.fields
        try:
            desk = self._admitted(exchange)
            message = otlp_message_of(fields.get("content-type", ""), fields.get("content-encoding", ""))
            answer = self._taken(exchange, desk, message)
        except Refusal as exc:
            exc.message = (status_of(exc.status, str(exc)), OTLP_CONTENT_TYPE)
            raise
        content = status_of(answer.status, answer.text)
        if answer.is_counted:
            content = response_of(answer.rejected, answer.text)
        status = 200 if answer.is_counted else answer.status
        exchange.connection.answer(status, content, kind=OTLP_CONTENT_TYPE, fields=_fields_of(answer, message))

    def _admitted(self, exchange: Exchange) -> _Desk:
        """The desk of who sends a request, if it may send another one now."""
        desk = self._desk_of(exchange)
        self._counts.add("sender_requests_total", label=desk.sender.name)
        self._check_rate(desk)
        return desk

    def _taken(self, exchange: Exchange, desk: _Desk, message: Message) -> Answer:
        body = exchange.connection.body(desk.sender.body_bytes_max)
        started = time.perf_counter_ns()
        self._counts.add("body_bytes_total", len(body))
        self._begin()
        try:
            self._share_series(desk)
            answer = desk.intake.take(body, message)
        finally:
            self._end()
        self._count(desk)
        nanoseconds = time.perf_counter_ns() - started
        self._counts.observe("request_seconds", nanoseconds)
        status = 200 if answer.is_counted and isinstance(message, Otlp) else answer.status
        self._counts.add("requests_total", label=str(status))
        record(
            "gputide.receive", nanoseconds / 1e9, exchange.head.fields.get(TRACEPARENT), message=message.name,
            status=status, bytes=len(body), samples=answer.samples,
        )  # fmt: skip
        return answer

    def _desk_of(self, exchange: Exchange) -> _Desk:
        sender = ANYONE
        if self._senders is not None:
            sender = self._senders.sender_of(exchange.authorization, exchange.certificate)
        with self._lock:
            desk = self._desks.get(sender.name)
            if desk is None or desk.sender != sender:
                if len(self._desks) >= SENDERS_MAX:
                    raise Refusal(
                        503, f"cannot take another sender: {SENDERS_MAX} send already", retry_after_seconds=60
                    )
                desk = self._desks[sender.name] = _Desk(sender, self._intake_of(sender))
            return desk

    def _check_rate(self, desk: _Desk) -> None:
        sender = desk.sender
        if desk.requests is not None:
            desk.requests.take(1)
        for limit, what, value in (
            (desk.requests, "requests", sender.requests_per_second),
            (desk.samples, "samples", sender.samples_per_second),
        ):
            wait_seconds = 0 if limit is None else limit.wait_seconds()
            if wait_seconds:
                self._counts.add("refused_rate_total")
                raise Refusal(
                    429,
                    f"cannot take more of sender {sender.name!r} now: beyond "
                    f"receiver.senders.{sender.name}.{what}_per_second={value}",
                    retry_after_seconds=wait_seconds,
                )

    def _begin(self) -> None:
        with self._lock:
            is_busy = self._pending >= self._limits.pending_requests_max
            self._pending += not is_busy
        if is_busy:
            self._counts.add("refused_busy_total")
            raise Refusal(
                429,
                f"cannot take a request: receiver.pending_requests_max={self._limits.pending_requests_max} wait",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )

    def _end(self) -> None:
        with self._lock:
            self._pending -= 1

    def _share_series(self, desk: _Desk) -> None:
        """Let a sender remember as many series as it may and the others leave over."""
        bound = self._limits.series_max
        if len(self._desks) > 1:
            bound -= sum(other.intake.series_taken for other in list(self._desks.values()) if other is not desk)
        own = desk.sender.series_max
        desk.intake.allow(max(0, bound if own is None else min(own, bound)))

    def _count(self, desk: _Desk) -> None:
        """Carry what the intake has counted since over to the shared counts."""
        with desk.lock:
            now = Counter(desk.intake.counts)
            now["cluster_claims_overridden"] = desk.intake.claims_overridden
            now["series_untrusted"] = desk.intake.untrusted
            fresh = now - desk.counted
            desk.counted = now
        append_nanoseconds = fresh.pop("append_nanoseconds", 0)
        if append_nanoseconds:
            self._counts.add("append_seconds_total", append_nanoseconds)
        samples = sum(count for name, count in fresh.items() if name.startswith("samples"))
        for name, count in fresh.items():
            self._counts.add(f"{name}_total", count)
        if samples:
            self._counts.add("sender_samples_total", samples, label=desk.sender.name)
            if desk.samples is not None:
                desk.samples.take(samples)

    def _gauge(self) -> None:
        self._counts.set("series", sum(desk.intake.series for desk in list(self._desks.values())))
        self._counts.set("connections", self._server.connections)
        self._counts.set("pending_requests", self._pending)
        self._counts.set("pending_bytes", self._server.held_bytes)

    def _say(self, exchange: Exchange, content: bytes, kind: str = _TEXT) -> None:
        self._counts.add("requests_total", label="200")
        exchange.connection.answer(200, content, kind=kind)

    def _refused(self, status: int) -> None:
        if status:
            self._counts.add("requests_total", label=str(status))
        else:
            self._counts.add("tls_failures_total")


@dataclass(slots=True, eq=False)
class _Desk:
    """A sender with what is kept for it; mutable: counts are carried over as requests come."""

    sender: Sender
    intake: Intake
    requests: RateLimit | None = field(init=False)
    samples: RateLimit | None = field(init=False)
    counted: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.requests, self.samples = (
            None if rate is None else RateLimit(rate, time.monotonic)
            for rate in (self.sender.requests_per_second, self.sender.samples_per_second)
        )


def version_of(content_type: str, encoding: str) -> Version:
    """Which message the header fields announce.

    Raises:
        Refusal: 415, for another content type, another message or another encoding.
    """
    media, _, parameters = content_type.partition(";")
    found = {}
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        found[name.strip().lower()] = value.strip().strip('"')
    version = _PROTOS.get(found.get("proto", ""))
    if media.strip().lower() != "application/x-protobuf" or version is None:
        raise Refusal(415, f"cannot take content type {content_type[:200]!r}: expected application/x-protobuf")
    if encoding.strip().lower() != "snappy":
        raise Refusal(415, f"cannot take content encoding {encoding[:200]!r}: expected snappy")
    return version


def otlp_message_of(content_type: str, encoding: str) -> Otlp:
    """Which message of OTLP the header fields announce.

    Raises:
        Refusal: 415, for JSON, another content type or another encoding.
    """
    media = content_type.partition(";")[0].strip().lower()
    if media != OTLP_CONTENT_TYPE:
        hint = "set `encoding: proto` at the exporter" if media == "application/json" else "is this OTLP?"
        raise Refusal(415, f"cannot take content type {content_type[:200]!r}: expected {OTLP_CONTENT_TYPE}; {hint}")
    if encoding.strip().lower() not in _OTLP_ENCODINGS:
        raise Refusal(
            415, f"cannot take content encoding {encoding[:200]!r}: expected gzip or none; set `compression: gzip`"
        )
    return Otlp.METRICS


def _fields_of(answer: Answer, version: Message) -> tuple[tuple[str, str], ...]:
    fields: tuple[tuple[str, str], ...] = ()
    if answer.retry_after_seconds is not None:
        fields = (("Retry-After", str(answer.retry_after_seconds)),)
    if version is Version.V2 and answer.is_counted:
        fields += (
            (f"{_WRITTEN}Samples-Written", str(answer.samples)),
            (f"{_WRITTEN}Histograms-Written", str(answer.histograms)),
            (f"{_WRITTEN}Exemplars-Written", str(answer.exemplars)),
        )
    return fields
