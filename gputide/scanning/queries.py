"""Opens the history that a scan reads, by the query API of the server that the settings name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from fleet.addresses import is_loopback
from fleet.errors import Misconfigured
from fleet.settings.scan import ScanSettings
from pipeline.history.prometheus import PrometheusHistory
from pipeline.password_file import read_password
from wire.credentials import Credentials, FixedHeader, TokenFile, basic
from wire.header_lines import checked_headers, header_lines
from wire.http_client import Endpoint, HttpClient, endpoint_of
from wire.prometheus_query import QueryOptions
from wire.tls import Tls

_AGENT = "gputide-scan"
# One matcher: a label, an operator, a quoted value (prometheus/prometheus:docs/querying/basics.md).
_MATCHER = re.compile(r'[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"', re.ASCII)


@contextmanager
def open_history(settings: ScanSettings) -> Iterator[PrometheusHistory]:
    """The history at `scan.url`.

    Raises:
        Misconfigured: the address, a matcher, a file or a header can't be used.
    """
    endpoint = scan_endpoint(settings)
    with closing(HttpClient(endpoint, _AGENT)) as http:
        yield PrometheusHistory(http, scan_options(settings, endpoint), pause=time.sleep)


def scan_options(settings: ScanSettings, endpoint: Endpoint) -> QueryOptions:
    """How much is asked for.

    Raises:
        Misconfigured: a matcher is none.
    """
    return QueryOptions(
        bytes_max=settings.query_bytes_max,
        seconds_max=settings.query_seconds,
        sign_in="name a token by scan.bearer_token_file, or scan.user with scan.password_file, or a header such as "
        "X-Scope-OrgID by scan.headers",
        bytes_setting="scan.query_bytes_max",
        attempts_max=settings.attempts_max,
        take_partial=settings.take_partial,
        # On this machine the network costs nothing, and packing would be most of the server's work.
        is_packed=not is_loopback(endpoint.host),
        matchers=checked_matchers(settings),
    )


def scan_endpoint(settings: ScanSettings) -> Endpoint:
    """Where the server is and how one gets in.

    Raises:
        Misconfigured: the address, a file or a header can't be used.
    """
    url = settings.url
    if url is None:
        raise Misconfigured("cannot scan: no address; say `gputide scan https://prometheus.example:9090`")
    endpoint = endpoint_of(
        url if "://" in url else f"http://{url}",
        setting="scan.url",
        tls=Tls(
            authority_file=settings.ca_file,
            is_unchecked=settings.unchecked_tls,
            server_name=settings.server_name,
            certificate_file=settings.certificate_file,
            key_file=settings.key_file,
        ),
        credentials=_credentials(settings),
        headers=tuple(_headers(settings)),
        sign_in="set scan.user and scan.password_file",
    )
    if endpoint.tls is None and (settings.certificate_file is not None or settings.ca_file is not None):
        raise Misconfigured(f"cannot use certificates with scan.url={url}: it is not https://")
    return replace(endpoint, path=endpoint.path.removesuffix("/api/v1"))


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
    path = settings.headers_file
    of_file = () if path is None else header_lines(path, setting="scan.headers_file")
    return checked_headers((*settings.headers.items(), *of_file), setting="scan.headers")
