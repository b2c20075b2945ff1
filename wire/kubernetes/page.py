"""The objects of one page of a list, decoded one after the other, so that a page costs its text and one object.

A page decoded as a whole takes five to ten times its text, which is what a node's exporter has least of; and most of
it is dropped as soon as it was read. Called by the exporter's reader and the enforcer's.

Source: RFC 8259; kubernetes/apimachinery:pkg/apis/meta/v1/types.go (ListMeta stands before the items).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

Manifest = Mapping[str, object]
"""An object as the API serves it."""

_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class PageObjects:
    """The objects of a list that stands in a text; may be gone through more than once, and is decoded each time.

    Args:
        text: the page.
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
