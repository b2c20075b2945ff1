"""The inventory of a scan: cards, nodes and grants as sightings, from who was seen when and the facts beside it.

A container that dcgm-exporter names on a card holds the whole card (or its MIG instance); one that HAMi or Volcano
names holds what they granted. Called by `gputide.scanning.scan` once all samples are in the warehouse; the rows are
those that info series of the live path would have given.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fleet.catalogue import find_model
from fleet.schema import ALLOCATIONS, INVENTORY_CARDS, INVENTORY_NODES, SERVERS, Table
from fleet.units import format_time, time_from_epoch_ms
from pipeline.history.facts import Facts, PodName, SeatName
from pipeline.history.places import Places
from pipeline.history.presence import Period
from pipeline.records.label_rows import LabelRows
from pipeline.records.rows import Section
from pipeline.records.sightings import SILENT_SECONDS, fault_of_sighting

GONE_SECONDS = 86_400
"""A card of which nothing was seen for so long before the newest sample has left the cluster."""

_ABSENT_MS = 900_000
"""A container that dcgm-exporter named on a card has left it where the card was seen so long without it."""

_ABSENT_WINDOWS = 3
"""So many windows are enough where others of its node are named meanwhile: so the kubelet answers the exporter."""
_OWNERS_MAX = 4


@dataclass(slots=True, kw_only=True)
class SeatTally:
    """What became of who was seen; mutable: counted as rows are made.

    Attributes:
        unsized: models of cards whose framebuffer is not known; they are left out.
        gone: cards that have left the cluster.
        grants: grants, ended ones included.
        unmeasured: pods that hold a part of a card now and whose work is not reported.
        unplaced: pods that ask for cards and that no series puts on one.
        unreadable: sightings that could not be written, with the first fault.
    """

    cards: int = 0
    unsized: set[str] = field(default_factory=set)
    gone: int = 0
    grants: int = 0
    unmeasured: int = 0
    unplaced: int = 0
    unreadable: list[str] = field(default_factory=list)


def sightings_of(
    facts: Facts,
    places: Places,
    slices: Mapping[tuple[str, ...], tuple[Period, ...]],
    cards: Mapping[tuple[str, ...], tuple[Period, ...]],
    *,
    until_ms: int,
    window_ms: int,
) -> tuple[tuple[Section, ...], SeatTally]:
    """The sightings of one cluster, and what could not be said.

    Args:
        facts: what stands beside the samples.
        places: where cards sit.
        slices: when each slice (`SLICE_IDENTITY`) was seen.
        cards: when each card (`CARD_IDENTITY`) was seen.
        until_ms: end of the time, epoch milliseconds.
        window_ms: length of the windows in which somebody was seen or not.
    """
    tally = SeatTally()
    seats = _seats(facts, places, slices)
    seen = _cards_seen(cards, seats)
    newest_ms = max((period.last_ms for period in seen.values()), default=until_ms)
    sizes: dict[str, int] = {}
    rows: dict[str, list[tuple[tuple[str, ...], Period, int | None]]] = {}
    for card, period in sorted(seen.items()):
        if newest_ms - period.last_ms > GONE_SECONDS * 1000:
            tally.gone += 1
            continue
        place = places.cards[card]
        size = _framebuffer_bytes(card, place.card_model, facts)
        if size is None:
            tally.unsized.add(place.card_model or "a model without a name")
            continue
        sizes[card] = size
        row = {
            "cluster": places.cluster,
            "node": place.node,
            "card": card,
            "card_model": place.card_model,
            "framebuffer_bytes": str(size),
            "mig_mode": "true" if card in facts.mig_cards else "",
            "is_owned": "",
        }
        _add(rows, tally, INVENTORY_CARDS, row, period, None)
    tally.cards = len(sizes)
    nodes = {places.cards[card].node for card in sizes}
    whole = Period(first_ms=min((period.first_ms for period in seen.values()), default=newest_ms), last_ms=newest_ms)
    for node in sorted(nodes - {""}):
        fact = facts.nodes.get(node)
        row = {
            "cluster": places.cluster,
            "node": node,
            "cpu_cores": "" if fact is None or fact.cpu_cores is None else repr(fact.cpu_cores),
            "memory_bytes": "" if fact is None or fact.memory_bytes is None else str(fact.memory_bytes),
            "taints": "" if fact is None or not fact.taints else json.dumps(fact.taints),
            "labels": "",
            "provider_id": "" if fact is None or fact.provider_id is None else fact.provider_id,
        }
        _add(rows, tally, INVENTORY_NODES, row, whole, None)
    _add_grants(rows, tally, facts, places, seats, sizes, _left(facts, places, seats, seen, window_ms=window_ms))
    placed = {(namespace, pod) for namespace, pod, _, _ in seats}
    for said, period in sorted(facts.said_by_servers.items(), key=lambda item: item[0]):
        labels = dict(zip(SERVERS.keys, said, strict=True))
        if (labels["namespace"], labels["pod"]) in placed:
            _add(rows, tally, SERVERS, labels, period, None)
    measured = {(namespace, pod) for _, namespace, pod, _, _, _, _ in slices}
    tally.unmeasured = len(
        {
            (namespace, pod)
            for (namespace, pod, _, _), periods in seats.items()
            if (namespace, pod) not in measured and newest_ms - periods[-1].last_ms <= SILENT_SECONDS * 1000
        }
    )
    fresh_ms = until_ms - SILENT_SECONDS * 1000
    tally.unplaced = sum(1 for pod, last_ms in facts.wants_cards.items() if pod not in placed and last_ms >= fresh_ms)
    return tuple(_section(table, rows[table.name]) for table in _TABLES if table.name in rows), tally


def _seats(
    facts: Facts, places: Places, slices: Mapping[tuple[str, ...], tuple[Period, ...]]
) -> dict[SeatName, tuple[Period, ...]]:
    """When each container was on each card: as long as it was seen to work, or said to be granted.

    Some sources leave the container out. Where others name it, that is no seat of its own, and what was granted there
    is the only container's.
    """
    found = {
        (namespace, pod, container, card): periods
        for (_, namespace, pod, container, _, card, _), periods in slices.items()
        if card and pod
    }
    named: defaultdict[SeatName, set[SeatName]] = defaultdict(set)
    for seat in (*found, *facts.grants):
        if seat[2]:
            named[_bare(seat)].add(seat)
    for bare, others in named.items():
        grant = facts.grants.pop(bare, None)
        if grant is not None and len(others) == 1:
            facts.grants.setdefault(others.pop(), grant)
    seats = {seat: periods for seat, periods in found.items() if seat not in named}
    for seat, grant in facts.grants.items():
        if seat[3] not in places.cards or any(_same_seat(seat, other) for other in _of_pod(seats, seat)):
            continue
        seats[seat] = (Period(first_ms=grant.first_ms, last_ms=grant.last_ms),)
    return seats


def _of_pod(seats: Mapping[SeatName, object], seat: SeatName) -> Iterator[SeatName]:
    if seat in seats:
        yield seat
    if (bare := _bare(seat)) in seats:
        yield bare


def _bare(seat: SeatName) -> SeatName:
    return seat[0], seat[1], "", seat[3]


def _same_seat(first: SeatName, second: SeatName) -> bool:
    return (first[0], first[1], first[3]) == (second[0], second[1], second[3])


def _cards_seen(
    cards: Mapping[tuple[str, ...], tuple[Period, ...]], seats: Mapping[SeatName, tuple[Period, ...]]
) -> dict[str, Period]:
    """First and last sight of every card, by itself or by a pod on it."""
    found: dict[str, list[Period]] = {}
    for (_, _, card, _), periods in cards.items():
        found.setdefault(card, []).extend(periods)
    for (_, _, _, card), periods in seats.items():
        found.setdefault(card, []).extend(periods)
    return {
        card: Period(
            first_ms=min(period.first_ms for period in periods), last_ms=max(period.last_ms for period in periods)
        )
        for card, periods in found.items()
        if card
    }


def _framebuffer_bytes(card: str, card_model: str, facts: Facts) -> int | None:
    """What was measured, else what the model is sold with, else what may be granted (which may be more)."""
    if card in facts.framebuffer_bytes:
        return facts.framebuffer_bytes[card]
    model = find_model(card_model) if card_model else None
    return model.framebuffer_bytes if model is not None else facts.capacity_bytes.get(card)


def _add_grants(
    rows: dict[str, list[tuple[tuple[str, ...], Period, int | None]]],
    tally: SeatTally,
    facts: Facts,
    places: Places,
    seats: Mapping[SeatName, tuple[Period, ...]],
    sizes: Mapping[str, int],
    left: frozenset[SeatName],
) -> None:
    ownerless: set[PodName] = set()
    for (namespace, pod, container, card), periods in sorted(seats.items()):
        if card not in sizes:
            continue
        place = places.cards[card]
        grant = facts.grants.get((namespace, pod, container, card))
        profile = facts.mig_profiles.get((namespace, pod, container, card))
        granted, ratio = sizes[card], 1.0
        if grant is not None and profile is None:
            granted = round(sizes[card] * (1.0 if grant.framebuffer_ratio is None else grant.framebuffer_ratio))
            granted = granted if grant.framebuffer_bytes is None else grant.framebuffer_bytes
            ratio = 1.0 if grant.compute_ratio is None else grant.compute_ratio
        kind, workload = _workload(facts, namespace, pod)
        if kind == "Pod":
            ownerless.add((namespace, pod))
        labels = facts.labels.get((namespace, pod), {})
        cores = facts.cpu_cores.get((namespace, pod, container))
        memory = facts.memory_bytes.get((namespace, pod, container))
        server = facts.servers.get((namespace, pod, container), facts.servers.get((namespace, pod, "")))
        created_ms = facts.created_ms.get((namespace, pod))
        for number, period in enumerate(periods):
            is_last = number == len(periods) - 1
            is_over = not is_last or (namespace, pod, container, card) in left
            started_ms = period.first_ms
            if is_last and created_ms is not None and created_ms < period.first_ms:
                # Of several pods of one name the last one's birth is known; it can't be before the one before ended.
                started_ms = max(created_ms, periods[number - 1].last_ms if number else created_ms)
            row = {
                "cluster": places.cluster,
                "namespace": namespace,
                "pod": pod,
                "container": container,
                "node": place.node,
                "card": card,
                "card_model": place.card_model,
                "workload": workload,
                "workload_kind": kind,
                "framebuffer_bytes": str(sizes[card]),
                "framebuffer_granted_bytes": str(granted) if profile is None else "",
                "compute_granted_ratio": repr(ratio) if profile is None else "",
                "priority": facts.priorities.get((namespace, pod, container), ""),
                "server": server or "",
                "kv_cache_pool_bytes": "",
                "mig_profile": profile or "",
                "cpu_request_cores": "" if cores is None else repr(cores),
                "memory_request_bytes": "" if memory is None else str(memory),
                "replicas_min": "",
                "labels": json.dumps(dict(sorted(labels.items()))) if labels else "",
                "started_at": format_time(time_from_epoch_ms(started_ms)),
            }
            _add(rows, tally, ALLOCATIONS, row, period, period.last_ms if is_over else None)
            tally.grants += 1


def _left(
    facts: Facts,
    places: Places,
    seats: Mapping[SeatName, tuple[Period, ...]],
    seen: Mapping[str, Period],
    *,
    window_ms: int,
) -> frozenset[SeatName]:
    """Containers that are on their cards no more."""
    newest_ms = max((period.last_ms for period in seen.values()), default=0)
    named_ms: dict[str, int] = defaultdict(int)
    for seat, periods in seats.items():
        if seat not in facts.grants:
            node = places.cards[seat[3]].node
            named_ms[node] = max(named_ms[node], periods[-1].last_ms)
    left = set()
    for seat, periods in seats.items():
        last_ms, card = periods[-1].last_ms, seat[3]
        is_over = newest_ms - last_ms > SILENT_SECONDS * 1000
        if seat not in facts.grants:
            seen_ms = seen[card].last_ms
            spoken_ms = min(seen_ms, named_ms[places.cards[card].node])
            is_over |= seen_ms - last_ms > _ABSENT_MS or spoken_ms - last_ms >= _ABSENT_WINDOWS * window_ms
        if is_over:
            left.add(seat)
    return frozenset(left)


def _workload(facts: Facts, namespace: str, pod: str) -> tuple[str, str]:
    """Kind and name of the object at the top: of a Deployment's pod the Deployment and not its ReplicaSet."""
    kind, name = "Pod", pod
    for _ in range(_OWNERS_MAX):
        owner = facts.owners.get((namespace, kind, name))
        if owner is None:
            break
        kind, name = owner
    return kind, name


