"""Lists in pages: how they are asked for, and their objects, decoded one after the other.

A page decoded as a whole takes five to ten times its text, which is what a node's exporter has least of; and most of
it is dropped as soon as it was read. So a page costs its text and one object.

Source: RFC 8259; kubernetes/apimachinery:pkg/apis/meta/v1/types.go (ListMeta stands before the items).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from wire.http_answer import TooLarge

Manifest = Mapping[str, object]
"""An object as the API serves it."""

_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list.

    Attributes:
        manifests: the objects; may be decoded as they are gone through, and then raise `Unavailable` where the server's
            words turn out to be none.
        version: version of the whole list, equal on all its pages; a watch begins there.
        next_token: what asks for the next page; None on the last.
    """

    manifests: Iterable[Manifest]
    version: str
    next_token: str | None


def pages_of(
    read: Callable[[int, str | None], Page], *, objects_max: int, turn: AbstractContextManager[object] | None = None
) -> Generator[Page, None, None]:
    """All pages of a list, one after the other; a page that is too large is asked for again with fewer objects.

    Args:
        read: reads a page of so many objects, by the token of the former page.
        turn: held while a page is read and gone through; where several lists share it, one page is in memory at a time.

    Raises:
        TooLarge: a page of one object is too large.
        Expired: a token is too old: the list must be read anew.
    """
    token: str | None = None
    while True:
        with turn or nullcontext():
            try:
                page = read(objects_max, token)
            except TooLarge:
                if objects_max == 1:
                    raise
                objects_max = max(1, objects_max // 4)
                continue
            token = page.next_token
            yield page
            # Its memory is given back before another list has its turn.
            del page
        if token is None:
            return


class PageObjects:
    """The objects of a list that stands in a text; may be gone through more than once, and is decoded each time.

    Args:
        start: where the first object, or the list's end, stands.
    """

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._start = start

    def __iter__(self) -> Iterator[Manifest]:
        """Each object; what is none is left out.

        Raises:
            ValueError: the rest is no JSON.
            RecursionError: it is nested too deeply.
        """
        text, at = self._text, _skip(self._text, self._start)
        if text[at : at + 1] == "]":
            return
        while True:
            found, at = _DECODER.raw_decode(text, at)
            if isinstance(found, dict):
                yield found
            at = _skip(text, at)
            mark = text[at : at + 1]
            if mark == "]":
                return
            if mark != ",":
                raise ValueError(f"neither comma nor end at character {at} of a list")
            at = _skip(text, at + 1)


def open_page(body: bytearray) -> tuple[dict[str, object], Iterable[Manifest]]:
    """What a page says of the whole list, and its objects.

    Args:
        body: the page; emptied, so that it does not lie beside its text.

    Raises:
        ValueError: no JSON object, or one that is no list.
        RecursionError: it is nested too deeply.
    """
    text = body.decode("utf-8", "surrogatepass")
    body.clear()
    top: dict[str, object] = {}
    at = _after(text, 0, "{")
    while True:
        key, at = _DECODER.raw_decode(text, at)
        at = _after(text, at, ":")
        metadata = top.get("metadata")
        if key == "items" and isinstance(metadata, dict) and text[at : at + 1] == "[":
            return metadata, PageObjects(text, at + 1)
        if not isinstance(key, str):
            raise ValueError("a key that is no text")
        top[key], at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ",":
            break
        at = _skip(text, at + 1)
    _after(text, at, "}")
    # Another order than the server's own, or no objects.
    metadata, items = top.get("metadata"), top.get("items") or []
    if not isinstance(metadata, dict) or not isinstance(items, list):
        raise ValueError("no list")
    return metadata, [item for item in items if isinstance(item, dict)]


def _skip(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return at if match is None else match.end()


def _after(text: str, at: int, mark: str) -> int:
    """Where the next value begins, behind a mark that must stand here."""
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"no {mark} at character {at}")
    return _skip(text, at + 1)
