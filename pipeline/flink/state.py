"""The folder in which a Flink job keeps what it must not lose, and what the rollup remembers about the job.

    RUN.json                       the job that was started last, and what it does
    checkpoints/JOB/chk-7/…        checkpoints of each job; whole ones hold `_metadata`
    savepoints/savepoint-…/…       savepoints, made by an orderly stop
    staging/TABLE/…/part-…         files of the job; those whose name begins with a dot are not finished
    scratch/JOB/…                  working files of a job in a process of ours; of no use once it has ended
    batches/12.json                files that were published as one append (`flink.publish`)

JobManager, TaskManagers and rollup see it under the same path. Called by `rollup_flink`.
"""

from __future__ import annotations

import json
import shutil
import struct
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.durable import write_durably
from fleet.errors import Corrupt

_METADATA = "_metadata"
# flink:runtime/checkpoint/Checkpoints.java: magic number, version, then (versions 3 to 6) the checkpoint's id.
_METADATA_HEADER = struct.Struct(">IiQ")
_METADATA_MAGIC = 0x4960672D
_READ_TRIES = 5
_EMPTY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkRun:
    """The job that was started last.

    Attributes:
        job: its id, 32 hexadecimal digits.
        token: word in the environment of our processes for it, by which what a killed rollup left is found; empty
            where they have ended in order.
        fingerprint: of what it does; see `FlinkDescription.fingerprint`.
        rest: address of the JobManager that runs it; empty where it ran in a process of ours.
    """

    job: str
    token: str
    fingerprint: str
    rest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """A checkpoint or savepoint.

    Attributes:
        number: id of the checkpoint, which grows over restarts.
    """

    number: int
    folder: Path


def uri_of(path: Path) -> str:
    """A path as Flink is given it: what stands behind `file://` is taken as it is (flink:core/fs/Path.java)."""
    return f"file://{path}"


class FlinkState:
    """The folder.

    Args:
        folder: where it lies; made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.checkpoints = self.folder / "checkpoints"
        self.savepoints = self.folder / "savepoints"
        self.staging = self.folder / "staging"
        self.batches = self.folder / "batches"
        for path in (self.checkpoints, self.savepoints, self.staging, self.batches):
            path.mkdir(parents=True, exist_ok=True)

    def run(self) -> FlinkRun | None:
        """The job that was started last, None where there was none.

        Raises:
            Corrupt: what is remembered of it can't be read.
        """
        return _run_in(self.folder)

    def remember(self, run: FlinkRun) -> None:
        """Makes a job the one that was started last, before it is started."""
        write_durably(self.folder / "RUN.json", json.dumps(asdict(run)).encode())

    def newest(self) -> RestorePoint | None:
        """The whole checkpoint or savepoint that was made last, None where there is none.

        Raises:
            Corrupt: one can't be read.
        """
        points = self._points()
        return max(points, key=lambda point: point.number, default=None)

    def scratch(self, job: str) -> Path:
        """A folder for the working files of a job that is about to start; those of former ones go."""
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
        found = self.folder / "scratch" / job
        found.mkdir(parents=True)
        return found

    def tidy(self) -> None:
        """Removes what former jobs left, once the job that was started last has a checkpoint of its own.

        Unfinished files of former jobs are older than that checkpoint: restoring has finished those that count.
        """
        self._remove_empty_folders()
        run, newest = self.run(), self.newest()
        if run is None or newest is None or newest.folder.parent != self.checkpoints / run.job:
            return
        for folder in [*self.checkpoints.iterdir(), *self.savepoints.iterdir()]:
            if folder != newest.folder.parent:
                shutil.rmtree(folder, ignore_errors=True)
        started_seconds = (self.folder / "RUN.json").stat().st_mtime
        for path in self.staging.rglob(".*"):
            try:
                if path.is_file() and path.stat().st_mtime < started_seconds:
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue  # it was finished just now

    def _remove_empty_folders(self) -> None:
        """Removes folders of days without files, once nothing came for a day: the job may be about to write there."""
        before_seconds = time.time() - _EMPTY_SECONDS
        for day in self.staging.glob("*/dt=*"):
            if day.stat().st_mtime > before_seconds:
                continue
            for folder in sorted((path for path in (day, *day.rglob("*")) if path.is_dir()), reverse=True):
                if folder.stat().st_mtime < before_seconds:
                    with suppress(OSError):  # a file or a younger folder lies in it
                        folder.rmdir()

    def finished_files(self) -> list[Path]:
        """Files of completed checkpoints, below `staging`, in order."""
        return sorted(
            path.relative_to(self.staging) for path in self.staging.rglob("part-*") if not path.name.startswith(".")
        )

    def _points(self) -> list[RestorePoint]:
        found = []
        for path in [*self.checkpoints.glob(f"*/chk-*/{_METADATA}"), *self.savepoints.glob(f"*/{_METADATA}")]:
            number = _number_of(path)
            if number is not None:
                found.append(RestorePoint(number=number, folder=path.parent))
        return found


def is_stopped(folder: Path) -> bool:
    """Whether the job whose state lies in a folder was stopped in order: all that it knows stands still there.

    Raises:
        Corrupt: what is remembered of it can't be read.
    """
    run = _run_in(folder)
    return run is not None and not run.token


def _run_in(folder: Path) -> FlinkRun | None:
    path = folder / "RUN.json"
    try:
        return FlinkRun(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as exc:
        raise Corrupt(f"cannot read {path}: {exc}") from exc


def _number_of(path: Path) -> int | None:
    """The id in a checkpoint's metadata; None where Flink has taken the checkpoint away meanwhile."""
    for _ in range(_READ_TRIES):
        try:
            with path.open("rb") as file:
                head = file.read(_METADATA_HEADER.size)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise Corrupt(f"cannot read {path}: {exc}") from exc
        if len(head) == _METADATA_HEADER.size:
            magic, _, number = _METADATA_HEADER.unpack(head)
            if magic != _METADATA_MAGIC:
                raise Corrupt(f"cannot read {path}: it is no metadata of a Flink checkpoint")
            return int(number)
        time.sleep(0.05)  # being written
    return None
