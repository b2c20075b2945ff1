"""What a trace says stands there: cards, nodes and grants.

Called by `exporter.trace.trace`. The records carry ends of grants as the file has them; who may know them when is the
trace's to say.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from exporter.trace.columns import NO_TIME, Shape, TraceColumn, check_present, check_schema, numbers, times_ms
from exporter.trace.usage import opened
from fleet.errors import Corrupt
from fleet.inventory import Card, CardId, CardModelName, Grant, Node, Priority
from fleet.object_names import KIND_WORDS, LABEL_WORDS, NAME_WORDS, is_kind, is_label, is_name

CARDS_COLUMNS: tuple[TraceColumn, ...] = (
    TraceColumn(name="card", shape=Shape.TEXT),
    TraceColumn(name="card_model", shape=Shape.TEXT),
    TraceColumn(name="framebuffer_bytes", shape=Shape.NUMBER, value_min=1.0, value_max=2.0**44),
    TraceColumn(name="node", shape=Shape.TEXT),
    TraceColumn(name="cluster", shape=Shape.TEXT),
    TraceColumn(name="mig_mode", shape=Shape.TRUTH, is_required=False, is_nullable=True),
    TraceColumn(name="owned", shape=Shape.TRUTH, is_required=False, is_nullable=True),
    TraceColumn(name="node_cpu_cores", shape=Shape.NUMBER, is_required=False, is_nullable=True),
    TraceColumn(name="node_memory_bytes", shape=Shape.NUMBER, is_required=False, is_nullable=True),
)
"""Columns of `cards.parquet`."""

PODS_COLUMNS: tuple[TraceColumn, ...] = (
    *(
        TraceColumn(name=name, shape=Shape.TEXT)
        for name in ("pod", "container", "namespace", "workload", "workload_kind", "cluster", "node", "card")
    ),
    TraceColumn(name="card_model", shape=Shape.TEXT),
    TraceColumn(name="framebuffer_bytes", shape=Shape.NUMBER, value_min=1.0, value_max=2.0**44),
    TraceColumn(name="framebuffer_granted_bytes", shape=Shape.NUMBER, value_max=2.0**44),
    TraceColumn(name="compute_granted_ratio", shape=Shape.NUMBER, value_max=1.0),
    TraceColumn(name="priority", shape=Shape.TEXT),
    TraceColumn(name="server", shape=Shape.TEXT, is_nullable=True),
    TraceColumn(name="kv_cache_pool_bytes", shape=Shape.NUMBER, is_required=False, is_nullable=True, value_max=2.0**44),
    TraceColumn(name="started_at", shape=Shape.TIME),
    TraceColumn(name="ended_at", shape=Shape.TIME, is_nullable=True),
    TraceColumn(name="mig_profile", shape=Shape.TEXT, is_required=False, is_nullable=True),
    TraceColumn(name="cpu_request_cores", shape=Shape.NUMBER, is_required=False, is_nullable=True),
    TraceColumn(name="memory_request_bytes", shape=Shape.NUMBER, is_required=False, is_nullable=True),
    TraceColumn(name="labels", shape=Shape.LABELS, is_required=False, is_nullable=True),
    TraceColumn(name="replicas_min", shape=Shape.NUMBER, is_required=False, is_nullable=True, value_max=1e6),
)
"""Columns of `pods.parquet`."""

_NAMES = {
    "pod": (is_name, NAME_WORDS),
    "workload": (is_name, NAME_WORDS),
    "node": (is_name, NAME_WORDS),
    "namespace": (is_label, LABEL_WORDS),
    "container": (is_label, LABEL_WORDS),
    "workload_kind": (is_kind, KIND_WORDS),
}
"""Columns of `PODS_COLUMNS` that hold names of Kubernetes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGrants:
    """All that one pod was granted on one card, period by period.

    Attributes:
        pod: the pod, as usage rows name it.
        grants: one grant per period, in order of time; periods don't overlap.
    """

    pod: str
    card: CardId
    grants: tuple[Grant, ...]


def read_cards(path: Path) -> tuple[tuple[Card, ...], tuple[Node, ...]]:
    """Reads `cards.parquet`; returns cards sorted by id, nodes sorted by name.

    Raises:
        Corrupt: a column or value is wrong, or a card stands there twice.
    """
    cards: dict[str, Card] = {}
    nodes: dict[str, Node] = {}
    for row, fields in enumerate(_rows(path, CARDS_COLUMNS)):
        if fields["card"] in cards:
            raise Corrupt(f"cannot read {path}: column card is {fields['card']!r} again in row {row}")
        cards[fields["card"]] = Card(
            card=CardId(fields["card"]),
            card_model=CardModelName(fields["card_model"]),
            framebuffer_bytes=int(fields["framebuffer_bytes"]),
            node=fields["node"],
            cluster=fields["cluster"],
            mig_mode=fields["mig_mode"],
            is_owned=fields["owned"],
        )
        nodes.setdefault(
            fields["node"],
            Node(
                node=fields["node"],
                cluster=fields["cluster"],
                cpu_cores=fields["node_cpu_cores"],
                memory_bytes=_whole(fields["node_memory_bytes"]),
            ),
        )
    return tuple(cards[key] for key in sorted(cards)), tuple(nodes[key] for key in sorted(nodes))


