"""How far the figures can be trusted: coverage per node, counters that failed a cross-check, advice that is withheld.

Pure; called by the health page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.profiles import CardProfile, CardState, Finding, Profiles

COVERAGE_GOOD = 0.95
"""From here on a node's coverage is not worth a look; the least for an idle verdict (`analyzer`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCoverage:
    """One node.

    Attributes:
        node: node.
        cards: its cards.
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
        check: its name.
        counter: the counter.
        distrusts: whether the counter frees nothing now.
        workloads: whose, in order.
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
