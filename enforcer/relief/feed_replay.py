"""What the nodes of the simulated cluster would report: the usage that was recorded last, where pods sit now.

The port `DemandFeed` of a replay: so relief can be tried on a recorded fleet before it is let near a real one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from enforcer.agent.node_view import CardView, NodeView, SliceView
from enforcer.dialect import Dialect
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.inventory import Priority
from fleet.schema import Measure
from fleet.units import MIB
from fleet.usage import History

_LATELY = timedelta(hours=1)


class ReplayFeed:
    """Reports what the warehouse kept of the last step."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        dialect: Dialect,
        history: Callable[[datetime, datetime], History],
        now: Callable[[], datetime],
    ) -> None:
        self._cluster, self._dialect, self._history, self._now = cluster, dialect, history, now

    def views(self, wait_seconds: float) -> Mapping[str, NodeView]:
        """The newest view of every node; see the port. Recorded data does not change: nobody waits."""
        del wait_seconds
        now = self._now()
        grid = self._history(now - _LATELY, now).slices
        demand = {
            (key.namespace, key.pod): _last(grid.mean[Measure.SM_ACTIVE][row]) for row, key in enumerate(grid.keys)
        }
        used = {
            (key.namespace, key.pod): _last(grid.peak[Measure.FRAMEBUFFER_USED][row])
            for row, key in enumerate(grid.keys)
        }
        # Who was made anew plays a pod of the trace, whose name the samples carry.
        played = {(seat.namespace, seat.name): (seat.namespace, seat.pod) for seat in self._cluster.seats()}
        for values in (demand, used):
            values |= {name: values[pod] for name, pod in played.items() if name not in values and pod in values}
        snapshot = take_snapshot(self._cluster, self._dialect)
        uids = {
            (pod["metadata"]["namespace"], pod["metadata"]["name"]): pod["metadata"].get("uid")
            for pod in self._cluster.list_objects("Pod")
        }
        slices = [
            SliceView(
                namespace=seat.namespace,
                pod=seat.pod,
                pod_uid=uids.get((seat.namespace, seat.pod)),
                container=part.container,
                card=str(part.card),
                priority={"0": Priority.HIGH, "1": Priority.LOW}.get(part.priority or "", Priority.NORMAL),
                framebuffer_used_bytes=None if (size := used.get((seat.namespace, seat.pod))) is None else int(size),
                framebuffer_granted_bytes=part.framebuffer_mib * MIB,
                framebuffer_limit_bytes=None,
                duty_cycle_ratio=None if (ratio := demand.get((seat.namespace, seat.pod))) is None else min(1.0, ratio),
            )
            for seat in snapshot.seats.values()
            for part in seat.slices
            if part.card is not None
        ]
        return {
            node: NodeView(
                at_seconds=now.timestamp(),
                cards=tuple(
                    _card(card.card, card.framebuffer_mib * MIB, [part for part in slices if part.card == card.card])
                    for card in snapshot.cards.values()
                    if card.node == node
                ),
                slices=tuple(part for part in slices if snapshot.cards[part.card].node == node),
            )
            for node in snapshot.nodes
        }


def _card(card: str, size: int, slices: list[SliceView]) -> CardView:
    known = [part.duty_cycle_ratio for part in slices if part.duty_cycle_ratio is not None]
    used = [part.framebuffer_used_bytes for part in slices]
    is_known = all(amount is not None for amount in used)
    return CardView(
        card=card,
        framebuffer_bytes=size,
        framebuffer_free_bytes=max(0, size - sum(amount or 0 for amount in used)) if is_known else None,
        duty_cycle_ratio=min(1.0, sum(known)) if len(known) == len(slices) else None,
    )


def _last(values: object) -> float | None:
    """The newest value of a row that was collected."""
    found = [float(value) for value in values if not math.isnan(value)]  # type: ignore[attr-defined]
    return found[-1] if found else None
