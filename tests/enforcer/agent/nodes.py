"""Builders: a node with one card, and the regions of who sits there."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from enforcer.agent.node_view import CardView, ContainerKey, NodeView, SliceView
from fleet.inventory import Priority
from tests.regions.plain_regions import PlainRegion, write_region

GIB = 1 << 30
CARD = "GPU-00000001-0000-4000-8000-000000000001"
OTHER_CARD = "GPU-00000002-0000-4000-8000-000000000002"
CARD_BYTES = 80 * GIB
START = 1_790_000_000.0
REGION_NAME = "0f1e2d3c-1111-4000-8000-000000000001.cache"


def key_of(number: int) -> ContainerKey:
    return ContainerKey(pod_uid=str(UUID(int=number)), container="main")


def region_path(containers: Path, number: int) -> Path:
    return key_of(number).folder(containers) / REGION_NAME


def add_region(containers: Path, number: int, **fields: Any) -> Path:
    """Write the region of one container."""
    path = region_path(containers, number)
    path.parent.mkdir(exist_ok=True)
    write_region(path, PlainRegion(**fields))
    return path


def slice_of(number: int, priority: Priority, **fields: Any) -> SliceView:
    values: dict[str, Any] = {
        "namespace": "team",
        "pod": f"pod-{number}",
        "pod_uid": key_of(number).pod_uid,
        "container": "main",
        "card": CARD,
        "priority": priority,
        "framebuffer_used_bytes": 4 * GIB,
        "framebuffer_granted_bytes": 10 * GIB,
        "framebuffer_limit_bytes": 10 * GIB,
        "duty_cycle_ratio": 0.0,
    }
    return SliceView(**{**values, **fields})


def view_of(*slices: SliceView, at: float = 0.0, free: int | None = 40 * GIB, duty: float | None = 0.5) -> NodeView:
    """A node with one card, `at` seconds after the start."""
    card = CardView(card=CARD, framebuffer_bytes=CARD_BYTES, framebuffer_free_bytes=free, duty_cycle_ratio=duty)
    return NodeView(at_seconds=START + at, cards=(card,), slices=slices)
