"""Nodes whose cards are all shared alike: who stays, who moves aside, and which nodes are left alone."""

from dataclasses import replace

import pytest

from fleet.capabilities.register import HAMI, MPS, TIME_SLICING, VOLCANO, Capabilities
from fleet.decisions import Plan, RecommendationKind
from fleet.inventory import LIBRARY_OFF_LABEL, Node
from recommender.node_sharing import portions_of
from tests.english import english
from tests.recommender.builders import Service, cluster, plan_of

SMALL = tuple(Service(name=f"small-{number}", level=0.1, used_gib=3.0) for number in range(7))
BUSY = Service(name="busy", level=0.95, used_gib=18.0)
BOTH = pytest.mark.parametrize("backend", [TIME_SLICING, MPS], ids=["time_slicing", "mps"])


def nodes_of(plan: Plan, name: str) -> set[str | None]:
    return {card.node for card in plan.placement for part in card.slices if part.pod.startswith(name)}


@pytest.mark.parametrize(
    ("gib", "share", "parts"), [(4.0, 0.25, 4), (4.0, 0.3, 3), (9.0, 0.1, 2), (13.0, 0.1, 1), (4.0, 0.6, 1)]
)
def test_a_card_has_as_many_parts_as_hold_a_pod(gib: float, share: float, parts: int) -> None:
    found = portions_of(gib * 2**30, share, capacity_bytes=24 * 2**30, portions_max=10)
    assert found == parts


@BOTH
def test_whoever_needs_a_whole_card_leaves_the_node_that_is_shared(backend: Capabilities) -> None:
    # Four to a node: three small ones beside a busy one, twice.
    too = replace(BUSY, name="too")
    plan = plan_of(cluster(*SMALL[:3], BUSY, *SMALL[3:6], too), capability=backend)
    assert plan.totals.cards_freed == 2
    (shared,) = {card.node for card in plan.placement if len(card.slices) > 1}
    assert nodes_of(plan, "small") == {shared}
    assert shared not in nodes_of(plan, "busy") | nodes_of(plan, "too")
    (aside,) = [item for item in plan.recommendations if item.kind is RecommendationKind.REHOME]
    assert aside.pods in (("team/busy-0",), ("team/too-0",))
    assert len(plan.stages) == 1, "a node is emptied once, and all who leave or come do so together"


@BOTH
@pytest.mark.parametrize("label", ["gputide.io/opt-out", "gputide.io/latency-critical"])
def test_a_node_with_somebody_who_must_not_be_restarted_is_not_shared(backend: Capabilities, label: str) -> None:
    keeper = replace(BUSY, labels=((label, "true"),))
    plan = plan_of(cluster(*SMALL[:3], keeper), capability=backend)
    assert not plan.stages


@pytest.mark.parametrize("backend", [HAMI, TIME_SLICING])
@pytest.mark.parametrize(("mode", "is_shared"), [("whole", False), ("mig", False), ("vgpu", True)])
def test_a_node_that_somebody_put_into_a_mode_is_shared_in_no_other(
    backend: Capabilities, mode: str, is_shared: bool
) -> None:
    history = cluster(*SMALL)
    nodes = tuple(replace(node, labels=(("gputide.io/node-mode", mode),)) for node in history.inventory.nodes)
    plan = plan_of(replace(history, inventory=replace(history.inventory, nodes=nodes)), capability=backend)
    assert bool(plan.stages) is is_shared
    assert any("put into mode" in english(item) for item in plan.refused) is not is_shared


@BOTH
def test_a_node_that_a_pod_does_not_tolerate_does_not_take_it(backend: Capabilities) -> None:
    history = cluster(*SMALL)
    nodes = (Node(node="node-0", cluster="c", taints=("team=a:NoSchedule",)), Node(node="node-1", cluster="c"))
    plan = plan_of(replace(history, inventory=replace(history.inventory, nodes=nodes)), capability=backend)
    assert all(nodes_of(plan, f"small-{number}") <= {"node-0", "node-1"} for number in range(4))
    assert all(nodes_of(plan, f"small-{number}") == {"node-1"} for number in range(4, 7))


@pytest.mark.parametrize(
    ("backend", "off", "may_share"),
    [(HAMI, "hami,volcano", False), (VOLCANO, "volcano", False), (HAMI, "volcano", True)],
    ids=["hami", "volcano", "another_backends_word"],
)
def test_pod_that_keeps_the_library_out_shares_no_card_and_the_plan_says_so(
    backend: Capabilities, off: str, may_share: bool
) -> None:
    odd = Service(name="odd", level=0.1, used_gib=3.0, labels=((LIBRARY_OFF_LABEL, off),))
    plan = plan_of(cluster(*SMALL[:3], odd), capability=backend)
    (own,) = [card for card in plan.placement if any(part.pod.startswith("odd") for part in card.slices)]
    said = [item.reason for item in plan.refused if item.workload.endswith("/odd")]
    assert (len(own.slices) > 1, said) == (may_share, [] if may_share else ["library_off"])
    assert any(len(card.slices) > 1 for card in plan.placement), "the others share all the same"
