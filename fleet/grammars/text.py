"""Reading the pieces that all annotation grammars are made of, each with its bounds.

Anybody who may write a pod writes its annotations, so every piece is checked before it is believed, and what is not the
grammar is `Corrupt` with a message that a hostile text can't blow up. Called by the `grammar` family only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from fleet.errors import Corrupt
from fleet.object_names import LABEL_WORDS, is_label

TEXT_LENGTH_MAX = 262144
"""Longest annotation that is read: Kubernetes keeps no more than 256 KiB of annotations per object."""

CONTAINERS_MAX = 1024
"""Most containers of one pod that are read."""

DEVICES_MAX = 1024
"""Most devices of one container or node that are read."""

NUMBER_DIGITS_MAX = 12
"""Most digits of a number."""

# Other vendors' ids are read too, as long as they can't be taken for the separators.
_NAMED_ID = re.compile(r"[A-Za-z0-9._/-]{1,128}", re.ASCII)
_TYPE = re.compile(r"[^,:;\x00-\x1f\x7f]{0,128}")


def check_length(text: str, what: str) -> None:
    """Refuses a text that is longer than an annotation can be.

    Raises:
        Corrupt: it is.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise Corrupt(f"cannot read {what} of {len(text)} characters: longer than {TEXT_LENGTH_MAX}")


def terminated(text: str, terminator: str, count_max: int, what: str) -> list[str]:
    """The parts of a text in which each part ends with the terminator; none of an empty text.

    Raises:
        Corrupt: the last part is not ended, or there are too many.
    """
    if not text:
        return []
    if not text.endswith(terminator):
        raise Corrupt(f"cannot read {what}: {shown(text[-32:])} does not end with {terminator!r}")
    return separated(text[:-1], terminator, count_max, what)


def separated(text: str, separator: str, count_max: int, what: str) -> list[str]:
    """The parts of a text between separators; an empty text is one empty part.

    Raises:
        Corrupt: there are too many.
    """
    count = text.count(separator) + 1
    if count > count_max:
        raise Corrupt(f"cannot read {what}: {count} parts are more than {count_max}")
    return text.split(separator)


def identifier(text: str) -> str:
    """A device's id, of any vendor.

    Raises:
        Corrupt: empty, too long, or with characters that separate.
    """
    if not _NAMED_ID.fullmatch(text):
        raise Corrupt(f"cannot read device id {shown(text)}: expected 1 to 128 letters, digits and . _ / -")
    return text


def device_type(text: str) -> str:
    """A vendor's word for a kind of device; may be empty.

    Raises:
        Corrupt: too long, or with characters that separate.
    """
    if not _TYPE.fullmatch(text):
        raise Corrupt(f"cannot read device type {shown(text)}: expected up to 128 printable characters")
    return text


def container_name(text: str) -> str:
    """A container's name (RFC 1123 label).

    Raises:
        Corrupt: it is none.
    """
    if not is_label(text):
        raise Corrupt(f"cannot read container name {shown(text)}: {LABEL_WORDS}")
    return text


def number(text: str) -> int:
    """A whole number of 0 or more.

    Raises:
        Corrupt: it is none, or has too many digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise Corrupt(f"cannot read number {shown(text)}: expected at most {NUMBER_DIGITS_MAX} digits")
    return int(text)


def json_list(text: str, what: str) -> list[object]:
    """A JSON list of at most `DEVICES_MAX` entries.

    Raises:
        Corrupt: not JSON, no list, or too long.
    """
    check_length(text, what)
    try:
        entries = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise Corrupt(f"cannot read {what}: not JSON: {shown(text)}") from exc
    if not isinstance(entries, list) or len(entries) > DEVICES_MAX:
        raise Corrupt(f"cannot read {what}: not a list of at most {DEVICES_MAX} devices")
    return entries


def json_object(entry: object, what: str) -> dict[str, object]:
    """An entry that is an object.

    Raises:
        Corrupt: it is none.
    """
    if not isinstance(entry, dict):
        raise Corrupt(f"cannot read {what}: {shown(repr(entry))} is no object")
    return entry


def text_member(entry: Mapping[str, object], key: str, what: str) -> str:
    """A text in a JSON object; empty where it is left out.

    Raises:
        Corrupt: it is no text.
    """
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise Corrupt(f"cannot read {what}: {key} {shown(repr(value))} is no text")
    return value


def integer_member(entry: Mapping[str, object], key: str, what: str) -> int:
    """A whole number of 0 or more in a JSON object; 0 where it is left out.

    Raises:
        Corrupt: it is none, or too large.
    """
    value = entry.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**NUMBER_DIGITS_MAX:
        raise Corrupt(f"cannot read {what}: {key} {shown(repr(value))} is no whole number of 0 or more")
    return value


def numa_member(entry: Mapping[str, object], key: str, what: str) -> int:
    """A NUMA node in a JSON object; 0 where it is left out, or -1, which both mean that nobody knows.

    Raises:
        Corrupt: it is none, or too large.
    """
    return 0 if entry.get(key) == -1 else integer_member(entry, key, what)


def flag_member(entry: Mapping[str, object], key: str, what: str) -> bool:
    """True or false in a JSON object; false where it is left out.

    Raises:
        Corrupt: it is neither.
    """
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise Corrupt(f"cannot read {what}: {key} {shown(repr(value))} is neither true nor false")
    return value


def shown(text: str) -> str:
    """A text as a message may show it: quoted, escaped, cut."""
    return repr(text if len(text) <= 64 else text[:64] + "…")


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is no JSON")
