"""The head of an HTTP/1 request, read strictly.

The standard library reads heads too, but brings TLS and mail parsing along: six megabytes in a process that has
sixty. A metrics port needs a method, a path and three headers. Called by `exporter.server`.

Format: RFC 9112 §2-§3 and §5 (request line, field lines; folded lines are refused), §9.3 (which connections stay open).

Which format and encoding a scraper asks for, by its request's headers.

Called by `exporter.server`. Grammar: RFC 9110 §12.5.1 and §12.5.3 (lists with weights); what Prometheus sends:
prometheus/prometheus:scrape/scrape.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from exporter.exposition.rendering import TextFormat
from fleet.errors import Corrupt

HEADERS_MAX = 64
"""Most field lines of a head."""

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([\x21-\x7e]{1,8192}) HTTP/1\.([0-9])\r\n")
_FIELD_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):[ \t]*([^\r\n\x00]*?)[ \t]*\r\n")
# A bare line feed ends no line: whoever stands before us may take it for a part of a field (RFC 9112 §2.2).
_END = b"\r\n"
_ABSOLUTE = re.compile(rb"https?://([^/?]*)([^?]*)(\?.*)?", re.IGNORECASE)


class LineReader(Protocol):
    """Where lines come from; `io.BufferedReader` is one."""

    def readline(self, size: int | None = -1, /) -> bytes:
        """The next line with its end; less where the stream ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        method: the method, as sent.
        path: the path, without the query.
        headers: values by lower-case name; those of one name are joined by a comma.
        stays_open: the connection may carry another request. Never after one with a body: nobody reads it, and what
            follows on the connection could not be told from it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    stays_open: bool


def read_request(lines: LineReader) -> Request | None:
    """Reads the next head.

    Args:
        lines: the connection's lines; bounded by whoever hands them over.

    Returns:
        The request; None where the connection ended between requests.

    Raises:
        Corrupt: not the head of a request, or one that ends before its blank line.
    """
    first = lines.readline()
    if first == _END:
        # A client may send an empty line before the next request (RFC 9112 §2.2).
        first = lines.readline()
    if not first:
        return None
    request_line = _REQUEST_LINE.fullmatch(first)
    if request_line is None:
        raise Corrupt(f"cannot read request line {first[:80]!r}")
    headers = _headers(lines)
    connection = headers.get("connection", "").lower()
    has_body = "content-length" in headers or "transfer-encoding" in headers
    is_latest = request_line[3] != b"0"
    return Request(
        method=request_line[1].decode("ascii"),
        path=_path(request_line[2]),
        headers=headers,
        stays_open=is_latest and "close" not in connection and not has_body,
    )


def _path(target: bytes) -> str:
    """The path of a target; one that names the host too, as proxies send it, is taken as well (RFC 9112 §3.2.2)."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target.partition(b"?")[0].decode("ascii")
    if not absolute[1]:
        raise Corrupt(f"cannot read request target {target[:80]!r}: it names no host")
    return absolute[2].decode("ascii") or "/"


def _headers(lines: LineReader) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for _ in range(HEADERS_MAX + 1):
        line = lines.readline()
        if line == _END:
            return headers
        field = _FIELD_LINE.fullmatch(line)
        if field is None:
            raise Corrupt(f"cannot read header {line[:80]!r}")
        name, value = field[1].decode("ascii").lower(), field[2].decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    raise Corrupt(f"cannot read a head of more than {HEADERS_MAX} headers")


_ITEMS_MAX = 32
"""A scraper names a handful of formats; what stands behind is not read."""


def text_format_of(accept: str) -> TextFormat:
    """The format to answer in: OpenMetrics where the scraper wants it at least as much as the older one.

    Args:
        accept: the `Accept` header; empty for none.
    """
    open_weight = plain_weight = 0.0
    for name, parameters, weight in _items(accept):
        if name == "application/openmetrics-text" and parameters.get("version", "1.0.0") == "1.0.0":
            open_weight = max(open_weight, weight)
        elif name in ("text/plain", "text/*", "*/*") and parameters.get("version", "0.0.4") == "0.0.4":
            plain_weight = max(plain_weight, weight)
    is_open = open_weight > 0.0 and open_weight >= plain_weight
    return TextFormat.OPENMETRICS if is_open else TextFormat.PROMETHEUS


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the answer may be compressed.

    Args:
        accept_encoding: the `Accept-Encoding` header; empty for none.
    """
    return any(name == "gzip" and weight > 0.0 for name, _, weight in _items(accept_encoding))


def _items(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for item in header.split(",", _ITEMS_MAX)[:_ITEMS_MAX]:
        name, *rest = (part.strip() for part in item.split(";", _ITEMS_MAX))
        pairs = (part.partition("=") for part in rest)
        parameters = {key.strip().lower(): value.strip(' "') for key, _, value in pairs}
        yield name.lower(), parameters, _weight(parameters.pop("q", "1"))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
