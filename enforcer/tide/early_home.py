"""Which services need their replicas, before and in a night, and which work holds the cards that they left. Pure.

A service is in need where half or more of its replicas that sit on cards fill them up (`fleet.relief.overload`), or
where a pod of it waits for a card. It takes back no more than it left: work on other cards stays, whatever it needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from enforcer.record.journal import ObjectIntent
from enforcer.seat import PodSeat
from enforcer.tide.leaving import SeatsOf
from enforcer.tide.tide_journal import Night
from fleet.decisions import ScheduledReplicas
from fleet.inventory import WorkloadId
from fleet.tiers import NIGHT_TIERS, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """How busy pods are now, by `namespace/pod`; a pod that nobody measured is left out.

    Attributes:
        demand_ratio: compute that a pod uses of each of its cards, 0-1.
        crowded: pods on cards that fill up, and why.
        full_ratio: use of a card from which it fills up, 0-1.
    """

    demand_ratio: Mapping[str, float] = field(default_factory=dict)
    crowded: Mapping[str, str] = field(default_factory=dict)
    full_ratio: float = 1.0


def too_busy(schedule: Sequence[ScheduledReplicas], pods: SeatsOf, busy: Busy) -> dict[WorkloadId, str]:
    """Services whose replicas do so much now that those which are to stay would fill up, and why."""
    found = {}
    for entry in schedule:
        seats = [seat for seat in pods.get(entry.workload, ()) if seat.node is not None and seat.slices]
        known = [busy.demand_ratio[seat.pod_id] for seat in seats if seat.pod_id in busy.demand_ratio]
        if known and sum(known) / len(known) * len(seats) >= entry.replicas * busy.full_ratio:
            used = sum(known) / len(known) * len(seats)
            found[entry.workload] = (
                f"it needs {used:.1f} replicas' cards now, the night's forecast was {entry.replicas}"
            )
    return found


def in_need(services: Collection[WorkloadId], pods: SeatsOf, crowded: Mapping[str, str]) -> dict[WorkloadId, str]:
    """Services that need their replicas back, and why.

    Args:
        crowded: see `Busy`.
    """
    found = {}
    for service in services:
        seats = pods.get(service, ())
        seated = [seat for seat in seats if seat.node is not None and seat.slices]
        full = [crowded[seat.pod_id] for seat in seated if seat.pod_id in crowded]
        waiting = sum(seat.node is None for seat in seats)
        if full and 2 * len(full) >= len(seated):
            found[service] = f"{len(full)} of the {len(seated)} replicas that it left are full: {full[0]}"
        elif waiting:
            found[service] = f"{waiting} pods of it wait for a card"
    return found


def work_in_the_way(
    night: Night,
    needs: Collection[WorkloadId],
    pods: SeatsOf,
    work: Mapping[ObjectIntent, Tier],
    owners: Mapping[ObjectIntent, Collection[WorkloadId]],
    stopped: Collection[WorkloadId] = (),
) -> dict[ObjectIntent, frozenset[str]]:
    """Work on cards that services in need left, without which pods of them get none, each with all that it leaves.

    Work of the lowest tier goes first, and of one tier what holds the fewest cards that the service did not leave. What
    goes for one service makes room for the next. Kueue stops what it admitted by the queue alone, so a queue goes as a
    whole: of several that are named for the same pods the one of the lowest tier, which is no longer among them at the
    next look. Too little is made up for then; work that went for nothing is lost.

    Args:
        needs: services whose pods wait.
        work: what was let in and still runs, and its tier.
        owners: whose pods go with it.
        stopped: whose pods are going already.
    """
    cards_of = {name: frozenset(card for seat in seats for card in seat.cards) for name, seats in pods.items()}
    going, found = {*stopped}, dict[ObjectIntent, frozenset[str]]()
    can_go = [one for one in work if one.kind != "ClusterQueue" or one.fields[0].old == "HoldAndDrain"]
    for service in sorted(needs):
        own = {card for name, card in night.frees if name == service}
        missing = _cards_short(pods.get(service, ())) - len(own - _held(cards_of, going))
        ways = {one: frozenset[str]().union(*(cards_of.get(name, ()) for name in owners[one])) for one in can_go}
        for intent in sorted(can_go, key=lambda one: (*_worth(work[one]), len(ways[one] - own), one.workload)):
            in_way = ways[intent] & own & _held(cards_of, going)
            if missing > 0 and in_way and intent not in found:
                going |= {*owners[intent]}
                found[intent] = ways[intent]
                missing -= len(in_way)
    return dict(sorted(found.items(), key=lambda entry: _worth(work[entry[0]])))


def _worth(tier: Tier) -> tuple[int]:
    """Sorts tiers by what their work is worth, the lowest first."""
    return (-NIGHT_TIERS.index(tier),)


def _cards_short(seats: Sequence[PodSeat]) -> int:
    """Cards that pods of a service wait for; pods that share a card with others of their service need fewer."""
    waiting = sum(seat.node is None for seat in seats)
    each = max((len(seat.cards) for seat in seats), default=0) or 1
    on_card = Counter(card for seat in seats for card in seat.cards)
    return math.ceil(waiting * each / max(on_card.values(), default=1))


def _held(cards_of: Mapping[WorkloadId, frozenset[str]], going: Collection[WorkloadId]) -> frozenset[str]:
    return frozenset[str]().union(*(cards for name, cards in cards_of.items() if name not in going))
