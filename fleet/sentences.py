"""What a sentence says, apart from the language that it is said in: the id of a message and the values in it.

Analyzer, recommender and enforcer record and raise sentences and no text; pages, reports and messages say them in the
reader's language (`fleet.words`), and whatever prints one says it in English.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence.

    Attributes:
        code: id of the message, for example `guard.expired`; in plans and profiles without its group.
        values: values in it by name, units last in the name.
    """

    code: str
    values: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        """The sentence in English, for logs, events of Kubernetes and the command line."""
        from fleet.words import Language, Words  # noqa: PLC0415 - what only records sentences loads no Babel

        return Words(language=Language.EN).said(self)


Value = str | int | float | Sentence
"""A name, a number of things, a quantity in base units, or a sentence within another."""


def sentence(code: str, **values: Value) -> Sentence:
    """A sentence with its values, in the order in which they are given."""
    return Sentence(code=code, values=tuple(values.items()))


def listed(parts: Sequence[Sentence | str], most: int, *, clauses: bool = False) -> Sentence | str:
    """The first of several names or clauses, and how many more there are.

    Args:
        clauses: they are clauses, and have commas of their own.
    """
    if not parts:
        return sentence("mark.none")
    mark, rest = ("mark.next_clause", "mark.more_clauses") if clauses else ("mark.next_name", "mark.more_names")
    shown = reduce(lambda first, second: sentence(mark, first=first, second=second), parts[:most])
    return shown if len(parts) <= most else sentence(rest, first=shown, more=len(parts) - most)


def first_of(reasons: Sequence[Sentence | str]) -> Sentence | str:
    """The first of several reasons, and how many more there are."""
    more = len(reasons) - 1
    return sentence("watch.and_more", first=reasons[0], more=more) if more else reasons[0]


def recorded(said: Sentence | str | None) -> Any:
    """A sentence as a ledger records it, a JSON value; a text and None as they are."""
    if not isinstance(said, Sentence):
        return said
    values = {name: recorded(value) if isinstance(value, Sentence) else value for name, value in said.values}
    return {"code": said.code, "values": values}


def sentence_of(content: Any) -> Any:
    """The inverse of `recorded`."""
    if not isinstance(content, Mapping):
        return content
    values = tuple((name, sentence_of(value)) for name, value in content["values"].items())
    return Sentence(code=content["code"], values=values)
