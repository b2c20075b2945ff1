"""Samples and histories as columns: what travels between rooms in bulk.

A `UsageGrid` is one row per granted slice and one column per step, so that the analyzer, the recommender and the
formulas of `fleet.sharing` work on whole arrays. Inside these arrays NaN marks "not collected"; nothing that is
stored or printed ever holds NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.inventory import CardId, CardModelName, Grant, Inventory
from fleet.schema import Measure

Key = TypeVar("Key")
"""What a row of a grid belongs to: a slice or a card."""

Float32 = NDArray[np.float32]
"""Array of 32-bit floats; NaN means not collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceKey:
    """Which container of which pod on which card a row of a grid belongs to."""

    cluster: str
    namespace: str
    pod: str
    container: str
    node: str
    card: CardId
    card_model: CardModelName

    @classmethod
    def of(cls, grant: Grant) -> SliceKey:
        """The key of the slice that a grant gives."""
        return cls(
            cluster=grant.cluster,
            namespace=grant.namespace,
            pod=grant.pod,
            container=grant.container,
            node=grant.node,
            card=grant.card,
            card_model=grant.card_model,
        )

    @property
    def pod_id(self) -> str:
        """`namespace/pod`, unique in a cluster."""
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardKey:
    """Which card a row of a card grid belongs to."""

    cluster: str
    node: str
    card: CardId
    card_model: CardModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageGrid(Generic[Key]):
    """Usage of many slices (or cards) over evenly spaced steps.

    Attributes:
        keys: one key per row.
        since: start of the first step, UTC.
        step_seconds: length of a step, the source's own step (found from its gaps), at least 60.
        steps: number of steps; step j covers the samples with since + j·step < ts ≤ since + (j+1)·step.
        mean: per measure, shape (rows, steps): mean of the samples in the step; NaN = not collected. A dict, or a
            mapping that reads a plane, as an array of its own, whenever it is asked for.
        peak: per measure, the same shape: largest sample of the step.
    """

    keys: tuple[Key, ...]
    since: datetime
    step_seconds: int
    steps: int
    mean: Mapping[Measure, Float32]
    peak: Mapping[Measure, Float32]

    @property
    def until(self) -> datetime:
        """End of the last step, UTC."""
        return self.since + timedelta(seconds=self.step_seconds * self.steps)

    def between(self, first: int, stop: int) -> UsageGrid[Key]:
        """Steps `first` to `stop` - 1 alone."""
        return replace(
            self,
            since=self.since + timedelta(seconds=self.step_seconds * first),
            steps=stop - first,
            mean={measure: values[:, first:stop] for measure, values in self.mean.items()},
            peak={measure: values[:, first:stop] for measure, values in self.peak.items()},
        )

    def without(self, measures: Collection[Measure], first: Mapping[int, int]) -> UsageGrid[Key]:
        """The same as if these measures of some rows had not been collected, from a step of each row on.

        Planes that are read when they are asked for are blanked then.
        """

        def blanked(planes: Mapping[Measure, Float32]) -> Mapping[Measure, Float32]:
            if not isinstance(planes, dict):
                return _Without(planes, measures, first)
            return {
                measure: _blank(values.copy(), first) if measure in measures else values
                for measure, values in planes.items()
            }

        return replace(self, mean=blanked(self.mean), peak=blanked(self.peak))

    def step_ends_ms(self) -> NDArray[np.int64]:
        """End of every step, epoch milliseconds, shape (steps,)."""
        start = round(self.since.timestamp() * 1000)
        return start + (np.arange(self.steps, dtype=np.int64) + 1) * self.step_seconds * 1000


def _blank(values: Float32, first: Mapping[int, int]) -> Float32:
    for row, step in first.items():
        values[row, step:] = np.nan
    return values


class _Without(Mapping[Measure, Float32]):
    """Planes of which some rows are NaN from a step on; of those below each is another array whenever it is read."""

    def __init__(
        self, planes: Mapping[Measure, Float32], measures: Collection[Measure], first: Mapping[int, int]
    ) -> None:
        self._planes, self._measures, self._first = planes, measures, first

    def __getitem__(self, measure: Measure) -> Float32:
        values = self._planes[measure]
        return _blank(values, self._first) if measure in self._measures else values

    def __iter__(self) -> Iterator[Measure]:
        return iter(self._planes)

    def __len__(self) -> int:
        return len(self._planes)


SliceGrid = UsageGrid[SliceKey]
CardGrid = UsageGrid[CardKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything advice is made from: what stands there, and how it was used.

    Attributes:
        inventory: cards, nodes and grants as known at `inventory.as_of`.
        slices: usage per granted slice; a grant without any sample has no row here.
        cards: usage per card, as the card itself reports it; None where no source measures cards.
    """

    inventory: Inventory
    slices: SliceGrid
    cards: CardGrid | None = None
