"""Starts the real program over and over from one process that has loaded it: a call takes tenths of a second.

Run as a script by the fixture `program`: every line on standard input is one call as JSON, and is answered with the
process id and then with the exit status. Each call is a process of its own, forked before anything was opened, and
ends as the program ends. A call may carry a power switch: the process dies by SIGKILL at the n-th write of some kind.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any, NoReturn

from gputide import cli
from gputide.verbs import verb_paths

_CALLS = {"append": ("write", "fdatasync"), "fsync": ("fsync",), "rename": ("replace", "rename")}
"""Functions of `os` that make something durable, by the event that a power switch may count."""


def main() -> None:
    """Answer calls until standard input ends."""
    for words in verb_paths():
        importlib.import_module(".".join(("gputide.verbs", *words)))
    _load_what_verbs_load_late()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        call = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(call)
            _end_with(cli.main)
        print(child, file=answers, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _load_what_verbs_load_late() -> None:
    """Load what Arrow and the kernels load at their first use; it opens nothing and starts no thread."""
    importlib.import_module("pandas")
    target = importlib.import_module("numba.core.registry").cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()


def _become(call: dict[str, Any]) -> None:
    for descriptor, path in enumerate(("/dev/null", call["out"], call["err"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(call["environ"])
    os.chdir(call["folder"])
    sys.argv = ["gputide", *call["arguments"]]
    if call["dies_at"] is not None:
        _arm(*call["dies_at"])


def _end_with(entry: Callable[[], None]) -> NoReturn:
    """End the process as the program does, without taking the loaded modules apart."""
    status = 0
    try:
        entry()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _arm(event: str, nth: int, moment: str) -> None:
    """Kill this process before or after the n-th call that is an event."""
    met = count(1)

    def count_one() -> None:
        if next(met) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    if event == "sqlite":
        _watch_databases(count_one, "c_call" if moment == "before" else "c_return")
        return
    for name in _CALLS[event]:
        setattr(os, name, _counted(getattr(os, name), count_one, is_before=moment == "before"))


def _counted(called: Callable[..., Any], count_one: Callable[[], None], *, is_before: bool) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if is_before:
            count_one()
        answer = called(*arguments, **named)
        if not is_before:
            count_one()
        return answer

    return call


def _watch_databases(count_one: Callable[[], None], moment: str) -> None:
    # Methods of a class written in C can't be replaced; to hear of every call makes a process twice as slow.
    def watch(_: FrameType, event: str, called: object) -> None:
        if (
            event == moment
            and isinstance(getattr(called, "__self__", None), sqlite3.Connection)
            and getattr(called, "__name__", "") in ("execute", "executemany", "commit", "__exit__")
        ):
            count_one()

    threading.setprofile(watch)
    sys.setprofile(watch)


if __name__ == "__main__":
    main()
    os._exit(0)  # taking the loaded modules apart takes longer than a call
