"""Asks the API server for one thing at a time: at a bounded rate, few at once, every refusal as one of our errors.

Called by reader, writer and lease, which share one client and so one budget of requests.

Source: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md.

What time it is at the API server, told by the `Date` of its answers: windows and expiries go by one clock.

The header is cut to whole seconds, so that every answer tells no more than "not before": of the offsets that answers
show, the largest is the nearest. A server whose clock was set, or another one behind the same address, shows by an
offset that no cutting explains.

Source: RFC 9110, section 6.6.1 (Date).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from enforcer.kubernetes.kinds import ApiKind
from enforcer.kubernetes.refusals import Deed, refusal
from enforcer.kubernetes.request_rate import RequestRate
from enforcer.manifest import Manifest
from fleet.errors import GputideError, Unavailable
from wire.http_answer import Busy, lines_of, read_body
from wire.http_client import Endpoint, HttpClient, Request
from wire.kubernetes.page import open_page

FIELD_MANAGER = "gputide"
"""Under this name the server keeps which fields were written by us."""

PAGE_BYTES_MAX = 64 * 1024 * 1024
OBJECT_BYTES_MAX = 4 * 1024 * 1024
EVENT_BYTES_MAX = 16 * 1024 * 1024
"""Most bytes of one event of a watch; the API server takes no object of a tenth of this."""
WATCH_SECONDS = 240
"""After this time the server ends a watch, and the next goes on where it stood."""

_ANSWER_SECONDS = 60.0
_OVERTIME_SECONDS = 30.0
_ABSENT_SECONDS = 60.0
"""For how long a custom resource that is not served is not asked for again."""
_JSON = "application/json"
JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request.

    Attributes:
        deed: what it does, for roles and messages.
        path: path, quoted.
        method: HTTP method.
        query: what follows the question mark.
        body: JSON; None for nothing.
        content_type: what the body is.
    """

    deed: Deed
    path: str
    method: str = "GET"
    query: Mapping[str, str] | None = None
    body: object = None
    content_type: str = _JSON


