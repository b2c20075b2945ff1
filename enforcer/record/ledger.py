"""What was meant, done and seen, written down before it happens: an append-only, hash-chained file of JSON lines.

The rollout and undo write it; resume, undo, verify and the pages read it. Each line holds the hash of the line before
it, and a small file beside it names the last line, so an edit, a removal or a cut is found out. A line that a crash
left half written was never acted on and is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fleet.errors import Corrupt, Unavailable
from fleet.units import format_time, parse_time

GENESIS = "0" * 64
"""What the first line is chained to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the ledger.

    Attributes:
        number: from 1, without gaps.
        sha256: hash of this line's content and of the line before.
    """

    number: int
    at: datetime
    event: str
    plan_id: str
    content: Mapping[str, Any]
    sha256: str


class Overtaken(Unavailable):
    """Another enforcer went on with what this one was at; waiting would not help: look at what it did, call again."""


class Ledger:
    """One ledger file.

    Args:
        path: the file; made with the first entry.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head_path = path.with_name(path.name + ".head")
        self._last: tuple[int, str, int] | None = None
        self._entries: list[Entry] = []

    def append(self, events: Sequence[tuple[str, Mapping[str, Any]]], *, plan_id: str, at: datetime) -> None:
        """Write entries, together and durable before this returns.

        Raises:
            Corrupt: the ledger was edited, or storage can't take more; then nothing may be done that was to be written.
        """
        number, sha256, length = self._tail()
        lines: list[bytes] = []
        entries: list[Entry] = []
        for event, content in events:
            number += 1
            body = {"number": number, "at": format_time(at), "event": event, "plan_id": plan_id, "content": content}
            sha256 = chained_hash(sha256, body)
            line = json.dumps({**body, "sha256": sha256}, ensure_ascii=False, separators=(",", ":"))
            lines.append(line.encode() + b"\n")
            entries.append(
                Entry(
                    number=number,
                    at=parse_time(format_time(at)),
                    event=event,
                    plan_id=plan_id,
                    content=json.loads(json.dumps(content)),
                    sha256=sha256,
                )
            )
        try:
            self._write(b"".join(lines), length)
            self._write_head(number, sha256)
        except OSError as exc:
            self._last = None
            raise Corrupt(f"cannot write ledger {self._path}: {exc.strerror}; nothing was changed") from exc
        self._entries += entries
        self._last = (number, sha256, length + sum(map(len, lines)))

    def entries(self, plan_id: str | None = None) -> tuple[Entry, ...]:
        """All entries, oldest first; of one plan where it is given.

        Raises:
            Corrupt: the ledger was edited.
        """
        self._tail()
        return tuple(entry for entry in self._entries if plan_id in (None, entry.plan_id))

    def rest(self) -> None:
        """Nothing is under way: a ledger that only follows another one may let go of what nobody needs now."""

    def verify(self) -> int:
        """Check the whole chain from the file; returns how many entries there are.

        Raises:
            Corrupt: a line was edited, moved or removed, with its number.
        """
        self._last = None
        return self._tail()[0]

    def _tail(self) -> tuple[int, str, int]:
        """Number and hash of the last entry, and the length of the sound part; read anew where the file grew."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            size = 0
        if self._last is None or self._last[2] != size:
            self._read()
        if self._last is None:
            raise AssertionError("a ledger that was read has an end")
        return self._last

    def _read(self) -> None:
        try:
            content = self._path.read_bytes() if self._path.exists() else b""
            head = json.loads(self._head_path.read_bytes()) if self._head_path.exists() else {"number": 0}
        except (OSError, ValueError) as exc:
            raise Corrupt(f"cannot read ledger {self._path}: {exc}") from exc
        lines = content.split(b"\n")
        # What follows the last line break is empty, or a line that a crash cut.
        sound = len(content) - len(lines[-1])
        sha256 = GENESIS
        entries: list[Entry] = []
        for number, line in enumerate(lines[:-1], start=1):
            entry = self._entry(number, line, sha256)
            sha256 = entry.sha256
            entries.append(entry)
            if number == head["number"] and head["sha256"] != sha256:
                raise Corrupt(f"cannot trust ledger {self._path}: entry {number} is not the one that was last written")
        if head["number"] > len(entries):
            raise Corrupt(
                f"cannot trust ledger {self._path}: it ends with entry {len(entries)}, but {head['number']} was written"
            )
        self._entries = entries
        self._last = (len(entries), sha256, sound)

    def _entry(self, number: int, line: bytes, previous: str) -> Entry:
        try:
            body = json.loads(line)
            sha256 = str(body.pop("sha256"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise Corrupt(f"cannot read ledger {self._path}: entry {number} is damaged") from exc
        if body.get("number") != number or sha256 != chained_hash(previous, body):
            raise Corrupt(f"cannot trust ledger {self._path}: entry {number} was edited, or one before it is missing")
        return Entry(
            number=number,
            at=parse_time(body["at"]),
            event=body["event"],
            plan_id=body["plan_id"],
            content=body["content"],
            sha256=sha256,
        )

    def _write(self, content: bytes, length: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self._path.exists()
        with self._path.open("r+b" if not is_new else "wb") as file:
            file.seek(length)
            file.truncate()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _write_head(self, number: int, sha256: str) -> None:
        temporary = self._head_path.with_name(self._head_path.name + ".new")
        temporary.write_text(json.dumps({"number": number, "sha256": sha256}) + "\n", encoding="utf-8")
        os.replace(temporary, self._head_path)


def chained_hash(previous: str, body: Mapping[str, Any]) -> str:
    """SHA-256 of an entry, which holds that of the entry before it."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256((previous + canonical).encode()).hexdigest()
