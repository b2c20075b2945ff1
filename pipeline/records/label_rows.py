"""Distinct rows of label texts, numbered as they come: the identities of slices and cards, and the sightings.

`series_table` numbers rows, `rows` takes sets of them for a record of the bus. A row is kept as its texts' bytes, one
after another, each behind its length; Arrow columns are made of them on demand. Senders repeat their requests, so the
same set is asked for again and again: sets are remembered, with their bytes as they stand in a record.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import cramjam
import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from fleet.errors import Corrupt
from pipeline.remote_write.byte_words import address, load8, load32
from pipeline.remote_write.decode import TooLarge
from pipeline.remote_write.intern_table import InternTable

IDENTITY_BYTES_MAX = 1 << 28
"""Largest set of identities that is read back."""
SET_BYTES_MAX = 16 << 20
"""Largest set of one body; symbols that repeat let a small body stand for a large one."""
_REMEMBERED_PER_BYTE = 2
"""Bytes of remembered sets per byte of rows: in a steady state every row is in one set, whatever its size."""
_REMEMBERED_MIN = 1 << 20
_RECENT_MAX = 4096
"""Rows whose numbers are remembered besides, since series of one slice come together."""
_RECENT_BYTES_MAX = 1024
"""Longest such row."""
_PACKED_BYTES_MAX = 8 << 20
"""Bytes of sets that are remembered by what is in them: joined bodies name other ones each time, most lanes do not."""
_REMEMBERED_IDENTITIES_MAX = 4096
"""Most identities of a body, or of joined ones, whose parts are."""
_LENGTH = struct.Struct("<I")
_ZSTD_LEVEL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityParts:
    """A set of identities dealt out to parts.

    Attributes:
        part: which part each identity is in, shape (identities,).
        place: its place there, shape (identities,).
        counts: how many are in each part, shape (parts,).
        packed: those of each part as they stand in a record; empty where there are none.
    """

    part: NDArray[np.int64]
    place: NDArray[np.int32]
    counts: NDArray[np.int64]
    packed: tuple[bytes, ...]


class IdentitySet:
    """Some rows as Arrow columns.

    Attributes:
        batch: column `hash` (uint64), then the text columns.
    """

    __slots__ = ("_packed", "_parts", "batch")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._packed: bytes | None = None
        self._parts: tuple[int, IdentityParts] | None = None

    @property
    def packed(self) -> bytes:
        """The rows as they stand in a record; made once."""
        if self._packed is None:
            self._packed = pack_identities(self.batch)
        return self._packed

    def parts(self, count: int, part_of: Callable[[pa.RecordBatch, int], NDArray[np.int64]]) -> IdentityParts:
        """The identities dealt out; made once, since a set is dealt out in the same way each time.

        Args:
            count: number of parts; parts of the last count asked for are remembered.
            part_of: says which part each identity is in; the same for every call.
        """
        known = self._parts
        if known is None or known[0] != count:
            known = self._parts = (count, _dealt_out(self.batch, part_of(self.batch, count), count))
        return known[1]


class _PackedSet(NamedTuple):
    batch: pa.RecordBatch
    packed: bytes
    size: int


class _PackedSets:
    """Sets of identities with their bytes in a record; mutable: threads share it, and the longest unused ones go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _PackedSet] = OrderedDict()
        self._bytes = 0

    def packed(self, batch: pa.RecordBatch, hashes: bytes) -> bytes:
        """What `pack_identities` gives.

        Args:
            hashes: of the identities; sets are told apart by their texts as well.
        """
        with self._lock:
            known = self._known.get(hashes)
            if known is not None:
                self._known.move_to_end(hashes)
        if known is not None and known.batch.equals(batch):
            return known.packed
        # A copy: a cut batch holds the memory of the whole one, and its message some bytes of its neighbours.
        own = batch.take(pa.array(np.arange(batch.num_rows)))
        packed = pack_identities(own)
        kept = _PackedSet(own, packed, own.nbytes + len(packed))
        with self._lock:
            before = self._known.pop(hashes, None)
            self._bytes += kept.size - (0 if before is None else before.size)
            self._known[hashes] = kept
            while self._bytes > _PACKED_BYTES_MAX:
                self._bytes -= self._known.popitem(last=False)[1].size
        return packed


_PACKED = _PackedSets()


