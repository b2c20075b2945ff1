"""Our claims on the real API server and scheduler: taken strictly, on the plan's cards, and the others really free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from enforcer.backend import RenderedStage
from enforcer.backends.dra import DraBackend, DraMigBackend, DraSharedBackend
from enforcer.cluster import FieldChange
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.decisions import CardPlacement, PlacedSlice, Plan, RecommendationKind
from fleet.errors import Refused
from fleet.inventory import CardId, WorkloadId
from fleet.units import GIB
from tests.cluster.api import Api, Manifest
from tests.cluster.workloads import deployment, until, until_ready
from tests.control_plane import ControlPlane
from tests.enforcer.builders import NOW, a_plan, a_recommendation, a_slice

pytestmark = pytest.mark.cluster

RESOURCES = "/apis/resource.k8s.io/v1"
CARDS = 3
"""Of each node; the last one is cut where a test says so."""


def card(namespace: str, node: int, number: int) -> CardId:
    return CardId(f"GPU-{int(namespace.rpartition('-')[2]):08x}-0000-4000-8000-{10 * node + number:012d}")


def devices(namespace: str, node: int, *, is_cut: bool) -> list[dict[str, Any]]:
    """What a node's driver publishes: whole cards, and two instances of the last one."""
    found = []
    for number in range(CARDS):
        uuid = {"string": card(namespace, node, number)}
        if is_cut and number == CARDS - 1:
            found += [
                {"name": f"gpu-{number}-mig-{index}", "capacity": {"memory": {"value": "19968Mi"}},
                 "attributes": {"type": {"string": "mig"}, "parentUUID": uuid, "profile": {"string": "3g.20gb"},
                                "uuid": {"string": f"MIG-{node:08x}-0000-4000-8000-{index:012x}"}}}
                for index in range(2)
            ]  # fmt: skip
        else:
            found.append(
                {"name": f"gpu-{number}", "capacity": {"memory": {"value": "40Gi"}},
                 "attributes": {"type": {"string": "gpu"}, "uuid": uuid}}
            )  # fmt: skip
    return found


def published(
    api: Api, namespace: str, nodes: int, *, is_cut: bool, tainted: Sequence[int] = (), resource: str | None = None
) -> list[str]:
    """Makes nodes, what their drivers publish, and the classes; returns the nodes' names.

    Args:
        tainted: numbers of cards that the driver closes on every node.
        resource: extended resource by which pods may ask for cards.
    """
    for kind in ("gpu", "mig"):
        name = f"{kind}.nvidia.com"
        selector = {"cel": {"expression": f'device.driver == "gpu.nvidia.com" && {attribute("type")} == "{kind}"'}}
        spec: dict[str, Any] = {
            "selectors": [selector],
            **({"extendedResourceName": resource} if resource and kind == "gpu" else {}),
        }
        api.create(f"{RESOURCES}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    names = [f"{namespace}-{number}" for number in range(nodes)]
    for number, name in enumerate(names):
        api.node(name, cards=0, labels={"for": namespace})
        offered = devices(namespace, number, is_cut=is_cut)
        for place in tainted:
            offered[place]["taints"] = [{"key": "health.example.com/link", "value": "bad", "effect": "NoSchedule"}]
        slices: dict[str, Any] = {
            "driver": "gpu.nvidia.com", "nodeName": name, "devices": offered,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        }  # fmt: skip
        api.create(f"{RESOURCES}/resourceslices", {"metadata": {"name": name}, "spec": slices})
    return names


def attribute(name: str) -> str:
    return f'device.attributes["gpu.nvidia.com"].{name}'


def whole_cards(api: Api, namespace: str, replicas: Mapping[str, int]) -> None:
    """Makes Deployments whose pods claim a whole card each, by a template of the team's own; waits until they run."""
    selector = {"cel": {"expression": f'{attribute("type")} == "gpu"'}}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "selectors": [selector]}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    path = f"{RESOURCES}/namespaces/{namespace}/resourceclaimtemplates"
    api.create(path, {"metadata": {"name": "one-card"}, "spec": spec})
    for name, count in replicas.items():
        claims = [{"name": "gpu", "resourceClaimTemplateName": "one-card"}]
        container = {"name": "server", "image": "registry/none:1", "resources": {"claims": [{"name": "gpu"}]}}
        deployment(api, namespace, name, replicas=count, pod_spec={"resourceClaims": claims, "containers": [container]})
        until_ready(api, namespace, name, count)


