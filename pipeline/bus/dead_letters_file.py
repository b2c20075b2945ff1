"""Records that can't be read, as files beside the file bus: `dead-letters/SOURCE-OFFSET.record` and a reason each.

The embedded rollup puts them there before the bus may drop them. A record that is put again, after a crash, meets the
file that is there.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from fleet.durable import sync_folder, unwritable, write_durably


class FileDeadLetters:
    """Dead letters in one folder, bounded.

    Args:
        folder: where they go, made with the first of them.
        files_max: records kept; further ones are only counted, so that a broken sender can't fill the disk.
    """

    def __init__(self, folder: Path, *, files_max: int = 10_000) -> None:
        self._folder = folder
        self._files_max = files_max
        self.dropped = 0
        """Records that were not kept because there are `files_max` already."""

    def put(self, payload: bytes, *, reason: str, source: str, offset: int) -> None:
        """Keeps one record; see `DeadLetters.put`."""
        record = self._folder / f"{source}-{offset:020d}.record"
        try:
            if not self._folder.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True)
                sync_folder(self._folder.parent)
            if record.exists():
                return
            if len(self) >= self._files_max:
                self.dropped += 1
                return
            told = {"source": source, "offset": offset, "reason": reason, "found_at": datetime.now(UTC).isoformat()}
            write_durably(record.with_suffix(".json"), json.dumps(told).encode())
            write_durably(record, payload)
        except OSError as exc:
            raise unwritable(self._folder, exc) from exc

    def __len__(self) -> int:
        return sum(1 for _ in self._folder.glob("*.record"))
