"""What was imported of a bill, and what became of applied plans on it, as answers of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from dashboards.money.import_bill import ReadBill, SameRows
from dashboards.words.bill import bill_words
from enforcer.record.billed import NodeBill, PlanBill
from fleet.documents import document
from fleet.money.bill import BilledNames
from fleet.units import Money, format_count, format_money, format_plan_id, format_time
from fleet.words import Language
from gputide.answers.plan import saving_text
from gputide.output import Answer, Listing

_UNKNOWN = "unknown"
_STILL_BILLED = "nodes are gone from the cluster and still billed: look for machines and disks at the provider"
_NAMED_MAX = 10


def import_answer(found: ReadBill, names: BilledNames, same_rows: SameRows) -> Answer:
    """What `cost bill import` prints."""
    parts = Listing.of(
        "Accounts and billing periods, each in the place of what was imported of it before",
        found.parts,
        {
            "issuer": lambda part: part.scope.issuer,
            "account": lambda part: part.scope.account,
            "sub account": lambda part: part.scope.sub_account,
            "billing period": lambda part: f"{part.period:%Y-%m-%d}",
            "currency": lambda part: part.currency,
            "days covered": lambda part: len(part.covered),
            "last day": lambda part: f"{max(part.covered):%Y-%m-%d}" if part.covered else "",
            "nodes": lambda part: len({one.node for one in part.days}),
            "invoices": lambda part: ", ".join(part.invoices[:_NAMED_MAX]),
        },
    )
    about = f"{format_count(found.rows)} rows, {format_count(found.node_rows)} of them about"
    matched = {one.node for part in found.parts for one in part.days}
    notes = ["give all files of a billing period in one import: a later one takes its place"]
    if names.ambiguous:
        notes.append(f"names of two nodes, which stand for neither: {', '.join(names.ambiguous[:_NAMED_MAX])}")
    if found.same_rows:
        notes.append(f"{format_count(found.same_rows)} rows are the same as another: --same-rows {same_rows.value}")
    return Answer(
        document={
            "rows": found.rows,
            "node_rows": found.node_rows,
            "same_rows": found.same_rows,
            "nodes": sorted(node.node for node in matched),
            "parts": [
                {
                    **part.scope._asdict(),
                    "period": part.period.isoformat(),
                    "currency": part.currency,
                    "covered": [day.isoformat() for day in sorted(part.covered)],
                    "invoices": list(part.invoices),
                    "nodes": sorted({one.node.node for one in part.days}),
                }
                for part in found.parts
            ],
        },
        headline=(f"{about} {format_count(len(matched))} known nodes",),
        listings=(parts,),
        warnings=() if matched else ("no row names a known node; name them with --map (docs/money.md)",),
        footnotes=tuple(notes),
    )


def bills_answer(bills: Sequence[PlanBill]) -> Answer:
    """What `cost bill show` prints: per plan and stage, then per node."""
    stages = Listing(
        title="Promised, free, gone",
        columns=("plan", "stage", "promised", "promised per week", "free", "nodes freed", "gone"),
        rows=[
            (
                format_plan_id(bill.plan_id), stage.stage, stage.promised_cards,
                saving_text(stage.promised_saving_per_week, bill.currency), _known(stage.free_cards),
                _known(stage.nodes), _known(stage.gone),
            )
            for bill in bills
            for stage in bill.stages
        ],
    )  # fmt: skip
    nodes = Listing(
        title="Wholly freed nodes on the bill",
        columns=(
            "plan", "stage", "node", "handed over", "gone since", "billed per day before", "after", "days after",
            "saved", "still billed", "committed per day",
        ),
        rows=[
            (
                format_plan_id(bill.plan_id), "" if node.stage is None else node.stage, node.node,
                _handed_over(node), "still there" if node.gone_since is None else format_time(node.gone_since),
                _money(node.before_per_day, node), _money(node.after_per_day, node), node.days_after,
                "" if node.gone_since is None else _money(node.saved, node), _still(node),
                _money(node.committed_per_day, node),
            )
            for bill in bills
            for node in bill.nodes or ()
        ],
        caption="committed: by commitment discounts and purchases, paid though the node goes; in no other column",
    )  # fmt: skip
    still = sum(len(bill.billed_gone) for bill in bills)
    return Answer(
        document={"plans": [bill_document(bill) for bill in bills]},
        headline=(bill_words(bills, Language.EN), *(_plan_line(bill) for bill in bills)),
        listings=(stages, nodes),
        warnings=(f"{format_count(still)} {_STILL_BILLED}",) if still else (),
    )


def bill_document(bill: PlanBill) -> dict[str, Any]:
    """What became of a plan on the bill, as JSON; None is unknown."""
    found: dict[str, Any] = document(bill)
    found["covered_until"] = None if bill.covered_until is None else bill.covered_until.isoformat()
    found["nodes_gone"] = None if bill.nodes is None else [node.node for node in bill.gone]
    found["nodes_still_billed"] = None if bill.nodes is None else [node.node for node in bill.billed_gone]
    found["nodes_still_there"] = None if bill.nodes is None else [node.node for node in bill.standing]
    return found


def _plan_line(bill: PlanBill) -> str:
    """What a plan promised in money beside what the bill shows."""
    promised = saving_text(bill.promised_saving_per_week, bill.currency)
    applied = f"plan {format_plan_id(bill.plan_id)}, applied {format_time(bill.applied_at)}"
    parts = [f"{applied}: promised {bill.promised_cards} cards, {promised} a week; free {_known(bill.free_cards)}"]
    if bill.promised_nodes:
        gone, handed = {node.node for node in bill.gone}, sum(node.released_at is not None for node in bill.nodes or ())
        parts.append(
            f"promised {len(bill.promised_nodes)} whole nodes: {handed} handed over, "
            f"{len(gone.intersection(bill.promised_nodes))} gone"
        )
    for total in bill.totals:
        before, after = (
            format_money(Money(amount=amount, currency=total.currency), digits=2)
            for amount in (total.before_per_day, total.after_per_day)
        )
        parts.append(f"{total.nodes} freed nodes billed {before} a day before, {after} after")
    return "; ".join(parts)


def _known(value: int | None) -> int | str:
    return _UNKNOWN if value is None else value


def _handed_over(node: NodeBill) -> str:
    if node.stays is not None:
        return f"given back: {node.stays}"
    return "no" if node.released_at is None else format_time(node.released_at)


def _still(node: NodeBill) -> str:
    if node.gone_since is None:
        return ""
    return _UNKNOWN if node.is_billed_gone is None else "yes" if node.is_billed_gone else "no"


def _money(amount: Decimal | None, node: NodeBill) -> str:
    if amount is None or node.currency is None:
        return _UNKNOWN
    return format_money(Money(amount=amount, currency=node.currency), digits=2)
