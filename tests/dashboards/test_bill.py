"""Bills in FOCUS: what is read, what is refused, and what a later import replaces."""

import gzip
from collections import defaultdict
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboards.money.import_bill import ReadBill, SameRows, import_files
from dashboards.money.kept_bill import read_bill, replaced, write_bill
from fleet.errors import Corrupt
from fleet.money.bill import BillPart, ChargeKind
from tests.dashboards.bill_files import NAMES, ROW, a_bill, bill_bytes

FIFTH = date(2026, 1, 5)


def read(path: Path, *rows: dict[str, str], same_rows: SameRows = SameRows.REFUSE) -> ReadBill:
    return import_files([a_bill(path, *rows)], NAMES, same_rows=same_rows)


def days_of(*parts: BillPart) -> dict[tuple[str, date, ChargeKind], Decimal]:
    return {(one.node.node, one.day, one.kind): one.billed for part in parts for one in part.days}


@pytest.mark.parametrize("name", ["b.csv", "b.csv.gz"])
def test_rows_of_known_nodes_are_summed_by_day_and_kind(tmp_path: Path, name: str) -> None:
    found = read(
        tmp_path / name, {}, {"BilledCost": "-0.3000000000000000000000001", "ChargeCategory": "Credit"},
        {"ResourceId": "i-unknown"}, {"ResourceId": "arn:aws:ec2:eu-west-1:9:instance/i-1", "BilledCost": "1e-7"},
        {"ResourceId": "x", "ResourceName": "N2", "BilledCost": "2"},
        {"BilledCost": "0", "CommitmentDiscountId": "sp"}, {"BilledCost": "50", "ChargeCategory": "Purchase"},
        {"BilledCost": "7", "ChargeCategory": "Tax", "ChargePeriodEnd": "2026-02-01"},
    )  # fmt: skip
    assert days_of(*found.parts) == {
        ("n1", FIFTH, ChargeKind.RUNNING): Decimal("0.8000000999999999999999999"),
        ("n1", FIFTH, ChargeKind.COMMITTED): Decimal(50),
        ("n1", FIFTH, ChargeKind.OTHER): Decimal(7),
        ("n2", FIFTH, ChargeKind.RUNNING): Decimal(2),
    }
    assert (found.rows, found.node_rows) == (8, 7)
    assert found.parts[0].covered == {FIFTH}


def test_parquet_with_other_types_says_the_same(tmp_path: Path) -> None:
    rows = [{"BilledCost": "0.1"}, {"BilledCost": "0.25", "ChargePeriodStart": "2026-01-04T00:00:00Z"}]
    types = {name: pa.string() for name in ROW} | {"BilledCost": pa.float64(), "EffectiveCost": pa.decimal128(20, 9)}
    types |= {name: pa.timestamp("us", "UTC") for name in ROW if name.endswith(("Start", "End"))}
    table = pyarrow.csv.read_csv(
        pa.BufferReader(bill_bytes(rows)), convert_options=pyarrow.csv.ConvertOptions(column_types=types)
    )
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    rows[1]["ChargePeriodEnd"] = "2026-01-05T00:00:00Z"
    with pytest.raises(Corrupt, match="usage of 2 days in one row"):
        import_files([tmp_path / "b.parquet"], NAMES)
    pyarrow.parquet.write_table(table.slice(0, 1), tmp_path / "b.parquet")
    assert import_files([tmp_path / "b.parquet"], NAMES).parts == read(tmp_path / "b.csv", rows[0]).parts


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"BilledCost": "nan"}, "row 2: BilledCost='nan': must be a decimal number"),
        ({"BilledCost": ""}, "row 2: BilledCost='': must be a decimal number"),
        ({"EffectiveCost": "-2e12"}, r"row 2: EffectiveCost='-2e12': must be at most 1e\+12"),
        ({"BillingCurrency": "usd"}, "row 2: BillingCurrency='usd': must be a code of ISO 4217"),
        (
            {"BillingCurrency": "EUR"},
            "row 2: BillingCurrency='EUR': account 'payer' is billed in USD",
        ),
        ({"ChargeCategory": "usage"}, "row 2: ChargeCategory='usage': must be one of Usage"),
        ({"ChargePeriodStart": "2026-02-30"}, "row 2: ChargePeriodStart='2026-02-30': must be a time"),
        ({"ChargePeriodStart": "2026-01-05T00:00:00+02:00"}, "row 2: ChargePeriodStart=.*: must be a time"),
        ({"ChargePeriodEnd": "2026-01-05"}, "row 2: ChargePeriodEnd='2026-01-05': must be later than"),
        ({"ChargePeriodEnd": "2026-02-01"}, "row 2: ChargePeriodEnd=.*: usage of 27 days in one row"),
        ({"BillingAccountId": ""}, "row 2: BillingAccountId='': must be not empty"),
        ({"ResourceId": "i" * 3000}, "row 2: ResourceId='i{80}': must be at most 2048 characters"),
        ({"x_Line": "0"}, "row 2: ResourceId='i-1': the same as an earlier row in every column"),
    ],
)
def test_wrong_row_is_named_with_its_column_value_and_limit(tmp_path: Path, wrong: dict[str, str], said: str) -> None:
    with pytest.raises(Corrupt, match=said):
        read(tmp_path / "b.csv", {}, wrong)


