"""Crashes on purpose: as a `crash_point`, a fuse ends the program at the n-th moment at which a crash would matter."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


class Fuse:
    """Raises `Killed` at the n-th moment."""

    def __init__(self, moments: int) -> None:
        self.left = moments

    def __call__(self, _name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.blow()

    def blow(self) -> None:
        """End it."""
        raise Killed


class DeadlyFuse(Fuse):
    """Kills this very process at the n-th moment; see `was_killed`."""

    def blow(self) -> None:
        """End it."""
        os.kill(os.getpid(), signal.SIGKILL)


def was_killed(work: Callable[[], None]) -> bool:
    """Do work in a fork of this process, and tell whether it was killed amid it."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    ending = os.waitstatus_to_exitcode(status)
    assert ending in (0, -signal.SIGKILL)
    return ending != 0
