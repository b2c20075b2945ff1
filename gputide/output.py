"""How a verb's answer is printed: a table for people, JSON, CSV, tab-separated text, Excel or YAML for programs.

Every verb that prints data hands over one document (JSON values) and one or more tables (columns and rows) of it;
the format chosen with `--format` decides which is written, `-o FILE` where to. What draws tables and writes YAML is
imported by the verbs that print so: processes that run for long, and every start, do without.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dashboards.spreadsheet import csv_text, excel, tab_separated
from fleet.durable import unwritable, write_durably
from fleet.errors import EXIT_FINE, Misconfigured

if TYPE_CHECKING:
    from rich.text import Text

TABLE_ROWS_MAX = 10
"""Rows of one table, unless everything is shown; the formats for programs print all."""
_LINES_MAX = 10
"""Lines of one text, unless everything is shown."""
_CELL_CHARS_MAX = 48
"""Characters of one cell, unless everything is shown."""
_LAST_CHARS_MIN = 16
_BORDER_CHARS = 3
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters without tab and line feed, and marks that turn the direction of text."""
_REST = "--all or -o FILE shows the rest"
_shows_everything: ContextVar[bool] = ContextVar("shows_everything", default=False)
Form = TypeVar("Form", bound=StrEnum)
Content = TypeVar("Content", str, bytes)
T = TypeVar("T")


