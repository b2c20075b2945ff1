"""A million hostile bodies, in processes that may neither crash, hang nor grow: `make fuzz`.

    python -m tests.fuzz.run_fuzz [BODIES [FIRST SEED]]

Every process takes one seed's bodies under a limit on memory and a clock; one that dies says by its seed and number
which body it was. Ends with status 1 where anything was found.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.hostile_bodies import HostileBodies
from tests.fuzz.judged_intake import JudgedIntake

BODIES = 1_000_000
BODIES_PER_PROCESS = 25_000
BODY_CPU_SECONDS_MAX = 10
"""Processor time of one body: a busy machine makes no body slow."""
BODY_SECONDS_MAX = 300
MORE_BYTES_MAX = 1 << 30
"""Address space that the bodies may take beyond what the process has when it begins."""


def main(arguments: list[str]) -> int:
    """Run all seeds and print what was found.

    Returns:
        0 where nothing was found, else 1.
    """
    if arguments[:1] == ["--seed"]:
        return run_seed(int(arguments[1]))
    bodies = int(arguments[0]) if arguments else BODIES
    first = int(arguments[1]) if len(arguments) > 1 else time.time_ns() % 1_000_000_000
    seeds = range(first, first + -(-bodies // BODIES_PER_PROCESS))
    print(f"{bodies} bodies, seeds from {first}", flush=True)
    failed = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done, status in enumerate(pool.map(_status_of, seeds), 1):
            failed += status != 0
            print(f"{min(bodies, done * BODIES_PER_PROCESS)} bodies, {failed} seeds with faults", flush=True)
    return int(failed > 0)


def run_seed(seed: int) -> int:
    """One seed in this process.

    Returns:
        0 where nothing was found, else 1; a crash or hang ends the process by a signal.
    """
    bodies, intake = HostileBodies(seed), JudgedIntake()
    for _ in range(20):
        intake.fault_of(*bodies.next())  # kernels are loaded before memory is limited
    limit = _address_space_bytes() + MORE_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in range(20, BODIES_PER_PROCESS):
        signal.setitimer(signal.ITIMER_PROF, BODY_CPU_SECONDS_MAX)
        signal.alarm(BODY_SECONDS_MAX)
        body, version = bodies.next()
        fault = intake.fault_of(body, version)
        if fault is not None:
            print(
                f"seed {seed}, body {number} as version {version}: {fault}\n{body.hex()}", file=sys.stderr, flush=True
            )
            return 1
    return 0


def _status_of(seed: int) -> int:
    ended = subprocess.run([sys.executable, "-m", "tests.fuzz.run_fuzz", "--seed", str(seed)], check=False)
    if ended.returncode < 0:
        print(f"seed {seed}: ended by {signal.Signals(-ended.returncode).name}", file=sys.stderr, flush=True)
    return ended.returncode


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