@pytest.fixture
def cluster(control_plane: ControlPlane, api: Api) -> Iterator[KubernetesCluster]:
    """Return the cluster with an administrator's rights."""
    assert api is not None
    place = ClusterPlace(kubeconfig=control_plane.kubeconfig(), requests_per_second=500.0, requests_burst=500)
    found = KubernetesCluster(place)
    yield found
    found.close()


@pytest.fixture
def gone_afterwards(api: Api, namespace: str) -> Iterator[None]:
    """Takes away what lies in no namespace, so that no other test's claims find it."""
    yield
    for kind in (f"{RESOURCES}/resourceslices", "/api/v1/nodes"):
        for found in api.ask("GET", kind)["items"]:
            name = found["metadata"]["name"]
            if name.startswith(f"{namespace}-"):
                api.delete(f"{kind}/{name}")
    for name in ("gpu.nvidia.com", "mig.nvidia.com"):
        if api.has(f"{RESOURCES}/deviceclasses/{name}"):
            api.delete(f"{RESOURCES}/deviceclasses/{name}")


def planned(
    namespace: str, nodes: Sequence[str], slices: Mapping[tuple[int, int], Sequence[PlacedSlice]],
    kind: RecommendationKind, cards_before: int,
) -> Plan:  # fmt: skip
    """A plan with one stage that brings all these pods to their cards, (node, number)."""
    parts = [replace(part, namespace=namespace) for group in slices.values() for part in group]
    pods = [part.pod for part in parts]
    stage = replace(
        a_recommendation("x", kind, pods, [], cards_before - len(slices)),
        pods=tuple(part.pod_id for part in parts),
        workloads=tuple(sorted({part.workload for part in parts})),
    )
    plan = a_plan({}, [[stage]], cards_before=cards_before)
    template = a_plan({0: [a_slice("x-0")]}, [[stage]]).placement[0]
    placement: list[CardPlacement] = []
    for (node, number), group in slices.items():
        own = tuple(replace(part, namespace=namespace) for part in group)
        place = card(namespace, node, number)
        placement.append(replace(template, card=place, node=nodes[node], framebuffer_bytes=40 * GIB, slices=own))
    return replace(plan, placement=tuple(placement))


def applied(api: Api, cluster: KubernetesCluster, backend: DraBackend, plan: Plan) -> RenderedStage:
    """Renders and writes the stage: our objects and every change as the server takes them strictly."""
    stage = backend.render(plan, 1, take_snapshot(cluster, backend.dialect))
    for manifest in stage.objects:
        assert cluster.make(manifest)
        assert not cluster.make(manifest), "it is there, and stays"
    keys = dict.fromkeys((change.kind, change.namespace, change.name) for change in stage.changes)
    for key in keys:
        own = [entry for entry in stage.changes if (entry.kind, entry.namespace, entry.name) == key]
        fields = [FieldChange(field=entry.field, value=entry.new) for entry in own]
        current = cluster.get(*key)
        assert current is not None
        cluster.patch(*key, fields, current["metadata"]["resourceVersion"])
    return stage


def seats(
    cluster: KubernetesCluster, backend: DraBackend, namespace: str
) -> tuple[Snapshot, dict[str, tuple[str, ...]]]:
    snapshot = take_snapshot(cluster, backend.dialect)
    return snapshot, {
        seat.pod: seat.cards for seat in snapshot.seats.values() if seat.namespace == namespace and seat.is_ready
    }


