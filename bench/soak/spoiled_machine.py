"""A disk that is slow or full and a clock that is wrong, for chosen processes alone: `spoiled.c`, built and steered.

Every process of the soak that is ours is started with `environ`; what `disk` and `clock` say holds from its next call
of the C library on, Python's own and those of its compiled parts alike.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

from fleet.errors import Unavailable

_NUMBERS = struct.Struct("<4i")
_SOURCE = Path(__file__).with_name("spoiled.c")


class SpoiledMachine:
    """Control of the disk and the clock that some processes see.

    Args:
        folder: for the library and its control file.

    Raises:
        Unavailable: there is no C compiler, or it refuses the source.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise Unavailable("cannot spoil a disk: no C compiler (gcc or cc) is on PATH")
        library, self._control = folder / "spoiled.so", folder / "spoiled"
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise Unavailable(f"cannot spoil a disk: {compiler} refuses {_SOURCE.name}: {built.stderr.strip()}")
        self._control.write_bytes(bytes(_NUMBERS.size))
        with self._control.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _NUMBERS.size)
        self._is_full, self._slowness, self._clock_seconds = False, 0, 0
        self.environ = {"LD_PRELOAD": str(library), "GPUTIDE_SPOILED": str(self._control)}

    def disk(self, *, is_full: bool = False, flush_milliseconds: int = 0) -> None:
        """Make every write fail for want of room, and every flush take longer (a write a thousandth of that)."""
        self._is_full, self._slowness = is_full, flush_milliseconds
        self._tell()

    def clock(self, *, wrong_by_seconds: int) -> None:
        """Step the wall clock."""
        self._clock_seconds = wrong_by_seconds
        self._tell()

    def _tell(self) -> None:
        # A thousandth of a flush's milliseconds is as many microseconds.
        told = _NUMBERS.pack(self._is_full, self._slowness, self._slowness, self._clock_seconds)
        self._mapped[:] = told
