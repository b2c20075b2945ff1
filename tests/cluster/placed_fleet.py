"""A fleet that the program's verbs plan and apply on a backend that is played, and where its pods really came to.

What a fleet did in a week is recorded and replayed into a data folder; from it, from the cluster and from settings the
verbs find out all they need, each in a process of its own. Where pods are is read from what the backend's scheduler
wrote.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from exporter.trace.usage import Piece
from exporter.trace.writer import write_trace
from fleet.data_folder import open_data_folder
from fleet.decisions import CardPlacement, Plan
from fleet.inventory import CardId
from fleet.usage import History, SliceGrid
from gputide.container.plans import chosen_plan
from tests.cluster.api import Api
from tests.cluster.played_backends import PlayedBackend
from tests.cluster.standing_fleet import stand_up
from tests.cluster.workloads import until
from tests.gputide.conftest import Program, Said
from tests.recommender.builders import Service

CARDS_PER_NODE = 4
_SETTLED_SECONDS = 60.0
_NOT_APPLIED = (4, 5)
"""Exit statuses of a verb that a guard stopped, and of one that could not go on."""

_REVISION = "deployment.kubernetes.io/revision"

Holders = Mapping[str, tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where a fleet stands: a cluster with a backend. A plan is for all of it, so there is one fleet at a time.

    Attributes:
        api: an administrator's hand.
        approver: kubeconfig of who plans and approves.
        writer: kubeconfig of who applies.
        played: the backend.
        folder: for traces and data folders.
        program: calls the verbs, each in a process of its own.
    """

    api: Api
    approver: Path
    writer: Path
    played: PlayedBackend
    folder: Path
    program: Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Calls the program's verbs on a fleet of its own.

    Attributes:
        ground: where the fleet stands.
        namespace: the fleet's.
        gaps_allowed: whether services of one replica may lose their pod for a while.
    """

    ground: Ground
    namespace: str
    gaps_allowed: bool

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.ground.folder / f"data-{self.namespace}"

    def flags(self, kubeconfig: Path) -> list[str]:
        """Options before a verb by which it finds the cluster."""
        chosen = {
            "enforcer.cluster": "kubernetes", "enforcer.kubeconfig": kubeconfig,
            "enforcer.backend": self.ground.played.name,
            "enforcer.poll_seconds": 0.5, "enforcer.watch_seconds": 1, "enforcer.requests_per_second": 500,
            "enforcer.requests_burst": 500, "risk.preset": "high", "plan.spare_card_ratio": 0,
            "guard.gaps_allowed": self.gaps_allowed,
            # No real scheduler of some backends was asked yet; see `Capabilities.accepted_by`.
            "enforcer.experimental": True,
            # A week is all that is known of these fleets.
            "recommender.reclaim_confidence_min": 0,
        }  # fmt: skip
        return [flag for name, value in chosen.items() for flag in ("--set", f"{name}={value}")]

    def call(self, *verb: str, kubeconfig: Path, fine: Sequence[int] = (0,)) -> Said:
        """Call a verb and wait for its end.

        Raises:
            AssertionError: it ends with a status that is not fine.
        """
        said = self.ground.program(self.data, "--quiet", *self.flags(kubeconfig), *verb)
        if said.status not in fine:
            raise AssertionError(f"{' '.join(verb)} ended with {said.status}: {said.err.strip()[-600:]}")
        return said

    def planned(self, history: History) -> Plan:
        """Replay what was recorded, and make the plan."""
        trace = self.ground.folder / f"trace-{self.namespace}"
        record(trace, history)
        self.call("admin", "replay", str(trace), kubeconfig=self.ground.approver)
        self.call("plan", "make", kubeconfig=self.ground.approver)
        return chosen_plan(open_data_folder(self.data, create=False), None)

    def cards_freed_if(self, *assumptions: str) -> int:
        """How many cards a plan would free if settings were others."""
        words = [word for one in assumptions for word in ("--what-if", one)]
        said = self.call("plan", "make", *words, "--format", "json", kubeconfig=self.ground.approver)
        document: dict[str, Any] = said.document
        return int(document["compared"]["what_if"]["cards_freed"])

    def applied(self, plan_id: str) -> tuple[str, ...]:
        """Approve and apply a plan; what was refused or taken back, in words."""
        self.call("plan", "approve", "--plan", plan_id, kubeconfig=self.ground.approver)
        said = self.call("apply", "--yes", "--plan", plan_id, kubeconfig=self.ground.writer, fine=(0, *_NOT_APPLIED))
        return () if said.status == 0 else (said.err.strip()[-600:],)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What came of a plan.

    Attributes:
        planned: pods that the plan places, once per card.
        arrived: those of them that are on their card; of replicas, as many as are planned there. Of a backend that lets
            no pod name its card, those that are on their node beside none but pods that the plan lets share a card with
            them there. Of one whose workloads name all their cards in one claim, those that are on any of these.
        grouped: those of them that share their card with the planned neighbours, as far as cards of a node are alike.
        promised: cards that the plan frees.
        freed: cards that really are.
        faults: stages that were refused or taken back, and pods that wait, in words.
        kept: what an undo left otherwise than it was, in words; None where nothing was undone.
    """

    planned: int
    arrived: int
    grouped: int
    promised: int
    freed: int
    faults: tuple[str, ...]
    kept: tuple[str, ...] | None = None


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
    operator: Operator, services: Sequence[Service], spare_cards: int, *, and_back: bool = False, **pool: Any
) -> Placed:
    """Stand a fleet up, plan it, apply the plan, and look.

    Args:
        and_back: undo it, and look again.
        pool: what else `standing_fleet.stand_up` takes of its cards.
    """
    ground, namespace = operator.ground, operator.namespace
    api, played = ground.api, ground.played
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    history = stand_up(api, namespace, *services, prefix=namespace, spare_cards=spare_cards, played=played, **pool)
    plan = operator.planned(history)
    before, stood = played.holders(api, namespace), written(api, namespace)
    faults = operator.applied(plan.plan_id) if plan.stages else ()
    wanted = sum(len(card.slices) for card in plan.placement)
    try:
        until(lambda: _count(played.holders(api, namespace)) == wanted, "", _SETTLED_SECONDS)
    except AssertionError:
        faults += (f"{_count(played.holders(api, namespace))} of {wanted} pods hold a card",)
    after = played.holders(api, namespace)
    kept = _taken_back(operator, plan.plan_id, stood, before) if and_back else None
    judge = {"kai": permitted, "kai_nvfractions": permitted, "dra_mig": on_cards_of_workload}.get(played.name, arrived)
    return Placed(
        planned=wanted, arrived=judge(plan, after, history),
        grouped=grouped(plan, after, history), promised=plan.totals.cards_freed,
        freed=len(_cards(before)) - len(_cards(after)), faults=faults, kept=kept,
    )  # fmt: skip


