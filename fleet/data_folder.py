"""The one folder that holds all state: where each part lies, which schema it has, who may write to it now.

Removing the folder removes everything. `gputide.container` opens the parts; nothing else knows their places.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleet.durable import FolderLock, check_stamp, holds_nothing, read_stamp, unwritable
from fleet.errors import Corrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolder:
    """Places inside the data folder.

    Attributes:
        ledger_key: what marks the lines of its ledgers (`enforcer.ledger_key_file`); None where nothing does.
        anchor_file: where the heads of its ledgers are kept outside of it (`enforcer.ledger_anchor_file`).
    """

    path: Path
    ledger_key: bytes | None = field(default=None, repr=False)
    anchor_file: Path | None = None

    def bus(self, lane: int = 0) -> Path:
        """Segments of one lane of the file bus; each process that receives writes a lane of its own."""
        return self.path / ("bus" if lane == 0 else f"bus-{lane}")

    @property
    def bus_lanes(self) -> tuple[int, ...]:
        """Lanes of the file bus that somebody has written to, lane 0 always among them."""
        numbers = (path.name.removeprefix("bus-") for path in self.path.glob("bus-*"))
        return (0, *sorted(int(number) for number in numbers if number.isdecimal() and number != "0"))

    @property
    def dead_letters(self) -> Path:
        """Records of the bus that could not be read."""
        return self.path / "dead-letters"

    @property
    def warehouse(self) -> Path:
        """Dated Parquet."""
        return self.path / "warehouse"

    @property
    def plans(self) -> Path:
        """Plans, one JSON file each."""
        return self.path / "plans"

    @property
    def policies(self) -> Path:
        """Which plan follows which policy."""
        return self.path / "policies.json"

    @property
    def ledger(self) -> Path:
        """The hash-chained ledger of everything that was changed."""
        return self.path / "ledger.jsonl"

    @property
    def cluster(self) -> Path:
        """State of the simulated cluster."""
        return self.path / "cluster.sqlite"

    @property
    def requests(self) -> Path:
        """The hash-chained ledger of pull requests: who sent which, and what became of them."""
        return self.path / "requests.jsonl"

    @property
    def clock(self) -> Path:
        """The clock of a replay."""
        return self.path / "clock.json"

    @property
    def outcomes(self) -> Path:
        """What came of plans, one JSON file per verify."""
        return self.path / "outcomes"

    @property
    def weeks(self) -> Path:
        """What weekly reports said, one JSON file per week."""
        return self.path / "weeks"

    @property
    def bill(self) -> Path:
        """What providers billed for nodes, as Parquet."""
        return self.path / "bill.parquet"

    @property
    def notices(self) -> Path:
        """Which messages were sent to whom, and when."""
        return self.path / "notices"

    @property
    def agent(self) -> Path:
        """What the node agent keeps: who sleeps, the last orders, its acts."""
        return self.path / "agent"

    @property
    def tide(self) -> Path:
        """The hash-chained ledger of the tide's nights."""
        return self.path / "tide.jsonl"

    @property
    def relief(self) -> Path:
        """The hash-chained ledger of relief: who was paused and moved, and how long that took."""
        return self.path / "relief.jsonl"

    @property
    def relief_lock(self) -> Path:
        """File that relief holds while it runs."""
        return self.path / "relief.lock"

    @property
    def scan_key(self) -> Path:
        """The key by which names are hashed in traces that are handed on."""
        return self.path / "scan-names.key"

    @property
    def scanned_backends(self) -> Path:
        """The backend that the last scan of each cluster planned for, as JSON."""
        return self.path / "scanned-backends.json"

    @property
    def probes(self) -> Path:
        """What probes measured, one signed JSON file per node and backend."""
        return self.path / "probes"

    @property
    def freeze(self) -> Path:
        """Stops every change while it exists."""
        return self.path / "freeze"

    @property
    def freezes(self) -> Path:
        """The hash-chained ledger of the freeze: who stopped every change, and who let them go on."""
        return self.path / "freezes.jsonl"


def open_data_folder(path: Path, *, create: bool) -> DataFolder:
    """Check the folder, or make and stamp it.

    Args:
        create: True to make it where it is missing.

    Raises:
        Corrupt: the folder is missing (and `create` is False), of a newer schema, not ours, read-only or full.
    """
    try:
        if read_stamp(path) is not None:
            return DataFolder(path=path)
        if not create:
            raise Corrupt(f"cannot read data folder {path}: nothing there; feed it first, for example `gputide demo`")
        # Of its user alone: what lies in it is closed to others by this, whatever its own mode.
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not holds_nothing(path):
            raise Corrupt(f"cannot use {path} as data folder: it holds other files; name an empty one with --data-dir")
        check_stamp(path, new_fields={"holds": "gputide"})
    except OSError as exc:
        raise unwritable(path, exc) from exc
    return DataFolder(path=path)


@contextmanager
def writing(folder: DataFolder) -> Iterator[None]:
    """Hold the folder for writing; one process at a time.

    Raises:
        Unavailable: another process holds it, with its process id.
        Corrupt: the folder is read-only or the disk is full.
    """
    with FolderLock(folder.path, "writer"):
        try:
            yield
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise unwritable(folder.path, exc) from exc
            raise
