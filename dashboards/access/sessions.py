"""Who is signed in: kept in this process alone, so a restart asks everybody to sign in again.

The browser holds a random secret, this process its SHA-256, so that a dump of our memory signs nobody in. A session
keeps who somebody is, never what they may: rights are looked up at every request.

Ours, because a copied cookie of Flask's signed session, which flask-login stands on, still signs in after its owner has
signed out, and Flask-Session 0.8 ends the session begun last when it is full and knows no longest life (measured).
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

SESSIONS_MAX = 10_000
"""Most sessions at once; beyond it the one that was used longest ago ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who somebody is, as the way of signing in says.

    Attributes:
        token_sha256: SHA-256 of the token, hexadecimal, where the name is a token's; None for a person.
    """

    name: str
    groups: frozenset[str] = frozenset()
    token_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    identity: Identity
    begun: float
    used: float


class Sessions:
    """Sessions of one process; from any thread.

    Args:
        idle_seconds_max: a session that is not used for so long ends.
        seconds_max: a session ends so long after it began, used or not.
    """

    def __init__(self, *, idle_seconds_max: float, seconds_max: float, clock: Callable[[], float]) -> None:
        self._idle, self._longest, self._clock = idle_seconds_max, seconds_max, clock
        self._lock = threading.Lock()
        self._known: dict[bytes, _Session] = {}

    def begin(self, identity: Identity) -> str:
        """Sign somebody in; returns the secret that the browser is to hold, 256 random bits."""
        secret = secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            self._forget(now)
            self._known[_key(secret)] = _Session(identity=identity, begun=now, used=now)
        return secret

    def find(self, secret: str) -> Identity | None:
        """Who holds a secret; None where nobody does, or no longer. Using it keeps it from going idle."""
        now, key = self._clock(), _key(secret)
        with self._lock:
            found = self._known.get(key)
            if found is None:
                return None
            if not self._lives(found, now):
                del self._known[key]
                return None
            self._known[key] = replace(found, used=now)
            return found.identity

    def end(self, secret: str) -> None:
        """Sign somebody out; a secret that nobody holds is no error."""
        with self._lock:
            self._known.pop(_key(secret), None)

    def _lives(self, session: _Session, now: float) -> bool:
        return now - session.used < self._idle and now - session.begun < self._longest

    def _forget(self, now: float) -> None:
        for key in [key for key, session in self._known.items() if not self._lives(session, now)]:
            del self._known[key]
        while len(self._known) >= SESSIONS_MAX:
            del self._known[min(self._known, key=lambda key: self._known[key].used)]


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
