"""A million hostile shared regions, in processes that may neither crash, hang nor grow.

    python -m tests.fuzz.run_region_fuzz [REGIONS [FIRST SEED]]

Every process takes one seed's regions under a limit on memory and a clock; one that finds a fault says by its seed and
round which region it was. Ends with status 1 where anything was found.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.judged_regions import JudgedRegions

REGIONS = 1_000_000
REGIONS_PER_PROCESS = 50_000
REGIONS_PER_ROUND = 500
ROUND_CPU_SECONDS_MAX = 30
"""Processor time of one round: a busy machine makes no region slow."""
ROUND_SECONDS_MAX = 600
MORE_BYTES_MAX = 1 << 29
"""Address space that the regions may take beyond what the process has when it begins."""
MEMORY_FOLDER = Path("/dev/shm")


def main(arguments: list[str]) -> int:
    """Run all seeds and print what was found.

    Returns:
        0 where nothing was found, else 1.
    """
    if arguments[:1] == ["--seed"]:
        return run_seed(int(arguments[1]), int(arguments[2]))
    regions = int(arguments[0]) if arguments else REGIONS
    first = int(arguments[1]) if len(arguments) > 1 else time.time_ns() % 1_000_000_000
    shares = [min(REGIONS_PER_PROCESS, regions - start) for start in range(0, regions, REGIONS_PER_PROCESS)]
    print(f"{regions} regions, seeds from {first}", flush=True)
    done = failed = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        statuses = pool.map(_status_of, range(first, first + len(shares)), shares)
        for share, status in zip(shares, statuses, strict=True):
            done, failed = done + share, failed + (status != 0)
            print(f"{done} regions, {failed} seeds with faults", flush=True)
    return int(failed > 0)


def run_seed(seed: int, regions: int) -> int:
    """One seed in this process.

    Returns:
        0 where nothing was found, else 1; a crash or hang ends the process by a signal.
    """
    memory = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        judged = JudgedRegions(Path(folder), seed, min(regions, REGIONS_PER_ROUND))
        limit = _address_space_bytes() + MORE_BYTES_MAX
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for number in range(-(-regions // REGIONS_PER_ROUND)):
            signal.setitimer(signal.ITIMER_PROF, ROUND_CPU_SECONDS_MAX)
            signal.alarm(ROUND_SECONDS_MAX)
            fault = judged.round()
            if fault is not None:
                print(f"seed {seed}, round {number}, {fault}", file=sys.stderr, flush=True)
                return 1
        judged.close()
    return 0


def _status_of(seed: int, regions: int) -> int:
    command = [sys.executable, "-m", "tests.fuzz.run_region_fuzz", "--seed", str(seed), str(regions)]
    ended = subprocess.run(command, check=False)
    if ended.returncode < 0:
        print(f"seed {seed}: ended by {signal.Signals(-ended.returncode).name}", file=sys.stderr, flush=True)
    return ended.returncode


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
