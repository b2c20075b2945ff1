"""Which pods leave when services scale in, so that machines are freed whole; a mark tells the controllers.

Where the pods still sit as planned, those on the cards that the plan frees. After a night they come back to other
cards, so then it is chosen anew by where they sit: pods of machines that can be emptied whole first, the machines with
the fewest pods before all others. A Deployment's controller takes the pods of the lowest deletion cost first; a
StatefulSet's goes by ordinal, and its pods are marked in vain.

Source: kubernetes:pkg/controller/controller_utils.go (ActivePodsWithRanks).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from enforcer.cluster import DELETION_COST_ANNOTATION
from enforcer.record.journal import FieldIntent, ObjectIntent
from enforcer.seat import PodSeat
from fleet.decisions import ScheduledReplicas
from fleet.inventory import WorkloadId

_FIRST_TO_GO = "-1000"


SeatsOf = Mapping[WorkloadId, Sequence[PodSeat]]


def leaving(
    schedule: Sequence[ScheduledReplicas], services: Collection[WorkloadId], pods: SeatsOf
) -> tuple[PodSeat, ...]:
    """Pods that leave when these services scale in, by service.

    Args:
        pods: every pod that holds a card, or a part of one, by workload.
    """
    entries = [entry for entry in schedule if entry.workload in services]
    left = Counter({entry.workload: max(0, len(pods.get(entry.workload, ())) - entry.replicas) for entry in entries})
    planned: list[PodSeat] = []
    for entry in entries:
        own = [seat for seat in pods.get(entry.workload, ()) if seat.cards and {*seat.cards} <= {*entry.frees}]
        if len(own) < left[entry.workload]:
            return tuple(_by_machines(left, pods))
        planned += own[: left[entry.workload]]
    return tuple(planned)


def _by_machines(left: Counter[WorkloadId], pods: SeatsOf) -> list[PodSeat]:
    on_node: dict[str, list[PodSeat]] = defaultdict(list)
    for workload in sorted(pods):
        for seat in pods[workload]:
            on_node[seat.node or ""].append(seat)
    chosen: list[PodSeat] = []
    by_room = sorted(on_node, key=lambda name: (len(on_node[name]), name))
    for node in by_room:
        wanted = Counter(seat.workload for seat in on_node[node])
        if node and all(left[workload] >= count for workload, count in wanted.items()):
            chosen += on_node.pop(node)
            left -= wanted
    # The rest comes from as few machines as possible.
    rest = {node: [seat for seat in seats if left[seat.workload] > 0] for node, seats in on_node.items()}
    for node in sorted(rest, key=lambda name: (-len(rest[name]), name)):
        for seat in rest[node]:
            if left[seat.workload] > 0:
                chosen.append(seat)
                left[seat.workload] -= 1
    return chosen


def marks_of(seats: Sequence[PodSeat]) -> tuple[ObjectIntent, ...]:
    """What makes the controllers take these pods."""
    return tuple(
        ObjectIntent(
            kind="Pod",
            namespace=seat.namespace,
            name=seat.pod,
            resource_version=seat.resource_version,
            recommendation="tide",
            fields=(
                FieldIntent(
                    field=f"metadata.annotations[{DELETION_COST_ANNOTATION}]", old=seat.deletion_cost, new=_FIRST_TO_GO
                ),
            ),
        )
        for seat in seats
        if seat.deletion_cost != _FIRST_TO_GO
    )
