"""Samples of a fleet in bodies as a real Prometheus cuts them: its shards share the series out by chance.

Every sample is wanted and in range, so that a receiver carries all that it is sent. Used by the bars that compare what
small bodies cost.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bench.remote_write_bodies import START_MS, STEP_MS, wanted_labels
from fleet.schema import SLICE_MEASURES
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets


class ShardedBodies:
    """Bodies of every measure of some slices.

    Args:
        slices: pods on cards; each has a series for every measure of a slice.
        shards: senders at once, which share the series out.
    """

    def __init__(self, slices: int, shards: int) -> None:
        self.series = slices * len(SLICE_MEASURES)
        shard_of = np.random.default_rng(1).integers(0, shards, self.series)
        self._members = [np.flatnonzero(shard_of == shard) for shard in range(shards)]
        self._sets = [LabelSets([wanted_labels(int(number)) for number in shard]) for shard in self._members]

    def of(self, size: int, steps: int, *, first_step: int, version: Version = Version.V2) -> list[list[bytes]]:
        """Bodies of some steps by sender, in the order in which it sends them.

        Args:
            size: samples of a body; the last one of each sender may have fewer.
            first_step: place of the first step; bodies of other steps are other bodies.
        """
        values = np.round(np.random.default_rng(first_step).random((steps, self.series)), 4)
        return [
            list(_cut(sets, values[:, numbers], size, first_step, version))
            for sets, numbers in zip(self._sets, self._members, strict=True)
        ]


def _cut(sets: LabelSets, values: np.ndarray, size: int, first_step: int, version: Version) -> Iterator[bytes]:
    """A sender's bodies: step after step, as scrapes come, each series of a body in one run."""
    steps, series = values.shape
    for start in range(0, steps * series, size):
        place = np.arange(start, min(start + size, steps * series))
        step, number = place // series, place % series
        order = np.lexsort((step, number))
        yield sets.encode(
            version, number[order], START_MS + (first_step + step[order]) * STEP_MS, values[step[order], number[order]]
        )
