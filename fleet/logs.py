"""Logs: one event is a constant phrase and fields, on standard error; prose for a person, JSON for a machine.

The command line calls `set_up_logs` once; every room asks for `logger(__name__)`. Levels: INFO it worked, WARNING odd
but nothing lost, ERROR something lost or a person is needed. Nothing is logged inside a loop over samples: count there,
log once.
"""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from fleet.errors import Misconfigured


class LogFormat(StrEnum):
    """How events are written."""

    AUTO = "auto"
    """Prose on a terminal, JSON elsewhere."""
    HUMAN = "human"
    JSON = "json"


LEVELS = ("debug", "info", "warning", "error")
"""Levels that can be asked for, most talkative first."""


def set_up_logs(*, level: str = "info", log_format: LogFormat = LogFormat.AUTO, stream: TextIO | None = None) -> None:
    """Configures logging for the whole process; may be called again, the last call wins.

    Args:
        level: one of `LEVELS`; what lies below is dropped before it is rendered.
        log_format: prose or JSON.
        stream: where to write; by default standard error, whatever that is at the moment of each event, because
            standard output belongs to data.

    Raises:
        Misconfigured: no such level.
    """
    if level not in LEVELS:
        raise Misconfigured(f"cannot log at level {level!r}: expected one of {', '.join(LEVELS)}")
    target = stream if stream is not None else sys.stderr
    is_json = log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not target.isatty())
    structlog.configure(
        processors=_processors(is_json=is_json, has_colours=target.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=_to_standard_error if stream is None else structlog.WriteLoggerFactory(file=stream),
        # Loggers made at import time must follow a later call.
        cache_logger_on_first_use=False,
    )


def logger(name: str) -> FilteringBoundLogger:
    """The logger of one module; `name` is its `__name__` and stands in each event as `module`."""
    return cast("FilteringBoundLogger", structlog.get_logger(module=name))


def _to_standard_error(*_names: object) -> structlog.WriteLogger:
    # Code that replaces standard error may close the one before.
    return structlog.WriteLogger(sys.stderr)


def _processors(*, is_json: bool, has_colours: bool) -> list[Processor]:
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if is_json:
        return [*shared, structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    return [*shared, structlog.dev.ConsoleRenderer(colors=has_colours)]
