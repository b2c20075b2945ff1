"""What became of an applied plan on the bill: promised, free, gone, no longer billed."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from dashboards.words.bill import bill_words
from enforcer.record.billed import BillSpan, ClusterNow, PlanBill, plan_bills
from fleet.inventory import Card, CardId, CardModelName, Inventory
from fleet.money.bill import BilledDay, BillPart, BillScope, ChargeKind, NodeName
from fleet.words import Language
from tests.enforcer.test_savings import a_record, an_outcome

APPLIED = datetime(2026, 1, 10, 3, tzinfo=UTC)
GONE = datetime(2026, 1, 12, 9, tzinfo=UTC)
RECORD = a_record("p", "abc")
CLUSTER = RECORD.plan.cluster
MODEL = CardModelName("NVIDIA A10")
CARDS = tuple(
    Card(card=CardId(card), card_model=MODEL, framebuffer_bytes=1, node=f"n-{card}", cluster=CLUSTER) for card in "abc"
)


def a_part(
    days: dict[str, dict[int, str]], *, covered: range = range(1, 21), kind: ChargeKind = ChargeKind.RUNNING,
    scope: str = "9",
) -> BillPart:  # fmt: skip
    """What nodes were billed in January, by day of the month."""
    return BillPart(
        scope=BillScope("AWS", "payer", scope),
        period=date(2026, 1, 1),
        currency="EUR",
        covered=frozenset(date(2026, 1, day) for day in covered),
        invoices=(),
        days=tuple(
            BilledDay(node=NodeName(CLUSTER, node), day=date(2026, 1, day), kind=kind, billed=Decimal(cost),
                      effective=Decimal(cost))
            for node, own in days.items()
            for day, cost in own.items()
        ),
    )  # fmt: skip


def bill(*parts: BillPart, gone: str = "a", realised: str = "ab", until: int = 21) -> PlanBill:
    now = ClusterNow(
        inventory=Inventory(cluster=CLUSTER, as_of=APPLIED + timedelta(days=11), cards=CARDS),
        gone={f"n-{card}": GONE for card in gone},
    )
    (found,) = plan_bills(
        (RECORD,), {"p": dict.fromkeys((1, 2, 3), APPLIED)}, (an_outcome("p", realised),), now, parts,
        BillSpan(since=None, until=datetime(2026, 1, until, tzinfo=UTC)),
    )  # fmt: skip
    return found


def test_gone_node_saves_what_it_cost_for_each_day_that_the_bill_covers_without_it() -> None:
    daily = dict.fromkeys(range(1, 12), "70.01") | {12: "30"}
    found = bill(a_part({"n-a": daily, "n-b": dict.fromkeys(range(1, 21), "5")}))
    (first, second) = found.nodes or ()
    assert (first.node, first.stage, first.days_before, first.days_after) == ("n-a", 1, 7, 8)
    assert (first.before_per_day, first.after_per_day, first.saved) == (Decimal("70.01"), Decimal(0), Decimal("560.08"))
    assert first.is_billed_gone is False
    assert (second.gone_since, second.saved, second.after_per_day) == (None, None, Decimal(5))
    assert [total.saved for total in found.totals] == [Decimal("560.08")]
    assert (found.promised_cards, found.free_cards) == (3, 2)
    assert [(stage.free_cards, stage.nodes, stage.gone) for stage in found.stages] == [(1, 1, 1), (1, 1, 0), (0, 0, 0)]
    assert "saved on the bill so far €560.08" in bill_words([found], Language.EN)


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (a_part({"n-a": {1: "5"}}, covered=range(1, 10)),),
        (a_part({"n-a": {15: "5"}}, covered=range(13, 20)),),
        (a_part({"n-c": {1: "5"}}),),
    ],
)  # fmt: skip
def test_days_that_no_bill_covers_are_unknown_and_never_zero(parts: tuple[BillPart, ...]) -> None:
    found = bill(*parts)
    assert [node.saved for node in found.nodes or ()] == [None, None]
    assert [node.node for node in found.unbilled] == ["n-a", "n-b"]
    assert found.totals == ()
    assert "unknown" in bill_words([found], Language.EN)


def test_day_counts_where_the_bills_of_all_scopes_of_the_node_cover_it() -> None:
    both = (a_part({"n-a": {3: "1"}}), a_part({"n-a": {3: "1"}}, covered=range(1, 16), scope="8"))
    assert [node.days_after for node in bill(*both).nodes or ()] == [3, 0]


def test_node_that_is_gone_and_billed_is_named_and_a_refund_is_no_bill() -> None:
    still = bill(a_part({"n-a": dict.fromkeys(range(1, 21), "1")}))
    assert [node.node for node in still.billed_gone] == ["n-a"]
    refunded = bill(a_part({"n-a": dict.fromkeys(range(1, 12), "1") | {15: "-3"}}))
    assert refunded.billed_gone == ()
    assert [total.saved for total in refunded.totals] == [8 + 3]


def test_committed_charges_are_said_apart_and_save_nothing() -> None:
    (node, _) = bill(a_part({"n-a": dict.fromkeys(range(1, 12), "9")}, kind=ChargeKind.COMMITTED)).nodes or ()
    assert (node.before_per_day, node.saved, node.committed_per_day) == (Decimal(0), Decimal(0), Decimal(9))


def test_card_that_is_taken_again_frees_no_node() -> None:
    assert [node.node for node in bill(realised="b").nodes or ()] == ["n-b"]
    assert bill_words([bill(realised="")], Language.EN).startswith("Bill: 0 cards are free, but no node wholly")


def test_plan_that_was_not_verified_or_was_undone_is_not_guessed_at() -> None:
    now = ClusterNow(inventory=Inventory(cluster=CLUSTER, as_of=APPLIED, cards=CARDS), gone={})
    span = BillSpan(since=None, until=APPLIED)
    (found,) = plan_bills((RECORD,), {"p": {1: APPLIED}}, (), now, (a_part({}),), span)
    assert (found.free_cards, found.nodes) == (None, None)
    assert "gputide verify" in bill_words([found], Language.EN)
    assert plan_bills((replace(RECORD, applied_stages=()),), {}, (), now, (a_part({}),), span) == ()
    assert bill_words([], Language.ZH) == ""
