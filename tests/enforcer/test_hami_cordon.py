"""Cards of emptied nodes are closed to new pods, in a way that HAMi's scheduler sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from enforcer.backends.hami import HamiBackend, cordon_changes
from enforcer.backends.hami_dialect import cordoned_cards
from enforcer.manifest import field_of
from enforcer.record.journal import FieldIntent, ObjectIntent
from enforcer.rollout.holding import Phase
from enforcer.rollout.intent_writer import IntentWriter
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.outcomes import Change
from tests.enforcer.builders import NOW, a_cluster, a_plan, a_recommendation, card_id, patient, whole
from tests.enforcer.kin_cluster import HAMI, a_kin_cluster
from tests.enforcer.test_backend_kin import slice_

CORDON = "metadata.annotations[hami.io/device-cordon]"
HANDSHAKE = "metadata.annotations[hami.io/node-handshake]"


def seen(cordon: str | None = None) -> Snapshot:
    cluster = a_kin_cluster(HAMI)
    node = cluster.get("Node", "", "node-1")
    assert node is not None
    node["metadata"]["annotations"]["hami.io/node-handshake"] = "Requesting_2026-01-11 23:59:50"
    if cordon is not None:
        node["metadata"]["annotations"]["hami.io/device-cordon"] = cordon
    return take_snapshot(cluster)


def of_nodes(changes: tuple[Change, ...]) -> dict[tuple[str, str], str | None]:
    return {(change.name, change.field): change.new for change in changes if change.kind == "Node"}


def node_1_is_emptied(*, stays: tuple[str, ...] = ()) -> Plan:
    gone = [pod for pod in ("c-0", "c-1", "book-0", "train-0") if pod not in stays]
    owners = {"c": "Deployment/c", "book": "Notebook/book", "train": "Job/train"}
    named = sorted({owners[pod.rsplit("-", 1)[0]] for pod in gone})
    kept = {6: [whole("book-0", kind="Notebook")]} if "book-0" in stays else {}
    return a_plan(
        {0: [whole("a-0")], **kept}, [[a_recommendation("x", RecommendationKind.RECLAIM, gone, named, len(gone))]]
    )


def rendered(plan: Plan, snapshot: Snapshot) -> dict[tuple[str, str], str | None]:
    return of_nodes(HamiBackend(NOW, cordons_emptied_nodes=True).render(plan, 1, snapshot).changes)


def test_cards_of_an_emptied_node_are_closed_and_the_scheduler_is_woken() -> None:
    cards = ",".join(card_id(number) for number in range(4, 8))
    assert rendered(node_1_is_emptied(), seen()) == {
        ("node-1", CORDON): cards,
        ("node-1", HANDSHAKE): "Reported_2026-01-12 00:00:00",
    }


@pytest.mark.parametrize("plan", [node_1_is_emptied(stays=("book-0",)), slice_()])
def test_node_with_a_pod_left_is_not_closed(plan: Plan) -> None:
    assert rendered(plan, seen()) == {}


def test_nothing_is_closed_unless_it_is_asked_for() -> None:
    assert of_nodes(HamiBackend(NOW).render(node_1_is_emptied(), 1, seen()).changes) == {}


def test_cards_that_others_closed_stay_closed() -> None:
    changes = cordon_changes(seen(f" GPU-other ,{card_id(5)}"), NOW, "x", close=[card_id(4)])
    told = of_nodes(changes)[("node-1", CORDON)] or ""
    assert set(told.split(",")) == {"GPU-other", card_id(4), card_id(5)}


def test_what_stands_so_already_is_not_written_again() -> None:
    assert cordon_changes(seen(card_id(5)), NOW, "x", close=[card_id(5)]) == ()


def test_cordon_of_a_node_is_read_as_a_list() -> None:
    assert cordoned_cards({"metadata": {"annotations": {"hami.io/device-cordon": "GPU-1,, GPU-2"}}}) == (
        "GPU-1",
        "GPU-2",
    )


def test_handshake_that_hami_rewrites_meanwhile_is_nobody_s_change(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    writer = IntentWriter(patient(cluster))

    def handshake(text: str) -> str:
        node = cluster.get("Node", "", "node-1")
        assert node is not None
        node["metadata"].setdefault("annotations", {})["hami.io/node-handshake"] = text
        cluster.create(node)
        found = cluster.get("Node", "", "node-1")
        assert found is not None
        return str(found["metadata"]["resourceVersion"])

    intent = ObjectIntent(
        kind="Node", namespace="", name="node-1", resource_version=handshake("Requesting_1"), recommendation="x",
        fields=(
            FieldIntent(field=CORDON, old=None, new="GPU-1"),
            FieldIntent(field=HANDSHAKE, old="Requesting_1", new="Reported_2"),
        ),
    )  # fmt: skip
    handshake("Requesting_3")
    writer.patch(intent, Phase.REST)
    node = cluster.get("Node", "", "node-1")
    assert node is not None
    assert (field_of(node, CORDON), field_of(node, HANDSHAKE)) == ("GPU-1", "Reported_2")
    handshake("Requesting_4")
    assert writer.restore(intent) == ()
    node = cluster.get("Node", "", "node-1")
    assert node is not None
    # What stood there before is long past: HAMi would take the node for one that does not answer.
    assert (field_of(node, CORDON), field_of(node, HANDSHAKE)) == (None, "Reported_2")
