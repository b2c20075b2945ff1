"""Writes a fleet as a neutral trace folder: all of it or nothing.

Called by `exporter.synthetic.writer`, and by anybody who records history for a later replay. The same records give the
same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from exporter.trace.columns import measure_of
from exporter.trace.trace import CARD_USAGE_COLUMNS, CARD_USAGE_FILE, CARDS_FILE, PODS_FILE, USAGE_COLUMNS, USAGE_FILE
from exporter.trace.usage import Piece
from fleet.errors import Misconfigured, Unavailable
from fleet.inventory import Card, Grant, Node, WorkloadId
from fleet.schema import Measure

ROW_GROUP_ROWS = 1 << 18
_TIME = pa.timestamp("ms", tz="UTC")
_LABELS = pa.map_(pa.string(), pa.string())


def write_trace(
    folder: Path,
    *,
    cards: Sequence[Card],
    nodes: Sequence[Node],
    grants: Sequence[Grant],
    usage: Iterable[Piece],
    card_usage: Iterable[Piece] = (),
) -> None:
    """Writes a trace folder; it appears when it is complete.

    Args:
        folder: where; must not exist or be empty.
        nodes: nodes of the cards, for their CPU and memory.
        grants: one per pod, card and period.
        usage: rows in order of time; keys number `grants` (any period of the pod and card).
        card_usage: rows in order of time; keys number `cards`. No file is written where there are none.

    Raises:
        Misconfigured: the folder holds something.
        Unavailable: the folder can't be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Misconfigured(f"cannot write trace {folder}: it holds something already; name an empty or new folder")
    scratch = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        _write_table(scratch / CARDS_FILE, _cards_table(cards, nodes))
        _write_table(scratch / PODS_FILE, _pods_table(grants))
        pods, card_ids = [grant.pod for grant in grants], [str(grant.card) for grant in grants]
        measures = tuple(m for column in USAGE_COLUMNS if (m := measure_of(column.name)) is not None)
        _write_pieces(scratch / USAGE_FILE, usage, {"pod": pods, "card": card_ids}, measures)
        measures = tuple(m for column in CARD_USAGE_COLUMNS if (m := measure_of(column.name)) is not None)
        names = {"card": [str(card.card) for card in cards]}
        _write_pieces(scratch / CARD_USAGE_FILE, card_usage, names, measures, is_optional=True)
        if folder.exists():
            folder.rmdir()
        scratch.rename(folder)
    except OSError as exc:
        shutil.rmtree(scratch, ignore_errors=True)
        raise Unavailable(f"cannot write trace {folder}: {exc}") from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def label_workload(folder: Path, workload: WorkloadId, key: str, value: str) -> None:
    """Labels all pods of a workload, as its team would; a replay that goes on reports it from then on.

    Raises:
        Unavailable: the folder can't be written.
    """
    try:
        table = pq.read_table(folder / PODS_FILE)
        owners = zip(*(table[name].to_pylist() for name in ("namespace", "workload_kind", "workload")), strict=True)
        labels = [
            [*pairs, (key, value)] if "/".join(owner) == workload else pairs
            for owner, pairs in zip(owners, table["labels"].to_pylist(), strict=True)
        ]
        place = table.schema.get_field_index("labels")
        _write_table(folder / PODS_FILE, table.set_column(place, table.schema.field(place), pa.array(labels, _LABELS)))
    except OSError as exc:
        raise Unavailable(f"cannot write trace {folder}: {exc}") from exc


def _write_pieces(
    path: Path,
    pieces: Iterable[Piece],
    names: dict[str, list[str]],
    measures: tuple[Measure, ...],
    *,
    is_optional: bool = False,
) -> None:
    """Writes rows; the columns are those of the first piece and the four that every usage file has."""
    writer: pq.ParquetWriter | None = None
    encoded = {name: _encoded(values) for name, values in names.items()}
    required = () if is_optional else measures[:2] + tuple(m for m in measures if m in _ALWAYS)
    chosen: tuple[Measure, ...] = ()
    schema = pa.schema([])
    try:
        for piece in pieces:
            if writer is None:
                chosen = tuple(m for m in measures if m in piece.values or m in required)
                schema = _usage_schema(names, chosen)
                writer = pq.ParquetWriter(path, schema, compression="zstd", store_schema=False)
            writer.write_table(_piece_table(piece, encoded, chosen, schema), row_group_size=ROW_GROUP_ROWS)
        if writer is None and not is_optional:
            schema = _usage_schema(names, tuple(m for m in measures if m in required))
            _write_table(path, schema.empty_table())
    finally:
        if writer is not None:
            writer.close()


