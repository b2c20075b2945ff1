"""A fleet that is planned and applied on a backend that is played, and where its pods really came to.

The plan is the product's, and so is its carrying out; where pods are is read from what the backend's scheduler wrote.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from analyzer.profile import profile_fleet
from enforcer.backends.register import BACKENDS
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.record.journal import Journal, StageState
from enforcer.record.ledger import Ledger
from enforcer.rollout.carry import CarryPolicy
from enforcer.rollout.stages import Rollout
from enforcer.rollout.tools import RolloutPolicy, Tools
from enforcer.rollout.watch import ClusterSignals
from enforcer.safety.guard import Guard, GuardPolicy
from fleet.capabilities.register import capabilities_of
from fleet.decisions import CardPlacement, Plan
from fleet.documents import seal_plan
from fleet.errors import Refused
from fleet.inventory import CardId
from fleet.settings.settings import Settings
from fleet.usage import History
from recommender.planner import make_plan
from tests.cluster.api import Api
from tests.cluster.played_backends import PlayedBackend
from tests.cluster.standing_fleet import stand_up
from tests.cluster.workloads import until
from tests.recommender.builders import Service

CARDS_PER_NODE = 4
_SETTLED_SECONDS = 60.0

Holders = Mapping[str, tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What came of a plan.

    Attributes:
        planned: pods that the plan places, once per card.
        arrived: those of them that are on their card; of replicas, as many as are planned there. Of a backend that lets
            no pod name its card, those that are on their node beside none but pods that the plan lets share a card with
            them there.
        grouped: those of them that share their card with the planned neighbours, as far as cards of a node are alike.
        promised: cards that the plan frees.
        freed: cards that really are.
        faults: stages that were refused or taken back, and pods that wait, in words.
    """

    planned: int
    arrived: int
    grouped: int
    promised: int
    freed: int
    faults: tuple[str, ...]


def services_of(seed: int) -> tuple[tuple[Service, ...], int]:
    """Services of one or two replicas on three to six nodes, and cards that nobody has; drawn from a seed."""
    random = np.random.default_rng(seed)
    cards = CARDS_PER_NODE * int(random.integers(3, 7))
    found: list[Service] = []
    used = 0
    while used < cards * 0.75:
        replicas = int(random.integers(1, 3))
        found.append(
            Service(
                name=f"svc-{len(found)}", replicas=replicas, level=float(random.uniform(0.05, 0.4)),
                used_gib=float(random.uniform(1.0, 10.0)), hours=(0, 24) if random.uniform() < 0.7 else (0, 8),
            )
        )  # fmt: skip
        used += replicas
    return tuple(found), cards - used


def carry_out(
    api: Api, kubeconfig: Path, played: PlayedBackend, namespace: str, services: Sequence[Service], spare_cards: int,
    folder: Path, *, gaps_allowed: bool = True,
) -> Placed:  # fmt: skip
    """Stand a fleet up, plan it, apply the plan, and look.

    Args:
        kubeconfig: the writer's.
        folder: for the ledger.
        gaps_allowed: whether services of one replica may lose their pod for a while.
    """
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    history = stand_up(api, namespace, *services, prefix=namespace, spare_cards=spare_cards, played=played)
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=kubeconfig, requests_per_second=500.0, requests_burst=500))
    try:
        plan = planned(history, played, cluster, gaps_allowed=gaps_allowed)
        before = played.holders(api, namespace)
        faults = _applied(plan, played, cluster, folder, gaps_allowed=gaps_allowed)
        wanted = sum(len(card.slices) for card in plan.placement)
        try:
            until(lambda: _count(played.holders(api, namespace)) == wanted, "", _SETTLED_SECONDS)
        except AssertionError:
            faults += (f"{_count(played.holders(api, namespace))} of {wanted} pods hold a card",)
        after = played.holders(api, namespace)
    finally:
        cluster.close()
    return Placed(
        planned=wanted, arrived=(permitted if played.name == "kai" else arrived)(plan, after, history),
        grouped=grouped(plan, after, history), promised=plan.totals.cards_freed,
        freed=len(_cards(before)) - len(_cards(after)), faults=faults,
    )  # fmt: skip


def planned(history: History, played: PlayedBackend, cluster: KubernetesCluster, *, gaps_allowed: bool) -> Plan:
    """The plan for a fleet on a backend."""
    settings = Settings.model_validate(
        {
            "risk": {"preset": "high"}, "plan": {"spare_card_ratio": 0.0}, "guard": {"gaps_allowed": gaps_allowed},
            # A week is all that is known of these fleets.
            "recommender": {"reclaim_confidence_min": 0.0},
        }
    )  # fmt: skip
    now = cluster.now()
    profiles = profile_fleet(history, settings=settings.analyzer, now=now)
    record = capabilities_of(played.name)
    return seal_plan(make_plan(history, profiles, settings=settings, capability=record, now=now))


