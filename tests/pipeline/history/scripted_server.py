"""A server that speaks Prometheus' query API over samples in memory, and misbehaves as a test says.

What it answers is what prometheus/prometheus:docs/querying/api.md writes, for the few expressions that a scan asks.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LOOK_BACK_MS = 300_000
MINUTE_MS = 60_000
COMPUTED = f"ms:{MINUTE_MS}ms]"
"""How an expression over time ends."""
_SELECTOR = re.compile(r"\{([^{}]*)\}")
_MATCHER = re.compile(r'(\w+)(=~|!~|=)"((?:[^"\\]|\\.)*)"')

Labels = Mapping[str, str]
Points = list[tuple[int, float]]


@dataclass
class Refusal:
    """What one request is answered with instead.

    Attributes:
        status: HTTP status.
        body: its body.
        headers: its headers.
        claims: length that it claims beyond its body's: the answer is cut.
        after_seconds: for how long nothing comes.
    """

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    claims: int = 0
    after_seconds: float = 0.0


def api_error(status: int, kind: str, text: str, **headers: str) -> Refusal:
    """An error as Prometheus words it."""
    body = json.dumps({"status": "error", "errorType": kind, "error": text}).encode()
    return Refusal(status, body, {"Content-Type": "application/json", **headers})


@dataclass
class ScriptedServer:
    """The server.

    Attributes:
        series: labels and samples (epoch milliseconds, value) in order of time.
        refuse: asked before each answer with path, parameters, and headers; what it gives is sent instead.
        extra: members that each answer carries beside its data, such as `warnings`.
        includes_start: give the sample at the very start of a range too, as Prometheus 2 does.
        asked: path and parameters of every request.
        url: its address.
    """

    series: list[tuple[Labels, Points]]
    refuse: Callable[[str, dict[str, str], Mapping[str, str]], Refusal | None] = lambda path, asked, headers: None
    extra: dict[str, Any] = field(default_factory=dict)
    includes_start: bool = False
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, asked: dict[str, str]) -> Any:
        """The data of an answer."""
        if path.startswith("/api/v1/label/"):
            label = path.removeprefix("/api/v1/label/").removesuffix("/values")
            return sorted({labels[label] for labels, _ in self.chosen(asked["match[]"]) if label in labels})
        if path == "/api/v1/series":
            start, end = _ms(asked["start"]), _ms(asked["end"])
            return [
                labels
                for labels, points in self.chosen(asked["match[]"])
                if any(start <= ts <= end for ts, _ in points)
            ]
        if path == "/api/v1/query_range":
            start, end, step = (_ms(asked[name]) for name in ("start", "end", "step"))
            return _matrix((labels, _looks(points, start, end, step)) for labels, points in self.chosen(asked["query"]))
        expression, end = asked["query"], _ms(asked["time"])
        if expression.startswith("max("):
            found = self._largest(expression, end)
            return {
                "resultType": "vector",
                "result": [] if found is None else [{"metric": {}, "value": [0, str(found)]}],
            }
        if expression.endswith(COMPUTED):
            span = int(expression[expression.rindex("[") + 1 : -len(COMPUTED)])
            return _matrix(self._computed(expression, end - span, end))
        span = int(expression[expression.rindex("[") + 1 : -3])
        lower = (lambda ts: end - span <= ts) if self.includes_start else (lambda ts: end - span < ts)
        return _matrix(
            (labels, [(ts, value) for ts, value in points if lower(ts) and ts <= end])
            for labels, points in self.chosen(expression)
        )

    def chosen(self, expression: str) -> list[tuple[Labels, Points]]:
        """The series that a selector means."""
        found = _SELECTOR.search(expression)
        assert found is not None, expression
        matchers = [
            (name, re.compile(re.escape(value) if sign == "=" else value.replace("\\\\", "\\")), sign == "!~")
            for name, sign, value in _MATCHER.findall(found[1])
        ]
        return [
            (labels, points)
            for labels, points in self.series
            if all((pattern.fullmatch(labels.get(name, "")) is None) == isnt for name, pattern, isnt in matchers)
        ]

    def _computed(self, expression: str, start: int, end: int) -> Iterator[tuple[Labels, Points]]:
        """What the first metric of an expression makes by pod, minute by minute: its growth a second, or its value."""
        for labels, points in self.chosen(expression):
            found = []
            for at in range((start // MINUTE_MS + 1) * MINUTE_MS, end + 1, MINUTE_MS):
                inside = [(ts, value) for ts, value in points if at - LOOK_BACK_MS < ts <= at]
                if inside and "rate(" not in expression:
                    found.append((at, inside[-1][1]))
                elif len(inside) > 1:
                    (first, low), (last, high) = inside[0], inside[-1]
                    found.append((at, 1000 * (high - low) / (last - first)))
            yield {name: labels[name] for name in ("cluster", "namespace", "pod") if name in labels}, found

    def _largest(self, expression: str, end: int) -> float | None:
        seconds = int(re.findall(r"\[(\d+)s", expression)[0])
        values = [
            value % 1 if "% 1" in expression else value
            for _, points in self.chosen(expression)
            for ts, value in points
            if end - seconds * 1000 < ts <= end
        ]
        return max(values, default=None)


@contextmanager
def serving(server: ScriptedServer) -> Iterator[ScriptedServer]:
    """Let it serve on loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(parse_qs(urlsplit(self.path).query))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._reply(parse_qs(body.decode()))

        def _reply(self, found: dict[str, list[str]]) -> None:
            path, asked = urlsplit(self.path).path, {name: values[0] for name, values in found.items()}
            server.asked.append((path, asked))
            refusal = server.refuse(path, {**asked, "method": self.command}, dict(self.headers))
            if refusal is None:
                data = json.dumps({"status": "success", **server.extra, "data": server.answer(path, asked)})
                refusal = Refusal(200, data.encode(), {"Content-Type": "application/json"})
            time.sleep(refusal.after_seconds)
            try:
                self.send_response(refusal.status)
                for name, value in refusal.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(refusal.body) + refusal.claims))
                self.end_headers()
                self.wfile.write(refusal.body)
            except OSError:
                self.close_connection = True
            if refusal.claims:
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        server.url = f"http://127.0.0.1:{listening.server_address[1]}"
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


def _matrix(found: Any) -> dict[str, Any]:
    result = [
        {"metric": labels, "values": [[ts / 1000, _text(value)] for ts, value in points]}
        for labels, points in found
        if points
    ]
    return {"resultType": "matrix", "result": result}


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(value)


def _looks(points: Points, start: int, end: int, step: int) -> Points:
    """What a plain selector gives at evenly spaced times: the newest value of the last five minutes."""
    found = []
    for at in range(start, end + 1, step):
        newest = [value for ts, value in points if at - LOOK_BACK_MS < ts <= at]
        if newest:
            found.append((at, newest[-1]))
    return found


def _ms(seconds: str) -> int:
    return round(float(seconds) * 1000)
