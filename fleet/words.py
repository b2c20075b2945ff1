"""Every sentence that people are shown, by its id and in their language.

The texts are gettext catalogues, `fleet/locale/LANGUAGE/LC_MESSAGES/gputide.po`, `advice.po` beside it for what plans
and profiles record as codes, `enforcer.po` for why a change is refused or taken back, and `doctor.po`. English is a
language like any other. A process reads the files of a language when it first says something in it (0.1 s for 900
messages): a compiled file would load faster and could be older than its source. Babel writes numbers, days and plurals.
What a text may hold stands at `Words.say`; `tests/repository/test_catalogues.py` keeps catalogues and callers together.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache, reduce
from gettext import GNUTranslations
from importlib.resources import files
from io import BytesIO
from types import MappingProxyType
from typing import Any

from babel import Locale
from babel.dates import format_date
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from babel.numbers import NumberPattern, parse_pattern

from fleet.decisions import Saving
from fleet.sentences import Sentence
from fleet.units import GIB, MIB, Money, format_money_short, format_plan_id

_NUMBER = "#,##0.###"
_STAGES = re.compile(r"(stages?) (\d+(?:, \d+)*)", re.ASCII)
_WAYS = ("", ".1", ".2", ".3")
_SIZES: Mapping[str, int] = MappingProxyType({"gib": GIB, "mib": MIB})


class Language(StrEnum):
    """Languages of pages, report and messages (BCP 47 primary tags); each has a catalogue."""

    EN = "en"
    ZH = "zh"


@cache
def catalogue(language: Language) -> Catalog:
    """The messages of a language, as its .po files hold them."""
    found = Catalog(locale=language)
    for path in files("fleet").joinpath("locale", language, "LC_MESSAGES").iterdir():
        for message in read_po(BytesIO(path.read_bytes()), locale=language, abort_invalid=True):
            found[message.id] = message
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Says messages in one language."""

    language: Language

    def say(self, message_id: str, **values: object) -> str:
        """A message with its values filled in; a value is never read as a text with places of its own.

        A place of a text is one of

        - `{count}`: a value; a number is grouped by thousands and has at most three digits after the point;
        - `{ratio:0.0 %}`: a number in a CLDR pattern (unicode.org/reports/tr35, number format patterns);
        - `{plan}`: the start of a plan's id;
        - `{need_gib:0.0}`: a value `need_bytes` in GiB, `need_mib` in MiB;
        - `{pods:count.pods}`: another message whose `count` is the value;
        - `{check:check.}`: the message of a code, `check.frozen`, filled from the same values; of several codes, joined
          by `, `, each.

        Of the plural forms of a message the value `count` chooses one; a number with a fraction takes the form of 2.

        Raises:
            KeyError: no message has this id, or a place of its text has no value.
        """
        texts, count = _texts(self.language), values.get("count")
        text = message_id
        if isinstance(count, int | float):
            text = texts.ngettext(message_id, message_id, int(count) if count == int(count) else 2)
        text = texts.gettext(message_id) if text == message_id else text
        if text == message_id:
            raise KeyError(message_id)
        return _Places(self, values).vformat(text, (), values) if "{" in text else text

    def knows(self, message_id: str) -> bool:
        """Whether there is such a message."""
        return message_id in catalogue(self.language)

    def code(self, group: str, code: str, **values: object) -> str:
        """A code of a closed list; one that the catalogue does not hold yet is shown as it is, without underscores."""
        message_id = f"{group}.{code.replace(' ', '_')}"
        return self.say(message_id, **values) if self.knows(message_id) else code.replace("_", " ")

    def ids(self, group: str) -> set[str]:
        """The rest of the id of every message of a group."""
        ids = (str(one.id) for one in catalogue(self.language))
        return {message_id.partition(".")[2] for message_id in ids if message_id.startswith(f"{group}.")}

    def percent(self, ratio: float | None, digits: int = 2) -> str:
        """A ratio of 0-1 as a percentage; an en dash where nothing was collected."""
        if ratio is None:
            return "–"
        places = "#,##0." + "0" * digits if digits else "#,##0"
        return self.number(ratio, self.say("format.percent", digits=places))

    def number(self, number: float | Decimal, pattern: str = _NUMBER) -> str:
        """A number in a CLDR pattern."""
        return str(_pattern(pattern).apply(number, _locale(self.language)))

    def day(self, moment: datetime, *, has_year: bool = False) -> str:
        """A day: `19 Jan`, `1月19日`; independent of the machine's locale."""
        pattern = self.say("format.day_of_year" if has_year else "format.day")
        return format_date(moment, pattern, _locale(self.language))

    def sentences(self, *sentences: str) -> str:
        """Sentences that follow each other; Chinese sets no space between them."""
        return reduce(lambda first, second: self.say("mark.sentences", first=first, second=second), sentences)

    def names_of_days(self) -> dict[str, list[str] | str]:
        """Names of days and months for figures (plotly.js, `locales` of the configuration); weeks start on Sunday."""
        days, months = _locale(self.language).days["format"], _locale(self.language).months["format"]
        return {
            "days": [days["wide"][(day - 1) % 7] for day in range(7)],
            "shortDays": [days["abbreviated"][(day - 1) % 7] for day in range(7)],
            "months": list(months["wide"].values()),
            "shortMonths": list(months["abbreviated"].values()),
            "date": self.say("format.figure_date"),
        }

    def moment(self, moment: datetime) -> str:
        """A moment, in UTC and said so: `2026-01-12 08:30 UTC`."""
        return f"{moment:%Y-%m-%d %H:%M} UTC"

    def cards(self, count: int) -> str:
        """A number of cards."""
        return self.say("count.cards", count=count)

    def saving(self, saving: Saving, currency: str) -> str:
        """A weekly saving on both bases, marginal first; what is unknown is left out."""
        amounts = (("saving.marginal", saving.marginal), ("saving.amortised", saving.amortised))
        parts = [
            self.say(message_id, money=format_money_short(Money(amount=amount, currency=currency)))
            for message_id, amount in amounts
            if amount is not None
        ]
        return self.say("mark.list").join(parts) or self.say("saving.none")

    def said(self, said: Sentence | str, group: str = "") -> str:
        """A recorded sentence; a text, and a code that the catalogue does not hold yet, as they are.

        A code may have several messages (`refused.CODE.1`, `refused.CODE.2` …): the first whose places all have a value
        is taken.

        Args:
            group: what stands before the code in the id, such as `refused.`; most codes are whole ids.
        """
        if isinstance(said, str):
            return said
        for way in _WAYS:
            with suppress(KeyError):
                return self.say(f"{group}{said.code}{way}", **dict(said.values))
        return said.code.rpartition(".")[2].replace("_", " ")

    def stage(self, title: Sentence) -> str:
        """A stage's title."""
        return self.said(title, "stage.")

    def subject(self, text: str) -> str:
        """What a line of the ledger is about: stages in this language, anything else as it stands."""
        match = _STAGES.fullmatch(text)
        return text if match is None else self.say(f"subject.{match[1]}", numbers=match[2])

    def in_english(self, group: str, text: str) -> str:
        """The message of a group that says this in English, in this language; without such a message the text."""
        message_id = _by_english(group).get(text)
        return text if message_id is None else self.say(message_id)


