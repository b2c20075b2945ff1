"""What was meant, done and seen, written down before it happens: an append-only, hash-chained file of JSON lines.

The rollout and undo write it; resume, undo, verify and the pages read it. Each line holds the hash of the line before
it, and a small file beside it names the last line, so an edit, a removal or a cut is found out. Somebody who may write
all of the folder can make all of it anew: with a key that lies elsewhere each line carries a mark that only the key
makes, and an anchor outside the folder (`enforcer.record.anchor`) names a line that must be there. A line that a crash
left half written was never acted on and is dropped; a head that a power cut emptied is made again from the chain.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from enforcer.record.anchor import Anchor, AnchorFile, Head, head_of
from enforcer.record.entry_shapes import check_content, moment_of, shapes_of
from fleet.data_folder import DataFolder
from fleet.durable import sync_folder, write_durably
from fleet.errors import Corrupt, GputideError, Unavailable
from fleet.json_text import as_stored, json_value
from fleet.logs import logger
from fleet.units import format_time, parse_time

GENESIS = "0" * 64
"""What the first line is chained to."""

_log = logger("enforcer.record.ledger")


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
        key: what marks its lines; None for lines without a mark, and to read them without looking at their marks.
        anchor: where its head is kept besides, None for nowhere.
    """

    def __init__(self, path: Path, *, key: bytes | None = None, anchor: Anchor | None = None) -> None:
        self._path = path
        self._key = key
        self._anchor = anchor
        self._unmarked = 0
        self._shapes = shapes_of(path.name)
        self._head_path = path.with_name(path.name + ".head")
        self._last: tuple[int, str, int] | None = None
        self._entries: list[Entry] = []

    def append(self, events: Sequence[tuple[str, Mapping[str, Any]]], *, plan_id: str, at: datetime) -> None:
        """Write entries, together and durable before this returns.

        Raises:
            Corrupt: the ledger was edited, or storage can't take more; then nothing may be done that was to be written.
        """
        number, sha256, length = self._tail()
        before = Head(number=number, sha256=sha256)
        lines: list[bytes] = []
        entries: list[Entry] = []
        for event, content in events:
            number += 1
            stored = as_stored(content)
            body = {"number": number, "at": format_time(at), "event": event, "plan_id": plan_id, "content": stored}
            sha256 = chained_hash(sha256, body)
            line = json.dumps(
                {**body, "sha256": sha256, **self._mark(sha256)}, ensure_ascii=False, separators=(",", ":")
            )
            lines.append(line.encode() + b"\n")
            entries.append(
                Entry(
                    number=number,
                    at=parse_time(format_time(at)),
                    event=event,
                    plan_id=plan_id,
                    content=stored,
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
        if self._anchor is not None:
            try:
                self._anchor.move(self.name, before, Head(number=number, sha256=sha256))
            except GputideError as exc:
                _log.warning("head of a ledger is not anchored", ledger=str(self._path), why=str(exc))

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

    @property
    def name(self) -> str:
        """Name of the file, under which its head is anchored."""
        return self._path.name

    @property
    def unmarked(self) -> int:
        """How many entries, from the first on, were written without the key; 0 where there is none."""
        self._tail()
        return self._unmarked

    def head(self) -> Head:
        """The last entry; number 0 where there is none. Raises as `entries`."""
        number, sha256, _ = self._tail()
        return Head(number=number, sha256=sha256)

    def check(self, anchored: Head | None) -> None:
        """Nothing, where the chain holds an entry that was anchored.

        Raises:
            Corrupt: it does not, or was edited.
        """
        self._tail()
        self._check_anchored(anchored)

    def _check_anchored(self, anchored: Head | None) -> None:
        entries = self._entries
        if anchored is None or anchored.number == 0:
            return
        if anchored.number > len(entries):
            raise Corrupt(
                f"cannot trust ledger {self._path}: it ends with entry {len(entries)}, but entry {anchored.number} is "
                "anchored outside the folder; `gputide admin ledger verify` says more"
            )
        if entries[anchored.number - 1].sha256 != anchored.sha256:
            raise Corrupt(
                f"cannot trust ledger {self._path}: entry {anchored.number} is not the one that is anchored outside "
                "the folder; `gputide admin ledger verify` says more"
            )

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
        # The anchor first: what is written meanwhile only makes the chain longer.
        anchored = None if self._anchor is None else self._anchor.heads().get(self.name)
        try:
            content = self._path.read_bytes() if self._path.exists() else b""
            head = self._read_head()
        except OSError as exc:
            raise Corrupt(f"cannot read ledger {self._path}: {exc}") from exc
        lines = content.split(b"\n")
        # What follows the last line break is empty, or a line that a crash cut.
        sound = len(content) - len(lines[-1])
        sha256, self._unmarked = GENESIS, 0
        entries: list[Entry] = []
        for number, line in enumerate(lines[:-1], start=1):
            entry = self._entry(number, line, sha256)
            sha256 = entry.sha256
            entries.append(entry)
            if head is not None and number == head.number and head.sha256 != sha256:
                raise Corrupt(f"cannot trust ledger {self._path}: entry {number} is not the one that was last written")
        if head is not None and head.number > len(entries):
            raise Corrupt(
                f"cannot trust ledger {self._path}: it ends with entry {len(entries)}, but {head.number} was written"
            )
        self._entries = entries
        self._last = (len(entries), sha256, sound)
        try:
            self._check_anchored(anchored)
        except Corrupt:
            self._last = None
            raise
        if head is None and entries:
            self._mend_head(len(entries), sha256)

    def _read_head(self) -> Head | None:
        """What the file beside the ledger names as its last line; None where it is missing, empty or torn."""
        try:
            found = json_value(self._head_path.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return head_of([found.get("number"), found.get("sha256")]) if isinstance(found, dict) else None

    def _mend_head(self, number: int, sha256: str) -> None:
        _log.warning(
            "head of a ledger was missing or torn, and is made again from the chain",
            ledger=str(self._path), entries=number,
        )  # fmt: skip
        with suppress(Corrupt):  # a folder that can only be read
            self._write_head(number, sha256)

    def _mark(self, sha256: str) -> dict[str, str]:
        """What only the key makes of a line; it names the ledger, so that no other takes its place."""
        if self._key is None:
            return {}
        return {"mark": hmac.new(self._key, f"{self.name} {sha256}".encode(), hashlib.sha256).hexdigest()}

    def _check_mark(self, number: int, sha256: str, mark: object) -> None:
        if self._key is None:
            return
        if mark is None and self._unmarked == number - 1:
            # Written before there was a key.
            self._unmarked = number
        elif not hmac.compare_digest(str(mark).encode(), self._mark(sha256)["mark"].encode()):
            raise Corrupt(f"cannot trust ledger {self._path}: entry {number} was not written with the key of this one")

    def _entry(self, number: int, line: bytes, previous: str) -> Entry:
        try:
            body = json_value(line)
        except ValueError as exc:
            raise Corrupt(f"cannot read ledger {self._path}: entry {number} is damaged") from exc
        sha256, mark = (body.pop("sha256", None), body.pop("mark", None)) if isinstance(body, dict) else (None, None)
        if not isinstance(sha256, str):
            raise Corrupt(f"cannot read ledger {self._path}: entry {number} is damaged")
        if body.get("number") != number or sha256 != chained_hash(previous, body):
            raise Corrupt(f"cannot trust ledger {self._path}: entry {number} was edited, or one before it is missing")
        self._check_mark(number, sha256, mark)
        at, event, plan_id, content = (body.get(name) for name in ("at", "event", "plan_id", "content"))
        if not (isinstance(at, str) and isinstance(event, str) and isinstance(plan_id, str)):
            raise Corrupt(f"cannot read ledger {self._path}: entry {number} is damaged")
        if not isinstance(content, dict):
            raise Corrupt(f"cannot read ledger {self._path}: entry {number} is damaged")
        try:
            check_content(self._shapes, event, content)
            return Entry(
                number=number, at=moment_of(at), event=event, plan_id=plan_id, content=content, sha256=sha256
            )  # fmt: skip
        except Corrupt as exc:
            raise Corrupt(f"cannot read ledger {self._path}: entry {number} is damaged: {exc}") from exc

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
            sync_folder(self._path.parent)

    def _write_head(self, number: int, sha256: str) -> None:
        write_durably(self._head_path, (json.dumps({"number": number, "sha256": sha256}) + "\n").encode())


def chained_hash(previous: str, body: Mapping[str, Any]) -> str:
    """SHA-256 of an entry, which holds that of the entry before it."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256((previous + canonical).encode()).hexdigest()


def ledgers_of(folder: DataFolder) -> tuple[Ledger, ...]:
    """The ledgers of a data folder, whether there is anything in them or not."""
    paths = (folder.ledger, folder.freezes, folder.tide, folder.relief, folder.requests)
    return tuple(ledger_at(folder, path) for path in paths)


def ledger_at(folder: DataFolder, path: Path) -> Ledger:
    """A ledger of a data folder, with the key and the anchor that its settings name."""
    return Ledger(path, key=folder.ledger_key, anchor=anchor_of(folder))


def anchor_of(folder: DataFolder) -> AnchorFile | None:
    """Where the heads of a data folder's ledgers are kept by its settings; None for nowhere."""
    return None if folder.anchor_file is None else AnchorFile(folder.anchor_file, str(folder.path.resolve()))
