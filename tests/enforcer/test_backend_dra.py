"""DRA: claims that pick the plan's cards, instances that must be published, and what one claim can't say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from enforcer.backend import RenderedStage
from enforcer.backends.dra import DraBackend, DraMigBackend, DraSharedBackend
from enforcer.backends.dra_claims import classes_of, own_claim
from enforcer.backends.dra_counted import DraCountedBackend
from enforcer.manifest import Manifest, set_field
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Misconfigured, Refused
from tests.contracts.gpu_backend import BackendContract
from tests.enforcer.builders import HALF, NOW, a_plan, a_recommendation, a_slice, card_id, whole
from tests.enforcer.plugin_cluster import StandingCluster, a_node, a_pod, an_owner, nodes_of_seats

MIG, SHARED, COUNTED = DraMigBackend(NOW), DraSharedBackend(NOW), DraCountedBackend(NOW)
PODS = ["a-0", "a-1", "b-0", "b-1"]
OWNERS = ["Deployment/a", "Deployment/b"]
HOME = {"a-0": 1, "a-1": 2, "b-0": 3, "b-1": 5}
CUT = (0, 4)
"""Cards that are cut, one on each node."""


def device(number: int) -> str:
    return f"gpu-{number % 4}"


def published(node: int) -> Manifest:
    devices: list[dict[str, Any]] = []
    for number in range(4 * node, 4 * node + 4):
        uuid = {"string": card_id(number)}
        if number in CUT:
            devices += [
                {"name": f"{device(number)}-mig-{index}", "capacity": {"memory": {"value": "19968Mi"}},
                 "attributes": {"uuid": {"string": f"MIG-{number:08x}-0000-4000-8000-{index:012x}"},
                                "parentUUID": uuid, "profile": {"string": "3g.20gb"}, "type": {"string": "mig"}}}
                for index in range(2)
            ]  # fmt: skip
        else:
            devices.append(
                {"name": device(number), "attributes": {"uuid": uuid, "type": {"string": "gpu"}},
                 "capacity": {"memory": {"value": "24Gi"}}}
            )  # fmt: skip
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{node}", "resourceVersion": "1"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": f"node-{node}",
            "pool": {"name": f"node-{node}"},
            "devices": devices,
        },
    }


def template(name: str, device_class: str = "gpu.nvidia.com", namespace: str = "team") -> Manifest:
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    return {
        "kind": "ResourceClaimTemplate",
        "metadata": {"namespace": namespace, "name": name, "resourceVersion": "1"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def claimed(name: str, devices: Sequence[tuple[int, str]], users: Sequence[str]) -> Manifest:
    results = [{"driver": "gpu.nvidia.com", "pool": f"node-{node}", "device": named} for node, named in devices]
    return {
        "kind": "ResourceClaim",
        "metadata": {"namespace": "team", "name": name, "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users],
        },
    }


def claiming_pod(pod: str, node: int, entry: Mapping[str, str], claim: str, uid: str | None = None) -> Manifest:
    name, _, number = pod.partition("-")
    made = a_pod(name, int(number), f"node-{node}", limits={}, claims=[entry])
    made["metadata"]["uid"] = uid or f"uid-{pod}"
    made["status"]["resourceClaimStatuses"] = [{"name": entry["name"], "resourceClaimName": claim}]
    return made


def claiming_owner(name: str) -> Manifest:
    """Pods with a card by a claim of the team's own, and a network card by another."""
    claims = [
        {"name": "gpu", "resourceClaimTemplateName": "one-card"},
        {"name": "nic", "resourceClaimTemplateName": "one-nic"},
    ]
    owner = an_owner(name, limits={}, spec={"resourceClaims": claims})
    containers = owner["spec"]["template"]["spec"]["containers"]
    containers[0]["resources"]["claims"] = [{"name": "gpu"}, {"name": "nic"}]
    return owner


