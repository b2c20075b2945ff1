"""Which counters are unreliable right now: cross-checks of the last readings, as findings and as series of their own.

A culler that acts on a counter which reads zero under full load stops a service, so doubts are exported beside the
figures. Plugged into the collector as a derivation: `Collector(..., derivations=(CrossChecks(),))`. The outcomes of the
last readings are kept check by check, for slices and for cards: one odd reading is no finding. The checks of a single
reading stand in `exporter.cross_checks.rules`. The one that needs several stands here: a counter of computing that does
not change to the last bit while the card's power moves is one that nobody refreshes. It looks like a steady load, but a
steady load draws steady power.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from exporter.collector import Snapshot
from exporter.cross_checks.columns import COMPUTE, Bools, Compared, Comparing, On, rows_before
from exporter.cross_checks.rules import CHECKS, Check, Judged
from exporter.families import CataloguedFamily, Family, counter, gauge
from exporter.reader import Float64
from fleet.schema import SLICE_IDENTITY, Measure
from fleet.trust_thresholds import FROZEN_BAND, FROZEN_STEPS_MIN
from fleet.usage import CardKey, SliceKey

_ABOUT = (*SLICE_IDENTITY, "counter", "check")

TRUSTED_FAMILY = gauge(
    "gputide_counter_trusted",
    (
        "1 where a counter of a slice (or, without a pod, of a card) passed every cross-check that could be made, "
        "0 for each check that it failed."
    ),
    _ABOUT,
)
REMARKED_FAMILY = gauge(
    "gputide_counter_remarked",
    "1 where a check found something odd about the work, not about the number; 0 where it looked and didn't.",
    _ABOUT,
)
COMPARISONS_FAMILY = counter("gputide_cross_check_comparisons_total", "Comparisons made, by check.", ("check",))
FAILURES_FAMILY = counter(
    "gputide_cross_check_failures_total",
    "Comparisons that failed, by check; a check speaks up when enough of the last ones did.",
    ("check",),
)
CROSS_CHECK_FAMILIES: tuple[CataloguedFamily, ...] = (
    TRUSTED_FAMILY, REMARKED_FAMILY, COMPARISONS_FAMILY, FAILURES_FAMILY,
)  # fmt: skip
"""Every family that is made here."""


class CrossChecks:
    """Checks the readings of one collector, in order."""

    def __init__(self) -> None:
        self._comparing = Comparing()
        self._sides = (_Side(On.SLICE), _Side(On.CARD))
        names = dict.fromkeys(check.name for side in self._sides for check in side.window.checks)
        self._counts = {name: np.zeros(2, np.int64) for name in names}
        self._count_labels = tuple((name,) for name in names)
        self._keys: tuple[Sequence[SliceKey | CardKey], ...] = ()
        self._trusted_labels: tuple[tuple[str, ...], ...] = ()
        self._remarked_labels: tuple[tuple[str, ...], ...] = ()

    def __call__(self, snapshot: Snapshot) -> tuple[Family, ...]:
        """Judges a snapshot and gives what is to be shown of it."""
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
        return self._labels(self._trusted)

    def remarked_labels(self) -> Iterator[tuple[str, ...]]:
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

    def _labels(self, columns: tuple[_Column, ...]) -> Iterator[tuple[str, ...]]:
        rows = [tuple(str(getattr(key, name, "")) for name in SLICE_IDENTITY) for key in self.window.keys]
        return ((*row, column.counter.value, column.check) for column in columns for row in rows)


def _trust_columns(checks: Sequence[Check]) -> Iterator[_Column]:
    by_counter: dict[Measure, list[int]] = {}
    for number, check in enumerate(checks):
        if check.distrusts:
            by_counter.setdefault(check.counter, []).append(number)
    for name, numbers in by_counter.items():
        yield _Column(counter=name, check="", numbers=tuple(numbers))
        for number in numbers:
            yield _Column(counter=name, check=checks[number].name, numbers=(number,))


WINDOW_READINGS = 20
"""A check looks at so many of the last readings."""


class OutcomeWindow:
    """Makes the checks of one kind of row, and keeps what came out.

    Attributes:
        keys: the rows of the last reading.
        is_judged: where a check could be made in the window; shape `(checks, rows)`.
        is_found: where enough of its outcomes failed; shape `(checks, rows)`.
    """

    def __init__(self, on: On) -> None:
        self._on = on
        self.checks: tuple[Check, ...] = (*(check for check in CHECKS if check.on is on), Frozen(on).check())
        self.keys: Sequence[SliceKey | CardKey] = ()
        self.is_judged: Bools = np.zeros((len(self.checks), 0), np.bool_)
        self.is_found: Bools = np.zeros((len(self.checks), 0), np.bool_)
        self._comparable: Bools = np.zeros((WINDOW_READINGS, len(self.checks), 0), np.bool_)
        self._fails: Bools = np.zeros((WINDOW_READINGS, len(self.checks), 0), np.bool_)
        self._next = 0
        self._repeats_min = np.array([check.repeats_min for check in self.checks])[:, None]
        self._share_min = np.array([check.share_min for check in self.checks])[:, None]
        # How many readings ago each outcome may lie; shape (window, checks, 1) when compared with the ages.
        self._windows = np.array([check.window for check in self.checks])[None, :, None]

    def judge(self, now: Compared) -> Iterator[tuple[Check, Judged]]:
        """Makes every check on the next reading.

        Yields:
            Each check with its outcome; the attributes hold once all were taken.
        """
        self._follow(now.keys(self._on))
        for number, check in enumerate(self.checks):
            judged = check.rule(now, check.on, check.counter)
            self._comparable[self._next, number] = judged.comparable
            self._fails[self._next, number] = judged.fails
            yield check, judged
        ages = (self._next - np.arange(WINDOW_READINGS)) % WINDOW_READINGS
        counts = ages[:, None, None] < np.minimum(self._windows, WINDOW_READINGS)
        comparable = (self._comparable & counts).sum(axis=0)
        fails = (self._fails & counts).sum(axis=0)
        self.is_judged = comparable > 0
        self.is_found = (fails >= self._repeats_min) & (fails >= self._share_min * comparable)
        self._next = (self._next + 1) % WINDOW_READINGS

    def _follow(self, keys: Sequence[SliceKey | CardKey]) -> None:
        rows = rows_before(self.keys, keys)
        if rows is not None:
            # A row that was not there takes the last one, of which nothing is known.
            self._comparable = np.pad(self._comparable, ((0, 0), (0, 0), (0, 1)))[:, :, rows]
            self._fails = np.pad(self._fails, ((0, 0), (0, 0), (0, 1)))[:, :, rows]
        self.keys = keys


FROZEN_WITNESSED_SECONDS_MIN = 300.0
"""How long values must stand still; the analyzer, which has no witness, waits for hours."""
WITNESS_SHARE_MIN = 0.05
"""By how much of its largest value the power must have moved meanwhile."""


class Frozen:
    """Remembers since when the counters of each row stand still.

    One counter may well stand still while another moves; only together they prove that nobody looks.
    """

    def __init__(self, on: On) -> None:
        self._on = on
        self._keys: Sequence[SliceKey | CardKey] = ()
        self._last: Float64 = np.empty((len(COMPUTE), 0))
        # Readings so far without a change, since when (epoch seconds), least and most power (watts) meanwhile.
        self._stand: Float64 = np.empty((4, 0))

    def check(self) -> Check:
        """The check that asks this object."""
        return Check(
            name="frozen",
            on=self._on,
            counter=COMPUTE[0],
            meaning="The counters of computing stand still to the last bit for minutes while the power moves.",
            rule=self.judge,
            repeats_min=1,
            share_min=0.0,
            window=1,
        )

    def judge(self, now: Compared, _on: On, _: Measure) -> Judged:
        """Judges the next reading."""
        self._follow(now.keys(self._on))
        power = now.card_column(Measure.POWER)
        if self._on is On.SLICE:
            power = now.beside(power)
        values = np.stack([now.column(self._on, measure) for measure in COMPUTE])
        low, high = FROZEN_BAND
        comparable: Bools = ((values > low) & (values < high)).any(axis=0) & ~np.isnan(power)
        # Bits are compared; a counter that is missing both times does not count as moving.
        stands = (values.view(np.int64) == self._last.view(np.int64)) | (np.isnan(values) & np.isnan(self._last))
        goes_on = comparable & stands.all(axis=0)
        steps, since, least, most = self._stand
        begun = np.stack([np.ones(len(power)), np.full(len(power), now.at_seconds), power, power])
        longer = np.stack([steps + 1.0, since, np.fmin(least, power), np.fmax(most, power)])
        self._last, self._stand = values, np.where(goes_on, longer, begun)
        steps, since, least, most = self._stand
        lasts = (steps >= FROZEN_STEPS_MIN) & (now.at_seconds - since >= FROZEN_WITNESSED_SECONDS_MIN)
        return Judged(comparable=comparable, fails=comparable & lasts & (most - least > WITNESS_SHARE_MIN * most))

    def _follow(self, keys: Sequence[SliceKey | CardKey]) -> None:
        rows = rows_before(self._keys, keys)
        if rows is not None:
            # A row that was not there takes the last column, in which nothing is known.
            self._last = np.pad(self._last, ((0, 0), (0, 1)), constant_values=np.nan)[:, rows]
            self._stand = np.pad(self._stand, ((0, 0), (0, 1)), constant_values=np.nan)[:, rows]
        self._keys = keys
