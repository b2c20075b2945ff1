"""Who has which rights: a file that the operator keeps, read again whenever it changes, so a right ends at once.

Format (TOML), one table per person, group or token; the rights of all that fit a person add up:

    [[right]]
    person = "mei"                      # the name that the way of signing in gives; or
    group = "gpu-platform"              # a group that it gives; or
    token = "ci"                        # a token of that name, known by
    token_sha256 = "9f86d0…"            # the SHA-256 of its text, 64 hexadecimal digits
    role = "viewer"                     # viewer, approver, operator or admin
    clusters = ["prod-a"]               # all, where absent
    namespaces = ["search", "ads"]      # all, where absent
    expires = 2027-01-31T00:00:00Z      # never, where absent
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import tomllib
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dashboards.access.people import Person, Right, Role
from dashboards.access.sessions import Identity
from fleet.errors import Misconfigured
from fleet.settings.faults import fault_words

FILE_BYTES_MAX = 4 * 2**20
_SHA256_PATTERN = r"^[0-9a-f]{64}$"

Name = Annotated[str, Field(min_length=1, max_length=253)]


class Entry(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    person: Name | None = None
    group: Name | None = None
    token: Name | None = None
    token_sha256: Annotated[str, Field(pattern=_SHA256_PATTERN)] | None = None
    role: Role
    clusters: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    namespaces: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    expires: datetime | None = None

    @model_validator(mode="after")
    def _is_of_one(self) -> Entry:
        if [self.person, self.group, self.token].count(None) != 2:
            raise ValueError("expected exactly one of person, group and token")
        if (self.token is None) != (self.token_sha256 is None):
            raise ValueError("token and token_sha256 belong together")
        if self.expires is not None and self.expires.tzinfo is None:
            raise ValueError("expires needs a time zone, such as 2027-01-31T00:00:00Z")
        return self

    @property
    def who(self) -> str:
        """Whose right it is, in words."""
        kind = "person" if self.person is not None else "group" if self.group is not None else "token"
        return f"{kind} {self.person or self.group or self.token}"

    @property
    def right(self) -> Right:
        """The right that it gives."""
        return Right(
            role=self.role,
            clusters=None if self.clusters is None else frozenset(self.clusters),
            namespaces=None if self.namespaces is None else frozenset(self.namespaces),
        )


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    right: tuple[Entry, ...] = ()


class Roster:
    """The file.

    Args:
        now: the moment, UTC, for rights that expire.

    Raises:
        Misconfigured: it can't be read; the message names the entry.
    """

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path, self._now = path, now
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._entries: tuple[Entry, ...] = ()
        self._read()

    def person(self, name: str, groups: Collection[str]) -> Person:
        """Somebody of these groups, with all their rights; they may have none."""
        found = [entry for entry in self._valid() if entry.person == name or entry.group in groups]
        return Person(name=name, rights=tuple(entry.right for entry in found))

    def entries(self) -> tuple[Entry, ...]:
        """All of the file, expired ones too, in its order."""
        self._read()
        return self._entries

    def holder(self, token: str) -> Identity | None:
        """The token whose text this is; None where it is none, or has expired; as quick for every text."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        found = [
            entry.token
            for entry in self._valid()
            if entry.token is not None
            and entry.token_sha256 is not None
            and hmac.compare_digest(entry.token_sha256, digest)
        ]
        return Identity(name=found[0], token_sha256=digest) if found else None

    def of_token(self, holder: Identity) -> Person:
        """The holder of a token, with all the rights that this token has now.

        Another token of the same name is another one: the new one that takes the place of one that leaked leaves the
        old one, and who signed in by it, without a right.
        """
        rights = tuple(
            entry.right
            for entry in self._valid()
            if entry.token == holder.name and entry.token_sha256 == holder.token_sha256
        )
        return Person(name=holder.name, rights=rights)

    def _valid(self) -> list[Entry]:
        self._read()
        now = self._now()
        return [entry for entry in self._entries if entry.expires is None or now < entry.expires]

    def _read(self) -> None:
        with self._lock:
            try:
                status = self._path.stat()
                stamp = (status.st_mtime_ns, status.st_size)
                if stamp == self._stamp:
                    return
                if status.st_size > FILE_BYTES_MAX:
                    raise Misconfigured(
                        f"cannot read dashboard.rights_file={self._path}: {status.st_size} bytes, limit "
                        f"{FILE_BYTES_MAX}"
                    )
                self._entries = _parsed(self._path.read_text(encoding="utf-8"), self._path)
                self._stamp = stamp
            except (OSError, UnicodeDecodeError) as exc:
                # A file that is gone gives nobody any right, and says so.
                self._entries, self._stamp = (), None
                raise Misconfigured(f"cannot read dashboard.rights_file={self._path}: {exc}") from exc
            except Misconfigured:
                self._entries, self._stamp = (), None
                raise


def _parsed(text: str, path: Path) -> tuple[Entry, ...]:
    try:
        return _File.model_validate(tomllib.loads(text)).right
    except ValidationError as exc:
        # Somebody may have written the token itself where its SHA-256 belongs.
        words = fault_words(exc, _File, secret={"token_sha256"})
        raise Misconfigured(f"cannot read dashboard.rights_file={path}: {words}") from exc
    except (ValueError, RecursionError) as exc:
        # Beside its own error the parser lets those of numbers with thousands of digits and of deep nesting through.
        raise Misconfigured(f"cannot read dashboard.rights_file={path}: {str(exc)[:200]}") from exc