def objects() -> list[Manifest]:
    entry = {"name": "gpu", "resourceClaimTemplateName": "one-card"}
    return [
        a_node("node-0", offers={}),
        a_node("node-1", offers={}),
        published(0),
        published(1),
        template("one-card"),
        template("one-nic", "rdma.example.com"),
        *(claiming_owner(name) for name in "ab"),
        *(claimed(f"{pod}-gpu", [(number // 4, device(number))], [pod]) for pod, number in HOME.items()),
        *(claiming_pod(pod, number // 4, entry, f"{pod}-gpu") for pod, number in HOME.items()),
    ]


def instances() -> Plan:
    """a on one cut card, b on the other, two instances each."""
    parts = {pod: replace(a_slice(pod), mig_profile="3g.20gb") for pod in PODS}
    return a_plan(
        {0: [parts["a-0"], parts["b-0"]], 4: [parts["a-1"], parts["b-1"]]},
        [[a_recommendation("mig-1", RecommendationKind.MIG, PODS, OWNERS, 2)]],
    )


def one_card() -> Plan:
    """All four pods on card 6."""
    return a_plan(
        {6: [a_slice(pod, framebuffer_bytes=HALF // 2) for pod in PODS]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, PODS, OWNERS, 3)]],
    )


def rendered(backend: DraBackend, plan: Plan, given: Sequence[Manifest] | None = None) -> RenderedStage:
    cluster = StandingCluster(objects() if given is None else given)
    return backend.render(plan, 1, take_snapshot(cluster, backend.dialect))


def told(stage: RenderedStage) -> dict[str, str | None]:
    return {f"{change.kind}/{change.name} {change.field}": change.new for change in stage.changes}


@pytest.fixture
def cluster() -> StandingCluster:
    return StandingCluster(objects())


class TestMig(BackendContract):
    @pytest.fixture
    def backend(self) -> DraBackend:
        return MIG

    @pytest.fixture
    def plan(self) -> Plan:
        return instances()


class TestShared(BackendContract):
    @pytest.fixture
    def backend(self) -> DraBackend:
        return SHARED

    @pytest.fixture
    def plan(self) -> Plan:
        return one_card()


def test_seat_is_the_card_that_the_claims_device_lies_on() -> None:
    snapshot = take_snapshot(StandingCluster(objects()), MIG.dialect)
    assert {seat.pod: seat.cards for seat in snapshot.seats.values()} == {
        pod: (card_id(number),) for pod, number in HOME.items()
    }
    assert sorted(snapshot.cards) == [card_id(number) for number in range(8)], "cut ones too"
    assert snapshot.cards[card_id(1)].framebuffer_mib == 24 * 1024
    assert snapshot.cards[card_id(CUT[0])].framebuffer_mib == 2 * 19968


def test_instances_are_claimed_of_the_planned_cards_by_a_template_of_each_workload() -> None:
    stage = rendered(MIG, instances())
    assert [(entry["kind"], entry["metadata"]["namespace"]) for entry in stage.objects] == [
        ("ResourceClaimTemplate", "team"),
        ("ResourceClaimTemplate", "team"),
    ]
    (request,) = stage.objects[0]["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "mig.nvidia.com"
    (selector,) = request["exactly"]["selectors"]
    assert '.profile == "3g.20gb"' in selector["cel"]["expression"]
    assert f'.parentUUID in ["{card_id(0)}", "{card_id(4)}"]' in selector["cel"]["expression"]
    names = {entry["metadata"]["name"] for entry in stage.objects}
    fields = told(stage)
    for name in "ab":
        claims = json.loads(fields[f"Deployment/{name} spec.template.spec.resourceClaims"] or "")
        assert [entry["name"] for entry in claims] == ["nic", "gputide-card"], "other claims stay"
        assert claims[1]["resourceClaimTemplateName"] in names
        path = f"Deployment/{name} spec.template.spec.containers[server].resources.claims"
        assert json.loads(fields[path] or "") == [{"name": "nic"}, {"name": "gputide-card"}]


def test_pods_that_share_a_card_name_one_claim() -> None:
    stage = rendered(SHARED, one_card())
    (claim,) = stage.objects
    name = f"gputide-{card_id(6).lower()}"
    assert (claim["kind"], claim["metadata"]["name"]) == ("ResourceClaim", name)
    (request,) = claim["spec"]["devices"]["requests"]
    assert f'.uuid in ["{card_id(6)}"]' in request["exactly"]["selectors"][0]["cel"]["expression"]
    for owner in "ab":
        claims = json.loads(told(stage)[f"Deployment/{owner} spec.template.spec.resourceClaims"] or "")
        assert {"name": "gputide-card", "resourceClaimName": name} in claims
    assert {part.card for move in stage.moves for part in move.new} == {card_id(6)}


@pytest.mark.parametrize(("backend", "make"), [(MIG, instances), (SHARED, one_card)])
def test_stage_that_is_applied_renders_empty(backend: DraBackend, make: Any, cluster: StandingCluster) -> None:
    plan = make()
    stage = backend.render(plan, 1, take_snapshot(cluster, backend.dialect))
    for change in stage.changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    for manifest in stage.objects:
        cluster.put(manifest)
    if backend is SHARED:
        name = f"gputide-{card_id(6).lower()}"
        cluster.put(claimed(name, [(1, device(6))], PODS))
        for pod in PODS:
            cluster.put(claiming_pod(pod, 1, {"name": "gputide-card", "resourceClaimName": name}, name))
    else:
        # The scheduler put both of a on one card and both of b on the other: the template names both cards.
        names = {manifest["metadata"]["name"][8]: manifest["metadata"]["name"] for manifest in stage.objects}
        for pod, number, index in (("a-0", 0, 0), ("a-1", 0, 1), ("b-0", 4, 0), ("b-1", 4, 1)):
            cluster.put(claimed(f"{pod}-x", [(number // 4, f"{device(number)}-mig-{index}")], [pod]))
            entry = {"name": "gputide-card", "resourceClaimTemplateName": names[pod[0]]}
            cluster.put(claiming_pod(pod, number // 4, entry, f"{pod}-x"))
    again = backend.render(plan, 1, take_snapshot(cluster, backend.dialect))
    assert (again.moves, again.changes, again.objects) == ((), (), ())


def test_devices_of_the_plugin_are_given_up_for_a_claim() -> None:
    given = [entry for entry in objects() if entry["metadata"]["name"][0] != "a"]
    given += [an_owner("a"), *(a_pod("a", number, "node-0") for number in range(2))]
    fields = told(rendered(SHARED, one_card(), given))
    assert fields["Deployment/a spec.template.spec.containers[server].resources.limits[nvidia.com/gpu]"] is None


def test_whole_cards_elsewhere_are_claimed_by_their_uuids() -> None:
    plan = a_plan(
        {6: [whole("a-0")], 7: [whole("a-1")]},
        [[a_recommendation("x", RecommendationKind.REHOME, ["a-0", "a-1"], OWNERS[:1], 0)]],
    )
    (claim,) = rendered(SHARED, plan).objects
    expression = claim["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"]
    assert expression.endswith(f'.uuid in ["{card_id(6)}", "{card_id(7)}"]')


def test_pods_that_nobody_needs_go_by_scale() -> None:
    plan = a_plan({1: [whole("a-0")]}, [[a_recommendation("x", RecommendationKind.RECLAIM, ["a-1"], OWNERS[:1], 1)]])
    stage = rendered(MIG, plan)
    assert told(stage)["Deployment/a spec.replicas"] == "1"
    assert stage.objects == ()


def test_instances_that_nobody_publishes_are_not_claimed() -> None:
    parts = [replace(a_slice(pod), mig_profile="3g.20gb") for pod in ("a-0", "b-0")]
    plan = a_plan(
        {1: parts, 2: [whole("a-1")], 5: [whole("b-1")]},
        [[a_recommendation("mig-1", RecommendationKind.MIG, ["a-0", "b-0"], OWNERS, 1)]],
    )
    alone = replace(plan, placement=plan.placement[:1])
    with pytest.raises(
        Refused, match=r"2 x 3g.20gb of card .*: the driver publishes 0 without a taint; cut the card first"
    ):
        rendered(MIG, alone)


@pytest.mark.parametrize(
    ("backend", "placement", "fact"),
    [
        (MIG, {6: [a_slice("a-0"), a_slice("b-0")]}, "claims a device per pod; enforcer.backend=dra_shared"),
        (SHARED, {0: [replace(a_slice("a-0"), mig_profile="3g.20gb")]}, "enforcer.backend=dra_mig claims instances"),
        (
            SHARED,
            {6: [a_slice("a-0"), a_slice("b-0")], 7: [a_slice("a-1"), a_slice("b-1")]},
            "its pods sit on 2 cards, a claim is of one card",
        ),
        (SHARED, {6: [a_slice("a-0", framebuffer_bytes=2 * HALF), a_slice("b-0")]}, "need 36.0 GiB together"),
        (
            SHARED,
            {6: [a_slice("a-0"), replace(a_slice("b-0"), namespace="other")]},
            "among other, team: a claim belongs to one namespace",
        ),
        (
            MIG,
            {0: [replace(a_slice("a-0"), mig_profile="3g.20gb")], 7: [whole("a-1")]},
            r"profiles \['3g.20gb', 'None'\], and a template names one claim",
        ),
    ],
)
def test_what_one_claim_cannot_say_is_refused_naming_the_fact(
    backend: DraBackend, placement: dict[int, list[Any]], fact: str
) -> None:
    kind = RecommendationKind.REHOME
    pods = [part.pod for parts in placement.values() for part in parts if part.namespace == "team"]
    with pytest.raises(Refused, match=fact):
        rendered(backend, a_plan(placement, [[a_recommendation("x", kind, pods, OWNERS, 0)]]))


@pytest.mark.parametrize(
    ("cards", "profile", "fact"),
    [
        (['GPU-1"] || true'], None, "no UUID of a card"),
        ([card_id(1)], '3g.20gb" || true', "no MIG profile"),
        ([card_id(number) for number in range(250)], None, "the API server takes 10240"),
    ],
)
def test_plan_cannot_write_an_expression_of_its_own(cards: list[str], profile: str | None, fact: str) -> None:
    with pytest.raises(Refused, match=fact):
        own_claim("a", cards, profile=profile, count=1)


def taint_rule(effect: str = "NoSchedule", **selector: str) -> Manifest:
    return {
        "kind": "DeviceTaintRule",
        "metadata": {"name": "broken-link", "resourceVersion": "1"},
        "spec": {"deviceSelector": selector, "taint": {"key": "ops.example.com/link", "value": "x", "effect": effect}},
    }


ON_CARD_6 = {"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-2"}


@pytest.mark.parametrize(
    ("effect", "selector"),
    [
        ("NoSchedule", ON_CARD_6),
        ("NoExecute", {"pool": "node-1"}),
        ("NoSchedule", {}),
        ("NoExecute", {"device": "gpu-2"}),
    ],
)
def test_no_pod_is_sent_to_a_card_that_an_administrator_closed(effect: str, selector: Mapping[str, str]) -> None:
    rule = taint_rule(effect, **selector)
    taint = rf"ops\.example\.com/link=x:{effect} of DeviceTaintRule broken-link"
    with pytest.raises(Refused, match=rf"on card {card_id(6)}: it has the taint {taint}"):
        rendered(SHARED, one_card(), [*objects(), rule])
    with pytest.raises(Refused, match=taint):
        counted(halves(), [*shareable_objects(), taint_rule(effect)])


def test_pod_that_stays_on_a_closed_card_is_not_made_anew_by_a_new_template() -> None:
    kind = RecommendationKind.REHOME
    alone = a_plan({1: [whole("a-0")], 7: [whole("a-1")]}, [[a_recommendation("x", kind, ["a-1"], OWNERS[:1], 0)]])
    closed = taint_rule(pool="node-0", device="gpu-1")
    fact = rf"cannot put pods on card {card_id(1)}: it has the taint"
    with pytest.raises(Refused, match=fact):
        rendered(SHARED, alone, [*objects(), closed])
    beside = a_plan(
        {1: [whole("a-0")], 7: [whole("a-1")]}, [[a_recommendation("x", kind, ["a-0", "a-1"], OWNERS[:1], 0)]]
    )
    with pytest.raises(Refused, match=fact):
        counted(beside, [*shareable_objects(), closed])
    leaving = a_plan({7: [whole("a-1")]}, [[a_recommendation("x", RecommendationKind.RECLAIM, ["a-0"], OWNERS[:1], 1)]])
    assert told(rendered(SHARED, leaving, [*objects(), closed]))["Deployment/a spec.replicas"] == "1"


class OldRole(StandingCluster):
    """Its role is of a time when nothing read rules that taint devices."""

    def list_objects(self, kind: str, namespace: str | None = None) -> tuple[Manifest, ...]:
        if kind == "DeviceTaintRule":
            raise Misconfigured("cannot list devicetaintrules: RBAC lacks verb list")
        return super().list_objects(kind, namespace)


def test_role_that_may_not_read_taints_stops_only_stages_that_send_pods_to_cards() -> None:
    snapshot = take_snapshot(OldRole(objects()), SHARED.dialect)
    assert snapshot.seats["team/a-0"].cards == (card_id(HOME["a-0"]),)
    for backend, plan in ((SHARED, one_card()), (MIG, instances())):
        with pytest.raises(Refused, match=r"closed them: .*RBAC lacks verb list"):
            backend.render(plan, 1, snapshot)
    with pytest.raises(Refused, match="RBAC lacks verb list"):
        COUNTED.render(halves(), 1, take_snapshot(OldRole(shareable_objects()), COUNTED.dialect))
    leaving = a_plan({7: [whole("a-1")]}, [[a_recommendation("x", RecommendationKind.RECLAIM, ["a-0"], OWNERS[:1], 1)]])
    assert SHARED.render(leaving, 1, snapshot).changes


@pytest.mark.parametrize(
    "rule",
    [
        taint_rule("None", **ON_CARD_6),
        taint_rule("PreferNoSchedule", **ON_CARD_6),
        taint_rule(**{**ON_CARD_6, "driver": "other.example.com"}),
        taint_rule(**{**ON_CARD_6, "pool": "node-0"}),
        taint_rule(device="gpu-1"),
        {**taint_rule(), "spec": {"taint": taint_rule()["spec"]["taint"]}},
    ],
    ids=["says only", "unknown effect", "another driver", "another node", "the card that is left", "selects nothing"],
)
def test_rule_that_does_not_close_the_card_stops_no_stage(rule: Manifest) -> None:
    assert rendered(SHARED, one_card(), [*objects(), rule]).moves


def test_what_its_driver_taints_is_not_claimed_card_or_instance() -> None:
    for place, backend, plan, fact in (
        (2, SHARED, one_card(), rf"on card {card_id(6)}: .*broken=:NoExecute of driver gpu.nvidia.com"),
        (0, MIG, instances(), r"2 x 3g.20gb of card .*: the driver publishes 1 without a taint"),
    ):
        given = objects()
        (slices,) = [entry for entry in given if entry["metadata"]["name"] == "slice-1"]
        devices = [one for one in slices["spec"]["devices"] if one["name"].startswith(f"gpu-{place}")]
        devices[0]["taints"] = [{"key": "broken", "effect": "NoExecute"}]
        with pytest.raises(Refused, match=fact):
            rendered(backend, plan, given)


def test_closed_card_of_a_node_counts_neither_as_free_nor_by_its_size() -> None:
    given = shareable_objects()
    (slices,) = [entry for entry in given if entry["metadata"]["name"] == "slice-1"]
    slices["spec"]["devices"][3] |= {"capacity": {"memory": {"value": "1Gi"}}}
    cluster = StandingCluster([*given, taint_rule(pool="node-1", device="gpu-3")])
    snapshot = take_snapshot(cluster, COUNTED.dialect)
    assert (COUNTED.free_cards("node-0", snapshot), COUNTED.free_cards("node-1", snapshot)) == (4, 3)
    assert COUNTED.shareable_mib(snapshot.nodes["node-1"], snapshot) == 24 * 1024


def test_claim_that_is_not_reserved_for_a_pod_gives_it_nothing() -> None:
    entry = {"name": "gpu", "resourceClaimName": "a-0-gpu"}
    given = [*objects(), claiming_pod("thief-0", 0, entry, "a-0-gpu", uid="uid-thief")]
    assert take_snapshot(StandingCluster(given), MIG.dialect).seats["team/thief-0"].slices == ()


def test_card_behind_an_extended_resource_is_its_claims_and_given_up_for_the_plans() -> None:
    given = [
        *(entry for entry in objects() if entry["kind"] not in ("Pod", "Deployment")),
        *(an_owner(name, limits={"nvidia.com/gpu": "1"}) for name in "ab"),
    ]
    for name, number in HOME.items():
        made = a_pod(name[0], int(name[2:]), f"node-{number // 4}", limits={"nvidia.com/gpu": "1"})
        mapped = {"containerName": "server", "resourceName": "nvidia.com/gpu", "requestName": "gpu"}
        made["metadata"]["uid"] = f"uid-{name}"
        made["status"]["extendedResourceClaimStatus"] = {
            "resourceClaimName": f"{name}-gpu", "requestMappings": [mapped],
        }  # fmt: skip
        given.append(made)
    snapshot = take_snapshot(StandingCluster(given), SHARED.dialect)
    assert {seat.pod: [part.card for part in seat.slices] for seat in snapshot.seats.values()} == {
        pod: [card_id(number)] for pod, number in HOME.items()
    }
    fields = told(rendered(SHARED, one_card(), given))
    assert fields["Deployment/a spec.template.spec.containers[server].resources.limits[nvidia.com/gpu]"] is None


@pytest.mark.parametrize("is_extended", [True, False])
def test_containers_of_a_pod_have_the_cards_of_their_own_requests(is_extended: bool) -> None:
    claim = claimed("both", [(0, "gpu-1"), (0, "gpu-2")], ["c-0"])
    for result, request in zip(claim["status"]["allocation"]["devices"]["results"], ("x", "y"), strict=True):
        result["request"] = request
    made = claiming_pod("c-0", 0, {"name": "gpu", "resourceClaimName": "both"}, "both")
    requests = {"server": "x", "proxy": "y"}
    made["spec"]["containers"] = [
        {"name": name, "resources": {} if is_extended else {"claims": [{"name": "gpu", "request": request}]}}
        for name, request in requests.items()
    ]
    if is_extended:
        made["status"]["extendedResourceClaimStatus"] = {
            "resourceClaimName": "both",
            "requestMappings": [
                {"containerName": name, "resourceName": "nvidia.com/gpu", "requestName": request}
                for name, request in {**requests, "init": "x"}.items()
            ],
        }
    seat = take_snapshot(StandingCluster([*objects(), claim, made]), SHARED.dialect).seats["team/c-0"]
    assert {(part.container, part.card) for part in seat.slices} == {
        ("server", card_id(1)), ("proxy", card_id(2)),
    }  # fmt: skip


def test_claim_that_cannot_be_read_is_left_out() -> None:
    broken = claimed("broken", [(0, "gpu-1")], ["x"])
    broken["status"]["allocation"]["devices"]["results"] = 7
    assert take_snapshot(StandingCluster([*objects(), broken]), MIG.dialect).seats["team/a-0"].slices


def test_classes_of_a_claim_are_those_of_all_its_alternatives() -> None:
    manifest = template("x")
    manifest["spec"]["spec"]["devices"]["requests"] = [
        {"name": "any", "firstAvailable": [{"deviceClassName": "mig.nvidia.com"}, {"deviceClassName": "other"}]}
    ]
    assert classes_of(manifest) == {"mig.nvidia.com", "other"}


def shareable_objects() -> list[Manifest]:
    """As `objects`, but no card is cut, and several claims may hold each."""
    found = objects()
    for manifest in found:
        if manifest["kind"] == "ResourceSlice":
            node = int(manifest["metadata"]["name"][-1])
            manifest["spec"]["devices"] = [
                {"name": device(number), "allowMultipleAllocations": True, "capacity": {"memory": {"value": "24Gi"}},
                 "attributes": {"uuid": {"string": card_id(number)}, "type": {"string": "gpu"}}}
                for number in range(4 * node, 4 * node + 4)
            ]  # fmt: skip
    return found


def halves() -> Plan:
    """Each of a beside one of b, on two cards of different nodes."""
    return a_plan(
        {1: [a_slice("a-0"), a_slice("b-0")], 5: [a_slice("a-1"), a_slice("b-1")]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, PODS, OWNERS, 2)]],
    )


class TestCounted(BackendContract):
    @pytest.fixture
    def cluster(self) -> StandingCluster:
        return StandingCluster(shareable_objects())

    @pytest.fixture
    def backend(self) -> DraCountedBackend:
        return COUNTED

    @pytest.fixture
    def plan(self) -> Plan:
        return halves()


def counted(plan: Plan, given: Sequence[Manifest]) -> RenderedStage:
    return COUNTED.render(plan, 1, take_snapshot(StandingCluster(given), COUNTED.dialect))


def test_part_of_a_card_is_capacity_of_a_claim_per_pod_and_pods_are_kept_on_their_nodes() -> None:
    stage = counted(halves(), shareable_objects())
    fields = told(stage)
    requests = [entry["spec"]["spec"]["devices"]["requests"][0]["exactly"] for entry in stage.objects]
    assert requests == [
        {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1,
         "capacity": {"requests": {"memory": f"{HALF // 2**20}Mi"}}}
    ] * 2  # fmt: skip
    for manifest, name in zip(stage.objects, "ab", strict=True):
        claims = json.loads(fields[f"Deployment/{name} spec.template.spec.resourceClaims"] or "")
        assert claims[-1] == {"name": "gputide-card", "resourceClaimTemplateName": manifest["metadata"]["name"]}
        seats = nodes_of_seats(fields[f"Deployment/{name} metadata.annotations[gputide.io/seats]"])
        assert set(seats) == {"node-0", "node-1"}


def test_what_claims_consume_is_read_and_a_stage_that_is_applied_renders_empty() -> None:
    cluster = StandingCluster(shareable_objects())
    stage = counted(halves(), shareable_objects())
    for change in stage.changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    for pod in PODS:
        node = int(pod[-1])
        claim = claimed(f"{pod}-new", [(node, device(1))], [pod])
        claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {"memory": f"{HALF // 2**20}Mi"}
        cluster.put(claim)
        entry = {"name": "gputide-card", "resourceClaimTemplateName": "made"}
        cluster.put(claiming_pod(pod, node, entry, f"{pod}-new"))
    again = COUNTED.render(halves(), 1, take_snapshot(cluster, COUNTED.dialect))
    assert (again.moves, again.changes, again.objects) == ((), (), ())


def test_cards_that_one_claim_holds_alone_are_not_shared() -> None:
    given = shareable_objects()
    (lone,) = [entry for entry in given if entry["metadata"]["name"] == "slice-1"]
    del lone["spec"]["devices"][3]["allowMultipleAllocations"]
    with pytest.raises(Refused, match=r"cards of node node-1: .*one claim holds alone .*ConsumableShares"):
        counted(halves(), given)


def test_more_than_the_driver_publishes_of_a_card_is_refused() -> None:
    given = shareable_objects()
    for entry in (one for one in given if one["kind"] == "ResourceSlice"):
        entry["spec"]["devices"][1]["capacity"] = {"memory": {"value": "22Gi"}}
    with pytest.raises(Refused, match=r"cannot grant 24576 MiB on card .* shares 22528 MiB"):
        counted(halves(), given)


def test_card_that_may_be_cut_is_as_large_as_its_driver_says_whatever_may_be_cut_of_it() -> None:
    """As the driver publishes it with its gate DynamicMIG: whole, and beside that every instance that is possible."""
    uuid = {"string": card_id(0)}
    cut = {"parentUUID": uuid, "profile": {"string": "3g.20gb"}, "type": {"string": "mig"}}
    devices: list[dict[str, Any]] = [
        {"name": "gpu-0", "attributes": {"uuid": uuid}, "capacity": {"memory": {"value": "40Gi"}}},
        *(
            {"name": f"gpu-0-mig-{start}", "attributes": cut, "capacity": {"memory": {"value": "20Gi"}}}
            for start in range(2)
        ),
    ]
    made = published(0)
    for order in (devices, devices[1:]):
        made["spec"]["devices"] = order
        (card,) = MIG.dialect.with_objects({"ResourceSlice": [made]}, {}).cards_of_node(a_node("node-0", offers={}))
        assert card.framebuffer_mib == 40 * 1024


def published_whole(profiles: tuple[str, ...] = ()) -> list[Manifest]:
    """What a driver publishes that cuts a card when it is claimed: the card beside all that may be cut of it."""
    given = objects()
    for made in (one for one in given if one["kind"] == "ResourceSlice"):
        for number in (number for number in CUT if made["metadata"]["name"] == f"slice-{number // 4}"):
            made["spec"]["devices"].append(
                {"name": f"{device(number)}-whole", "attributes": {"uuid": {"string": card_id(number)}},
                 "capacity": {"memory": {"value": "40Gi"}}}
            )  # fmt: skip
            part = next(one for one in made["spec"]["devices"] if one["attributes"].get("profile"))
            made["spec"]["devices"] += [
                {**part, "name": f"{device(number)}-{profile}",
                 "attributes": {**part["attributes"], "profile": {"string": profile},
                                "parentUUID": {"string": card_id(number)}}}
                for profile in profiles
            ]  # fmt: skip
    return given


def cut_plan(profile_of_b: str, owners: list[str]) -> Plan:
    """a-0 and b-0 have instances of card 0, a-1 one of card 4; recommended is what concerns the owners."""
    parts = {pod: replace(a_slice(pod), mig_profile="3g.20gb") for pod in PODS}
    beside = replace(parts["b-0"], mig_profile=profile_of_b)
    pods = [pod for pod in PODS[:3] if f"Deployment/{pod[0]}" in owners]
    own = [a_recommendation("mig-1", RecommendationKind.MIG, pods, owners, 1)]
    return a_plan({0: [parts["a-0"], beside], 4: [parts["a-1"]]}, [own])


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut before", "cut by the driver"])
def test_workloads_whose_pods_may_take_each_others_instances_name_the_same_cards(is_cut: bool) -> None:
    """Both pods of a may come to card 0, where b, which knew of no other, found none on kube-scheduler 1.36."""
    stage = rendered(MIG, cut_plan("3g.20gb", OWNERS), objects() if is_cut else published_whole())
    named = [one["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"]
             for one in stage.objects]  # fmt: skip
    assert [one.partition("parentUUID in ")[2] for one in named] == [f'["{card_id(0)}", "{card_id(4)}"]'] * 2


@pytest.mark.parametrize(
    ("profile_of_b", "owners", "fact"),
    [
        ("1g.5gb", OWNERS, r"instances of 1g.5gb, 3g.20gb are planned there, the scheduler chooses where each lies"),
        ("3g.20gb", OWNERS[:1], "team/Deployment/b has an instance there that this plan does not move"),
        ("3g.20gb", OWNERS[1:], "team/Deployment/a has an instance there that this plan does not move"),
    ],
)
def test_no_stage_lets_a_pod_take_what_another_has_no_other_place_for(
    profile_of_b: str, owners: list[str], fact: str
) -> None:
    with pytest.raises(Refused, match=fact):
        rendered(MIG, cut_plan(profile_of_b, owners), published_whole(("1g.5gb",)))
