"""The same objects stand for the same rows, whatever came, changed and went before, and in which order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.allocation.objects import key_of
from exporter.allocation.state import Allocation
from exporter.cluster.reader import Watched
from tests.exporter.allocation_manifests import (
    CARD_MIB,
    MODEL,
    Manifest,
    card_id,
    drop,
    grant,
    node,
    of,
    owned,
    pod,
    rows,
    take,
)

pytestmark = pytest.mark.long

Event = tuple[Watched, Manifest]
EVENTS = 40
GFD = {"nvidia.com/gpu.product": MODEL, "nvidia.com/gpu.memory": str(CARD_MIB)}
FRACTION: dict[str, Any] = {
    "resources": {}, "annotations": {"gpu-fraction": "0.3"}, "labels": {"runai-gpu-group": "g1"},
}  # fmt: skip
CLAIMING: dict[str, Any] = {
    "containers": [{"name": name, "resources": {"claims": [{"name": "card"}]}} for name in ("a", "b")],
    "claims": [{"name": "card", "resourceClaimName": "claim-1"}],
}
NUMBERED: dict[str, Any] = {
    "resources": {"kunlunxin.com/xpu": "1"},
    "annotations": {"hami.io/kunlun-allocated": "n1-kunlun-1,kunlun,98304,100:;"},
}


def a_pod(chance: random.Random) -> Event:
    """Draw a pod of few names, by one of the ways in which it may hold cards, bound or not, alive or not."""
    granted = "".join(grant(chance.randrange(4), chance.randrange(9000)) for _ in range(chance.randrange(3))) + ";"
    way: dict[str, Any] = chance.choice(
        ({"granted": granted}, {"granted": granted}, FRACTION, CLAIMING, NUMBERED,
         {"resources": {"vke.volcengine.com/mgpu-core": "30"}}, {"resources": {"cpu": "1"}})
    )  # fmt: skip
    owner = chance.choice((None, "rs1", "rs2"))
    manifest = pod(
        chance.choice(("p1", "p2", "p3")), on=chance.choice((None, "n1", "n1", "n2")),
        phase=chance.choice((None, None, None, "Failed")),
        owner=None if owner is None else ("ReplicaSet", owner, f"uid-{owner}"), **way,
    )  # fmt: skip
    return Watched.PODS, manifest


def a_reservation(chance: random.Random) -> Event:
    """Draw a reservation pod of KAI's; two of them may claim the same group."""
    manifest = pod(
        chance.choice(("r1", "r2")), namespace="kai-resource-reservation", on=chance.choice((None, "n1", "n2")),
        labels={"runai-gpu-group": "g1"}, annotations={"run.ai/reserve_for_gpu_index": card_id(chance.randrange(3, 6))},
    )  # fmt: skip
    return Watched.PODS, manifest


def a_node(chance: random.Random) -> Event:
    """Draw a node whose cards come and go."""
    labels = chance.choice(({}, GFD))
    manifest = node(chance.choice(("n1", "n2")), chance.randrange(3), first=chance.randrange(2), labels=labels)
    manifest["status"]["capacity"] = {"kunlunxin.com/xpu": str(chance.randrange(3))}
    return Watched.NODES, manifest


def an_owner(chance: random.Random) -> Event:
    """Draw a ReplicaSet, whose owner changes as it never would."""
    name, deployment = chance.choice(("rs1", "rs2")), chance.choice(("a", "b"))
    return Watched.REPLICA_SETS, owned(name, f"uid-{name}", ("Deployment", deployment, f"uid-{deployment}"))


def a_claim(chance: random.Random) -> Event:
    """Draw the claim that pods name, given this or that device, for these or those pods."""
    device = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": f"gpu-{chance.randrange(2)}"}
    users = chance.choice((["p1"], ["p2"], ["p1", "p2"], ["p1", "p2", "p3"]))
    consumers = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in users]
    status = {"allocation": {"devices": {"results": [device]}}, "reservedFor": consumers}
    return Watched.RESOURCE_CLAIMS, {"metadata": {"namespace": "team", "name": "claim-1"}, "status": status}