def _dealt_out(batch: pa.RecordBatch, part: NDArray[np.int64], count: int) -> IdentityParts:
    """Identities by their part.

    Few are put in order by their hash, so that the bytes of a part are the same in whatever order they come, and
    remembered. Many hardly come again, and take fewer bytes in the order of their rows.
    """
    hashes: NDArray[np.uint64] = batch.column("hash").to_numpy()
    is_remembered = len(part) <= _REMEMBERED_IDENTITIES_MAX
    order = np.lexsort((hashes, part)) if is_remembered else np.argsort(part, kind="stable")
    counts = np.bincount(part, minlength=count)
    starts = np.cumsum(counts) - counts
    place = np.empty(len(part), dtype=np.int32)
    place[order] = np.arange(len(part)) - np.repeat(starts, counts)
    spans = list(zip(starts.tolist(), (starts + counts).tolist(), strict=True))
    if not is_remembered:
        taken = (batch.take(pa.array(order[start:end])) for start, end in spans)
        packed = tuple(pack_identities(own) if own.num_rows else b"" for own in taken)
        return IdentityParts(part=part, place=place, counts=counts, packed=packed)
    texts = gathered_texts(text_places(batch)[np.newaxis], np.zeros(len(order), dtype=np.int32), order.astype(np.int32))
    sorted_out = batch_of_texts(hashes[order], texts, batch.schema)
    names = hashes[order].tobytes()
    packed = tuple(
        _PACKED.packed(sorted_out.slice(start, end - start), names[8 * start : 8 * end]) if end > start else b""
        for start, end in spans
    )
    return IdentityParts(part=part, place=place, counts=counts, packed=packed)


class LabelRows:
    """Distinct rows of text columns with a 64-bit hash each.

    Args:
        seed: start of the hashes by which rows are found; senders must not know it.
    """

    def __init__(self, names: tuple[str, ...], seed: int) -> None:
        self.names = names
        self._rows = InternTable(seed)
        self._hashes = np.empty(1024, dtype=np.uint64)
        self._stamp = np.zeros(1024, dtype=np.int32)
        self._place = np.zeros(1024, dtype=np.int32)
        self._serial = 0
        self._recent: dict[tuple[str, ...], int] = {}
        self._sets: OrderedDict[bytes, IdentitySet] = OrderedDict()
        self._remembered = 0
        self._schema = pa.schema([("hash", pa.uint64()), *((name, pa.string()) for name in names)])

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the rows take, reserves included, without those of remembered sets."""
        return self._rows.memory_bytes + self._hashes.nbytes + self._stamp.nbytes + self._place.nbytes

    @property
    def text_bytes(self) -> int:
        """Bytes of all texts."""
        return self._rows.arena_bytes

    def number_of(self, row: tuple[str, ...]) -> int:
        """The number of a row, a new one where it was never seen."""
        known = self._recent.get(row)
        if known is not None:
            return known
        key = label_bytes(row)
        data = np.frombuffer(key, dtype=np.uint8)
        number = int(self._rows.intern(data, np.array([0], dtype=np.int32), np.array([len(key)], dtype=np.int32))[0])
        if number == len(self._hashes):
            self._hashes, self._stamp, self._place = (
                np.concatenate((array, np.zeros(len(array) // 4, dtype=array.dtype)))
                for array in (self._hashes, self._stamp, self._place)
            )
        self._hashes[number] = _hash_of(key)
        if len(self._recent) >= _RECENT_MAX:
            self._recent.clear()
        if len(key) <= _RECENT_BYTES_MAX:
            self._recent[row] = number
        return number

    def keep(self, is_kept: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Forgets all other rows; see `InternTable.keep`. Sets that were taken stay as they are."""
        numbers = self._rows.keep(is_kept)
        self._hashes[: len(self._rows)] = self._hashes[: len(is_kept)][is_kept]
        self._stamp[:] = 0
        self._recent.clear()
        self._sets.clear()
        self._remembered = 0
        return numbers

    def scratch(self) -> tuple[int, NDArray[np.int32], NDArray[np.int32]]:
        """For `rows_kernels.pivot`: a number that was never given before, and two arrays with a place per row."""
        if self._serial == np.iinfo(np.int32).max:
            self._stamp[:] = 0
            self._serial = 0
        self._serial += 1
        return self._serial, self._stamp, self._place

    def take(self, numbers: NDArray[np.int32]) -> IdentitySet:
        """The rows with these numbers.

        Raises:
            TooLarge: together they pass `SET_BYTES_MAX`.
        """
        key = numbers.tobytes()
        known = self._sets.get(key)
        if known is not None:
            self._sets.move_to_end(key)
            return known
        starts = self._rows.starts
        size = int((starts[numbers + 1] - starts[numbers]).sum())
        if size > SET_BYTES_MAX:
            raise TooLarge(
                f"cannot take a body whose series name slices and cards with {size} bytes: more than {SET_BYTES_MAX}; "
                "let the sender put fewer series into one"
            )
        found = IdentitySet(self._batch(numbers))
        self._sets[key] = found
        self._remembered += found.batch.nbytes
        most = max(_REMEMBERED_MIN, _REMEMBERED_PER_BYTE * self.text_bytes)
        while self._remembered > most and len(self._sets) > 1:
            _, dropped = self._sets.popitem(last=False)
            self._remembered -= dropped.batch.nbytes
        return found

    def _batch(self, numbers: NDArray[np.int32]) -> pa.RecordBatch:
        found = _columns(self._rows.arena, self._rows.starts, numbers.astype(np.int64), len(self.names))
        return batch_of_texts(self._hashes[numbers], found, self._schema)


