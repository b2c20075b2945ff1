"""How a verb's answer is printed: a table for people, JSON, CSV or YAML for programs.

Every verb that prints data hands over one document (JSON values) and one or more tables (columns and rows) of it;
the format chosen with `--format` decides which is written, `-o FILE` where to.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.durable import unwritable, write_durably

TABLE_ROWS_MAX = 40
"""Rows of one table; the formats for programs print all."""
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class Format(StrEnum):
    """Formats of everything that prints data."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One table of an answer.

    Attributes:
        title: a few words.
        columns: headings.
        rows: text or numbers, one sequence per row, as long as `columns`.
        caption: small print below the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a verb prints.

    Attributes:
        document: JSON values.
        listings: tables of it; the first is the one that CSV writes.
        headline: sentences above the tables.
        footnotes: sentences below them.
    """

    document: Any
    listings: tuple[Listing, ...] = ()
    headline: tuple[str, ...] = ()
    footnotes: tuple[str, ...] = field(default=())


def print_answer(answer: Answer, *, form: Format, target: Path | None) -> None:
    """Write an answer to standard output or a file.

    Raises:
        Corrupt: the file can't be written.
    """
    text = _RENDERERS[form](answer, target is not None)
    if target is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    if target.exists() and not target.is_file():
        # A pipe or a device stays what it is: a file that took its place would be no help to anybody.
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as exc:
            raise unwritable(target, exc) from exc
        return
    write_durably(target, text.encode())


def _table(answer: Answer, to_file: bool) -> str:
    stream = io.StringIO()
    is_terminal = sys.stdout.isatty() and not to_file
    width = None if is_terminal else 160
    console = Console(file=stream, force_terminal=is_terminal, width=width, highlight=False)
    for line in answer.headline:
        console.print(Text(line))
    for listing in answer.listings:
        rows = listing.rows[:TABLE_ROWS_MAX] if is_terminal else listing.rows
        left_out = len(listing.rows) - len(rows)
        more = f"… {left_out:,} more: --format csv or json has them all" if left_out > 0 else ""
        caption = " ".join(filter(None, (more, listing.caption)))
        table = Table(title=Text(listing.title), title_justify="left", caption=Text(caption) or None)
        for place, column in enumerate(listing.columns):
            is_number = all(not isinstance(row[place], str) for row in listing.rows)
            table.add_column(Text(column), justify="right" if is_number else "left", overflow="fold")
        for row in rows:
            # Names come from tenants: Text keeps markup in them from being obeyed.
            table.add_row(*(Text(_cell(value)) for value in row))
        console.print(table)
    for line in answer.footnotes:
        console.print(Text(line))
    return stream.getvalue()


def _json(answer: Answer, _: bool) -> str:
    return json.dumps(answer.document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _yaml(answer: Answer, _: bool) -> str:
    return str(yaml.safe_dump(answer.document, sort_keys=False, allow_unicode=True))


def _csv(answer: Answer, _: bool) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for listing in answer.listings[:1]:
        writer.writerow(listing.columns)
        writer.writerows([_harmless(value) for value in row] for row in listing.rows)
    return stream.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _harmless(value: object) -> object:
    """A spreadsheet must not take a tenant's name for a formula."""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value


_RENDERERS = {Format.TABLE: _table, Format.JSON: _json, Format.CSV: _csv, Format.YAML: _yaml}
