"""What an API server's answer says: its body within bounds, the message of a refusal, and for how long to stay away.

Called by the exporter's reader and the enforcer's client, which make their own errors of it.

Sources: kubernetes/apimachinery:pkg/apis/meta/v1 (Status), RFC 9110 (Retry-After).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from fleet.errors import Corrupt, Unavailable
from wire.kubernetes.connection import Answer

RETRY_AFTER_SECONDS_MAX = 300.0
"""Longest time for which a server that is busy is left alone."""

_SAID_LENGTH_MAX = 300


class Busy(Unavailable):
    """The API server wants to be left alone for a while.

    Attributes:
        retry_after_seconds: for how long; never more than `RETRY_AFTER_SECONDS_MAX`.
    """

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = min(max(0.0, retry_after_seconds), RETRY_AFTER_SECONDS_MAX)


class TooLarge(Corrupt):
    """An answer is larger than is read at once: fewer objects must be asked for."""


def read_body(answer: Answer, bytes_max: int) -> bytearray:
    """The whole body.

    Args:
        answer: not read yet.
        bytes_max: most bytes of it.

    Raises:
        TooLarge: it has more.
        http.client.HTTPException: it ends too early.
        OSError: the connection broke, or the time is over.
    """
    body = bytearray()
    for part in answer.parts():
        body += part
        if len(body) > bytes_max:
            raise TooLarge(f"cannot read an answer of status {answer.status}: larger than {bytes_max} bytes")
    return body


def lines_of(answer: Answer, what: str, bytes_max: int) -> Iterator[bytes | bytearray]:
    """The lines of a watch as they come, without those that are empty.

    Args:
        answer: not read yet.
        what: what is watched, for the message.
        bytes_max: most bytes of a line.

    Raises:
        Corrupt: a line has more.
        http.client.HTTPException: it ends too early.
        OSError: the connection broke, or the time is over.
    """
    rest = bytearray()
    for part in answer.parts():
        rest += part
        if b"\n" in part:
            *lines, rest = rest.split(b"\n")
            yield from filter(None, lines)
        elif len(rest) > bytes_max:
            raise Corrupt(f"cannot read an event of {what}: larger than {bytes_max} bytes")


def said(told: bytearray | Mapping[str, object]) -> str:
    """What a refusal says, cut."""
    if isinstance(told, bytearray):
        try:
            decoded = json.loads(told)
        except (ValueError, RecursionError):
            return told[:_SAID_LENGTH_MAX].decode(errors="replace")
        told = decoded if isinstance(decoded, dict) else {}
    return str(told.get("message", ""))[:_SAID_LENGTH_MAX]


def unavailable(message: str, answer: Answer | None) -> Unavailable:
    """What to raise for an answer that asks to come again: `Busy` where it says when."""
    seconds = None if answer is None else answer.retry_after
    if seconds is not None and seconds.isascii() and seconds.isdigit():
        # As a date, which it may be too, no API server writes it.
        return Busy(message, retry_after_seconds=float(seconds[:9]))
    return Unavailable(message)
