"""What follows from the grants of a node and HAMi's scheduler shows per card.

The node's exporter knows who was granted what on its cards, so that the scheduler's names need no second exporter.
Called by `exporter.compat.translation`.

Source: Project-HAMi/HAMi:cmd/scheduler/metrics.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from exporter.compat.names import NameSource
from exporter.families import Family
from exporter.reader import Float64
from fleet.inventory import Card, Grant

_SOURCES_FAMILY = "gputide_node_source_age_seconds"
_GRANTERS = ("kubelet", "api_server")
"""Sources that say who was granted what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantSum:
    """One name for a sum over the grants of a card.

    Attributes:
        summand: what a grant adds.
    """

    name: str
    meaning: str
    summand: Callable[[Grant], float]

    def of(self, cards: tuple[Card, ...], grants: tuple[Grant, ...]) -> Float64:
        """The sum of each card, shape `(len(cards),)`; 0 for a card on which nothing is granted."""
        sums = dict.fromkeys((card.card for card in cards), 0.0)
        for grant in grants:
            if grant.card in sums:
                sums[grant.card] += self.summand(grant)
        return np.array(list(sums.values()), np.float64)


def _bytes(name: str) -> GrantSum:
    return GrantSum(
        name=name,
        meaning="sum of `framebuffer_granted_bytes` of the card's grants",
        summand=lambda grant: float(grant.framebuffer_granted_bytes),
    )


def _count(name: str) -> GrantSum:
    return GrantSum(name=name, meaning="number of the card's grants", summand=lambda _: 1.0)


GRANT_SUMS: Mapping[NameSource, tuple[GrantSum, ...]] = {
    NameSource.HAMI: (_bytes("hami_gpu_memory_allocated_bytes"), _count("hami_gpu_shared_count")),
    NameSource.HAMI_LEGACY: (_bytes("GPUDeviceMemoryAllocated"), _count("GPUDeviceSharedNum")),
}
"""Per source, its sums."""


def are_grants_known(families: Mapping[str, Family]) -> bool:
    """Whether any source says who was granted what; otherwise no card is called free."""
    ages = families.get(_SOURCES_FAMILY)
    if ages is None:
        return False
    place = ages.label_names.index("source")
    return any(
        labels[place] in _GRANTERS and bool(np.isfinite(age))
        for labels, age in zip(ages.labels, ages.values, strict=True)
    )
