"""Planes of a large usage grid in files: each is mapped when it is asked for, and costs memory only while it is used.

A plan asks for the usage of a fleet once, to make its own tables of it. Called by `gputide.container.parts`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from fleet.durable import unwritable
from fleet.schema import Measure
from fleet.usage import Float32

_BYTES_AT_ONCE = 2**22


class StoredPlanes(Mapping[Measure, Float32]):
    """One table of numbers per measure, (rows, steps); mutable: filled part by part. Its files have no name.

    Args:
        folder: on a disk with room for all of them.
        rows: rows of every table.
        steps: columns of every table.
    """

    def __init__(self, folder: Path, rows: int, steps: int) -> None:
        self._folder, self._shape = folder, (rows, steps)
        self._files: dict[Measure, IO[bytes]] = {}

    def __getitem__(self, measure: Measure) -> Float32:
        """The table as it is now; what is written into it is in memory alone."""
        return self._mapped(self._files[measure], mmap.ACCESS_COPY)

    def __iter__(self) -> Iterator[Measure]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def put(self, measure: Measure, rows: Sequence[int], values: Float32) -> None:
        """Writes rows of one table, of which a row that is never written is NaN.

        Raises:
            Corrupt: the folder can't be written.
        """
        if measure not in self._files:
            self._files[measure] = self._made()
        self._mapped(self._files[measure], mmap.ACCESS_WRITE)[np.array(rows, np.int64)] = values

    def _made(self) -> IO[bytes]:
        """A table of NaN, whose room on the disk is taken."""
        left = self._shape[0] * self._shape[1] * 4
        nothing = np.full(_BYTES_AT_ONCE // 4, np.nan, np.float32).tobytes()
        try:
            file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with what it is mapped by
            while left > 0:
                left -= file.write(nothing[:left])
            file.flush()
        except OSError as exc:
            raise unwritable(self._folder, exc) from exc
        return file

    def _mapped(self, file: IO[bytes], access: int) -> Float32:
        if not (self._shape[0] and self._shape[1]):
            return np.empty(self._shape, np.float32)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=access), np.float32).reshape(self._shape)
