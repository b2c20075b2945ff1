"""The price book in its file: prices, exchange rates and budgets as TOML, read, checked, added to; prices from a CSV.

Comments and order of a book that people keep by hand survive: a new price is put before the others, because the first
that fits is taken. A CSV is a cloud's price list or what `gputide cost prices list --format csv` wrote. Called by the
command line for verbs that need prices, and by `gputide cost prices`. `docs/money.md` shows a book.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fleet.errors import Misconfigured
from fleet.settings.faults import fault_words
from fleet.settings.money import Budget, ExchangeRate, PriceRule
from fleet.settings.settings import Settings
from fleet.spreadsheet_text import as_meant
from fleet.units import MIB

BOOK_NAME = "prices.toml"
BOOK_BYTES_MAX = 4 * MIB
CSV_COLUMNS = (
    "card_model", "price_per_card_hour", "currency", "source", "date", "cluster", "node", "node_labels", "since",
    "until", "basis", "contract", "marginal_per_card_hour",
)  # fmt: skip
"""Columns that are understood, and that `cost prices list --format csv` writes; only the first two must be there.

`node_labels` is `key=value;key=value`; `any` is every card model.
"""
CSV_ROWS_MAX = 100_000

Entry = TypeVar("Entry", bound=BaseModel)
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*(price|rate|budget)[ \t]*\]\]", re.MULTILINE)
_ANY_HEADER = re.compile(r"^[ \t]*\[(?!\[?[ \t]*price[ \t]*\.)", re.MULTILINE)
_SELECTOR = ("card_model", "cluster", "node", "node_labels", "since", "until")
_DELETE = "\x7f"


@dataclass(frozen=True, slots=True, kw_only=True)
class BookEntries:
    """What a book holds, in its order."""

    prices: tuple[PriceRule, ...] = ()
    rates: tuple[ExchangeRate, ...] = ()
    budgets: tuple[Budget, ...] = ()


def book_path(settings: Settings, data_path: Path) -> Path:
    """Where the book lies: as `prices.book` says, else in the data folder."""
    return settings.prices.book if settings.prices.book is not None else data_path / BOOK_NAME


def with_price_book(settings: Settings, data_path: Path) -> Settings:
    """The settings with the book's entries behind their own.

    Raises:
        Misconfigured: the book can't be read, or `prices.book` names none.
    """
    path = book_path(settings, data_path)
    if settings.prices.book is None and not path.exists():
        return settings
    entries = parse_price_book(read_book(path), name=str(path))
    prices = settings.prices.model_copy(
        update={
            "rules": settings.prices.rules + entries.prices,
            "rates": settings.prices.rates + entries.rates,
            "budgets": settings.prices.budgets + entries.budgets,
        }
    )
    return settings.model_copy(update={"prices": prices})


def read_book(path: Path) -> str:
    """Text of a book.

    Raises:
        Misconfigured: it can't be read, is too large, or no UTF-8.
    """
    try:
        if path.stat().st_size > BOOK_BYTES_MAX:
            raise Misconfigured(f"cannot read price book {path}: larger than {BOOK_BYTES_MAX} bytes")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise Misconfigured(f"cannot read price book {path}: not UTF-8: {exc.reason} at byte {exc.start}") from exc
    except OSError as exc:
        raise Misconfigured(f"cannot read price book {path}: {exc.strerror or exc}; see prices.book") from exc


def parse_price_book(text: str, *, name: str) -> BookEntries:
    """Reads a book.

    Args:
        text: TOML with `[[price]]`, `[[rate]]` and `[[budget]]` tables.
        name: where it came from, for messages.

    Raises:
        Misconfigured: not TOML, an unknown name, a value out of range; the message names the line.
    """
    try:
        # Decimal, so that a price of 0.79 is 0.79 and not its nearest float.
        content = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as exc:
        # Beside its own error the parser lets those of numbers with thousands of digits and of deep nesting through.
        raise Misconfigured(f"cannot read price book {name}: not valid TOML: {str(exc)[:200]}") from exc
    kinds = ("price", "rate", "budget")
    for key, value in content.items():
        if key not in kinds:
            nearest = difflib.get_close_matches(key[:64], kinds, n=1, cutoff=0.0)[0]
            raise Misconfigured(
                f"cannot read price book {name}: unknown name {key[:64]!r}; did you mean [[{nearest}]]?"
            )
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise Misconfigured(f"cannot read price book {name}: {key} must be tables, each begun by [[{key}]]")
    return BookEntries(
        prices=_entries(content.get("price", []), PriceRule, "price", text, name),
        rates=_entries(content.get("rate", []), ExchangeRate, "rate", text, name),
        budgets=_entries(content.get("budget", []), Budget, "budget", text, name),
    )


def with_prices(text: str, rules: Sequence[PriceRule], *, replace_all: bool = False, name: str) -> str:
    """The text of a book with new prices before the others; a price for the very same cards and time is taken out.

    Args:
        rules: new prices, the first goes first.
        replace_all: True to take out every price that it holds.
        name: where the book lies, for messages.

    Raises:
        Misconfigured: the book can't be read, or a text in it looks like a header.
    """
    new = {_selector(rule) for rule in rules}
    old = parse_price_book(text, name=name).prices
    blocks = list(_blocks(text))
    if len(blocks) != len(old):
        raise Misconfigured(f"cannot change price book {name}: a text in it looks like [[price]]; change it by hand")
    kept, place = [], 0
    for rule, (start, end) in zip(old, blocks, strict=True):
        kept += [text[place:start], "" if replace_all or _selector(rule) in new else text[start:end]]
        place = end
    rest = "".join([*kept, text[place:]])
    first = _HEADER.search(rest)
    spot = first.start() if first is not None else len(rest)
    before = rest[:spot]
    if before and not before.endswith("\n"):
        before += "\n"
    return before + "".join(_written(rule) + "\n" for rule in rules) + rest[spot:]


def _entries(raw: list[dict[str, Any]], kind: type[Entry], word: str, text: str, name: str) -> tuple[Entry, ...]:
    found = []
    lines = [text.count("\n", 0, match.start(1)) + 1 for match in _HEADER.finditer(text) if match.group(1) == word]
    for number, item in enumerate(raw):
        try:
            found.append(kind.model_validate(item))
        except ValidationError as exc:
            # A header inside a multi-line text would shift the lines: then only the entry's number is named.
            where = f" (line {lines[number]})" if len(lines) == len(raw) else ""
            raise Misconfigured(
                f"cannot read price book {name}: {word} {number + 1}{where}: {fault_words(exc, kind)}"
            ) from exc
    return tuple(found)


def _selector(rule: PriceRule) -> str:
    return json.dumps(rule.model_dump(mode="json", include=set(_SELECTOR)), sort_keys=True)


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of the text of each price with its sub-tables; comments above the next header belong to that."""
    for match in _HEADER.finditer(text):
        if match.group(1) == "price":
            following = _ANY_HEADER.search(text, match.end())
            block = text[match.start() : len(text) if following is None else following.start()].splitlines(True)
            while block and (not block[-1].strip() or block[-1].lstrip().startswith("#")):
                block.pop()
            yield match.start(), match.start() + sum(map(len, block))


