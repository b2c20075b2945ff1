"""JSON that somebody else may have written: decoded to values that everything after it can hold, print and write again.

The standard decoder takes what no JSON document may hold: NaN, numbers that overflow to infinity, halves of surrogate
pairs that no file or terminal takes, and a depth that ends whatever walks it next. Called by whoever reads a stored or
signed document.
"""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic_core import from_json


def json_value(content: bytes | str) -> Any:
    """The value of a JSON text: UTF-8, 200 levels deep at most, all its numbers finite.

    Raises:
        ValueError: it is none, in a few words that repeat nothing of it.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError:
        raise ValueError("it is no Unicode") from None
    found = from_json(data, allow_inf_nan=False)
    _check_finite(found)
    return found


def as_stored(value: Any) -> Any:
    """A value as `json_value` gives it back once it was stored: infinities and NaN, which no JSON has, are texts."""
    return json.loads(json.dumps(value), parse_constant=str)


def _check_finite(value: Any) -> None:
    if isinstance(value, dict):
        for part in value.values():
            _check_finite(part)
    elif isinstance(value, list):
        for part in value:
            _check_finite(part)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large")
