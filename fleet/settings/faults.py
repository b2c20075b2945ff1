"""What is wrong with given values, in our words: the place, the value and the limit of each fault.

Every reader of settings, price books, rights and stored documents words its errors here; the validator's own text
reaches nobody. Error types and their context: pydantic_core.core_schema.ErrorType.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator, Set, Sized
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

FAULTS_MAX = 8
"""Faults that one message names; of the others it says how many there are."""
SHOWN_LENGTH_MAX = 200
"""Characters of a name or a value that a message shows."""

_WHOLE_NUMBER = "expected a whole number"
_NUMBER = "expected a number"
_BOOLEAN = "expected true or false"
_TEXT = "expected text"
_LIST = "expected a list"
_MAP = "expected a map from name to value"
_FIELDS = "expected a table of named fields"
_DAY = "expected a day such as 2026-12-24"
_TIME = "expected a time such as 2026-12-24T09:00:00Z"
_REASONS = {
    "missing": "is missing",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "finite_number": "expected a finite number",
    "int_type": _WHOLE_NUMBER,
    "int_parsing": _WHOLE_NUMBER,
    "int_from_float": _WHOLE_NUMBER,
    "int_parsing_size": "expected a whole number of fewer digits",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "decimal_type": _NUMBER,
    "decimal_parsing": _NUMBER,
    "decimal_max_digits": "expected at most {max_digits} digits",
    "decimal_max_places": "expected at most {decimal_places} decimal places",
    "decimal_whole_digits": "expected at most {whole_digits} digits before the point",
    "bool_type": _BOOLEAN,
    "bool_parsing": _BOOLEAN,
    "string_type": _TEXT,
    "string_unicode": "expected text in UTF-8",
    "string_too_short": "expected text of at least {min_length} characters",
    "string_too_long": "expected text of at most {max_length} characters",
    "string_pattern_mismatch": "expected text that matches {pattern}",
    "enum": "expected {expected}",
    "literal_error": "expected {expected}",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "too_short": "expected at least {min_length} entries",
    "dict_type": _MAP,
    "invalid_key": "expected text as a name",
    "model_type": _FIELDS,
    "dataclass_type": _FIELDS,
    "path_type": "expected the path of a file or folder",
    "date_type": _DAY,
    "date_parsing": _DAY,
    "date_from_datetime_parsing": _DAY,
    "date_from_datetime_inexact": _DAY,
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "json_invalid": "not JSON: {error}",
}
"""What each type of error asks for; words in braces are of its context."""
_OTHERWISE = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One value that does not fit.

    Attributes:
        place: names of fields and of entries of maps, numbers of entries of lists from 0; empty where the whole of
            what was given contradicts itself.
        shown: the value, shortened; None where there is none, or where it is the whole.
    """

    place: tuple[str, ...]
    shown: str | None
    reason: str

    def __str__(self) -> str:
        name = ".".join(self.place)[:SHOWN_LENGTH_MAX]
        if not name:
            return self.reason
        if not name.isprintable():
            name = repr(name)[1:-1]  # a message is one line, whatever somebody called a field
        return f"{name}: {self.reason}" if self.shown is None else f"{name}={self.shown}: {self.reason}"


def faults(error: ValidationError, kind: Any) -> Iterator[Fault]:
    """What is wrong, value by value.

    Args:
        kind: type that was validated; an unknown name is answered with the nearest of its fields.
    """
    found = error.errors(include_url=False)
    for item in found:
        if item["type"] == "too_short" and _is_long_enough(item, found):
            continue
        place = tuple(str(part) for part in item["loc"])
        is_whole = not place or item["type"] in ("missing", "json_invalid")
        value = None if is_whole else shown(item["input"])
        yield Fault(place=place, shown=value, reason=_reason(item, place, kind))


def fault_words(error: ValidationError, kind: Any = None, *, secret: Set[str] = frozenset()) -> str:
    """What is wrong in one line, `place=value: reason; …`.

    Args:
        kind: type that was validated, where unknown names are errors.
        secret: fields whose value is not shown.
    """
    found = faults(error, kind)
    return joined([str(replace(one, shown=None) if secret & {*one.place} else one) for one in found])


class _Short(reprlib.Repr):
    """Values as files and flags hold them; `repr` calls a method by the name of the value's type."""

    def repr_Decimal(self, value: Decimal, _: int) -> str:  # noqa: N802 - the type's name
        return str(value)[:SHOWN_LENGTH_MAX]

    def repr_date(self, value: date, _: int) -> str:
        return value.isoformat()

    repr_datetime = repr_date

    def repr_bool(self, value: bool, _: int) -> str:
        return str(value).lower()


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = SHOWN_LENGTH_MAX


def shown(value: object) -> str:
    """A value for a message: of one that is long or deep the outermost parts."""
    return _SHORT.repr(value)


def joined(words: list[str]) -> str:
    """The first faults, and how many more there are."""
    more = len(words) - FAULTS_MAX
    return "; ".join([*words[:FAULTS_MAX], *([f"and {more} more"] if more > 0 else [])])


def _is_long_enough(item: Any, found: Iterable[Any]) -> bool:
    """Whether a list is short of entries only because the validator counts none that is wrong itself."""
    place, entries = item["loc"], item["input"]
    has_wrong = any(len(one["loc"]) > len(place) and one["loc"][: len(place)] == place for one in found)
    return has_wrong and isinstance(entries, Sized) and len(entries) >= item["ctx"]["min_length"]


def _reason(item: Any, place: tuple[str, ...], kind: Any) -> str:
    context = item.get("ctx", {})
    if item["type"] == "value_error":
        return str(context["error"])
    if item["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(place[-1][:SHOWN_LENGTH_MAX], _names_at(kind, place[:-1]), n=1, cutoff=0.0)
        return f"unknown name; did you mean {nearest[0]!r}?" if nearest else "unknown name"
    limits = {
        name: int(limit) if isinstance(limit, float) and limit.is_integer() else limit
        for name, limit in context.items()
    }
    return _REASONS.get(item["type"], _OTHERWISE).format_map(limits)


def _names_at(kind: Any, place: tuple[str, ...]) -> list[str]:
    """The fields of what lies at a place of a type."""
    models = _models(kind)
    for part in place:
        inner = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        # Numbers of lists and names of maps stay in the model of their entries.
        models = _models(inner[0]) if inner else models
    return [name for model in models for name in model.model_fields]


def _models(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for part in get_args(kind) for model in _models(part)]