_ALWAYS = (Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.FRAMEBUFFER_USED, Measure.KV_CACHE_USAGE)


def _usage_schema(names: dict[str, list[str]], measures: tuple[Measure, ...]) -> pa.Schema:
    return pa.schema(
        [("ts", _TIME), *((name, pa.string()) for name in names), *((m.value, _measure_type(m)) for m in measures)]
    )


def _measure_type(measure: Measure) -> pa.DataType:
    if measure.value.endswith("_bytes"):
        return pa.int64()
    # 32 bits hold seven digits of a ratio, and halve the file.
    return pa.float32() if measure.value.endswith("_ratio") else pa.float64()


def _piece_table(
    piece: Piece,
    encoded: dict[str, tuple[np.ndarray[Any, np.dtype[np.int32]], pa.Array]],
    measures: tuple[Measure, ...],
    schema: pa.Schema,
) -> pa.Table:
    columns: list[pa.Array] = [pa.array(piece.ts_ms, pa.int64()).cast(_TIME)]
    for numbers, dictionary in encoded.values():
        indices = pa.array(numbers[piece.keys], pa.int32())
        columns.append(pa.DictionaryArray.from_arrays(indices, dictionary).cast(pa.string()))
    for measure in measures:
        kind = _measure_type(measure)
        values = piece.values.get(measure)
        if values is None:
            columns.append(pa.nulls(len(piece.ts_ms), kind))
            continue
        missing = np.isnan(values)
        if pa.types.is_integer(kind):
            columns.append(pa.array(np.where(missing, 0, values).astype(np.int64), kind, mask=missing))
        else:
            columns.append(pa.array(values, pa.float64(), mask=missing).cast(kind))
    return pa.Table.from_arrays(columns, schema=schema)


def _encoded(values: list[str]) -> tuple[np.ndarray[Any, np.dtype[np.int32]], pa.Array]:
    unique: dict[str, int] = {}
    numbers = np.array([unique.setdefault(value, len(unique)) for value in values], np.int32)
    return numbers, pa.array(list(unique), pa.string())


def _write_table(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, compression="zstd", store_schema=False)


def _cards_table(cards: Sequence[Card], nodes: Sequence[Node]) -> pa.Table:
    by_name = {node.node: node for node in nodes}
    columns: list[tuple[str, pa.DataType, Callable[[Card], Any]]] = [
        ("card", pa.string(), lambda card: card.card),
        ("card_model", pa.string(), lambda card: card.card_model),
        ("framebuffer_bytes", pa.int64(), lambda card: card.framebuffer_bytes),
        ("node", pa.string(), lambda card: card.node),
        ("cluster", pa.string(), lambda card: card.cluster),
        ("mig_mode", pa.bool_(), lambda card: card.mig_mode),
        ("owned", pa.bool_(), lambda card: card.is_owned),
        ("node_cpu_cores", pa.float64(), lambda card: getattr(by_name.get(card.node), "cpu_cores", None)),
        ("node_memory_bytes", pa.int64(), lambda card: getattr(by_name.get(card.node), "memory_bytes", None)),
    ]
    return pa.table({name: pa.array([value(card) for card in cards], kind) for name, kind, value in columns})


def _pods_table(grants: Sequence[Grant]) -> pa.Table:
    texts = ("pod", "container", "namespace", "workload", "workload_kind", "cluster", "node", "card", "card_model")
    fields: list[tuple[str, pa.DataType]] = [
        *((name, pa.string()) for name in texts),
        ("framebuffer_bytes", pa.int64()),
        ("framebuffer_granted_bytes", pa.int64()),
        ("compute_granted_ratio", pa.float64()),
        ("priority", pa.string()),
        ("server", pa.string()),
        ("kv_cache_pool_bytes", pa.int64()),
        ("started_at", _TIME),
        ("ended_at", _TIME),
        ("mig_profile", pa.string()),
        ("cpu_request_cores", pa.float64()),
        ("memory_request_bytes", pa.int64()),
        ("labels", _LABELS),
        ("replicas_min", pa.int64()),
    ]
    return pa.table({name: pa.array([_field(grant, name) for grant in grants], kind) for name, kind in fields})


def _field(grant: Grant, name: str) -> Any:
    value = getattr(grant, name)
    return list(value) if name == "labels" else value
