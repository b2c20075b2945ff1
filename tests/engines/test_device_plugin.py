"""What NVIDIA's device plugin advertises and hands out is what the exporter attributes: cards, replicas, instances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.allocation.manifest import counts_devices
from exporter.reader import Reading
from fleet.grammars.device_ids import DeviceIdForm, parse_device_id
from fleet.schema import Measure
from tests.engines.device_manager import HandedOut, RefusedByPluginError
from tests.engines.nvidia_node import NvidiaNode, instance_used_bytes
from tests.exporter.nvml.standin import A100, DATA_VARIABLE, GIB, library_file, uuid
from tests.fleet.written_annotations import render_device_id
from tests.gputide.test_node_exporter import exporting

pytestmark = pytest.mark.engines

MIG_A100 = {**A100, "cc": "8.0"}


def sharing(kind: str, resources: Mapping[str, int], **more: str) -> str:
    """A configuration that lets several pods share each device of a resource."""
    options = "".join(f"    {name}: {value}\n" for name, value in more.items())
    shared = "".join(f"    - name: {name}\n      replicas: {count}\n" for name, count in resources.items())
    return f"version: v1\nsharing:\n  {kind}:\n{options}    resources:\n{shared}"


def visible(handed: HandedOut) -> list[str]:
    """What the container runtime is told to show."""
    return sorted(handed.environ["NVIDIA_VISIBLE_DEVICES"].split(","))


def values(reading: Reading, measure: Measure) -> dict[str, float]:
    """What is told of a measure, by pod."""
    if measure not in reading.slice_values:
        return {}
    told = zip(reading.slices, reading.slice_values[measure].tolist(), strict=True)
    return {key.pod: value for key, value in told if not math.isnan(value)}


def held_cards(node: NvidiaNode) -> dict[str, list[str]]:
    """Cards of each pod by the exporter."""
    return {pod: [str(grant.card) for grant in grants] for pod, grants in node.grants().items()}


def amounts(node: NvidiaNode) -> dict[str, tuple[int, float]]:
    """Framebuffer (bytes) and share of compute of each pod's only slice by the exporter."""
    return {
        pod: (grant.framebuffer_granted_bytes, grant.compute_granted_ratio) for pod, (grant,) in node.grants().items()
    }


# --- whole cards ------------------------------------------------------------------------------------------------------


def test_whole_cards_that_are_handed_out_are_attributed_one_by_one(node: NvidiaNode) -> None:
    for _ in range(3):
        node.card()
    node.start_plugin("--pass-device-specs")
    assert node.devices.resources() == {"nvidia.com/gpu": 3}
    assert sorted(row["topology"]["nodes"][0]["ID"] for row in node.kubelet.devices) == [0, 1, 1]
    pair, single = node.hand_out("pair", "nvidia.com/gpu", 2), node.hand_out("single", "nvidia.com/gpu")
    assert held_cards(node) == {"pair": visible(pair), "single": visible(single)}
    assert sorted(visible(pair) + visible(single)) == [uuid(0), uuid(1), uuid(2)]
    assert single.device_files == (f"/dev/nvidia{visible(single)[0][-1]}",)
    assert {grant.compute_granted_ratio for grants in node.grants().values() for grant in grants} == {1.0}


def test_card_that_was_handed_out_and_is_never_used_has_a_slice_at_zero(node: NvidiaNode) -> None:
    node.card(util=0, used=0)
    node.start_plugin()
    node.hand_out("idle", "nvidia.com/gpu")
    node.read()
    reading = node.read()
    assert values(reading, Measure.DUTY_CYCLE) == values(reading, Measure.FRAMEBUFFER_USED) == {"idle": 0.0}


def test_card_that_went_from_one_pod_to_the_next_is_attributed_to_the_next(node: NvidiaNode) -> None:
    node.card()
    node.start_plugin()
    node.hand_out("first", "nvidia.com/gpu")
    assert held_cards(node) == {"first": [uuid(0)]}
    node.devices.take_back("first")
    assert held_cards(node) == {}
    node.hand_out("second", "nvidia.com/gpu")
    assert held_cards(node) == {"second": [uuid(0)]}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--device-list-strategy=volume-mounts",), f"/var/run/nvidia-container-devices/{uuid(1)}"),
        (("--device-id-strategy=index",), "1"),
    ],
)
def test_card_is_the_same_however_the_runtime_is_told_of_it(node: NvidiaNode, flags: Sequence[str], told: str) -> None:
    node.card()
    node.card()
    node.start_plugin(*flags)
    handed = {pod: node.hand_out(pod, "nvidia.com/gpu") for pod in ("a", "b")}
    cards = held_cards(node)
    (of_second,) = (given for pod, given in handed.items() if cards[pod] == [uuid(1)])
    assert told in (*of_second.mounts, *visible(of_second))


