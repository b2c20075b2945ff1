"""What a sentence says, apart from the language that it is said in: a code and the values in it.

Analyzer, recommender and enforcer record sentences and no text; pages, reports, messages and the command line say them
in the reader's language (`dashboards.words.advice`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Value = str | int | float
"""A name, a number of things, or a quantity in base units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence.

    Attributes:
        code: id of the message, without its group, for example `framebuffer_held`.
        values: values in it by name, units last in the name.
    """

    code: str
    values: tuple[tuple[str, Value], ...] = ()


Say = Callable[[Sentence], str]
"""Says a sentence in English, for a reader that knows no codes: an event of Kubernetes, a line of the log."""


def sentence(code: str, **values: Value) -> Sentence:
    """A sentence with its values, in the order in which they are given."""
    return Sentence(code=code, values=tuple(values.items()))
