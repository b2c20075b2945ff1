"""Plans keep to their backend's record: with every backend each stage is rendered and carried out, and frees cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from analyzer.profile import profile_fleet
from enforcer.backends.register import BACKENDS
from fleet.capabilities.register import CAPABILITIES, capabilities_of
from fleet.catalogue import find_model
from fleet.decisions import Plan, RecommendationKind
from fleet.documents import seal_plan
from fleet.inventory import CardModelName, Node, Priority
from fleet.settings.settings import Settings
from fleet.units import GIB
from fleet.usage import History
from recommender.planner import make_plan
from tests.gputide.backend_clusters import BackendCluster, with_uuids
from tests.recommender.builders import NOW, Service, cluster

pytestmark = pytest.mark.long

A100 = CardModelName("NVIDIA A100-SXM4-80GB")
HARD = (("gputide.io/isolation", "hard"),)
OPT_OUT = (("gputide.io/opt-out", "true"),)
FAST = (("gputide.io/latency-critical", "true"),)
MGPU_POLICY = "vke.volcengine.com/mgpu-compute-policy"
SHARING = {
    RecommendationKind.SLICE,
    RecommendationKind.OVERSUBSCRIBE,
    RecommendationKind.COLOCATE,
    RecommendationKind.OFFPEAK_PAIR,
    RecommendationKind.MIG,
}

SERVICES = (
    Service(name="wide", level=0.3, cards_per_pod=3, idle_cards=2),
    *(Service(name=f"small-{number}", replicas=4, level=0.08, used_gib=5.0) for number in range(3)),
    *(Service(name=f"single-{number}", level=0.15, used_gib=6.0) for number in range(3)),
    Service(name="half", replicas=2, level=0.45, used_gib=30.0),
    Service(name="day", replicas=2, level=0.7, hours=(8, 20), used_gib=20.0),
    Service(name="night", replicas=2, level=0.7, hours=(20, 24), used_gib=20.0),
    Service(name="book", kind="Notebook", level=0.1, priority=Priority.NORMAL, server="jupyter"),
    Service(name="train", kind="Job", level=0.5, priority=Priority.LOW, server="pytorch", used_gib=20.0),
    Service(name="busy", level=0.95, used_gib=70.0),
    Service(name="mine", level=0.1, labels=HARD),
    Service(name="mine-too", level=0.1, labels=HARD),
    Service(name="alone", level=0.1, labels=OPT_OUT),
    Service(name="fast", level=0.2, labels=FAST),
    Service(name="retired", kind="Notebook", level=0.0, priority=Priority.NORMAL, server="jupyter"),
)


@pytest.fixture(scope="module")
def fleet() -> History:
    """Services of every sort on A100s, four to a node, seen for four days."""
    big: Mapping[str, Any] = {
        "card_model": A100, "framebuffer_bytes": 80 * GIB, "framebuffer_granted_bytes": 80 * GIB,
    }  # fmt: skip
    history = cluster(*(replace(item, changes=dict(big)) for item in SERVICES), days=3, spare_cards=2)
    cards = tuple(replace(card, card_model=A100, framebuffer_bytes=80 * GIB) for card in history.inventory.cards)
    return with_uuids(replace(history, inventory=replace(history.inventory, cards=cards)))


def plan_with(fleet: History, backend: str) -> Plan:
    settings = Settings.model_validate(
        {
            "risk": {"preset": "high"},
            "plan": {"spare_card_ratio": 0.0},
            "enforcer": {"backend": backend},
            "recommender": {"packing": "greedy"},
        }
    )
    profiles = profile_fleet(fleet, settings=settings.analyzer, now=NOW)
    plan = make_plan(fleet, profiles, settings=settings, capability=capabilities_of(backend), now=NOW)
    return seal_plan(plan)


def with_policy(fleet: History, policy: str) -> History:
    nodes = tuple(Node(node=node.node, cluster="c", labels=((MGPU_POLICY, policy),)) for node in fleet.inventory.nodes)
    return replace(fleet, inventory=replace(fleet.inventory, nodes=nodes))


def carried_out(fleet: History, plan: Plan, backend: str) -> BackendCluster:
    """The cluster after all stages that are applied, not the tide's; a stage that is refused is an error."""
    adapter = dict(BACKENDS)[backend](NOW)
    standing = BackendCluster(fleet.inventory, adapter)
    for stage in plan.rollout_stages:
        standing.carry_out(plan, adapter.render(plan, stage, standing.snapshot()))
    return standing


CASES = [pytest.param(record.backend, None, id=record.backend) for record in CAPABILITIES] + [
    pytest.param("mgpu", policy, id=f"mgpu-{policy}") for policy in ("guaranteed-burst-share", "native-burst-share")
]


@pytest.mark.parametrize(("backend", "policy"), CASES)
def test_every_stage_of_a_plan_is_rendered_and_cards_fall_free(
    fleet: History, backend: str, policy: str | None
) -> None:
    history = fleet if policy is None else with_policy(fleet, policy)
    plan = plan_with(history, backend)
    standing = carried_out(history, plan, backend)
    held = standing.cards_held()
    assert len(held) == plan.totals.cards_after, "who sits where is what the plan says"
    kinds = {item.kind for item in plan.recommendations}
    record = capabilities_of(backend)
    assert not {kind.value for kind in kinds} & {kind for kind, _ in record.refuses}
    assert sum(stage.cards_freed for stage in plan.stages) == plan.totals.cards_freed
    if policy != "native-burst-share" and (record.can_share or record.cuts_by_mig):
        whole = plan_with(fleet, "whole_cards")
        assert kinds & SHARING
        assert plan.totals.cards_freed > whole.totals.cards_freed, "sharing frees cards beyond those that are idle"


@pytest.mark.parametrize("backend", ["nvidia_time_slicing", "nvidia_mps"])
def test_cards_that_are_counted_as_freed_lie_on_nodes_that_share_none(fleet: History, backend: str) -> None:
    plan = plan_with(fleet, backend)
    sizes: dict[str, int] = defaultdict(int)
    for card in plan.placement:
        sizes[card.node or ""] = max(sizes[card.node or ""], len(card.slices))
    used = {card.card for card in plan.placement}
    shared = {node for node, slices in sizes.items() if slices > 1}
    assert shared
    empty = [card for card in fleet.inventory.cards if card.node in shared and card.card not in used]
    assert not empty, "the plugin spreads replicas over all cards of a node, so none of them is whole again"


def test_instances_are_of_the_model(fleet: History) -> None:
    model = find_model(A100)
    assert model is not None
    assert model.mig is not None
    profiles = {profile.name for profile in model.mig.profiles}
    parts = [part for card in plan_with(fleet, "mig").placement for part in card.slices if part.mig_profile]
    assert parts
    assert {part.mig_profile for part in parts} <= profiles
