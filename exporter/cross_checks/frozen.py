"""Counters of computing that stand still to the last bit while the card's power moves.

A value that nobody refreshes looks like a steady load. A witness tells them apart: a steady load draws steady power.
Called by `exporter.cross_checks.window`, one object per kind of row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exporter.cross_checks.columns import COMPUTE, Bools, Compared, On, rows_before
from exporter.cross_checks.rules import Check, Judged
from exporter.reader import Float64
from fleet.schema import Measure
from fleet.trust_thresholds import FROZEN_BAND, FROZEN_STEPS_MIN
from fleet.usage import CardKey, SliceKey

FROZEN_WITNESSED_SECONDS_MIN = 300.0
"""How long values must stand still; the analyzer, which has no witness, waits for hours."""
WITNESS_SHARE_MIN = 0.05
"""By how much of its largest value the power must have moved meanwhile."""


class Frozen:
    """Remembers since when the counters of each row stand still.

    One counter may well stand still while another moves; only together they prove that nobody looks.

    Args:
        on: kind of row.
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

    def judge(self, now: Compared) -> Judged:
        """Judges the next reading.

        Args:
            now: the reading.
        """
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
