"""The scheduler layer on the real API server: rights, pages, watches, what gets lost, and how soon a change is seen."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from exporter.allocation.collector import AllocationCollector, AllocationSnapshot
from exporter.cluster.kubernetes import KubernetesReader
from exporter.cluster.reader import API_RESOURCES, Watched
from exporter.cluster.watch import WatchState
from fleet.errors import Misconfigured
from fleet.inventory import AUTOSCALED_LABEL
from fleet.schema import GRANT_LABELS
from fleet.units import MIB
from tests.cluster.api import Api
from tests.control_plane import ControlPlane, User
from tests.waiting import until as until_so
from wire.kubernetes.read import EventKind
from wire.kubernetes.refusals import Expired

pytestmark = pytest.mark.cluster

RULES = Path(__file__).resolve().parents[2] / "docs" / "rbac-reader.yaml"
CARD = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
SLICES = "gputide_slice_framebuffer_granted_bytes"
Reader = Callable[..., KubernetesReader]
until = partial(until_so, seconds_max=180.0)


@pytest.fixture
def collector(reader: Reader) -> Iterator[AllocationCollector]:
    """Collect with an administrator's rights until all is known."""
    running = AllocationCollector(reader(), cluster="c1")
    running.start()
    until(lambda: running.snapshot().is_ready)
    yield running
    assert running.stop()


def values(snapshot: AllocationSnapshot, name: str) -> dict[tuple[str, ...], float]:
    found = next((family for family in snapshot.families if family.name == name), None)
    return {} if found is None else dict(zip(found.labels, found.values.tolist(), strict=True))


def state(collector: AllocationCollector, watched: Watched) -> WatchState:
    return next(state for state in collector.snapshot().watches if state.watched is watched)


def hami(mib: int, *, node: str) -> dict[str, str]:
    granted = f"{CARD},NVIDIA,{mib},30:;"
    return {"hami.io/vgpu-devices-allocated": granted, "hami.io/vgpu-node": node, "hami.io/bind-phase": "success"}


def hami_node(api: Api, name: str) -> None:
    card = {"id": CARD, "count": 10, "devmem": 24_000, "devcore": 100, "type": "NVIDIA-NVIDIA A10", "health": True}
    api.node(name, cards=10, annotations={"hami.io/node-nvidia-register": json.dumps([{**card, "mode": "hami-core"}])})


