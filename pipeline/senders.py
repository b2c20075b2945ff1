"""Who may send, and as which cluster.

The receiver asks `Senders.sender_of` for every request. A sender shows a bearer token, a name with its token as the
password (basic authentication), or a certificate; the cluster of its samples is what is written here about it, never
what a label claims. Without any of them configured everybody on the address is `ANYONE`, whose labels are believed.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fleet.errors import Misconfigured
from pipeline.http_head import Refusal

TOKEN_LENGTH_MIN = 16
"""Shortest token: what is shorter can be guessed."""
TOKENS_FILE_BYTES_MAX = 1 << 20
"""Largest file of tokens."""
CHECK_SECONDS = 5.0
"""How often the file of tokens is looked at for a change."""

_SENDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,252}")
_HASHED = "sha256:"
_CHALLENGE = (("WWW-Authenticate", 'Bearer realm="gputide"'), ("WWW-Authenticate", 'Basic realm="gputide"'))


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
        now_seconds: a clock that never goes back.

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
        self._tokens_file = tokens_file
        self._takes_certificates = takes_certificates
        self._now_seconds = now_seconds
        self._lock = threading.Lock()
        self._checked_at = now_seconds()
        self._stamp: tuple[int, int] | None = None
        self._by_digest: dict[bytes, str] = {}
        if tokens_file is not None:
            self._stamp = _stamp_of(tokens_file)
            self._by_digest = _read_tokens(tokens_file)

    @property
    def are_asked(self) -> bool:
        """True where a sender must say who it is."""
        return self._tokens_file is not None or self._takes_certificates

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all senders that settings and tokens know of now."""
        return tuple(sorted({*self._known, *self._by_digest.values()}))

    def sender_of(self, authorization: str | None, certificate: Mapping[str, object] | None) -> Sender:
        """Who sends a request.

        Args:
            authorization: header field of this name; None where there is none.
            certificate: verified certificate, as `ssl.SSLSocket.getpeercert` gives it; None where none was shown.

        Raises:
            Refusal: 401, nobody we know; 403, somebody who may not send.
        """
        if not self.are_asked:
            return ANYONE
        names = self._names_of_token(authorization) if authorization else []
        if not names and certificate is not None and self._takes_certificates:
            names = _names_of_certificate(certificate)
        if not names:
            raise Refusal(401, "cannot take samples of an unknown sender: show a token or a certificate that is known",
                          fields=_CHALLENGE)  # fmt: skip
        for name in names:
            if name in self._known:
                return self._known[name]
        if self._known or not _SENDER.fullmatch(names[0]):
            raise Refusal(403, f"cannot take samples of {names[0][:100]!r}: receiver.senders does not name it")
        return Sender(name=names[0], cluster=names[0])

    def _names_of_token(self, authorization: str) -> list[str]:
        if self._tokens_file is None:
            return []
        scheme, _, given = authorization.strip().partition(" ")
        claimed = None
        if scheme.lower() == "bearer":
            token = given.strip().encode("latin-1")
        elif scheme.lower() == "basic":
            try:
                user, _, token = base64.b64decode(given.strip(), validate=True).partition(b":")
            except (binascii.Error, ValueError):
                return []
            claimed = user
        else:
            return []
        # The digest, not the token, is looked up: how long that takes tells nothing that helps to guess the token.
        digest = sha256(token).digest()
        name = self._tokens().get(digest)
        if name is None or (claimed is not None and not hmac.compare_digest(claimed, name.encode())):
            return []
        return [name]

    def _tokens(self) -> dict[bytes, str]:
        path = self._tokens_file
        if path is None:
            return {}
        with self._lock:
            now = self._now_seconds()
            if now - self._checked_at >= CHECK_SECONDS:
                self._checked_at = now
                try:
                    stamp = _stamp_of(path)
                    if stamp != self._stamp:
                        self._by_digest, self._stamp = _read_tokens(path), stamp
                except Misconfigured:
                    pass  # half written or gone for a moment: those who could send may go on
            return self._by_digest


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


def _stamp_of(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as exc:
        raise Misconfigured(f"cannot read receiver.tokens_file={path}: {exc.strerror or exc}") from exc
    return found.st_mtime_ns, found.st_size


def _read_tokens(path: Path) -> dict[bytes, str]:
    try:
        with path.open("rb") as file:
            data = file.read(TOKENS_FILE_BYTES_MAX + 1)
        lines = data.decode().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"cannot read receiver.tokens_file={path}: {exc}") from exc
    if len(data) > TOKENS_FILE_BYTES_MAX:
        raise Misconfigured(f"cannot read receiver.tokens_file={path}: larger than {TOKENS_FILE_BYTES_MAX} bytes")
    found: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not _SENDER.fullmatch(words[1]):
            raise Misconfigured(f"cannot use line {number} of receiver.tokens_file={path}: expected `TOKEN SENDER`")
        digest = _digest_of(words[0])
        if digest is None or digest in found:
            raise Misconfigured(
                f"cannot use line {number} of receiver.tokens_file={path}: a token has at least {TOKEN_LENGTH_MIN} "
                f"characters, or is `{_HASHED}` and 64 hex digits, and stands there once"
            )
        found[digest] = words[1]
    return found


def _digest_of(token: str) -> bytes | None:
    if token.startswith(_HASHED):
        try:
            digest = bytes.fromhex(token.removeprefix(_HASHED))
        except ValueError:
            return None
        return digest if len(digest) == sha256().digest_size else None
    return sha256(token.encode()).digest() if len(token) >= TOKEN_LENGTH_MIN else None
