"""Where the pods of a recorded fleet sit after a plan was applied, and how they fare there.

A replay plays every pod's recorded demand on the card that the (simulated) cluster says it sits on now, by the formulas
of `fleet.sharing`: contention caps compute, the grant bounds the framebuffer, a server that pre-allocates takes its
share of the new grant. Replicas that run carry what others of their service had that are away: requests for those go
to them. Called by `exporter.replay.reader`; the command line wires the cluster in as a `Seating`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Corrupt
from fleet.inventory import Card, CardId, Grant, Priority
from fleet.schema import MEASURES, Measure
from fleet.sharing import PREALLOCATED_RATIO, Seats, fare, framebuffer_need, replayed_framebuffer
from fleet.units import MIB

COMPUTE_STEP_RATIO = 0.01
"""Backends grant compute in whole percents."""

LATENCY_FACTOR_MAX = 100.0
"""How much longer a request may take in a replay because its pod was not served."""

NO_SERVICE = -1
_LOAD = frozenset(
    {
        Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.MEMORY_ACTIVE, Measure.ENCODER, Measure.DECODER,
        Measure.KV_CACHE_USAGE, Measure.REQUEST_RATE, Measure.PROMPT_TOKEN_RATE, Measure.GENERATED_TOKEN_RATE,
        Measure.REQUESTS_RUNNING,
    }
)  # fmt: skip
"""Measures that grow with the requests; framebuffer, power and temperature stay as they are, a latency too."""
_MOST = {column.measure: column.value_max for column in MEASURES}
_BELOW_ONE = 1.0 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one of a pod's recorded slices sits now.

    Attributes:
        card: card; None where the pod was stopped or this card of several was taken from it.
        compute_granted_ratio: share of compute granted, 0-1.
        is_hard: True where that share is a hard limit.
        priority: on its card; None where it keeps the recorded one.
        is_oversubscribed: True where the grant may be spilled to host memory.
        kept_bytes: what of the grant then stays on the card while the pod rests; None where nothing leaves it.
        since: when the pod got this seat, UTC.
        is_anew: True where the pod was made anew at `since`: its grant begins then, even where it sits as recorded.
        pod: what the pod is called since it was made anew; None where it kept its recorded name.
    """

    card: CardId | None
    framebuffer_granted_bytes: int = 0
    compute_granted_ratio: float = 1.0
    is_hard: bool = False
    priority: Priority | None = Priority.NORMAL
    is_oversubscribed: bool = False
    kept_bytes: float | None = None
    since: datetime
    is_anew: bool = False
    pod: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforced:
    """What keeps pods of one card apart; limits of compute are each seat's own.

    Attributes:
        framebuffer: a pod can't use more than its grant. Without it every pod takes what it was recorded with.
        priority: pods of low priority give way to the others on their card.
    """

    framebuffer: bool = True
    priority: bool = True


class Seating(Protocol):
    """Says where pods sit now; those that sit as recorded may be left out."""

    @property
    def enforced(self) -> Enforced:
        """What the sharing system enforces."""
        ...

    def seats(self, at: datetime) -> Mapping[str, tuple[Seat, ...]]:
        """Seats of the pods that something was changed for.

        Args:
            at: the moment, UTC; asked once at the start of each block.

        Returns:
            Pod (`namespace/pod`) to its seats; a pod that isn't named sits where the trace has it, and so does one
            whose seats are as recorded and not anew. A recorded card that is among the seats keeps its seat, the rest
            are dealt in order; recorded slices beyond the seats are stopped. The same object again means that nothing
            changed.
        """
        ...


def seated_grants(
    grants: list[Grant], seats: tuple[Seat, ...], cards: Mapping[CardId, Card], enforced: Enforced = Enforced()
) -> dict[CardId, tuple[Grant, Seat]]:
    """What a pod's recorded slices have become.

    Args:
        grants: all recorded grants of one pod that live now, one per card.

    Returns:
        Recorded card to the grant that its slice is now, and the seat; a card that is missing is stopped.
    """
    free = [seat for seat in seats if seat.card is not None]
    dealt: dict[CardId, Seat] = {}
    for grant in grants:
        kept = next((seat for seat in free if seat.card == grant.card), None)
        if kept is not None:
            free.remove(kept)
            dealt[grant.card] = kept
    for grant in grants:
        if grant.card not in dealt and free:
            dealt[grant.card] = free.pop(0)
    return {
        grant.card: (_regranted(grant, dealt[grant.card], cards, enforced), dealt[grant.card])
        for grant in grants
        if grant.card in dealt
    }


