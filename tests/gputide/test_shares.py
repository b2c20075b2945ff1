"""Shares are shares: what a plan's sentence and JSON say of framebuffer and compute is what the rendered patch grants.

The patches are read back here by each backend's published format, not by any parser that ships.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import yaml

from analyzer.profile import profile_fleet
from dashboards.words.advice import plan_in_english
from enforcer.backends.register import BACKENDS
from fleet.capabilities.register import CAPABILITIES, capabilities_of
from fleet.documents import seal_plan
from fleet.inventory import CardModelName, Node
from fleet.profiles import Profiles
from fleet.settings.settings import Settings
from fleet.units import GIB, MIB
from fleet.usage import History
from recommender.planner import make_plan
from tests.gputide.backend_clusters import BackendCluster, with_uuids
from tests.recommender.builders import NOW, Service, cluster

A100 = CardModelName("NVIDIA A100-SXM4-80GB")
HARD = (("gputide.io/isolation", "hard"),)
POLICY = "vke.volcengine.com/mgpu-compute-policy"
WHOLE = 1.0
SETTINGS = Settings.model_validate(
    {
        "risk": {"preset": "high"},
        "plan": {"spare_card_ratio": 0.0},
        "recommender": {"packing": "greedy"},
        "guard": {"gaps_allowed": True},
    }
)


@dataclass(frozen=True, kw_only=True)
class Granted:
    """What a patch grants each pod of a card: MiB and share of compute, None where nothing limits it."""

    framebuffer_mib: int | None
    compute_ratio: float | None


def services() -> list[Service]:
    """Peaks from 1 to 100 percent of a card, and needs of every odd size."""
    levels = [*range(1, 30), *range(30, 101, 7), 100]
    return [
        Service(
            name=f"{'hard' if number % 2 else 'soft'}-{level:03d}",
            level=level / 100,
            used_gib=1.37 + 29.3 * number / len(levels),
            labels=HARD if number % 2 else (),
        )
        for number, level in enumerate(levels)
    ]


@cache
def fleet_of(card_mib: int, policy: str | None) -> History:
    size = card_mib * MIB
    big: Mapping[str, Any] = {
        "card_model": A100, "framebuffer_bytes": size, "framebuffer_granted_bytes": size,
    }  # fmt: skip
    history = cluster(*(replace(item, changes=dict(big)) for item in services()), days=3, spare_cards=2)
    cards = tuple(replace(card, card_model=A100, framebuffer_bytes=size) for card in history.inventory.cards)
    labels = () if policy is None else ((POLICY, policy),)
    nodes = tuple(Node(node=node.node, cluster="c", labels=labels) for node in history.inventory.nodes)
    return with_uuids(replace(history, inventory=replace(history.inventory, cards=cards, nodes=nodes)))


@cache
def profiles_of(card_mib: int, policy: str | None) -> Profiles:
    return profile_fleet(fleet_of(card_mib, policy), settings=SETTINGS.analyzer, now=NOW)


def planned_and_carried_out(
    backend: str, card_mib: int, policy: str | None = None
) -> tuple[dict[str, Any], BackendCluster]:
    """The plan's JSON, and the cluster after all its stages."""
    history, profiles = fleet_of(card_mib, policy), profiles_of(card_mib, policy)
    plan = seal_plan(make_plan(history, profiles, settings=SETTINGS, capability=capabilities_of(backend), now=NOW))
    adapter = dict(BACKENDS)[backend](NOW)
    standing = BackendCluster(history.inventory, adapter)
    for stage in plan.stages:
        standing.carry_out(plan, adapter.render(plan, stage.stage, standing.snapshot()))
    return plan_in_english(plan), standing


