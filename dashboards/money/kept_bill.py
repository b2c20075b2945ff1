"""Keeps what providers billed for nodes: one Parquet file in the data folder, replaced as a whole.

Amounts are texts, so that no digit is lost. Written by `gputide cost bill import`; read by `cost bill show`, `verify`
and the weekly report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.durable import write_durably
from fleet.errors import Corrupt
from fleet.money.bill import BilledDay, BillPart, BillScope, ChargeKind, NodeName

_SCHEMA = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("cluster", pa.string()),
        pa.field("node", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("kind", pa.string()),
        pa.field("billed", pa.string()),
        pa.field("effective", pa.string()),
    ]
)
_PARTS = b"gputide.bill"


def read_bill(path: Path) -> tuple[BillPart, ...]:
    """What was imported so far, by scope and billing period; empty where nothing was.

    Raises:
        Corrupt: the file can't be read.
    """
    if not path.exists():
        return ()
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
        parts = json.loads((table.schema.metadata or {})[_PARTS])
        days: list[list[BilledDay]] = [[] for _ in parts]
        for row in table.to_pylist():
            days[row["part"]].append(_day(row))
        return tuple(_part(said, own) for said, own in zip(parts, days, strict=True))
    except (OSError, pa.ArrowException, KeyError, IndexError, TypeError, ValueError, ArithmeticError) as exc:
        why = " ".join(str(exc).split())[:200]
        raise Corrupt(f"cannot read {path}: {why}; import the bills again after removing it") from exc


def replaced(kept: Iterable[BillPart], new: Sequence[BillPart]) -> tuple[BillPart, ...]:
    """What is kept with new parts in the place of those of the same scope and billing period, sorted by these."""
    found = {(part.scope, part.period): part for part in (*kept, *new)}
    return tuple(found[key] for key in sorted(found))


def write_bill(path: Path, parts: Sequence[BillPart]) -> None:
    """Keep these parts, and no others.

    Raises:
        Corrupt: the storage can't take it; what was kept before is as it was.
    """
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for number, part in enumerate(parts):
        for one in part.days:
            said = (
                number, one.node.cluster, one.node.node, one.day, one.kind.value, str(one.billed), str(one.effective),
            )  # fmt: skip
            for name, value in zip(_SCHEMA.names, said, strict=True):
                columns[name].append(value)
    schema = _SCHEMA.with_metadata({_PARTS: json.dumps([_said(part) for part in parts])})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), sink, compression="zstd")
    write_durably(path, sink.getvalue().to_pybytes())


def _said(part: BillPart) -> dict[str, Any]:
    return {
        "scope": list(part.scope),
        "period": part.period.isoformat(),
        "currency": part.currency,
        "covered": [day.isoformat() for day in sorted(part.covered)],
        "invoices": list(part.invoices),
    }


def _part(said: dict[str, Any], days: Sequence[BilledDay]) -> BillPart:
    return BillPart(
        scope=BillScope(*said["scope"]),
        period=date.fromisoformat(said["period"]),
        currency=said["currency"],
        covered=frozenset(map(date.fromisoformat, said["covered"])),
        invoices=tuple(said["invoices"]),
        days=tuple(days),
    )


def _day(row: dict[str, Any]) -> BilledDay:
    return BilledDay(
        node=NodeName(row["cluster"], row["node"]),
        day=row["day"],
        kind=ChargeKind(row["kind"]),
        billed=Decimal(row["billed"]),
        effective=Decimal(row["effective"]),
    )