# --- shared by time slicing -------------------------------------------------------------------------------------------


def test_pods_that_share_cards_by_time_slicing_have_each_their_part_of_the_card_that_they_see(node: NvidiaNode) -> None:
    node.card()
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {"nvidia.com/gpu": 4}))
    assert node.devices.resources() == {"nvidia.com/gpu": 8}
    handed = {f"pod-{number}": node.hand_out(f"pod-{number}", "nvidia.com/gpu") for number in range(5)}
    assert all("::" in name for given in handed.values() for name in given.ids)
    assert held_cards(node) == {pod: visible(given) for pod, given in handed.items()}
    assert set(amounts(node).values()) == {(20 * GIB, 0.25)}
    assert {cards[0] for cards in held_cards(node).values()} == {uuid(0), uuid(1)}


def test_pod_that_never_uses_its_share_has_a_slice_at_zero_beside_one_that_does(node: NvidiaNode) -> None:
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {"nvidia.com/gpu": 2}))
    node.hand_out("busy", "nvidia.com/gpu")
    node.hand_out("idle", "nvidia.com/gpu")
    node.process(100, "busy", 0, mem=5 * GIB, sm=50)
    node.read()
    reading = node.read()
    assert values(reading, Measure.FRAMEBUFFER_USED) == {"busy": 5 * GIB, "idle": 0.0}
    assert values(reading, Measure.DUTY_CYCLE) == {"busy": pytest.approx(0.5), "idle": 0.0}


def test_pod_with_two_shares_has_a_slice_of_each_card_that_they_lie_on(node: NvidiaNode) -> None:
    node.card()
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {"nvidia.com/gpu": 4}))
    pair = node.hand_out("pair", "nvidia.com/gpu", 2)
    assert held_cards(node) == {"pair": visible(pair)}
    assert {grant.framebuffer_granted_bytes for grant in node.grants()["pair"]} == {
        80 * GIB * len(pair.ids) // len(visible(pair)) // 4
    }


def test_containers_of_one_pod_have_each_their_own_slice(node: NvidiaNode) -> None:
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {"nvidia.com/gpu": 4}))
    node.hand_out("pod", "nvidia.com/gpu")
    node.devices.grant("pod", "nvidia.com/gpu", 2, container_name="sidecar")
    assert [(grant.container, grant.compute_granted_ratio) for grant in node.grants()["pod"]] == [
        ("main", 0.25),
        ("sidecar", 0.5),
    ]


def test_several_shares_for_one_pod_are_refused_where_the_configuration_says_so(node: NvidiaNode) -> None:
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {"nvidia.com/gpu": 4}, failRequestsGreaterThanOne="true"))
    with pytest.raises(RefusedByPluginError, match="maximum request size for shared resources is 1; found 2"):
        node.hand_out("pair", "nvidia.com/gpu", 2)
    assert held_cards(node) == {}


