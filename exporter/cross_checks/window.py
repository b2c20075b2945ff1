"""The outcomes of the last readings, check by check: one odd reading is no finding.

Called by `exporter.cross_checks.checks`, one object for slices and one for cards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from exporter.cross_checks.columns import Bools, Compared, On, rows_before
from exporter.cross_checks.frozen import Frozen
from exporter.cross_checks.rules import CHECKS, Check, Judged
from fleet.usage import CardKey, SliceKey

WINDOW_READINGS = 20
"""A check looks at so many of the last readings."""


class OutcomeWindow:
    """Makes the checks of one kind of row, and keeps what came out.

    Args:
        on: kind of row.

    Attributes:
        checks: the checks, in order.
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

        Args:
            now: the reading.

        Yields:
            Each check with its outcome; the attributes hold once all were taken.
        """
        self._follow(now.keys(self._on))
        for number, check in enumerate(self.checks):
            judged = check.rule(now)
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
