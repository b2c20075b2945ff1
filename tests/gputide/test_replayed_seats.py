"""The replay's seating: pods that the simulated cluster moved are played there to their last sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.simulated.cluster import SimulatedCluster
from exporter.replay.seats import seated_grants
from exporter.trace.trace import open_trace
from fleet.data_folder import open_data_folder
from fleet.inventory import CardId
from fleet.settings.settings import Settings
from gputide.container.warehouse import WarehouseMeasurements
from gputide.replay.play import ClusterSeating, Playback, replay
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


@pytest.mark.parametrize(("cluster", "cards"), [("kubernetes", {"GPU-a"}), ("simulated", {"GPU-a", "GPU-b"})])
def test_what_a_real_cluster_did_is_played_as_recorded(tmp_path: Path, cluster: str, cards: set[str]) -> None:
    # No two whole cards fit one card by the simulated cluster's books.
    files = TraceFiles(cards=[card("GPU-a"), card("GPU-b")], pods=[pod("web-1", "GPU-a"), pod("web-2", "GPU-a")])
    files.usage = [{**entry, "card": "GPU-a"} for entry in files.usage if entry["pod"] == "web-1"]
    files.usage = [{**entry, "pod": name} for entry in files.usage for name in ("web-1", "web-2")]
    folder = open_data_folder(tmp_path / "data", create=True)
    settings = Settings.model_validate({"enforcer": {"cluster": cluster}})
    replay(folder, settings, Playback(trace=files.write(tmp_path / "trace")), tick=lambda *_: None)
    history = WarehouseMeasurements(folder, settings).history(at(0), at(60))
    assert {str(grant.card) for grant in history.inventory.grants} == cards


def test_pods_of_a_simulated_cluster_that_a_real_one_leaves_unplayed_are_counted(tmp_path: Path) -> None:
    files = TraceFiles(cards=[card("GPU-a"), card("GPU-b")], pods=[pod("web-1", "GPU-b")])
    files.usage = [entry for entry in files.usage if entry["pod"] == "web-1"]
    trace, folder = files.write(tmp_path / "trace"), open_data_folder(tmp_path / "data", create=True)
    settings = Settings.model_validate({"enforcer": {"cluster": "kubernetes"}})

    def unplayed(minutes: float) -> int:
        done = replay(folder, settings, Playback(trace=trace, until=at(minutes)), tick=lambda *_: None)
        return done.unplayed_pods

    assert unplayed(20) == 0
    assert unplayed(30) == 0
    cluster = SimulatedCluster.open(folder.cluster)
    try:
        cluster.evict("team", "web-1")
        cluster.pause(60.0)
    finally:
        cluster.close()
    assert unplayed(40) == 1
