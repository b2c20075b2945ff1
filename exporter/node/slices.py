"""What each slice of a node does right now, from what the driver reports of cards, instances and processes.

Pure. Whose figure counts, the surest first:

- A slice that has its card to itself does what the card does.
- A MIG instance has figures of its own, of the instance and not of the card.
- On a shared card, the driver's figures of the container's processes, added up; without any process there, 0. While a
  server of MPS works, it works for some of them, and the driver doesn't report for whom.
- HAMi's region of the container, for what the driver doesn't report of processes.

What none of them reports is absent. Called by `exporter.node.reader`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from exporter.attribution.mps import lists_mps_clients
from exporter.attribution.records import AttributedSlice
from exporter.nvml.figures import Activities, Activity, CardFigures, MigFigures, ProcessFigures, Spread
from exporter.reader import Float64
from exporter.regions.columns import HamiReading
from fleet.inventory import CardId
from fleet.schema import SLICE_MEASURES, Measure

_OF_CARD: Mapping[Measure, Activity] = {
    Measure.DUTY_CYCLE: Activity.DUTY_CYCLE,
    Measure.SM_ACTIVE: Activity.SM_ACTIVE,
    Measure.MEMORY_ACTIVE: Activity.MEMORY_ACTIVE,
    Measure.ENCODER: Activity.ENCODER,
    Measure.DECODER: Activity.DECODER,
    Measure.POWER: Activity.POWER,
}
_OF_INSTANCE: Mapping[Measure, Activity] = {
    # Under MIG the driver has no duty cycle; the share of time in which the graphics engine was busy is the same.
    Measure.DUTY_CYCLE: Activity.GRAPHICS_ACTIVE,
    Measure.SM_ACTIVE: Activity.SM_ACTIVE,
    Measure.MEMORY_ACTIVE: Activity.MEMORY_ACTIVE,
}
_OF_PROCESS: Mapping[Measure, Callable[[ProcessFigures], Spread | None]] = {
    Measure.DUTY_CYCLE: lambda process: process.sm_busy,
    Measure.ENCODER: lambda process: process.encoder_busy,
    Measure.DECODER: lambda process: process.decoder_busy,
}
_NEED_A_PROCESS = (
    Measure.DUTY_CYCLE,
    Measure.SM_ACTIVE,
    Measure.MEMORY_ACTIVE,
    Measure.ENCODER,
    Measure.DECODER,
    Measure.FRAMEBUFFER_USED,
)
"""What is 0 for a container that has no process on the card."""

Values = dict[Measure, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsNow:
    """What is known of the cards that slices sit on.

    Attributes:
        figures: by card; a card that told nothing new is not among them.
        shared: cards on which a process runs that was not granted them.
        sees_processes: the host's processes can be looked at, so that a container without one has none.
        regions: HAMi's regions; None where the node has none.
        mps_servers: processes, by card and id, that work for the tenants of their card together.
    """

    figures: Mapping[CardId, CardFigures]
    shared: frozenset[CardId]
    sees_processes: bool
    regions: HamiReading | None
    mps_servers: frozenset[tuple[CardId, int]] = frozenset()


def slice_values(slices: Sequence[AttributedSlice], now: CardsNow) -> dict[Measure, Float64]:
    """One column per measure that any slice has, shape `(len(slices),)`, NaN = unknown.

    Args:
        slices: slices whose cards are all among `now.figures`.
    """
    tenants = Counter(found.grant.card for found in slices)
    regions = _region_rows(now.regions)
    rows = [
        _values(
            found,
            now.figures[found.grant.card],
            now,
            is_alone=tenants[found.grant.card] == 1 and found.grant.card not in now.shared,
            of_region=regions.get((found.pod_uid or "", found.grant.container, str(found.grant.card)), {}),
        )
        for found in slices
    ]
    columns: dict[Measure, Float64] = {}
    for column in SLICE_MEASURES:
        told = [row.get(column.measure, np.nan) for row in rows]
        values = np.array([value if column.value_min <= value <= column.value_max else np.nan for value in told])
        if not np.isnan(values).all():
            columns[column.measure] = values
    return columns


def _values(
    found: AttributedSlice, figures: CardFigures, now: CardsNow, *, is_alone: bool, of_region: Values
) -> Values:
    of_processes: Values = {}
    if figures.processes is not None and now.sees_processes and found.pod_uid is not None:
        own = [process for process in figures.processes if process.pid in found.pids]
        servers = [process for process in figures.processes if (found.grant.card, process.pid) in now.mps_servers]
        if found.instances:
            of_processes = _of_processes(own)
        elif is_alone:
            of_processes = _of_processes([*own, *servers])
        elif servers:
            of_processes = _beside_servers(own, servers, are_clients_listed=lists_mps_clients(figures))
        else:
            of_processes = _of_processes(own)
    if found.instances:
        instances = [instance for instance in figures.migs if instance.mig in found.instances]
        return {**of_processes, **_of_instances(instances, figures.migs)}
    if not is_alone:
        return {**of_region, **of_processes}
    of_card = _means(figures.activities, _OF_CARD)
    if figures.framebuffer is not None:
        of_card[Measure.FRAMEBUFFER_USED] = float(figures.framebuffer.used_bytes)
    # The card's use holds what the driver keeps for itself; what its processes hold is the tenant's.
    of_tenant = {
        measure: value
        for measure, value in {**of_region, **of_processes}.items()
        if measure is Measure.FRAMEBUFFER_USED or measure not in of_card
    }
    return {**of_card, **of_tenant}


def _of_processes(processes: Sequence[ProcessFigures]) -> Values:
    """What a container's processes do together; what the driver withholds of any of them is absent."""
    if not processes:
        return dict.fromkeys(_NEED_A_PROCESS, 0.0)
    values: Values = {}
    for measure, spread_of in _OF_PROCESS.items():
        spreads = [spread_of(process) for process in processes]
        told = [spread.mean for spread in spreads if spread is not None]
        if len(told) == len(spreads):
            # Shares of time of several processes overlap: their sum may pass 1, and the container's can't.
            values[measure] = min(1.0, sum(told))
    held = [process.framebuffer_bytes for process in processes]
    known = [size for size in held if size is not None]
    if len(known) == len(held):
        values[Measure.FRAMEBUFFER_USED] = float(sum(known))
    return values


