"""Puts OpenTelemetry in place where the settings name an endpoint; elsewhere nothing of it is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fleet.errors import Misconfigured
from fleet.settings.settings import Settings
from wire.telemetry import TRACEPARENT, is_on, span, telemetry_to


@contextmanager
def open_telemetry(settings: Settings, process: str) -> Iterator[None]:
    """Has spans and metrics of this process be sent until the end; where that is so already, nothing changes.

    Opened behind a fork: threads and connections are this process' own.

    Args:
        process: what this process is, such as `rollup`.

    Raises:
        Misconfigured: the extra is not installed, or the file of headers can't be used.
    """
    if settings.telemetry.endpoint is None or is_on():
        yield
        return
    from importlib.metadata import version

    try:
        from wire.telemetry_opentelemetry import OpenTelemetry
    except ModuleNotFoundError as exc:
        raise Misconfigured(
            f"cannot send telemetry without {exc.name}: pip install 'gputide[telemetry]' brings it, or leave out "
            "telemetry.endpoint"
        ) from exc
    sender = OpenTelemetry(settings.telemetry, process=process, version=version("gputide"))
    try:
        with telemetry_to(sender):
            yield
    finally:
        sender.stop()


@contextmanager
def traced_verb(settings: Settings, words: tuple[str, ...]) -> Iterator[None]:
    """A span around a verb, below the trace that the environment names (`TRACEPARENT`), where it names one."""
    with open_telemetry(settings, "cli"), span(f"gputide {' '.join(words)}", os.environ.get(TRACEPARENT.upper())):
        yield