def is_as_recorded(grant: Grant, seat: Seat) -> bool:
    """True where a seat is the recorded place with the recorded grant, to the MiB in which backends count."""
    return (
        seat.card == grant.card
        and abs(seat.framebuffer_granted_bytes - grant.framebuffer_granted_bytes) < MIB
        and abs(seat.compute_granted_ratio - grant.compute_granted_ratio) < COMPUTE_STEP_RATIO
        and seat.priority in (None, grant.priority)
        and not (seat.is_hard and seat.compute_granted_ratio < 1.0)
        and not seat.is_oversubscribed
    )


def _regranted(grant: Grant, seat: Seat, cards: Mapping[CardId, Card], enforced: Enforced) -> Grant:
    if seat.card is None or seat.card not in cards:
        raise Corrupt(
            f"cannot replay pod {grant.pod_id}: it was moved to card {seat.card}, which the trace does not list"
        )
    pod = grant.pod if seat.pod is None else seat.pod
    if is_as_recorded(grant, seat):
        begun = max(seat.since, grant.started_at) if seat.is_anew else grant.started_at
        return replace(grant, pod=pod, started_at=begun, ended_at=None)
    card = cards[seat.card]
    return replace(
        grant,
        pod=pod,
        card=card.card,
        node=card.node,
        card_model=card.card_model,
        framebuffer_bytes=card.framebuffer_bytes,
        framebuffer_granted_bytes=seat.framebuffer_granted_bytes,
        compute_granted_ratio=seat.compute_granted_ratio,
        priority=grant.priority if seat.priority is None else seat.priority,
        kv_cache_pool_bytes=_pool(grant, seat.framebuffer_granted_bytes)
        if enforced.framebuffer
        else grant.kv_cache_pool_bytes,
        started_at=max(seat.since, grant.started_at),
        ended_at=None,
    )