def arrived(plan: Plan, after: Holders, history: History) -> int:
    """How many pods are on the card that the plan gives them."""
    cards = {one.card: one.card for one in history.inventory.cards}
    wanted, real = _by_place(plan, after, cards)
    return sum((wanted[one] & real[one]).total() for one in cards)


def permitted(plan: Plan, after: Holders, history: History) -> int:
    """How many pods are on their node, on a card with no others than the plan lets meet there.

    Pods of a card meet as it is planned, or, where the plan shares several cards of a node, any so many of those pods
    as it has on the fullest of them.
    """
    node_of = {one.card: one.node for one in history.inventory.cards}
    wanted, real = _by_place(plan, after, {card: card for card in node_of})
    found = 0
    for node in set(node_of.values()):
        cards = [card for card, its in node_of.items() if its == node and wanted[card]]
        sliced = [card.card for card in plan.placement if card.node == node and not _is_whole(card)]
        most = max((wanted[card].total() for card in sliced), default=0)
        pool = sum((wanted[card] for card in sliced), Counter[str]())
        left = sum((wanted[card] for card in cards), Counter[str]())
        for card in (card for card, its in node_of.items() if its == node and real[card]):
            as_planned = any(real[card] <= wanted[other] for other in cards)
            in_any_order = real[card] <= pool and real[card].total() <= most
            if as_planned or in_any_order:
                found += (real[card] & left).total()
                left -= real[card]
    return found


def _is_whole(card: CardPlacement) -> bool:
    return len(card.slices) == 1 and card.slices[0].framebuffer_bytes == card.framebuffer_bytes


def grouped(plan: Plan, after: Holders, history: History) -> int:
    """How many pods share a card with the neighbours that the plan gives them, whichever card of their node it is."""
    wanted, real = _by_place(plan, after, {one.card: one.card for one in history.inventory.cards})
    by_node: dict[str, list[str]] = defaultdict(list)
    for one in history.inventory.cards:
        by_node[one.node].append(one.card)
    return sum(
        max(
            sum((wanted[mine] & real[theirs]).total() for mine, theirs in zip(cards, order, strict=True))
            for order in permutations(cards)
        )
        for cards in by_node.values()
    )


def _by_place(
    plan: Plan, after: Holders, place: Mapping[CardId, str]
) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """Workloads of the pods of each place, as planned and as they are."""
    wanted: dict[str, Counter[str]] = defaultdict(Counter)
    real: dict[str, Counter[str]] = defaultdict(Counter)
    for card in plan.placement:
        wanted[place[card.card]].update(str(part.workload) for part in card.slices)
    for workload, cards in after.values():
        for held in cards:
            real[place[CardId(held)]][workload] += 1
    return wanted, real


def clear_away(api: Api, namespace: str) -> None:
    """Take a fleet's namespace, nodes and what its drivers published away."""
    api.delete(f"/api/v1/namespaces/{namespace}")
    for path in ("/apis/resource.k8s.io/v1/resourceslices", "/api/v1/nodes"):
        for found in api.ask("GET", path)["items"]:
            if found["metadata"]["name"].startswith(f"{namespace}-"):
                api.delete(f"{path}/{found['metadata']['name']}")


def _applied(
    plan: Plan, played: PlayedBackend, cluster: KubernetesCluster, folder: Path, *, gaps_allowed: bool
) -> tuple[str, ...]:
    if not plan.stages:
        return ()
    backend = dict(BACKENDS)[played.name](cluster.now())
    tools = Tools(
        reader=cluster, writer=cluster, lease=cluster, pause=cluster.pause,
        journal=Journal(Ledger(folder / f"ledger-{plan.plan_id}.jsonl")),
        guard=Guard(GuardPolicy(needs_approval=False, gaps_allowed=gaps_allowed)),
        signals=ClusterSignals(cluster), dialect=backend.dialect,
        policy=RolloutPolicy(watch_seconds=0.5, carry=CarryPolicy(poll_seconds=0.5, placement_seconds_max=60.0)),
    )  # fmt: skip
    stages = tuple(stage.stage for stage in plan.stages)
    try:
        results = Rollout(tools, backend).apply(plan, stages, by="bench", approved=lambda: stages)
    except Refused as refusal:
        return (str(refusal),)
    return tuple(
        f"stage {one.stage} {one.state}: {one.reason}" for one in results if one.state is not StageState.PROMOTED
    )


def _cards(holders: Holders) -> set[str]:
    return {card for _, cards in holders.values() for card in cards}


def _count(holders: Holders) -> int:
    return sum(len(cards) for _, cards in holders.values())
