"""Runs a program that hands out a token, within bounds of time and of what it may print.

A program that hangs, prints without an end, or leaves children behind must cost this process no more than its time.
Called by `wire.kubernetes.credentials`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

PRINTED_BYTES_MAX = 1024 * 1024
"""Most bytes that a program may print, on each of its two outputs."""

_PART_BYTES = 64 * 1024


class TooMuchPrinted(Exception):
    """A program printed more than is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A program that has ended.

    Attributes:
        status: its exit status; negative for the signal that ended it.
        output: what it printed.
        errors: what it printed on standard error.
    """

    status: int
    output: bytes
    errors: bytes


def run_program(command: Sequence[str], *, environ: Mapping[str, str], seconds_max: float) -> Printed:
    """Runs a program to its end; where that does not come, neither it nor what it started in its group runs on.

    Args:
        command: the program and its arguments.
        environ: its whole environment.
        seconds_max: longest time that it may take.

    Raises:
        OSError: it can't be started.
        ValueError: it can't be started by any system, as with a NUL in an argument.
        TimeoutError: it took longer.
        TooMuchPrinted: it printed more than `PRINTED_BYTES_MAX`.
    """
    until = time.monotonic() + seconds_max
    # A session of its own makes it the head of a group, which is ended as a whole.
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = _printed((process.stdout, process.stderr), until)
            status = _status(process, until)
        except BaseException:
            # Nobody has waited for it, so its number is still its own, and its group's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return Printed(status=status, output=output, errors=errors)


def _status(process: subprocess.Popen[bytes], until: float) -> int:
    try:
        return process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired as exc:
        raise TimeoutError("not over in time") from exc


def _printed(pipes: tuple[IO[bytes] | None, ...], until: float) -> list[bytes]:
    """What came out of each pipe until all were closed."""
    found = [bytearray() for _ in pipes]
    with selectors.DefaultSelector() as selector:
        for pipe, into in zip(pipes, found, strict=True):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, into)
        while selector.get_map():
            left = until - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise TimeoutError("not over in time")
            for key, _ in ready:
                part = os.read(key.fd, _PART_BYTES)
                key.data.extend(part)
                if not part:
                    selector.unregister(key.fileobj)
                elif len(key.data) > PRINTED_BYTES_MAX:
                    raise TooMuchPrinted(f"it printed more than {PRINTED_BYTES_MAX} bytes")
    return [bytes(one) for one in found]