def test_documented_rules_are_enough_to_read_everything(control_plane: ControlPlane, api: Api, reader: Reader):
    paths = {
        "Namespace": "/api/v1/namespaces",
        "ServiceAccount": "/api/v1/namespaces/gputide/serviceaccounts",
        "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    }
    for manifest in yaml.safe_load_all(RULES.read_text(encoding="utf-8")):
        api.create(paths[manifest["kind"]], manifest)
    kubeconfig = control_plane.kubeconfig_of_token("reader", api.token("gputide", "gputide-reader"))
    running = AllocationCollector(reader(kubeconfig), cluster="c1")
    running.start()
    try:
        until(lambda: running.snapshot().is_ready)
        until(lambda: all(watch.is_served is not None for watch in running.snapshot().watches))
        until(lambda: all(watch.is_known for watch in running.snapshot().watches if watch.is_served))
        served = {watch.watched for watch in running.snapshot().watches if watch.is_served}
        assert {Watched.PODS, Watched.NODES, Watched.RESOURCE_CLAIMS, Watched.RESOURCE_SLICES} <= served
        assert Watched.KAI_QUEUES not in served
        assert [watch.errors for watch in running.snapshot().watches if watch.errors] == []
    finally:
        running.stop()


@pytest.mark.parametrize("watched", [watched for watched in Watched if not API_RESOURCES[watched].is_optional])
def test_refusal_names_resource_verb_and_the_rule_that_is_missing(
    control_plane: ControlPlane, reader: Reader, watched: Watched
):
    reading = reader(control_plane.kubeconfig(User.STRANGER))
    wanted = API_RESOURCES[watched]
    rule = f'{{apiGroups: ["{wanted.group}"], resources: ["{wanted.plural}"], verbs: ["list", "watch"]}}'
    with pytest.raises(Misconfigured) as refused:
        reading.page(watched, limit=1, token=None)
    assert f"cannot list {watched.value}" in str(refused.value)
    assert rule in str(refused.value)
    with pytest.raises(Misconfigured, match=f"lacks verb watch.*{wanted.plural}"):
        next(iter(reading.watch(watched, version="1")))


def test_pages_hold_every_object_of_one_version(api: Api, namespace: str, reader: Reader):
    for number in range(7):
        api.pod(namespace, f"p{number}", nodeName="nowhere")
    reading = reader()
    names: list[str] = []
    versions, token = set(), None
    while True:
        page = reading.page(Watched.PODS, limit=3, token=token)
        names += [
            str(manifest["metadata"]["name"])  # type: ignore[index]
            for manifest in page.manifests
            if manifest["metadata"]["namespace"] == namespace  # type: ignore[index]
        ]
        versions.add(page.version)
        assert len(list(page.manifests)) <= 3
        token = page.next_token
        if token is None:
            break
        api.pod(namespace, f"later-{len(versions)}-{len(names)}", nodeName="nowhere")
    assert sorted(names) == [f"p{number}" for number in range(7)]
    assert len(versions) == 1


def test_reader_of_one_node_sees_its_pods_alone(api: Api, namespace: str, reader: Reader):
    for node in ("here", "there"):
        api.pod(namespace, f"p-{node}", nodeName=node)
    reading = reader(node="here", watch_seconds=3)
    page = reading.page(Watched.PODS, limit=100, token=None)
    assert [manifest["metadata"]["name"] for manifest in page.manifests] == ["p-here"]  # type: ignore[index]
    for node in ("there", "here"):
        api.patch(f"/api/v1/namespaces/{namespace}/pods/p-{node}", {"metadata": {"labels": {"changed": "yes"}}})
    events = [event for event in reading.watch(Watched.PODS, version=page.version) if event.kind != EventKind.BOOKMARK]
    assert [event.manifest["metadata"]["name"] for event in events] == ["p-here"]


def test_only_metadata_of_owners_travel(api: Api, namespace: str, reader: Reader):
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    api.create(f"/apis/apps/v1/namespaces/{namespace}/replicasets", {"metadata": {"name": "rs"}, "spec": spec})
    page = reader().page(Watched.REPLICA_SETS, limit=100, token=None)
    assert list(page.manifests)
    assert all("spec" not in manifest for manifest in page.manifests)


def test_changed_pod_is_visible_as_it_changes(api: Api, namespace: str, collector: AllocationCollector):
    hami_node(api, "node-visible")
    api.pod(namespace, "p", nodeName="node-visible", annotations=hami(8000, node="node-visible"))
    slices = lambda: values(collector.snapshot(), SLICES)  # noqa: E731 - asked again and again
    until(lambda: any(labels[1] == namespace for labels in slices()))
    for mib in (9000, 10_000, 11_000):
        api.patch(
            f"/api/v1/namespaces/{namespace}/pods/p", {"metadata": {"annotations": hami(mib, node="node-visible")}}
        )
        until(lambda mib=mib: mib * MIB in slices().values())  # type: ignore[misc]
    free = values(collector.snapshot(), "gputide_card_framebuffer_left_to_grant_bytes")
    assert free["c1", "node-visible", CARD, "NVIDIA A10"] == 13_000 * MIB
    api.delete(f"/api/v1/namespaces/{namespace}/pods/p")
    until(lambda: all(labels[1] != namespace for labels in slices()))


def test_pod_that_the_scheduler_cannot_place_waits_for_cards(api: Api, namespace: str, collector: AllocationCollector):
    api.pod(namespace, "big", nodeSelector={"no": "such-node"})
    waiting = lambda: {  # noqa: E731 - asked again and again
        labels[3] for labels in values(collector.snapshot(), "gputide_pending_pod_info") if labels[1] == namespace
    }
    until(lambda: waiting() == {"node_mismatch"})
    api.node("node-full", cards=0, labels={"no": "such-node"})
    until(lambda: waiting() == {"insufficient_cards"})
    api.patch("/api/v1/nodes/node-full/status", {"status": {"allocatable": {"nvidia.com/gpu": "1"}}})
    until(lambda: not waiting())
    granted = values(collector.snapshot(), "gputide_container_devices_granted")
    assert granted["c1", namespace, "big", "main", "node-full", "nvidia.com/gpu"] == 1


def test_bookmark_moves_a_quiet_watch_on(reader: Reader):
    reading = reader(watch_seconds=8)
    version = reading.page(Watched.STATEFUL_SETS, limit=1, token=None).version
    kinds = [event.kind for event in reading.watch(Watched.STATEFUL_SETS, version=version)]
    assert EventKind.BOOKMARK in kinds


def test_version_and_token_that_etcd_has_forgotten_are_expired(
    control_plane: ControlPlane, api: Api, namespace: str, reader: Reader
):
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    for number in range(3):
        api.create(quotas, {"metadata": {"name": f"q{number}"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}})
    reading = reader(watch_seconds=10)
    page = reading.page(Watched.RESOURCE_QUOTAS, limit=1, token=None)
    later = [
        api.create(quotas, {"metadata": {"name": f"later{number}"}, "spec": {"hard": {"pods": "1"}}})
        for number in range(3)
    ]
    body = json.dumps({"revision": later[-1]["metadata"]["resourceVersion"], "physical": True}).encode()
    urllib.request.urlopen(
        urllib.request.Request(f"{control_plane.etcd_url}/v3/kv/compaction", data=body, method="POST"), timeout=30
    ).read()
    with pytest.raises(Expired):
        list(reading.watch(Watched.RESOURCE_QUOTAS, version=page.version))
    with pytest.raises(Expired):
        reading.page(Watched.RESOURCE_QUOTAS, limit=1, token=page.next_token)


def test_api_server_that_was_killed_is_read_on_and_nothing_is_forgotten_meanwhile(
    control_plane: ControlPlane, kill_api_server: Callable[[], None], api: Api, namespace: str,
    collector: AllocationCollector,
):  # fmt: skip
    hami_node(api, "node-killed")
    api.pod(namespace, "p", nodeName="node-killed", annotations=hami(8000, node="node-killed"))
    mine = lambda: [  # noqa: E731 - asked again and again
        value for labels, value in values(collector.snapshot(), SLICES).items() if labels[1] == namespace
    ]
    until(lambda: mine() == [8000 * MIB])
    kill_api_server()
    until(lambda: "unavailable" in dict(state(collector, Watched.PODS).errors))
    assert mine() == [8000 * MIB]
    control_plane.start()
    change = {"metadata": {"annotations": hami(9000, node="node-killed")}}
    api.patch(f"/api/v1/namespaces/{namespace}/pods/p", change)
    until(lambda: mine() == [9000 * MIB])
    assert state(collector, Watched.PODS).last_error is None


@pytest.fixture
def no_devices_left(api: Api) -> Iterator[None]:
    """Take what a driver would have published away, so that the claims of no other test find it."""
    yield
    for place in ("resourceslices/node-dra", "deviceclasses/layer.gpu.nvidia.com"):
        api.delete(f"/apis/resource.k8s.io/v1/{place}")


@pytest.mark.usefixtures("no_devices_left")
def test_claim_that_the_scheduler_allocates_is_a_grant(api: Api, namespace: str, collector: AllocationCollector):
    # A class and a node of its own: those of other tests may stand beside them.
    api.node("node-dra", cards=0, labels={"for": namespace})
    devices = [
        {"name": "gpu-0", "attributes": {"uuid": {"string": CARD}, "productName": {"string": "NVIDIA A10"}},
         "capacity": {"memory": {"value": "24000Mi"}}}
    ]  # fmt: skip
    pool = {"name": "node-dra", "generation": 1, "resourceSliceCount": 1}
    resources = "/apis/resource.k8s.io/v1"
    api.create(
        f"{resources}/resourceslices",
        {
            "metadata": {"name": "node-dra"},
            "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-dra", "pool": pool, "devices": devices},
        },
    )
    selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    own_class = {"metadata": {"name": "layer.gpu.nvidia.com"}, "spec": {"selectors": [selector]}}
    api.create(f"{resources}/deviceclasses", own_class)
    exactly = {"name": "card", "exactly": {"deviceClassName": "layer.gpu.nvidia.com"}}
    claim = {"metadata": {"name": "claim"}, "spec": {"devices": {"requests": [exactly]}}}
    api.create(f"{resources}/namespaces/{namespace}/resourceclaims", claim)
    user = {"name": "main", "image": "i", "resources": {"claims": [{"name": "card"}]}}
    claims = [{"name": "card", "resourceClaimName": "claim"}]
    api.pod(namespace, "p", containers=[user], resourceClaims=claims, nodeSelector={"for": namespace})
    place = ("c1", "node-dra", CARD, "NVIDIA A10")
    until(lambda: values(collector.snapshot(), "gputide_card_tenants").get(place) == 1)
    granted = {labels[:4]: value for labels, value in values(collector.snapshot(), SLICES).items()}
    assert granted["c1", namespace, "p", "main"] == 24_000 * MIB
    assert ("c1", "node-dra", "dra", "") in values(collector.snapshot(), "gputide_node_sharing_info")


