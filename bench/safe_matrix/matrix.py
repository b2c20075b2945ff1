"""The fault matrix of the enforcer: faults by phases by seeds on the real API server, one JSON line per case.

It goes on where it stopped: a case that the results hold already, of the same code, is not run again, unless it came to
no end. `--seconds` bounds one call, `--only` chooses faults, `--seeds` how many of each. Whole it takes hours; bars run
a sample of it. The judge is `bench.safe_matrix.judge`. Lines lie in `--results`, one object each: code (digest of what
is shipped and of the matrix), fault, phase, seed, ends, complaints, struck (whether the fault met what it was meant
for), breaches (looks at which a service had fewer ready pods than its users allow), looks, apart_seconds_max (longest
time between two), unwanted (writes by the audit log), pending, rescheduled_seconds, spread, undo (what differs from
before the plan after the undo), seconds. A case that came to no end has None for what was not judged.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Any

from bench.live_cluster import LiveCluster, live_cluster, programs
from bench.measured_run import ROOT
from bench.safe_matrix.case import Case, Phase, Wanted, is_good
from bench.safe_matrix.faults import FAULTS
from bench.shipped_modules import ShippedModules
from fleet.errors import Unavailable
from tests.control_plane import KubernetesPrograms

CLUSTERS_PER_CORE = 2
"""Control planes at once, each with one case at a time: a case mostly waits, and one takes an eighth of a core."""
TRIES = 3
"""How often in a row one control plane may fail to start."""

Line = dict[str, Any]

JUDGED = (
    "ends", "struck", "breaches", "looks", "apart_seconds_max", "unwanted", "pending", "rescheduled_seconds", "spread",
    "undo", "seconds",
)  # fmt: skip
"""What a line says of a case that came to its end."""


def cells(faults: Iterable[str], phases: Sequence[Phase] = tuple(Phase), seeds: int | None = None) -> list[Wanted]:
    """Cases of some faults, the first seed of every one before the second of any."""
    found = [
        Wanted(fault=name, phase=phase, seed=seed)
        for name in faults
        for phase in FAULTS[name].phases
        if phase in phases
        for seed in range(min(seeds or FAULTS[name].seeds, FAULTS[name].seeds))
    ]
    return sorted(found, key=lambda one: one.seed)


def code_digest(root: Path = ROOT) -> str:
    """Digest of the modules that are shipped and of those that the matrix is made of: of what a line is true."""
    judges = [*root.glob("bench/live_*.py"), *root.glob("bench/safe_matrix/*.py"), *root.glob("tests/cluster/*.py")]
    found = hashlib.sha256()
    for path in sorted({*ShippedModules(root=root).paths.values(), *judges}):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def run(
    wanted: Sequence[Wanted], results: Path, seconds: float, clusters: int, *, any_version: bool = False
) -> list[Line]:
    """Run the cases that the results lack, until the time is over.

    Args:
        any_version: lines of other code count too.

    Returns:
        The lines of all cases that were asked for and are there now, the last one of each.

    Raises:
        Unavailable: the control plane can't be built here.
    """
    code = code_digest()
    known = read(results, None if any_version else code)
    left: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
    for one in wanted:
        line = known.get((one.fault, one.phase.value, one.seed))
        if line is None or line["unwanted"] is None:
            left.put(one)
    cases = _Cases(code=code, left=left, results=results, deadline=time.monotonic() + seconds)
    with ThreadPoolExecutor(clusters) as pool:
        list(pool.map(cases.work, range(clusters)))
    found_lines = read(results, None if any_version else code)
    asked = ((one.fault, one.phase.value, one.seed) for one in wanted)
    return [found_lines[key] for key in asked if key in found_lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cases:
    """Cases that control planes take from one queue until the time is over."""

    code: str
    left: queue.SimpleQueue[Wanted]
    results: Path
    deadline: float
    found: KubernetesPrograms = field(default_factory=programs)
    writing: threading.Lock = field(default_factory=threading.Lock)

    def work(self, number: int) -> None:
        """Cases one after the other on a cluster of their own: in each one plan is applied at a time.

        A case that came to no end leaves its plan open, so the next one has a new cluster. Two control planes that
        start at once may draw the same port, so one that did not start is tried again.
        """
        tries_left = TRIES
        while not self.left.empty() and time.monotonic() <= self.deadline:
            try:
                self._on_a_cluster(number)
            except Unavailable as exc:
                tries_left -= 1
                print(f"control plane {number} did not start: {exc}", file=sys.stderr, flush=True)
                if not tries_left:
                    raise
            else:
                tries_left = TRIES

    def _on_a_cluster(self, number: int) -> None:
        with tempfile.TemporaryDirectory() as scratch, live_cluster(self.found, Path(scratch)) as live:
            for case in count(1):
                if time.monotonic() > self.deadline:
                    return
                try:
                    line = {"code": self.code, **_line(live, self.left.get_nowait(), f"matrix-{number}-{case}")}
                except queue.Empty:
                    return
                with self.writing, self.results.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(line)}\n")
                said = "good" if is_good(line) else "BAD "
                print(f"{said} {json.dumps(line)}", file=sys.stderr, flush=True)
                if line["unwanted"] is None:
                    return


def read(results: Path, code: str | None) -> dict[tuple[str, str, int], Line]:
    """The last line of each case by fault, phase and seed, of some code; of any for None."""
    if not results.exists():
        return {}
    texts = results.read_text(encoding="utf-8").splitlines()
    lines = [json.loads(text) for text in texts if text.endswith("}")]
    return {
        (line["fault"], line["phase"], line["seed"]): line for line in lines if code in (None, line.get("code"))
    }  # fmt: skip


def _line(live: LiveCluster, wanted: Wanted, name: str) -> Line:
    """A case; one that came to no end is a complaint, and of nothing else is known how it went."""
    fault = FAULTS[wanted.fault]
    case = Case(live=live, wanted=wanted, slot=0, name=name, folder=live.folder / name)
    try:
        return {**asdict(wanted), **case.run(fault.strike, fault.prepare)}
    except (AssertionError, OSError, HTTPException, subprocess.TimeoutExpired) as exc:
        return {**asdict(wanted), **dict.fromkeys(JUDGED), "complaints": [f"{type(exc).__name__}: {exc}"]}


def add_clusters(parser: ArgumentParser) -> None:
    """Add the option that says how many control planes run at once."""
    usual = CLUSTERS_PER_CORE * (os.cpu_count() or 1)
    said = f"control planes at once (default: {CLUSTERS_PER_CORE} per core, %(default)s here)"
    parser.add_argument("--clusters", type=int, default=usual, help=said)


def main() -> None:
    parser = ArgumentParser(description="Runs the fault matrix.")
    parser.add_argument("--results", type=Path, default=Path("safe-matrix.jsonl"), help="where lines are added")
    parser.add_argument("--seconds", type=float, default=3 * 3600.0, help="begin no case after so long")
    parser.add_argument("--only", action="append", choices=sorted(FAULTS), help="a fault; several where repeated")
    parser.add_argument("--phase", action="append", choices=[one.value for one in Phase], help="a phase")
    parser.add_argument("--seeds", type=int, help="at most so many of each")
    add_clusters(parser)
    parser.add_argument("--any-version", action="store_true", help="lines of other code count as well")
    chosen = parser.parse_args()
    phases = tuple(map(Phase, chosen.phase)) if chosen.phase else tuple(Phase)
    wanted = cells(chosen.only or FAULTS, phases, chosen.seeds)
    lines = run(wanted, chosen.results, chosen.seconds, chosen.clusters, any_version=chosen.any_version)
    good = sum(map(is_good, lines))
    print(json.dumps({"cases": len(lines), "of": len(wanted), "good": good}))


if __name__ == "__main__":
    main()
