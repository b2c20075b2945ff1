"""A file of header fields for requests, one `NAME: VALUE` a line: what a proxy or a collector wants to see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fleet.errors import Misconfigured

_FILE_BYTES_MAX = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_VALUE = re.compile(r"[\x20-\x7e]{0,4096}", re.ASCII)
_OWN = ("host", "content-length", "content-type", "transfer-encoding", "connection")


def checked_headers(pairs: Iterable[tuple[str, str]], *, setting: str) -> Iterator[tuple[str, str]]:
    """Header fields that a request may carry.

    Args:
        setting: dotted name of what names them, for messages.

    Raises:
        Misconfigured: HTTP does not allow one, or it is the program's own.
    """
    for name, value in pairs:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Misconfigured(f"cannot use header {name[:100]!r} of {setting}: not what HTTP allows")
        if name.lower() in _OWN:
            raise Misconfigured(f"cannot use header {name!r} of {setting}: it is the program's own")
        yield name, value


def header_lines(path: Path, *, setting: str) -> Iterator[tuple[str, str]]:
    """The fields in a file, not yet checked.

    Raises:
        Misconfigured: it can't be read, or a line has no colon.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"cannot read {setting}={path}: {exc}") from exc
    for line in filter(str.strip, text.splitlines()):
        name, sign, value = line.partition(":")
        if not sign:
            raise Misconfigured(f"cannot use {setting}={path}: expected lines such as X-Scope-OrgID: team")
        yield name.strip(), value.strip()