def _written(rule: PriceRule) -> str:
    lines = ["[[price]]"]
    for key, value in rule.model_dump(exclude_defaults=True).items():
        lines.append(f"{key} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_text(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int | float):
        return repr(value)
    return _text(str(value))


def _text(value: str) -> str:
    """A basic string: TOML's escapes are JSON's, but for DEL, which TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace(_DELETE, "\\u007F")


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
            if reader.line_num > CSV_ROWS_MAX:
                raise Misconfigured(f"cannot read prices from {name}: more than {CSV_ROWS_MAX} lines")
            if not (row.get("price_per_card_hour") or "").strip():
                without += 1
                continue
            rules.append(_rule(row, name=name, line=reader.line_num, today=today, currency=currency))
    except csv.Error as exc:
        raise Misconfigured(f"cannot read prices from {name}, line {reader.line_num}: {exc}") from exc
    return ImportedPrices(rules=tuple(rules), without_price=without)


def _check_columns(columns: list[str], name: str) -> None:
    for column in columns:
        if column not in CSV_COLUMNS:
            holding = [known for known in CSV_COLUMNS if column and column.lower() in known]
            nearest = (holding or difflib.get_close_matches(column[:64], CSV_COLUMNS, n=1, cutoff=0.0))[0]
            raise Misconfigured(
                f"cannot read prices from {name}, line 1: unknown column {column[:64]!r}; did you mean {nearest!r}?"
            )
    for column in CSV_COLUMNS[:2]:
        if column not in columns:
            raise Misconfigured(
                f"cannot read prices from {name}, line 1: no column {column!r}; expected {', '.join(CSV_COLUMNS)}"
            )


def _rule(row: dict[str, Any], *, name: str, line: int, today: date, currency: str) -> PriceRule:
    if None in row or None in row.values():
        raise Misconfigured(f"cannot read prices from {name}, line {line}: it has not as many cells as the heading")
    cells = {key: as_meant(value.strip()) for key, value in row.items() if value.strip()}
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