def read_grants(path: Path, cards: Sequence[Card]) -> tuple[PairGrants, ...]:
    """Reads `pods.parquet`; returns pairs that are sorted by pod and card.

    Args:
        cards: every known card; model, node and framebuffer of a grant's card are taken from here.

    Raises:
        Corrupt: a column or value is wrong, a card is unknown, or two periods of a pod on a card overlap.
    """
    known = {str(card.card): card for card in cards}
    pairs: dict[tuple[str, str], list[tuple[int, Grant]]] = {}
    for row, fields in enumerate(_rows(path, PODS_COLUMNS)):
        card = known.get(fields["card"])
        if card is None:
            raise Corrupt(
                f"cannot read {path}: column card is {fields['card']!r} in row {row}, a card that cards.parquet does "
                "not list"
            )
        pairs.setdefault((fields["pod"], fields["card"]), []).append((row, _grant(path, row, fields, card)))
    return tuple(
        PairGrants(pod=pod, card=CardId(card_id), grants=_in_order(path, pairs[pod, card_id]))
        for pod, card_id in sorted(pairs)
    )


def _in_order(path: Path, found: list[tuple[int, Grant]]) -> tuple[Grant, ...]:
    found.sort(key=lambda entry: entry[1].started_at)
    for (_, before), (row, after) in itertools.pairwise(found):
        if before.ended_at is None or after.started_at < before.ended_at or after.started_at == before.started_at:
            raise Corrupt(
                f"cannot read {path}: row {row} grants pod {after.pod!r} card {after.card!r} from "
                f"{after.started_at.isoformat()} on, within a period of another row; periods must not overlap"
            )
    return tuple(grant for _, grant in found)


def _grant(path: Path, row: int, fields: Mapping[str, Any], card: Card) -> Grant:
    try:
        priority = Priority(fields["priority"])
    except ValueError as exc:
        raise Corrupt(
            f"cannot read {path}: column priority is {fields['priority']!r} in row {row}; must be one of "
            f"{', '.join(Priority)}"
        ) from exc
    started_at: datetime = fields["started_at"]
    ended_at: datetime | None = fields["ended_at"]
    if ended_at is not None and ended_at < started_at:
        raise Corrupt(
            f"cannot read {path}: column ended_at is {ended_at.isoformat()} in row {row}; must not lie before "
            f"started_at {started_at.isoformat()}"
        )
    return Grant(
        cluster=card.cluster,
        namespace=fields["namespace"],
        pod=fields["pod"],
        container=fields["container"],
        workload=fields["workload"],
        workload_kind=fields["workload_kind"],
        node=card.node,
        card=card.card,
        card_model=card.card_model,
        framebuffer_bytes=card.framebuffer_bytes,
        framebuffer_granted_bytes=int(fields["framebuffer_granted_bytes"]),
        compute_granted_ratio=fields["compute_granted_ratio"],
        priority=priority,
        server=fields["server"],
        kv_cache_pool_bytes=_whole(fields["kv_cache_pool_bytes"]),
        mig_profile=fields["mig_profile"],
        cpu_request_cores=fields["cpu_request_cores"],
        memory_request_bytes=_whole(fields["memory_request_bytes"]),
        labels=tuple(sorted((fields["labels"] or {}).items())),
        replicas_min=_whole(fields["replicas_min"]),
        started_at=started_at,
        ended_at=ended_at,
    )


def _rows(path: Path, columns: tuple[TraceColumn, ...]) -> list[dict[str, Any]]:
    """All rows of a small file, each value checked; a column that the file lacks is None everywhere."""
    with opened(path) as file:
        check_schema(path, file.schema_arrow, columns)
        names = set(file.schema_arrow.names)
        table = file.read(columns=[column.name for column in columns if column.name in names])
    values: dict[str, Sequence[Any]] = {}
    for column in columns:
        if column.name not in names:
            values[column.name] = [None] * table.num_rows
            continue
        given = table.column(column.name)
        if column.shape is Shape.NUMBER:
            floats = numbers(path, column, given, 0)
            values[column.name] = [None if np.isnan(value) else float(value) for value in floats]
        elif column.shape is Shape.TIME:
            values[column.name] = [_time(int(value)) for value in times_ms(path, column, given, 0)]
        else:
            check_present(path, column, given, 0)
            values[column.name] = [_plain(value) for value in given.to_pylist()]
            _refuse_empty(path, column, values[column.name])
            if columns is PODS_COLUMNS and column.name in _NAMES:
                _refuse_other_names(path, column.name, values[column.name])
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _refuse_empty(path: Path, column: TraceColumn, values: Sequence[Any]) -> None:
    if not column.is_nullable and "" in values:
        raise Corrupt(f"cannot read {path}: column {column.name} is empty in row {values.index('')}")


def _refuse_other_names(path: Path, column: str, values: Sequence[str]) -> None:
    is_valid, words = _NAMES[column]
    wrong = next((text for text in dict.fromkeys(values) if not is_valid(text)), None)
    if wrong is not None:
        raise Corrupt(
            f"cannot read {path}: column {column} is {wrong[:100]!r} in row {values.index(wrong)}, which is no "
            f"name in Kubernetes: {words}"
        )


def _plain(value: Any) -> Any:
    """A map comes as pairs; a text without characters says as little as null where null is allowed."""
    if isinstance(value, list):
        return {str(key): text if isinstance(text, str) else json.dumps(text) for key, text in value}
    return value


def _time(value_ms: int) -> datetime | None:
    return None if value_ms == NO_TIME else datetime.fromtimestamp(value_ms / 1000, UTC)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
