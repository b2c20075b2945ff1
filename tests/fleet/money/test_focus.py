"""The FOCUS export conforms, sums to what the cards cost, and carries whatever tenants call themselves."""

import csv
import io
import json
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.money_fleets import money_fleet
from dashboards.report.focus_file import write_focus_csv, write_focus_excel, write_focus_parquet
from fleet.inventory import Node
from fleet.money.charged_day import ChargedDay
from fleet.money.focus import Basis, ChargePeriod, FocusContext, focus_table
from fleet.money.focus_columns import FOCUS_COLUMNS, FocusKind, focus_faults, focus_schema
from fleet.money.tenancies import Tenancies
from tests.fleet.money.builders import SIZE, a_card, a_day, a_grant, measured, settled, some_settings

HOSTILE = ("=cmd|' /C calc'!A0", 'say "hi", now', "two\nlines", "\u202egnp.exe", "-1+1", "@sum", "\tTab", "x" * 253)
# FOCUS 1.3: what it calls mandatory in every cost and usage dataset.
MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost",
    "EffectiveCost", "HostProviderName", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit",
    "ServiceCategory", "ServiceName", "ServiceProviderName",
}  # fmt: skip


def context(who: Tenancies, basis: Basis = Basis.ALLOCATION, period: ChargePeriod = ChargePeriod.DAY) -> FocusContext:
    return FocusContext(
        who=who, nodes={}, cluster="c", currency="USD", team_labels=("team",), basis=basis, period=period,
        advice={"team/Deployment/a": "r-1"},
    )  # fmt: skip


def hostile_day() -> tuple[Tenancies, ChargedDay]:
    grants = [
        a_grant(0, name, namespace=name, workload=name, share=0.1, labels=(("team", name), (name, name)))
        for name in HOSTILE
    ]
    who = settled([a_card(0)], grants)
    return who, a_day(who)


@pytest.mark.parametrize("basis", list(Basis))
@pytest.mark.parametrize("period", list(ChargePeriod))
def test_allocated_charges_sum_to_the_charge_of_their_card_in_cost_and_quantity(
    basis: Basis, period: ChargePeriod
) -> None:
    fleet = money_fleet(7, cards=10, days=3)
    for day in fleet.days():
        table = focus_table(day, context(fleet.who, basis, period))
        assert focus_faults(table) == ()
        sums: dict[object, list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 4)
        names = ("ResourceId", "ChargePeriodStart", "EffectiveCost", "ListCost", "PricingQuantity", "ConsumedQuantity")
        for card, start, *amounts in zip(*(table.column(name).to_pylist() for name in names), strict=True):
            sums[card, start] = [total + amount for total, amount in zip(sums[card, start], amounts, strict=True)]
        origin: dict[object, list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 4)
        for card, hour in zip(day.card.tolist(), day.hour.tolist(), strict=True):
            price = day.prices[day.price_of[card]]
            if price.amortised is not None:
                key = (
                    fleet.who.cards[card].card,
                    day.start + timedelta(hours=hour if period is ChargePeriod.HOUR else 0),
                )
                paid = [price.amortised, price.list_price or price.amortised, Decimal(1), Decimal(1)]
                origin[key] = [total + amount for total, amount in zip(origin[key], paid, strict=True)]
        assert sums == origin


def test_the_export_has_the_mandatory_columns_and_types() -> None:
    schema = focus_schema()
    assert set(schema.names) >= MANDATORY
    kinds = {column.name: column.kind for column in FOCUS_COLUMNS}
    for field in schema:
        if field.name.endswith(("Cost", "Quantity", "UnitPrice")):
            assert kinds[field.name] is FocusKind.DECIMAL, field.name
        if field.name.endswith(("PeriodStart", "PeriodEnd")):
            assert field.type == pa.timestamp("ms", tz="UTC")
    own = [name for name in schema.names if name not in MANDATORY and name.startswith("x")]
    assert all(name.startswith("x_") for name in own)


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("EffectiveCost", Decimal("-1"), "EffectiveCost is negative"),
        ("EffectiveCost", Decimal(1), "BilledCost differs from EffectiveCost"),
        ("ListCost", Decimal(1), "ListCost is not ListUnitPrice × PricingQuantity"),
        ("ChargeCategory", "Gift", "ChargeCategory holds a value that is not allowed"),
        ("BillingCurrency", None, "BillingCurrency is null in 2 rows"),
        ("AllocatedResourceId", None, "AllocatedResourceId must be set for allocated parts, and only for them"),
        (
            "AllocatedResourceName",
            "a",
            "AllocatedResourceName must be set where AllocatedResourceId is, and only there",
        ),
        ("AllocatedMethodId", None, "AllocatedMethodId is null in 2 rows"),
    ],
)
def test_what_breaks_the_specification_is_found(column: str, value: object, fault: str) -> None:
    who = settled([a_card(0)], [a_grant(0, "a", share=0.5)])
    table = focus_table(a_day(who), context(who))
    place = table.schema.get_field_index(column)
    broken = pa.array([value] * table.num_rows, table.schema.field(place).type)
    assert fault in focus_faults(table.set_column(place, table.schema.field(place), broken))


def test_hours_used_held_and_left_stand_beside_each_part() -> None:
    who = settled([a_card(0)], [a_grant(0, "a", share=0.5)])
    usage = measured(who, compute=0.1, framebuffer_bytes=SIZE * 0.3)
    rows = {row["x_AllocationKind"]: row for row in focus_table(a_day(who, usage), context(who)).to_pylist()}
    tenant, rest = rows["tenant"], rows["unallocated"]
    assert (tenant["x_UsedGpuHours"], tenant["x_UnusedGpuHours"]) == (Decimal("4.8"), Decimal("7.2"))
    assert (tenant["x_GpuShareCore"], tenant["x_Coverage"], tenant["x_RecommendationId"]) == (Decimal("0.5"), 1, "r-1")
    assert (rest["x_UnallocatedGpuHours"], rest["AllocatedResourceId"]) == (Decimal(12), None)