def limits_of(owner: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = owner["spec"]["template"]["spec"]["containers"][0]["resources"].get("limits", {})
    return found


def by_resources(framebuffer: str, cores: str) -> Callable[..., Granted]:
    """HAMi's kin: MiB and percent of each card; a container that names no MiB has the card, and 0 percent limit none.

    Project-HAMi/HAMi:docs/userguide/Device-supported.md, pkg/device/nvidia/device.go (GenerateResourceRequests).
    """

    def read(owner: Mapping[str, Any], card_mib: int, _: BackendCluster, __: str) -> Granted:
        limits = limits_of(owner)
        if framebuffer not in limits:
            assert cores not in limits
            return Granted(framebuffer_mib=card_mib, compute_ratio=WHOLE)
        mib, percent = int(limits[framebuffer]), int(limits.get(cores, "0"))
        if mib == card_mib:
            return Granted(framebuffer_mib=mib, compute_ratio=WHOLE)
        return Granted(framebuffer_mib=mib, compute_ratio=percent / 100 if percent else None)

    return read


def mgpu(owner: Mapping[str, Any], card_mib: int, _: BackendCluster, __: str) -> Granted:
    """Multiples of 100 are whole cards, which name no framebuffer (Volcengine's help page on mGPU)."""
    limits = limits_of(owner)
    share = limits.get("vke.volcengine.com/mgpu-core") or limits["vke.volcengine.com/reclaimed-mgpu-core"]
    mib = int(limits.get("vke.volcengine.com/mgpu-memory", card_mib))
    return Granted(framebuffer_mib=mib, compute_ratio=int(share) / 100)


def kai(owner: Mapping[str, Any], card_mib: int, _: BackendCluster, __: str) -> Granted:
    """MiB in an annotation (kai-scheduler/KAI-Scheduler:docs/gpu-sharing/README.md); compute is nobody's."""
    annotations = owner["spec"]["template"]["metadata"].get("annotations", {})
    if "gpu-memory" not in annotations:
        return Granted(framebuffer_mib=card_mib, compute_ratio=WHOLE)
    return Granted(framebuffer_mib=int(annotations["gpu-memory"]), compute_ratio=None)


def kai_nvfractions(owner: Mapping[str, Any], card_mib: int, _: BackendCluster, __: str) -> Granted:
    """Quantities of a container by its name (kai-scheduler/KAI-Scheduler:docs/gpu-sharing/nv-fraction)."""
    annotations = owner["spec"]["template"]["metadata"].get("annotations", {})
    container = owner["spec"]["template"]["spec"]["containers"][0]["name"]
    asked = [annotations.get(f"nvidia.com/container.{container}.gpu-memory.{bound}") for bound in ("request", "limit")]
    if asked == [None, None]:
        return Granted(framebuffer_mib=card_mib, compute_ratio=WHOLE)
    request, limit = (int(str(text).removesuffix("Mi")) for text in asked)
    assert request == limit
    return Granted(framebuffer_mib=request, compute_ratio=None)


def counted(owner: Mapping[str, Any], card_mib: int, _: BackendCluster, __: str) -> Granted:
    """A card, or one of its replicas, which grants nothing in numbers (NVIDIA/k8s-device-plugin:README.md)."""
    if "nvidia.com/gpu.shared" in limits_of(owner):
        return Granted(framebuffer_mib=None, compute_ratio=None)
    return Granted(framebuffer_mib=card_mib, compute_ratio=WHOLE)


def mps(owner: Mapping[str, Any], card_mib: int, standing: BackendCluster, node: str) -> Granted:
    """Whole MiB and whole percent of equal parts (NVIDIA/k8s-device-plugin:cmd/mps-control-daemon/mps/daemon.go)."""
    if "nvidia.com/gpu.shared" not in limits_of(owner):
        return Granted(framebuffer_mib=card_mib, compute_ratio=WHOLE)
    snapshot = standing.snapshot()
    key = snapshot.nodes[node]["metadata"]["labels"]["nvidia.com/device-plugin.config"]
    config = next(entry for entry in snapshot.configs.values() if key in entry["data"])
    replicas = yaml.safe_load(config["data"][key])["sharing"]["mps"]["resources"][0]["replicas"]
    return Granted(framebuffer_mib=card_mib // replicas, compute_ratio=(100 // replicas) / 100)


def claimed(owner: Mapping[str, Any], card_mib: int, _: BackendCluster, __: str) -> Granted:
    """A claim by name is a card for all who name it, a template one card for each pod (resource.k8s.io/v1)."""
    claims = owner["spec"]["template"]["spec"]["resourceClaims"]
    if any("resourceClaimName" in entry for entry in claims):
        return Granted(framebuffer_mib=None, compute_ratio=None)
    return Granted(framebuffer_mib=card_mib, compute_ratio=WHOLE)


def counted_claim(owner: Mapping[str, Any], card_mib: int, standing: BackendCluster, _: str) -> Granted:
    """A template of claims whose request names memory is a part of a card for each pod (resource.k8s.io/v1)."""
    namespace = owner["metadata"]["namespace"]
    name = owner["spec"]["template"]["spec"]["resourceClaims"][-1]["resourceClaimTemplateName"]
    template = standing.manifest("ResourceClaimTemplate", namespace, name)
    request = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    if "capacity" not in request:
        return Granted(framebuffer_mib=card_mib, compute_ratio=WHOLE)
    return Granted(
        framebuffer_mib=int(request["capacity"]["requests"]["memory"].removesuffix("Mi")), compute_ratio=None
    )


HAMI_WORDS = by_resources("nvidia.com/gpumem", "nvidia.com/gpucores")
READERS: Mapping[str, Callable[..., Granted]] = {
    "whole_cards": counted,
    "hami": HAMI_WORDS,
    "effectivegpu": HAMI_WORDS,
    "volcano": by_resources("volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"),
    "mgpu": mgpu,
    "vgpu_manager": by_resources("nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"),
    "kai": kai,
    "kai_nvfractions": kai_nvfractions,
    "nvidia_time_slicing": counted,
    "nvidia_mps": mps,
    "dra_shared": claimed,
    "dra_consumable": counted_claim,
}
CASES = [
    *(pytest.param(name, 81_559, None, id=f"{name}-odd") for name in READERS),
    *(pytest.param(name, 24_564, None, id=f"{name}-small") for name in READERS),
    *(
        pytest.param("mgpu", 81_559, policy, id=f"mgpu-{policy}")
        for policy in ("guaranteed-burst-share", "fixed-share")
    ),
]


@pytest.mark.parametrize(("backend", "card_mib", "policy"), CASES)
def test_patch_grants_what_the_plan_says(backend: str, card_mib: int, policy: str | None) -> None:
    plan, standing = planned_and_carried_out(backend, card_mib, policy)
    owners = {str(name): owner for name, owner in standing.snapshot().owners.items()}
    sentences = {
        item["workloads"][0]: item["reason"] for item in plan["recommendations"] if item["id"].startswith("slice-0")
    }
    shared = 0
    for card in plan["placement"]:
        for part in card["slices"]:
            granted = READERS[backend](owners[part["workload"]], card_mib, standing, card["node"])
            assert part["compute_ratio"] == granted.compute_ratio, part
            if granted.framebuffer_mib is None:
                assert plan["framebuffer_isolation"] == "none"
            else:
                assert part["framebuffer_bytes"] == granted.framebuffer_mib * MIB, part
            said = sentences.get(part["workload"], "")
            if said:
                shared += 1
                check_sentence(said, part, granted)
    assert shared or not capabilities_of(backend).can_share


def check_sentence(said: str, part: Mapping[str, Any], granted: Granted) -> None:
    """The sentence's own numbers, read as a person reads them."""
    size = re.search(r"(\d+\.\d\d) of \d+ GiB", said)
    assert size is not None, said
    assert float(size[1]) == pytest.approx(part["framebuffer_bytes"] / GIB, abs=0.0051)
    percent = re.search(r"(\d+) % of the card's compute", said)
    assert (None if percent is None else int(percent[1]) / 100) == granted.compute_ratio, said
    assert ("nothing limits its framebuffer" in said) is (granted.framebuffer_mib is None), said


@pytest.mark.parametrize("backend", ["mig", "dra_mig"])
def test_patch_asks_for_the_instance_that_the_plan_says(backend: str) -> None:
    plan, standing = planned_and_carried_out(backend, 80 * GIB // MIB)
    snapshot = standing.snapshot()
    found = 0
    for part in (part for card in plan["placement"] for part in card["slices"] if part["mig_profile"]):
        profile = part["mig_profile"]
        owner = snapshot.owners[part["workload"]]
        if backend == "mig":
            assert f"nvidia.com/mig-{profile}" in limits_of(owner)
        # NVIDIA's MIG user guide: of `1g.10gb` the first is compute slices of 7, the second GB of framebuffer.
        sizes = re.fullmatch(r"(\d)g\.(\d+)gb", profile)
        assert sizes is not None
        assert part["compute_ratio"] <= int(sizes[1]) / 7
        assert 0.9 * int(sizes[2]) * 1e9 <= part["framebuffer_bytes"] <= int(sizes[2]) * GIB
        found += 1
    assert found


def test_every_backend_is_read() -> None:
    assert {*READERS, "mig", "dra_mig"} == {record.backend for record in CAPABILITIES}
