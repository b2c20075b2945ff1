"""A process of an engine that stands still: it neither answers nor breaks its connections. For tests and the soak."""

from __future__ import annotations

import os
import signal

from gputide.operate.engine_process import ProcessRecord, is_alive


def pause_process(record: ProcessRecord) -> None:
    """Stop a process in its tracks."""
    if is_alive(record):
        os.killpg(record.pid, signal.SIGSTOP)


def resume_process(record: ProcessRecord) -> None:
    """Let a paused process go on."""
    if is_alive(record):
        os.killpg(record.pid, signal.SIGCONT)
