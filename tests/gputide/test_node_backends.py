"""The doctor says which backends nodes run, and whether the chosen one is among them."""

import pytest

from enforcer.backends.detect import detect_backends
from gputide.doctor.cluster_scene import judged, read_node_backends
from tests.enforcer.kin_cluster import HAMI, MGPU, VOLCANO, a_kin_cluster, a_kin_node


def test_chosen_backend_that_runs_is_well() -> None:
    found = read_node_backends(a_kin_cluster(HAMI), "hami")
    assert (found.found, found.trouble) == ("hami on 2 nodes", None)


@pytest.mark.parametrize("chosen", ["volcano", "nvidia_mps", "mgpu"])
def test_chosen_backend_that_runs_nowhere_is_told(chosen: str) -> None:
    found = read_node_backends(a_kin_cluster(HAMI), chosen)
    assert found.trouble == f"applying: no node runs {chosen}; set enforcer.backend to one of ['hami']"


def test_effective_gpu_has_the_signs_of_hami() -> None:
    assert read_node_backends(a_kin_cluster(HAMI), "effectivegpu").trouble is None


def test_unshared_cards_may_become_shared() -> None:
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}
    assert judged(detect_backends([node]), "mig").trouble is None
    assert judged(detect_backends([node]), "hami").trouble is not None


def test_conflict_comes_first() -> None:
    node = a_kin_node(HAMI, "node-0", 0)
    node["metadata"]["annotations"].update(a_kin_node(VOLCANO, "node-0", 0)["metadata"]["annotations"])
    found = judged(detect_backends([node, a_kin_node(MGPU, "node-1", 4)]), "hami")
    assert found.found == "hami on 1 nodes, mgpu on 1 nodes, volcano on 1 nodes"
    assert "only one may hand out its cards" in (found.trouble or "")


def test_cluster_without_cards_has_no_trouble() -> None:
    found = judged((), "hami")
    assert (found.found, found.trouble) == ("no node with cards", None)
