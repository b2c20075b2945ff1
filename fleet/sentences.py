"""What a sentence says, apart from the language that it is said in: a code and the values in it.

The analyzer, the recommender and verify write English and record beside it what it says; the faces say the same in
another language by the code (`dashboards.words.advice`), so that nobody has to read it out of the English.
"""

from __future__ import annotations

from dataclasses import dataclass

Value = str | int | float
"""A name, a number of things, or a quantity in base units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence.

    Attributes:
        code: what it says, for example `idle_held`; which codes there are and which values each has stands where it is
            made.
        values: values in it by name, units last in the name.
    """

    code: str
    values: tuple[tuple[str, Value], ...] = ()


def sentence(code: str, **values: Value) -> Sentence:
    """A sentence with its values, in the order in which they are given."""
    return Sentence(code=code, values=tuple(values.items()))