def _add(
    rows: dict[str, list[tuple[tuple[str, ...], Period, int | None]]],
    tally: SeatTally,
    table: Table,
    labels: Mapping[str, str],
    period: Period,
    ended_ms: int | None,
) -> None:
    row = tuple(labels[name] for name in table.keys)
    fault = fault_of_sighting(table, row)
    if fault is not None:
        tally.unreadable.append(fault)
        return
    rows.setdefault(table.name, []).append((row, period, ended_ms))


def _section(table: Table, found: list[tuple[tuple[str, ...], Period, int | None]]) -> Section:
    rows = LabelRows(table.keys, seed=0)
    numbers = np.array([rows.number_of(row) for row, _, _ in found], dtype=np.int32)
    met, place = np.unique(numbers, return_inverse=True)
    taken = rows.take(met)
    return Section(
        table=table,
        identities=taken.batch,
        identity=place.astype(np.int32),
        ts_ms=np.array([period.first_ms for _, period, _ in found], dtype=np.int64),
        measures=(),
        values=np.array(
            [
                [float(period.last_ms) for _, period, _ in found],
                [np.nan if ended_ms is None else float(ended_ms) for _, _, ended_ms in found],
            ]
        ),
        identity_set=taken,
    )


_TABLES = (ALLOCATIONS, INVENTORY_CARDS, INVENTORY_NODES, SERVERS)
