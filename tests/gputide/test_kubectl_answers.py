"""What `kubectl gputide` prints of what the cluster served: waste first, nothing that is not known as zero."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from gputide.kubectl.answers import Order, advice_answer, cards_answer, costs_answer, plan_answer, pods_answer
from gputide.output import Answer, Format, print_answer

MEASURED = {"measuredSince": "2026-11-01T00:00:00Z", "measuredUntil": "2026-11-02T00:00:00Z", "currency": "USD"}


def pod(name: str, used: float | None, cost: str | None = "24.00", **more: Any) -> dict[str, Any]:
    part = {
        "card": f"GPU-{name}", "grantedComputeRatio": 1.0, "usedComputeRatio": used, "usedComputeRatioMax": used,
        "grantedFramebufferBytes": 80 * 2**30, "usedFramebufferBytesMax": None if used is None else 2**30,
    }  # fmt: skip
    return {
        "metadata": {"namespace": "n", "name": name}, "slices": [part], "costPerDay": cost, "state": "busy",
        "isIdle": False, "idleSince": None, **MEASURED, **more,
    }  # fmt: skip


def names(answer: Any, column: str) -> list[str]:
    (listing,) = answer.listings
    place = listing.columns.index(column)
    return [row[place] for row in listing.rows]


def test_pods_that_pay_for_most_that_they_do_not_use_come_first() -> None:
    idle = pod("idle", 0.0, state="idle", isIdle=True, idleSince="2026-10-30T00:00:00Z")
    pods = [pod("busy", 0.9), pod("half", 0.5), idle, pod("cheap", 0.0, "1.00")]
    answer = pods_answer(pods, Order.WASTE, namespace=None)
    assert names(answer, "pod") == ["idle", "half", "busy", "cheap"]
    assert names(answer, "idle for") == ["3 d", "", "", ""]
    assert answer.headline == (
        "4 pods hold 4 cards and cost $73 a day", "1 of them are idle; their 1 cards cost $24"
    )  # fmt: skip


@pytest.mark.parametrize("doubted", [pod("a", None), pod("a", 0.0, state="unknown", isIdle=None)])
def test_use_that_is_not_known_counts_as_no_waste(doubted: dict[str, Any]) -> None:
    answer = pods_answer([doubted, pod("b", 0.9, "1.00")], Order.WASTE, namespace="n")
    assert names(answer, "pod") == ["b", "a"]
    unknown = pods_answer([pod("a", None)], Order.NAME, namespace="n")
    assert (names(unknown, "used"), names(unknown, "held")) == (["unknown"], ["unknown"])


def test_sums_say_what_has_no_price() -> None:
    answer = pods_answer([pod("a", 0.1), pod("b", 0.1, None)], Order.NAME, namespace=None)
    assert "cost $24 (without 1 that have no price) a day" in answer.headline[0]
    assert names(answer, "cost a day") == ["$24", "no price"]


def test_namespace_without_pods_on_cards_is_an_answer() -> None:
    assert pods_answer([], Order.WASTE, namespace="n").headline == (
        "no pod of namespace n is on a card; -A shows all namespaces",
    )
    assert costs_answer([]).headline == ("no card was granted there over the last seven days",)


def test_card_whose_counters_are_not_trusted_is_no_waste() -> None:
    def card(name: str, state: str, used: float | None) -> dict[str, Any]:
        return {
            "metadata": {"name": name}, "node": "n1", "cardModel": "m", "state": state, "computeP95Ratio": used,
            "framebufferBytes": 2**30, "usedFramebufferBytesMax": None, "workloads": [], "idleSince": None,
            "costPerDay": "10.00", **MEASURED,
        }  # fmt: skip

    cards = [card("doubted", "untrusted", 0.0), card("busy", "busy", 0.8), card("free", "free", None)]
    assert names(cards_answer(cards, Order.WASTE), "card") == ["free", "busy", "doubted"]


def test_advice_names_what_is_refused_and_says_where_a_plan_is_silent() -> None:
    found = {
        "metadata": {"namespace": "n", "name": "p"}, "workload": "n/Deployment/w", "state": "busy", "why": "It works.",
        "planId": "ab" * 32, "recommendations": [],
        "refused": [{"kind": None, "reason": "opt_out", "detail": "It opted out."}],
    }  # fmt: skip
    assert advice_answer(found).warnings == ["not changed at all: It opted out."]
    assert "says nothing of it" in advice_answer({**found, "refused": []}).footnotes[0]
    assert advice_answer({**found, "refused": [], "planId": None}).footnotes == ("there is no plan yet",)


def test_stage_stands_as_its_status_says() -> None:
    stages = [{"stage": number, "cardsFreed": 2, "moves": 3} for number in (1, 2)]
    head = {
        "metadata": {"name": "plan-x"},
        "spec": {
            "plan": "ab" * 32, "cluster": "c", "cardsFreed": 4, "savingPerWeek": "", "stages": stages, "apply": [1],
        },
        "status": {"state": "Applied", "progress": "1/2", "stages": [{"stage": 1, "state": "promoted", "reason": ""}]},
    }  # fmt: skip
    answer = plan_answer(head)
    assert answer.headline[0].endswith("for c: Applied, 1/2 stages in force")
    assert "no price known" in answer.headline[1]
    assert names(answer, "state") == ["promoted", "proposed"]
    assert names(answer, "wanted") == ["yes", ""]


def test_terminal_obeys_nothing_that_a_name_or_a_message_holds(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
    answer = pods_answer([pod(f"a{hostile}", 0.1, state=hostile)], Order.NAME, namespace=f"n{hostile}")
    said = {**vars_of(answer), "texts": ((hostile,),), "warnings": (hostile,), "footnotes": (hostile,)}
    print_answer(Answer(**said), form=Format.TABLE, target=None)
    shown = capsys.readouterr().out
    assert "a\N{REPLACEMENT CHARACTER}]0;owned" in shown
    assert not [sign for sign in shown if sign in "\x1b\x07\x9b\u202e"]


def vars_of(answer: Answer) -> dict[str, Any]:
    return {one.name: getattr(answer, one.name) for one in fields(answer)}
