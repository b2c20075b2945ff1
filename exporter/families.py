"""Named metrics as columns: what every source of the exporter hands to the exposition.

A family is one metric's name with all its series. Sources keep the label tuples from one reading to the next, so that
their renderer compares values and not text. Read by `exporter.exposition.rendering`; made by whatever has
figures that are shown to a scraper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class FamilyKind(StrEnum):
    """What the values of a family are; the value is the word of the `# TYPE` line in OpenMetrics."""

    GAUGE = "gauge"
    COUNTER = "counter"
    """Only grows, until its source starts anew; the family's name ends in `_total`."""
    FOREIGN_COUNTER = "unknown"
    """Only grows, and bears another exporter's name without `_total`: OpenMetrics would refuse it as a counter."""
    INFO = "info"
    """Always 1; what is told stands in the labels. The family's name ends in `_info`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All series of one metric at one instant.

    Attributes:
        name: metric name, with its suffix (`_total`, `_info`).
        help_text: one sentence with the unit and the range.
        label_names: names of the labels, in the order of `labels`.
        labels: one tuple of label values per series; unique; a label whose value is empty is left out when rendered.
            The same tuple object as in the reading before where nothing changed.
        values: shape `(len(labels),)`, in base units; NaN = not there, and the series is left out.
    """

    name: str
    kind: FamilyKind
    help_text: str
    label_names: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Keeps one source's slip from shifting the figures of all that follow.

        Raises:
            ValueError: there are not as many values as series.
        """
        if len(self.labels) != len(self.values):
            raise ValueError(f"{self.name} has {len(self.labels)} series and {len(self.values)} values")


@dataclass(frozen=True, slots=True, kw_only=True)
class CataloguedFamily:
    """What is known of a family before anything was measured: its line in the catalogue of metrics.

    A source that makes families keeps a tuple of these beside its code, makes its families by `of`, and is named in
    `docs/metrics_catalogue.py`.
    """

    name: str
    kind: FamilyKind
    help_text: str
    label_names: tuple[str, ...]

    def of(self, labels: tuple[tuple[str, ...], ...], values: NDArray[np.float64]) -> Family:
        """The family with what was measured."""
        return Family(
            name=self.name,
            kind=self.kind,
            help_text=self.help_text,
            label_names=self.label_names,
            labels=labels,
            values=values,
        )


def gauge(name: str, help_text: str, label_names: tuple[str, ...]) -> CataloguedFamily:
    """A family of values that go up and down."""
    return CataloguedFamily(name=name, kind=FamilyKind.GAUGE, help_text=help_text, label_names=label_names)


def counter(name: str, help_text: str, label_names: tuple[str, ...]) -> CataloguedFamily:
    """A family of values that only grow."""
    return CataloguedFamily(name=name, kind=FamilyKind.COUNTER, help_text=help_text, label_names=label_names)


def info(name: str, help_text: str, label_names: tuple[str, ...]) -> CataloguedFamily:
    """A family whose labels say everything; always 1."""
    return CataloguedFamily(name=name, kind=FamilyKind.INFO, help_text=help_text, label_names=label_names)


Row = tuple[tuple[str, ...], float]
"""Labels of a series, and its value."""


class KeptLabels:
    """Label tuples of the reading before: the renderer of the families compares the tuples by identity."""

    def __init__(self) -> None:
        self._labels: dict[str, tuple[tuple[str, ...], ...]] = {}

    def families(
        self, catalogue: Iterable[CataloguedFamily], rows: Iterable[tuple[CataloguedFamily, Row]]
    ) -> tuple[Family, ...]:
        """The families of some rows, in the order of a catalogue that has them all; none for a family without rows."""
        by_name: dict[str, list[Row]] = {}
        for family, row in rows:
            by_name.setdefault(family.name, []).append(row)
        return tuple(self.family(family, by_name[family.name]) for family in catalogue if family.name in by_name)

    def family(self, family: CataloguedFamily, rows: Sequence[Row]) -> Family:
        """A family of rows of labels and value, with the tuples it had where they are the same."""
        labels = tuple(row[0] for row in rows)
        labels = self._labels[family.name] if self._labels.get(family.name) == labels else labels
        self._labels[family.name] = labels
        return family.of(labels, np.array([row[1] for row in rows], np.float64))


Column = tuple[Family | CataloguedFamily, tuple[tuple[str, ...], ...], NDArray[np.float64]]
"""A family's description, labels and values side by side: what a `Family` holds, for a reader that makes dozens per
reading and needs no record of each."""
