"""A long list on a page, a part of it at a time; the address says from which row (`from=120`).

A page of some thousand parts takes the browser seconds to draw, so lists that grow with the fleet are cut here.
Called by the pages of tenants and of health.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from dash import dcc, html

from dashboards.address import Address
from dashboards.words.reading import say

T = TypeVar("T")
FROM_KEY = "from"
"""Value of the address that names the first row, counted from 0."""
ROWS_MAX = 60


def part_of(rows: Sequence[T], address: Address, rows_max: int = ROWS_MAX) -> tuple[Sequence[T], Any]:
    """The rows that the address means, and links to those before and after; None where all are shown.

    Args:
        address: where the reader is; what names no row of the list means its beginning.
    """
    if len(rows) <= rows_max:
        return rows, None
    text = address.get(FROM_KEY) or "0"
    asked = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0
    start = asked // rows_max * rows_max if asked < len(rows) else 0
    shown = rows[start : start + rows_max]
    before, after = start - rows_max, start + rows_max
    words = say("list.first_last_count", first=start + 1, last=start + len(shown), count=len(rows))
    links = [
        dcc.Link(say("list.before"), href=_href(address, before)) if before >= 0 else None,
        html.Span(words, className="soft"),
        dcc.Link(say("list.after"), href=_href(address, after)) if after < len(rows) else None,
    ]
    return shown, html.P([part for link in links if link is not None for part in (link, " ")], className="parts")


def _href(address: Address, start: int) -> str:
    return address.href(**{FROM_KEY: str(start) if start else None})
