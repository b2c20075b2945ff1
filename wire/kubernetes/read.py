"""Reads a cluster through the Kubernetes API: objects, pages of lists, watches, reviews of rights. It changes nothing.

Objects stay plain JSON: models of 50,000 pods would cost more than all that is kept of them, and lightkube, kr8s and
the kubernetes client load models or an asynchronous stack that take a ninth of what a node's exporter may hold; none
of them decodes a page object by object. What changes a cluster is `wire.kubernetes.write`, which only the enforcer
imports.

The client also keeps the API server's time (`ServerClock`), by which windows and expiries go. It comes from the `Date`
of each answer. The header is cut to whole seconds, so every answer only says "not before": of the offsets that answers
show, the largest is the nearest. A server whose clock was set, or another one behind the same address, shows by an
offset that no cutting explains.

Sources: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md,
kubernetes/apimachinery:pkg/apis/meta/v1 (Status, ListMeta, WatchEvent),
kubernetes/client-go:tools/cache/reflector.go (how long a watch lasts),
kubernetes/api:authorization/v1 (SelfSubjectAccessReview, SubjectAccessReview, ResourceAttributes),
RFC 9110, section 6.6.1 (Date).
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from fleet.errors import GputideError, Unavailable
from wire.http_answer import Busy, lines_of, read_body
from wire.http_client import Endpoint, HttpClient, Request
from wire.kubernetes.page import Manifest, Page, open_page
from wire.kubernetes.refusals import Deed, refusal, status_of
from wire.kubernetes.request_rate import RequestRate
from wire.kubernetes.resource import ApiResource

PAGE_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of one page; a larger one is asked for again with fewer objects."""
OBJECT_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of one object that is asked for by its name."""
EVENT_BYTES_MAX = 16 * 1024 * 1024
"""Most bytes of one event of a watch; the API server takes no object of a tenth of this."""
WATCH_SECONDS = 240
"""After this time, or up to a quarter less, the server ends a watch, and the next goes on where it stood."""

_WATCH_SHARE_MIN = 0.75
"""Watches that began in one moment, as after the server was away, must not end and begin anew in one moment too."""
_ANSWER_SECONDS = 60.0
_OVERTIME_SECONDS = 30.0
_REFUSAL_BYTES_MAX = 1024 * 1024
_ABSENT_SECONDS = 60.0
"""For how long a custom resource that is not served is not asked for again."""
_JSON = "application/json"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_REVIEWS = "/apis/authorization.k8s.io/v1"


class EventKind(StrEnum):
    """What a watch reports; the value is the API's word."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """Nothing changed; the version up to which the watch has reported everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One event of a watch.

    Attributes:
        manifest: the object after it (before it, for DELETED); only metadata in a bookmark.
        version: the version from which a watch goes on after it.
    """

    kind: EventKind
    manifest: dict[str, Any]
    version: str


class KubernetesApi:
    """Speaks to one API server, from several threads.

    Its calls raise:
        Misconfigured: credentials or a right are missing.
        Unavailable: the server can't be reached, or not now (`Busy` where it says for how long).

    Args:
        agent: who asks, in the server's logs.
        rules_file: where the rights are written that this process needs, for messages.
        rate: how often it is asked; None for no bound.
        parallel_max: most requests at once, watches apart; None for no bound.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        agent: str,
        *,
        rules_file: str,
        rate: RequestRate | None = None,
        parallel_max: int | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._agent = agent
        self._rules_file = rules_file
        self._http = self.connected()
        self._rate = rate
        self._free: contextlib.AbstractContextManager[object] = (
            contextlib.nullcontext() if parallel_max is None else threading.BoundedSemaphore(parallel_max)
        )
        self._clock = ServerClock()
        self._random = random.Random()
        self._lock = threading.Lock()
        self._served: dict[str, tuple[str | None, float]] = {}
        self._asked = 0
        self._under_way = 0
        self._under_way_max = 0

    @property
    def server(self) -> str:
        """Address of the server, for messages."""
        return self._http.server

    @property
    def asked(self) -> int:
        """Requests made so far."""
        return self._asked

    @property
    def under_way_max(self) -> int:
        """Most requests that were under way at once, watches apart."""
        return self._under_way_max

    def connected(self) -> HttpClient:
        """Connections of one's own to the same server, for watches: closing them ends the watches."""
        return HttpClient(self._endpoint, self._agent)

    def close(self) -> None:
        """Closes all connections but those of `connected`."""
        self._http.close()

    def get(self, deed: Deed, path: str, *, metadata_only: bool = False) -> dict[str, Any] | None:
        """The object at a path; None where there is nothing (404).

        Raises:
            TooLarge: it has more than `OBJECT_BYTES_MAX` bytes.
        """
        asked = Request(path=path, accept=_METADATA if metadata_only else _JSON, seconds_max=_ANSWER_SECONDS)
        body = self.exchange(deed, asked, OBJECT_BYTES_MAX)
        return None if body is None else decoded(body, deed)

    def page(
        self,
        resource: ApiResource,
        version: str,
        *,
        limit: int,
        token: str | None,
        namespace: str | None = None,
        query: Mapping[str, str] | None = None,
        bytes_max: int | None = None,
    ) -> Page | None:
        """One page of a list; None where the list is not served.

        Args:
            token: the former page's `next_token`; None for the first.
            namespace: None for all.
            bytes_max: most bytes of the page; None for `PAGE_BYTES_MAX`.

        Raises:
            TooLarge: it has more bytes.
            Expired: the token is too old.
        """
        deed = Deed(verb="list", resource=resource.resource, namespace=namespace or "")
        asked = Request(
            path=resource.path(version, namespace),
            query={"limit": str(limit), **({} if token is None else {"continue": token}), **(query or {})},
            accept=_METADATA_LIST if resource.metadata_only else _JSON,
            seconds_max=_ANSWER_SECONDS,
        )
        body = self.exchange(deed, asked, bytes_max or PAGE_BYTES_MAX)
        if body is None:
            return None
        try:
            metadata, manifests = open_page(body)
        except (ValueError, RecursionError) as exc:
            raise Unavailable(f"cannot {deed}: {self.server} answered with no list: {exc}") from exc
        following = metadata.get("continue")
        return Page(
            manifests=_Checked(manifests, deed),
            version=str(metadata.get("resourceVersion", "")),
            next_token=following if isinstance(following, str) and following else None,
        )

    def watch(
        self,
        resource: ApiResource,
        version: str,
        *,
        since: str,
        query: Mapping[str, str] | None = None,
        seconds: int = WATCH_SECONDS,
        http: HttpClient | None = None,
        stands: Callable[[], None] = lambda: None,
    ) -> Iterator[WatchEvent]:
        """Events after a version, until the server ends the watch, which is no error.

        Args:
            seconds: longest time until the server ends it.
            http: connections that are used, whose closing ends the watch; None for those of this client.
            stands: called once the server has taken the watch.

        Raises:
            Expired: the version is too old, or the kind is not served any more.
            Corrupt: an event is too large.
        """
        deed = Deed(verb="watch", resource=resource.resource)
        seconds = round(seconds * self._random.uniform(_WATCH_SHARE_MIN, 1.0))
        own = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": since, "timeoutSeconds": str(seconds)}
        asked = Request(
            path=resource.path(version, None),
            query={**own, **(query or {})},
            accept=_METADATA if resource.metadata_only else _JSON,
            seconds_max=seconds + _OVERTIME_SECONDS,
            is_stream=True,
        )
        if self._rate is not None:
            self._rate.take()
        with self._lock:
            self._asked += 1
        with (http or self._http).ask(asked) as answer:
            if answer.status != HTTPStatus.OK:
                raise self._refused(deed, answer.status, read_body(answer, _REFUSAL_BYTES_MAX), answer.retry_after)
            stands()
            for line in lines_of(answer, deed.resource, EVENT_BYTES_MAX):
                yield self._event(deed, line)

    def version_of(self, resource: ApiResource, *, is_fresh: bool = False) -> str | None:
        """The version by which the server serves a kind; None where it does not, or only in others.

        Args:
            is_fresh: the server is asked, whatever it said before.
        """
        if not resource.is_optional:
            return resource.versions[0]
        with self._lock:
            known = None if is_fresh else self._served.get(resource.resource)
        if known is not None and (known[0] is not None or time.monotonic() - known[1] < _ABSENT_SECONDS):
            return known[0]
        found = next((version for version in resource.versions if self.serves(resource, version)), None)
        with self._lock:
            self._served[resource.resource] = (found, time.monotonic())
        return found

    def is_allowed(self, attributes: Mapping[str, str], *, user: str | None = None, groups: Iterable[str] = ()) -> bool:
        """Whether somebody has a right, which the server answers without keeping anything.

        Args:
            attributes: `ResourceAttributes`: group, resource, subresource, verb, namespace, name.
            user: the user; None for the client's own.
        """
        spec: dict[str, Any] = {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
        kind = "SelfSubjectAccessReview"
        if user is not None:
            kind, spec = "SubjectAccessReview", {**spec, "user": user, "groups": list(groups)}
        deed = Deed(verb="create", resource=f"{kind.lower()}s.authorization.k8s.io")
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        asked = Request(
            path=f"{_REVIEWS}/{kind.lower()}s",
            method="POST",
            is_read=True,
            body=json.dumps(body).encode(),
            seconds_max=_ANSWER_SECONDS,
        )
        answer = self.exchange(deed, asked, OBJECT_BYTES_MAX)
        status = {} if answer is None else decoded(answer, deed).get("status") or {}
        return status.get("allowed") is True

    def now(self) -> datetime:
        """The server's clock, UTC.

        Raises:
            Unavailable: no answer of it carries the time.
        """
        found = self._clock.now()
        if found is None:
            self.get(Deed(verb="get", resource="version"), "/version")
            found = self._clock.now()
        if found is None:
            raise Unavailable(f"cannot tell the cluster's time: {self.server} answers without a Date")
        return found

    def exchange(self, deed: Deed, asked: Request, bytes_max: int) -> bytearray | None:
        """One request within the bounds; the body of a success, None where there is nothing at the path (404).

        Raises:
            TooLarge: the body is larger.
            Refused: the server will not do it (`Conflict` where it depends on another version).
        """
        with self._free:
            if self._rate is not None:
                self._rate.take()
            with self._counted(), self._http.ask(asked) as answer:
                self._clock.hear(answer.date)
                body = read_body(answer, bytes_max)
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return body
        raise self._refused(deed, answer.status, body, answer.retry_after)

    def serves(self, resource: ApiResource, version: str) -> bool:
        """Whether the server serves a kind in a version now."""
        deed = Deed(verb="get", resource=f"{resource.group}/{version}", word="discover")
        answer = self.get(deed, resource.prefix(version))
        listed = None if answer is None else answer.get("resources")
        names = [entry.get("name") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return resource.plural in names

    def _event(self, deed: Deed, line: bytes | bytearray) -> WatchEvent:
        event = decoded(line, deed)
        manifest, kind = event.get("object"), event.get("type")
        if not isinstance(manifest, dict):
            raise Unavailable(f"cannot {deed}: {self.server} sent an event without an object")
        if kind == "ERROR":
            code = manifest.get("code")
            raise refusal(deed, code if isinstance(code, int) else 500, manifest, None, rules_file=self._rules_file)
        metadata = manifest.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(kind, str) or kind not in EventKind.__members__ or not isinstance(version, str):
            raise Unavailable(f"cannot {deed}: {self.server} sent {str(kind)[:64]!r}, no known event")
        return WatchEvent(kind=EventKind(kind), manifest=manifest, version=version)

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

    def _refused(self, deed: Deed, status: int, body: bytearray, retry_after: str | None) -> GputideError:
        error = refusal(deed, status, status_of(body), retry_after, rules_file=self._rules_file)
        if isinstance(error, Busy) and self._rate is not None:
            # The next request, in whatever thread, waits too.
            self._rate.rest(error.retry_after_seconds)
        return error


class _Checked:
    """Objects of a page; text that turns out to be no JSON on the way is what the server said, and ends it."""

    def __init__(self, manifests: Iterable[Manifest], deed: Deed) -> None:
        self._manifests = manifests
        self._deed = deed

    def __iter__(self) -> Iterator[Manifest]:
        try:
            yield from self._manifests
        except (ValueError, RecursionError) as exc:
            raise Unavailable(f"cannot {self._deed}: a page is no JSON: {exc}") from exc


def decoded(body: bytes | bytearray, deed: Deed) -> dict[str, Any]:
    """The object that an answer holds.

    Raises:
        Unavailable: it holds none.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise Unavailable(f"cannot {deed}: answered with no JSON: {bytes(body[:64])!r}") from exc
    if not isinstance(found, dict):
        raise Unavailable(f"cannot {deed}: answered with no object")
    return found


_CUT_SECONDS = 1.0
_JUMP_SECONDS = 2.0
"""An offset that is this much smaller is of another clock, and not only cut and late."""


class ServerClock:
    """The server's clock between its answers; for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._offset: float | None = None

    def hear(self, date: str | None) -> None:
        """Take the header of an answer that has just come; one that is absent or no date is ignored."""
        if date is None:
            return
        try:
            sent = parsedate_to_datetime(date)
        except (ValueError, TypeError, IndexError, OverflowError):
            return
        if sent.tzinfo is None:
            return
        offset = sent.timestamp() - self._clock()
        with self._lock:
            if self._offset is None or offset > self._offset or offset < self._offset - _CUT_SECONDS - _JUMP_SECONDS:
                self._offset = offset

    def now(self) -> datetime | None:
        """UTC, right to a second; None until an answer had one."""
        with self._lock:
            if self._offset is None:
                return None
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self._offset + self._clock())