class KubernetesClient:
    """Speaks to one API server, from several threads.

    Args:
        access: where it is and how one gets in.
        rate: how often it is asked.
        parallel_max: most requests at once.
    """

    def __init__(self, access: Endpoint, *, rate: RequestRate, parallel_max: int) -> None:
        self._access = access
        self._connection = self.connected()
        self._rate = rate
        self._free = threading.BoundedSemaphore(parallel_max)
        self._clock = ServerClock()
        self._lock = threading.Lock()
        self._served: dict[str, tuple[str | None, float]] = {}
        self._asked = 0
        self._under_way = 0
        self._under_way_max = 0

    @property
    def server(self) -> str:
        """Address of the server, for messages."""
        return self._connection.server

    @property
    def asked(self) -> int:
        """Requests made so far."""
        return self._asked

    @property
    def under_way_max(self) -> int:
        """Most requests that were under way at once, watches apart."""
        return self._under_way_max

    def connected(self) -> HttpClient:
        """A connection of one's own to the same server, for watches: who closes it ends them."""
        return HttpClient(self._access, "gputide-enforcer")

    def close(self) -> None:
        """Close all connections but those of others."""
        self._connection.close()

    def ask(self, call: Call) -> Manifest | None:
        """Make a request.

        Returns:
            The object that was answered; None where there is nothing at this path (404).

        Raises:
            Misconfigured: credentials or a right are missing.
            Refused: the server will not do it (`Conflict` where it depends on another version).
            Unavailable: the server can't be reached, or not now.
        """
        body = self._body(call, OBJECT_BYTES_MAX)
        return None if body is None else _decoded(body, call.deed)

    def page(self, call: Call) -> tuple[Mapping[str, object], Iterable[Mapping[str, object]]] | None:
        """One page of a list: what it says of the whole list, and its objects; None where the list is not served.

        Raises:
            TooLarge: it has more than `PAGE_BYTES_MAX` bytes.
            Expired: the token of the page is too old.
            Misconfigured: credentials or a right are missing.
            Unavailable: the server can't be reached, or not now.
        """
        body = self._body(call, PAGE_BYTES_MAX)
        if body is None:
            return None
        try:
            return open_page(body)
        except (ValueError, RecursionError) as exc:
            raise Unavailable(f"cannot {call.deed}: {self.server} answered with no list: {exc}") from exc

    def watch(self, connection: HttpClient, call: Call, stands: Callable[[], None]) -> Iterator[tuple[str, Manifest]]:
        """Events as they come, until the server ends the watch: their words, and their objects.

        Args:
            connection: of whoever watches.
            call: a list, with the version to watch from in its query.
            stands: called once the server has taken the watch.

        Raises:
            Expired: the version is too old.
            Misconfigured: credentials or a right are missing.
            Corrupt: an event is too large.
            Unavailable: the server can't be reached, breaks off, or not now.
        """
        own = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        asked = Request(
            path=call.path,
            query={**(call.query or {}), **own},
            accept=_JSON,
            seconds_max=WATCH_SECONDS + _OVERTIME_SECONDS,
            is_stream=True,
        )
        self._rate.take()
        with self._lock:
            self._asked += 1
        with connection.ask(asked) as answer:
            if answer.status != http.client.OK:
                raise self._refused(call, answer.status, read_body(answer, OBJECT_BYTES_MAX), answer.retry_after)
            stands()
            for line in lines_of(answer, call.deed.resource, EVENT_BYTES_MAX):
                event = _decoded(line, call.deed)
                found, word = event.get("object"), str(event.get("type"))
                if not isinstance(found, dict):
                    raise Unavailable(f"cannot {call.deed}: {self.server} sent an event without an object")
                if word == "ERROR":
                    code = found.get("code")
                    raise refusal(call.deed, code if isinstance(code, int) else 500, found, None)
                yield word, found

    def version_of(self, kind: ApiKind) -> str | None:
        """The version by which the server serves a kind; None where it does not, or only in others.

        Raises:
            Misconfigured: credentials are missing.
            Unavailable: the server can't be reached.
        """
        if not kind.is_optional:
            return kind.versions[0]
        with self._lock:
            known = self._served.get(kind.resource)
        if known is not None and (known[0] is not None or time.monotonic() - known[1] < _ABSENT_SECONDS):
            return known[0]
        found = next((version for version in kind.versions if self._serves(kind, version)), None)
        with self._lock:
            self._served[kind.resource] = (found, time.monotonic())
        return found

    def now(self) -> datetime:
        """The server's clock, UTC.

        Raises:
            Unavailable: no answer of it tells the time.
        """
        found = self._clock.now()
        if found is None:
            self.ask(Call(deed=Deed(verb="get", resource="version"), path="/version"))
            found = self._clock.now()
        if found is None:
            raise Unavailable(f"cannot tell the cluster's time: {self.server} answers without a Date")
        return found

    def _serves(self, kind: ApiKind, version: str) -> bool:
        deed = Deed(verb="get", resource=f"{kind.group}/{version}", word="discover")
        answer = self.ask(Call(deed=deed, path=kind.prefix(version)))
        listed = None if answer is None else answer.get("resources")
        names = [entry.get("name") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return kind.plural in names

    def _body(self, call: Call, bytes_max: int) -> bytearray | None:
        asked = Request(
            path=call.path,
            query=call.query or {},
            accept=_JSON,
            seconds_max=_ANSWER_SECONDS,
            method=call.method,
            body=None if call.body is None else json.dumps(call.body).encode(),
            content_type=call.content_type,
        )
        with self._free:
            self._rate.take()
            with self._counted(), self._connection.ask(asked) as answer:
                self._clock.hear(answer.date)
                body = read_body(answer, bytes_max)
        if answer.status == http.client.NOT_FOUND:
            return None
        if answer.status < http.client.MULTIPLE_CHOICES:
            return body
        raise self._refused(call, answer.status, body, answer.retry_after)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._asked += 1
            self._under_way += 1
            self._under_way_max = max(self._under_way_max, self._under_way)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def _refused(self, call: Call, status: int, body: bytearray, retry_after: str | None) -> GputideError:
        error = refusal(call.deed, status, _status(body), retry_after)
        if isinstance(error, Busy):
            # Whoever asks next, in whatever thread, stays away too.
            self._rate.rest(error.retry_after_seconds)
        return error


def _decoded(body: bytes | bytearray, deed: Deed) -> Manifest:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise Unavailable(f"cannot {deed}: answered with no JSON: {bytes(body[:64])!r}") from exc
    if not isinstance(found, dict):
        raise Unavailable(f"cannot {deed}: answered with no object")
    return found


def _status(body: bytearray) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {"message": body[:300].decode(errors="replace")}
    return found if isinstance(found, dict) else {}


_CUT_SECONDS = 1.0
_JUMP_SECONDS = 2.0
"""An offset that is this much smaller is of another clock, and not only cut and late."""


class ServerClock:
    """The server's clock between its answers; for several threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._offset: float | None = None

    def hear(self, date: str | None) -> None:
        """Take the header of an answer that has just come; one that is absent or no date tells nothing."""
        if date is None:
            return
        try:
            told = parsedate_to_datetime(date)
        except (ValueError, TypeError, IndexError, OverflowError):
            return
        if told.tzinfo is None:
            return
        offset = told.timestamp() - self._clock()
        with self._lock:
            if self._offset is None or offset > self._offset or offset < self._offset - _CUT_SECONDS - _JUMP_SECONDS:
                self._offset = offset

    def now(self) -> datetime | None:
        """UTC, right to a second; None while no answer has told it."""
        with self._lock:
            if self._offset is None:
                return None
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self._offset + self._clock())
