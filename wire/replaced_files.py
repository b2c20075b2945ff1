"""What is read from files that somebody else replaces, such as certificates and tokens: read anew when one changes.

Used by everything in this package that shows or checks a secret of a file. A projected volume is changed by swapping a
link: the file behind the name is another one then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from fleet.errors import Misconfigured

_T = TypeVar("_T")
_Stamp = tuple[int, int, int] | None


class ReplacedFiles(Generic[_T]):
    """What some files hold as they are now; for several threads.

    Args:
        check_seconds: how often they are looked at for a change; 0 for each time that somebody asks.
        keeps_last: what was read last counts on while they can't be used: they may be half replaced, and those who were
            let in may go on.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        read: Callable[[], _T],
        *,
        check_seconds: float = 0.0,
        keeps_last: bool = False,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths, self._read = tuple(paths), read
        self._check_seconds, self._keeps_last = check_seconds, keeps_last
        self._now_seconds = now_seconds
        self._lock = threading.Lock()
        self._checked_at = 0.0
        self._found: tuple[tuple[_Stamp, ...], _T] | None = None

    def now(self) -> _T:
        """What they hold.

        Raises:
            Misconfigured: they can't be used, and nothing that was read before counts on.
        """
        with self._lock:
            now = self._now_seconds()
            if self._found is None or now - self._checked_at >= self._check_seconds:
                self._checked_at = now
                stamps = tuple(_stamp(path) for path in self._paths)
                if self._found is None or self._found[0] != stamps:
                    try:
                        self._found = stamps, self._read()
                    except Misconfigured:
                        if self._found is None or not self._keeps_last:
                            raise
            return self._found[1]

    def forget(self) -> _T | None:
        """Has them be read when somebody asks next; what was read last, None where nothing was."""
        with self._lock:
            before, self._found = self._found, None
        return None if before is None else before[1]


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
