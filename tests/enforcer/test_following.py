"""While a plan is carried out a watch keeps what is looked at: our own writes at once, and by lists where it is cut."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster_api import SimulatedApi, start_server
from enforcer.cluster import FollowingReader
from enforcer.kept_manifests import KeptManifests, as_manifest
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.followed import FollowedKind, Kept
from enforcer.manifest import Manifest
from enforcer.rollout.watch import ClusterSignals
from enforcer.snapshot import take_snapshot
from fleet.errors import GputideError, Misconfigured, Unavailable
from tests.exporter.kubeconfigs import write_kubeconfig

PODS, DEPLOYMENTS = "/api/v1/pods", "/apis/apps/v1/deployments"


def a_pod(name: str, version: int, **metadata: Any) -> Manifest:
    told = {"namespace": "team", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version), **metadata}
    return {"kind": "Pod", "metadata": told, "spec": {}, "status": {}}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Server:
    """What a server would answer to lists and watches."""

    def __init__(self) -> None:
        self.listed: list[Manifest] = []
        self.version = 1
        self.lists = 0
        self.watches: list[str] = []
        self.events: queue.SimpleQueue[tuple[str, Manifest] | GputideError | None] = queue.SimpleQueue()
        self.while_listing: Callable[[], None] = lambda: None
        self.kind = FollowedKind("Pod", self._list, self._watch, lambda _: None)

    def _list(self, keep: Callable[[Manifest], Kept]) -> tuple[str, list[Kept]]:
        self.lists += 1
        answer = str(self.version), [keep(manifest) for manifest in self.listed]
        self.while_listing()
        return answer

    def _watch(self, version: str, stands: Callable[[], None]) -> Iterator[tuple[str, Manifest]]:
        self.watches.append(version)
        if not self.events.empty() and isinstance(first := self.events.get(), GputideError):
            raise first
        stands()
        while (event := self.events.get()) is not None:
            if isinstance(event, GputideError):
                raise event
            yield event

    def names(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.kind.objects("team"))

    def stands(self) -> None:
        """Look until looks are no lists any more."""

        def is_watched() -> bool:
            before = self.lists
            self.names()
            return self.lists == before

        until(is_watched)


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server of one pod whose watch stands."""
    found = Server()
    found.listed, found.version = [a_pod("a", 10)], 10
    found.stands()
    yield found
    found.kind.end()
    found.events.put(None)
    found.kind.join()


def test_looks_cost_nothing_while_the_watch_tells_what_changes(server: Server) -> None:
    lists = server.lists
    server.events.put(("ADDED", a_pod("b", 11)))
    until(lambda: server.names() == ["a", "b"])
    server.events.put(("DELETED", a_pod("a", 12)))
    until(lambda: server.names() == ["b"])
    assert server.lists == lists


def test_event_that_is_older_than_our_own_write_changes_nothing(server: Server) -> None:
    server.kind.put(a_pod("a", 20, labels={"by": "us"}))
    server.events.put(("MODIFIED", a_pod("a", 15)))
    server.events.put(("ADDED", a_pod("b", 21)))
    until(lambda: server.names() == ["a", "b"])
    found = server.kind.find("team", "a")
    assert found is not None
    assert found["metadata"]["labels"] == {"by": "us"}


def test_evicted_pod_is_going_whatever_late_events_and_lists_say(server: Server) -> None:
    server.kind.end_of("team", "a", "uid-a")
    server.events.put(("MODIFIED", a_pod("a", 15)))
    server.events.put(("ADDED", a_pod("b", 21)))
    until(lambda: server.names() == ["a", "b"])
    going = [pod["metadata"]["name"] for pod in server.kind.objects("team") if "deletionTimestamp" in pod["metadata"]]
    assert going == ["a"]
    server.listed, server.version = [a_pod("a", 16), a_pod("b", 21)], 21
    server.kind.renew()
    going = [pod["metadata"]["name"] for pod in server.kind.objects("team") if "deletionTimestamp" in pod["metadata"]]
    assert going == ["a"]


def test_object_that_ends_while_a_list_is_on_its_way_does_not_come_back(server: Server) -> None:
    def end_it() -> None:
        server.events.put(("DELETED", a_pod("a", 12)))
        until(lambda: server.kind.find("team", "a") is None)

    server.while_listing = end_it
    server.kind.renew()
    assert server.names() == []


