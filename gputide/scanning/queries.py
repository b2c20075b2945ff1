"""Opens the history that a scan reads, as the settings say: `wiring` for the query API of others."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from fleet.errors import Misconfigured
from fleet.settings.scan import ScanSettings
from gputide.addresses import is_loopback
from pipeline.history.prometheus import PrometheusHistory, QueryLimits
from pipeline.password_file import read_password
from wire.credentials import Credentials, FixedHeader, TokenFile, basic
from wire.http_client import Endpoint, HttpClient
from wire.tls import Tls

_AGENT = "gputide-scan"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,4096}", re.ASCII)
_HEADERS_FILE_BYTES_MAX = 64 * 1024
# One matcher: a label, an operator, a quoted value (prometheus/prometheus:docs/querying/basics.md).
_MATCHER = re.compile(r'[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"', re.ASCII)


@contextmanager
def open_history(settings: ScanSettings) -> Iterator[PrometheusHistory]:
    """The history at `scan.url`.

    Raises:
        Misconfigured: the address, a matcher, a file or a header can't be used.
    """
    access = scan_access(settings)
    connection = HttpClient(access, _AGENT)
    try:
        yield PrometheusHistory(
            connection,
            matchers=checked_matchers(settings),
            limits=QueryLimits(
                bytes_max=settings.query_bytes_max,
                seconds_max=settings.query_seconds,
                attempts_max=settings.attempts_max,
                take_partial=settings.take_partial,
                # On this machine the wire costs nothing, and packing would be most of the server's work.
                is_packed=not is_loopback(access.host),
            ),
            pause=time.sleep,
        )
    finally:
        connection.close()


def scan_access(settings: ScanSettings) -> Endpoint:
    """Where the server is and how one gets in.

    Raises:
        Misconfigured: the address, a file or a header can't be used.
    """
    if settings.url is None:
        raise Misconfigured("cannot scan: no address; say `gputide scan https://prometheus.example:9090`")
    parts, host, port = _parts_of(settings.url)
    tls = None
    if parts.scheme == "https":
        tls = Tls(
            authority_file=settings.ca_file,
            is_unchecked=settings.unchecked_tls,
            server_name=settings.server_name,
            certificate_file=settings.certificate_file,
            key_file=settings.key_file,
        )
    elif settings.certificate_file is not None or settings.ca_file is not None:
        raise Misconfigured(f"cannot use certificates with scan.url={settings.url}: it is not https://")
    path = parts.path.rstrip("/")
    return Endpoint(
        host=host,
        port=port,
        path=path.removesuffix("/api/v1"),
        tls=tls,
        credentials=_credentials(settings),
        headers=tuple(_headers(settings)),
    )


def checked_matchers(settings: ScanSettings) -> tuple[str, ...]:
    """The label matchers, that of the chosen cluster among them.

    Raises:
        Misconfigured: one of them is none.
    """
    for text in settings.matchers:
        if not _MATCHER.fullmatch(text.strip()):
            raise Misconfigured(
                f"cannot use {text[:100]!r} in scan.matchers: expected a label, an operator and a quoted value, such "
                'as job="dcgm-exporter"'
            )
    found = [text.strip() for text in settings.matchers]
    if settings.cluster is not None:
        value = settings.cluster.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        found.append(f'{settings.cluster_label}="{value}"')
    return tuple(found)


def _parts_of(url: str):  # type: ignore[no-untyped-def]
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise Misconfigured(f"cannot use scan.url={url!r}: {exc}") from exc
    if parts.scheme not in ("http", "https") or not host:
        raise Misconfigured(f"cannot use scan.url={url!r}: expected http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise Misconfigured(
            "cannot use scan.url with a password in it: everybody on the machine sees it; set scan.user and "
            "scan.password_file"
        )
    if parts.query or parts.fragment:
        raise Misconfigured(f"cannot use scan.url={url!r}: it goes on behind the path")
    return parts, host, port or (443 if parts.scheme == "https" else 80)


def _credentials(settings: ScanSettings) -> Credentials:
    if settings.bearer_token_file is not None and settings.user is not None:
        raise Misconfigured("cannot use both scan.bearer_token_file and scan.user: set one of them")
    if settings.bearer_token_file is not None:
        return TokenFile(settings.bearer_token_file)
    if settings.user is None:
        if settings.password_file is not None:
            raise Misconfigured("cannot use scan.password_file without scan.user")
        return FixedHeader(None)
    if settings.password_file is None:
        raise Misconfigured("cannot use scan.user without scan.password_file")
    return FixedHeader(basic(settings.user, read_password(settings.password_file, setting="scan.password_file")))


def _headers(settings: ScanSettings) -> Iterator[tuple[str, str]]:
    for name, value in (*settings.headers.items(), *_headers_of(settings.headers_file)):
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise Misconfigured(f"cannot use header {name[:100]!r} of scan.headers: not what HTTP allows")
        if name.lower() in ("host", "content-length", "content-type", "transfer-encoding", "connection"):
            raise Misconfigured(f"cannot use header {name!r} of scan.headers: it is the program's own")
        yield name, value


def _headers_of(path: Path | None) -> Iterator[tuple[str, str]]:
    if path is None:
        return
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_HEADERS_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"cannot read scan.headers_file={path}: {exc}") from exc
    for line in filter(str.strip, text.splitlines()):
        name, sign, value = line.partition(":")
        if not sign:
            raise Misconfigured(f"cannot use scan.headers_file={path}: expected lines such as X-Scope-OrgID: team")
        yield name.strip(), value.strip()