def held_cards(api: Api, namespace: str) -> set[tuple[str, str]]:
    """Devices that some claim of the namespace holds, by what the scheduler wrote: node and device."""
    claims = api.ask("GET", f"{RESOURCES}/namespaces/{namespace}/resourceclaims")["items"]
    return {
        (result["pool"], result["device"])
        for claim in claims
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    }


def slices_of(snapshot: Snapshot, namespace: str, name: str, **how: Any) -> list[PlacedSlice]:
    workload = WorkloadId(f"{namespace}/Deployment/{name}")
    return [replace(a_slice(f"{name}-0"), pod=seat.pod, workload=workload, **how) for seat in snapshot.pods[workload]]


def test_instances_are_allocated_on_the_planned_cards_and_whole_ones_are_free_again(
    api: Api, namespace: str, cluster: KubernetesCluster, gone_afterwards: None
) -> None:
    backend = DraMigBackend(NOW)
    nodes = published(api, namespace, 2, is_cut=True)
    whole_cards(api, namespace, {"a": 2, "b": 2})
    snapshot, before = seats(cluster, backend, namespace)
    assert len(set(before.values())) == 4, "each pod has a whole card of its own"
    a, b = (slices_of(snapshot, namespace, name, mig_profile="3g.20gb") for name in "ab")
    cut = CARDS - 1
    plan = planned(
        namespace, nodes, {(0, cut): [a[0], b[0]], (1, cut): [a[1], b[1]]}, RecommendationKind.MIG, cards_before=4
    )
    stage = applied(api, cluster, backend, plan)
    assert [manifest["kind"] for manifest in stage.objects] == ["ResourceClaimTemplate"] * 2
    wanted = {(node, f"gpu-{cut}-mig-{index}") for node in nodes for index in range(2)}
    until(lambda: held_cards(api, namespace) == wanted, f"claims hold {wanted}, not {held_cards(api, namespace)}")
    for name in "ab":
        until_ready(api, namespace, name, 2)
    assert 4 - len({(node, device.partition("-mig")[0]) for node, device in held_cards(api, namespace)}) == 2
    assert plan.stages[0].cards_freed == 2
    found, _ = seats(cluster, backend, namespace)
    wide = {part.resource for name in "ab" for seat in found.pods[WorkloadId(f"{namespace}/Deployment/{name}")]
            for part in seat.slices}  # fmt: skip
    assert wide == {manifest["metadata"]["name"] for manifest in stage.objects}


def test_pods_that_share_a_claim_share_the_planned_card_and_no_other_is_held(
    api: Api, namespace: str, cluster: KubernetesCluster, gone_afterwards: None
) -> None:
    backend = DraSharedBackend(NOW)
    nodes = published(api, namespace, 2, is_cut=False)
    whole_cards(api, namespace, {"a": 1, "b": 2})
    snapshot, before = seats(cluster, backend, namespace)
    free = next(
        (node, number)
        for node in range(2)
        for number in range(CARDS)
        if (card(namespace, node, number),) not in before.values()
    )
    parts = [part for name in "ab" for part in slices_of(snapshot, namespace, name, framebuffer_bytes=12 * GIB)]
    plan = planned(namespace, nodes, {free: parts}, RecommendationKind.SLICE, cards_before=3)
    stage = applied(api, cluster, backend, plan)
    (claim,) = stage.objects
    wanted = {(nodes[free[0]], f"gpu-{free[1]}")}
    until(lambda: held_cards(api, namespace) == wanted, f"one claim holds {wanted}")
    until_ready(api, namespace, "a", 1)
    until_ready(api, namespace, "b", 2)
    _, after = seats(cluster, backend, namespace)
    assert list(after.values()) == [(card(namespace, *free),)] * 3
    assert 3 - len(held_cards(api, namespace)) == plan.stages[0].cards_freed == 2
    found = api.ask("GET", f"{RESOURCES}/namespaces/{namespace}/resourceclaims/{claim['metadata']['name']}")
    assert len(found["status"]["reservedFor"]) == 3


