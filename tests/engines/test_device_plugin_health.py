"""Faults of cards, of the plugin and of the kubelet neither end a grant nor change it."""

from __future__ import annotations

import pytest

from tests.engines.nvidia_node import NvidiaNode
from tests.engines.test_device_plugin import MIG_A100, amounts, held_cards, sharing, visible
from tests.exporter.nvml.standin import GIB, uuid
from tests.waiting import until

pytestmark = pytest.mark.engines

SHARED = "nvidia.com/gpu"


def lose(node: NvidiaNode, card: int, **where: object) -> None:
    """Lets a card fall off the bus, as the driver tells it: XID 79."""
    node.world.line("xid", dev=card, code=79, **where).write()
    until(lambda: any(node.devices.devices(resource, healthy=False) for resource in node.devices.resources()))


def test_fault_of_a_shared_card_takes_one_of_its_shares_and_leaves_the_others_as_they_were(node: NvidiaNode) -> None:
    node.card()
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {SHARED: 4}))
    for number in range(4):
        node.hand_out(f"pod-{number}", SHARED)
    before = node.grants()
    lose(node, 0)
    assert node.devices.resources() == {SHARED: 7}
    (unhealthy,) = node.devices.devices(SHARED, healthy=False)
    assert unhealthy.startswith(f"{uuid(0)}::")
    reading = node.read()
    assert (reading.change.grants_started, reading.change.grants_ended) == ((), ())
    assert node.grants() == before
    assert set(amounts(node).values()) == {(20 * GIB, 0.25)}


def test_error_of_an_application_takes_no_share(node: NvidiaNode) -> None:
    node.card()
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {SHARED: 4}))
    # What a program did wrong (31: a page fault) comes before what the second card did.
    node.world.line("xid", dev=0, code=31)
    lose(node, 1)
    assert [name.partition("::")[0] for name in node.devices.devices(SHARED, healthy=False)] == [uuid(1)]


def test_fault_of_a_whole_card_leaves_it_with_the_pod_that_holds_it_and_with_no_other(node: NvidiaNode) -> None:
    node.card()
    node.card()
    node.start_plugin()
    handed = node.hand_out("holds", SHARED)
    (card,) = visible(handed)
    assert held_cards(node) == {"holds": [card]}
    lose(node, int(card[-1]))
    assert node.devices.devices(SHARED, healthy=False) == [card]
    assert held_cards(node) == {"holds": [card]}


def test_fault_of_one_instance_leaves_its_card_and_its_pod(node: NvidiaNode) -> None:
    node.card(**MIG_A100)
    node.cut(0, 3, 2)
    node.start_plugin("--mig-strategy=mixed", waits_for=2)
    for size in ("3g.20gb", "2g.10gb"):
        node.hand_out(size, f"nvidia.com/mig-{size}")
    before = node.grants()
    lose(node, 0, gi=2, ci=0)
    assert node.devices.resources() == {"nvidia.com/mig-3g.20gb": 1, "nvidia.com/mig-2g.10gb": 0}
    assert node.grants() == before


def test_plugin_that_dies_and_comes_back_changes_no_grant(node: NvidiaNode) -> None:
    node.card()
    config = sharing("timeSlicing", {SHARED: 4})
    node.start_plugin(config=config)
    for pod in ("a", "b"):
        node.hand_out(pod, SHARED)
    before = node.grants()
    assert set(amounts(node).values()) == {(20 * GIB, 0.25)}
    node.stop_plugin()
    until(lambda: node.devices.resources() == {SHARED: 0})
    assert node.grants() == before
    node.start_plugin(config=config)
    assert node.devices.resources() == {SHARED: 4}
    assert node.grants() == before


def test_kubelet_that_starts_anew_has_the_plugin_again_and_changes_no_grant(node: NvidiaNode) -> None:
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {SHARED: 4}))
    node.hand_out("a", SHARED)
    before = node.grants()
    node.devices.stop()
    assert node.devices.resources() == {SHARED: 0}
    assert node.grants() == before
    node.devices.start()
    until(lambda: node.devices.resources() == {SHARED: 4})
    assert node.grants() == before


def test_other_number_of_replicas_is_the_share_of_those_who_hold_one(node: NvidiaNode) -> None:
    node.card()
    node.start_plugin(config=sharing("timeSlicing", {SHARED: 2}))
    node.hand_out("a", SHARED)
    assert amounts(node) == {"a": (40 * GIB, 0.5)}
    node.reload_plugin(sharing("timeSlicing", {SHARED: 8}))
    until(lambda: node.devices.resources() == {SHARED: 8})
    assert amounts(node) == {"a": (10 * GIB, 0.125)}


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (sharing("timeSlicing", {SHARED: 1}), "number of replicas must be >= 2"),
        (sharing("timeSlicing", {SHARED: 4}).replace("v1", "v2"), "unknown version: v2"),
        ("version: v1\nsharing:\n  timeSlicing:\n    renameByDefault: true\n", "no resources specified"),
        (sharing("mps", {SHARED: 4}), "using MPS requires --mps-root"),
    ],
)
def test_configuration_that_cannot_be_is_refused_at_the_start(node: NvidiaNode, config: str, word: str) -> None:
    node.card()
    with pytest.raises(Exception, match=word):
        node.start_plugin(config=config)


@pytest.mark.parametrize(
    "config",
    [
        sharing("timeSlicing", {SHARED: 4, "nvidia.com/mig-1g.5gb": 2}),
        sharing("timeSlicing", {SHARED: 4}) + "      devices: [0]\n",
        sharing("timeSlicing", {SHARED: 4}) + "      rename: nvidia.com/other\n",
        sharing("timeSlicing", {SHARED: 4}) + "speed: high\n",
    ],
    ids=["resource that no card has", "choice of cards", "other name", "unknown key"],
)
def test_what_the_plugin_passes_over_shows_in_what_it_advertises_alone(node: NvidiaNode, config: str) -> None:
    node.card()
    node.card()
    node.start_plugin(config=config)
    assert node.devices.resources() == {SHARED: 8}
