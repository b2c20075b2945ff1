"""Cells of a spreadsheet: text of tenants that must not run as a formula (owasp.org, CSV injection).

Called by what writes tables for spreadsheets, and by what reads a price list that came through one.
"""

from __future__ import annotations

import re

_FORMULA_START = re.compile(r"\s*[=+\-@\t\r]|[\t\r\n]")


def harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula: an apostrophe stands before what it would run."""
    return f"'{text}" if _FORMULA_START.match(text) else text


def as_meant(text: str) -> str:
    """Text as it was before `harmless`."""
    return text[1:] if text[:1] == "'" and _FORMULA_START.match(text[1:]) else text
