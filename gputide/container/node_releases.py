"""Prepares plans that release emptied nodes to their owners, and says what freed cards of other machines are worth.

Called by `gputide admin node release` and `gputide apply --emit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from enforcer.emit.queue_offers import offered_cards, offers_text, queue_offers
from enforcer.machines import Machine, machine_of
from enforcer.node_plan import PlanPlace
from enforcer.node_release import release_plan, why_held
from enforcer.preview import StagePreview
from enforcer.snapshot import take_snapshot
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.money.paid_nodes import paid_nodes
from fleet.money.prices import PriceBook
from fleet.node_changes import NodeRelease
from fleet.sentences import Sentence, first_of
from fleet.settings.settings import Settings
from gputide.container.cluster import backend, backend_version, moment_of_change, open_cluster, own_cluster
from gputide.container.enforcer import guard
from gputide.container.plans import keep_plan, previewed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePreview:
    """A release, before anybody asks for it.

    Attributes:
        machine: of the node; None where the node is gone already.
        refusal: why it would not be released; None where nothing speaks against it.
        plan: that of the release, kept nowhere; None where the node is gone.
        stage: what its one stage would change; None likewise.
        approvals: how many people must approve it.
    """

    node: str
    machine: Machine | None
    refusal: Sentence | str | None = None
    plan: Plan | None = None
    stage: StagePreview | None = None
    approvals: int = 0


def release_preview(folder: DataFolder, settings: Settings, now: datetime, release: NodeRelease) -> ReleasePreview:
    """What a release would change, and what speaks against it; changes nothing.

    Raises:
        Refused: there is no cluster.
        Unavailable: the cluster can't be reached.
    """
    with open_cluster(folder, settings) as cluster:
        node = cluster.get("Node", "", release.node)
        if node is None:
            return ReleasePreview(node=release.node, machine=None)
        machine = machine_of(node, cluster)
        pods, budgets = cluster.list_objects("Pod"), cluster.list_objects("PodDisruptionBudget")
        held = why_held(node, pods, budgets, lastingly=True)
        snapshot, moment = take_snapshot(cluster, backend(settings, now).dialect), moment_of_change(cluster, now)
    cards = len(snapshot.cards_on(release.node))
    place = PlanPlace(
        cluster=own_cluster(folder, settings) or "", backend=settings.enforcer.backend,
        version=backend_version(settings), cards=cards,
    )  # fmt: skip
    plan = release_plan(release, place, moment, settings)
    (stage,) = previewed(folder, settings, now, plan, (1,), rehearses=True)
    return ReleasePreview(
        node=release.node, machine=machine, refusal=stage.refusal or (first_of(held) if held else None), plan=plan,
        stage=stage, approvals=guard(folder, settings).approvals_needed(cards),
    )  # fmt: skip


def keep_release(folder: DataFolder, settings: Settings, now: datetime, release: NodeRelease) -> Plan:
    """Keep the plan of a release against which nothing speaks now, for people to approve.

    Raises:
        Refused: something does, or the node is gone.
    """
    found = release_preview(folder, settings, now, release)
    if found.plan is None:
        raise Refused(f"cannot release node {release.node}: it is gone")
    if found.refusal is not None:
        raise Refused(found.refusal)
    keep_plan(folder, settings, found.plan)
    return found.plan


def queues_text(folder: DataFolder, settings: Settings, plan: Plan, stages: Sequence[int]) -> str:
    """What queues could have of the cards that stages free on machines that are paid anyway; empty where nothing."""
    from gputide.container.warehouse import warehouse  # loads pandas, which a release does without

    inventory = warehouse(folder, settings).inventory(plan.cluster, as_of=plan.created_at)
    prices = PriceBook(settings, inventory.nodes).at(plan.created_at)
    cards = offered_cards(plan, stages, inventory, paid_nodes(inventory, prices))
    offers = queue_offers(cards, inventory.quotas)
    return offers_text(cards, offers) if offers else ""
