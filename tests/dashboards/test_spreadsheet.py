"""Tables for spreadsheets: nothing is lost, no cell is a formula, amounts are exact to the cent."""

import csv
import io
from decimal import Decimal
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.spreadsheet import csv_text, excel, tab_separated
from fleet.errors import Misconfigured
from fleet.spreadsheet_text import as_meant, harmless
from tests.dashboards.embedded import HOSTILE

AMOUNTS = st.decimals(min_value=0, max_value=10**12, places=2)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1+1", HOSTILE])
def test_text_that_a_spreadsheet_would_run_is_led_by_an_apostrophe_in_every_form(text: str) -> None:
    assert harmless(text) == "'" + text
    assert as_meant(harmless(text)) == text
    assert _csv([(text,)]) == [["a"], ["'" + text]]
    assert _csv([(text,)], write=tab_separated, delimiter="\t") == [["a"], ["'" + text]]
    cell = _sheet([(text,)])[1][0]
    assert (cell.data_type, cell.value) == ("s", "'" + text.replace("\r", "_x000D_"))


def test_numbers_stay_numbers_and_absent_values_are_empty() -> None:
    assert _csv([(-1.5, 3, None, Decimal("-0.0000001"))], columns="abcd")[1] == ["-1.5", "3", "", "-0.0000001"]
    assert [cell.value for cell in _sheet([(-1.5, 3, None, Decimal("-12.30"))], columns="abcd")[1]] == [
        -1.5, 3, None, -12.3,
    ]  # fmt: skip


def test_a_column_of_whole_numbers_with_a_gap_stays_one_of_whole_numbers() -> None:
    assert _csv([(1, 0), (None, 0), (3, 0)], columns="ab") == [["a", "b"], ["1", "0"], ["", "0"], ["3", "0"]]


def test_a_table_without_rows_is_its_heading() -> None:
    assert _csv([], columns="ab") == [["a", "b"]]
    assert [[cell.value for cell in row] for row in _sheet([], columns="ab")] == [["a", "b"]]


@given(st.lists(st.tuples(st.text(), st.text()), max_size=5))
def test_csv_comes_back_as_it_was_but_for_the_guard(pairs: list[tuple[str, str]]) -> None:
    read = _csv(pairs, columns="ab")
    assert read == [["a", "b"], *([harmless(first), harmless(second)] for first, second in pairs)]
    assert not any(cell.lstrip(" ").startswith(("=", "+", "-", "@")) for row in read for cell in row)


@given(st.lists(AMOUNTS, min_size=1, max_size=5))
def test_amounts_are_exact_to_the_cent_in_every_form(amounts: list[Decimal]) -> None:
    rows = [(amount,) for amount in amounts]
    assert [Decimal(row[0]) for row in _csv(rows)[1:]] == amounts
    assert [Decimal(f"{row[0].value:.2f}") for row in _sheet(rows)[1:]] == amounts


def test_more_rows_than_a_sheet_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboards.spreadsheet.EXCEL_ROWS_MAX", 2)
    with pytest.raises(Misconfigured, match="3 rows as Excel: a sheet takes 2"):
        excel("a", [(1,), (2,), (3,)])


def _csv(rows: Any, *, columns: Any = "a", write: Any = csv_text, delimiter: str = ",") -> list[list[str]]:
    return list(csv.reader(io.StringIO(write(columns, rows), newline=""), delimiter=delimiter))


def _sheet(rows: Any, *, columns: Any = "a") -> list[Any]:
    return list(openpyxl.load_workbook(io.BytesIO(excel(columns, rows))).active.iter_rows())
