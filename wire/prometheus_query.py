"""The query API of Prometheus, as Thanos, Mimir and VictoriaMetrics speak it too: every question of ours to one.

An answer is read whole or not at all, within bounds, and is checked: labels may come from tenants. Errors say what to
change. A scan, the doctor, relief's objectives, the watch after a change and unit counts ask through this.

Sources: prometheus/prometheus:docs/querying/api.md (paths, error types),
VictoriaMetrics/VictoriaMetrics:app/vmselect/prometheus/query_response.qtpl (`isPartial`),
grafana/mimir:docs (limits answer 422 or 429).
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

from fleet.errors import Corrupt, Misconfigured, Unavailable
from wire.http_answer import Answer, TooLarge, read_body
from wire.http_client import HttpClient, Request

SERIES_MAX = 10_000
"""Most series of an instant query that are read, unless the options say otherwise."""

_RETRY_AFTER_SECONDS_MAX = 30.0
_SAID_LENGTH_MAX = 300
_LABELS_MAX = 1000
_PARTIAL_MAX = 20
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LIMIT_WORDS = re.compile(
    r"too many|too large|exceed|limit|max-samples|maximum|query timed out|timeout|context deadline", re.IGNORECASE
)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_Found = TypeVar("_Found")


class TooMuch(Unavailable):
    """The server won't answer so much at once, or we won't read it: a smaller question may be answered."""


class _Again(Unavailable):
    """Trying again may help.

    Attributes:
        after_seconds: for how long the server wants to be left alone.
    """

    def __init__(self, message: str, *, after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series of an instant vector.

    Attributes:
        labels: its labels; what stands there may come from tenants.
        value: its value; never NaN.
    """

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """How much is asked for, and what errors advise.

    Attributes:
        seconds_max: longest time for one.
        sign_in: how the settings name credentials, as a message's advice: "name a token by scan.bearer_token_file".
        bytes_setting: setting of `bytes_max`; None where nobody can set it.
        series_max: most series of an instant query that are read.
        attempts_max: how often a question is tried.
        take_partial: go on with answers in part.
        is_packed: ask for answers in gzip, which spares the network and costs the server.
        matchers: label matchers that every series must satisfy.
        parameters: what goes with every question.
    """

    bytes_max: int
    seconds_max: float
    sign_in: str
    bytes_setting: str | None = None
    series_max: int = SERIES_MAX
    attempts_max: int = 1
    take_partial: bool = True
    is_packed: bool = True
    matchers: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class QueryWork:
    """What a server was asked for so far; mutable: counted question by question.

    Attributes:
        queries: answers that were read.
        bytes_read: their bytes, before any compression on the way.
        partial: what the server said about answers that it gave in part, each text once.
    """

    queries: int = 0
    bytes_read: int = 0
    tried_again: int = 0
    partial: list[str] = field(default_factory=list)


