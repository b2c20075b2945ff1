"""Text in cells of spreadsheets, where names come from tenants: kept from being run as a formula, and read back.

The rule is OWASP's for CSV injection (owasp.org, CSV Injection).
"""

from __future__ import annotations

import re

_FORMULA_START = re.compile(r"\s*[=+\-@\t\r]|[\t\r\n]")


def harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if _FORMULA_START.match(text) else text


def as_meant(text: str) -> str:
    """Text as it was before `harmless`."""
    return text[1:] if text[:1] == "'" and _FORMULA_START.match(text[1:]) else text
