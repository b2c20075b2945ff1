"""How far the figures can be trusted: coverage per node, counters that failed a cross-check, age of the newest sample.

Each step from the receiver to the warehouse has an age, and the step that delays the others is named. What happens
before the receiver shows in the age of the samples that it takes. Pure; called by the health page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fleet.contradictions import Contradiction
from fleet.profiles import CardProfile, CardState, Finding, Profiles

COVERAGE_GOOD = 0.95
"""From here on a node's coverage is not worth a look; the least for an idle verdict (`analyzer`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCoverage:
    """One node.

    Attributes:
        coverage_ratio: mean of its granted cards, 0-1: usage is told of pods. None where none is granted.
        worst_ratio: that of its worst granted card.
        untrusted: cards whose counters are not believed.
    """

    node: str
    cards: int
    coverage_ratio: float | None
    worst_ratio: float | None
    untrusted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCheck:
    """A cross-check that failed, over all workloads.

    Attributes:
        distrusts: whether the counter frees nothing now.
        first: the finding that is shown: the first of a workload.
    """

    check: str
    counter: str
    distrusts: bool
    workloads: tuple[str, ...]
    first: Finding


def node_coverage(profiles: Profiles) -> tuple[NodeCoverage, ...]:
    """Every node, the worst covered first."""
    by_node = defaultdict(list)
    for card in profiles.cards:
        by_node[card.node].append(card)
    found = [_node(node, cards) for node, cards in by_node.items()]
    return tuple(
        sorted(
            found,
            key=lambda entry: (
                1.0 if entry.coverage_ratio is None else entry.coverage_ratio, -entry.untrusted, entry.node,
            ),
        )
    )  # fmt: skip


def _node(node: str, cards: Sequence[CardProfile]) -> NodeCoverage:
    granted = [card.coverage_ratio for card in cards if card.state is not CardState.FREE]
    return NodeCoverage(
        node=node,
        cards=len(cards),
        coverage_ratio=sum(granted) / len(granted) if granted else None,
        worst_ratio=min(granted, default=None),
        untrusted=sum(card.state is CardState.UNTRUSTED for card in cards),
    )


def failed_checks(profiles: Profiles) -> tuple[FailedCheck, ...]:
    """Cross-checks that failed: those that distrust first, then by how many workloads."""
    found: dict[tuple[str, str, bool], list[tuple[str, Finding]]] = defaultdict(list)
    for profile in profiles.workloads:
        for finding in profile.trust:
            found[finding.check, finding.counter, finding.distrusts].append((profile.workload, finding))
    checks = [
        FailedCheck(
            check=check,
            counter=counter,
            distrusts=distrusts,
            workloads=tuple(dict.fromkeys(workload for workload, _ in entries)),
            first=entries[0][1],
        )
        for (check, counter, distrusts), entries in found.items()
    ]
    return tuple(sorted(checks, key=lambda entry: (not entry.distrusts, -len(entry.workloads), entry.check)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesSeen:
    """How sources of samples fit together.

    Attributes:
        contradictions: cards of which they say what can't both be true.
        mend: the command that shows which of them is wrong.
    """

    contradictions: tuple[Contradiction, ...]
    mend: str


BEHIND_SECONDS = 300.0
"""A step that did nothing for longer than this, or two intervals of the data where that is longer, is behind."""


class LagCause(StrEnum):
    """What holds the chain up."""

    NONE = "none"
    SENDER = "sender"
    """Nothing arrives: the exporter, its Prometheus or the way from there stands still."""
    LATE_SAMPLES = "late_samples"
    """What arrives is old: the exporter's Prometheus is behind with its remote write."""
    SENDER_OR_LATE = "sender_or_late"
    """Something arrives, of this cluster nothing new: it may all be other clusters'."""
    ROLLUP = "rollup"
    """What arrived waits on the bus: the rollup stands still or is too slow."""
    UNKNOWN = "unknown"
    """The bus lies elsewhere, and nothing here says how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagChain:
    """The chain of one cluster; ages in seconds, by the machine's clock but for the newest sample's.

    Attributes:
        newest_at: end of the newest window in the warehouse, by the samples' own time, UTC; None where there is none.
        sample_age_seconds: its age by the clock of the data; None where there is none.
        interval_seconds: how often a sample is expected.
        received_age_seconds: since the receiver last wrote to the bus; None where the bus lies elsewhere or is empty.
        waiting_bytes: what waits on the bus for the rollup; None where the bus lies elsewhere.
        stored_age_seconds: since the rollup last stored something; None where it never did.
        is_shared: other clusters' samples come by the same bus, so that what arrives need not be this one's.
    """

    newest_at: datetime | None
    sample_age_seconds: float | None
    interval_seconds: float
    received_age_seconds: float | None
    waiting_bytes: int | None
    stored_age_seconds: float | None
    is_shared: bool = False

    @property
    def limit_seconds(self) -> float:
        """Age from which on a step is behind."""
        return max(BEHIND_SECONDS, 2 * self.interval_seconds)

    @property
    def cause(self) -> LagCause:
        """What holds the chain up, looked for from the newest sample backwards."""
        age = self.sample_age_seconds
        if age is not None and age <= self.limit_seconds:
            return LagCause.NONE
        if self.waiting_bytes is None:
            return LagCause.UNKNOWN
        stored = self.stored_age_seconds
        if self.waiting_bytes > 0 and (stored is None or stored > self.limit_seconds):
            return LagCause.ROLLUP
        received = self.received_age_seconds
        if received is None or received > self.limit_seconds:
            return LagCause.SENDER
        return LagCause.SENDER_OR_LATE if self.is_shared else LagCause.LATE_SAMPLES