def batch_of_texts(hashes: NDArray[np.uint64], columns: tuple[Any, Any, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Identities as Arrow columns, without a copy.

    Args:
        columns: per text column offsets, int32, shape (columns, rows + 1); all bytes; first byte of each column.
        schema: column `hash`, then the text columns.
    """
    offsets, data, column_starts = columns
    texts = pa.py_buffer(data)
    arrays = [
        pa.StringArray.from_buffers(len(hashes), pa.py_buffer(offsets[column]), texts.slice(int(start)))
        for column, start in enumerate(column_starts[:-1])
    ]
    return pa.RecordBatch.from_arrays([pa.array(hashes), *arrays], schema=schema)


def text_places(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Where the texts of identities lie in memory, for compiled loops, while the batch is held.

    Returns:
        Shape (text columns, 2): address of the first row's offset (int32 each, one more than rows) and of the byte to
        which offset 0 points.
    """
    places = np.zeros((batch.num_columns - 1, 2), dtype=np.int64)
    for column in range(1, batch.num_columns):
        array = batch.column(column)
        _, offsets, data = array.buffers()
        places[column - 1] = offsets.address + 4 * array.offset, 0 if data is None else data.address
    return places


@njit(cache=True, nogil=True)
def gathered_texts(texts: Any, batch_of: Any, row_of: Any) -> Any:
    """Texts of some rows of some batches, as `batch_of_texts` takes them.

    Args:
        texts: (batches, columns, 2), see `text_places`.
        batch_of: (rows,) the batch of each.
        row_of: (rows,) its place there.
    """
    rows, columns = len(batch_of), texts.shape[1]
    offsets = np.zeros((columns, rows + 1), dtype=np.int32)
    column_starts = np.zeros(columns + 1, dtype=np.int64)
    for column in range(columns):
        for row in range(rows):
            at = texts[batch_of[row], column, 0] + 4 * row_of[row]
            offsets[column, row + 1] = offsets[column, row] + np.int32(load32(at + 4) - load32(at))
        column_starts[column + 1] = column_starts[column] + offsets[column, rows]
    data = np.empty(column_starts[columns], dtype=np.uint8)
    at = 0
    for column in range(columns):
        for row in range(rows):
            place, base = texts[batch_of[row], column]
            place += 4 * row_of[row]
            for byte in range(base + np.int64(load32(place)), base + np.int64(load32(place + 4))):
                data[at] = load8(byte)
                at += 1
    return offsets, data, column_starts


def label_bytes(row: tuple[str, ...]) -> bytes:
    """Texts one after another, each behind its length in bytes (u32, little-endian)."""
    parts = []
    for text in row:
        data = text.encode()
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)


def pack_identities(batch: pa.RecordBatch) -> bytes:
    """Identities as bytes: length u32, then zstd over the Arrow message of their record batch."""
    message = batch.serialize()
    return _LENGTH.pack(message.size) + bytes(cramjam.zstd.compress(message, _ZSTD_LEVEL))


def unpack_identities(packed: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """What `pack_identities` was given.

    Raises:
        Corrupt: the bytes are no identities of this schema.
    """
    try:
        (length,) = _LENGTH.unpack_from(packed)
        if length > IDENTITY_BYTES_MAX:
            raise Corrupt(f"cannot read identities that declare {length} bytes: more than {IDENTITY_BYTES_MAX}")
        plain = np.empty(length, dtype=np.uint8)
        written = cramjam.zstd.decompress_into(packed[_LENGTH.size :], plain.data)
        batch = pa.ipc.read_record_batch(pa.py_buffer(plain[:written]), schema)
        batch.validate(full=True)
    except (cramjam.DecompressionError, pa.ArrowException, OSError, struct.error, IndexError) as exc:
        raise Corrupt(f"cannot read identities of {len(packed)} bytes: {exc}") from exc
    if any(column.null_count for column in batch.columns):
        raise Corrupt("cannot read identities: a text is missing")
    if pa.ipc.get_record_batch_size(batch) != written:
        # Arrow leaves out what a shorter schema does not name: the record says another table than it is of.
        raise Corrupt("cannot read identities: they are of another shape")
    return batch


def _hash_of(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


@njit(cache=True, nogil=True)
def _columns(arena: Any, starts: Any, numbers: Any, columns: int) -> Any:
    """Texts of some rows, column by column: offsets (columns, rows + 1), bytes, first byte of each column."""
    base, rows = address(arena), len(numbers)
    offsets = np.zeros((columns, rows + 1), dtype=np.int32)
    for row in range(rows):
        at = base + starts[numbers[row]]
        for column in range(columns):
            size = np.int64(load32(at))
            offsets[column, row + 1] = offsets[column, row] + size
            at += 4 + size
    column_starts = np.zeros(columns + 1, dtype=np.int64)
    for column in range(columns):
        column_starts[column + 1] = column_starts[column] + offsets[column, rows]
    data = np.empty(column_starts[columns], dtype=np.uint8)
    for row in range(rows):
        at = starts[numbers[row]]
        for column in range(columns):
            start = column_starts[column] + offsets[column, row]
            size = offsets[column, row + 1] - offsets[column, row]
            data[start : start + size] = arena[at + 4 : at + 4 + size]
            at += 4 + size
    return offsets, data, column_starts
