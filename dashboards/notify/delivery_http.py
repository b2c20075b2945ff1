"""Sends to chat services and webhooks: one POST, certificates verified, no redirect followed, answers bounded.

Apprise 2.2 is not used: on the same local services it reports refusals of Feishu and DingTalk (200 with a code) as
sent, does not sign Feishu, drops Retry-After, knows no certificate authority per channel, obeys HTTP_PROXY, holds a
time-out of 2 s open for 20 s when bytes drip, and reads an answer of 300 MiB into 605 MiB of memory.

The address comes from a file that the operator named and from nowhere else; plain http goes to this machine only.
"""

from __future__ import annotations

import email.utils
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from dashboards.notify.chat_formats import Hook, Outgoing
from dashboards.notify.delivery import TryAgain
from dashboards.notify.message import Message
from fleet.addresses import is_loopback
from fleet.errors import Misconfigured, Unavailable
from wire.http_answer import read_body
from wire.http_client import Endpoint, HttpClient, Request, Untrusted
from wire.own_network import is_metadata
from wire.tls import Tls, TlsContexts

_ANSWER_BYTES_MAX = 65_536
_SECRET_LENGTH_MIN = 6
"""A part of an address from this length on may be a key; shorter ones are versions and the like."""
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpDelivery:
    """`Delivery` by POST.

    Args:
        channel: its name in the settings, for messages.
        timeout_seconds: how long a message may take, from the connection to the end of the answer.
        ca_file: certificates that are trusted instead of the system's; None for the system's.
        certificate_file: what is shown to the service; None for nothing.
        key_file: its key; None where it stands in the same file.
        now: the time, UTC, that signatures are made for.

    Raises:
        Misconfigured: the address is none that may be used, or the certificates can't be read.
    """

    def __init__(
        self,
        *,
        channel: str,
        hook: Hook,
        outgoing: Callable[[Message, Hook, datetime], Outgoing],
        timeout_seconds: float,
        ca_file: Path | None,
        certificate_file: Path | None = None,
        key_file: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._channel = channel
        self._hook = hook
        self._outgoing = outgoing
        self._timeout_seconds = timeout_seconds
        self._now = now
        _checked(hook.url, channel)
        self._tls = Tls(authority_file=ca_file, certificate_file=certificate_file, key_file=key_file)
        self._contexts = checked_contexts(self._tls, channel)

    def send(self, message: Message) -> None:
        """Post the message; see `Delivery`."""
        request = self._outgoing(message, self._hook, self._now())
        parts = _checked(request.url, self._channel)
        endpoint = Endpoint(
            host=parts.hostname or "",
            port=parts.port or (443 if parts.scheme == "https" else 80),
            tls=self._tls if parts.scheme == "https" else None,
        )
        asked = Request(
            path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            shown="the hook",
            seconds_max=self._timeout_seconds,
            method="POST",
            body=request.body,
            content_type="application/json; charset=utf-8",
            headers=request.headers,
        )
        try:
            with HttpClient(endpoint, "gputide", contexts=self._contexts, is_kept=False).ask(asked) as answer:
                body = read_body(answer, _ANSWER_BYTES_MAX, is_cut=True)
        except Untrusted as exc:
            raise Misconfigured(
                f"cannot trust {parts.hostname} of channel {self._channel}: {exc}; a private certificate authority "
                f"goes into notify.channels.{self._channel}.ca_file"
            ) from exc
        except Unavailable as exc:
            words = _without(_secrets(request, self._hook), str(exc))
            raise Unavailable(f"cannot reach {parts.hostname} of channel {self._channel}: {words}") from exc
        text = _without(_secrets(request, self._hook), body.decode(errors="replace"))
        self._check(request, answer.status, answer.retry_after, text)

    def _check(self, request: Outgoing, status: int, retry_after: str | None, body: str) -> None:
        if status in _PASSING_STATUS:
            raise TryAgain(
                f"channel {self._channel} answered {status}, try again later", _seconds(retry_after, self._now())
            )
        if 300 <= status < 400:
            raise Misconfigured(
                f"channel {self._channel} answered {status}: redirects are not followed; put the address that it "
                "points to into url_file"
            )
        if not 200 <= status < 300:
            raise Misconfigured(f"channel {self._channel} refused the message with {status}: {body[:200]!r}")
        refusal = request.refusal_of(body.encode())
        if refusal is None:
            return
        if refusal.is_passing:
            raise TryAgain(f"channel {self._channel} has too many messages: {refusal.reason}")
        raise Misconfigured(f"channel {self._channel} refused the message: {refusal.reason}")


def checked_contexts(tls: Tls, channel: str) -> TlsContexts:
    """The TLS contexts of a channel.

    Raises:
        Misconfigured: its certificates can't be used.
    """
    contexts = TlsContexts(tls)
    try:
        contexts.context()
    except Misconfigured as exc:
        raise Misconfigured(
            f"cannot use notify.channels.{channel}.ca_file={tls.authority_file} with "
            f"certificate_file={tls.certificate_file}: {exc}"
        ) from exc
    return contexts


def _checked(url: str, channel: str) -> SplitResult:
    """The parts of an address that may be used; the address itself is a secret and stays out of messages."""
    where = f"cannot use the address of channel {channel}"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        raise Misconfigured(f"{where}: it is no URL") from exc
    if not url.isascii() or any(sign.isspace() or not sign.isprintable() for sign in url):
        raise Misconfigured(f"{where}: it holds spaces or signs that a URL can't have")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Misconfigured(f"{where}: expected https://HOST/…")
    if parts.username is not None or parts.fragment:
        raise Misconfigured(f"{where}: no user name and no # may stand in it")
    if is_metadata(parts.hostname):
        raise Misconfigured(f"{where}: {parts.hostname} is a machine's metadata service, no hook")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise Misconfigured(f"{where}: http would send it in plain text to {parts.hostname}; use https")
    return parts


def _seconds(retry_after: str | None, now: datetime) -> float | None:
    """The pause that a Retry-After asks for, in seconds or as a date (RFC 9110, section 10.2.3)."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        at = email.utils.parsedate_to_datetime(retry_after)
        return max(0.0, (at - now).total_seconds()) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _secrets(request: Outgoing, hook: Hook) -> list[str]:
    """What of an address and a key stays out of messages, the longest first."""
    found: set[str] = set() if hook.secret is None else {hook.secret}
    for url in (hook.url, request.url):
        parts = urlsplit(url)
        found |= {url, parts.path, parts.query, *parts.path.split("/"), *(value for _, value in parse_qsl(parts.query))}
    found |= {unquote(word) for word in found}
    return sorted((word for word in found if len(word) >= _SECRET_LENGTH_MIN), key=len, reverse=True)


def _without(secrets: list[str], text: str) -> str:
    """A text of the service without what is secret: many servers repeat the path that was asked for."""
    for word in secrets:
        text = text.replace(word, "…")
    return text
