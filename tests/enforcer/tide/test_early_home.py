"""Only work in the way of services that come home early goes, the lowest tier first; services may share cards."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

import pytest

from enforcer.dialect import SeatSlice
from enforcer.record.journal import FieldIntent, ObjectIntent
from enforcer.seat import PodSeat
from enforcer.tide.early_home import work_in_the_way
from enforcer.tide.leaving import SeatsOf
from enforcer.tide.tide_journal import Night
from fleet.inventory import WorkloadId
from fleet.tiers import Tier
from tests.enforcer.builders import NOW

A, B, C = (WorkloadId(f"team/Deployment/{name}") for name in "abc")


def job(name: str, kind: str = "Job") -> ObjectIntent:
    field = FieldIntent(field="spec.stopPolicy", old="HoldAndDrain", new="None")
    return ObjectIntent(
        kind=kind, namespace="team", name=name, resource_version="1", recommendation="tide", fields=(field,)
    )


def pods(**cards: tuple[str, ...]) -> SeatsOf:
    """Pods by name of their workload: a, b and c are services, all others Jobs; each sits on a card, or waits."""
    return {
        WorkloadId(f"team/{'Deployment' if name in 'abc' else 'Job'}/{name.replace('_', '-')}"): [
            PodSeat(
                namespace="team", pod=f"{name}-{number}", workload=A, node="n" if card else None,
                slices=(SeatSlice(container="main", card=card, framebuffer_mib=1, core_percent=50),) if card else (),
                is_ready=True, restarts=0, is_oom_killed=False, resource_version="1", deletion_cost=None,
            )
            for number, card in enumerate(placed)
        ]
        for name, placed in cards.items()
    }  # fmt: skip


def night(kept: str = "", **left: str) -> Night:
    """Cards that services left, a letter each, and those of them on which others stayed."""
    frees = tuple((WorkloadId(f"team/Deployment/{name}"), card) for name, cards in left.items() for card in cards)
    return Night(
        plan_id="p", night=NOW.date(), began_at=NOW, ends_at=NOW + timedelta(hours=9), services=(), scale=(), left=(),
        workloads=(A, B, C), cards=1, marks=(), frees=frees, freed=tuple(sorted({card for _, card in frees} - {*kept})),
    )  # fmt: skip


def going(
    of: Night, needs: Collection[WorkloadId], standing: SeatsOf, tiers: Mapping[str, Tier],
    stopped: Collection[WorkloadId] = (),
) -> list[str]:  # fmt: skip
    work = {job(name): tier for name, tier in tiers.items()}
    owners = {intent: (WorkloadId(f"team/Job/{intent.name}"),) for intent in work}
    return [intent.name for intent in work_in_the_way(of, needs, standing, work, owners, stopped)]


BATCH = dict.fromkeys(("one", "two"), Tier.BATCH)


@pytest.mark.parametrize(
    ("left", "standing", "tiers", "wanted"),
    [
        ({"a": "XY"}, {"a": ("",), "one": ("X",), "two": ("Y",)}, {"one": Tier.MID, "two": Tier.FREE}, ["two"]),
        ({"a": "XY"}, {"a": ("",), "one": ("X",), "two": ("Y",)}, {"one": Tier.BATCH, "two": Tier.MID}, ["one"]),
        ({"a": "X", "b": "Y"}, {"a": ("",), "one": ("X",), "two": ("Y",)}, BATCH, ["one"]),
        ({"a": "X", "b": "Y"}, {"a": ("",), "one": ("X",), "two": ("Y",)}, {**BATCH, "two": Tier.FREE}, ["one"]),
        ({"a": "XY"}, {"a": ("",), "one": ("X", "Z", "W"), "two": ("Y",)}, BATCH, ["two"]),
        ({"kept": "X", "a": "X"}, {"a": ("",), "c": ("X",), "one": ("X",)}, {"one": Tier.BATCH}, ["one"]),
        ({"a": "XY"}, {"a": ("V", "V", "", ""), "one": ("X",), "two": ("Y",)}, BATCH, ["one"]),
        ({"a": "XY"}, {"a": ("V", "W", "", ""), "one": ("X",), "two": ("Y",)}, BATCH, ["one", "two"]),
        ({"a": "XY"}, {"a": ("",), "one": ("X",)}, {"one": Tier.FREE}, []),
    ],
    ids=[
        "the lowest tier", "whatever it is called", "of cards that it left", "though a lower tier sits elsewhere",
        "of one tier who holds least of others", "beside a service that stayed on the card",
        "for two that share a card, one", "for two that do not, two", "nobody while a card is empty",
    ],
)  # fmt: skip
def test_for_one_service_in_need_goes(
    left: dict[str, str], standing: dict[str, tuple[str, ...]], tiers: dict[str, Tier], wanted: list[str]
) -> None:
    assert going(night(**left), [A], pods(**standing), tiers) == wanted


def test_what_goes_for_one_service_makes_room_for_the_next() -> None:
    standing = pods(a=("",), b=("",), one=("X", "Y"), two=("Z",))
    tiers = {"one": Tier.MID, "two": Tier.FREE}
    assert going(night(a="X", b="YZ"), [A, B], standing, tiers) == ["one"]
    assert going(night(a="X", b="YZ"), [B], standing, tiers) == ["two"], "alone b needs no more than that"


def test_services_that_shared_a_card_are_given_it_once() -> None:
    standing = pods(a=("",), b=("",), one=("X",), two=("Y",))
    assert going(night(a="X", b="XY"), [A, B], standing, BATCH) == ["one"]


def test_work_that_is_going_already_is_waited_for() -> None:
    standing = pods(a=("",), one=("X",), two=("Y",))
    assert going(night(a="XY"), [A], standing, {"two": Tier.BATCH}, [WorkloadId("team/Job/one")]) == []
    assert going(night(a="XY"), [A], standing, {"two": Tier.BATCH}) == ["two"]


def test_lowest_tier_goes_first_whichever_service_it_goes_for() -> None:
    standing = pods(a=("",), b=("",), one=("X",), two=("Y",))
    tiers = {"one": Tier.MID, "two": Tier.FREE}
    assert going(night(a="X", b="Y"), [A, B], standing, tiers) == ["two", "one"]


def test_of_two_queues_the_one_whose_work_is_in_the_way_is_drained() -> None:
    free, mid = job("free", "ClusterQueue"), job("mid", "ClusterQueue")
    owners = {free: (WorkloadId("team/Job/one"),), mid: (WorkloadId("team/Job/two"),)}
    standing = pods(a=("",), one=("Y",), two=("X",))
    found = work_in_the_way(night(a="X", b="Y"), [A], standing, {free: Tier.FREE, mid: Tier.MID}, owners)
    assert list(found) == [mid]
