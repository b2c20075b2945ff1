"""Back-ups and restores killed (-9) while they run: is the older back-up whole, and does a second try give every row?

The data folder has rows, a ledger, and samples on its bus that no roll-up has taken in. Whole is what this module reads
of itself: each file that `BACKUP.json` lists has its SHA-256, rows are the files that the warehouse's manifest names,
and waiting samples are the bytes of the bus after what is committed.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.kill_oracle import Sender
from bench.killed_verbs import spread
from bench.measured_run import GPUTIDE, gputide
from bench.receiving import receiving
from fleet.data_folder import open_data_folder
from tests.control_plane import ENDS_WITH_US

OLDER = "older"
_STAMP = "FORMAT.json"
_SENT_SECONDS = 5.0
_KEPT = frozenset({".jsonl", ".json", ".head"})


@dataclass(slots=True, kw_only=True)
class KilledCopies:
    """How it goes; mutable: it grows.

    Attributes:
        kills: of `create` and `restore`; one that ended before its moment was not killed.
        faults: what is wrong, one sentence each.
        seconds: of each without a kill, the shortest time that was seen.
        left_bytes: what killed back-ups left beside, after the last one that succeeded.
    """

    kills: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    left_bytes: int = 0

    def run(self, folder: Path, kills: int, chance: random.Random, deadline: float) -> None:
        """Kills both verbs half of so many times, or until `deadline`, of time.monotonic()."""
        source, backups, scratch = folder / "source", folder / "backups", folder / "restored"
        make_source(source, chance)
        wanted = content_of(source)
        began = time.monotonic()
        gputide(source, "admin", "backup", "create", str(backups / OLDER))
        self.seconds["create"] = time.monotonic() - began
        began = time.monotonic()
        gputide(scratch, "admin", "backup", "restore", str(backups / OLDER))
        self.seconds["restore"] = time.monotonic() - began
        self._check("the first restore", content_of(scratch), wanted)
        shutil.rmtree(scratch)
        rounds = -(-kills // 2)
        creating, restoring = (spread(rounds, chance) for _ in range(2))
        for number in range(rounds):
            if time.monotonic() > deadline:
                break
            self._create(source, backups, f"new-{number}", creating[number])
            self._restore(scratch, backups / f"new-{number}", restoring[number])
            self._check(f"round {number}", content_of(scratch), wanted)
            for place in (scratch, backups / f"new-{number}"):
                shutil.rmtree(place)
        others = [path for path in backups.rglob("*") if path.is_file() and path.relative_to(backups).parts[0] != OLDER]
        self.left_bytes = sum(path.stat().st_size for path in others)

    def _create(self, source: Path, backups: Path, name: str, moment: float) -> None:
        target = backups / name
        self._kill(source, "create", target, moment)
        faults = damage_of(backups / OLDER)
        if target.exists():
            faults += damage_of(target)
        else:
            gputide(source, "admin", "backup", "create", str(target))
            faults += damage_of(target)
        self.faults += [f"{name}, killed at {moment:.3f}: {fault}" for fault in faults]

    def _restore(self, target: Path, backup: Path, moment: float) -> None:
        self._kill(target, "restore", backup, moment)
        if (target / _STAMP).exists():
            return
        command = [str(GPUTIDE), "--quiet", "--data-dir", str(target), "admin", "backup", "restore", str(backup)]
        said = subprocess.run(command, check=False, capture_output=True, text=True)
        if said.returncode != 0 and "a restore that was killed" in said.stderr:
            # It says what to do, and nobody takes half a folder for a whole one meanwhile.
            shutil.rmtree(target)
            said = subprocess.run(command, check=False, capture_output=True, text=True)
        if said.returncode != 0:
            self.faults.append(f"restore killed at {moment:.3f}, then {said.returncode}: {said.stderr[-300:]}")

    def _kill(self, data: Path, verb: str, place: Path, moment: float) -> None:
        command = [*ENDS_WITH_US, str(GPUTIDE), "--quiet", "--data-dir", str(data), "admin", "backup", verb, str(place)]
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment * self.seconds[verb])
            self.seconds[verb] = min(self.seconds[verb], time.monotonic() - began)
        process.kill()
        self.kills[verb] += process.wait() == -9

    def _check(self, what: str, found: dict[str, str], wanted: dict[str, str]) -> None:
        self.faults += [
            f"{what}: {place} is {found.get(place, 'missing')}, and {wanted.get(place, 'nothing')} in the source"
            for place in sorted(found.keys() | wanted.keys()) if found.get(place) != wanted.get(place)
        ][:5]  # fmt: skip


def make_source(data: Path, chance: random.Random) -> None:
    """A data folder with rows, a ledger, and samples that wait on the bus."""
    open_data_folder(data, create=True)
    gputide(data, "apply", "--freeze", "--yes")
    with receiving(data) as peer:
        for rolls in (True, False):
            sender = Sender(ports=[peer.address[1]], chance=chance, pause_seconds=0.05)
            sending = threading.Thread(target=sender.send)
            sending.start()
            time.sleep(_SENT_SECONDS)
            sender.is_over.set()
            sending.join()
            if rolls:
                gputide(data, "run", "rollup", "--drain")


def damage_of(backup: Path) -> list[str]:
    """Files of a back-up that are not what its list says."""
    listed = json.loads((backup / "BACKUP.json").read_bytes())["files"]
    found = []
    for path, size, sha256, *_ in listed:
        content = (backup / path).read_bytes() if (backup / path).is_file() else b""
        if len(content) != size or hashlib.sha256(content).hexdigest() != sha256:
            found.append(f"{backup.name}/{path} has {len(content)} bytes of {size}")
    return found if listed else [f"{backup.name} is empty"]


def content_of(data: Path) -> dict[str, str]:
    """Digests of what must survive: rows that the manifest names, ledgers, plans, samples that wait on each lane."""
    manifest = (data / "warehouse" / "MANIFEST").read_bytes()
    found = {
        str(path.relative_to(data)): _digest(path.read_bytes())
        for path in data.rglob("*")
        if path.is_file()
        and (path.suffix in _KEPT or (path.suffix == ".parquet" and path.name.encode() in manifest))
    }  # fmt: skip
    for lane in data.glob("bus*"):
        committed = int((lane / "committed").read_text())
        waiting = b""
        for segment in sorted(lane.glob("segment-*")):
            start = int(segment.name.removeprefix("segment-"))
            waiting += segment.read_bytes()[max(0, committed - start) :]
        if not waiting:
            raise AssertionError(f"nothing waits on {lane}")
        found[lane.name] = _digest(waiting)
    return found


def _digest(content: bytes) -> str:
    return f"{len(content)} bytes {hashlib.sha256(content).hexdigest()[:12]}"
