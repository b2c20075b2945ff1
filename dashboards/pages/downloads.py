"""The rows of a grid: page by page as it asks for them, and in full as a file or in the clipboard.

Called by the pages that have a grid. Files hold the rows that the grid shows, with its filter and order.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from flask import Response, request

from dashboards.address import Address, read_address
from dashboards.pages.frame import GRID_PATH
from dashboards.spreadsheet import csv_text, excel, tab_separated
from dashboards.view_models.grid_rows import GridRows, Places
from dashboards.words.reading import reader_words, say
from fleet.errors import GputideError

_EXCEL_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_FILE_FORMS = {"csv": "CSV", "xlsx": "Excel", "json": "JSON"}


def downloads(name: str) -> list[Any]:
    """Buttons that save the rows of a grid as a file or copy them; `register_rows` answers them."""
    return [
        *(html.Button(words, id=f"{name}-{form}", className="quiet") for form, words in _FILE_FORMS.items()),
        html.Button(say("frame.copy"), id=f"{name}-copy", className="quiet"),
        dcc.Clipboard(id=f"{name}-clipboard", style={"display": "none"}),
        dcc.Download(id=f"{name}-download"),
    ]


def register_rows(
    app: Dash, name: str, columns: Sequence[str], asked: Callable[[Address], tuple[GridRows[Any], Places | None]]
) -> None:
    """Answer a grid, and the buttons of `downloads`.

    Args:
        name: name of the grid, which is `NAME-grid`, and of its files.
        asked: the table that an address means, and which rows of it are meant at all; None for all.
    """

    def _rows() -> Response:
        """What the grid asks for, as JSON: `rows`, `count` of all that pass, and what is `said` of them."""
        try:
            wanted = json.loads(request.get_data(cache=False))
        except (ValueError, RecursionError):
            wanted = None
        search = wanted.get("search") if isinstance(wanted, Mapping) else None
        try:
            rows, among = asked(read_address("/", search if isinstance(search, str) else ""))
            answer = rows.page(wanted, among=among)
            answer["said"] = say("grid.rows", count=answer["count"])
        except IndexError:
            answer = {"rows": [], "count": 0, "said": say("frame.no_data_yet")}
        except GputideError as exc:
            answer = {"rows": [], "count": 0, "said": reader_words().said(exc.said)}
        return Response(json.dumps(answer), mimetype="application/json")

    app.server.add_url_rule(GRID_PATH + name, f"rows_{name}", _rows, methods=["POST"])

    def chosen(wanted: Any, path: str, search: str) -> Iterator[Mapping[str, Any]]:
        rows, among = asked(read_address(path, search))
        return (rows.row(int(place)) for place in rows.chosen(wanted, among=among))

    shown = (State(f"{name}-asked", "data"), State("address", "pathname"), State("address", "search"))

    @app.callback(
        Output(f"{name}-download", "data"),
        *(Input(f"{name}-{form}", "n_clicks") for form in _FILE_FORMS),
        *shown,
        prevent_initial_call=True,
    )
    def _file(*values: Any) -> Any:
        form = str(ctx.triggered_id).rpartition("-")[2]
        if not ctx.triggered or not ctx.triggered[0]["value"]:
            return no_update
        return file_of(name, columns, chosen(*values[-len(shown) :]), form)

    @app.callback(
        Output(f"{name}-clipboard", "content"),
        Output(f"{name}-clipboard", "n_clicks"),  # it copies when this changes
        Input(f"{name}-copy", "n_clicks"),
        *shown,
        prevent_initial_call=True,
    )
    def _copy(clicks: int | None, *values: Any) -> Any:
        return (tab_separated(columns, _cells(columns, chosen(*values))), clicks) if clicks else (no_update, no_update)


def file_of(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], form: str) -> dict[str, Any]:
    """Rows of a grid as what a download takes: `csv`, `xlsx`, or `json` for a list of records."""
    if form == "json":
        records = [{column: row.get(column) for column in columns} for row in rows]
        content = json.dumps(records, ensure_ascii=False, indent=1)
        return {"content": content, "filename": f"{name}.json", "type": "application/json"}
    if form == "xlsx":
        content = base64.b64encode(excel(columns, _cells(columns, rows))).decode()
        return {"content": content, "filename": f"{name}.xlsx", "type": _EXCEL_TYPE, "base64": True}
    text = csv_text(columns, _cells(columns, rows))
    # Spreadsheets take a file without a byte order mark for the machine's own code page.
    mark = "" if text.isascii() else "\ufeff"
    return {"content": mark + text, "filename": f"{name}.csv", "type": "text/csv"}


def _cells(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Any]]:
    return ([row.get(column) for column in columns] for row in rows)
