"""What the agent does through the API server, on the simulated cluster of HAMi."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest

from enforcer.agent.hami_node_actions import CLOSED_CARDS_ANNOTATION, HamiNodeActions
from enforcer.agent.live_limits import WantedLimit
from enforcer.agent.node_view import ContainerKey, SliceView
from enforcer.agent.watermark import Shortage
from enforcer.cluster import ClusterReader, ClusterWriter, FieldChange
from enforcer.manifest import Manifest
from enforcer.simulated.cluster import SimulatedCluster
from fleet.errors import Refused, Unavailable
from fleet.grammars.hami import (
    DEVICE_CORDON_ANNOTATION,
    DEVICES_ALLOCATED_ANNOTATION,
    NODE_HANDSHAKE_ANNOTATION,
    parse_devices_allocated,
)
from fleet.inventory import Priority
from fleet.units import MIB
from tests.enforcer.builders import HALF, a_cluster, card_id

NODE = "node-0"


@pytest.fixture
def cluster(tmp_path: Path) -> SimulatedCluster:
    return a_cluster(tmp_path)


@pytest.fixture
def actions(cluster: SimulatedCluster) -> HamiNodeActions:
    return HamiNodeActions(cluster, cluster, NODE)


def note(cluster: SimulatedCluster, name: str) -> str | None:
    node = cluster.get("Node", "", NODE)
    assert node is not None
    found = node["metadata"].get("annotations", {}).get(name)
    return None if found is None else str(found)


def write(cluster: SimulatedCluster, name: str, value: str) -> None:
    node = cluster.get("Node", "", NODE)
    assert node is not None
    change = FieldChange(field=f"metadata.annotations[{name}]", value=value)
    cluster.patch("Node", "", NODE, [change], node["metadata"]["resourceVersion"])


def seat_and_limit(
    cluster: SimulatedCluster, pod: str, mib: int, *, container: str = "server", card: int = 0
) -> tuple[SliceView, WantedLimit]:
    manifest = cluster.get("Pod", "team", pod)
    assert manifest is not None
    seat = SliceView(
        namespace="team", pod=pod, pod_uid=manifest["metadata"]["uid"], container=container, card=card_id(card),
        priority=Priority.NORMAL, framebuffer_used_bytes=0, framebuffer_granted_bytes=HALF,
        framebuffer_limit_bytes=None, duty_cycle_ratio=None,
    )  # fmt: skip
    key = ContainerKey(pod_uid=manifest["metadata"]["uid"], container=container)
    return seat, WantedLimit(container=key, card=card_id(card), framebuffer_bytes=mib * MIB)


def test_card_is_closed_and_opened_again_when_its_time_is_over(
    cluster: SimulatedCluster, actions: HamiNodeActions
) -> None:
    actions.close_card(card_id(0), 1000.0)
    actions.close_card(card_id(1), 2000.0)
    assert note(cluster, DEVICE_CORDON_ANNOTATION) == f"{card_id(0)},{card_id(1)}"
    assert actions.open_cards(999.0) == ()
    assert actions.open_cards(1000.0) == (card_id(0),)
    assert note(cluster, DEVICE_CORDON_ANNOTATION) == card_id(1)
    assert actions.open_cards(2000.0) == (card_id(1),)
    assert (note(cluster, DEVICE_CORDON_ANNOTATION), note(cluster, CLOSED_CARDS_ANNOTATION)) == (None, None)


def test_card_that_somebody_else_closed_stays_closed(cluster: SimulatedCluster, actions: HamiNodeActions) -> None:
    write(cluster, DEVICE_CORDON_ANNOTATION, card_id(3))
    actions.close_card(card_id(0), 1000.0)
    assert actions.open_cards(5000.0) == (card_id(0),)
    assert note(cluster, DEVICE_CORDON_ANNOTATION) == card_id(3)


def test_agent_that_was_killed_opens_what_it_had_closed(cluster: SimulatedCluster, actions: HamiNodeActions) -> None:
    actions.close_card(card_id(0), 1000.0)
    assert HamiNodeActions(cluster, cluster, NODE).open_cards(1500.0) == (card_id(0),)


class Busy:
    """A node that somebody else writes right after each of so many reads."""

    def __init__(self, cluster: SimulatedCluster, writes: int) -> None:
        self._cluster, self._writes = cluster, writes

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        found = self._cluster.get(kind, namespace, name)
        if self._writes:
            self._writes -= 1
            write(self._cluster, NODE_HANDSHAKE_ANNOTATION, f"Reported_{self._writes}")
        return found

    def now(self) -> datetime:
        return self._cluster.now()


def test_node_that_others_write_meanwhile_is_read_and_written_again(cluster: SimulatedCluster) -> None:
    write(cluster, DEVICE_CORDON_ANNOTATION, card_id(1))
    HamiNodeActions(cast("ClusterReader", Busy(cluster, 2)), cluster, NODE).close_card(card_id(0), 1000.0)
    assert note(cluster, DEVICE_CORDON_ANNOTATION) == f"{card_id(1)},{card_id(0)}"
    assert HamiNodeActions(cast("ClusterReader", Busy(cluster, 2)), cluster, NODE).open_cards(1e10) == (card_id(0),)
    with pytest.raises(Refused, match="changed since it was read"):
        HamiNodeActions(cast("ClusterReader", Busy(cluster, 3)), cluster, NODE).close_card(card_id(0), 1000.0)


def test_scheduler_is_told_by_the_handshake(cluster: SimulatedCluster, actions: HamiNodeActions) -> None:
    write(cluster, NODE_HANDSHAKE_ANNOTATION, "Requesting_2026-01-12 00:00:00")
    actions.close_card(card_id(0), 1000.0)
    assert (note(cluster, NODE_HANDSHAKE_ANNOTATION) or "").startswith("Reported_")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"GPU-1": "soon"}'])
def test_note_that_is_not_ours_any_more_opens_nothing(
    text: str, cluster: SimulatedCluster, actions: HamiNodeActions
) -> None:
    write(cluster, DEVICE_CORDON_ANNOTATION, card_id(0))
    write(cluster, CLOSED_CARDS_ANNOTATION, text)
    assert actions.open_cards(1e10) == ()
    assert note(cluster, DEVICE_CORDON_ANNOTATION) == card_id(0)


def test_closed_cards_are_written_with_their_times(cluster: SimulatedCluster, actions: HamiNodeActions) -> None:
    actions.close_card(card_id(0), 1_790_000_000.0)
    assert json.loads(note(cluster, CLOSED_CARDS_ANNOTATION) or "") == {card_id(0): "2026-09-21T14:13:20Z"}


def test_pod_of_this_node_goes_and_one_elsewhere_is_refused(
    cluster: SimulatedCluster, actions: HamiNodeActions
) -> None:
    before = cluster.get("Pod", "team", "a-0")
    assert before is not None
    actions.evict("team", "a-0", Shortage.FRAMEBUFFER)
    after = cluster.get("Pod", "team", "a-0")
    assert after is None or after["metadata"]["uid"] != before["metadata"]["uid"]
    actions.evict("team", "gone", Shortage.FRAMEBUFFER)
    with pytest.raises(Refused, match="it is not on node-0"):
        actions.evict("team", "train-0", Shortage.FRAMEBUFFER)


def test_event_says_what_is_short(cluster: SimulatedCluster) -> None:
    told: list[tuple[str, ...]] = []

    class Writer:
        def record_event(self, *words: str) -> None:
            told.append(words)

        def evict(self, *_: str) -> bool:
            return True

    for short_of in Shortage:
        HamiNodeActions(cluster, cast("ClusterWriter", Writer()), NODE).evict("team", "a-0", short_of)
    assert [words[3] for words in told] == ["GputideFramebuffer", "GputideHostMemory"]
    assert "host memory" in told[1][4]


def test_card_that_no_note_closes_is_refused(cluster: SimulatedCluster) -> None:
    node = {
        "metadata": {"name": NODE, "resourceVersion": "1", "annotations": {"nvidia.com/node-device-register": "[]"}}
    }

    class Reader:
        def get(self, *_: str) -> Manifest:
            return node

    with pytest.raises(Refused, match="vgpu-manager reads no note of closed cards"):
        HamiNodeActions(cast("ClusterReader", Reader()), cluster, NODE).close_card(card_id(0), 1000.0)


def test_pod_that_a_budget_keeps_is_told_as_kept(cluster: SimulatedCluster, actions: HamiNodeActions) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": "team"},
        "spec": {"maxUnavailable": 0, "selector": {}},
    }
    cluster.create(budget)
    before = cluster.get("Pod", "team", "a-0")
    with pytest.raises(Unavailable, match="disruption budget"):
        actions.evict("team", "a-0", Shortage.FRAMEBUFFER)
    assert cluster.get("Pod", "team", "a-0") == before


def test_card_that_somebody_else_had_closed_already_is_not_opened_by_us(
    cluster: SimulatedCluster, actions: HamiNodeActions
) -> None:
    write(cluster, DEVICE_CORDON_ANNOTATION, card_id(0))
    actions.close_card(card_id(0), 1000.0)
    assert actions.open_cards(5000.0) == ()
    assert note(cluster, DEVICE_CORDON_ANNOTATION) == card_id(0)


def test_card_of_ours_stays_closed_for_longer_when_it_is_closed_again(
    cluster: SimulatedCluster, actions: HamiNodeActions
) -> None:
    actions.close_card(card_id(0), 1000.0)
    actions.close_card(card_id(0), 2000.0)
    assert actions.open_cards(1500.0) == ()
    assert actions.open_cards(2000.0) == (card_id(0),)


def test_books_say_the_new_limit(cluster: SimulatedCluster, actions: HamiNodeActions) -> None:
    actions.account(*seat_and_limit(cluster, "a-0", 4000))
    pod = cluster.get("Pod", "team", "a-0")
    assert pod is not None
    ((grant,),) = parse_devices_allocated(pod["metadata"]["annotations"][DEVICES_ALLOCATED_ANNOTATION])
    assert (grant.card, grant.framebuffer_mib) == (card_id(0), 4000)


def test_books_of_another_pod_card_or_container_are_refused(
    cluster: SimulatedCluster, actions: HamiNodeActions
) -> None:
    seat, limit = seat_and_limit(cluster, "a-0", 4000)
    stale = WantedLimit(
        container=ContainerKey(pod_uid="00000000-0000-0000-0000-000000000000", container="server"),
        card=limit.card,
        framebuffer_bytes=limit.framebuffer_bytes,
    )
    with pytest.raises(Refused, match="it is gone"):
        actions.account(seat, stale)
    with pytest.raises(Refused, match="is not in it"):
        actions.account(*seat_and_limit(cluster, "a-0", 4000, card=5))
    with pytest.raises(Refused, match="none of other is in it"):
        actions.account(*seat_and_limit(cluster, "a-0", 4000, container="other"))