def keda(api: Api) -> None:
    """Let the server serve ScaledObjects, by their shape alone."""
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1alpha1", "served": True, "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": kept}}},
    }  # fmt: skip
    names = {"kind": "ScaledObject", "plural": "scaledobjects", "singular": "scaledobject"}
    spec = {"group": "keda.sh", "scope": "Namespaced", "names": names, "versions": [version]}
    api.create(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {"metadata": {"name": "scaledobjects.keda.sh"}, "spec": spec},
    )
    # While it makes room for the kind, the server says that it is not there, or that it is busy.
    until(lambda: api.status("GET", "/apis/keda.sh/v1alpha1/scaledobjects") == 200)


def test_pods_say_who_scales_their_workload(api: Api, namespace: str, reader: Reader):
    keda(api)
    hami_node(api, "node-scaled")
    # Of a kind that no controller here looks after, so that nobody takes the pod away or sets it free.
    target = {"apiVersion": "example.com/v1", "kind": "Server", "name": "web"}
    api.pod(namespace, "p", nodeName="node-scaled", annotations=hami(8000, node="node-scaled"))
    api.patch(
        f"/api/v1/namespaces/{namespace}/pods/p",
        {
            "metadata": {
                "ownerReferences": [{**target, "uid": "4f0c7a52-0000-4000-8000-000000000000", "controller": True}]
            }
        },
    )
    scalers = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
    api.create(scalers, {"metadata": {"name": "web"}, "spec": {"scaleTargetRef": target, "maxReplicas": 6}})
    running = AllocationCollector(reader(), cluster="c1")
    running.start()
    try:
        place = GRANT_LABELS.index("labels")
        told = lambda: [  # noqa: E731 - asked again and again
            json.loads(labels[place] or "{}").get(AUTOSCALED_LABEL)
            for labels in values(running.snapshot(), "gputide_slice_info")
            if labels[1] == namespace
        ]
        # The server fills in the bound that nobody named.
        until(lambda: told() == ["HorizontalPodAutoscaler 1-6"])
        scaled = f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects"
        spec = {"scaleTargetRef": {"kind": "Server", "name": "web"}, "minReplicaCount": 2, "maxReplicaCount": 9}
        api.create(scaled, {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "web"},
                            "spec": spec})  # fmt: skip
        until(lambda: told() == ["ScaledObject 2-9"])
        api.patch(f"{scaled}/web", {"spec": {"minReplicaCount": 3}})
        until(lambda: told() == ["ScaledObject 3-9"])
        api.delete(f"{scaled}/web")
        until(lambda: told() == ["HorizontalPodAutoscaler 1-6"])
    finally:
        assert running.stop()


