"""A lane of the bus as segment files in one folder: for one machine, and as the double of a real bus in tests.

Records are appended to the newest segment and fsynced before an append returns; threads that append at once share one
fsync. A segment is named by the offset of its first byte, so offsets are places in one endless file, and whole segments
are dropped once they are committed. Receiver and rollup may be two processes: one writes, one reads.

A record: length u32, CRC-32 u32 of length and payload, payload. A tail that was torn by a crash is cut off when the
writer opens the folder, and kept beside under `torn-…` (it was never acknowledged). Damage anywhere else costs the rest
of its segment, which a reader passes over and counts. A record whose content can't be read becomes a dead letter
(`dead-letters/SOURCE-OFFSET.record` and its reason beside it), which the embedded rollup writes before the bus may drop
the record; one that is written again, after a crash, meets the file that is there.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from fleet.durable import FolderLock, check_stamp, sync_folder, unwritable, write_durably
from fleet.errors import Corrupt
from pipeline.bus.bus import BusFull, Chunk, RecordTooLarge

_HEAD = struct.Struct("<II")
_SEGMENT = "segment-"
_COMMITTED = "committed"


class FileBus:
    """One lane in a folder; as a writer it is a bus of this one lane (several receivers write a folder each).

    The right to write is taken by the first append and the right to commit by the first commit, so that a receiver and
    a rollup can share the folder; each right has one holder.

    Args:
        folder: where it lies, made where it is missing.
        segment_bytes: size at which a segment is closed (`bus.segment_bytes`).
        bytes_max: most bytes of all segments (`bus.bytes_max`).
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        bytes_max: int,
        crash_point: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._bytes_max = bytes_max
        self._crash_point = crash_point
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise unwritable(folder, exc) from exc
        self.source = check_stamp(folder, new_fields={"bus": uuid.uuid4().hex})["bus"]
        self._write_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._writer: FolderLock | None = None
        self._committer: FolderLock | None = None
        self._file = -1
        self._segment_start = self._end = self._durable_end = 0
        self._older_bytes = 0
        self._failed: str | None = None

    def take_writing(self) -> None:
        """Takes the right to write now instead of with the first append.

        Raises:
            Unavailable: another process holds it, with its id.
            Corrupt: the folder can't be written.
        """
        with self._write_lock:
            if self._writer is None:
                self._begin_writing()

    @property
    def lanes(self) -> int:
        """One; see `BusWriter.lanes`."""
        return 1

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        """Takes records, all of them for the one lane; see `BusWriter.append_all`."""
        for payload in payloads.values():
            self.append(payload)

    def append(self, payload: bytes) -> int:
        """Takes a record; see `Bus.append`."""
        head = _HEAD.pack(len(payload), _crc(payload))
        with self._write_lock:
            self._check_room(len(head) + len(payload))
            if self._end - self._segment_start >= self._segment_bytes:
                with self._sync_lock:
                    self._sync()
                    self._begin_segment()
            before = self._end
            try:
                self._crash_point("before write")
                _write_all(self._file, (head, payload))
                self._crash_point("after write")
            except OSError as exc:
                self._cut_back(before)
                raise unwritable(self._folder, exc) from exc
            self._end = end = before + len(head) + len(payload)
        with self._sync_lock:
            if self._durable_end < end:
                self._sync()
        return end

    def read(self, start: int, *, bytes_max: int) -> Chunk | None:
        """The durable records from an offset on; see `Bus.read`."""
        records: list[bytes] = []
        ends: list[int] = []
        first, taken, end, corrupt = start, 0, start, 0
        segments = self._segments()
        for segment in segments:
            if segment.end <= end:
                continue
            size = self._durable_size(segment)
            at = max(end, segment.start)
            if at >= segment.start + size:
                continue
            if not records:
                first = at
            # What another process is writing this very moment is no damage: it is read once it is whole.
            is_growing = self._writer is None and segment is segments[-1]
            with segment.path.open("rb") as file:
                file.seek(at - segment.start)
                for payload, length in _records(file.read, segment.start + size - at):
                    if payload is None:
                        if not is_growing:
                            corrupt += 1
                            end = segment.start + size
                        break
                    if records and taken + len(payload) > bytes_max:
                        return self._chunk(first, end, records, ends, corrupt)
                    at += length
                    end = at
                    taken += len(payload)
                    records.append(payload)
                    ends.append(end)
        return self._chunk(first, end, records, ends, corrupt) if end > first else None

    def _chunk(self, first: int, end: int, records: list[bytes], ends: list[int], corrupt: int) -> Chunk:
        return Chunk(
            source=self.source, start=first, end=end, records=tuple(records), ends=tuple(ends), corrupt=corrupt
        )

    def commit(self, offset: int) -> None:
        """Records the offset, then drops segments that lie wholly before it; see `Bus.commit`."""
        if self._committer is None:
            self._committer = FolderLock(self._folder, "committer")
        if offset <= self.committed():
            return
        self._crash_point("before commit")
        write_durably(self._folder / _COMMITTED, f"{offset}\n".encode())
        self._crash_point("after commit")
        segments = self._segments()
        for segment, following in pairwise(segments):
            if following.start <= offset:
                segment.path.unlink(missing_ok=True)

    def committed(self) -> int:
        """The offset of the last commit, 0 where there is none."""
        path = self._folder / _COMMITTED
        try:
            return int(path.read_text())
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as exc:
            raise Corrupt(f"cannot read {path}: {exc}") from exc

    def close(self) -> None:
        """Gives up both rights; what was acknowledged is durable already."""
        with self._write_lock, self._sync_lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            for lock in (self._writer, self._committer):
                if lock is not None:
                    lock.release()
            self._writer = self._committer = None

    @property
    def bytes_held(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments())

    @property
    def waiting_bytes(self) -> int:
        """Bytes behind the last commit: what the rollup has not taken in."""
        segments = self._segments()
        return max(0, segments[-1].end - self.committed()) if segments else 0

    @property
    def written_seconds(self) -> float | None:
        """When a record was last written, by the machine's clock, epoch seconds; None where none lies here."""
        times = []
        for segment in self._segments():
            try:
                times.append(segment.path.stat().st_mtime)
            except FileNotFoundError:
                continue  # dropped by a commit this very moment
        return max(times, default=None)

    def _check_room(self, more: int) -> None:
        if more > self._bytes_max:
            raise RecordTooLarge(
                f"cannot take a record of {more} bytes: more than bus.bytes_max={self._bytes_max} may ever wait"
            )
        if self._failed is not None:
            raise Corrupt(self._failed)
        if self._writer is None:
            self._begin_writing()
        elif self._file < 0:
            self._begin_segment()
        held = self._older_bytes + self._end - self._segment_start
        if held + more > self._bytes_max:
            self._older_bytes = self.bytes_held - (self._end - self._segment_start)
            held = self.bytes_held
        if held + more > self._bytes_max:
            raise BusFull(
                f"cannot take a record of {more} bytes: the bus is full, {held} of bus.bytes_max={self._bytes_max} "
                "bytes wait for the rollup"
            )

    def _begin_writing(self) -> None:
        writer = FolderLock(self._folder, "writer")
        try:
            self._open_last_segment()
        except Corrupt:
            writer.release()
            raise
        self._writer = writer

    def _open_last_segment(self) -> None:
        segments = self._segments()
        # The rollup may know of more than a crash has left: offsets that were given once are never given again.
        floor = self.committed()
        if not segments or segments[-1].end < floor:
            self._end = max(floor, segments[-1].end if segments else 0)
            self._begin_segment()
            return
        last = segments[-1]
        try:
            with last.path.open("rb") as file:
                whole = sum(length for payload, length in _records(file.read, last.size) if payload is not None)
                if whole < last.size:
                    file.seek(whole)
                    write_durably(self._folder / f"torn-{last.start + whole:020d}", file.read())
            self._file = os.open(last.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.ftruncate(self._file, whole)
            os.fsync(self._file)
        except OSError as exc:
            raise unwritable(last.path, exc) from exc
        self._segment_start, self._end = last.start, last.start + whole
        self._durable_end = self._end
        self._older_bytes = self.bytes_held - whole

    def _begin_segment(self) -> None:
        path = self._folder / f"{_SEGMENT}{self._end:020d}"
        try:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            sync_folder(self._folder)
        except OSError as exc:
            # Nothing of it is acknowledged: the next append tries anew.
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            self._segment_start = self._durable_end = self._end
            raise unwritable(path, exc) from exc
        self._segment_start = self._durable_end = self._end
        self._older_bytes = self.bytes_held

    def _sync(self) -> None:
        target = self._end
        try:
            self._crash_point("before sync")
            os.fdatasync(self._file)
            self._crash_point("after sync")
        except OSError as exc:
            # After a failed fsync the kernel may have dropped the pages: nothing can be said of them any more.
            self._failed = (
                f"cannot make bus {self._folder} durable: {exc.strerror or exc}; restart when storage is back"
            )
            raise Corrupt(self._failed) from exc
        self._durable_end = target

    def _cut_back(self, end: int) -> None:
        try:
            os.ftruncate(self._file, end - self._segment_start)
        except OSError as exc:
            self._failed = f"cannot cut half a record from bus {self._folder}: {exc.strerror or exc}; restart"

    def _segments(self) -> list[_Segment]:
        found = []
        for path in self._folder.glob(f"{_SEGMENT}*"):
            try:
                found.append(_Segment(path, int(path.name.removeprefix(_SEGMENT)), path.stat().st_size))
            except (ValueError, FileNotFoundError):
                continue  # no name of ours, or dropped by a commit this very moment
        return sorted(found, key=lambda segment: segment.start)

    def _durable_size(self, segment: _Segment) -> int:
        if self._writer is not None:
            return max(0, min(segment.end, self._durable_end) - segment.start)
        # Another process writes: what is read here must not vanish with the machine after it was rolled up.
        handle = os.open(segment.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return segment.size


class _Segment:
    __slots__ = ("path", "size", "start")

    def __init__(self, path: Path, start: int, size: int) -> None:
        self.path, self.start, self.size = path, start, size

    @property
    def end(self) -> int:
        return self.start + self.size


def _records(read: Callable[[int], bytes], size: int) -> Iterator[tuple[bytes | None, int]]:
    """Payload and whole length of each record; a payload of None, once and last, where the rest can't be read."""
    while size > 0:
        head = read(_HEAD.size)
        if len(head) < _HEAD.size:
            yield None, 0
            return
        length, crc = _HEAD.unpack(head)
        if length > size - _HEAD.size:
            yield None, 0
            return
        payload = read(length)
        if len(payload) < length or _crc(payload) != crc:
            yield None, 0
            return
        size -= _HEAD.size + length
        yield payload, _HEAD.size + length


def _crc(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))


def _write_all(file: int, parts: tuple[bytes, ...]) -> None:
    written = os.writev(file, parts)
    if written < sum(map(len, parts)):
        pending = memoryview(b"".join(parts))[written:]
        while pending:
            pending = pending[os.write(file, pending) :]


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