def written(api: Api, namespace: str) -> dict[str, str]:
    """What users and the enforcer wrote of a fleet: its Deployments and its nodes, without what controllers count."""
    deployments = api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]
    nodes = [one for one in api.ask("GET", "/api/v1/nodes")["items"] if one["metadata"]["name"].startswith(namespace)]
    found = {}
    for one in (*deployments, *nodes):
        metadata, spec = one["metadata"], {key: value for key, value in one["spec"].items() if key != "taints"}
        notes = {key: value for key, value in metadata.get("annotations", {}).items() if key != _REVISION}
        found[metadata["name"]] = json.dumps([metadata.get("labels", {}), notes, spec], sort_keys=True)
    return found


def _taken_back(operator: Operator, plan_id: str, stood: Mapping[str, str], before: Holders) -> tuple[str, ...]:
    """Undo a plan; what is otherwise than before, and pods that get no card as their workload had."""
    api, namespace, played = operator.ground.api, operator.namespace, operator.ground.played
    operator.call("undo", "--yes", "--plan", plan_id, kubeconfig=operator.ground.writer)
    now = written(api, namespace)
    kept = [
        f"{name}: {stood.get(name)} became {now.get(name)}"
        for name in {*stood, *now}
        if stood.get(name) != now.get(name)
    ]

    def is_home() -> bool:
        found = played.holders(api, namespace)
        return Counter(one for one, _ in found.values()) == Counter(one for one, _ in before.values()) and _count(
            found
        ) == len(_cards(found))

    try:
        until(is_home, "every pod has a card of its own again", _SETTLED_SECONDS)
    except AssertionError as late:
        kept.append(str(late))
    return tuple(kept)


def record(folder: Path, *histories: History) -> None:
    """Write histories of one fleet, each of which goes on where the one before it ends, as a trace."""
    inventory = histories[-1].inventory
    number = {(grant.pod_id, grant.card): place for place, grant in enumerate(inventory.grants)}
    usage = [_piece(one.slices, number) for one in histories]
    write_trace(folder, cards=inventory.cards, nodes=inventory.nodes, grants=inventory.grants, usage=usage)


def _piece(grid: SliceGrid, number: Mapping[tuple[str, CardId], int]) -> Piece:
    keys = np.array([number[key.pod_id, key.card] for key in grid.keys], np.int32)
    ends = round(grid.since.timestamp() * 1000) + np.arange(1, grid.steps + 1) * grid.step_seconds * 1000
    values = {measure: of.T.ravel().astype(np.float64) for measure, of in grid.mean.items()}
    return Piece(keys=np.tile(keys, grid.steps), ts_ms=np.repeat(ends, len(keys)), values=values)


def arrived(plan: Plan, after: Holders, history: History) -> int:
    """How many pods are on the card that the plan gives them."""
    cards = {one.card: one.card for one in history.inventory.cards}
    wanted, real = _by_place(plan, after, cards)
    return sum((wanted[one] & real[one]).total() for one in cards)


def on_cards_of_workload(plan: Plan, after: Holders, history: History) -> int:
    """How many pods are on a card that the plan gives a pod of their workload, or of one that it puts beside them."""
    del history
    on = [{str(part.workload) for part in card.slices} for card in plan.placement]
    beside = {name: {name} for names in on for name in names}
    for _ in on:
        for names in on:
            together = set().union(*(beside[name] for name in names))
            beside.update(dict.fromkeys(together, together))
    named = {
        (name, str(card.card)) for card, names in zip(plan.placement, on, strict=True) for one in names
        for name in beside[one]
    }  # fmt: skip
    return sum((workload, card) in named for workload, cards in after.values() for card in cards)


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


def clear_away(operator: Operator) -> None:
    """Take a fleet's namespace, nodes and what its drivers published away."""
    api, namespace = operator.ground.api, operator.namespace
    api.delete(f"/api/v1/namespaces/{namespace}")
    for path in ("/apis/resource.k8s.io/v1/resourceslices", "/api/v1/nodes"):
        for found in api.ask("GET", path)["items"]:
            if found["metadata"]["name"].startswith(f"{namespace}-"):
                api.delete(f"{path}/{found['metadata']['name']}")


def _cards(holders: Holders) -> set[str]:
    return {card for _, cards in holders.values() for card in cards}


def _count(holders: Holders) -> int:
    return sum(len(cards) for _, cards in holders.values())