class Format(StrEnum):
    """Formats of everything that prints data."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    TSV = "tsv"
    """Tab-separated, as a spreadsheet takes it from the clipboard."""
    EXCEL = "xlsx"
    YAML = "yaml"


ENDINGS = {
    ".txt": (Format.TABLE,),
    ".json": (Format.JSON,),
    ".csv": (Format.CSV,),
    ".tsv": (Format.TSV,),
    ".xlsx": (Format.EXCEL,),
    ".yaml": (Format.YAML,),
    ".yml": (Format.YAML,),
}
"""Which format each ending of an output file fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One table of an answer.

    Attributes:
        rows: text or numbers, one sequence per row, as long as `columns`.
        caption: small print below the table.
        is_whole: shown without a cut, because its rows are the figures of one thing.
        is_said: the headline says it all, so it is shown in files and with `--all` alone.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    is_whole: bool = False
    is_said: bool = False

    @classmethod
    def of(cls, title: str, items: Iterable[T], columns: Mapping[str, Callable[[T], object]]) -> Listing:
        """A table with a row per item: each heading with what it says of an item."""
        rows = [[said(item) for said in columns.values()] for item in items]
        return cls(title=title, columns=tuple(columns), rows=rows)

    def records(self) -> list[dict[str, Any]]:
        """Its rows for a document: cells by heading, as a name."""
        names = [column.replace(" ", "_") for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a verb prints.

    Attributes:
        listings: tables of it; the first is the one that CSV, TSV and Excel write.
        texts: lines below them, such as a diff; each text is cut unless everything is shown.
        warnings: sentences below these; each is shown to its end.
    """

    document: Any
    listings: tuple[Listing, ...] = ()
    headline: tuple[str, ...] = ()
    texts: tuple[Sequence[str], ...] = ()
    warnings: Sequence[str] = ()
    footnotes: tuple[str, ...] = ()
    status: int = EXIT_FINE


def printable(text: str) -> str:
    """A text without what a terminal would obey: names come from tenants, and messages from who writes objects."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)


def form_for(target: Path | None, given: Form | None, endings: Mapping[str, tuple[Form, ...]]) -> Form | None:
    """The format of an output file, by its ending unless one was given; None where neither says it.

    Args:
        target: the file; None for standard output. Pipes, devices and names without an ending take every format.
        endings: the formats that each ending fits, such as `.yml`; the first is meant where none was asked for.

    Raises:
        Misconfigured: the ending fits no format, or another than the one asked for.
    """
    ending = "" if target is None or (target.exists() and not target.is_file()) else target.suffix.lower()
    if not ending:
        return given
    fitting = endings.get(ending)
    if fitting is None:
        raise Misconfigured(f"cannot write {target}: no format has the ending {ending}; use {', '.join(endings)}")
    if given is not None and given not in fitting:
        raise Misconfigured(f"cannot write {given.value} into {target}: {ending} is for {fitting[0].value}")
    return given or fitting[0]


def show_everything(is_wanted: bool) -> None:
    """Whether tables and texts on standard output are whole from now on: the option `--all` of a call."""
    _shows_everything.set(is_wanted)


def print_answer(answer: Answer, *, form: Format, target: Path | None) -> None:
    """Write an answer to standard output or a file.

    Raises:
        Corrupt: the file can't be written.
        Misconfigured: Excel was asked for without a file.
    """
    if form is Format.EXCEL and target is None:
        raise Misconfigured("cannot write xlsx to standard output: name a file with -o")
    found = _RENDERERS[form](answer, target)
    content = found if isinstance(found, bytes) else found.encode()
    if target is None:
        sys.stdout.write(content.decode())
        sys.stdout.flush()
        return
    if target.exists() and not target.is_file():
        # A pipe or a device stays what it is: a file that took its place would be no help to anybody.
        try:
            target.write_bytes(content)
        except OSError as exc:
            raise unwritable(target, exc) from exc
        return
    write_durably(target, content)


def _table(answer: Answer, target: Path | None) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = io.StringIO()
    is_terminal = sys.stdout.isatty() and target is None
    is_whole = target is not None or _shows_everything.get()
    width = None if is_terminal else 160
    console = Console(file=stream, force_terminal=is_terminal, width=width, highlight=False)
    for line in answer.headline:
        console.print(_text(line))
    shown = [one for one in answer.listings if is_whole or not one.is_said]
    listings = [one for one in shown if len(one.columns) > 1]
    # Beside others a table without rows says nothing.
    listings = [one for one in listings if one.rows] or listings
    # One column needs no frame.
    plain = [[f"{one.title}: {row[0]}" for row in one.rows] for one in shown if len(one.columns) == 1]
    for listing in listings:
        rows = listing.rows if is_whole or listing.is_whole else listing.rows[:TABLE_ROWS_MAX]
        table = Table(title=Text(listing.title), title_justify="left", caption=_text(listing.caption) or None)
        for place, column in enumerate(listing.columns):
            is_number = all(not isinstance(row[place], str) for row in listing.rows)
            table.add_column(Text(column), justify="right" if is_number else "left", overflow="fold")
        cells = [[_cell(value) for value in row] for row in rows]
        for row in cells if is_whole else _shortened(cells, listing.columns, console.width):
            # Names come from tenants: Text keeps markup in them from being obeyed.
            table.add_row(*map(_text, row))
        console.print(table)
        if len(rows) < len(listing.rows):
            console.print(f"{len(rows)} of {len(listing.rows):,}; {_REST}")
    for text, wraps in (*((one, is_whole) for one in (*plain, *answer.texts)), (answer.warnings, True)):
        lines = text if is_whole else text[:_LINES_MAX]
        for line in lines:
            console.print(_text(line), no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
        if len(lines) < len(text):
            console.print(f"… {len(text) - len(lines):,} more lines; {_REST}")
    for line in answer.footnotes:
        console.print(_text(line))
    return stream.getvalue()


def _text(line: str) -> Text:
    from rich.text import Text

    return Text(printable(line))


def _json(answer: Answer, _: Path | None) -> bytes:
    # Number by number into bytes: the pieces of a large fleet's document take ten times what they are joined to.
    text = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n")
    json.dump(answer.document, text, indent=1, ensure_ascii=False, allow_nan=False)
    text.write("\n")
    written = text.detach()
    assert isinstance(written, io.BytesIO)
    return written.getvalue()


def _yaml(answer: Answer, _: Path | None) -> str:
    import yaml

    return str(yaml.safe_dump(answer.document, sort_keys=False, allow_unicode=True))


def _spreadsheet(write: Callable[[Sequence[str], Sequence[Sequence[Any]]], Content]) -> Callable[..., Content]:
    """What writes the first table of an answer."""

    def written(answer: Answer, _: Path | None) -> Content:
        first = answer.listings[0] if answer.listings else Listing(title="", columns=(), rows=())
        return write(first.columns, first.rows)

    return written


def _shortened(rows: Sequence[list[str]], columns: Sequence[str], width: int) -> list[list[str]]:
    """Rows whose cells are cut so that a row is one line where it can be: the last column takes what is left."""
    cut = [[_cut(text, _CELL_CHARS_MAX) for text in row[:-1]] for row in rows]
    others = sum(max(len(text) for text in column) + _BORDER_CHARS for column in zip(columns[:-1], *cut, strict=True))
    room = max(width - others - _BORDER_CHARS - 1, _LAST_CHARS_MIN)
    return [[*short, _cut(row[-1], room)] for short, row in zip(cut, rows, strict=True)]


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


_RENDERERS: Mapping[Format, Callable[[Answer, Path | None], str | bytes]] = {
    Format.TABLE: _table,
    Format.JSON: _json,
    Format.CSV: _spreadsheet(csv_text),
    Format.TSV: _spreadsheet(tab_separated),
    Format.EXCEL: _spreadsheet(excel),
    Format.YAML: _yaml,
}
