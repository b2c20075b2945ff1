"""A file of bearer tokens: who may ask at a port, one `TOKEN NAME` a line, read again when it changes.

Used by the receiver for senders, and by every port for anybody who reads its metrics. TOKEN is the token itself, or
`sha256:` and the hex digest of it, so that the file need hold no secret.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from fleet.errors import Misconfigured
from wire.replaced_files import ReplacedFiles

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
        self._by_digest = ReplacedFiles(
            (path,), self._read, check_seconds=CHECK_SECONDS, keeps_last=True, now_seconds=now_seconds
        )
        self._by_digest.now()

    @property
    def names(self) -> frozenset[str]:
        """Names of all holders that are known now."""
        return frozenset(self._by_digest.now().values())

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
        name = self._by_digest.now().get(sha256(token).digest())
        if name is None or (claimed is not None and not hmac.compare_digest(claimed, name.encode())):
            return None
        return name

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