def a_slice(chance: random.Random) -> Event:
    """Draw a slice of two devices, for one node or for any; two of them may publish the same names."""
    first = chance.randrange(6)
    devices = [
        {"name": f"gpu-{number}", "attributes": {"uuid": {"string": card_id(first + number)}},
         "capacity": {"memory": {"value": f"{CARD_MIB}Mi"}}}
        for number in range(2)
    ]  # fmt: skip
    where = chance.choice(({}, {"nodeName": "n1"}, {"nodeName": "n2"}))
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "n1"}, "devices": devices, **where}
    return Watched.RESOURCE_SLICES, {"metadata": {"name": chance.choice(("s1", "s2"))}, "spec": spec}


def a_taint_rule(chance: random.Random) -> Event:
    """Draw one of two rules, which closes cards of one pool, of all, or of none."""
    selector = chance.choice(({}, {"pool": "n1", "device": "gpu-0"}, {"driver": "other"}))
    taint = {"key": "k", "effect": chance.choice(("None", "NoSchedule"))}
    name = chance.choice(("t1", "t2"))
    return Watched.TAINT_RULES, {"metadata": {"name": name}, "spec": {"deviceSelector": selector, "taint": taint}}


def an_autoscaler(chance: random.Random) -> Event:
    """Draw an autoscaler of either kind, of few names, that scales one Deployment or another."""
    watched = chance.choice((Watched.POD_AUTOSCALERS, Watched.SCALED_OBJECTS))
    target = {"kind": "Deployment", "name": chance.choice(("a", "b"))}
    spec = {"scaleTargetRef": target, "maxReplicas": chance.randrange(1, 4), "minReplicaCount": chance.randrange(3)}
    return watched, {"metadata": {"namespace": "team", "name": chance.choice(("s1", "s2"))}, "spec": spec}


DRAWS = (a_pod, a_pod, a_pod, a_node, an_owner, a_reservation, a_claim, a_slice, a_taint_rule, an_autoscaler)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_any_history_gives_the_rows_of_a_fresh_list(seed: int):
    chance = random.Random(seed)
    allocation = Allocation("c1")
    there: dict[tuple[Watched, tuple[str, str]], Manifest] = {}
    for _ in range(EVENTS):
        watched, manifest = chance.choice(DRAWS)(chance)
        if chance.random() < 0.2:
            drop(allocation, watched, manifest)
            there.pop((watched, key_of(manifest)), None)
        else:
            take(allocation, watched, manifest)
            there[watched, key_of(manifest)] = manifest
        if chance.random() < 0.5:
            rows(allocation)
    listed = [(watched, manifest) for (watched, _), manifest in there.items()]
    chance.shuffle(listed)
    assert rows(allocation) == of(*listed)


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_when_everything_has_gone_nothing_is_left(seed: int):
    chance = random.Random(seed)
    allocation = Allocation("c1")
    for _ in range(EVENTS):
        watched, manifest = chance.choice(DRAWS)(chance)
        take(allocation, watched, manifest)
    rows(allocation)
    for watched in Watched:
        allocation.retain(watched, set())
    assert rows(allocation) == of()


def test_one_change_leaves_the_other_rows_the_same_objects():
    allocation = Allocation("c1")
    take(allocation, Watched.NODES, node(cards=2))
    for number in range(5):
        take(allocation, Watched.PODS, pod(f"p{number}", granted=grant(0, 1000) + ";"))
    rows(allocation)
    before = {family.name: family for family in allocation.families(frozenset(Watched))}
    take(allocation, Watched.PODS, pod("p3", granted=grant(0, 2000) + ";"))
    rows(allocation)
    after = {family.name: family for family in allocation.families(frozenset(Watched))}
    name = "gputide_slice_framebuffer_granted_bytes"
    assert after[name].labels is before[name].labels
    assert after[name].values.tolist() != before[name].values.tolist()
    assert after["gputide_node_info"] is before["gputide_node_info"]
    assert after["gputide_card_tenants"] is before["gputide_card_tenants"]
