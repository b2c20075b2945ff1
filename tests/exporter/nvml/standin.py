"""The stand-in for NVIDIA's library: builds it, loads it, and writes the world that it plays."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent
DATA_VARIABLE = "NVML_STANDIN_DATA"
GIB = 1024**3

H100 = {"name": "NVIDIA H100 80GB HBM3", "total": 80 * GIB, "used": 10 * GIB, "reserved": GIB, "arch": 9}
A100 = {"name": "NVIDIA A100-SXM4-40GB", "total": 40 * GIB, "used": 6 * GIB, "reserved": GIB, "arch": 7}
T4 = {"name": "Tesla T4", "total": 15 * GIB, "used": GIB, "reserved": 0, "arch": 5}

GPM = {1: 55, 2: 40, 3: 25, 5: 30, 10: 20, 11: 0, 12: 5, 13: 1, 20: 100, 21: 200, 30: 10, 31: 30, 60: 7, 61: 9}
"""Metrics as an H100 gives them: percent, and MiB/s for links."""

FIELDS = {
    1: 1, 3: 5, 4: 1, 5: 50, 6: 2, 29: 0, 30: 0, 31: 0, 38: 3, 45: 4, 52: 5, 59: 6, 74: 2_000_000_000, 75: 0, 76: 0,
    77: 0, 79: 0, 82: 61, 83: 123_456_000, 94: 8, 138: 1024, 139: 2048, 142: 1, 143: 2, 144: 0, 145: 0,
    197: 10**12, 198: 2 * 10**12,
}  # fmt: skip
"""Field values as an H100 gives them, by id."""


@cache
def library_file(*, is_old: bool = False) -> Path:
    """The stand-in, compiled once per process; skips where there is no C compiler, and fails so under CI."""
    compiler = shutil.which(os.environ.get("CC", "")) or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail("no C compiler on PATH: the stand-in for libnvidia-ml.so.1 can't be built; CC names another")
        pytest.skip("no C compiler on PATH: the stand-in for libnvidia-ml.so.1 can't be built; CC names another")
    folder = Path(tempfile.mkdtemp(prefix="nvml-standin-"))
    built = folder / "libnvidia-ml.so.1"
    flags = ["-O0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{built.name}"]
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    subprocess.run(
        [compiler, *flags, *(["-DOLD_DRIVER"] if is_old else []), "-o", str(built), *sources], check=True, timeout=120
    )
    return built


class StandInWorld:
    """What the stand-in plays: written to a file, and read by it again whenever it changes.

    Args:
        file: the file.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._system: dict[str, object] = {}
        self._cards: list[dict[str, object]] = []
        self._lines: list[str] = []

    def system(self, **values: object) -> "StandInWorld":
        """Says what the driver is; `generation` counts its starts."""
        self._system.update(values)
        return self

    def card(self, number: int | None = None, /, **values: object) -> "StandInWorld":
        """Adds a card, or changes the one of that number."""
        if number is None:
            index = len(self._cards)
            self._cards.append({"uuid": uuid(index), "bus": f"0000:{index + 1:02x}:00.0"})
            number = index
        self._cards[number].update(values)
        return self

    def line(self, kind: str, /, **values: object) -> "StandInWorld":
        """Adds a line of another kind: proc, mig, err, hang, xid, acct, gip."""
        self._lines.append(_line(kind, values))
        return self

    def without(self, kind: str) -> "StandInWorld":
        """Takes all lines of a kind away."""
        self._lines = [line for line in self._lines if not line.startswith(f"{kind} ")]
        return self

    def without_card(self, number: int) -> "StandInWorld":
        """Pulls a card out."""
        del self._cards[number]
        return self

    def write(self) -> "StandInWorld":
        """Lets the world be so from now on."""
        cards = [_line("dev", card) for card in self._cards]
        # Replaced as a whole, so that the stand-in never reads half of it.
        fresh = self.file.with_suffix(".new")
        fresh.write_text("\n".join([_line("sys", self._system), *cards, *self._lines]) + "\n")
        fresh.replace(self.file)
        return self


def uuid(number: int) -> str:
    """UUID of a card of the stand-in's world."""
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def _line(kind: str, values: Mapping[str, object]) -> str:
    return " ".join([kind, *(f"{key}={_text(value)}" for key, value in values.items())])


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return f'"{value}"' if isinstance(value, str) and " " in value else str(value)
