"""A snapshot as text that Prometheus can scrape: text format 0.0.4 and OpenMetrics 1.0.0.

Formats: prometheus/docs:content/docs/instrumenting/exposition_formats.md, OpenMetrics 1.0.0. The part of a line before
the value is rendered once per series and kept; a snapshot is rendered once however often it is scraped. Called by
`exporter.server`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

import numpy as np

from exporter.collector import CollectorState, Snapshot
from exporter.reader import Float64
from exporter.series_blocks import SeriesLabels, card_info_labels, grant_info_labels, key_labels, node_info_labels
from fleet.inventory import Card, Grant, Node
from fleet.schema import CARD_MEASURES, SLICE_MEASURES, Measure
from fleet.series import CARD_INFO, NODE_INFO, SLICE_INFO, card_series, slice_series
from fleet.usage import CardKey, SliceKey


class TextFormat(StrEnum):
    """Formats that a scraper may ask for; the value is the content type."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


_HELP: Mapping[Measure, str] = {
    Measure.DUTY_CYCLE: "Share of time with at least one kernel running, 0-1.",
    Measure.SM_ACTIVE: "Share of SM cycles with a warp resident, 0-1.",
    Measure.MEMORY_ACTIVE: "Share of time in which the framebuffer was read or written, 0-1.",
    Measure.ENCODER: "Use of the video encoder, 0-1.",
    Measure.DECODER: "Use of the video decoder, 0-1.",
    Measure.FRAMEBUFFER_USED: "Framebuffer held, bytes.",
    Measure.KV_CACHE_USAGE: "Share of the server's KV cache in use, 0-1.",
    Measure.POWER: "Power drawn, watts.",
    Measure.TEMPERATURE: "Temperature of the card, degrees Celsius.",
    Measure.REQUEST_RATE: "Requests per second.",
    Measure.LATENCY_P99: "99th percentile of request latency, seconds.",
}

_INFO_HELP: Mapping[str, str] = {
    SLICE_INFO: "A grant: what one container was given on one card; always 1.",
    CARD_INFO: "A card; always 1.",
    NODE_INFO: "A node that holds cards; always 1.",
}


_Standing = TypeVar("_Standing", Card, Node, Grant)


class Exposition:
    """Renders snapshots; one object per process, used under the server's lock."""

    def __init__(self) -> None:
        self._prefixes: dict[tuple[str, SliceKey | CardKey], str] = {}
        self._infos: dict[object, str] = {}
        self._rendered: tuple[int, str] = (0, "")

    def render(self, state: CollectorState, text_format: TextFormat = TextFormat.PROMETHEUS) -> bytes:
        """The whole answer to a scrape.

        Args:
            state: how the collector fares; its snapshot's part is rendered once and kept.
            text_format: the format asked for.
        """
        body = ""
        if state.snapshot is not None:
            if self._rendered[0] != state.snapshot.number:
                self._rendered = (state.snapshot.number, "\n".join(self._lines(state.snapshot)) + "\n")
            body = self._rendered[1]
        text = body + "\n".join(_own_lines(state)) + "\n"
        if text_format is TextFormat.OPENMETRICS:
            text = _as_openmetrics(text)
        return text.encode()

    def _lines(self, snapshot: Snapshot) -> Iterator[str]:
        reading = snapshot.reading
        for column in CARD_MEASURES:
            values = reading.card_values.get(column.measure)
            if values is not None:
                yield from self._measured(card_series(column.measure), column.measure, reading.cards, values)
        for column in SLICE_MEASURES:
            values = reading.slice_values.get(column.measure)
            if values is not None:
                yield from self._measured(slice_series(column.measure), column.measure, reading.slices, values)
        yield from _head(CARD_INFO, _INFO_HELP[CARD_INFO])
        yield from (self._info(card, card_info_labels) for card in snapshot.cards)
        yield from _head(NODE_INFO, _INFO_HELP[NODE_INFO])
        yield from (self._info(node, node_info_labels) for node in snapshot.nodes)
        yield from _head(SLICE_INFO, _INFO_HELP[SLICE_INFO])
        yield from (self._info(grant, grant_info_labels) for grant in snapshot.grants)

    def _measured(
        self, name: str, measure: Measure, keys: Sequence[SliceKey] | Sequence[CardKey], values: Float64
    ) -> Iterator[str]:
        yield from _head(name, _HELP[measure])
        for row in np.flatnonzero(~np.isnan(values)).tolist():
            key = keys[row]
            prefix = self._prefixes.get((name, key))
            if prefix is None:
                prefix = self._prefixes[name, key] = _prefix(name, [pair for pair in key_labels(key) if pair[1]])
            yield f"{prefix} {float(values[row])!r}"

    def _info(self, what: _Standing, labels_of: Callable[[_Standing], SeriesLabels]) -> str:
        line = self._infos.get(what)
        if line is None:
            labels = dict(labels_of(what))
            name = labels.pop("__name__")
            line = self._infos[what] = f"{_prefix(name, list(labels.items()))} 1.0"
        return line


def escaped(value: str) -> str:
    """A label value as it stands between quotes: backslash, line feed and quote are escaped."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _prefix(name: str, labels: Sequence[tuple[str, str]]) -> str:
    pairs = ",".join(f'{key}="{escaped(value)}"' for key, value in labels)
    return f"{name}{{{pairs}}}"


def _head(name: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} gauge"


def _own_lines(state: CollectorState) -> Iterator[str]:
    """The exporter's own metrics; the age tells a scraper whether the figures still move."""
    yield from _head("gputide_exporter_data_age_seconds", "Age of the figures, seconds.")
    yield f"gputide_exporter_data_age_seconds {state.age_seconds!r}"
    yield "# HELP gputide_exporter_readings_total Readings taken."
    yield "# TYPE gputide_exporter_readings_total counter"
    yield f"gputide_exporter_readings_total {float(state.readings)!r}"
    yield "# HELP gputide_exporter_reading_failures_total Readings that failed."
    yield "# TYPE gputide_exporter_reading_failures_total counter"
    yield f"gputide_exporter_reading_failures_total {float(state.failures)!r}"


def _as_openmetrics(text: str) -> str:
    """OpenMetrics names families without the suffix of counters and infos, and ends with a mark."""
    lines = []
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            family = name.removesuffix("_info").removesuffix("_total")
            kind = "info" if name.endswith("_info") and word == "TYPE" else rest
            lines.append(f"# {word} {family} {kind}")
        elif line.endswith(" 1.0") and "_info{" in line:
            lines.append(line[:-2])
        else:
            lines.append(line)
    return "\n".join(lines) + "\n# EOF\n"
