"""Which counters lie right now: cross-checks of the last readings, as findings and as series of their own.

A culler that acts on a counter which reads zero under full load stops a service, so what is in doubt is told beside the
figures. Plugged into the collector as a derivation: `Collector(..., derivations=(CrossChecks(),))`. The checks
themselves stand in `exporter.cross_checks.rules` and `exporter.cross_checks.frozen`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from exporter.collector import Snapshot
from exporter.cross_checks.columns import Comparing, On
from exporter.cross_checks.rules import Check
from exporter.cross_checks.window import OutcomeWindow
from exporter.families import CataloguedFamily, Family, FamilyKind
from exporter.reader import Float64
from fleet.schema import SLICE_IDENTITY, Measure
from fleet.usage import CardKey, SliceKey

_ABOUT = (*SLICE_IDENTITY, "counter", "check")

TRUSTED_FAMILY = CataloguedFamily(
    name="gputide_counter_trusted",
    kind=FamilyKind.GAUGE,
    help_text=(
        "1 where a counter of a slice (or, without a pod, of a card) passed every cross-check that could be made, "
        "0 for each check that it failed."
    ),
    label_names=_ABOUT,
)
REMARKED_FAMILY = CataloguedFamily(
    name="gputide_counter_remarked",
    kind=FamilyKind.GAUGE,
    help_text="1 where a check found something odd about the work, not about the number; 0 where it looked and didn't.",
    label_names=_ABOUT,
)
COMPARISONS_FAMILY = CataloguedFamily(
    name="gputide_cross_check_comparisons_total",
    kind=FamilyKind.COUNTER,
    help_text="Comparisons made, by check.",
    label_names=("check",),
)
FAILURES_FAMILY = CataloguedFamily(
    name="gputide_cross_check_failures_total",
    kind=FamilyKind.COUNTER,
    help_text="Comparisons that failed, by check; a check speaks up when enough of the last ones did.",
    label_names=("check",),
)
CROSS_CHECK_FAMILIES: tuple[CataloguedFamily, ...] = (
    TRUSTED_FAMILY,
    REMARKED_FAMILY,
    COMPARISONS_FAMILY,
    FAILURES_FAMILY,
)
"""Every family that is made here."""

PROCESS_FAMILY = "gputide_slice_framebuffer_of_driver_bytes"
"""Family in which a reading gives the framebuffer that the driver counts for processes, by card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFinding:
    """One check that a counter fails now.

    Attributes:
        of: the slice or card.
        counter: the measure.
        check: name of the check.
        distrusts: True where the number may be wrong; False for a remark.
    """

    of: SliceKey | CardKey
    counter: Measure
    check: str
    distrusts: bool


class CrossChecks:
    """Checks the readings of one collector, in order.

    Args:
        process_family: see `PROCESS_FAMILY`.
    """

    def __init__(self, process_family: str = PROCESS_FAMILY) -> None:
        self._comparing = Comparing(process_family)
        self._sides = (_Side(On.SLICE), _Side(On.CARD))
        names = dict.fromkeys(check.name for side in self._sides for check in side.window.checks)
        self._counts = {name: np.zeros(2, np.int64) for name in names}
        self._count_labels = tuple((name,) for name in names)
        self._keys: tuple[Sequence[SliceKey | CardKey], ...] = ()
        self._trusted_labels: tuple[tuple[str, ...], ...] = ()
        self._remarked_labels: tuple[tuple[str, ...], ...] = ()

    def __call__(self, snapshot: Snapshot) -> tuple[Family, ...]:
        """Judges a snapshot and gives what is to be shown of it.

        Args:
            snapshot: the next snapshot.
        """
        now = self._comparing.of(snapshot)
        for side in self._sides:
            for check, judged in side.window.judge(now):
                self._counts[check.name] += (np.count_nonzero(judged.comparable), np.count_nonzero(judged.fails))
        counts = np.array(list(self._counts.values()), np.float64)
        self._label()
        return (
            TRUSTED_FAMILY.of(self._trusted_labels, np.concatenate([side.trusted() for side in self._sides])),
            REMARKED_FAMILY.of(self._remarked_labels, np.concatenate([side.remarked() for side in self._sides])),
            COMPARISONS_FAMILY.of(self._count_labels, counts[:, 0]),
            FAILURES_FAMILY.of(self._count_labels, counts[:, 1]),
        )

    def findings(self) -> tuple[CounterFinding, ...]:
        """What fails as of the last snapshot, slices first."""
        return tuple(finding for side in self._sides for finding in side.findings())

    def _label(self) -> None:
        keys = tuple(side.window.keys for side in self._sides)
        if keys != self._keys:
            self._trusted_labels = tuple(labels for side in self._sides for labels in side.trusted_labels())
            self._remarked_labels = tuple(labels for side in self._sides for labels in side.remarked_labels())
        self._keys = keys


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """The series of one counter and check, a row each; with an empty check those that say that all were passed."""

    counter: Measure
    check: str
    numbers: tuple[int, ...]


