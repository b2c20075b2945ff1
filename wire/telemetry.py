"""What the program says of itself to an OpenTelemetry collector: traces of what people wait for, and its own metrics.

Every room calls `span`, `record` and `show`; without an endpoint (`telemetry.endpoint`) each of them looks at one name
and does nothing, and nothing of OpenTelemetry is imported. `gputide.container.telemetry` puts the adapter in place
(`telemetry_opentelemetry`). Names and attributes are words of ours and numbers: no name of a tenant, no path.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

Attribute = str | int | float | bool
TRACEPARENT = "traceparent"
"""Header field, and in capitals environment variable, that names the trace of who asks (w3.org/TR/trace-context)."""


class Shown(Protocol):
    """What a scrape would see: a collector of prometheus-client, which a process without metrics does not load."""

    def collect(self) -> Iterable[Any]:
        """Its families of metrics."""
        ...


class Telemetry(Protocol):
    """Where spans and metrics go. No call waits for the network, and queues are bounded: what does not fit is lost."""

    def span(self, name: str, attributes: dict[str, Attribute], parent: str | None) -> AbstractContextManager[object]:
        """A span around what is done within; an error ends it with the error's kind."""
        ...

    def record(self, name: str, began_ns: int, attributes: dict[str, Attribute], parent: str | None) -> None:
        """A span that ends now."""
        ...

    def show(self, metrics: Shown) -> None:
        """Have metrics be sent from time to time."""
        ...


class _Slot:
    """Where the adapter of this process stands; mutable: set once it is on."""

    telemetry: Telemetry | None = None


def span(name: str, parent: str | None = None, **attributes: Attribute) -> AbstractContextManager[object]:
    """A span around what is done within, below the one that is open in this thread.

    Args:
        parent: `traceparent` of who asks, as it came; what is none counts for nothing.
    """
    on = _Slot.telemetry
    return nullcontext() if on is None else on.span(name, attributes, parent)


def record(name: str, seconds: float, parent: str | None = None, **attributes: Attribute) -> None:
    """A span of what took so long and has just ended; `parent` as in `span`."""
    on = _Slot.telemetry
    if on is not None:
        on.record(name, time.time_ns() - int(seconds * 1e9), attributes, parent)


def show(metrics: Shown) -> None:
    """Have the metrics that a scrape of this process would see be sent as well."""
    on = _Slot.telemetry
    if on is not None:
        on.show(metrics)


def is_on() -> bool:
    """Whether something is sent."""
    return _Slot.telemetry is not None


@contextmanager
def telemetry_to(adapter: Telemetry) -> Iterator[None]:
    """Has everything go to an adapter until the end."""
    _Slot.telemetry = adapter
    try:
        yield
    finally:
        _Slot.telemetry = None
