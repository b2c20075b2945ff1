"""The fault matrix of the enforcer: faults by phases by seeds on the real API server, one JSON line per case.

It goes on where it stopped: a case that the results hold already is not run again. `--seconds` bounds one call,
`--only` chooses faults, `--seeds` how many of each. Whole it takes hours; bars run a sample of it. The judge is
`bench.safe_matrix.judge`. Lines lie in `--results`, one object each: fault, phase, seed, ends, complaints, breaches
(looks at which a service had fewer ready pods than its users allow), unwanted (writes by the audit log), pending,
rescheduled_seconds, spread, undo (what differs from before the plan after the undo), seconds.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from bench.live_cluster import LiveCluster, live_cluster, programs
from bench.safe_matrix.case import Case, Phase, Wanted, is_good
from bench.safe_matrix.faults import FAULTS

CLUSTERS = 2
"""Control planes at once, each with one case at a time."""

Line = dict[str, Any]


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


def run(wanted: Sequence[Wanted], results: Path, seconds: float, clusters: int = CLUSTERS) -> list[Line]:
    """Run the cases that the results lack, until the time is over.

    Returns:
        The lines of all cases that were asked for and are there now.

    Raises:
        Unavailable: the control plane can't be built here.
    """
    known = {_key(line) for line in read(results)}
    left: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
    for one in wanted:
        if (one.fault, one.phase.value, one.seed) not in known:
            left.put(one)
    found, deadline, writing = programs(), time.monotonic() + seconds, threading.Lock()

    def work(number: int) -> None:
        """Cases one after the other on a cluster of their own: in each one plan is applied at a time."""
        if left.empty():
            return
        with tempfile.TemporaryDirectory() as scratch, live_cluster(found, Path(scratch)) as live:
            for case in count(1):
                if time.monotonic() > deadline:
                    return
                try:
                    line = _line(live, left.get_nowait(), f"matrix-{number}-{case}")
                except queue.Empty:
                    return
                with writing, results.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(line)}\n")
                said = "good" if is_good(line) else "BAD "
                print(f"{said} {json.dumps(line)}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(clusters) as pool:
        list(pool.map(work, range(clusters)))
    asked = {(one.fault, one.phase.value, one.seed) for one in wanted}
    return [line for line in read(results) if _key(line) in asked]


def read(results: Path) -> list[Line]:
    """Lines of earlier calls."""
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _key(line: Line) -> tuple[str, str, int]:
    return line["fault"], line["phase"], line["seed"]


def _line(live: LiveCluster, wanted: Wanted, name: str) -> Line:
    """A case; one that came to no end is a complaint."""
    fault = FAULTS[wanted.fault]
    case = Case(live=live, wanted=wanted, slot=0, name=name, folder=live.folder / name)
    try:
        return {**asdict(wanted), **case.run(fault.strike, fault.prepare)}
    except (AssertionError, OSError, subprocess.TimeoutExpired) as exc:
        return {
            **asdict(wanted), "ends": [], "complaints": [f"{type(exc).__name__}: {exc}"], "breaches": [],
            "unwanted": [], "pending": 0, "rescheduled_seconds": None, "spread": {}, "undo": [], "seconds": 0.0,
        }  # fmt: skip


def main() -> None:
    parser = ArgumentParser(description="Runs the fault matrix.")
    parser.add_argument("--results", type=Path, default=Path("safe-matrix.jsonl"), help="where lines are added")
    parser.add_argument("--seconds", type=float, default=3 * 3600.0, help="begin no case after so long")
    parser.add_argument("--only", action="append", choices=sorted(FAULTS), help="a fault; several where repeated")
    parser.add_argument("--phase", action="append", choices=[one.value for one in Phase], help="a phase")
    parser.add_argument("--seeds", type=int, help="at most so many of each")
    parser.add_argument("--clusters", type=int, default=CLUSTERS, help="control planes at once")
    chosen = parser.parse_args()
    phases = tuple(map(Phase, chosen.phase)) if chosen.phase else tuple(Phase)
    wanted = cells(chosen.only or FAULTS, phases, chosen.seeds)
    lines = run(wanted, chosen.results, chosen.seconds, chosen.clusters)
    good = sum(map(is_good, lines))
    print(json.dumps({"cases": len(lines), "of": len(wanted), "good": good}))


if __name__ == "__main__":
    main()
