"""The rows of a grid as a file or in the clipboard: the buttons, and what answers them.

Called by the pages that have a grid. The rows are those that the grid shows, with its filter and order, in full.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.spreadsheet import csv_text, excel, tab_separated
from dashboards.words.reading import say

_EXCEL_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_FILE_FORMS = {"csv": "CSV", "xlsx": "Excel", "json": "JSON"}


def downloads(name: str) -> list[Any]:
    """Buttons that save the rows of a grid as a file or copy them; `register_downloads` answers them."""
    return [
        *(html.Button(words, id=f"{name}-{form}", className="quiet") for form, words in _FILE_FORMS.items()),
        html.Button(say("frame.copy"), id=f"{name}-copy", className="quiet"),
        dcc.Clipboard(id=f"{name}-clipboard", style={"display": "none"}),
        dcc.Download(id=f"{name}-download"),
    ]


def register_downloads(
    app: Dash, name: str, columns: Sequence[str], chosen: Callable[[Any, str, str], Iterable[Mapping[str, Any]]]
) -> None:
    """Answer the buttons of `downloads`.

    Args:
        name: name of the grid, which is `NAME-grid`, and of its files.
        columns: fields of a row, in order.
        chosen: gives the rows that a request of the grid asks for; also takes the address's path and search.
    """
    asked = (
        State(f"{name}-grid", "getRowsRequest"),
        State("address", "pathname"),
        State("address", "search"),
    )

    @app.callback(
        Output(f"{name}-download", "data"),
        *(Input(f"{name}-{form}", "n_clicks") for form in _FILE_FORMS),
        *asked,
        prevent_initial_call=True,
    )
    def _file(*values: Any) -> Any:
        form = str(ctx.triggered_id).rpartition("-")[2]
        if not ctx.triggered or not ctx.triggered[0]["value"]:
            return no_update
        return file_of(name, columns, chosen(*values[-len(asked) :]), form)

    @app.callback(
        Output(f"{name}-clipboard", "content"),
        Output(f"{name}-clipboard", "n_clicks"),  # it copies when this changes
        Input(f"{name}-copy", "n_clicks"),
        *asked,
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
