"""The weekly report as PDF: Typst draws the HTML of `report.text` on A4, with a shipped font. For `gputide report`.

Typst was chosen over WeasyPrint, which needs Pango and fontconfig on the machine: one wheel, no library of the system.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import typst

from dashboards.tokens import LIGHT

FONTS = Path(__file__).with_name("fonts")
"""Noto Sans CJK SC, cut to GB 2312 and Latin (`deploy/release/subset_font.py`)."""
_TEMPLATE = Path(__file__).parents[1] / "templates" / "report.typ"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 (section 2.2) has no form for; names come from tenants."""


def report_pdf(html: str, *, created_at: datetime) -> bytes:
    """Draw a report's HTML as PDF; the same HTML and moment give the same bytes.

    Args:
        html: what `report_html` wrote. It must be well-formed XML of the elements that `report.typ` draws.
        created_at: moment that the PDF names as its own, UTC.
    """
    colours = {name: LIGHT[name] for name in ("ink", "ink-soft", "line", "danger")}
    return typst.compile(
        _TEMPLATE,
        font_paths=[FONTS],
        ignore_system_fonts=True,
        sys_inputs={"html": _NOT_XML.sub("\ufffd", html), **colours},
        timestamp=created_at.replace(microsecond=0),  # PDF knows none (ISO 32000-1, section 7.9.4), Typst refuses them
    )
