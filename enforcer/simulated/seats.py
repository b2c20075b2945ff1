"""Where the pods of a simulated cluster really are, for the replay to play them there.

One piece of the simulated cluster; the command line makes `fleet.sharing.Seats` and grants of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from enforcer.simulated.store import SimulatedStore
from enforcer.simulated.system import SharingSystem
from fleet.capabilities.register import CorePolicy
from fleet.inventory import CardId, Priority, WorkloadId
from fleet.units import MIB, time_from_epoch_ms


class SeatState(StrEnum):
    """What a pod of the trace does in the simulated cluster."""

    RUNNING = "running"
    PENDING = "pending"
    """It found no card."""
    STOPPED = "stopped"
    """Its owner was stopped or scaled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSeat:
    """Where one container of a pod really is, for the replay to play it there.

    Attributes:
        name: what it is called in the cluster: another name once its owner made it anew; empty where nobody plays it.
        card: card; None unless running.
        framebuffer_granted_bytes: granted, bytes; 0 unless running.
        compute_granted_ratio: granted, 0-1; 1 where no limit is set.
        priority: on its card; None where the sharing system knows none.
        is_oversubscribed: the card's grants together may exceed its framebuffer.
        kept_bytes: what of the grant stays on such a card while the pod rests; None where all of it does.
        since: when the pod was made, UTC; the start of time for a pod that has no seat.
        is_remade: True where its owner made it anew since the trace began it, so that it has run from `since` on.
    """

    namespace: str
    pod: str
    name: str
    container: str
    workload: WorkloadId
    state: SeatState
    card: CardId | None
    node: str | None
    framebuffer_granted_bytes: int
    compute_granted_ratio: float
    core_policy: CorePolicy
    priority: Priority | None
    is_oversubscribed: bool
    kept_bytes: float | None = None
    since: datetime
    is_remade: bool = False


def read_seats(store: SimulatedStore, system: SharingSystem) -> tuple[SimulatedSeat, ...]:
    """Seats of every pod on the roster, sorted by pod."""
    capacity = {row[0]: row[1] for row in store.rows("SELECT card, framebuffer_bytes FROM cards")}
    scaling = dict(store.rows("SELECT card, scaling FROM cards JOIN nodes ON node = name"))
    granted = dict(store.rows("SELECT card, sum(framebuffer_mib) FROM slots GROUP BY card"))
    slots: dict[tuple[str, str], list[tuple[str, str, int, int]]] = {}
    for namespace, pod, container, card, mib, cores in store.rows(
        "SELECT namespace, pod, container, card, framebuffer_mib, core_percent FROM slots"
    ):
        slots.setdefault((namespace, pod), []).append((container, card, mib, cores))
    wish = "NULL" if system.wish_path is None else f"json_extract(body, '{system.wish_path}')"
    # Of two that play the same pod while one is rolled away, the younger one that runs counts.
    running = {
        (row[0], row[6]): (row[2], row[3], row[4], row[5], row[1])
        for row in store.rows(
            "SELECT namespace, name, node, made_ms, ready_ms, "
            f"{wish}, plays FROM pods ORDER BY node IS NOT NULL, made_ms, name"
        )
    }
    empty = SimulatedSeat(
        namespace="", pod="", name="", container="", workload=WorkloadId(""), state=SeatState.STOPPED, card=None,
        node=None, framebuffer_granted_bytes=0, compute_granted_ratio=0.0, core_policy=CorePolicy.BURST,
        priority=None, is_oversubscribed=False, since=time_from_epoch_ms(0),
    )  # fmt: skip
    seats = []
    for namespace, pod, kind, owner in store.rows(
        "SELECT namespace, pod, owner_kind, owner_name FROM roster ORDER BY 1, 2"
    ):
        base = replace(empty, namespace=namespace, pod=pod, workload=WorkloadId(f"{namespace}/{kind}/{owner}"))
        if (namespace, pod) not in running:
            seats.append(base)
            continue
        node, made_ms, ready_ms, said, name = running[namespace, pod]
        # What the trace begins runs at once; what an owner makes takes its time to start.
        is_remade = ready_ms is None or ready_ms > made_ms
        base = replace(base, name=name, since=time_from_epoch_ms(made_ms), is_remade=is_remade)
        if node is None:
            seats.append(replace(base, state=SeatState.PENDING))
        for container, card, mib, cores in slots.get((namespace, name), ()):
            size = capacity.get(card, mib * MIB)
            # A whole card is granted to the byte; MiB are only HAMi's unit of account.
            is_hard, priority = system.held(said, cores)
            bytes_granted = size if mib >= size // MIB else mib * MIB
            is_over = granted[card] * MIB > size + MIB
            kept_mib = system.kept_mib(mib, scaling.get(card, 1.0)) if is_over else None
            seats.append(
                replace(
                    base,
                    container=container,
                    state=SeatState.RUNNING,
                    card=CardId(card),
                    node=node,
                    framebuffer_granted_bytes=bytes_granted,
                    compute_granted_ratio=cores / 100 if cores else 1.0,
                    core_policy=CorePolicy.HARD if is_hard else CorePolicy.BURST,
                    priority=priority,
                    is_oversubscribed=is_over,
                    kept_bytes=None if kept_mib is None else kept_mib * MIB,
                )
            )
    return tuple(seats)