def test_autoscalers_that_may_not_be_read_are_a_finding_and_hold_nothing_up(
    control_plane: ControlPlane, api: Api, namespace: str, reader: Reader
):
    rules = next(
        manifest
        for manifest in yaml.safe_load_all(RULES.read_text(encoding="utf-8"))
        if manifest["kind"] == "ClusterRole" and manifest["metadata"]["name"] == "gputide-reader"
    )
    for manifest in (
        {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "no-scalers", "namespace": namespace}},
        {
            **rules,
            "metadata": {"name": f"no-scalers-{namespace}"},
            "rules": [rule for rule in rules["rules"] if rule["apiGroups"] not in (["autoscaling"], ["keda.sh"])],
        },
        {
            "kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": f"no-scalers-{namespace}"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"no-scalers-{namespace}",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "no-scalers", "namespace": namespace}],
        },
    ):  # fmt: skip
        api.apply(manifest)
    hami_node(api, "node-unscaled")
    api.pod(namespace, "p", nodeName="node-unscaled", annotations=hami(8000, node="node-unscaled"))
    kubeconfig = control_plane.kubeconfig_of_token(f"no-scalers-{namespace}", api.token(namespace, "no-scalers"))
    running = AllocationCollector(reader(kubeconfig), cluster="c1")
    running.start()
    try:
        until(lambda: running.snapshot().is_ready)
        until(lambda: any(labels[1] == namespace for labels in values(running.snapshot(), "gputide_slice_info")))
        watch = state(running, Watched.POD_AUTOSCALERS)
        assert dict(watch.errors)["refused"] >= 1
        assert 'add rule {apiGroups: ["autoscaling"], resources: ["horizontalpodautoscalers"]' in str(watch.last_error)
        refused = values(running.snapshot(), "gputide_watch_errors_total")
        assert refused["c1", "horizontalpodautoscalers.autoscaling", "refused"] >= 1
    finally:
        running.stop()