def test_file_that_is_cut_off_lacks_a_column_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(bill_bytes([{}] * 5000))
    cut, empty, lacking = (tmp_path / name for name in ("cut.csv.gz", "empty.csv", "lacking.csv"))
    cut.write_bytes(whole[:-20])
    empty.write_bytes(bill_bytes([]))
    lacking.write_text("BilledCost,EffectiveCost\n1,1\n")
    for path, said in ((cut, "runcated"), (empty, "no rows"), (lacking, "no column BillingPeriodStart")):
        with pytest.raises(Corrupt, match=said):
            import_files([path], NAMES)


def test_same_rows_are_dropped_or_kept_as_asked_and_free_ones_are_kept(tmp_path: Path) -> None:
    again: tuple[dict[str, str], ...] = ({}, {"x_Line": "0"}, {"BilledCost": "0", "EffectiveCost": "0", "x_Line": "a"})
    rows = (*again, {"BilledCost": "0", "EffectiveCost": "0", "x_Line": "a"})
    key = ("n1", FIFTH, ChargeKind.RUNNING)
    for same_rows, cost in ((SameRows.DROP, "1.10"), (SameRows.KEEP, "2.20")):
        found = read(tmp_path / "b.csv", *rows, same_rows=same_rows)
        assert (days_of(*found.parts)[key], found.same_rows) == (Decimal(cost), 1)


def test_day_that_is_not_over_is_not_covered(tmp_path: Path) -> None:
    hour = {"ChargePeriodStart": "2026-01-06T00:00:00Z", "ChargePeriodEnd": "2026-01-06T01:00:00Z"}
    assert read(tmp_path / "b.csv", {}, hour).parts[0].covered == {FIFTH}


def test_corrected_bill_replaces_that_of_its_scope_and_period_whatever_its_invoice(tmp_path: Path) -> None:
    kept = read(tmp_path / "a.csv", {}, {"SubAccountId": "8", "BilledCost": "5"}).parts
    new = read(tmp_path / "b.csv", {"BilledCost": "3", "InvoiceId": "in-1"}).parts
    write_bill(tmp_path / "bill", replaced(kept, new))
    found = read_bill(tmp_path / "bill")
    assert [(part.scope.sub_account, part.invoices) for part in found] == [("8", ()), ("9", ("in-1",))]
    assert sum(one.billed for part in found for one in part.days) == 8
    assert replaced(found, found) == found


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.decimals(min_value=-1000, max_value=1000, allow_nan=False, places=12), st.integers(1, 28), st.booleans()
        ),
        min_size=1,
        max_size=40,
    )
)
def test_what_is_kept_is_the_exact_sum_of_the_rows(tmp_path: Path, rows: list[tuple[Decimal, int, bool]]) -> None:
    own: dict[tuple[str, date, ChargeKind], Decimal] = defaultdict(Decimal)
    said = []
    for amount, day, is_first in rows:
        own["n1" if is_first else "n2", date(2026, 1, day), ChargeKind.RUNNING] += amount
        start = f"2026-01-{day:02}"
        said.append({"BilledCost": str(amount), "ResourceId": "i-1" if is_first else "", "ResourceName": "n2",
                     "ChargePeriodStart": start, "ChargePeriodEnd": f"{start}T23:00:00"})  # fmt: skip
    write_bill(tmp_path / "bill", read(tmp_path / "b.csv", *said).parts)
    assert days_of(*read_bill(tmp_path / "bill")) == own


def test_damaged_file_of_kept_bills_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bill"
    write_bill(path, read(tmp_path / "b.csv", {}).parts)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(Corrupt, match=f"cannot read {path}"):
        read_bill(path)
