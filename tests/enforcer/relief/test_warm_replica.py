"""The second replica of a pod: what it takes from its template, and what its owner forbids."""

from __future__ import annotations

from typing import Any

import pytest

from enforcer.backends.hami_dialect import HAMI_WORDS
from enforcer.relief.warm_replica import hash_of, replica_name, wants_pods, warm_replica
from enforcer.resource_names import Words
from fleet.errors import Refused
from tests.enforcer.builders import card_id
from tests.enforcer.relief.test_squeeze import an_order

USE, AVOID = str(HAMI_WORDS.use_card), str(HAMI_WORDS.avoid_card)


def replica_set(
    *, hash_label: str = "pod-template-hash", annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    labels = {"app": "a", hash_label: "x1"}
    metadata = {"labels": labels, "annotations": annotations or {}}
    return {
        "kind": "ReplicaSet",
        "metadata": {"namespace": "team", "name": "a-x1"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": metadata,
                "spec": {"containers": [{"name": "server"}], "nodeSelector": {"z": "a"}},
            },
            **spec,
        },
    }


@pytest.mark.parametrize("label", ["pod-template-hash", "rollouts-pod-template-hash"])
def test_replica_is_its_template_on_the_new_card_and_nobodys_yet(label: str) -> None:
    made = warm_replica(an_order(1), replica_set(hash_label=label), HAMI_WORDS)
    assert made["spec"] == {"containers": [{"name": "server"}], "nodeSelector": {"z": "a"}}
    assert made["metadata"]["labels"] == {"app": "a", "gputide.io/relief": "move-1"}
    assert made["metadata"]["annotations"][USE] == card_id(1)
    assert "ownerReferences" not in made["metadata"]
    assert hash_of(replica_set(hash_label=label)) == (label, "x1")


def test_tenants_own_choice_of_cards_does_not_make_way() -> None:
    for name, cards in ((USE, str(card_id(5))), (AVOID, f"{card_id(4)}, {card_id(1)}")):
        with pytest.raises(Refused, match=f"its template's {name}"):
            warm_replica(an_order(1), replica_set(annotations={name: cards}), HAMI_WORDS)


def test_backend_without_a_choice_of_cards_and_owner_without_a_hash_are_refused() -> None:
    words = Words(**{**{name: getattr(HAMI_WORDS, name) for name in Words.__slots__}, "use_card": None})
    with pytest.raises(Refused, match="does not take a card by its UUID"):
        warm_replica(an_order(1), replica_set(), words)
    with pytest.raises(Refused, match="by a hash of their template"):
        warm_replica(an_order(1), replica_set(hash_label="version"), HAMI_WORDS)


def test_name_is_short_enough_for_a_pod_and_the_same_for_the_same_move() -> None:
    name = replica_name("x" * 250, "0123456789")
    assert len(name) <= 63
    assert name == replica_name("x" * 250, "0123456789") != replica_name("x" * 250, "1123456789")


def test_replica_set_that_is_rolled_away_adopts_nobody() -> None:
    assert wants_pods(replica_set())
    assert not wants_pods(replica_set(replicas=0))
    assert not wants_pods(None)