def test_scheduler_gives_nobody_a_tainted_card_and_no_stage_does(
    api: Api, namespace: str, cluster: KubernetesCluster, gone_afterwards: None
) -> None:
    backend = DraSharedBackend(NOW)
    nodes = published(api, namespace, 1, is_cut=False, tainted=[0])
    whole_cards(api, namespace, {"a": 1, "b": 1})
    assert held_cards(api, namespace) == {(nodes[0], "gpu-1"), (nodes[0], "gpu-2")}
    snapshot, _ = seats(cluster, backend, namespace)
    parts = [part for name in "ab" for part in slices_of(snapshot, namespace, name, framebuffer_bytes=12 * GIB)]
    plan = planned(namespace, nodes, {(0, 0): parts}, RecommendationKind.SLICE, cards_before=2)
    with pytest.raises(Refused, match=r"taint health\.example\.com/link=bad:NoSchedule of driver gpu\.nvidia\.com"):
        backend.render(plan, 1, snapshot)


def test_pods_that_ask_by_an_extended_resource_are_seen_on_their_cards_and_come_to_the_planned_one(
    api: Api, namespace: str, cluster: KubernetesCluster, gone_afterwards: None
) -> None:
    backend = DraSharedBackend(NOW)
    nodes = published(api, namespace, 1, is_cut=False, resource="nvidia.com/gpu")
    for name in "ab":
        # Other tests' nodes may offer cards of the same name that no claim stands for.
        own = {"nodeSelector": {"for": namespace}}
        deployment(api, namespace, name, limits={"nvidia.com/gpu": "1"}, pod_spec=own)
        until_ready(api, namespace, name, 1)
    snapshot, before = seats(cluster, backend, namespace)
    held = {card(namespace, 0, int(device.removeprefix("gpu-"))) for _, device in held_cards(api, namespace)}
    assert len(held) == 2
    assert {place for cards in before.values() for place in cards} == held
    free = next(number for number in range(CARDS) if card(namespace, 0, number) not in held)
    parts = [part for name in "ab" for part in slices_of(snapshot, namespace, name, framebuffer_bytes=12 * GIB)]
    applied(
        api, cluster, backend,
        planned(namespace, nodes, {(0, free): parts}, RecommendationKind.SLICE, cards_before=2),
    )  # fmt: skip
    wanted = {(nodes[0], f"gpu-{free}")}
    until(lambda: held_cards(api, namespace) == wanted, f"one claim holds {wanted}")
    for name in "ab":
        until_ready(api, namespace, name, 1)
    _, after = seats(cluster, backend, namespace)
    assert list(after.values()) == [(card(namespace, 0, free),)] * 2


@pytest.mark.parametrize("make", [DraMigBackend, DraSharedBackend])
def test_workload_that_is_reclaimed_gives_its_claims_back(
    make: type[DraMigBackend] | type[DraSharedBackend], api: Api, namespace: str, cluster: KubernetesCluster,
    gone_afterwards: None,
) -> None:  # fmt: skip
    backend = make(NOW)
    published(api, namespace, 1, is_cut=False)
    whole_cards(api, namespace, {"a": 2})
    snapshot, before = seats(cluster, backend, namespace)
    assert len(before) == len(held_cards(api, namespace)) == 2
    pods = tuple(seat.pod_id for seat in snapshot.pods[WorkloadId(f"{namespace}/Deployment/a")])
    stage = replace(a_recommendation("x", RecommendationKind.RECLAIM, [], [], 2), pods=pods)
    applied(api, cluster, backend, a_plan({}, [[stage]], cards_before=2))
    until(lambda: held_cards(api, namespace) == set(), "no claim is held")


def test_manifests_of_claims_carry_no_field_that_the_server_does_not_know(api: Api, namespace: str) -> None:
    bad: Manifest = {"kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": {"devices": {"requsts": []}}}
    path = f"{RESOURCES}/namespaces/{namespace}/resourceclaims?fieldValidation=Strict"
    with pytest.raises(OSError, match="400"):
        api.ask("POST", path, bad)