class PrometheusQuery:
    """Asks one server; for several threads.

    All methods raise:
        Unavailable: it can't be reached, is overloaded, or answers in part where that is refused (`TooMuch` where it
            may answer a smaller question).
        Misconfigured: it does not let us in, is no Prometheus, or finds the question wrong.
        Corrupt: its answer is cut, or something else than was asked for.
    """

    def __init__(
        self,
        http: HttpClient,
        options: QueryOptions,
        *,
        work: QueryWork | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.work = work or QueryWork()
        self._http = http
        self._options = options
        self._pause = pause
        self._may_post = True

    @property
    def server(self) -> str:
        """Its address."""
        return self._http.server

    def close(self) -> None:
        """Closes the connections to it."""
        self._http.close()

    def selector(self, name: str, *further: str) -> str:
        """A selector of a metric, with the matchers of the options.

        Args:
            name: name of the metric, or several divided by `|`.
            further: further matchers, such as `pod!=""`.
        """
        sign = "=~" if "|" in name else "="
        return "{" + ",".join((f'__name__{sign}"{name}"', *further, *self._options.matchers)) + "}"

    def any_of(self, names: Sequence[str]) -> str:
        """A selector of several metrics, whatever signs their names have."""
        pattern = "|".join(re.escape(name) for name in names).replace("\\", "\\\\")
        return "{" + ",".join((f'__name__=~"{pattern}"', *self._options.matchers)) + "}"

    def vector(self, query: str, *, at_seconds: float | None = None) -> tuple[Sample, ...]:
        """Every series that an instant query has.

        Args:
            at_seconds: at which moment, epoch seconds; None for the server's now.
        """
        return self._instant(query, at_seconds, lambda document: read_vector(document, self._options.series_max))

    def number(self, query: str, *, at_seconds: float | None = None) -> float | None:
        """The first value that an instant query has; None where it has none."""
        found = self.vector(query, at_seconds=at_seconds)
        return found[0].value if found else None

    def times(self, query: str) -> tuple[tuple[float, ...], ...]:
        """Times of the samples of each series of a range selector, epoch seconds."""
        return self._instant(query, None, _read_times)

    def label_values(
        self, label: str, *, since_seconds: float, until_seconds: float, selector: str | None = None
    ) -> tuple[str, ...]:
        """The values of a label over the series that a selector names in a time, sorted; None for all series."""
        asked = {"start": f"{since_seconds:.3f}", "end": f"{until_seconds:.3f}"}
        if selector is not None:
            asked["match[]"] = selector
        found = self._list(f"/api/v1/label/{label}/values", asked, is_get=True)
        return tuple(sorted({value for value in found if isinstance(value, str)}))

    def series(self, selector: str, *, since_seconds: float, until_seconds: float) -> list[Mapping[str, str]]:
        """The label sets of the series that a selector names in a time."""
        asked = {"match[]": selector, "start": f"{since_seconds:.3f}", "end": f"{until_seconds:.3f}"}
        found = self._list("/api/v1/series", asked)
        return [labels for labels in map(labels_of, found) if labels is not None]

    def state(self, path: str) -> Any:
        """What an endpoint of the server's own state says; None where this server does not have it."""
        try:
            return self.ask(path, {}, self._data, is_get=True)
        except (Misconfigured, Corrupt):
            # Thanos, Mimir and VictoriaMetrics answer paths that they lack in ways of their own.
            return None

    def ask(
        self, path: str, asked: Mapping[str, str], read: Callable[[bytearray], _Found], *, is_get: bool = False
    ) -> _Found:
        """Asks as often as may help, and reads the answer.

        Args:
            path: path of the API, `/api/v1/…`.
            read: reads the body of a successful answer; raises Corrupt where it is cut.
            is_get: the path takes no POST.
        """
        attempt = 1
        while True:
            try:
                return read(self._body(path, asked, is_get=is_get))
            except TooMuch:
                raise
            except (Unavailable, Corrupt) as exc:
                if attempt >= self._options.attempts_max:
                    if isinstance(exc, _Again) and _LIMIT_WORDS.search(str(exc)):
                        # A server that gives up each time may have the time for half as much.
                        raise TooMuch(str(exc)) from exc
                    raise
                after = exc.after_seconds if isinstance(exc, _Again) else 0.0
                self._pause(max(after, min(2.0 ** (attempt - 1), _RETRY_AFTER_SECONDS_MAX)))
                attempt += 1
                self.work.tried_again += 1

    def weigh(self, warnings: Sequence[str]) -> None:
        """Decides what to do about an answer that lacks something.

        Raises:
            Unavailable: answers in part are refused.
        """
        if not warnings:
            return
        if not self._options.take_partial:
            raise Unavailable(
                f"cannot read a whole answer of {self.server}: {clean(warnings[0])}; mend that, or say "
                "scan.take_partial=true to go on with what there is"
            )
        for text in map(clean, warnings):
            if text not in self.work.partial and len(self.work.partial) < _PARTIAL_MAX:
                self.work.partial.append(text)

    def _instant(self, query: str, at_seconds: float | None, read: Callable[[Mapping[str, Any]], _Found]) -> _Found:
        moment = {} if at_seconds is None else {"time": f"{at_seconds:.3f}"}

        def checked(body: bytearray) -> _Found:
            try:
                document = read_object(body)
                self.weigh(warnings_of(document))
                return read(document)
            except Corrupt as exc:
                raise Corrupt(f"cannot read what {self.server} answers to {query[:200]!r}: {exc}") from exc

        return self.ask("/api/v1/query", {"query": query, **moment}, checked)

    def _list(self, path: str, asked: Mapping[str, str], *, is_get: bool = False) -> list[Any]:
        found = self.ask(path, asked, self._data, is_get=is_get)
        if not isinstance(found, list):
            raise Corrupt(f"cannot read the answer of {self.server} to {path}: it is no list")
        return found

    def _data(self, body: bytearray) -> Any:
        document = read_object(body)
        self.weigh(warnings_of(document))
        return document.get("data")

    def _body(self, path: str, asked: Mapping[str, str], *, is_get: bool) -> bytearray:
        options = self._options
        asked = {**asked, **options.parameters}
        is_post = self._may_post and not is_get
        request = Request(
            path=path,
            query={} if is_post else asked,
            seconds_max=options.seconds_max,
            is_stream=not options.is_packed,
            method="POST" if is_post else "GET",
            is_read=True,
            body=urlencode(asked).encode() if is_post else None,
            content_type="application/x-www-form-urlencoded",
        )
        try:
            with self._http.ask(request) as answer:
                body = read_body(answer, options.bytes_max)
        except TooLarge as exc:
            limit = f"{options.bytes_max} bytes"
            if options.bytes_setting is not None:
                limit = f"{options.bytes_setting}={options.bytes_max}"
            raise TooMuch(f"an answer of {self.server} is larger than {limit}") from exc
        except Unavailable as exc:
            # The client's words for a time that is over are those of a server that has too much to do.
            raise _Again(str(exc).replace("not answered in", "timeout: not answered in")) from exc
        if is_post and answer.status in (403, 405, 501) and not _is_api_error(body):
            # A proxy that lets nothing but GET through.
            self._may_post = False
            return self._body(path, asked, is_get=True)
        self.work.queries += 1
        self.work.bytes_read += len(body)
        self._check(answer, body, path)
        return body

    def _check(self, answer: Answer, body: bytearray, path: str) -> None:
        """Raises what an answer that is no success means."""
        status = answer.status
        head = bytes(body[:4096]).lstrip()
        if status == 200 and head.startswith(b"{"):
            return
        said = _said(body)
        what = f"cannot read {path} of {self.server}"
        if status in (401, 403):
            raise Misconfigured(f"{what}: it answered {status}{said}; {self._options.sign_in}")
        if 300 <= status < 400:
            raise Misconfigured(
                f"{what}: it sends on to another address (status {status}), as login pages do; give the address of the "
                f"query API itself, and credentials: {self._options.sign_in}"
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


def clean(text: str) -> str:
    """What a server says, as it stands in a message: on one line, printable, and cut."""
    return _UNPRINTABLE.sub(" ", text).strip()[:_SAID_LENGTH_MAX]


def read_vector(document: Mapping[str, Any], series_max: int = SERIES_MAX) -> tuple[Sample, ...]:
    """The series of an instant vector; those without a value are left out.

    Raises:
        Corrupt: it is none.
    """
    try:
        data = document["data"]
        if data["resultType"] != "vector":
            raise ValueError(f"expected a vector, got {data['resultType']!r}")
        found = []
        for entry in data["result"][:series_max]:
            value = float(entry["value"][1])
            if not math.isnan(value):
                labels = {str(name): str(text) for name, text in entry["metric"].items()}
                found.append(Sample(labels=labels, value=value))
        return tuple(found)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as exc:
        raise Corrupt("no vector of series") from exc


def _read_times(document: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
    try:
        results = document["data"]["result"]
        return tuple(tuple(float(pair[0]) for pair in entry["values"]) for entry in results)
    except (LookupError, TypeError, ValueError) as exc:
        raise Corrupt("no matrix") from exc


def read_object(body: bytes | bytearray, said_bytes: int | None = None) -> dict[str, Any]:
    """A JSON object.

    Args:
        said_bytes: length of the answer for the message; that of the text unless given.

    Raises:
        Corrupt: it is none.
    """
    size = len(body) if said_bytes is None else said_bytes
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise Corrupt(f"cannot read an answer of {size} bytes: it is cut or no JSON") from exc
    if not isinstance(found, dict):
        raise Corrupt(f"cannot read an answer of {size} bytes: it is no object")
    return found


def warnings_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What a server says about an answer that lacks something.

    Prometheus and Thanos list `warnings`; VictoriaMetrics says `isPartial`.
    """
    found = document.get("warnings")
    listed = found[:_PARTIAL_MAX] if isinstance(found, list) else []
    said = [item[:_SAID_LENGTH_MAX] for item in listed if isinstance(item, str)]
    if document.get("isPartial") is True:
        said.append("the answer is partial")
    return tuple(said)


def labels_of(found: object) -> dict[str, str] | None:
    """A label set; None where it is none."""
    if not isinstance(found, dict) or len(found) > _LABELS_MAX:
        return None
    return found if all(isinstance(value, str) for value in found.values()) else None


def _retry_after(answer: Answer) -> float:
    text = answer.retry_after or ""
    return min(float(text[:9]), _RETRY_AFTER_SECONDS_MAX) if text.isascii() and text.isdigit() else 0.0


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