def test_fresh_list_is_asked_for_once_and_holds_what_was_heard_since(server: Server) -> None:
    server.listed, server.version = [a_pod("a", 10), a_pod("c", 11)], 11
    server.kind.put(a_pod("d", 30))
    lists = server.lists
    server.kind.renew()
    assert server.names() == ["a", "c", "d"]
    server.names()
    assert server.lists == lists + 1


def test_fresh_list_holds_no_second_copy_of_what_did_not_change(server: Server) -> None:
    server.kind.put(a_pod("b", 11))
    before = server.kind.objects("team").texts
    server.listed, server.version = [a_pod("a", 10), a_pod("b", 12, labels={"by": "them"})], 12
    server.kind.renew()
    after = server.kind.objects("team").texts
    assert after[0] is before[0]
    assert as_manifest(after[1])["metadata"]["labels"] == {"by": "them"}


def test_every_look_is_a_list_while_the_watch_is_cut(server: Server) -> None:
    server.events.put(Unavailable("the connection was cut"))
    server.events.put(Unavailable("and again"))
    until(lambda: server.events.empty() or bool(server.names()))
    server.listed, server.version = [a_pod("z", 40)], 40
    until(lambda: server.names() == ["z"])
    server.stands()
    assert server.watches[-1] == "40"


def test_watch_that_the_server_ends_goes_on_where_it_stood(server: Server) -> None:
    lists = server.lists
    server.events.put(("ADDED", a_pod("b", 50)))
    server.events.put(None)
    until(lambda: len(server.watches) == 2)
    assert server.watches == ["10", "50"]
    assert server.names() == ["a", "b"]
    assert server.lists == lists


def test_without_the_right_to_watch_each_look_is_a_list_and_no_watch_is_tried_again() -> None:
    server = Server()
    server.listed = [a_pod("a", 1)]
    server.events.put(Misconfigured("RBAC lacks verb watch"))
    until(lambda: server.names() == ["a"] and server.watches == ["1"])
    for number in range(3):
        server.listed, server.version = [a_pod(f"b{number}", 2 + number)], 2 + number
        assert server.names() == [f"b{number}"]
    assert server.watches == ["1"]
    server.kind.end()


@pytest.fixture
def api() -> Iterator[tuple[SimulatedApi, str]]:
    """Return a server that watches can be made of, and its address."""
    found = SimulatedApi()
    serving = start_server(found)
    yield found, f"http://127.0.0.1:{serving.server_address[1]}"
    serving.shutdown()
    serving.server_close()


def test_cluster_that_follows_asks_once_and_hears_of_changes_until_it_ends(
    api: tuple[SimulatedApi, str], tmp_path: Path
) -> None:
    served, address = api
    served.put(PODS, a_pod("a", 0))
    place = ClusterPlace(kubeconfig=write_kubeconfig(tmp_path, address), requests_per_second=1e3, requests_burst=1000)
    cluster = KubernetesCluster(place)
    assert isinstance(cluster, FollowingReader)

    def names() -> list[str]:
        return [pod["metadata"]["name"] for pod in cluster.list_objects("Pod", "team")]

    with cluster.following(), cluster.following():
        until(lambda: names() == ["a"] and any("watch=1" in asked for asked in served.requests))
        time.sleep(0.05)
        names()
        asked = len(served.requests)
        served.put(PODS, a_pod("b", 0))
        until(lambda: names() == ["a", "b"])
        ClusterSignals(cluster).health([])
        assert len(served.requests) == asked
    names()
    assert len(served.requests) == asked + 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("follow")]
    cluster.close()


def test_snapshots_share_the_owners_that_a_watch_keeps(api: tuple[SimulatedApi, str], tmp_path: Path) -> None:
    served, address = api
    served.serve(DEPLOYMENTS)
    served.put(DEPLOYMENTS, {"metadata": {"namespace": "team", "name": "a", "uid": "uid-a"}, "spec": {}})
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=write_kubeconfig(tmp_path, address)))
    with cluster.following():
        owners = []
        for _ in range(2):
            owners.append(take_snapshot(cluster).owners)
            cluster.renew()
    first, second = (found.texts for found in owners if isinstance(found, KeptManifests))
    assert list(first) == ["team/Deployment/a"]
    assert all(first[name] is second[name] for name in first)
    cluster.close()
