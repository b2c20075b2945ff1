"""Heads of ledgers, kept where somebody who may write the data folder can't: a file elsewhere, or the cluster.

A head names the last entry of a ledger and its hash, and so all entries before it. A ledger that was cut, made anew or
put back from a copy does not hold the entry that is anchored, which is found when it is opened next
(`enforcer.record.ledger`).
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fleet.durable import unwritable, write_durably
from fleet.errors import Corrupt, Refused
from fleet.json_text import json_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last entry of a ledger.

    Attributes:
        number: from 1; 0 where there is none.
        sha256: its hash.
    """

    number: int
    sha256: str


class Anchor(Protocol):
    """Keeps the heads of the ledgers of one data folder.

    Each call raises:
        Corrupt: what is kept can't be read, or storage can't take it.
        Unavailable: the place can't be reached.
        Misconfigured: a right is missing.
    """

    def heads(self) -> Mapping[str, Head]:
        """The heads that are anchored, by the ledger's name."""
        ...

    def move(self, name: str, before: Head, after: Head) -> None:
        """Anchor a new head, on the condition that what is anchored is not beyond the one before it.

        Raises:
            Refused: it is: the ledger is not the one that was anchored.
        """
        ...

    def accept(self, heads: Mapping[str, Head]) -> None:
        """Anchor these heads whatever was anchored: a person looked at the ledgers as they stand."""
        ...


class AnchorFile:
    """An anchor in a file outside the data folder, which several folders may share.

    Args:
        owner: the folder.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self._path, self._owner = path, owner

    def heads(self) -> Mapping[str, Head]:
        """See `Anchor`; none where there is no file yet."""
        return heads_of(self._content().get(self._owner, {}), str(self._path))

    def move(self, name: str, before: Head, after: Head) -> None:
        """See `Anchor`."""
        self._change({name: (before, after)})

    def accept(self, heads: Mapping[str, Head]) -> None:
        """See `Anchor`."""
        self._change({name: (None, head) for name, head in heads.items()})

    def _change(self, moves: Mapping[str, tuple[Head | None, Head]]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.with_name(self._path.name + ".lock").open("a", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                content = self._content()
                content[self._owner] = moved(content.get(self._owner, {}), moves, str(self._path))
                write_durably(self._path, json.dumps(content, indent=1, sort_keys=True).encode())
        except OSError as exc:
            raise unwritable(self._path, exc, knob="enforcer.ledger_anchor_file") from exc

    def _content(self) -> dict[str, Any]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise Corrupt(f"cannot read enforcer.ledger_anchor_file={self._path}: {exc.strerror}") from exc
        return anchors_of(content, f"enforcer.ledger_anchor_file={self._path}")


def anchors_of(content: bytes | str, place: str) -> dict[str, Any]:
    """What is anchored of each data folder, from the JSON that a place keeps.

    Raises:
        Corrupt: it is no such JSON.
    """
    try:
        found = json_value(content)
    except ValueError as exc:
        raise Corrupt(f"cannot read {place}: it is damaged: {exc}") from exc
    if not isinstance(found, dict):
        raise Corrupt(f"cannot read {place}: it holds no anchors")
    return found


def heads_of(content: Any, place: str) -> dict[str, Head]:
    """Heads by ledger, from `{ledger: [number, hash]}`.

    Raises:
        Corrupt: it is nothing like that.
    """
    found = {name: head_of(one) for name, one in content.items()} if isinstance(content, dict) else {"": None}
    heads = {name: head for name, head in found.items() if head is not None}
    if len(heads) < len(found):
        raise Corrupt(f"cannot read the anchored heads in {place}: they are damaged")
    return heads


def head_of(content: Any) -> Head | None:
    """A head from `[number, hash]`; None where that is none."""
    number, sha256 = content if isinstance(content, list) and len(content) == 2 else (None, None)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0 or not isinstance(sha256, str):
        return None
    return Head(number=number, sha256=sha256)


def moved(content: Any, moves: Mapping[str, tuple[Head | None, Head]], place: str) -> dict[str, list[Any]]:
    """What is to be kept once heads were moved: each from one that may not be behind what is kept.

    Raises:
        Refused: what is kept is beyond that, or another head.
        Corrupt: what is kept is damaged.
    """
    heads = heads_of(content, place)
    for name, (before, after) in moves.items():
        known = heads.get(name)
        is_other = known is not None and before is not None and (
            known.number > before.number or (known.number == before.number and known.number and known != before)
        )  # fmt: skip
        if is_other:
            raise Refused(f"cannot anchor entry {after.number} of {name} in {place}: the head there is another one")
        heads[name] = after
    return {name: [head.number, head.sha256] for name, head in sorted(heads.items())}
