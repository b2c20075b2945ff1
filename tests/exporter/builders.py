"""Small traces, as tests want to tell them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.inventory import Grant, Priority
from fleet.units import GIB
from fleet.usage import SliceKey

T0 = datetime(2026, 1, 5, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def card(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "card": name,
        "card_model": "NVIDIA A10",
        "framebuffer_bytes": 24 * GIB,
        "node": "node-a",
        "cluster": "c1",
        **changes,
    }


def pod(name: str, on: str, **changes: Any) -> dict[str, Any]:
    return {
        "pod": name,
        "container": "server",
        "namespace": "team",
        "workload": name.rsplit("-", 1)[0],
        "workload_kind": "Deployment",
        "cluster": "c1",
        "node": "node-a",
        "card": on,
        "card_model": "NVIDIA A10",
        "framebuffer_bytes": 24 * GIB,
        "framebuffer_granted_bytes": 24 * GIB,
        "compute_granted_ratio": 1.0,
        "priority": "high",
        "server": "triton",
        "kv_cache_pool_bytes": None,
        "started_at": T0,
        "ended_at": None,
        **changes,
    }


def row(minutes: float, name: str, on: str, **changes: Any) -> dict[str, Any]:
    return {
        "ts": at(minutes),
        "pod": name,
        "card": on,
        "duty_cycle_ratio": 0.5,
        "sm_active_ratio": 0.2,
        "framebuffer_used_bytes": 4 * GIB,
        "kv_cache_usage_ratio": None,
        **changes,
    }


def grant_of(key: SliceKey, **changes: Any) -> Grant:
    """The grant of a slice, of a whole card of 24 GiB unless told."""
    granted: dict[str, Any] = {
        "workload": key.pod,
        "workload_kind": "Deployment",
        "framebuffer_bytes": 24 * GIB,
        "framebuffer_granted_bytes": 24 * GIB,
        "compute_granted_ratio": 1.0,
        "priority": Priority.NORMAL,
        "started_at": T0,
        **changes,
    }
    return Grant(
        cluster=key.cluster,
        namespace=key.namespace,
        pod=key.pod,
        container=key.container,
        node=key.node,
        card=key.card,
        card_model=key.card_model,
        **granted,
    )


_TYPES: Mapping[str, pa.DataType] = {
    "ts": TIME,
    "started_at": TIME,
    "ended_at": TIME,
    "labels": pa.map_(pa.string(), pa.string()),
    "kv_cache_usage_ratio": pa.float32(),
    "sm_active_ratio": pa.float64(),
    "kv_cache_pool_bytes": pa.float64(),
    "priority": pa.large_string(),
}


@dataclass
class TraceFiles:
    """Rows of each file; two pods on two cards over one hour unless told otherwise."""

    cards: list[dict[str, Any]] = field(default_factory=lambda: [card("GPU-a"), card("GPU-b")])
    pods: list[dict[str, Any]] = field(default_factory=lambda: [pod("web-0", "GPU-a"), pod("web-1", "GPU-b")])
    usage: list[dict[str, Any]] = field(
        default_factory=lambda: [
            row(minutes, name, on)
            for minutes in range(10, 70, 10)
            for name, on in (("web-0", "GPU-a"), ("web-1", "GPU-b"))
        ]
    )
    card_usage: list[dict[str, Any]] = field(default_factory=list)
    types: dict[str, pa.DataType] = field(default_factory=dict)

    def write(self, folder: Path, *, without: Sequence[str] = (), row_group_rows: int = 1000) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("cards", self.cards), ("pods", self.pods), ("usage", self.usage)):
            self._write(folder / f"{name}.parquet", rows, without, row_group_rows)
        if self.card_usage:
            self._write(folder / "card_usage.parquet", self.card_usage, without, row_group_rows)
        return folder

    def _write(self, path: Path, rows: list[dict[str, Any]], without: Sequence[str], row_group_rows: int) -> None:
        names = [name for name in dict.fromkeys(name for entry in rows for name in entry) if name not in without]
        types = {**_TYPES, **self.types}
        columns = {name: pa.array([entry.get(name) for entry in rows], types.get(name)) for name in names}
        pq.write_table(pa.table(columns), path, row_group_size=row_group_rows)
