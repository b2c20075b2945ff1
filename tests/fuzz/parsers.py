"""What is fuzzed: every reader of something that we did not write ourselves, each with good inputs to begin from.

A reader keeps its word where every input ends in a value or in one of the house's errors (or one that its docstring
names), with a message that is one bounded line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fleet.errors import GputideError

MESSAGE_LENGTH_MAX = 2000
"""Longest message of an error: it goes to logs and terminals, and repeats what a stranger wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """One reader.

    Attributes:
        name: its name, for messages and for the folder of what once failed.
        seeds: good inputs.
        read: reads one input, wholly.
        also: errors beside the house's that its docstring promises.
        cost: how many times dearer than a plain one a case is: it gets that many times fewer cases.
    """

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[bytes], object]
    also: tuple[type[Exception], ...] = ()
    cost: int = 1

    @property
    def _promised(self) -> tuple[type[Exception], ...]:
        return (GputideError, *self.also)

    def fault_of(self, data: bytes) -> str | None:
        """What is wrong with how an input is read; None where nothing is."""
        try:
            self.read(data)
        except self._promised as exc:
            said = str(exc)
            if len(said) > MESSAGE_LENGTH_MAX:
                return f"a message of {len(said)} characters: {said[:200]!r}"
            if "\n" in said and isinstance(exc, GputideError):
                return f"a message of several lines: {said[:300]!r}"
            if any("\ud800" <= letter <= "\udfff" for letter in said) and isinstance(exc, GputideError):
                return f"a message that no file or terminal takes: {said[:300]!r}"
        except BaseException as exc:  # noqa: BLE001 - any other error is what is looked for
            return f"{type(exc).__name__}: {str(exc)[:300]}"
        return None


def text_of(data: bytes) -> str:
    """Bytes as text; what is no UTF-8 becomes lone surrogates, as JSON can carry them too."""
    return data.decode("utf-8", "surrogateescape")