def test_what_a_pod_served_stands_once_and_is_null_where_no_server_reports_it() -> None:
    who = settled([a_card(0), a_card(1)], [a_grant(0, "a", share=0.5), a_grant(1, "a")])
    usage = measured(who, requests=2.0, generated_tokens=100.0)
    rows = focus_table(a_day(who, usage), context(who)).to_pylist()
    tenant = [row for row in rows if row["x_AllocationKind"] == "tenant"]
    assert sorted(row["x_Requests"] for row in tenant) == [0, 2 * 86400]
    assert sum(row["x_GeneratedTokens"] for row in tenant) == 100 * 86400
    assert {row["x_Tokens"] for row in tenant} == {None}
    assert {row["x_Requests"] for row in rows if row not in tenant} == {None}
    by_use = focus_table(
        a_day(who, measured(who, compute=0.0, framebuffer_bytes=0, requests=2.0)), context(who, Basis.USE)
    )
    assert sum(row["x_Requests"] or 0 for row in by_use.to_pylist()) == 2 * 86400
    assert not focus_faults(by_use)


def test_parquet_keeps_every_name_as_it_is(tmp_path: Path) -> None:
    who, day = hostile_day()
    path = tmp_path / "focus.parquet"
    written = write_focus_parquet([day], context(who), path)
    table = pq.read_table(path)
    assert table.schema.metadata[b"focus_version"] == b"1.3"
    assert (table.num_rows, written.cost) == (written.rows, Decimal("21.60"))
    assert {name for name in table.column("x_Pod").to_pylist() if name} == set(HOSTILE)
    tags = [json.loads(text) for text in table.column("AllocatedTags").to_pylist() if text]
    assert {tag["gputide/team"] for tag in tags} == set(HOSTILE)
    assert not list(tmp_path.glob(".*"))


def test_csv_cells_are_no_formulas_and_lose_nothing_else() -> None:
    who, day = hostile_day()
    stream = io.StringIO(newline="")
    write_focus_csv([day], context(who), stream)
    rows = list(csv.DictReader(io.StringIO(stream.getvalue(), newline="")))
    assert all(not value.startswith(("=", "+", "-", "@", "\t", "\r")) for row in rows for value in row.values())
    assert {row["x_Pod"].removeprefix("'") for row in rows if row["x_Pod"]} == set(HOSTILE)
    assert sum(Decimal(row["EffectiveCost"]) for row in rows) == Decimal("21.60")
    assert {row["ChargePeriodStart"] for row in rows} == {"2026-01-12T00:00:00Z"}


def test_excel_holds_every_row_of_the_csv_and_no_formula(tmp_path: Path) -> None:
    who, day = hostile_day()
    stream = io.StringIO(newline="")
    assert write_focus_excel([day], context(who), tmp_path / "focus.xlsx") == write_focus_csv(
        [day], context(who), stream
    )
    text = list(csv.reader(io.StringIO(stream.getvalue(), newline="")))
    sheet = list(openpyxl.load_workbook(tmp_path / "focus.xlsx").active.iter_rows())
    assert {cell.data_type for row in sheet for cell in row} == {"n", "s"}
    assert [[_as_text(cell.value) for cell in row] for row in sheet] == [
        [_as_text(cell) for cell in row] for row in text
    ]


def test_cards_without_a_price_are_left_out_and_counted() -> None:
    who = settled([a_card(0), a_card(1, model="Nobody knows")], [a_grant(1, "a", card_model="Nobody knows")])
    written = write_focus_csv([a_day(who)], context(who), io.StringIO())
    assert (written.unpriced_card_hours, written.cost) == (24, Decimal("21.60"))


def test_a_day_without_any_price_or_any_tenant_is_an_empty_or_an_idle_export() -> None:
    nobody_knows = settled([a_card(0, model="Nobody knows")], [])
    assert focus_table(a_day(nobody_knows), context(nobody_knows)).num_rows == 0
    nobody_there = settled([a_card(0)], [])
    rows = focus_table(a_day(nobody_there), context(nobody_there)).to_pylist()
    assert [(row["x_AllocationKind"], row["EffectiveCost"]) for row in rows] == [("unallocated", Decimal("21.6"))]


def test_region_zone_and_contract_come_from_node_and_price() -> None:
    who = settled([a_card(0)], [])
    book = {"per_card_hour": 2, "source": "s", "date": "2026-01", "contract": "EDP-7", "basis": "committed"}
    labels = (("topology.kubernetes.io/region", "eu-1"), ("topology.kubernetes.io/zone", "eu-1b"))
    here = replace(context(who), nodes={"n-0": Node(node="n-0", cluster="c", labels=labels)})
    (row,) = focus_table(a_day(who, settings=some_settings(rules=[book])), here).to_pylist()
    assert (row["RegionId"], row["AvailabilityZone"]) == ("eu-1", "eu-1b")
    assert (row["BillingAccountId"], row["PricingCategory"]) == ("EDP-7", "Committed")
    assert (row["BillingAccountType"], row["x_PriceSource"]) == ("Contract", "s, 2026-01")


def _as_text(cell: object) -> str:
    """A cell of either file: numbers by their value, a carriage return as Excel's format writes it."""
    text = "" if cell is None else str(cell).replace("\r", "_x000D_")
    try:
        return f"{float(text):.9f}"
    except ValueError:
        return text
