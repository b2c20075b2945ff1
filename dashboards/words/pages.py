"""Every sentence of the web pages in every language that they speak, and how a page says one.

The English sentence is the key, so that a page reads as what it shows; `say` looks its Chinese up. Which language is
spoken is set per request (`pages.language`); outside of one it is English. Codes of the analyzer and the planner
(states, kinds, reasons, checks) stand in `words.report`, under the same Chinese terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from types import MappingProxyType

from dashboards.words.changing import CHANGING
from dashboards.words.looking import LOOKING

CHINESE = "zh"
ENGLISH = "en"
LANGUAGES: Mapping[str, str] = MappingProxyType({ENGLISH: "English", CHINESE: "中文"})
"""Languages of the pages (BCP 47 primary tags), each by its own name."""

READING: ContextVar[str] = ContextVar("READING", default=ENGLISH)
"""Language of the request that is being answered; a key of `LANGUAGES`."""


def say(sentence: str, **values: object) -> str:
    """A sentence in the reader's language, with its places filled; what fills them is not read as a pattern.

    Args:
        sentence: English, a key of `PAGE_WORDS`; one that is not there is said in English. What follows a `|` is a
            remark that keeps apart what English says by one word.
        **values: what fills its places.
    """
    english = sentence.partition("|")[0]
    said = PAGE_WORDS.get(sentence, english) if READING.get() == CHINESE else english
    return said.format(**values) if values else said


def counted(count: int, one: str, many: str) -> str:
    """A number of things, grouped by thousands: `one` or `many` with its `{count}` filled."""
    return say(one if count == 1 else many, count=f"{count:,}")


def day_words(moment: datetime, *, has_year: bool = False) -> str:
    """A day: `19 Jan`, `1月19日`; independent of the machine's locale."""
    if READING.get() == CHINESE:
        return f"{moment.year}年{moment.month}月{moment.day}日" if has_year else f"{moment.month}月{moment.day}日"
    text = f"{moment.day:02d} {_MONTHS[moment.month - 1]}"
    return f"{text} {moment.year}" if has_year else text


def percent_sign(text: str) -> str:
    """A percentage as English sets it (`3 %`), in the reader's language; Chinese sets no space before the sign."""
    return text.replace(" %", "%") if READING.get() == CHINESE else text


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

PAGE_WORDS: Mapping[str, str] = MappingProxyType({**LOOKING, **CHANGING})
"""Chinese by English sentence; the two tables hold the sentences."""