class _Side:
    """The checks of slices, or those of cards, as series.

    Every series that there can be keeps its labels while outcomes change; NaN where there is nothing to say.
    """

    def __init__(self, on: On) -> None:
        self.window = OutcomeWindow(on)
        self._trusted: tuple[_Column, ...] = tuple(_trust_columns(self.window.checks))
        self._remarked: tuple[_Column, ...] = tuple(
            _Column(counter=check.counter, check=check.name, numbers=(number,))
            for number, check in enumerate(self.window.checks)
            if not check.distrusts
        )

    def trusted_labels(self) -> Iterator[tuple[str, ...]]:
        """Labels in the order of `trusted`."""
        return self._labels(self._trusted)

    def remarked_labels(self) -> Iterator[tuple[str, ...]]:
        """Labels in the order of `remarked`."""
        return self._labels(self._remarked)

    def trusted(self) -> Float64:
        """1 where a counter passed all, 0 for each check that it fails, NaN elsewhere."""
        is_judged, is_found = self.window.is_judged, self.window.is_found
        values = []
        for column in self._trusted:
            numbers = list(column.numbers)
            fails = is_found[numbers].any(axis=0)
            if column.check:
                values.append(np.where(fails, 0.0, np.nan))
            else:
                values.append(np.where(is_judged[numbers].any(axis=0) & ~fails, 1.0, np.nan))
        return np.concatenate(values)

    def remarked(self) -> Float64:
        """1 where a remark is made, 0 where there was reason to look, NaN elsewhere."""
        numbers = [number for column in self._remarked for number in column.numbers]
        return np.where(self.window.is_judged[numbers], self.window.is_found[numbers], np.nan).ravel()

    def findings(self) -> Iterator[CounterFinding]:
        """What fails now."""
        for number, row in np.argwhere(self.window.is_found).tolist():
            check = self.window.checks[number]
            yield CounterFinding(
                of=self.window.keys[row], counter=check.counter, check=check.name, distrusts=check.distrusts
            )

    def _labels(self, columns: tuple[_Column, ...]) -> Iterator[tuple[str, ...]]:
        rows = [tuple(str(getattr(key, name, "")) for name in SLICE_IDENTITY) for key in self.window.keys]
        return ((*row, column.counter.value, column.check) for column in columns for row in rows)


def _trust_columns(checks: Sequence[Check]) -> Iterator[_Column]:
    by_counter: dict[Measure, list[int]] = {}
    for number, check in enumerate(checks):
        if check.distrusts:
            by_counter.setdefault(check.counter, []).append(number)
    for counter, numbers in by_counter.items():
        yield _Column(counter=counter, check="", numbers=tuple(numbers))
        for number in numbers:
            yield _Column(counter=counter, check=checks[number].name, numbers=(number,))
