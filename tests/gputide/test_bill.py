"""`gputide cost bill`: imported once, replaced whole, and said only of plans that are applied."""

from pathlib import Path

import duckdb
import pytest

from tests.dashboards.bill_files import a_bill
from tests.gputide.conftest import Program

DAYS = {"BillingPeriodStart": "2026-01-01", "BillingPeriodEnd": "2026-02-01"}


@pytest.fixture
def nodes(replayed: Path) -> list[str]:
    """Return the nodes of the small fleet, sorted."""
    with duckdb.connect() as base:
        found = base.sql(f"SELECT DISTINCT node FROM read_parquet('{replayed}/warehouse/inventory_nodes/**/*.parquet')")
        return sorted(node for (node,) in found.fetchall())


def test_bill_is_kept_for_nodes_by_name_and_by_a_map(
    replayed: Path, nodes: list[str], program: Program, tmp_path: Path
) -> None:
    first, second = nodes[:2]
    bill = a_bill(tmp_path / "b.csv.gz", {**DAYS, "ResourceName": first}, {**DAYS, "ResourceId": "i-2"})
    mapping = tmp_path / "map.csv"
    mapping.write_text(f"node,ResourceId\n{second},I-2\n")
    told = program(replayed, "cost", "bill", "import", str(bill), "--map", str(mapping), "--format", "json")
    assert told.status == 0, told.err
    assert (told.document["nodes"], told.document["node_rows"]) == (sorted((first, second)), 2)
    kept = (replayed / "bill.parquet").read_bytes()
    assert program(replayed, "cost", "bill", "import", str(bill), "--map", str(mapping)).status == 0
    assert (replayed / "bill.parquet").read_bytes() == kept
    wrong = a_bill(tmp_path / "w.csv", {**DAYS, "BilledCost": "x", "ResourceName": first})
    refused = program(replayed, "cost", "bill", "import", str(bill), str(wrong))
    assert refused.status == 6
    assert f"cannot import {wrong}: row 1: BilledCost='x': must be a decimal number" in " ".join(refused.err.split())
    assert (replayed / "bill.parquet").read_bytes() == kept
    shown = program(replayed, "cost", "bill", "show")
    assert shown.status == 3
    assert "none is applied" in shown.err


def test_without_a_bill_or_with_a_wrong_map_it_says_what_is_missing(
    replayed: Path, nodes: list[str], program: Program, tmp_path: Path
) -> None:
    shown = program(replayed, "cost", "bill", "show")
    assert shown.status == 3
    assert "none was imported; `gputide cost bill import FILE`" in " ".join(shown.err.split())
    bill, mapping = a_bill(tmp_path / "b.csv", DAYS), tmp_path / "map.csv"
    for text in ("node,Resource\n", "node,ResourceId\nnobody,i-1\n", f"node,ResourceId\n{nodes[0]}\n"):
        mapping.write_text(text)
        assert program(replayed, "cost", "bill", "import", str(bill), "--map", str(mapping)).status == 2
    said = program(replayed, "cost", "bill", "import", str(bill))
    assert "no row names a known node" in said.out