def test_resource_that_is_renamed_is_attributed_like_any_other(node: NvidiaNode) -> None:
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {"nvidia.com/gpu": 3}, renameByDefault="true"))
    assert node.devices.resources() == {"nvidia.com/gpu.shared": 3}
    assert counts_devices("nvidia.com/gpu.shared")
    handed = node.hand_out("shared", "nvidia.com/gpu.shared")
    assert visible(handed) == [uuid(0)]
    assert amounts(node) == {"shared": (80 * GIB // 3, 1 / 3)}


# --- cut by MIG -------------------------------------------------------------------------------------------------------


def test_instances_of_one_size_are_advertised_as_cards_and_attributed_as_instances(node: NvidiaNode) -> None:
    instances = []
    for number in range(2):
        node.card(**MIG_A100)
        instances += node.cut(number, *[1] * 7)
    node.start_plugin("--mig-strategy=single")
    assert node.devices.resources() == {"nvidia.com/gpu": 14}
    assert node.devices.devices("nvidia.com/gpu") == sorted(instances)
    handed = {f"pod-{number:02}": node.hand_out(f"pod-{number:02}", "nvidia.com/gpu") for number in range(14)}
    assert {name for given in handed.values() for name in visible(given)} == set(instances)
    used = values(node.read(), Measure.FRAMEBUFFER_USED)
    places = {pod: divmod(instances.index(visible(given)[0]), 7) for pod, given in handed.items()}
    assert used == {pod: instance_used_bytes(card, 1 + number) for pod, (card, number) in places.items()}
    grants = {pod: grant for pod, (grant,) in node.grants().items()}
    assert {pod: grant.card for pod, grant in grants.items()} == {pod: uuid(card) for pod, (card, _) in places.items()}
    assert {grant.mig_profile for grant in grants.values()} == {"1g.5gb"}


def test_instances_of_several_sizes_have_resources_of_their_own_beside_whole_cards(node: NvidiaNode) -> None:
    node.card(**MIG_A100)
    node.card(**MIG_A100, mig=0)
    instances = node.cut(0, 3, 2, 1)
    node.start_plugin("--mig-strategy=mixed", "--pass-device-specs", waits_for=4)
    resources = ["nvidia.com/mig-3g.20gb", "nvidia.com/mig-2g.10gb", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu"]
    assert node.devices.resources() == dict.fromkeys(resources, 1)
    assert all(map(counts_devices, resources))
    handed = {
        resource.rpartition("/")[2]: node.hand_out(resource.rpartition("/")[2], resource) for resource in resources
    }
    assert [visible(given) for given in handed.values()] == [[instances[0]], [instances[1]], [instances[2]], [uuid(1)]]
    assert len(handed["mig-1g.5gb"].device_files) == 3
    grants = {pod: grant for pod, (grant,) in node.grants().items()}
    assert {pod: (grant.card, grant.mig_profile) for pod, grant in grants.items()} == {
        "mig-3g.20gb": (uuid(0), "3g.20gb"),
        "mig-2g.10gb": (uuid(0), "2g.10gb"),
        "mig-1g.5gb": (uuid(0), "1g.5gb"),
        "gpu": (uuid(1), None),
    }
    assert [round(grant.compute_granted_ratio * 7) for _, grant in sorted(grants.items())] == [7, 1, 2, 3]


def test_pod_with_several_instances_of_a_card_has_one_slice_of_their_sum(node: NvidiaNode) -> None:
    node.card(**MIG_A100)
    instances = node.cut(0, 1, 1, 1)
    node.start_plugin("--mig-strategy=mixed")
    handed = node.hand_out("many", "nvidia.com/mig-1g.5gb", 3)
    assert visible(handed) == sorted(instances)
    (grant,) = node.grants()["many"]
    assert grant.framebuffer_granted_bytes == 3 * 4864 << 20
    assert values(node.read(), Measure.FRAMEBUFFER_USED) == {
        "many": sum(instance_used_bytes(0, number) for number in (1, 2, 3))
    }


def test_shares_of_an_instance_are_parts_of_it(node: NvidiaNode) -> None:
    node.card(**MIG_A100)
    (instance,) = node.cut(0, 3)
    shared = sharing("timeSlicing", {"nvidia.com/mig-3g.20gb": 2}, renameByDefault="true")
    node.start_plugin("--mig-strategy=mixed", config=shared)
    assert node.devices.resources() == {"nvidia.com/mig-3g.20gb.shared": 2}
    assert counts_devices("nvidia.com/mig-3g.20gb.shared")
    handed = {pod: node.hand_out(pod, "nvidia.com/mig-3g.20gb.shared") for pod in ("a", "b")}
    assert [visible(given) for given in handed.values()] == [[instance], [instance]]
    assert amounts(node) == dict.fromkeys(("a", "b"), ((19968 << 20) // 2, 3 / 7 / 2))


def test_card_that_is_cut_and_handed_out_whole_is_one_slice(node: NvidiaNode) -> None:
    node.card(**MIG_A100)
    node.cut(0, 3, 3)
    node.start_plugin("--mig-strategy=none")
    assert node.devices.resources() == {"nvidia.com/gpu": 1}
    assert visible(node.hand_out("whole", "nvidia.com/gpu")) == [uuid(0)]
    assert amounts(node) == {"whole": (40 * GIB, 1.0)}


def test_instances_that_an_old_driver_names_by_their_card_are_found(node: NvidiaNode) -> None:
    node.card(**MIG_A100)
    _, small = node.cut(0, 3, 2, is_old=True)
    node.start_plugin("--mig-strategy=mixed", waits_for=2)
    assert visible(node.hand_out("old", "nvidia.com/mig-2g.10gb")) == [small] == [f"MIG-{uuid(0)}/2/0"]
    assert values(node.read(), Measure.FRAMEBUFFER_USED) == {"old": instance_used_bytes(0, 2)}
    assert amounts(node) == {"old": (9856 << 20, 2 / 7)}


# --- all of it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "slices", "is_old", "replicas"),
    [
        (DeviceIdForm.CARD, (), False, {}),
        (DeviceIdForm.REPLICA, (), False, {"nvidia.com/gpu": 3}),
        (DeviceIdForm.MIG, (3, 3), False, {}),
        (DeviceIdForm.MIG_REPLICA, (3, 3), False, {"nvidia.com/mig-3g.20gb": 3}),
        (DeviceIdForm.MIG_LEGACY, (3, 3), True, {}),
        (DeviceIdForm.MIG_LEGACY, (3, 3), True, {"nvidia.com/mig-3g.20gb": 3}),
    ],
)
def test_every_id_that_is_advertised_is_of_the_grammar(
    node: NvidiaNode, form: DeviceIdForm, slices: Sequence[int], is_old: bool, replicas: Mapping[str, int]
) -> None:
    node.card(**MIG_A100)
    if slices:
        node.cut(0, *slices, is_old=is_old)
    node.start_plugin("--mig-strategy=mixed", config=sharing("timeSlicing", replicas) if replicas else None)
    (resource,) = node.devices.resources()
    advertised = node.devices.devices(resource)
    assert len(advertised) == max(1, len(slices)) * replicas.get(resource, 1)
    parsed = [parse_device_id(name) for name in advertised]
    assert {device.form for device in parsed} == {form}
    assert [render_device_id(device) for device in parsed] == advertised
    assert {device.is_replica for device in parsed} == {bool(replicas)}


def test_exporters_process_serves_every_container_with_what_it_was_handed(node: NvidiaNode, tmp_path: Path) -> None:
    node.card(**MIG_A100)
    node.card(**MIG_A100, mig=0)
    node.cut(0, 3, 2)
    shared = sharing("timeSlicing", {"nvidia.com/gpu": 4}, renameByDefault="true")
    node.start_plugin("--mig-strategy=mixed", config=shared, waits_for=3)
    handed = {
        pod: node.hand_out(pod, resource)
        for pod, resource in (
            ("cut-3", "nvidia.com/mig-3g.20gb"), ("cut-2", "nvidia.com/mig-2g.10gb"), ("part", "nvidia.com/gpu.shared"),
        )
    }  # fmt: skip
    assert [len(visible(given)) for given in handed.values()] == [1, 1, 1]
    with exporting(
        tmp_path, f"exporter.nvml_library={library_file()}", f"exporter.pod_resources_socket={node.kubelet.path}",
        f"exporter.containers_folder={tmp_path / 'none'}", "exporter.node=node-1", "cluster.name=c",
        environ={DATA_VARIABLE: str(node.world.file)},
    ) as exporter:  # fmt: skip
        text = exporter.until_shown(r'^gputide_slice_info\{.*pod="part"')
    served = {
        sample.labels["pod"]: [
            sample.labels.get(name)
            for name in ("card", "mig_profile", "framebuffer_granted_bytes", "compute_granted_ratio")
        ]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gputide_slice_info"
    }
    assert served == {
        "cut-3": [uuid(0), "3g.20gb", f"{19968 << 20}", f"{3 / 7:.10f}"],
        "cut-2": [uuid(0), "2g.10gb", f"{9856 << 20}", f"{2 / 7:.10f}"],
        "part": [uuid(1), None, f"{10 * GIB}", "0.25"],
    }
