"""What a plan is rendered to for NVIDIA's programs is what they advertise: replicas, portions of MPS, MIG instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import yaml

from enforcer.backend import Backend, RenderedStage
from enforcer.backends.device_plugin import MIG_CONFIGS
from enforcer.backends.mig import CONFIG_LABEL, MigBackend
from enforcer.backends.nvidia_sharing import MpsBackend, TimeSlicingBackend
from enforcer.manifest import Manifest
from enforcer.snapshot import take_snapshot
from fleet.decisions import PlacedSlice, Plan, RecommendationKind
from fleet.inventory import CardModelName
from fleet.units import GIB, MIB
from tests.enforcer.builders import a_plan, a_recommendation, a_slice, whole
from tests.enforcer.plugin_cluster import StandingCluster, a_config, a_node, a_pod, an_owner
from tests.engines.nvidia_node import NvidiaNode
from tests.exporter.nvml.standin import A100

pytestmark = pytest.mark.engines

NOW = datetime(2026, 1, 12, tzinfo=UTC)
MODEL = CardModelName("NVIDIA A100-SXM4-40GB")
MIG_A100 = {**A100, "cc": "8.0"}
CARDS = 4
SLICES_OF = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 3, "7g.40gb": 7}


def on_a100(placement: Mapping[int, Sequence[PlacedSlice]], kind: RecommendationKind) -> Plan:
    """A plan for the four cards of node-0, in which every pod moves."""
    pods = sorted(part.pod for slices in placement.values() for part in slices)
    owners = sorted({f"Deployment/{pod.rsplit('-', 1)[0]}" for pod in pods})
    plan = a_plan(placement, [[a_recommendation("x", kind, pods, owners, 1)]])
    cards = tuple(replace(card, card_model=MODEL, framebuffer_bytes=40 * GIB) for card in plan.placement)
    return replace(plan, placement=cards)


def rendered(plan: Plan, backend: Backend, config: Manifest, **labels: str) -> RenderedStage:
    """The only stage, for pods that hold whole cards of node-0 yet."""
    told = {f"nvidia.com/{name}": value for name, value in labels.items()}
    pods = [part.pod.rpartition("-") for card in plan.placement for part in card.slices]
    cluster = StandingCluster(
        [a_node("node-0", CARDS, labels=told), config]
        + [an_owner(name) for name in sorted({name for name, _, _ in pods})]
        + [a_pod(name, int(number), "node-0") for name, _, number in pods]
    )
    return backend.render(plan, 1, take_snapshot(cluster, backend.dialect))


def written(stage: RenderedStage, kind: str) -> str:
    (text,) = (change.new for change in stage.changes if change.kind == kind and change.field.startswith("data["))
    assert text is not None
    return text


def halves() -> Plan:
    """Three pods on one card, two on another: every card of the node becomes three replicas."""
    small = 13 * GIB
    return on_a100(
        {0: [a_slice(f"{name}-0", framebuffer_bytes=small, compute_ratio=0.3) for name in "abc"],
         1: [a_slice(f"{name}-1", framebuffer_bytes=small, compute_ratio=0.3) for name in "ab"]},
        RecommendationKind.SLICE,
    )  # fmt: skip


@pytest.mark.parametrize("backend", [TimeSlicingBackend(NOW), MpsBackend(NOW)])
def test_plugin_advertises_as_many_replicas_as_the_node_is_waited_for(backend: Backend, node: NvidiaNode) -> None:
    stage = rendered(halves(), backend, a_config())
    (step,) = stage.node_steps
    for _ in range(CARDS):
        node.card(**A100, cc="8.0")
    config = written(stage, "ConfigMap")
    if isinstance(backend, MpsBackend):
        node.start_mps_daemon(config=config)
        node.start_plugin("--mps-root=/run/nvidia/mps", config=config)
    else:
        node.start_plugin(config=config)
    ((resource, count),) = node.devices.resources().items()
    assert (f"status.allocatable[{resource}]", str(count)) == (step.done_field, step.done_value)
    limits = [change.field for change in stage.changes if change.new == "1" and ".limits[" in change.field]
    assert len(limits) == 3
    assert all(field.endswith(f".limits[{resource}]") for field in limits)
    for pod in ("a-0", "a-1", "b-0", "b-1", "c-0"):
        assert len(node.hand_out(pod, resource).ids) == 1


def test_client_of_mps_has_at_least_what_the_plan_grants(node: NvidiaNode) -> None:
    plan = halves()
    for _ in range(CARDS):
        node.card(**A100, cc="8.0")
    node.start_mps_daemon(config=written(rendered(plan, MpsBackend(NOW), a_config()), "ConfigMap"))
    said = [line.split() for line in node.said_to_mps()]
    mib = [int(line[2].removesuffix("M")) for line in said if line[0] == "set_default_device_pinned_mem_limit"]
    (percent,) = (int(line[1]) for line in said if line[0] == "set_default_active_thread_percentage")
    granted = [part for card in plan.placement for part in card.slices]
    assert len(mib) == CARDS
    assert min(mib) >= max(part.framebuffer_bytes for part in granted) // MIB
    assert percent >= 100 * max(part.compute_ratio or 0.0 for part in granted)


@pytest.mark.parametrize(
    "layouts",
    [
        {0: ["1g.5gb"] * 7},
        {0: ["3g.20gb", "2g.10gb", "1g.5gb"], 1: ["3g.20gb", "2g.10gb", "1g.5gb"], 2: None},
        {0: ["7g.40gb"], 1: ["2g.10gb"] * 3, 2: ["1g.5gb"], 3: None},
    ],
)
def test_cards_cut_as_rendered_satisfy_mig_parted_and_are_advertised_as_promised(
    layouts: dict[int, list[str] | None], node: NvidiaNode
) -> None:
    stage, name, config = cut(layouts)
    for _ in range(CARDS):
        node.card(**MIG_A100, mig=0)
    for entry in yaml.safe_load(config)["mig-configs"][name]:
        slices = [SLICES_OF[profile] for profile, count in entry.get("mig-devices", {}).items() for _ in range(count)]
        for number in entry["devices"] if slices else ():
            node.cut(number, *slices)
    asserted = node.mig_parted("assert", f"--selected-config={name}", config=config)
    assert asserted.returncode == 0, asserted.stderr
    (step,) = stage.node_steps
    promised = {field: value for field, value in step.advertised if value != "0"}
    node.start_plugin("--mig-strategy=mixed", waits_for=len(promised))
    offered = {f"status.allocatable[{name}]": str(count) for name, count in node.devices.resources().items() if count}
    assert offered == promised


def test_mig_parted_says_so_where_a_node_is_cut_otherwise(node: NvidiaNode) -> None:
    _, name, config = cut({0: ["3g.20gb", "3g.20gb"]})
    for _ in range(CARDS):
        node.card(**MIG_A100, mig=0)
    valid = node.mig_parted("assert", "--valid-config", f"--selected-config={name}", config=config)
    assert valid.returncode == 0, valid.stderr
    assert node.mig_parted("assert", f"--selected-config={name}", config=config).returncode == 1
    node.cut(0, 3, 2)
    refused = node.mig_parted("assert", f"--selected-config={name}", config=config)
    assert refused.returncode == 1
    assert "selected configuration not currently applied" in refused.stderr


def cut(layouts: Mapping[int, Sequence[str] | None]) -> tuple[RenderedStage, str, str]:
    """The stage that cuts node-0, the name of its configuration, and the file that has it."""
    placement: dict[int, list[PlacedSlice]] = {}
    for card, profiles in layouts.items():
        placement[card] = [whole(f"w{card}-0", framebuffer_bytes=40 * GIB)] if profiles is None else [
            replace(a_slice(f"{profile.replace('.', '')}-{10 * card + number}"), mig_profile=profile)
            for number, profile in enumerate(profiles)
        ]  # fmt: skip
    others = "version: v1\nmig-configs:\n  all-disabled:\n  - devices: all\n    mig-enabled: false\n"
    config = a_config(MIG_CONFIGS[0], {"config.yaml": others})
    plan = on_a100(placement, RecommendationKind.MIG)
    stage = rendered(plan, MigBackend(NOW), config, **{"mig.strategy": "mixed"})
    (name,) = (change.new for change in stage.changes if change.field == f"metadata.labels[{CONFIG_LABEL}]")
    assert name is not None
    return stage, name, written(stage, "ConfigMap")
