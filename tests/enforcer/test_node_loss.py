"""Which services would not survive the loss of a node, before it happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.manifest import Manifest
from enforcer.node_loss import NodeLoss, node_losses
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from tests.enforcer.builders import a_cluster, a_grant, a_rollout, some_tools, standard_plan


def losses(cluster: SimulatedCluster, changed: Sequence[Manifest] | None = None) -> list[tuple[str, str, int, int]]:
    pods = cluster.list_objects("Pod") if changed is None else changed
    return [_short(loss) for loss in node_losses(take_snapshot(cluster), pods)]


def _short(loss: NodeLoss) -> tuple[str, str, int, int]:
    return loss.node, loss.workload, loss.stranded, loss.left


def with_spec(cluster: SimulatedCluster, **spec: Any) -> list[Manifest]:
    return [{**pod, "spec": {**pod["spec"], **spec}} for pod in cluster.list_objects("Pod")]


def test_on_a_full_cluster_every_service_of_a_lost_node_would_find_no_card(tmp_path: Path) -> None:
    assert losses(a_cluster(tmp_path)) == [
        ("node-0", "team/Deployment/a", 2, 0),
        ("node-0", "team/Deployment/b", 2, 0),
        ("node-1", "team/Deployment/c", 2, 0),
        ("node-1", "team/Job/train", 1, 0),
        ("node-1", "team/Notebook/book", 1, 0),
    ]


def test_with_as_many_free_cards_elsewhere_every_service_survives(tmp_path: Path) -> None:
    assert losses(a_cluster(tmp_path, cards=12)) == []


def test_cards_that_a_plan_freed_are_room_for_those_of_a_lost_node(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    before = sum(stranded for *_, stranded, _ in losses(cluster))
    a_rollout(some_tools(cluster, tmp_path)).apply(standard_plan(), by="ada")
    assert sum(stranded for *_, stranded, _ in losses(cluster)) < before


def test_pods_that_find_room_only_one_by_one_are_counted_together(tmp_path: Path) -> None:
    grants = [*(a_grant("web", number, number) for number in range(3)), a_grant("other", 0, 4)]
    found = losses(a_cluster(tmp_path, grants, cards=6))
    assert found == [("node-0", "team/Deployment/web", 2, 0)]


def test_free_card_on_a_node_where_the_pod_may_not_run_is_no_room(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("web", 0, 0), a_grant("web", 1, 4)])
    assert losses(cluster) == []
    tied = with_spec(cluster, nodeSelector={"zone": "here"})
    assert losses(cluster, tied) == [("node-0", "team/Deployment/web", 1, 1), ("node-1", "team/Deployment/web", 1, 1)]


@pytest.mark.parametrize(
    "said",
    [{"nvidia.com/use-gputype": "H100"}, {"nvidia.com/nouse-gputype": "a10"}, {"nvidia.com/use-gpuuuid": "GPU-other"}],
)
def test_card_that_a_pod_does_not_choose_is_no_room(said: dict[str, str], tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("web", 0, 0)])
    (pod,) = cluster.list_objects("Pod")
    choosy = {**pod, "metadata": {**pod["metadata"], "annotations": {**pod["metadata"]["annotations"], **said}}}
    assert losses(cluster) == []
    assert losses(cluster, [choosy]) == [("node-0", "team/Deployment/web", 1, 0)]


def test_smaller_card_is_no_room_for_a_whole_one(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("web", 0, 0)])
    snapshot = take_snapshot(cluster)
    cards = {
        name: replace(card, framebuffer_mib=card.framebuffer_mib // (1 if card.node == "node-0" else 2))
        for name, card in snapshot.cards.items()
    }
    (lost,) = node_losses(replace(snapshot, cards=cards), cluster.list_objects("Pod"))
    assert _short(lost) == ("node-0", "team/Deployment/web", 1, 0)