def _pool(grant: Grant, granted_bytes: int) -> int | None:
    """The KV cache shrinks and grows with the grant; weights stay (see `replayed_framebuffer`)."""
    if grant.kv_cache_pool_bytes is None:
        return None
    shrunk = PREALLOCATED_RATIO * (grant.framebuffer_granted_bytes - granted_bytes)
    return max(1, round(grant.kv_cache_pool_bytes - shrunk))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Slices that are played on their cards: one row per slice, one column per step.

    Attributes:
        values: per measure, shape `(rows, steps)`, 32-bit floats for the formulas; NaN = not collected.
        recorded: the grant that each row was recorded in.
        current: the grant that it plays in.
        seats: its seat; None where it sits as recorded.
        enforced: what keeps them apart.
        waits: share of each step in which a row waits for framebuffer that comes back, 0-1; None where none is lent.
    """

    values: Mapping[Measure, NDArray[np.float32]]
    recorded: tuple[Grant, ...]
    current: tuple[Grant, ...]
    seats: tuple[Seat | None, ...]
    enforced: Enforced = Enforced()
    waits: NDArray[np.float32] | None = None


def played(table: Table) -> dict[Measure, NDArray[np.float32]]:
    """What the slices of a table show when they run where they sit now.

    Args:
        table: every slice of every card concerned: a card's fate depends on all its tenants.

    Returns:
        The same measures, shapes as given: compute as served (duty cycle and SM active fall alike, the latency of
        what waits grows by the same factor), framebuffer and KV cache as in the new grant, others unchanged.
    """
    values: dict[Measure, NDArray[np.float32]] = dict(table.values)
    duty = values[Measure.DUTY_CYCLE]
    sm_active = values.get(Measure.SM_ACTIVE)
    demand = duty if sm_active is None else np.where(np.isnan(sm_active), duty, sm_active)
    pools = np.array([grant.kv_cache_pool_bytes or np.nan for grant in table.recorded], np.float64)
    used = values[Measure.FRAMEBUFFER_USED]
    kv_usage = values.get(Measure.KV_CACHE_USAGE)
    need = framebuffer_need(used, kv_usage, pools)
    seats = _columns(table)
    served = fare(demand.astype(np.float32), need, seats).served_ratio
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(demand > 0, served / demand, 1.0)
    factor = np.where(np.isnan(ratio), 1.0, np.minimum(ratio, 1.0)).astype(np.float32)
    if table.waits is not None:
        factor *= 1.0 - table.waits
    for measure in (Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.MEMORY_ACTIVE):
        if measure in values:
            values[measure] = (values[measure] * factor).astype(np.float32)
    if Measure.LATENCY_P99 in values:
        waits = np.minimum(1.0 / np.maximum(factor, 1e-9), LATENCY_FACTOR_MAX)
        values[Measure.LATENCY_P99] = (values[Measure.LATENCY_P99] * waits).astype(np.float32)
    # Whose grant is as it was recorded, or binds nobody, shows what was recorded.
    is_regranted = np.array(
        [
            table.enforced.framebuffer and now.framebuffer_granted_bytes != then.framebuffer_granted_bytes
            for now, then in zip(table.current, table.recorded, strict=True)
        ],
        bool,
    )[:, None]
    shown, usage, _ = replayed_framebuffer(used, need, kv_usage, pools, seats.framebuffer_granted_bytes)
    # Monitors count what is framebuffer for good: what may leave the card is memory of the system to them.
    shown = np.minimum(shown, seats.kept_bytes[:, None]).astype(np.float32)
    values[Measure.FRAMEBUFFER_USED] = np.where(is_regranted, shown, used)
    if usage is not None and kv_usage is not None:
        values[Measure.KV_CACHE_USAGE] = np.where(is_regranted, usage, kv_usage)
    return values


def _columns(table: Table) -> Seats:
    numbers: dict[CardId, int] = {}
    capacity: list[float] = []
    for grant in table.current:
        if grant.card not in numbers:
            numbers[grant.card] = len(numbers)
            capacity.append(float(grant.framebuffer_bytes))
    return Seats(
        card=np.array([numbers[grant.card] for grant in table.current], np.int64),
        framebuffer_granted_bytes=np.array([g.framebuffer_granted_bytes for g in table.current], np.float64),
        compute_granted_ratio=np.array([g.compute_granted_ratio for g in table.current], np.float64),
        is_hard=np.array([seat is not None and seat.is_hard for seat in table.seats], bool),
        is_low=np.array([table.enforced.priority and g.priority is Priority.LOW for g in table.current], bool),
        kept_bytes=np.array([_kept(seat) for seat in table.seats], np.float64),
        capacity_bytes=np.array(capacity, np.float64),
    )


def _kept(seat: Seat | None) -> float:
    return np.inf if seat is None or seat.kept_bytes is None else seat.kept_bytes


def carried(
    values: Mapping[Measure, NDArray[np.float64]],
    cells: NDArray[np.int64],
    services: NDArray[np.int64],
    runs: NDArray[np.bool_],
) -> dict[Measure, NDArray[np.float64]]:
    """Values of all samples, in which those of replicas that run have grown by an equal part of what others had.

    Args:
        values: per measure, (samples,); NaN where a sample holds none.
        cells: step of each sample, (samples,), at least 0.
        services: number of its service; `NO_SERVICE` where replicas are not alike, (samples,).
        runs: False for samples of replicas that are away, (samples,).
    """
    width = int(cells.max(initial=0)) + 1
    codes = np.maximum(services, 0) * width + cells
    is_service = services != NO_SERVICE
    here, gone = runs & is_service, ~runs & is_service
    size = int(codes.max(initial=0)) + 1
    siblings = np.bincount(codes[here], minlength=size)
    found = dict(values)
    for measure in _LOAD & values.keys():
        # Kernels of replicas know nothing of each other: idle together = idle × idle.
        is_duty = measure is Measure.DUTY_CYCLE
        amount = -np.log1p(-np.minimum(values[measure], _BELOW_ONE)) if is_duty else values[measure]
        known = gone & np.isfinite(amount)
        left = np.bincount(codes[known], weights=amount[known], minlength=size)
        part = np.divide(left, siblings, out=np.zeros(size), where=siblings > 0)[codes[here]]
        grown = amount[here] + part
        column = values[measure].copy()
        with_more = -np.expm1(-grown) if is_duty else np.minimum(grown, _MOST[measure])
        column[here] = np.where(part > 0, with_more, column[here])
        found[measure] = column
    return found
