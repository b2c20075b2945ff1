"""A replay shows what was granted under the live exporters' names, by their rules."""

from pathlib import Path

import pytest

from exporter.collector import Collector
from exporter.replay.reader import ReplayedFamilies, ReplayReader
from exporter.trace.trace import open_trace
from fleet.units import GIB
from tests.exporter.builders import TraceFiles, at, card, pod, row

HALF = {"framebuffer_granted_bytes": 12 * GIB, "compute_granted_ratio": 0.5}
CARD = ("c1", "node-a", "GPU-a", "NVIDIA A10")


@pytest.fixture
def collector(tmp_path: Path) -> Collector:
    files = TraceFiles(
        cards=[card("GPU-a"), card("GPU-b")],
        pods=[pod("web-0", "GPU-a", **HALF), pod("etl-0", "GPU-a", framebuffer_granted_bytes=6 * GIB, ended_at=at(20))],
        usage=[row(minutes, name, "GPU-a") for minutes in (10, 20, 30) for name in ("web-0", "etl-0")],
    )
    reader = ReplayReader(open_trace(files.write(tmp_path)))
    return Collector(reader, interval_seconds=0.0, deadline_seconds=1.0, derivations=(ReplayedFamilies(),))


def shown(collector: Collector) -> dict[str, dict[tuple[str, ...], float]]:
    collector.collect()
    snapshot = collector.state().snapshot
    assert snapshot is not None
    return {family.name: dict(zip(family.labels, family.values, strict=True)) for family in snapshot.families}


def test_grants_add_up_on_the_card_as_the_cluster_exporter_counts_them(collector: Collector) -> None:
    figures = shown(collector)
    held = ("c1", "team", "etl-0", "server", "node-a", "GPU-a", "NVIDIA A10")
    assert figures["gputide_slice_framebuffer_granted_bytes"][held] == 6 * GIB
    assert figures["gputide_slice_compute_granted_ratio"][held] == 1.0
    assert figures["gputide_card_framebuffer_granted_bytes"][CARD] == 18 * GIB
    # A slice without a limit adds nothing to the sum of limits.
    assert figures["gputide_card_compute_granted_ratio"][CARD] == 0.5
    assert figures["gputide_card_tenants"] == {CARD: 2.0, (*CARD[:2], "GPU-b", CARD[3]): 0.0}


def test_a_card_has_its_capacity_always_and_what_is_free_where_its_use_is_known(collector: Collector) -> None:
    figures = shown(collector)
    assert set(figures["gputide_card_framebuffer_capacity_bytes"].values()) == {24.0 * GIB}
    assert figures["gputide_card_framebuffer_free_bytes"] == {CARD: 16.0 * GIB}


def test_a_grant_that_ended_is_gone(collector: Collector) -> None:
    shown(collector)
    figures = shown(collector)
    assert figures["gputide_card_tenants"][CARD] == 1.0
    assert len(figures["gputide_slice_compute_granted_ratio"]) == 1
