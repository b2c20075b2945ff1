"""What the agent did, as lines of JSON on the node: durable, bounded, oldest first.

Two files: when the newer one is full it becomes the older one, and what the older one held is gone. Whoever asks why a
pod slept or went finds the figures here.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fleet.durable import unwritable
from fleet.units import format_time

FILE_BYTES_MAX = 8 << 20


class Acts:
    """One node's record of acts; several threads may write.

    Args:
        path: the newer file; made with the first act. The older one has `.1` behind its name.
        bytes_max: size at which a file is full, bytes.
    """

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._turn = threading.Lock()
        self._is_begun = False

    def write(self, at: datetime, act: str, **figures: Any) -> None:
        """One act, durable before this returns.

        Raises:
            Corrupt: storage can't take it.
        """
        line = json.dumps({"at": format_time(at), "act": act, **figures}, sort_keys=True, separators=(",", ":"))
        try:
            with self._turn:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if self._path.exists() and self._path.stat().st_size + len(line) >= self._bytes_max:
                    self._path.replace(self._path.with_name(self._path.name + ".1"))
                with self._path.open("ab") as file:
                    # A line that a crash left half written must not take this one with it.
                    begin = b"\n" if not self._is_begun and file.tell() else b""
                    file.write(begin + line.encode() + b"\n")
                    self._is_begun = True
                    file.flush()
                    os.fdatasync(file.fileno())
        except OSError as exc:
            raise unwritable(self._path, exc) from exc

    def read(self) -> tuple[Mapping[str, Any], ...]:
        """All acts that are kept, oldest first; a line that a crash left half written is left out."""
        found: list[Mapping[str, Any]] = []
        for path in (self._path.with_name(self._path.name + ".1"), self._path):
            if path.exists():
                for line in path.read_bytes().splitlines():
                    try:
                        found.append(json.loads(line))
                    except ValueError:
                        continue
        return tuple(found)