def _beside_servers(
    own: Sequence[ProcessFigures], servers: Sequence[ProcessFigures], *, are_clients_listed: bool
) -> Values:
    """What one of several tenants does on a card with servers of MPS.

    What a server uses, its clients use together; on cards before Volta it is listed in their place.
    """
    if not own and are_clients_listed:
        return _of_processes(own)
    is_idle = {
        measure: all((spread := spread_of(server)) is not None and spread.mean == 0 for server in servers)
        for measure, spread_of in _OF_PROCESS.items()
    }
    return {measure: value for measure, value in _of_processes(own).items() if is_idle.get(measure, bool(own))}


def _of_instances(instances: Sequence[MigFigures], all_instances: Iterable[MigFigures]) -> Values:
    """What a container's MIG instances do: of one its figures, of several the framebuffer alone."""
    values: Values = {}
    if len(instances) == 1:
        values = _means(instances[0].activities, _OF_INSTANCE)
    sharers = Counter(instance.gpu_instance for instance in all_instances)
    held = [instance.framebuffer for instance in instances if sharers[instance.gpu_instance] == 1]
    known = [framebuffer.used_bytes for framebuffer in held if framebuffer is not None]
    if instances and len(known) == len(instances):
        values[Measure.FRAMEBUFFER_USED] = float(sum(known))
    return values


def _means(activities: Activities, wanted: Mapping[Measure, Activity]) -> Values:
    return {measure: activities[activity].mean for measure, activity in wanted.items() if activity in activities}


def _region_rows(regions: HamiReading | None) -> dict[tuple[str, str, str], Values]:
    """What regions say, by pod UID, container and card."""
    if regions is None:
        return {}
    slices = regions.slices
    rows = zip(slices.keys, slices.framebuffer_used.tolist(), slices.duty_cycle.tolist(), strict=True)
    return {
        (key.container.pod_uid, key.container.container, key.card): {
            measure: value
            for measure, value in ((Measure.FRAMEBUFFER_USED, used), (Measure.DUTY_CYCLE, duty_cycle))
            if not np.isnan(value)
        }
        for key, used, duty_cycle in rows
    }
