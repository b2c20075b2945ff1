"""A small fleet played through the real program, once per session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

import pytest

from exporter.synthetic.writer import write_synthetic_fleet

DAYS = 10
CUT = "2026-01-14"
"""The synthetic fleet begins on Monday 2026-01-05; nine days are learned from."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put every test that calls the program, and needs no cluster, into the tier `long`.

    It runs beside those that wait for engines.
    """
    for item in items:
        if "program" in getattr(item, "fixturenames", ()) and item.get_closest_marker("cluster") is None:
            item.add_marker(pytest.mark.long)


@dataclass(frozen=True)
class Said:
    """What one call of the program said."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Running:
    """A call that goes on."""

    pid: int
    out: Path
    err: Path
    answers: IO[str]

    def wait(self) -> Said:
        """Wait for its end."""
        status = int(self.answers.readline())
        return Said(status, self.out.read_text(), self.err.read_text())


class Program:
    """Calls the real program: `program(data, "workloads", …)`; every call is a process of its own.

    Args:
        folder: for what the calls print.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = count()
        self._starter = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("warm_program.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "160"},
        )

    def __call__(
        self,
        data: Path,
        *arguments: str,
        environ: dict[str, str] | None = None,
        dies_at: tuple[str, int, str] | None = None,
    ) -> Said:
        """Call it and wait for its end.

        Args:
            data: data folder.
            arguments: verb and options.
            environ: variables beside those of the tests.
            dies_at: (`append`, `fsync`, `rename` or `sqlite`; which of them; `before` or `after`): SIGKILL then.
        """
        return self.start(data, *arguments, environ=environ, dies_at=dies_at).wait()

    def start(
        self,
        data: Path,
        *arguments: str,
        environ: dict[str, str] | None = None,
        dies_at: tuple[str, int, str] | None = None,
    ) -> Running:
        """Call it and go on while it runs; it must have ended before the next call."""
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        number = next(self._calls)
        out, err = self._folder / f"{number}.out", self._folder / f"{number}.err"
        err.touch()
        call = {
            "arguments": ["--data-dir", str(data), *arguments],
            "environ": environ or {},
            "folder": str(self._folder),
            "out": str(out),
            "err": str(err),
            "dies_at": dies_at,
        }
        print(json.dumps(call), file=self._starter.stdin, flush=True)
        return Running(int(self._starter.stdout.readline()), out, err, self._starter.stdout)

    def close(self) -> None:
        """End the process that starts the calls."""
        assert self._starter.stdin is not None
        self._starter.stdin.close()
        self._starter.wait()


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Return a caller of the real program."""
    caller = Program(tmp_path_factory.mktemp("program"))
    yield caller
    caller.close()


@pytest.fixture(scope="session")
def small_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small synthetic fleet in the neutral trace format."""
    folder = tmp_path_factory.mktemp("small-fleet")
    write_synthetic_fleet(folder, cards=60, days=DAYS)
    return folder


@pytest.fixture(scope="session")
def _replayed(small_fleet: Path, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("replayed") / "data"
    said = program(data, "admin", "replay", str(small_fleet), "--until", CUT)
    assert said.status == 0, said.err
    return data


@pytest.fixture
def replayed(_replayed: Path, tmp_path: Path) -> Path:
    """Return a data folder of one's own that holds the fleet's first nine days."""
    copy = tmp_path / "data"
    shutil.copytree(_replayed, copy)
    return copy


@pytest.fixture(scope="session")
def _planned(_replayed: Path, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("planned") / "data"
    shutil.copytree(_replayed, data)
    said = program(data, "plan", "make")
    assert said.status == 0, said.err
    return data


@pytest.fixture
def planned(_planned: Path, tmp_path: Path) -> Path:
    """Return a data folder of one's own in which a plan was made."""
    copy = tmp_path / "data"
    shutil.copytree(_planned, copy)
    return copy
