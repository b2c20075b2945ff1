"""What became of plans on the provider's bill, in one line: `verify` and the weekly report say it."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from enforcer.record.billed import PlanBill
from fleet.units import Money, format_money
from fleet.words import Language, Words


def bill_words(bills: Sequence[PlanBill], language: Language) -> str:
    """One line over plans that were applied; empty where no bill was imported."""
    if not bills:
        return ""
    say = Words(language=language).say
    verified = [bill for bill in bills if bill.nodes is not None]
    if not verified:
        return say("bill.not_verified")
    counts = {
        "nodes": sum(len(bill.nodes or ()) for bill in verified),
        "gone": sum(len(bill.gone) for bill in verified),
        "standing": sum(len(bill.standing) for bill in verified),
    }
    if not counts["nodes"]:
        return say("bill.no_nodes", cards=sum(bill.free_cards or 0 for bill in verified))
    days = [bill.covered_until for bill in verified if bill.covered_until is not None]
    saved = saved_by_currency(verified)
    unbilled = sum(len(bill.unbilled) for bill in verified)
    if not days or not any(bill.totals for bill in verified):
        return say("bill.no_cover", **counts)
    amounts = say("mark.list").join(format_money(Money(amount=saved[name], currency=name), digits=2) for name in saved)
    text = say(
        "bill.line",
        day=f"{max(days):%Y-%m-%d}",
        billed=sum(len(bill.billed_gone) for bill in verified),
        saved=amounts or say("bill.saved_unknown"),
        **counts,
    )
    return text + say("bill.unbilled", nodes=unbilled) if unbilled else text


def saved_by_currency(bills: Sequence[PlanBill]) -> dict[str, Decimal]:
    """What nodes that are gone saved on the bill so far, by currency, sorted; without a bill no entry."""
    found: dict[str, Decimal] = {}
    for total in sorted((total for bill in bills for total in bill.totals), key=lambda total: total.currency):
        if total.saved is not None:
            found[total.currency] = found.get(total.currency, Decimal(0)) + total.saved
    return found
