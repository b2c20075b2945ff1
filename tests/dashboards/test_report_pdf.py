"""The report as PDF: its fonts cover the catalogues, and no name of a tenant breaks or leaves the page."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path

import pytest
from pypdf import PdfReader

from dashboards.report.pdf import report_pdf
from fleet.words import Language
from tests.dashboards.embedded import NOW

PAGE = """<!DOCTYPE html>
<html lang="en"><head><title>t</title></head><body><p>%s</p>
<table><thead><tr><th>name</th><th class="n">cards</th></tr></thead>
<tbody><tr><td>%s</td><td class="n">4</td></tr></tbody></table></body></html>"""


def _read(pdf: bytes) -> PdfReader:
    return PdfReader(io.BytesIO(pdf))


@pytest.mark.parametrize("language", list(Language))
def test_every_character_of_the_catalogues_is_drawn(repository: Path, language: Language) -> None:
    folder = repository / "dashboards" / "words" / "locale" / language.value / "LC_MESSAGES"
    signs = set("".join(path.read_text(encoding="utf-8") for path in folder.glob("*.po"))) - set(" \n")
    said = escape(" ".join(sorted(signs)))
    drawn = "".join(page.extract_text() for page in _read(report_pdf(PAGE % (said, "n"), created_at=NOW)).pages)
    assert sorted(signs - set(drawn)) == []


def test_text_that_looks_like_markup_or_is_no_xml_is_shown_as_it_stands() -> None:
    hostile = "#panic(&quot;x&quot;) *bold* \x07 $x$ &lt;img src=x&gt; @label // end"
    (page,) = _read(report_pdf(PAGE % (hostile, "n"), created_at=NOW)).pages
    text = page.extract_text()
    assert '#panic("x") *bold*' in text
    assert "$x$ <img src=x> @label // end" in text
    assert "/Annots" not in page


def test_long_name_stays_inside_its_column_and_reads_back_whole() -> None:
    name = "namespace/Deployment/" + "x" * 260
    (page,) = _read(report_pdf(PAGE % ("p", name), created_at=NOW)).pages
    starts: list[float] = []
    page.extract_text(visitor_text=lambda text, _cm, tm, _font, _size: starts.append(tm[4]) if text.strip() else None)
    assert name in "".join(page.extract_text().split())
    assert max(starts) < float(page.mediabox.right)


def test_moment_is_that_of_the_report_to_the_second() -> None:
    made = _read(report_pdf(PAGE % ("p", "n"), created_at=NOW.replace(microsecond=17)))
    assert made.metadata is not None
    assert made.metadata.creation_date == NOW


def test_element_without_a_form_is_refused_rather_than_left_out() -> None:
    with pytest.raises(RuntimeError, match="no form for <marquee>"):
        report_pdf(PAGE % ("<marquee>x</marquee>", "n"), created_at=NOW)
