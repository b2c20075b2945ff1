"""Prices from a CSV, such as a cloud's price list or what `gputide cost prices list --format csv` wrote.

Called by `gputide cost prices import`.
"""

from __future__ import annotations

import csv
import difflib
import io
from dataclasses import dataclass
from datetime import date
from typing import Any

from pydantic import ValidationError

from fleet.errors import Misconfigured
from fleet.settings.faults import fault_words
from fleet.settings.money import PriceRule

COLUMNS = (
    "card_model", "price_per_card_hour", "currency", "source", "date", "cluster", "node", "node_labels", "since",
    "until", "basis", "contract", "marginal_per_card_hour",
)  # fmt: skip
"""Columns that are understood, and that `cost prices list --format csv` writes; only the first two must be there.

`node_labels` is `key=value;key=value`; `any` is every card model.
"""
ROWS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPrices:
    """What a CSV holds.

    Attributes:
        rules: prices, in the file's order.
        without_price: rows that name no price: they set none.
    """

    rules: tuple[PriceRule, ...]
    without_price: int


def parse_price_csv(text: str, *, name: str, today: date, currency: str) -> ImportedPrices:
    """Reads prices from CSV.

    Args:
        text: CSV with a heading.
        name: where it came from: for messages, and as the source where a row names none.
        today: date of prices that name none.
        currency: ISO 4217 code of prices that name none.

    Raises:
        Misconfigured: an unknown or missing column, or a bad value; the message names the line.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = [column.strip() for column in reader.fieldnames or ()]
        _check_columns(columns, name)
        reader.fieldnames = columns
        rules, without = [], 0
        for row in reader:
            if reader.line_num > ROWS_MAX:
                raise Misconfigured(f"cannot read prices from {name}: more than {ROWS_MAX} lines")
            if not (row.get("price_per_card_hour") or "").strip():
                without += 1
                continue
            rules.append(_rule(row, name=name, line=reader.line_num, today=today, currency=currency))
    except csv.Error as exc:
        raise Misconfigured(f"cannot read prices from {name}, line {reader.line_num}: {exc}") from exc
    return ImportedPrices(rules=tuple(rules), without_price=without)


def _check_columns(columns: list[str], name: str) -> None:
    for column in columns:
        if column not in COLUMNS:
            holding = [known for known in COLUMNS if column and column.lower() in known]
            nearest = (holding or difflib.get_close_matches(column[:64], COLUMNS, n=1, cutoff=0.0))[0]
            raise Misconfigured(
                f"cannot read prices from {name}, line 1: unknown column {column[:64]!r}; did you mean {nearest!r}?"
            )
    for column in COLUMNS[:2]:
        if column not in columns:
            raise Misconfigured(
                f"cannot read prices from {name}, line 1: no column {column!r}; expected {', '.join(COLUMNS)}"
            )


def _rule(row: dict[str, Any], *, name: str, line: int, today: date, currency: str) -> PriceRule:
    if None in row or None in row.values():
        raise Misconfigured(f"cannot read prices from {name}, line {line}: it has not as many cells as the heading")
    cells = {key: _unescaped(value.strip()) for key, value in row.items() if value.strip()}
    fields: dict[str, Any] = {
        "source": f"imported from {name}", "date": today.isoformat(), "currency": currency, **cells
    }  # fmt: skip
    fields["per_card_hour"] = fields.pop("price_per_card_hour")
    if fields.get("card_model") == "any":
        del fields["card_model"]
    if "node_labels" in fields:
        pairs = [pair.partition("=") for pair in fields["node_labels"].split(";")]
        if not all(sign for _, sign, _ in pairs):
            raise Misconfigured(
                f"cannot read prices from {name}, line {line}: node_labels={fields['node_labels'][:80]!r}: expected "
                "key=value;key=value"
            )
        fields["node_labels"] = {key.strip(): value.strip() for key, _, value in pairs}
    try:
        return PriceRule.model_validate(fields)
    except ValidationError as exc:
        raise Misconfigured(f"cannot read prices from {name}, line {line}: {fault_words(exc, PriceRule)}") from exc


def _unescaped(cell: str) -> str:
    """Without the apostrophe that keeps a spreadsheet from taking text for a formula."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in ("=", "+", "-", "@", "\t", "\r", "\n") else cell
