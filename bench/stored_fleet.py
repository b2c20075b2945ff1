"""A large fleet written straight into a data folder, as the rollup would have left it, without receiver and bus.

`store_fleet(folder, cards)` is the load of `web-page-time`. Demand is that of the second fleet (`tests/recommender`),
in windows of an hour over a week; an eighth of the cards is granted to nobody, a quarter of the services rests, and
nodes hold eight cards of one model. The data folder's clock is set to the end of that week.

`store_minutes(folder, cards)` is the load of `scale-workloads`: rows of pods and of cards per minute over four weeks,
one merged file per table and day as the upkeep leaves it. Cards beyond a thousand repeat the first thousand under names
of their own. `store_applied` makes it the load of `scale-harm`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from enforcer.backend import Move
from enforcer.dialect import SeatSlice
from enforcer.record.journal import StageRecord
from fleet.data_folder import open_data_folder
from fleet.decisions import PlacedSlice
from fleet.inventory import Card, CardId, CardModelName, Grant
from fleet.schema import (
    ALLOCATIONS,
    CARD_IDENTITY,
    CARD_USAGE,
    INVENTORY_CARDS,
    INVENTORY_NODES,
    POD_USAGE,
    SLICE_IDENTITY,
    USAGE_MEASURES,
    Measure,
    Merge,
    Table,
)
from fleet.usage import Float32, History
from gputide.container.plans import journal, plan_store
from gputide.replay.clock import ReplayClock, write_replay_clock
from pipeline.warehouse.ddl import arrow_schema
from pipeline.warehouse.warehouse import AppendName, Part
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.recommender.second_fleet import SINCE, second_fleet

CLUSTER = "second"
"""Name of the cluster, as the second fleet calls it."""
DAYS, STEP_SECONDS = 7, 3600
CARDS_PER_PART = 2500
CARDS_PER_NODE = 8
TEAMS = 240
FREE_EVERY = 8
"""Of so many cards one is granted to nobody."""
RESTING_EVERY = 4
"""Of so many services one does nothing any more."""
MINUTE_DAYS, MINUTE_SECONDS = 28, 60
MINUTE_CARDS = 1000
"""Cards whose minutes are made; further ones repeat them."""
CARDS_PER_PIECE = 347
"""Cards in one row group of a merged day: half a million rows."""
_MODEL_WORDS = {"NVIDIA L40S": "l40s", "NVIDIA H100 80GB HBM3": "h100"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _FleetPart:
    """Some thousand cards: the cards, the grants in the order of the rows, and each measure by row and hour."""

    cards: tuple[Card, ...]
    grants: tuple[Grant, ...]
    history: History


def store_fleet(path: Path, cards: int, days: int = DAYS) -> None:
    """Write a fleet into a new data folder and set its clock.

    Args:
        path: the folder, which is made.
        cards: cards, at least 16.
    """
    folder = open_data_folder(path, create=True)
    with closing(DuckdbWarehouse(folder.warehouse)) as warehouse:
        for number, start in enumerate(range(0, cards, CARDS_PER_PART)):
            made = _fleet_part(number, min(CARDS_PER_PART, cards - start), days)
            warehouse.append((AppendName(source="stored", start=number, end=number + 1),), _parts(made, days))
    now = SINCE + timedelta(days=days)
    write_replay_clock(folder, ReplayClock(now=now, trace="stored-fleet", cluster=CLUSTER))


def store_minutes(path: Path, cards: int, days: int = MINUTE_DAYS) -> None:
    """Write days of minutes of a fleet into a new data folder and set its clock.

    Args:
        path: the folder, which is made.
        cards: cards, each granted to one pod.
    """
    folder = open_data_folder(path, create=True)
    made = second_fleet(5000, min(cards, MINUTE_CARDS), days, step_seconds=MINUTE_SECONDS)
    grant_of = {grant.card: grant for grant in made.inventory.grants}
    base = [grant_of[key.card] for key in made.slices.keys]
    seats = np.random.default_rng(cards).permutation(cards)
    grants = []
    for place, seat in enumerate(seats):
        number, grant = place // MINUTE_CARDS, base[place % MINUTE_CARDS]
        # A pod's node says nothing of its namespace.
        card = Card(
            card=CardId(f"GPU-{seat:08d}"), card_model=grant.card_model, framebuffer_bytes=grant.framebuffer_bytes,
            node=f"node-{seat // CARDS_PER_NODE:05d}", cluster=CLUSTER,
        )  # fmt: skip
        grants.append(_renamed(grant, number, card))
    first_ms = round(SINCE.timestamp() * 1000)
    end = SINCE + timedelta(days=days)
    with closing(DuckdbWarehouse(folder.warehouse)) as warehouse:
        for day in range(days):
            parts: list[Part] = []
            if day == days - 1:
                known = [Card(card=grant.card, card_model=grant.card_model, framebuffer_bytes=grant.framebuffer_bytes,
                              node=grant.node, cluster=CLUSTER) for grant in grants]  # fmt: skip
                parts += _sighted(grants, known, first_ms, round(end.timestamp() * 1000))
            date = (SINCE + timedelta(days=day)).date().isoformat()
            for table, names in ((POD_USAGE, SLICE_IDENTITY), (CARD_USAGE, CARD_IDENTITY)):
                order = sorted(range(cards), key=lambda place: [getattr(grants[place], name) for name in names])
                pieces = [order[start : start + CARDS_PER_PIECE] for start in range(0, cards, CARDS_PER_PIECE)]
                rows = tuple(_minutes(table, names, made, grants, piece, day) for piece in pieces)
                parts.append(Part(table=table, date=date, cluster=CLUSTER, rows=rows))
            warehouse.append((AppendName(source="stored", start=day, end=day + 1),), parts)
    write_replay_clock(folder, ReplayClock(now=end, trace="stored-fleet", cluster=CLUSTER))


def store_applied(path: Path, plan_text: str) -> None:
    """Writes into a data folder's audit log that all stages of a plan were applied an hour after the fleet began.

    Args:
        plan_text: what `plan make --format json` prints.
    """
    folder = open_data_folder(path, create=False)
    plan, at = plan_store(folder).get(json.loads(plan_text)["plan_id"]), SINCE + timedelta(hours=1)
    kept = journal(folder)
    stages = [stage for stage in plan.stages if stage.recommendations]
    held = sorted(card.card for card in plan.placement)
    kept.write(
        plan.plan_id, at, "begin", stages=[stage.stage for stage in stages], by="bench", cards_granted=held,
        cluster=plan.cluster,
    )  # fmt: skip
    recommendation_of = {pod: one.id for one in plan.recommendations for pod in one.pods}
    seats: dict[str, list[tuple[PlacedSlice, CardId]]] = {}
    for card in plan.placement:
        for part in card.slices:
            seats.setdefault(recommendation_of.get(part.pod_id, ""), []).append((part, card.card))
    for stage in stages:
        moves = [
            Move(
                namespace=part.namespace, pod=part.pod, workload=part.workload, recommendation=name,
                old=(seat := (SeatSlice(container=part.container, card=card),)), new=seat,
            )
            for name in stage.recommendations for part, card in seats.get(name, ())
        ]  # fmt: skip
        kept.begin_stage(StageRecord(plan_id=plan.plan_id, stage=stage.stage, moves=moves), at)
        kept.write(plan.plan_id, at, "promoted", stage=stage.stage)
    kept.write(plan.plan_id, at, "end")


def _minutes(
    table: Table, names: tuple[str, ...], made: History, grants: list[Grant], places: list[int], day: int
) -> pa.Table:
    per_day = 86_400 // MINUTE_SECONDS
    taken = np.array(places) % MINUTE_CARDS
    window = slice(day * per_day, (day + 1) * per_day)
    planes = {measure: values[taken, window] for measure, values in made.slices.mean.items()}
    first_ms = round((SINCE + timedelta(days=day)).timestamp() * 1000)
    return _usage(table, names, planes, [grants[place] for place in places], first_ms, MINUTE_SECONDS)


def _fleet_part(number: int, cards: int, days: int) -> _FleetPart:
    """One part under names of its own."""
    granted = cards - cards // FREE_EVERY
    history = second_fleet(5000 + number, granted, days, step_seconds=STEP_SECONDS)
    models = [(card.card_model, card.framebuffer_bytes) for card in history.inventory.cards]
    rng = np.random.default_rng(number)
    models += [models[int(place)] for place in rng.integers(0, len(models), cards - granted)]
    hosts: dict[CardModelName, int] = {}
    named: list[Card] = []
    # Free cards stand among the granted ones, as they do where pods come and go.
    for place in rng.permutation(len(models)):
        model, capacity = models[int(place)]
        seat = hosts[model] = hosts.get(model, -1) + 1
        name = f"GPU-{int(rng.integers(2**32)):08x}-{number:03d}-{int(place):05d}"
        node = f"{_MODEL_WORDS[model]}-{number:03d}-{seat // CARDS_PER_NODE:04d}"
        named.append(Card(card=CardId(name), card_model=model, framebuffer_bytes=capacity, node=node, cluster=CLUSTER))
    by_place = {int(card.card.rpartition("-")[2]): card for card in named}
    grant_of = {grant.card: grant for grant in history.inventory.grants}
    rows = [grant_of[key.card] for key in history.slices.keys]
    grants = tuple(_renamed(grant, number, by_place[place]) for place, grant in enumerate(rows))
    resting = np.array([_service(grant) % RESTING_EVERY == 0 for grant in rows])
    for measure, values in history.slices.mean.items():
        if measure.value.endswith("active_ratio") or measure.value.startswith("duty"):
            values[resting] = np.where(np.isfinite(values[resting]), 0.0, np.nan)
    return _FleetPart(cards=tuple(named), grants=grants, history=history)


def _service(grant: Grant) -> int:
    return int(grant.workload.rpartition("-")[2])


def _renamed(grant: Grant, number: int, card: Card) -> Grant:
    return replace(
        grant,
        namespace=f"team-{(number * 7 + _service(grant)) % TEAMS:03d}",
        pod=f"p{number:03d}-{grant.pod}",
        workload=f"p{number:03d}-{grant.workload}",
        card=card.card,
        node=card.node,
    )


def _parts(made: _FleetPart, days: int) -> Iterator[Part]:
    end_ms = round((SINCE + timedelta(days=days)).timestamp() * 1000)
    first_ms = round(SINCE.timestamp() * 1000)
    yield from _sighted(made.grants, made.cards, first_ms, end_ms)
    for day in range(days):
        date = (SINCE + timedelta(days=day)).date().isoformat()
        hours = slice(day * 24, (day + 1) * 24)
        planes = {measure: values[:, hours] for measure, values in made.history.slices.mean.items()}
        rows = _usage(POD_USAGE, SLICE_IDENTITY, planes, made.grants, first_ms + day * 86_400_000, STEP_SECONDS)
        yield Part(table=POD_USAGE, date=date, cluster=CLUSTER, rows=(rows,))


def _sighted(grants: Sequence[Grant], cards: Sequence[Card], first_ms: int, end_ms: int) -> Iterator[Part]:
    last_date = datetime.fromtimestamp((end_ms - 1) / 1000, UTC).date().isoformat()
    for table, rows in (
        (ALLOCATIONS, [_grant_labels(grant) for grant in grants]),
        (INVENTORY_CARDS, [_card_labels(card) for card in cards]),
        (INVENTORY_NODES, [{"node": node} for node in sorted({card.node for card in cards})]),
    ):
        yield Part(table=table, date=last_date, cluster=CLUSTER, rows=(_sightings(table, rows, first_ms, end_ms),))


def _grant_labels(grant: Grant) -> dict[str, str]:
    pool = grant.kv_cache_pool_bytes
    return {
        "namespace": grant.namespace, "pod": grant.pod, "container": grant.container, "node": grant.node,
        "card": grant.card, "card_model": grant.card_model, "workload": grant.workload,
        "workload_kind": grant.workload_kind, "framebuffer_bytes": str(grant.framebuffer_bytes),
        "framebuffer_granted_bytes": str(grant.framebuffer_granted_bytes), "compute_granted_ratio": "1",
        "priority": grant.priority.value, "server": grant.server or "",
        "kv_cache_pool_bytes": "" if pool is None else str(pool),
        "labels": json.dumps({"app": grant.workload}), "started_at": grant.started_at.isoformat(),
    }  # fmt: skip


def _card_labels(card: Card) -> dict[str, str]:
    return {
        "node": card.node, "card": card.card, "card_model": card.card_model,
        "framebuffer_bytes": str(card.framebuffer_bytes),
    }  # fmt: skip


def _sightings(table: Table, rows: list[dict[str, str]], first_ms: int, last_ms: int) -> pa.Table:
    texts = [{**dict.fromkeys(table.keys, ""), "cluster": CLUSTER, **row} for row in rows]
    arrays: list[pa.Array] = [pa.array([row[name] for row in texts]).dictionary_encode() for name in table.keys]
    arrays += [pa.array([first_ms] * len(rows)), pa.array([last_ms] * len(rows))]
    arrays.append(pa.array([None] * len(rows), pa.int64()))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(table))


def _usage(
    table: Table,
    names: Sequence[str],
    planes: Mapping[Measure, Float32],
    grants: Sequence[Grant],
    first_ms: int,
    step_seconds: int,
) -> pa.Table:
    """One day's windows: every step of every grant in which anything was collected."""
    there = np.logical_or.reduce([np.isfinite(values) for values in planes.values()])
    rows, steps = np.nonzero(there)
    columns: dict[str, pa.Array] = {
        "window_start": pa.array(first_ms + steps.astype(np.int64) * (step_seconds * 1000)),
        "window_seconds": pa.array(np.full(len(rows), step_seconds, np.int64)),
        "samples": pa.array(np.ones(len(rows), np.int64)),
    }
    for name in names:
        words = pa.array([getattr(grant, name) for grant in grants]).dictionary_encode()
        columns[name] = words.take(pa.array(rows.astype(np.int64)))
    for column in USAGE_MEASURES[table.name]:
        values = planes.get(column.measure)
        taken: NDArray[np.float64] = (
            np.full(len(rows), np.nan) if values is None else values[rows, steps].astype(np.float64)
        )
        is_missing = ~np.isfinite(taken)
        whole = np.floor(np.nan_to_num(taken) * column.scale + 1e-6).astype(np.int64)
        name = column.measure.value
        columns[f"{name}_count"] = pa.array((~is_missing).astype(np.int64))
        columns[f"{name}_sum"] = pa.array(whole, mask=is_missing)
        columns[f"{name}_max"] = pa.array(whole, mask=is_missing)
    schema = arrow_schema(table)
    for found in table.columns:
        if found.merge is Merge.HISTOGRAM:
            columns[found.name] = pa.nulls(len(rows), schema.field(found.name).type)
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
