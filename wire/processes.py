"""Several processes that serve one port: starts them, starts a dead one anew, stops them together.

Called by `gputide run receive`. The processes share the listening socket that this one opened, so that a connection
waits for whichever is free and none is lost with a process that dies; each writes a lane of the bus of its own. Signals
are waited for, never handled in between: this process does nothing but wait.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from fleet.errors import EXIT_BUG, EXIT_FINE
from fleet.logs import logger

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_HEAP = {_M_TRIM_THRESHOLD: 8 << 20, _M_MMAP_THRESHOLD: 4 << 20, _M_ARENA_MAX: 2}
STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
"""Signals that end the receiver in good order."""
RESTART_SECONDS_MIN = 0.5
"""Pause before a process that died is started anew; doubled with every death."""
RESTART_SECONDS_MAX = 30.0
"""Longest pause before a process is started anew."""
HEALTHY_SECONDS = 60.0
"""After this time a process counts as healthy: its next death is its first."""
STARTED_SECONDS = 3.0
"""A process that ends in good order within this time could not begin, and its reason holds for all of them."""

_log = logger(__name__)


def bound_heap() -> None:
    """Has the C library give memory back: few heaps, and large arrays outside of them.

    Its defaults let every thread have a heap and raise the size from which an array stands alone to 32 MiB: a receiver
    of many threads then holds several times what it uses (glibc:malloc/malloc.c, mallopt(3)). Others are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _HEAP.items():
            mallopt(parameter, value)


def hold_stop_signals() -> None:
    """Keep signals that end the receiver for `wait_for_stop`; threads started later keep them back too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def wait_for_stop() -> None:
    """Wait for a signal that ends the receiver."""
    signal.sigwait(STOP_SIGNALS)


@dataclass(slots=True)
class _Child:
    """One of the processes; `pid` is 0 while it waits to be started anew; mutable: it dies and is started anew."""

    pid: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    deaths: int = 0


class ReceiverProcesses:
    """Processes that serve side by side.

    Args:
        serve: serves as the process of a number until `wait_for_stop` returns; gives the exit status.
    """

    def __init__(self, count: int, serve: Callable[[int], int]) -> None:
        self._serve = serve
        self._children = [_Child() for _ in range(count)]
        self._alive_read, self._alive_write = os.pipe()

    def run(self) -> int:
        """Serves until a signal ends it; returns 0, or the exit status of a process that could not begin."""
        watched = STOP_SIGNALS | {signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        status = EXIT_FINE
        while True:
            self._start_due()
            found = signal.sigtimedwait(watched, self._seconds_to_next_start())
            if found is not None and found.si_signo in STOP_SIGNALS:
                break
            failed = self._bury()
            if failed is not None:
                status = failed
                break
        self._stop_all()
        return status

    def _start_due(self) -> None:
        for number, child in enumerate(self._children):
            if child.pid == 0 and time.monotonic() >= child.start_at:
                child.started_at = time.monotonic()
                child.pid = os.fork()
                if child.pid == 0:
                    self._become(number)

    def _become(self, number: int) -> NoReturn:
        """The forked process: serves, and ends without unwinding what belongs to its parent."""
        status = EXIT_BUG
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            os.close(self._alive_write)
            threading.Thread(target=self._end_with_parent, daemon=True).start()
            status = self._serve(number)
        finally:
            os._exit(status)

    def _end_with_parent(self) -> None:
        os.read(self._alive_read, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _seconds_to_next_start(self) -> float:
        waits = [child.start_at - time.monotonic() for child in self._children if child.pid == 0]
        return max(0.0, min(waits, default=3600.0))

    def _bury(self) -> int | None:
        """Note which processes have ended; the exit status of one that could not begin."""
        for number, child in enumerate(self._children):
            if child.pid == 0 or (ended := os.waitpid(child.pid, os.WNOHANG))[0] == 0:
                continue
            status = os.waitstatus_to_exitcode(ended[1])
            seconds = time.monotonic() - child.started_at
            if 0 < status < EXIT_BUG and seconds < STARTED_SECONDS and child.deaths == 0:
                child.pid = 0
                return status
            child.deaths = 1 if seconds >= HEALTHY_SECONDS else child.deaths + 1
            pause = min(RESTART_SECONDS_MAX, RESTART_SECONDS_MIN * 2 ** min(child.deaths - 1, 16))
            _log.warning("a process that receives has ended", process=number, status=status, again_in_seconds=pause)
            child.pid, child.start_at = 0, time.monotonic() + pause
        return None

    def _stop_all(self) -> None:
        running = [child.pid for child in self._children if child.pid]
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid in running:
            os.waitpid(pid, 0)