class _Places(string.Formatter):
    """Fills the places of a text, see `Words.say`."""

    def __init__(self, words: Words, values: Mapping[str, object]) -> None:
        self._words = words
        self._values = values

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The value of a place; a size by the unit that its name ends in, a plan by the start of its id."""
        name, _, unit = str(key).rpartition("_")
        if key not in kwargs and unit in _SIZES:
            return kwargs[f"{name}_bytes"] / _SIZES[unit]
        if key == "plan" and isinstance(kwargs["plan"], str):
            return format_plan_id(kwargs["plan"])
        return kwargs[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:
        """A value in the form that its place asks for."""
        if format_spec.endswith("."):
            parts = (self._words.code(format_spec[:-1], code, **self._values) for code in str(value).split(", "))
            return self._words.say("mark.list").join(parts)
        if format_spec[:1].isalpha():
            return self._words.say(format_spec, count=value)
        if isinstance(value, Sentence):
            return self._words.said(value)
        if isinstance(value, int | float | Decimal):
            return self._words.number(value, format_spec or _NUMBER)
        return str(value)


@cache
def _texts(language: Language) -> GNUTranslations:
    compiled = BytesIO()
    write_mo(compiled, catalogue(language))
    compiled.seek(0)
    return GNUTranslations(compiled)


@cache
def _by_english(group: str) -> Mapping[str, str]:
    return {str(one.string): str(one.id) for one in catalogue(Language.EN) if str(one.id).startswith(group)}


@cache
def _locale(language: Language) -> Locale:
    return Locale.parse(language)


@cache
def _pattern(pattern: str) -> NumberPattern:
    return parse_pattern(pattern)
