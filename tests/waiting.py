"""Waiting, with an end, for what other threads and processes will have done."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable


def until(is_so: Callable[[], object], *, seconds_max: float = 30.0, pause_seconds: float = 0.02) -> None:
    """Look again and again until something is so; a test that waits longer than it may has failed."""
    end = time.monotonic() + seconds_max
    while not is_so():
        assert time.monotonic() < end, f"waited {seconds_max:.0f} s in vain"
        time.sleep(pause_seconds)


def text_of(url: str) -> str:
    """What a server of a test answers with; empty where it does not answer, or not well."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
