"""The C program that writes regions, built once per session."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionWriter:
    """The built program."""

    program: Path

    def offsets(self) -> str:
        """Size of every layout and offsets of its fields, a line each."""
        return subprocess.run([self.program, "offsets"], check=True, stdout=subprocess.PIPE, text=True).stdout

    def write(self, layout: str, path: Path, *, cards: int, processes: int) -> None:
        """Write one region."""
        subprocess.run([self.program, "write", layout, path, str(cards), str(processes)], check=True)

    @contextmanager
    def churning(self, layout: str, path: Path, *, cards: int) -> Iterator[None]:
        """Have a process change the region without a pause."""
        command = [str(self.program), "churn", layout, str(path), str(cards)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                yield
                assert process.poll() is None
            finally:
                process.kill()

    @contextmanager
    def working(self, layout: str, path: Path, *, mib: int) -> Iterator[IO[bytes]]:
        """Have a process allocate and launch all the time; gives what it says: lines `launched` or `refused`."""
        command = [str(self.program), "work", layout, str(path), str(mib)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() in (b"launched\n", b"refused\n")
                yield process.stdout
            finally:
                process.kill()


@pytest.fixture(scope="session")
def region_writer(tmp_path_factory: pytest.TempPathFactory) -> RegionWriter:
    """Build the writer with gcc; skip where there is none, fail so in CI."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        reason = "no C compiler on PATH: regions can't be written through the library's structs"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    program = tmp_path_factory.mktemp("regions") / "region_writer"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run([compiler, *flags, "-o", program, HERE / "region_writer.c"], check=True)
    return RegionWriter(program=program)
