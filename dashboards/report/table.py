"""The top list of the weekly report for spreadsheets: money in full, in the report's currency."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from dashboards.report.report import Report
from dashboards.spreadsheet import csv_text, excel

_COLUMNS = (
    "workload", "owner", "state", "cards", "unused_card_hours", "unused_cost", "currency", "advice", "reason",
)  # fmt: skip


def report_csv(report: Report) -> str:
    """The top list as CSV."""
    return csv_text(_COLUMNS, _rows(report))


def report_excel(report: Report) -> bytes:
    """The top list as an Excel workbook."""
    return excel(_COLUMNS, _rows(report))


def _rows(report: Report) -> list[tuple[Any, ...]]:
    return [
        (
            row.workload,
            row.owner,
            row.state.value,
            row.cards,
            row.unused_card_hours,
            None if row.unused_cost is None else row.unused_cost.quantize(Decimal("0.01")),
            report.currency,
            row.advice,
            row.reason,
        )
        for row in report.top
    ]
