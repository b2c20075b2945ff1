"""Logs: one event is a constant phrase and fields, on standard error; prose for a person, JSON for a machine.

The command line calls `set_up_logs` once; every room asks for `logger(__name__)`. Levels: INFO it worked, WARNING odd
but nothing lost, ERROR something lost or a person is needed. Nothing is logged inside a loop over samples: count there,
log once. structlog (with rich and asyncio a twentieth of a start) is loaded by the first event: most runs log nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, cast

from fleet.errors import Misconfigured

if TYPE_CHECKING:
    from structlog import WriteLogger
    from structlog.typing import FilteringBoundLogger, Processor


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
    _set_ups[:] = [partial(_configure, level, stream, is_json=is_json, has_colours=target.isatty())]
    if "structlog" in sys.modules:
        _loaded()


def logger(name: str) -> FilteringBoundLogger:
    """The logger of one module; `name` is its `__name__` and stands in each event as `module`."""
    return cast("FilteringBoundLogger", _LateLogger(name))


class _LateLogger:
    """Looks for structlog's logger at each event, so that it follows a later set-up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        return getattr(_loaded().get_logger(module=self._name), method)


_set_ups: list[Callable[[], None]] = []
"""The set-up that was asked for before structlog was loaded, if any."""


def _loaded() -> Any:
    import structlog  # noqa: PLC0415 - most runs log nothing

    while _set_ups:
        _set_ups.pop()()
    return structlog


def _configure(level: str, stream: TextIO | None, *, is_json: bool, has_colours: bool) -> None:
    import structlog  # noqa: PLC0415 - most runs log nothing

    def to_standard_error(*_names: object) -> WriteLogger:
        # Code that replaces standard error may close the one before.
        return structlog.WriteLogger(sys.stderr)

    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if is_json:
        processors += [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=has_colours))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=to_standard_error if stream is None else structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
