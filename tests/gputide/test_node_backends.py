"""The doctor says which backends nodes run, and whether the chosen one is among them."""

import pytest

from enforcer.backends.detect import detect_backends
from gputide.doctor.cluster_scene import nodes_run, runs_elsewhere
from tests.enforcer.kin_cluster import HAMI, MGPU, VOLCANO, a_kin_node

ON_HAMI = detect_backends([a_kin_node(HAMI, "node-0", 0), a_kin_node(HAMI, "node-1", 4)])


@pytest.mark.parametrize("chosen", ["hami", "effectivegpu"])
def test_chosen_backend_that_runs_is_well(chosen: str) -> None:
    assert str(nodes_run(ON_HAMI)) == "hami on 2 nodes"
    assert not runs_elsewhere(ON_HAMI, chosen)


@pytest.mark.parametrize("chosen", ["volcano", "nvidia_mps", "mgpu"])
def test_chosen_backend_that_runs_nowhere_is_told(chosen: str) -> None:
    assert runs_elsewhere(ON_HAMI, chosen)


def test_unshared_cards_may_become_shared() -> None:
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}
    assert not runs_elsewhere(detect_backends([node]), "mig")
    assert runs_elsewhere(detect_backends([node]), "hami")


def test_all_backends_are_told() -> None:
    node = a_kin_node(HAMI, "node-0", 0)
    node["metadata"]["annotations"].update(a_kin_node(VOLCANO, "node-0", 0)["metadata"]["annotations"])
    seen = detect_backends([node, a_kin_node(MGPU, "node-1", 4)])
    assert str(nodes_run(seen)) == "hami on 1 nodes, mgpu on 1 nodes, volcano on 1 nodes"


def test_cluster_without_cards_runs_nothing() -> None:
    assert str(nodes_run(())) == "no node with cards"
    assert not runs_elsewhere((), "hami")
