"""Processes beside this one, for work of minutes that falls into jobs. Called by `gputide.container.history`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Protocol, TypeVar

from fleet.errors import Unavailable

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class Run(Protocol):
    """Runs one function on each of many jobs and gives the answers in their order."""

    def __call__(self, do: Callable[[Job], Answer], jobs: Iterable[Job], /) -> Iterator[Answer]:
        """What `map` does; function, jobs and answers can be pickled, and what a job raises is raised here."""
        ...


@contextmanager
def open_workers(processes: int, setting: str) -> Iterator[Run]:
    """What runs jobs: `map` for one process, else so many others, which end with this block or with this process.

    Args:
        processes: at least 1.
        setting: name of the setting that says so, for errors.

    Raises:
        Unavailable: one of the processes was killed.
    """
    if processes == 1:
        yield map
        return
    # Forked ones would share the locks of this process's threads as they stand.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=end_with_parent)
    try:
        yield lambda do, jobs: _answers(pool, do, jobs, f"{setting}={processes}")
    finally:
        pool.shutdown(cancel_futures=True)


def _answers(
    pool: ProcessPoolExecutor, do: Callable[[Job], Answer], jobs: Iterable[Job], limit: str
) -> Iterator[Answer]:
    try:
        yield from pool.map(do, jobs)
    except BrokenProcessPool as exc:
        raise Unavailable(
            f"cannot go on: one of the processes of {limit} was killed, as the system does where memory ends; "
            "set fewer of them, or give more memory"
        ) from exc


def end_with_parent() -> None:
    """In a new process: it ends at an interrupt without a word, and with who started it, even where that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
