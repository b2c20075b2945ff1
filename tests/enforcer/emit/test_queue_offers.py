"""Freed cards of machines that are paid anyway are offered to queues, each card once."""

from __future__ import annotations

import json
import shlex

from hypothesis import given
from hypothesis import strategies as st

from enforcer.emit.queue_offers import offers_text, queue_offers
from fleet.inventory import Quota


def a_queue(name: str, deserved: float | None, *, kind: str = "kueue", resource: str = "nvidia.com/gpu") -> Quota:
    return Quota(
        cluster="c", kind=kind, namespace="", name=name, parent=None, resource=resource, deserved=deserved, limit=None,
        held=None,
    )  # fmt: skip


@given(st.integers(0, 500), st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_every_card_is_offered_once(cards: int, deserved: list[int]) -> None:
    offers = queue_offers(cards, [a_queue(f"q{number}", one) for number, one in enumerate(deserved)])
    assert sum(offer.cards for offer in offers) == cards
    assert all(offer.cards > 0 for offer in offers)


def test_queues_get_by_what_they_deserve_and_others_nothing() -> None:
    queues = [
        a_queue("large", 6), a_queue("small", 2), a_queue("none", None), a_queue("cpu", 9, resource="cpu"),
        a_queue("team", 5, kind="ResourceQuota"),
    ]  # fmt: skip
    assert {offer.queue.name: (offer.cards, offer.wanted) for offer in queue_offers(4, queues)} == {
        "large": (3, 9), "small": (1, 3),
    }  # fmt: skip


def test_commands_name_the_field_of_each_kind_and_survive_hostile_names() -> None:
    name = "a; rm -rf /"
    offers = queue_offers(2, [a_queue(name, 1, kind="volcano"), a_queue("k", 1, kind="kai", resource="gpu")])
    lines = [line for line in offers_text(2, offers).splitlines() if line.startswith("kubectl")]
    words = [shlex.split(line) for line in lines]
    assert {tuple(one[2:4]) for one in words} == {
        ("queues.scheduling.volcano.sh", name), ("queues.scheduling.run.ai", "k"),
    }  # fmt: skip
    patches = {one[2]: json.loads(one[-1])["spec"] for one in words}
    assert patches["queues.scheduling.volcano.sh"] == {"deserved": {"nvidia.com/gpu": "2"}}
    assert patches["queues.scheduling.run.ai"] == {"resources": {"gpu": {"quota": 2}}}
