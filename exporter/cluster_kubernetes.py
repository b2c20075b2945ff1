"""Reads a cluster through the Kubernetes API: lightkube's configuration and connection, our own decoding.

Objects stay plain JSON, decoded page by page and line by line: models of 50,000 pods would cost more than all that is
kept of them. Called by the front door, which hands it to `exporter.allocation.collector`.

Sources: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md,
kubernetes/apimachinery:pkg/apis/meta/v1 (Status, ListMeta, WatchEvent).
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from exporter.cluster_reader import (
    API_RESOURCES,
    ApiResource,
    EventKind,
    Expired,
    Page,
    TooLarge,
    Watched,
    WatchEvent,
)
from fleet.errors import Corrupt, Misconfigured, Unavailable

PAGE_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of one page; a larger one is asked for again with fewer objects."""
EVENT_BYTES_MAX = 16 * 1024 * 1024
"""Most bytes of one event; the API server takes no object of a tenth of this."""
WATCH_SECONDS = 240
RULES_FILE = "docs/rbac-reader.yaml"

_ANSWER_SECONDS = 30.0
_OVERTIME_SECONDS = 30.0
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_SAID_LENGTH_MAX = 300


class KubernetesReader:
    """A `ClusterReader` of a real API server.

    Args:
        kubeconfig: path of a kubeconfig; None for the pod's own service account, else `$KUBECONFIG` or
            `~/.kube/config`.
        context: name of a context of it; None for the current one.
        node: pods of this node only are read; None for all. So the exporters of thousands of nodes cost the
            server little.
        watch_seconds: after this time the server ends a watch, and the next goes on where it stood.
        page_bytes_max: most bytes of one page.

    Raises:
        Misconfigured: no configuration, or one that can't be read.
    """

    def __init__(
        self,
        *,
        kubeconfig: Path | None = None,
        context: str | None = None,
        node: str | None = None,
        watch_seconds: int = WATCH_SECONDS,
        page_bytes_max: int = PAGE_BYTES_MAX,
    ) -> None:
        config = _configuration(kubeconfig, context)
        timeout = httpx2.Timeout(_ANSWER_SECONDS, connect=10.0)
        try:
            self._client = client_adapter.Client(
                config, client_adapter.ConnectionParams(timeout=timeout, trust_env=False)
            )
        except (ConfigError, OSError, ValueError) as exc:
            raise Misconfigured(f"cannot use the Kubernetes configuration: {exc}") from exc
        self._selectors = {} if node is None else {Watched.PODS: f"spec.nodeName={node}"}
        self._watch_seconds = watch_seconds
        self._page_bytes_max = page_bytes_max
        self._server = str(config.cluster.server)
        self._versions: dict[Watched, str] = {}
        self._open: dict[int, httpx2.Response] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def version_of(self, watched: Watched) -> str | None:
        """See `ClusterReader`."""
        wanted = API_RESOURCES[watched]
        if not wanted.is_optional:
            return wanted.versions[0]
        for version in wanted.versions:
            answer = self._answer(watched, "get", _prefix(wanted, version), {}, {})
            if answer is None:
                continue
            listed = answer.get("resources")
            names = (
                {entry.get("name") for entry in listed if isinstance(entry, dict)} if isinstance(listed, list) else ()
            )
            if wanted.plural in names:
                self._versions[watched] = version
                return version
        return None

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        """See `ClusterReader`."""
        wanted = API_RESOURCES[watched]
        asked = {"limit": str(limit)} if token is None else {"limit": str(limit), "continue": token}
        asked |= self._selected(watched)
        headers = {"Accept": _METADATA_LIST} if wanted.metadata_only else {}
        answer = self._answer(watched, "list", self._path(watched), asked, headers)
        if answer is None:
            raise Expired(f"cannot list {watched.value}: {self._server} does not serve it any more")
        metadata, items = answer.get("metadata"), answer.get("items")
        if not isinstance(metadata, dict) or not isinstance(items or [], list):
            raise Corrupt(f"cannot list {watched.value}: {self._server} answered with something that is no list")
        return Page(
            manifests=[item for item in items or [] if isinstance(item, dict)],
            version=str(metadata.get("resourceVersion", "")),
            next_token=metadata.get("continue") or None,
        )

    def watch(self, watched: Watched, *, version: str) -> Iterator[WatchEvent]:
        """See `ClusterReader`."""
        asked = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(self._watch_seconds),
            **self._selected(watched),
        }
        headers = {"Accept": _METADATA} if API_RESOURCES[watched].metadata_only else {}
        timeout = httpx2.Timeout(_ANSWER_SECONDS, connect=10.0, read=self._watch_seconds + _OVERTIME_SECONDS)
        with self._stream(watched, "watch", self._path(watched), asked, headers, timeout) as response:
            if response.status_code != httpx2.codes.OK:
                raise self._refusal(
                    watched, "watch", response.status_code, _read(response, self._page_bytes_max, watched)
                )
            for line in _lines(response, watched):
                yield self._event(watched, line)

    def close(self) -> None:
        """See `ClusterReader`."""
        with self._lock:
            self._is_closed = True
            streams = [response.extensions.get("network_stream") for response in self._open.values()]
        for stream in streams:
            # Another thread waits for this socket's next byte: closing it would not wake that thread, this does.
            opened = stream.get_extra_info("socket") if stream is not None else None
            if opened is not None:
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
        self._client.close()

    def _selected(self, watched: Watched) -> dict[str, str]:
        selector = self._selectors.get(watched)
        return {} if selector is None else {"fieldSelector": selector}

    def _answer(
        self, watched: Watched, verb: str, path: str, asked: Mapping[str, str], headers: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """One whole answer; None where the server has nothing at this path."""
        with self._stream(watched, verb, path, asked, headers, self._client.timeout) as response:
            body = _read(response, self._page_bytes_max, watched)
            status = response.status_code
        if status == httpx2.codes.NOT_FOUND:
            return None
        if status != httpx2.codes.OK:
            raise self._refusal(watched, verb, status, body)
        return _decoded(body, watched)

    @contextlib.contextmanager
    def _stream(
        self,
        watched: Watched,
        verb: str,
        path: str,
        asked: Mapping[str, str],
        headers: Mapping[str, str],
        timeout: httpx2.Timeout,
    ) -> Iterator[httpx2.Response]:
        if self._is_closed:
            raise Unavailable(f"cannot {verb} {watched.value}: the reader is closed")
        try:
            with self._client.stream("GET", path, params=asked, headers=headers, timeout=timeout) as response:
                number = threading.get_ident()
                with self._lock:
                    if self._is_closed:
                        # Closed while the server made up its mind: nobody would wake this thread any more.
                        raise Unavailable(f"cannot {verb} {watched.value}: the reader is closed")
                    self._open[number] = response
                try:
                    yield response
                finally:
                    with self._lock:
                        del self._open[number]
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as exc:
            raise Unavailable(f"cannot {verb} {watched.value} at {self._server}: {exc!r}") from exc
        except RuntimeError as exc:
            # The client says so of itself when it was closed between the check and the call.
            if not self._is_closed:
                raise
            raise Unavailable(f"cannot {verb} {watched.value}: the reader is closed") from exc
        except ConfigError as exc:
            raise Misconfigured(f"cannot {verb} {watched.value} at {self._server}: {exc}") from exc

    def _event(self, watched: Watched, line: bytes) -> WatchEvent:
        event = _decoded(line, watched)
        manifest, kind = event.get("object"), event.get("type")
        if not isinstance(manifest, dict):
            raise Unavailable(f"cannot watch {watched.value}: {self._server} sent an event without an object")
        if kind == "ERROR":
            code = manifest.get("code")
            raise self._refusal(watched, "watch", code if isinstance(code, int) else 500, line, manifest)
        metadata = manifest.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(kind, str) or kind not in EventKind.__members__ or not isinstance(version, str):
            raise Unavailable(f"cannot watch {watched.value}: {self._server} sent {str(kind)[:64]!r}, no known event")
        return WatchEvent(kind=EventKind(kind), manifest=manifest, version=version)

    def _refusal(
        self, watched: Watched, verb: str, status: int, body: bytes, manifest: Mapping[str, Any] | None = None
    ) -> Exception:
        try:
            told = dict(manifest) if manifest is not None else json.loads(body)
            said = str(told.get("message", ""))[:_SAID_LENGTH_MAX] if isinstance(told, dict) else ""
        except ValueError:
            said = body[:_SAID_LENGTH_MAX].decode(errors="replace")
        what = f"cannot {verb} {watched.value} at {self._server}"
        if status == httpx2.codes.NOT_FOUND:
            return Expired(f"{what}: it is not served any more")
        if status == httpx2.codes.GONE:
            return Expired(f"{what}: what was read is too old to go on from: {said}")
        if status == httpx2.codes.FORBIDDEN:
            wanted = API_RESOURCES[watched]
            rule = f'{{apiGroups: ["{wanted.group}"], resources: ["{wanted.plural}"], verbs: ["list", "watch"]}}'
            return Misconfigured(f"{what}: verb {verb} is forbidden ({said}); add rule {rule} of {RULES_FILE}")
        if status == httpx2.codes.UNAUTHORIZED:
            return Misconfigured(f"{what}: the server does not know who asks ({said}); check token and kubeconfig")
        return Unavailable(f"{what}: status {status}: {said}")

    def _path(self, watched: Watched) -> str:
        version = self._versions.get(watched) or API_RESOURCES[watched].versions[0]
        return f"{_prefix(API_RESOURCES[watched], version)}/{API_RESOURCES[watched].plural}"


def _configuration(kubeconfig: Path | None, context: str | None) -> SingleConfig:
    try:
        known = KubeConfig.from_env() if kubeconfig is None else KubeConfig.from_file(kubeconfig)
        config = known.get(context)
    except (ConfigError, OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as exc:
        # What is no kubeconfig at all fails in all these ways inside the client.
        where = "the Kubernetes configuration" if kubeconfig is None else f"kubeconfig {kubeconfig}"
        raise Misconfigured(f"cannot read {where}: {exc!r}; see exporter.kubeconfig") from exc
    if config is None or config.user is None:
        raise Misconfigured(f"cannot use context {context!r} of the kubeconfig: it is not there or has no user")
    return config


def _prefix(wanted: ApiResource, version: str) -> str:
    return f"/apis/{wanted.group}/{version}" if wanted.group else f"/api/{version}"


def _read(response: httpx2.Response, bytes_max: int, watched: Watched) -> bytes:
    body = bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > bytes_max:
            raise TooLarge(f"cannot read a page of {watched.value}: larger than {bytes_max} bytes")
    return bytes(body)


def _lines(response: httpx2.Response, watched: Watched) -> Iterator[bytes]:
    rest = bytearray()
    for part in response.iter_bytes():
        rest += part
        if b"\n" in part:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            yield from filter(None, lines)
        elif len(rest) > EVENT_BYTES_MAX:
            raise Corrupt(f"cannot read an event of {watched.value}: larger than {EVENT_BYTES_MAX} bytes")


def _decoded(body: bytes, watched: Watched) -> dict[str, Any]:
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise Unavailable(f"cannot read what was answered of {watched.value}: not JSON: {body[:64]!r}") from exc
    if not isinstance(decoded, dict):
        raise Unavailable(f"cannot read what was answered of {watched.value}: no object")
    return decoded
