"""A history behind the query API of Prometheus, as Thanos, Mimir and VictoriaMetrics speak it too.

Samples are asked for as they lie in the store (`metric{…}[6h]`, a range selector in an instant query), so nothing is
interpolated, no step has to fit the scrape's, and a series that has ended does not live on for the five minutes of the
look-back. Where the server or we have a limit, the time asked for is halved.

Sources: prometheus/prometheus:docs/querying/api.md (paths, error types), thanos-io/thanos:docs/components/query.md
(`dedup`, `partial_response`, `max_source_resolution`),
VictoriaMetrics/VictoriaMetrics:app/vmselect/prometheus/prometheus.go (`QueryHandler`: a range selector exports raw
samples), grafana/mimir:docs (limits answer 422 or 429).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Corrupt, Misconfigured, Unavailable
from pipeline.history.matrix import labels_of, read_matrix, read_object, warnings_of
from pipeline.history.source import SampleBlock, SourceWork
from wire.http_answer import Answer, TooLarge, read_body
from wire.http_client import HttpClient, Request

SPAN_MS_MIN = 60_000
"""A query that is still too large for a minute is given up."""
LOOKS_MAX = 10_000
"""Moments that are asked for in one query; Prometheus refuses more than 11,000."""

_RETRY_AFTER_SECONDS_MAX = 30.0
_SAID_LENGTH_MAX = 300
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LIMIT_WORDS = re.compile(
    r"too many|too large|exceed|limit|max-samples|maximum|query timed out|timeout|context deadline", re.IGNORECASE
)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_Found = TypeVar("_Found")


class TooMuch(Unavailable):
    """The server won't answer so much at once, or we won't read it: less may go."""


class _Again(Unavailable):
    """Trying again may help.

    Attributes:
        after_seconds: for how long the server wants to be left alone.
    """

    def __init__(self, message: str, *, after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """How much is asked for.

    Attributes:
        bytes_max: largest answer (`scan.query_bytes_max`).
        seconds_max: longest time for one (`scan.query_seconds`).
        attempts_max: how often a query is tried (`scan.attempts_max`).
        take_partial: go on with answers in part (`scan.take_partial`).
        is_packed: ask for answers in gzip, which spares the wire and costs the server.
    """

    bytes_max: int
    seconds_max: float
    attempts_max: int
    take_partial: bool
    is_packed: bool


class PrometheusHistory:
    """See `HistorySource`.

    Args:
        connection: to the server; the caller closes it.
        matchers: label matchers that every series must satisfy.
        limits: how much is asked for.
        pause: waits that many seconds.
    """

    def __init__(
        self,
        connection: HttpClient,
        *,
        matchers: Sequence[str],
        limits: QueryLimits,
        pause: Callable[[float], None],
    ) -> None:
        self.work = SourceWork()
        self._connection = connection
        self._matchers = tuple(matchers)
        self._limits = limits
        self._pause = pause
        self._may_post = True

    def selector(self, name: str) -> str:
        """See `HistorySource`."""
        return "{" + ",".join((f'__name__="{name}"', *self._matchers)) + "}"

    def names(self, wanted: Sequence[str], *, since_ms: int, until_ms: int) -> frozenset[str]:
        """See `HistorySource`."""
        return frozenset(self.label_values("__name__", wanted, since_ms=since_ms, until_ms=until_ms)) & set(wanted)

    def label_values(self, label: str, wanted: Sequence[str], *, since_ms: int, until_ms: int) -> tuple[str, ...]:
        """See `HistorySource`."""
        asked = {"match[]": self._any_of(wanted), "start": _seconds(since_ms), "end": _seconds(until_ms)}
        found = self._tried(lambda: self._listed(f"/api/v1/label/{label}/values", asked, is_get=True))
        return tuple(sorted({value for value in found if isinstance(value, str)}))

    def series(self, name: str, *, since_ms: int, until_ms: int) -> list[Mapping[str, str]]:
        """See `HistorySource`."""
        asked = {"match[]": self.selector(name), "start": _seconds(since_ms), "end": _seconds(until_ms)}
        found = self._tried(lambda: self._listed("/api/v1/series", asked))
        return [labels for labels in map(labels_of, found) if labels is not None]

    def samples(self, name: str, *, since_ms: int, until_ms: int) -> SampleBlock:
        """See `HistorySource`."""

        def ask(start_ms: int, end_ms: int) -> SampleBlock:
            query = f"{self.selector(name)}[{end_ms - start_ms}ms]"
            return self._matrix("/api/v1/query", {"query": query, "time": _seconds(end_ms)})

        # Prometheus 2 gives the sample at the very start of a range as well.
        return joined(
            [_within(block, start, end) for block, start, end in self._halving(ask, name, since_ms, until_ms)]
        )

    def looks(self, name: str, *, since_ms: int, until_ms: int, step_ms: int) -> SampleBlock:
        """See `HistorySource`."""

        def ask(start_ms: int, end_ms: int) -> SampleBlock:
            asked = {
                "query": self.selector(name),
                "start": _seconds(-(-start_ms // step_ms) * step_ms),
                "end": _seconds(end_ms),
                "step": _seconds(step_ms),
            }
            if -(-start_ms // step_ms) * step_ms > end_ms:
                return joined([])
            return self._matrix("/api/v1/query_range", asked)

        blocks, start_ms = [], since_ms
        while start_ms < until_ms:
            end_ms = min(until_ms, start_ms + LOOKS_MAX * step_ms)
            blocks += [block for block, _, _ in self._halving(ask, name, start_ms, end_ms)]
            start_ms = end_ms
        return joined(blocks)

    def number(self, expression: str, *, at_ms: int) -> float | None:
        """See `HistorySource`."""
        document = self._tried(lambda: self._asked("/api/v1/query", {"query": expression, "time": _seconds(at_ms)}))
        try:
            results = read_object(document)["data"]["result"]
            return float(results[0]["value"][1]) if results else None
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            raise Corrupt(f"cannot read the answer of {self._connection.server} to {expression[:80]!r}") from exc

    def _any_of(self, names: Sequence[str]) -> str:
        pattern = "|".join(re.escape(name) for name in names).replace("\\", "\\\\")
        return "{" + ",".join((f'__name__=~"{pattern}"', *self._matchers)) + "}"

    def _halving(
        self, ask: Callable[[int, int], SampleBlock], name: str, since_ms: int, until_ms: int
    ) -> list[tuple[SampleBlock, int, int]]:
        """The answers to a query over parts of a time that are as short as they must be, in order of time."""
        waiting, found = [(since_ms, until_ms)], []
        while waiting:
            start, end = waiting.pop()
            try:
                found.append((self._tried(lambda start=start, end=end: ask(start, end)), start, end))  # type: ignore[misc]
            except TooMuch as exc:
                if end - start <= SPAN_MS_MIN:
                    raise Unavailable(
                        f"cannot read {name} of {self._connection.server}: too much even for "
                        f"{(end - start) / 1000:.0f} s ({exc}); narrow it with scan.matchers, or "
                        "raise scan.query_bytes_max or the server's own limit"
                    ) from exc
                self.work.halved += 1
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
        return found

    def _tried(self, ask: Callable[[], _Found]) -> _Found:
        """Asks as often as may help."""
        attempt = 1
        while True:
            try:
                return ask()
            except TooMuch:
                raise
            except (Unavailable, Corrupt) as exc:
                if attempt >= self._limits.attempts_max:
                    if isinstance(exc, _Again) and _LIMIT_WORDS.search(str(exc)):
                        # A server that gives up each time may have the time for half as much.
                        raise TooMuch(str(exc)) from exc
                    raise
                after = exc.after_seconds if isinstance(exc, _Again) else 0.0
                self._pause(max(after, min(2.0 ** (attempt - 1), _RETRY_AFTER_SECONDS_MAX)))
                attempt += 1
                self.work.tried_again += 1

    def _matrix(self, path: str, asked: Mapping[str, str]) -> SampleBlock:
        answer = read_matrix(self._asked(path, asked))
        self._weigh(answer.warnings)
        return answer.block

    def _listed(self, path: str, asked: Mapping[str, str], *, is_get: bool = False) -> list[Any]:
        document = read_object(self._asked(path, asked, is_get=is_get))
        self._weigh(warnings_of(document))
        found = document.get("data")
        if not isinstance(found, list):
            raise Corrupt(f"cannot read the answer of {self._connection.server} to {path}: it is no list")
        return found

    def _weigh(self, warnings: Sequence[str]) -> None:
        """Decides what to do about an answer that lacks something."""
        if not warnings:
            return
        if not self._limits.take_partial:
            raise Unavailable(
                f"cannot read a whole answer of {self._connection.server}: {clean(warnings[0])}; mend that, or say "
                "scan.take_partial=true to go on with what there is"
            )
        for text in warnings:
            if text not in self.work.partial and len(self.work.partial) < 20:
                self.work.partial.append(clean(text))

    def _asked(self, path: str, asked: Mapping[str, str], *, is_get: bool = False) -> bytearray:
        """The body of a successful answer."""
        # Thanos alone knows the first three: one of each pair of replicas, whole answers or none, nothing downsampled.
        # Without the last, VictoriaMetrics moves a question of the last half minute into the past.
        asked = {**asked, "dedup": "true", "partial_response": str(self._limits.take_partial).lower(),
                 "max_source_resolution": "0s", "nocache": "1"}  # fmt: skip
        is_post = self._may_post and not is_get
        request = Request(
            path=path,
            query={} if is_post else asked,
            accept="application/json",
            seconds_max=self._limits.seconds_max,
            is_stream=not self._limits.is_packed,
            method="POST" if is_post else "GET",
            body=urlencode(asked).encode() if is_post else None,
            content_type="application/x-www-form-urlencoded",
        )
        try:
            with self._connection.ask(request) as answer:
                body = read_body(answer, self._limits.bytes_max)
        except TooLarge as exc:
            raise TooMuch(f"an answer is larger than scan.query_bytes_max={self._limits.bytes_max}") from exc
        except TooMuch:
            raise
        except Unavailable as exc:
            # The connection's words for a time that is over are those of a server that has too much to do.
            raise _Again(str(exc).replace("not answered in", "timeout: not answered in")) from exc
        if is_post and answer.status in (403, 405, 501) and not _is_api_error(body):
            # A proxy that lets nothing but GET through.
            self._may_post = False
            return self._asked(path, asked)
        self.work.queries += 1
        self.work.bytes_read += len(body)
        self._check(answer, body, path)
        return body

    def _check(self, answer: Answer, body: bytearray, path: str) -> None:
        """Raises what an answer that is no success means."""
        server, status = self._connection.server, answer.status
        head = bytes(body[:4096]).lstrip()
        if status == 200 and head.startswith(b"{"):
            return
        said = _said(body)
        what = f"cannot read {path} of {server}"
        if status in (401, 403):
            raise Misconfigured(
                f"{what}: it answered {status}{said}; name a token by scan.bearer_token_file, or scan.user with "
                "scan.password_file, or a header such as X-Scope-OrgID by scan.headers"
            )
        if 300 <= status < 400:
            raise Misconfigured(
                f"{what}: it sends on to another address (status {status}), as login pages do; give the address of the "
                "query API itself, and credentials by scan.bearer_token_file"
            )
        if status in _BUSY:
            raise _Again(f"{what}: it answered {status}{said}", after_seconds=_retry_after(answer))
        if status in (400, 413, 422) and _LIMIT_WORDS.search(said):
            raise TooMuch(f"{what}: it answered {status}{said}")
        if status == 200 or not _is_api_error(body):
            raise Misconfigured(
                f"{what}: it answered {status} with {'a web page' if head.startswith(b'<') else 'no JSON'}, as what is "
                "no Prometheus does; give the address up to the part before /api/v1 (Mimir: …/prometheus, "
                "VictoriaMetrics cluster: …/select/0/prometheus)"
            )
        raise Misconfigured(f"{what}: it answered {status}{said}")


def joined(blocks: Sequence[SampleBlock]) -> SampleBlock:
    """The samples of several answers, each series of each answer by itself."""
    starts: list[NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)]
    offset = 0
    for block in blocks:
        starts.append(block.starts[1:] + offset)
        offset += len(block.ts_ms)
    return SampleBlock(
        labels=tuple(labels for block in blocks for labels in block.labels),
        starts=np.concatenate(starts),
        ts_ms=np.concatenate([np.empty(0, dtype=np.int64), *(block.ts_ms for block in blocks)]),
        values=np.concatenate([np.empty(0), *(block.values for block in blocks)]),
    )


def clean(text: str) -> str:
    """What a server says, as it stands in a message: on one line, printable, and cut."""
    return _UNPRINTABLE.sub(" ", text).strip()[:_SAID_LENGTH_MAX]


def _within(block: SampleBlock, since_ms: int, until_ms: int) -> SampleBlock:
    is_in = (block.ts_ms > since_ms) & (block.ts_ms <= until_ms)
    if is_in.all():
        return block
    before: NDArray[np.int64] = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(is_in, dtype=np.int64)))
    return SampleBlock(
        labels=block.labels, starts=before[block.starts], ts_ms=block.ts_ms[is_in], values=block.values[is_in]
    )


def _seconds(moment_ms: int) -> str:
    return f"{moment_ms // 1000}.{moment_ms % 1000:03d}"


def _retry_after(answer: Answer) -> float:
    text = answer.retry_after
    is_number = text is not None and text.isascii() and text.isdigit()
    return min(float(text[:9]), _RETRY_AFTER_SECONDS_MAX) if text is not None and is_number else 0.0


def _is_api_error(body: bytearray) -> bool:
    try:
        found = json.loads(body[:100_000])
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and ("errorType" in found or "error" in found)


def _said(body: bytearray) -> str:
    """What an error says, behind a colon; empty where it says nothing that one could read."""
    try:
        found = json.loads(body[:100_000])
        text = found.get("error") or found.get("message") or ""
    except (ValueError, RecursionError, AttributeError):
        text = "" if bytes(body[:4096]).lstrip().startswith(b"<") else body[:_SAID_LENGTH_MAX].decode(errors="replace")
    text = clean(text if isinstance(text, str) else "")
    return f": {text}" if text else ""
