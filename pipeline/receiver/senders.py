"""Who may send, as which cluster, and how much per second.

The receiver asks `Senders.sender_of` for every request. A sender shows a bearer token, a name with its token as the
password (basic authentication), or a certificate; the cluster of its samples is what is written here about it, never
what a label claims. Without any of them configured every sender on the address is `ANYONE`, whose labels are believed.

Each sender has one token bucket for requests and one for samples. How many samples a request brings is known only after
it was decoded, so a bucket may be overdrawn once; the next request waits until it has filled again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wire.http_head import Refusal
from wire.tokens import CHALLENGE, NAME, BearerTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """One sender.

    Attributes:
        name: its name; empty for `ANYONE`.
        cluster: cluster of all its samples; None where its labels are believed.
        series_max: most series of it that are remembered; None for the receiver's own bound.
        body_bytes_max: largest body of one request of it; None for the receiver's own bound.
        samples_per_second: samples that it may send; None for any number.
        requests_per_second: requests that it may send; None for any number.
    """

    name: str = ""
    cluster: str | None = None
    series_max: int | None = None
    body_bytes_max: int | None = None
    samples_per_second: int | None = None
    requests_per_second: int | None = None


ANYONE = Sender()
"""Everybody, where nobody has to say who they are."""


class Senders:
    """All senders that are known.

    Args:
        known: senders by name (`receiver.senders`). Where it is empty, every sender that a token or a certificate names
            may send, as the cluster of its own name.
        tokens_file: lines of `TOKEN SENDER`, where TOKEN is the token itself or `sha256:` and the hex digest of it;
            read again when it changes. None where no token opens.
        takes_certificates: True where a certificate that TLS has verified opens.

    Raises:
        Misconfigured: the file can't be read or a line of it is wrong.
    """

    def __init__(
        self,
        known: Mapping[str, Sender],
        *,
        tokens_file: Path | None,
        takes_certificates: bool,
        now_seconds: Callable[[], float],
    ) -> None:
        self._known = dict(known)
        self._takes_certificates = takes_certificates
        self._tokens: BearerTokens | None = None
        if tokens_file is not None:
            self._tokens = BearerTokens(tokens_file, setting="receiver.tokens_file", now_seconds=now_seconds)

    @property
    def are_asked(self) -> bool:
        """True where a sender must say who it is."""
        return self._tokens is not None or self._takes_certificates

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all senders that settings and tokens know of now."""
        return tuple(sorted({*self._known, *(() if self._tokens is None else self._tokens.names)}))

    def sender_of(self, authorization: str | None, certificate: Mapping[str, object] | None) -> Sender:
        """Who sends a request.

        Args:
            certificate: verified certificate, as `ssl.SSLSocket.getpeercert` gives it; None where none was shown.

        Raises:
            Refusal: 401, nobody we know; 403, somebody who may not send.
        """
        if not self.are_asked:
            return ANYONE
        holder = None if self._tokens is None else self._tokens.name_of(authorization)
        names = [] if holder is None else [holder]
        if not names and certificate is not None and self._takes_certificates:
            names = _names_of_certificate(certificate)
        if not names:
            raise Refusal(401, "cannot take samples of an unknown sender: show a token or a certificate that is known",
                          fields=CHALLENGE)  # fmt: skip
        for name in names:
            if name in self._known:
                return self._known[name]
        if self._known or not NAME.fullmatch(names[0]):
            raise Refusal(403, f"cannot take samples of {names[0][:100]!r}: receiver.senders does not name it")
        return Sender(name=names[0], cluster=names[0])


def _names_of_certificate(certificate: Mapping[str, object]) -> list[str]:
    """Common name, then the alternative names, of a certificate in the form of `ssl`."""
    names: list[str] = []
    subject = certificate.get("subject")
    if isinstance(subject, tuple):
        names += [value for part in subject for key, value in part if key == "commonName"]
    alternatives = certificate.get("subjectAltName")
    if isinstance(alternatives, tuple):
        names += [value for _, value in alternatives]
    return names


BURST_SECONDS = 10.0
"""How much may come at once, as seconds of the steady rate."""


class RateLimit:
    """A bucket."""

    def __init__(self, per_second: int, now_seconds: Callable[[], float]) -> None:
        self._per_second = per_second
        self._now_seconds = now_seconds
        self._level = per_second * BURST_SECONDS
        self._filled_at = now_seconds()
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Take out what has come; the bucket may be overdrawn."""
        with self._lock:
            self._level -= count

    def wait_seconds(self) -> int:
        """Whole seconds until there is something in the bucket again; 0 where there is."""
        with self._lock:
            now = self._now_seconds()
            full = self._per_second * BURST_SECONDS
            self._level = min(full, self._level + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            return 0 if self._level > 0 else max(1, math.ceil(-self._level / self._per_second))
