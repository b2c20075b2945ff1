"""On the real API server no plan keeps a pod from starting afterwards, and none begins without the admission."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import pytest

from enforcer.admission import SEAT_ANNOTATION, UNPINNED_ANNOTATION
from enforcer.kubernetes.admission_review import UNSEEN_SECONDS_MAX
from enforcer.kubernetes.departures import REASON
from enforcer.node_loss import node_losses
from enforcer.reconcile import find_drift
from enforcer.record.journal import StageState
from enforcer.snapshot import take_snapshot
from fleet.errors import Refused
from fleet.grammars.hami import (
    DEVICES_ALLOCATED_ANNOTATION,
    NODE_REGISTER_ANNOTATION,
    DeviceGrant,
    RegisteredDevice,
    parse_devices_allocated,
)
from tests.cluster import test_apply_and_undo as applying
from tests.cluster.api import Api, Manifest
from tests.cluster.audit import AuditLog
from tests.cluster.hami_double import HamiDouble, hami_node
from tests.cluster.served_admission import CONFIGURATIONS, NAME, ServedAdmission
from tests.cluster.test_apply_and_undo import Standing, apply_all, contents, plan_of
from tests.cluster.workloads import deployment, pods, until, until_ready
from tests.recommender.builders import Service

pytestmark = pytest.mark.cluster

hami, spare_cards = applying.hami, applying.spare_cards
standing = applying.standing
_CARD_MIB = 24_576


@pytest.fixture
def services() -> tuple[Service, ...]:
    """Return services of which one has two replicas."""
    return (
        Service(name="web", replicas=2, level=0.1, used_gib=3.0),
        Service(name="rank", level=0.15, used_gib=4.0),
        Service(name="embed", level=0.1, used_gib=2.0),
    )


def applied(standing: Standing) -> None:
    plan = plan_of(standing)
    assert plan.totals.cards_freed > 0
    assert apply_all(standing, plan) == [(StageState.PROMOTED, None)] * len(plan.rollout_stages)
    time.sleep(UNSEEN_SECONDS_MAX)  # so long a seat that was given counts as taken


def a_spare_node(api: Api, standing: Standing) -> str:
    name = f"{standing.prefix}-spare"
    devices = [
        RegisteredDevice(
            card=f"GPU-{name}-{number}", slices_max=10, framebuffer_mib=_CARD_MIB, core_percent=100,
            device_type="NVIDIA-NVIDIA A10", numa=0, is_healthy=True, index=number, mode="hami-core",
        )
        for number in range(4)
    ]  # fmt: skip
    hami_node(api, name, devices)
    return name


def all_pods(api: Api, standing: Standing) -> list[Manifest]:
    return [pod for service in standing.services for pod in pods(api, standing.namespace, service.name)]


def departures(api: Api, standing: Standing) -> list[str]:
    """Messages of events that say so, on owners of the fleet."""
    found = api.ask("GET", f"/api/v1/namespaces/{standing.namespace}/events")["items"]
    owners = {service.name for service in standing.services}
    return [one["message"] for one in found if one["reason"] == REASON and one["involvedObject"]["name"] in owners]


def why_unpinned(pod: Manifest) -> str | None:
    found = pod["metadata"].get("annotations", {}).get(UNPINNED_ANNOTATION)
    return None if found is None else str(found)


def test_pods_of_a_node_that_is_deleted_after_a_plan_come_up_elsewhere(api: Api, standing: Standing) -> None:
    applied(standing)
    before = all_pods(api, standing)
    seated = [pod for pod in before if SEAT_ANNOTATION in pod["metadata"].get("annotations", {})]
    lost = seated[0]["spec"]["nodeName"]
    spare = a_spare_node(api, standing)
    try:
        api.delete(f"/api/v1/nodes/{lost}")
        for pod in before:
            # As the collector of lost nodes' pods does it, which takes its time.
            if pod["spec"]["nodeName"] == lost:
                api.delete(f"/api/v1/namespaces/{standing.namespace}/pods/{pod['metadata']['name']}")
        for service in standing.services:
            until_ready(api, standing.namespace, service.name, service.replicas)
        found = all_pods(api, standing)
        assert lost not in {pod["spec"]["nodeName"] for pod in found}
        reasons = {why for pod in found if (why := why_unpinned(pod)) is not None}
        assert reasons == {f"node {lost} is gone"}
        drifted = find_drift(standing.tools.journal, standing.cluster)
        assert {drift.found for drift in drifted if drift.kind == "Pod"} == reasons
        until(lambda: bool(departures(api, standing)), "an event says that the plan is departed from")
        assert all(f"node {lost} is gone" in message for message in departures(api, standing))
    finally:
        api.delete(f"/api/v1/nodes/{spare}")


def test_card_that_is_lost_after_a_plan_is_left_for_any_that_fits(
    api: Api, hami: HamiDouble, standing: Standing
) -> None:
    applied(standing)
    seated = [pod for pod in all_pods(api, standing) if SEAT_ANNOTATION in pod["metadata"].get("annotations", {})]
    card = str(cards_of(seated[0])[0])
    lost = [pod for pod in seated if card in cards_of(pod)]
    node = seated[0]["spec"]["nodeName"]
    spare = a_spare_node(api, standing)
    try:
        be_unhealthy(api, node, card)
        hami.look_again()
        for pod in lost:
            api.delete(f"/api/v1/namespaces/{standing.namespace}/pods/{pod['metadata']['name']}")
        for service in standing.services:
            until_ready(api, standing.namespace, service.name, service.replicas)
        found = all_pods(api, standing)
        assert card not in {name for pod in found for name in cards_of(pod)}
        reasons = {why for pod in found if (why := why_unpinned(pod)) is not None}
        assert reasons == {f"node {node} offers card {card} no more"}
        until(lambda: bool(departures(api, standing)), "an event says that the plan is departed from")
    finally:
        api.delete(f"/api/v1/nodes/{spare}")


def test_pod_whose_planned_card_was_filled_by_somebody_else_comes_up_on_another(api: Api, standing: Standing) -> None:
    applied(standing)
    owner = f"/apis/apps/v1/namespaces/{standing.namespace}/deployments/web"
    seated = pods(api, standing.namespace, "web")
    card, rest = cards_of(seated[0])[0], _CARD_MIB
    for pod in (pod for pod in all_pods(api, standing) if pod["metadata"]["labels"]["app"] != "web"):
        rest -= sum(grant.framebuffer_mib for grant in grants_of(pod) if grant.card == card)
    api.patch(owner, {"spec": {"replicas": 0}})
    until(lambda: not pods(api, standing.namespace, "web"), "the service is scaled in")
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(rest), "nvidia.com/gpucores": "1"}
    deployment(api, standing.namespace, "filler", limits=limits, annotations={"nvidia.com/use-gpuuuid": card})
    until_ready(api, standing.namespace, "filler", 1)
    api.patch(owner, {"spec": {"replicas": 2}})
    until_ready(api, standing.namespace, "web", 2)
    found = pods(api, standing.namespace, "web")
    reasons = [why_unpinned(pod) for pod in found]
    assert reasons.count(f"others took the room on card {card} that was planned for it") >= 1
    assert all(cards_of(pod) != [card] for pod in found)


def test_pods_whose_share_somebody_edits_after_a_plan_come_up_where_it_fits(api: Api, standing: Standing) -> None:
    applied(standing)
    spare = a_spare_node(api, standing)
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000"}
    (container,) = pods(api, standing.namespace, "web")[0]["spec"]["containers"]
    edited = {"name": container["name"], "resources": {"limits": limits, "requests": limits}}
    try:
        api.ask(
            "PATCH", f"/apis/apps/v1/namespaces/{standing.namespace}/deployments/web",
            {"spec": {"template": {"spec": {"containers": [edited]}}}},
            content_type="application/strategic-merge-patch+json",
        )  # fmt: skip
        until_ready(api, standing.namespace, "web", 2)
        until(lambda: {_limit(pod) for pod in pods(api, standing.namespace, "web")} == {"20k"}, "all are new")
        found = pods(api, standing.namespace, "web")
        reasons = [why_unpinned(pod) or "" for pod in found]
        assert any("asks for nvidia.com/gpumem=20k" in why for why in reasons)
        assert all(reasons)
        assert all(pod["spec"].get("nodeName") for pod in found)
    finally:
        api.delete(f"/api/v1/nodes/{spare}")


def _limit(pod: Manifest) -> str | None:
    found: str | None = pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpumem")
    return found


def test_pod_whose_planned_node_has_no_room_left_for_it_comes_up_on_another(api: Api, standing: Standing) -> None:
    applied(standing)
    owner = f"/apis/apps/v1/namespaces/{standing.namespace}/deployments/rank"
    (seated,) = pods(api, standing.namespace, "rank")
    node = seated["spec"]["nodeName"]
    spare = a_spare_node(api, standing)
    try:
        api.patch(owner, {"spec": {"replicas": 0}})
        until(lambda: not pods(api, standing.namespace, "rank"), "the service is scaled in")
        until(lambda: all(_stays(pod) for pod in _pods_on(api, node)), "who leaves the node has left it")
        offered = {"status": {"allocatable": {"pods": str(len(_pods_on(api, node)))}}}
        api.patch(f"/api/v1/nodes/{node}/status", offered)
        api.patch(owner, {"spec": {"replicas": 1}})
        until(lambda: why_unpinned(_ready_rank(api, standing)) is not None, "admission has heard of the node")
        pod = _ready_rank(api, standing)
        assert why_unpinned(pod) == f"node {node} has 0 pods left of the 1 it asks for"
        assert pod["spec"]["nodeName"] != node
    finally:
        api.patch(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": {"pods": "110"}}})
        api.delete(f"/api/v1/nodes/{spare}")


def _ready_rank(api: Api, standing: Standing) -> Manifest:
    """The pod of `rank`; one that came before admission had heard of the node is made anew."""
    until_ready(api, standing.namespace, "rank", 1)
    (pod,) = pods(api, standing.namespace, "rank")
    if why_unpinned(pod) is None:
        api.delete(f"/api/v1/namespaces/{standing.namespace}/pods/{pod['metadata']['name']}")
    return pod


def _pods_on(api: Api, node: str) -> list[Manifest]:
    unfinished = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    found: list[Manifest] = api.ask("GET", f"/api/v1/pods?fieldSelector={quote(unfinished)}")["items"]
    return found


def _stays(pod: Manifest) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def test_pod_that_the_scheduler_cannot_place_in_its_seat_is_made_anew_and_comes_up_elsewhere(
    api: Api, audit: AuditLog, standing: Standing
) -> None:
    applied(standing)
    owner = f"/apis/apps/v1/namespaces/{standing.namespace}/deployments/rank"
    (seated,) = pods(api, standing.namespace, "rank")
    node, port = seated["spec"]["nodeName"], [{"containerPort": 8080, "hostPort": 31_999}]
    spare = a_spare_node(api, standing)
    on_node = {"nodeSelector": {"kubernetes.io/hostname": node}}
    api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": on_node["nodeSelector"]}})
    holder = {"name": "server", "image": "registry/none:1", "ports": port}
    try:
        deployment(api, standing.namespace, "holder", pod_spec={"containers": [holder], **on_node})
        until_ready(api, standing.namespace, "holder", 1)
        api.patch(owner, {"spec": {"replicas": 0}})
        until(lambda: not pods(api, standing.namespace, "rank"), "the service is scaled in")
        began = audit.size()
        edited = {"name": seated["spec"]["containers"][0]["name"], "ports": port}
        api.ask(
            "PATCH", owner, {"spec": {"replicas": 1, "template": {"spec": {"containers": [edited]}}}},
            content_type="application/strategic-merge-patch+json",
        )  # fmt: skip
        until_ready(api, standing.namespace, "rank", 1, 90.0)
        (pod,) = pods(api, standing.namespace, "rank")
        assert why_unpinned(pod) == "each of its 1 planned seats is taken"
        assert pod["spec"]["nodeName"] != node
        evicted = [write for write in audit.writes(began) if write.resource == "pods/eviction"]
        assert [write.user for write in evicted] == ["system:serviceaccount:gputide:gputide-admission"]
        until(lambda: any("could not be scheduled" in one for one in departures(api, standing)), "an event says why")
    finally:
        api.delete(f"/api/v1/nodes/{spare}")


def test_services_that_would_not_survive_the_loss_of_a_node_are_known_before(api: Api, standing: Standing) -> None:
    applied(standing)
    every = list(standing.cluster.list_objects("Pod", standing.namespace))
    node = every[0]["spec"]["nodeName"]
    there = {pod["metadata"]["labels"]["app"] for pod in every if pod["spec"]["nodeName"] == node}
    spare = a_spare_node(api, standing)
    others = {one["metadata"]["name"] for one in api.ask("GET", "/api/v1/nodes")["items"]} - {node}

    def ended() -> set[str]:
        losses = node_losses(take_snapshot(standing.cluster), every)
        return {str(loss.workload).rpartition("/")[2] for loss in losses if loss.node == node}

    try:
        assert ended() == set()
        for other in others:
            api.patch(f"/api/v1/nodes/{other}", {"spec": {"unschedulable": True}})
        assert ended() == there
    finally:
        for other in others:
            api.patch(f"/api/v1/nodes/{other}", {"spec": {"unschedulable": None}})
        api.delete(f"/api/v1/nodes/{spare}")


def be_unhealthy(api: Api, node: str, card: str) -> None:
    """Let a node register a card as its plugin does after XID 79."""
    path = f"/api/v1/nodes/{node}"
    register = json.loads(api.ask("GET", path)["metadata"]["annotations"][NODE_REGISTER_ANNOTATION])
    for entry in register:
        if entry["id"] == card:
            entry.pop("health")
    api.patch(path, {"metadata": {"annotations": {NODE_REGISTER_ANNOTATION: json.dumps(register)}}})


def grants_of(pod: Manifest) -> list[DeviceGrant]:
    text = pod["metadata"].get("annotations", {}).get(DEVICES_ALLOCATED_ANNOTATION, "")
    return [grant for parts in parse_devices_allocated(text) for grant in parts]


def cards_of(pod: Manifest) -> list[str]:
    return [grant.card for grant in grants_of(pod)]


def test_replicas_beyond_the_planned_ones_are_not_pinned_and_no_template_names_a_place(
    api: Api, standing: Standing
) -> None:
    applied(standing)
    spare = a_spare_node(api, standing)
    try:
        path = f"/apis/apps/v1/namespaces/{standing.namespace}/deployments/web"
        api.patch(path, {"spec": {"replicas": 6}})
        until_ready(api, standing.namespace, "web", 6)
        found = pods(api, standing.namespace, "web")
        assert sum(why_unpinned(pod) == "each of its 2 planned seats is taken" for pod in found) == 4
        pinned = [pod for pod in found if why_unpinned(pod) is None]
        assert all("metadata.name" in json.dumps(pod["spec"]["affinity"]) for pod in pinned)
        assert not any("affinity" in pod["spec"] for pod in found if pod not in pinned)
    finally:
        api.delete(f"/api/v1/nodes/{spare}")
    names = {str(card.card) for card in standing.history.inventory.cards}
    names |= {node.node for node in standing.history.inventory.nodes}
    text = json.dumps([template["spec"]["template"] for template in _owners(api, standing)])
    assert [name for name in sorted(names) if name in text] == []


def _owners(api: Api, standing: Standing) -> list[Any]:
    kinds = ("deployments", "replicasets", "statefulsets", "daemonsets")
    return [
        item
        for kind in kinds
        for item in api.ask("GET", f"/apis/apps/v1/namespaces/{standing.namespace}/{kind}")["items"]
    ]


def test_pods_start_while_the_admission_is_away(api: Api, standing: Standing, admission: ServedAdmission) -> None:
    applied(standing)
    admission.stop_answering()
    for pod in pods(api, standing.namespace, "web"):
        api.delete(f"/api/v1/namespaces/{standing.namespace}/pods/{pod['metadata']['name']}")
    until_ready(api, standing.namespace, "web", 2)
    assert not any(SEAT_ANNOTATION in pod["metadata"]["annotations"] for pod in pods(api, standing.namespace, "web"))


def _unregistered(api: Api, admission: ServedAdmission) -> None:
    del admission
    api.delete(f"{CONFIGURATIONS}/{NAME}")


def _silent(api: Api, admission: ServedAdmission) -> None:
    del api
    admission.stop_answering()


def _elsewhere(api: Api, admission: ServedAdmission) -> None:
    del admission
    found = api.ask("GET", f"{CONFIGURATIONS}/{NAME}")
    found["webhooks"][0]["namespaceSelector"] = {"matchLabels": {"team": "other"}}
    api.patch(f"{CONFIGURATIONS}/{NAME}", {"webhooks": found["webhooks"]})


def _closed(api: Api, admission: ServedAdmission) -> None:
    del admission
    found = api.ask("GET", f"{CONFIGURATIONS}/{NAME}")
    found["webhooks"][0]["failurePolicy"] = "Fail"
    api.patch(f"{CONFIGURATIONS}/{NAME}", {"webhooks": found["webhooks"]})


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_unregistered, r"no MutatingWebhookConfiguration has the webhook pods\.gputide\.io"),
        (_silent, "does not answer the API server"),
        (_elsewhere, r"leaves out namespace test-\d+"),
        (_closed, "failurePolicy Fail"),
    ],
)
def test_stage_is_refused_and_nothing_is_written_while_the_admission_would_give_no_seats(
    spoil: Any, why: str, api: Api, audit: AuditLog, standing: Standing, admission: ServedAdmission
) -> None:
    plan, before = plan_of(standing), contents(api, standing.namespace)
    spoil(api, admission)
    began = audit.size()
    with pytest.raises(Refused, match=why) as refused:
        apply_all(standing, plan)
    assert "docs/admission.yaml" in str(refused.value)
    written = [write for write in audit.writes(began) if write.user == applying.WRITER and not write.is_dry]
    assert {write.resource for write in written} <= {"leases"}
    assert contents(api, standing.namespace) == before
