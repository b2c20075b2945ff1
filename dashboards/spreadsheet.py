"""Rows as a table for spreadsheets: CSV, tab-separated text to paste, and Excel; pandas writes all three.

Called by the command line, the report, the FOCUS export and the downloads of the pages. pandas is imported when a
table is written, because it takes half a second and 70 MB.

Names come from tenants: text that a spreadsheet would run as a formula gets an apostrophe before it (owasp.org, CSV
injection). Absent values are empty cells. Decimals stay exact in text; in Excel they are numbers of 15 digits.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TextIO

from fleet.errors import Misconfigured
from fleet.spreadsheet_text import harmless

if TYPE_CHECKING:
    import pandas as pd

EXCEL_ROWS_MAX = 1_048_575
"""Rows of one sheet below its heading (support.microsoft.com, Excel specifications and limits)."""
LINE_END = "\r\n"
"""RFC 4180; Python's csv quotes a lone carriage return only beside this one."""
_EXCEL_OPTIONS = {"strings_to_formulas": False, "strings_to_urls": False}


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV (RFC 4180)."""
    stream = io.StringIO(newline="")
    write_csv(stream, columns, rows)
    return stream.getvalue()


def write_csv(stream: TextIO, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, heading: bool = True) -> None:
    """Write rows as CSV (RFC 4180), with or without the line of the columns' names."""
    _frame(columns, rows).to_csv(stream, index=False, header=heading, lineterminator=LINE_END)


def tab_separated(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as a spreadsheet takes them from the clipboard."""
    text: str = _frame(columns, rows).to_csv(None, index=False, sep="\t", lineterminator=LINE_END)
    return text


def excel(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Rows as an Excel workbook of one sheet.

    Raises:
        Misconfigured: there are more rows than a sheet takes.
    """
    import pandas as pd  # noqa: PLC0415 - only where a table is written

    frame = _frame(columns, ([_number(value) for value in row] for row in rows))
    if len(frame) > EXCEL_ROWS_MAX:
        raise Misconfigured(f"cannot write {len(frame):,} rows as Excel: a sheet takes {EXCEL_ROWS_MAX:,}; use CSV")
    stream = io.BytesIO()
    with pd.ExcelWriter(stream, engine="xlsxwriter", engine_kwargs={"options": _EXCEL_OPTIONS}) as book:
        frame.to_excel(book, index=False, freeze_panes=(1, 0))
        book.sheets["Sheet1"].autofit()
    return stream.getvalue()


def _frame(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - only where a table is written

    # Values stay the objects that they are: a column of numbers with a gap would become one of binary fractions.
    return pd.DataFrame(
        [[_cell(value) for value in row] for row in rows], columns=[harmless(name) for name in columns], dtype=object
    )


def _cell(value: object) -> object:
    if isinstance(value, str):
        return harmless(value)
    return f"{value:f}" if isinstance(value, Decimal) else value


def _number(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value
