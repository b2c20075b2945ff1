"""Core limits of the pods that share a card with low priority: where the backend's gate needs them, and what they cost.

Such a gate holds low priority back only while every pod of the card has 1-99 % of cores, and those above it are held to
theirs at every moment (`fleet.priority_holds.Hold.CORES`). All replicas of a workload have one template, so one limit:
a service is limited on all its cards for the sake of one. What it needs beyond its limit is harm, like contention.
Called by `consolidate`, `cuts` and `group_seats`; pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fleet.capabilities.capability import SHARED_PERCENT_MAX
from fleet.priority_holds import Hold
from recommender.harm.risk import Harm


def shared_percents(peak: NDArray[np.float64]) -> NDArray[np.int64]:
    """Core limits that peaks fit in, whole percent, 1-99.

    Args:
        peak: largest demand to expect, share of a card, any shape.
    """
    return np.clip(np.ceil(np.round(peak * 100.0, 6)), 1, SHARED_PERCENT_MAX).astype(np.int64)


def parted(bin_of: NDArray[np.int32], leaving: NDArray[np.int64]) -> NDArray[np.int32]:
    """A packing in which some items have a bin of their own; bins are numbered anew.

    Args:
        bin_of: bin of each item, (items,).
    """
    alone = bin_of.copy()
    alone[leaving] = int(bin_of.max(initial=-1)) + 1 + np.arange(len(leaving), dtype=np.int32)
    return np.unique(alone, return_inverse=True)[1].astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class CoreLimits:
    """Who of a group can be limited to what; arrays of one length, (items,).

    Attributes:
        hold: what holds an item of low priority back; "" for items of other priority.
        is_hard: its share of compute is a limit in any case.
        takes_limit: it can be held to a limit at every moment, and answers fast enough under one.
        percent: limit that the peaks of all items of its workload fit in and under which they answer fast enough, 1-99.
    """

    workload: NDArray[np.int64]
    hold: NDArray[np.str_]
    is_hard: NDArray[np.bool_]
    takes_limit: NDArray[np.bool_]
    percent: NDArray[np.int64]

    @cached_property
    def is_beneath(self) -> NDArray[np.bool_]:
        """Items of low priority, held back or not."""
        return np.asarray(self.hold != "", bool)

    def with_gates_that_hold(self, bin_of: NDArray[np.int32]) -> NDArray[np.int32]:
        """The packing, with low priority alone where the gate would not hold it, or would limit others too much.

        Args:
            bin_of: bin of each item, (items,).
        """
        gated = self.hold == Hold.CORES
        if not gated.any():
            return bin_of
        bins, above = int(bin_of.max(initial=-1)) + 1, ~self.is_beneath
        promised = np.bincount(bin_of, weights=np.where(above, self.percent, 0), minlength=bins)[bin_of]
        is_shared = np.bincount(bin_of)[bin_of] > 1
        # A limit holds on every card of its workload, so there must be room for it on all of them.
        cannot = above & ((is_shared & (promised > SHARED_PERCENT_MAX)) | ~self.takes_limit)
        unlimited = above & np.isin(self.workload, np.unique(self.workload[cannot]))
        is_open = np.bincount(bin_of, weights=unlimited, minlength=bins) > 0
        return parted(bin_of, np.flatnonzero(gated & is_open[bin_of]))

    def in_bins_of(self, holds: Sequence[Hold], bin_of: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether an item of one of these holds is in each bin, (bins,)."""
        found = np.bincount(bin_of, weights=np.isin(self.hold, holds), minlength=int(bin_of.max(initial=-1)) + 1)
        return np.asarray(found > 0, bool)

    def room_of(self, bin_of: NDArray[np.int32]) -> NDArray[np.float64]:
        """Share of a card that the limits of pods above low priority leave on each bin, at least 1 %, (bins,)."""
        above = np.where(self.is_beneath, 0, self.percent)
        promised = np.bincount(bin_of, weights=above, minlength=int(bin_of.max(initial=-1)) + 1)
        return np.maximum(0.01, 1.0 - promised / 100.0)

    def left_for_low(self, harm: Harm, bin_of: NDArray[np.int32]) -> NDArray[np.float64]:
        """Compute that low priority gets on each bin, mean share of a card, (bins,).

        A gate shuts it out for as long as any pod above it launches; where limits make the gate hold, it has one too.
        """
        gated = self.in_bins_of((Hold.CORES, Hold.PROBED), bin_of)
        room = np.where(self.in_bins_of((Hold.CORES,), bin_of), self.room_of(bin_of), 1.0)
        return np.where(gated, np.minimum(harm.left, harm.quiet * room), harm.left)

    def limited(self, bin_of: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Items that get a core limit so that the gate holds: all of each workload with a pod beside a gated one."""
        bins = int(bin_of.max(initial=-1)) + 1
        has_others = np.bincount(bin_of, weights=~self.is_beneath, minlength=bins) > 0
        is_mixed = (self.in_bins_of((Hold.CORES,), bin_of) & has_others)[bin_of]
        return np.isin(self.workload, np.unique(self.workload[is_mixed]))

    def most_beside_low(self, bin_of: NDArray[np.int32], is_low: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Most compute of each item, share of a card, (items,); infinite where nothing limits it for low priority.

        Args:
            is_low: items that are held back, whose own limit is no harm to others.
        """
        if not self.is_beneath.any():
            return np.full(len(bin_of), np.inf, np.float32)
        bins = int(bin_of.max(initial=-1)) + 1
        has_low = (np.bincount(bin_of, weights=self.is_beneath, minlength=bins) > 0)[bin_of]
        counts = (self.limited(bin_of) | (self.is_hard & has_low)) & ~is_low
        return np.where(counts, self.percent / 100.0, np.inf).astype(np.float32)
