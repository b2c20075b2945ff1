"""The replay's seating: pods that the simulated cluster moved are played there to their last sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.cluster_simulated import SimulatedCluster
from exporter.trace import open_trace
from fleet.inventory import CardId
from gputide.replay import ClusterSeating
from tests.exporter.builders import TraceFiles, at, card, pod

A, B = CardId("GPU-a"), CardId("GPU-b")


@pytest.mark.parametrize("minutes", [40.0, 49.9])
def test_pod_that_users_ended_keeps_its_seat_until_its_last_sample(tmp_path: Path, minutes: float) -> None:
    files = TraceFiles(cards=[card("GPU-a"), card("GPU-b")], pods=[pod("web-1", "GPU-b", ended_at=at(50))])
    files.usage = [entry for entry in files.usage if entry["pod"] == "web-1"]
    trace = open_trace(files.write(tmp_path / "trace"))
    cluster = SimulatedCluster.open(tmp_path / "cluster.sqlite")
    try:
        begun = trace.inventory_at(at(30))
        elsewhere = replace(begun, grants=tuple(replace(grant, card=A) for grant in begun.grants))
        cluster.sync(elsewhere, at(30))
        seating = ClusterSeating(cluster, trace)
        assert [seat.card for seat in seating.seats(at(30))["team/web-1"]] == [A]
        cluster.sync(trace.inventory_at(at(50)), at(40))
        assert [seat.card for seat in seating.seats(at(minutes))["team/web-1"]] == [A]
        assert seating.seats(at(50)) == {}
    finally:
        cluster.close()
