"""The whole reader of the scheduler layer, by the real client, against an HTTP server that fails as API servers do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.cluster_api import SimulatedApi, fill, generated_pod, start_server
from exporter.allocation.collector import AllocationCollector, AllocationSnapshot
from exporter.cluster.kubernetes import KubernetesReader
from exporter.cluster.reader import Watched
from exporter.cluster.watch import WatchState
from fleet.errors import Misconfigured, Unavailable
from fleet.units import MIB
from tests.exporter.kubeconfigs import write_kubeconfig
from wire.http_answer import TooLarge
from wire.kubernetes.read import EventKind
from wire.kubernetes.refusals import Expired

SLICES = "gputide_slice_framebuffer_granted_bytes"
PODS = "/api/v1/pods"
Reader = Callable[..., KubernetesReader]


@pytest.fixture
def api() -> Iterator[SimulatedApi]:
    """Serve two nodes of two cards with six pods."""
    simulated = SimulatedApi()
    fill(simulated, nodes=2, pods=6, cards_per_node=2)
    yield simulated
    simulated.cut(forget=False)


@pytest.fixture
def reader(api: SimulatedApi, tmp_path: Path) -> Iterator[Reader]:
    """Return a maker of readers of the simulated API."""
    server = start_server(api)
    kubeconfig = write_kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_address[1]}")
    made: list[KubernetesReader] = []

    def make(*, watch_seconds: int = 60, page_bytes_max: int = 2**20) -> KubernetesReader:
        made.append(KubernetesReader(kubeconfig=kubeconfig, watch_seconds=watch_seconds, page_bytes_max=page_bytes_max))
        return made[-1]

    yield make
    for one in made:
        one.close()
    server.shutdown()
    server.server_close()


@pytest.fixture
def collector(reader: Reader) -> Iterator[AllocationCollector]:
    """Collect from the simulated API until all is known."""
    running = AllocationCollector(reader(), cluster="c1", page_objects=2, settle_seconds=0.02)
    running.start()
    until(lambda: running.snapshot().is_ready)
    yield running
    running.stop()


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def values(snapshot: AllocationSnapshot, name: str) -> dict[tuple[str, ...], float]:
    found = next(family for family in snapshot.families if family.name == name)
    return dict(zip(found.labels, found.values.tolist(), strict=True))


def state(collector: AllocationCollector, watched: Watched) -> WatchState:
    return next(state for state in collector.snapshot().watches if state.watched is watched)


def regranted(api: SimulatedApi, number: int, mib: int) -> None:
    api.put(PODS, generated_pod(number, 2, 2, 1, framebuffer_mib=mib))


def test_pages_of_one_list_hold_every_object_once(reader: Reader):
    reading = reader()
    names, token, pages = [], None, 0
    while True:
        page = reading.page(Watched.PODS, limit=4, token=token)
        names += [manifest["metadata"]["name"] for manifest in page.manifests]  # type: ignore[index]
        pages, token = pages + 1, page.next_token
        if token is None:
            break
    assert (pages, len(names), len(set(names))) == (2, 6, 6)


def test_what_is_listed_page_by_page_is_all_shown(collector: AllocationCollector):
    snapshot = collector.snapshot()
    assert len(values(snapshot, SLICES)) == 6
    assert len(values(snapshot, "gputide_card_info")) == 4
    assert values(snapshot, "gputide_watch_objects")["c1", "pods"] == 6
    assert {labels[7] for labels in values(snapshot, "gputide_slice_info")} == {"svc-0"}
    assert values(snapshot, "gputide_watch_errors_total") == {}


def test_kinds_that_the_cluster_does_not_serve_are_no_error(collector: AllocationCollector):
    until(lambda: state(collector, Watched.KAI_QUEUES).is_served is not None)
    unserved = state(collector, Watched.KAI_QUEUES)
    assert (unserved.is_served, unserved.errors, unserved.last_error) == (False, (), None)
    assert ("c1", Watched.KAI_QUEUES.value) not in values(collector.snapshot(), "gputide_watch_objects")


def test_kind_that_is_served_later_is_found_in_the_newest_version_that_is_understood(api: SimulatedApi, reader: Reader):
    reading = reader()
    assert reading.version_of(Watched.CLUSTER_QUEUES) is None
    api.serve("/apis/kueue.x-k8s.io/v1beta1/clusterqueues")
    assert reading.version_of(Watched.CLUSTER_QUEUES) == "v1beta1"
    assert reading.version_of(Watched.LOCAL_QUEUES) is None
    api.serve("/apis/kueue.x-k8s.io/v1beta2/clusterqueues")
    assert reading.version_of(Watched.CLUSTER_QUEUES) == "v1beta2"
    assert list(reading.page(Watched.CLUSTER_QUEUES, limit=10, token=None).manifests) == []
    assert api.requests[-1].startswith("/apis/kueue.x-k8s.io/v1beta2/clusterqueues?")


def test_changed_pod_is_shown_as_it_changes(api: SimulatedApi, collector: AllocationCollector):
    regranted(api, 3, 9000)
    until(lambda: 9000 * MIB in values(collector.snapshot(), SLICES).values())
    api.delete(PODS, api.find(PODS, "team-0", "svc-0-7d9c5b6f4-00003"))
    until(lambda: len(values(collector.snapshot(), SLICES)) == 5)


def test_watch_that_is_cut_goes_on_where_it_stood(api: SimulatedApi, collector: AllocationCollector):
    regranted(api, 1, 7000)
    until(lambda: 7000 * MIB in values(collector.snapshot(), SLICES).values())
    lists = state(collector, Watched.PODS).lists
    api.cut(forget=False)
    regranted(api, 2, 9000)
    until(lambda: 9000 * MIB in values(collector.snapshot(), SLICES).values())
    assert state(collector, Watched.PODS).lists == lists


def test_forgotten_history_is_listed_anew_and_nothing_stale_stays(api: SimulatedApi, collector: AllocationCollector):
    gone = api.find(PODS, "team-0", "svc-0-7d9c5b6f4-00003")
    api.refused[PODS] = 503
    api.cut(forget=False)
    until(lambda: dict(state(collector, Watched.PODS).errors).get("unavailable", 0) >= 1)
    assert len(values(collector.snapshot(), SLICES)) == 6
    api.delete(PODS, gone)
    api.cut(forget=True)
    del api.refused[PODS]
    until(lambda: state(collector, Watched.PODS).lists == 2)
    until(lambda: len(values(collector.snapshot(), SLICES)) == 5)
    assert "expired" in dict(state(collector, Watched.PODS).errors)


def test_server_that_refuses_is_named_with_resource_verb_and_rule(api: SimulatedApi, reader: Reader):
    api.refused[PODS] = 403
    with pytest.raises(Misconfigured, match=r'list pods: .*lacks verb list.*resources: \["pods"\]'):
        reader().page(Watched.PODS, limit=1, token=None)
    with pytest.raises(Misconfigured, match=r"watch pods: .*lacks verb watch"):
        next(iter(reader().watch(Watched.PODS, version="1")))


def test_refused_kind_leaves_what_does_not_need_it(api: SimulatedApi, reader: Reader):
    api.refused[PODS] = 403
    running = AllocationCollector(reader(), cluster="c1", settle_seconds=0.02)
    running.start()
    try:
        until(lambda: any(family.name == "gputide_card_info" for family in running.snapshot().families))
        until(lambda: state(running, Watched.PODS).last_error is not None)
        snapshot = running.snapshot()
        assert not snapshot.is_ready
        assert all(family.name != "gputide_card_tenants" for family in snapshot.families)
        assert values(snapshot, "gputide_watch_errors_total")["c1", "pods", "refused"] >= 1
    finally:
        running.stop()


def test_refused_owners_leave_grants_with_the_pods_own_controllers(api: SimulatedApi, reader: Reader):
    api.refused["/apis/apps/v1/replicasets"] = 403
    running = AllocationCollector(reader(), cluster="c1", settle_seconds=0.02)
    running.start()
    try:
        until(lambda: any(family.name == "gputide_slice_info" for family in running.snapshot().families))
        assert {labels[8] for labels in values(running.snapshot(), "gputide_slice_info")} == {"ReplicaSet"}
    finally:
        running.stop()


def test_old_version_and_old_token_are_called_expired(api: SimulatedApi, reader: Reader):
    reading = reader()
    page = reading.page(Watched.PODS, limit=2, token=None)
    api.cut(forget=True)
    with pytest.raises(Expired):
        reading.page(Watched.PODS, limit=2, token=page.next_token)
    with pytest.raises(Expired):
        next(iter(reading.watch(Watched.PODS, version=page.version)))


def test_page_that_is_too_large_is_asked_for_with_fewer_objects(api: SimulatedApi, reader: Reader):
    with pytest.raises(TooLarge):
        reader(page_bytes_max=10_000).page(Watched.PODS, limit=6, token=None)
    running = AllocationCollector(reader(page_bytes_max=10_000), cluster="c1", settle_seconds=0.02, page_objects=6)
    running.start()
    try:
        until(lambda: running.snapshot().is_ready)
        assert len(values(running.snapshot(), SLICES)) == 6
        assert any("limit=1&" in asked or asked.endswith("limit=1") for asked in api.requests)
    finally:
        running.stop()


def test_watch_tells_of_changes_in_order_and_ends_with_its_time(api: SimulatedApi, reader: Reader):
    reading = reader(watch_seconds=1)
    version = reading.page(Watched.PODS, limit=1, token=None).version
    for mib in (7000, 9000):
        regranted(api, 0, mib)
    events = list(reading.watch(Watched.PODS, version=version))
    assert [event.kind for event in events] == [EventKind.MODIFIED] * 2 + [EventKind.BOOKMARK]
    assert int(version) < int(events[0].version) < int(events[1].version) <= int(events[2].version)


def test_watches_that_end_at_once_are_not_begun_anew_in_haste(api: SimulatedApi, reader: Reader):
    running = AllocationCollector(reader(watch_seconds=0), cluster="c1", settle_seconds=0.02)
    running.start()
    try:
        until(lambda: running.snapshot().is_ready)
        time.sleep(0.5)
        assert sum(asked.startswith(PODS) and "watch=1" in asked for asked in api.requests) <= 2
    finally:
        running.stop()


def test_server_that_is_gone_is_unavailable(tmp_path: Path):
    path = write_kubeconfig(tmp_path, "http://127.0.0.1:9")
    with pytest.raises(Unavailable):
        KubernetesReader(kubeconfig=path).page(Watched.PODS, limit=1, token=None)


def test_kubeconfig_that_is_missing_is_the_users_to_mend(tmp_path: Path):
    with pytest.raises(Misconfigured, match="nowhere"):
        KubernetesReader(kubeconfig=tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text",
    ["a: [", "[]", "{}", "clusters: 5", "\0", "{current-context: t, clusters: [], users: [], contexts: []}",
     "{current-context: t, clusters: [{name: t}], users: [], contexts: [{name: t, context: {cluster: t, user: u}}]}"],
)  # fmt: skip
def test_kubeconfig_that_is_none_is_the_users_to_mend(tmp_path: Path, text: str):
    path = tmp_path / "kubeconfig"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Misconfigured):
        KubernetesReader(kubeconfig=path)


def test_stop_ends_every_thread_though_the_server_says_nothing(collector: AllocationCollector):
    started = time.monotonic()
    assert collector.stop()
    assert time.monotonic() - started < 4.0
