"""A file of bearer tokens: who may ask at a port, one `TOKEN NAME` a line, read again when it changes.

Used by the receiver for senders, and by every port for anybody who reads its metrics. TOKEN is the token itself, or
`sha256:` and the hex digest of it, so that the file need hold no secret.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from fleet.errors import Misconfigured

TOKEN_LENGTH_MIN = 16
"""Shortest token: what is shorter can be guessed."""
FILE_BYTES_MAX = 1 << 20
"""Largest file of tokens."""
CHECK_SECONDS = 5.0
"""How often the file is looked at for a change."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,252}")
"""What a holder of a token may be called."""
CHALLENGE = (("WWW-Authenticate", 'Bearer realm="gputide"'), ("WWW-Authenticate", 'Basic realm="gputide"'))
"""Header fields of an answer to somebody unknown (RFC 9110 §11.6.1, RFC 6750 §3, RFC 7617 §2)."""

_HASHED = "sha256:"


class BearerTokens:
    """The file; for several threads.

    Args:
        setting: dotted name of the setting that names it, for messages.

    Raises:
        Misconfigured: the file can't be read or a line of it is wrong.
    """

    def __init__(self, path: Path, *, setting: str, now_seconds: Callable[[], float]) -> None:
        self._path, self._setting = path, setting
        self._now_seconds = now_seconds
        self._lock = threading.Lock()
        self._checked_at = now_seconds()
        self._stamp = self._stamp_now()
        self._by_digest = self._read()

    @property
    def names(self) -> frozenset[str]:
        """Names of all holders that are known now."""
        return frozenset(self._by_digest.values())

    def name_of(self, authorization: str | None) -> str | None:
        """Who shows a token, as a bearer or as the password of basic authentication; None for nobody known.

        Args:
            authorization: header field of this name; None where there is none.
        """
        if authorization is None:
            return None
        scheme, _, given = authorization.strip().partition(" ")
        claimed = None
        if scheme.lower() == "bearer":
            token = given.strip().encode("latin-1", "replace")
        elif scheme.lower() == "basic":
            try:
                claimed, _, token = base64.b64decode(given.strip(), validate=True).partition(b":")
            except (binascii.Error, ValueError):
                return None
        else:
            return None
        # The digest, not the token, is looked up: how long that takes does not help to guess the token.
        name = self._tokens().get(sha256(token).digest())
        if name is None or (claimed is not None and not hmac.compare_digest(claimed, name.encode())):
            return None
        return name

    def _tokens(self) -> dict[bytes, str]:
        with self._lock:
            now = self._now_seconds()
            if now - self._checked_at >= CHECK_SECONDS:
                self._checked_at = now
                try:
                    stamp = self._stamp_now()
                    if stamp != self._stamp:
                        self._by_digest, self._stamp = self._read(), stamp
                except Misconfigured:
                    pass  # half written or gone for a moment: those who were let in may go on
            return self._by_digest

    def _stamp_now(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as exc:
            raise Misconfigured(f"cannot read {self._setting}={self._path}: {exc.strerror or exc}") from exc
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> dict[bytes, str]:
        where = f"{self._setting}={self._path}"
        try:
            with self._path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            lines = data.decode().splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            # What stands in the file is secret: a decoder's error would quote it.
            reason = exc.strerror or exc if isinstance(exc, OSError) else f"not UTF-8 at byte {exc.start}"
            raise Misconfigured(f"cannot read {where}: {reason}") from None
        if len(data) > FILE_BYTES_MAX:
            raise Misconfigured(f"cannot read {where}: larger than {FILE_BYTES_MAX} bytes")
        found: dict[bytes, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2 or not NAME.fullmatch(words[1]):
                raise Misconfigured(f"cannot use line {number} of {where}: expected `TOKEN NAME`")
            digest = _digest_of(words[0])
            if digest is None or digest in found:
                raise Misconfigured(
                    f"cannot use line {number} of {where}: a token has at least {TOKEN_LENGTH_MIN} characters, or is "
                    f"`{_HASHED}` and 64 hex digits, and stands there once"
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
