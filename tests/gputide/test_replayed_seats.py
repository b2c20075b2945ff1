"""The replay's seating: pods that the simulated cluster moved are played there to their last sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.simulated.cluster import SimulatedCluster
from exporter.replay.seats import seated_grants
from exporter.trace.trace import open_trace
from fleet.inventory import CardId
from gputide.replay.play import ClusterSeating
from tests.exporter.builders import TraceFiles, at, card, pod

A, B = CardId("GPU-a"), CardId("GPU-b")


def test_pod_that_was_made_anew_is_played_under_the_name_that_the_cluster_gave_it(tmp_path: Path) -> None:
    files = TraceFiles(cards=[card("GPU-a"), card("GPU-b")], pods=[pod("web-1", "GPU-b", ended_at=at(90))])
    files.usage = [entry for entry in files.usage if entry["pod"] == "web-1"]
    trace = open_trace(files.write(tmp_path / "trace"))
    cluster = SimulatedCluster.open(tmp_path / "cluster.sqlite")
    try:
        cluster.sync(trace.inventory_at(at(30)), at(30))
        cluster.evict("team", "web-1")
        cluster.pause(60.0)
        (seat,) = ClusterSeating(cluster, trace).seats(at(31))["team/web-1"]
        (found,) = cluster.seats()
        assert (found.pod, seat.pod) == ("web-1", found.name)
        assert found.name != "web-1"
        assert cluster.get("Pod", "team", found.name) is not None
        (grant,) = trace.inventory_at(at(31)).grants
        played, _ = seated_grants([grant], (seat,), {known.card: known for known in trace.cards})[B]
        assert (played.pod_id, played.started_at) == (f"team/{found.name}", found.since)
    finally:
        cluster.close()


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
