"""Passwords in files: the first line of a file that a setting names. Called by `kafka_client` and `hive_session`."""

from __future__ import annotations

from pathlib import Path

from fleet.errors import Misconfigured


def read_password(path: Path, *, setting: str) -> str:
    """The password in a file.

    Args:
        setting: what names it, for errors: `kafka.password_file`.

    Raises:
        Misconfigured: the file can't be read, or its first line is empty.
    """
    try:
        first = path.read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"cannot read {setting}={path}: {exc}") from exc
    if not first:
        raise Misconfigured(f"cannot use {setting}={path}: its first line is empty")
    return first
