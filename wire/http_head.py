"""Reads the head of one HTTP/1.1 request, strictly.

Called by `http_connection` with the bytes up to the empty line. A head that two readers could understand differently is
refused, because a proxy in front may be the other reader (request smuggling, RFC 9112 §11.2): a length beside chunks,
two lengths, folded lines, spaces before a colon, bare line feeds. Format: RFC 9112 §2.2, §3, §5, §6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD_BYTES_MAX = 16 * 1024
"""Longest head of a request."""
FIELDS_MAX = 64
"""Most header fields of a request."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([!-~]{1,8192}) HTTP/1\.([01])")
_ABSOLUTE = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE)
_FIELD_LINE = re.compile(_TOKEN + rb"+:[\t -~\x80-\xff]*")
_ONCE = frozenset(
    {"content-length", "transfer-encoding", "content-type", "content-encoding", "authorization", "host", "expect"}
)
_LENGTH_DIGITS_MAX = 18


class Refusal(Exception):
    """A request that is not taken.

    Args:
        retry_after_seconds: when to come again; None where that does not help.
        is_final: True where the request's end is not known, so that the connection is closed.

    Attributes:
        message: the answer's body and its content type, where a protocol wants another than the text as a line;
            mutable: what serves the protocol sets it on the way out.
    """

    def __init__(
        self,
        status: int,
        text: str,
        *,
        retry_after_seconds: int | None = None,
        fields: tuple[tuple[str, str], ...] = (),
        is_final: bool = False,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.fields = fields
        self.is_final = is_final
        self.message: tuple[bytes, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """What a request says before its body.

    Attributes:
        path: target without host and query, not decoded.
        query: what follows the `?` of the target; empty without one.
        fields: header fields by name in lower case.
        length: bytes of the body as declared; None where it is chunked or there is none.
        is_chunked: True where the body comes in chunks.
        is_kept_alive: True where the sender wants to go on with this connection.
    """

    method: str
    path: str
    query: str
    fields: dict[str, str]
    length: int | None
    is_chunked: bool
    is_kept_alive: bool

    @property
    def expects_continue(self) -> bool:
        """True where the sender waits for `100 Continue` before it sends its body."""
        return self.fields.get("expect", "").lower() == "100-continue"


def head_of(data: bytes) -> RequestHead:
    """The head of a request.

    Args:
        data: its lines without the empty one at the end; one before the request line is skipped.

    Raises:
        Refusal: it breaks a rule; 400, 417, 431 or 505.
    """
    first, *lines = data.removeprefix(b"\r\n").split(b"\r\n")
    matched = _REQUEST_LINE.fullmatch(first)
    if matched is None:
        if re.fullmatch(rb"\S+ \S+ HTTP/\d\.\d", first):
            raise Refusal(505, "cannot speak this version of HTTP: expected HTTP/1.1", is_final=True)
        raise _unreadable(f"{first[:50]!r} is no request line")
    fields = _fields_of(lines)
    method, target, minor = matched.groups()
    if minor == b"1" and "host" not in fields:
        raise _unreadable("it names no Host")
    expected = fields.get("expect", "").lower()
    if expected not in ("", "100-continue"):
        raise Refusal(417, f"cannot do what is expected: {expected[:50]!r}", is_final=True)
    length, is_chunked = _framing(fields, minor)
    path, _, query = target.partition(b"?")
    connection = {word.strip().lower() for word in fields.get("connection", "").split(",")}
    return RequestHead(
        method=method.decode("ascii"),
        path=_path_of(path),
        query=query.decode("ascii"),
        fields=fields,
        length=length,
        is_chunked=is_chunked,
        is_kept_alive="close" not in connection if minor == b"1" else "keep-alive" in connection,
    )


def _path_of(target: bytes) -> str:
    """The path of a target that may name the host too, as proxies send it (RFC 9112 §3.2.2)."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target.decode("ascii")
    if not absolute[1]:
        raise _unreadable(f"its target {target[:50]!r} names no host")
    return absolute[2].decode("ascii") or "/"


def _fields_of(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > FIELDS_MAX:
        raise Refusal(431, f"cannot take {len(lines)} header fields: more than {FIELDS_MAX}", is_final=True)
    fields: dict[str, str] = {}
    for line in lines:
        if _FIELD_LINE.fullmatch(line) is None:
            raise _unreadable(f"{line[:50]!r} is no header field")
        raw_name, _, raw_value = line.partition(b":")
        name, value = raw_name.decode("ascii").lower(), raw_value.strip(b" \t").decode("latin-1")
        if name in fields:
            if name in _ONCE:
                raise _unreadable(f"it has two fields {name}")
            value = f"{fields[name]}, {value}"
        fields[name] = value
    return fields


def _framing(fields: dict[str, str], minor: bytes) -> tuple[int | None, bool]:
    """Declared length, and whether the body is chunked."""
    coding, length_text = fields.get("transfer-encoding"), fields.get("content-length")
    if coding is not None:
        if coding.lower() != "chunked" or length_text is not None or minor == b"0":
            raise _unreadable(f"transfer encoding {coding[:50]!r} is not `chunked`, or stands beside a length")
        return None, True
    if length_text is None:
        return None, False
    if not (length_text.isascii() and length_text.isdigit()):
        raise _unreadable(f"its Content-Length is {length_text[:50]!r}")
    if len(length_text) > _LENGTH_DIGITS_MAX:
        raise Refusal(413, f"cannot take a body of {length_text[:50]} bytes", is_final=True)
    return int(length_text), False


def _unreadable(why: str) -> Refusal:
    return Refusal(400, f"cannot read the request: {why}", is_final=True)
