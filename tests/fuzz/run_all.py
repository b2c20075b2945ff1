"""Everything that is fuzzed, round by round: hostile bodies, shared regions, and all other parsers. `make fuzz`.

    python -m tests.fuzz.run_all [CASES [FIRST SEED]]

A round is one process of each, under limits on memory and a clock, that may neither crash, hang nor grow; what it finds
it prints. CASES of 0 goes on until it is stopped. Ends with status 1 where anything was found.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.fuzz.run_fuzz import BODIES_PER_PROCESS

CASES = 1_000_000
REGIONS_PER_ROUND = 25_000
PARSED_PER_ROUND = 75_000
CASES_PER_ROUND = BODIES_PER_PROCESS + REGIONS_PER_ROUND + PARSED_PER_ROUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How one process ended.

    Attributes:
        what: bodies, regions or parsers.
        seed: its seed.
        cases: how many it was given.
        status: exit status; a negative one is the number of the signal that ended it.
        peak_bytes: most memory that it had, resident.
        cpu_seconds: processor time that it took.
    """

    what: str
    seed: int
    cases: int
    status: int
    peak_bytes: int
    cpu_seconds: float

    @property
    def has_crashed(self) -> bool:
        """Whether a case ended the process, or a reader let a strange error through."""
        return self.status != 0 and not self.has_hung

    @property
    def has_hung(self) -> bool:
        """Whether a case took longer than it may."""
        return -self.status in (signal.SIGPROF, signal.SIGALRM)


def rounds(cases: int, first: int) -> Iterator[Told]:
    """Run them one after the other.

    Args:
        cases: how many at least; 0 goes on for ever.
        first: the first seed.
    """
    for number in itertools.count() if cases == 0 else range(-(-cases // CASES_PER_ROUND)):
        seed = first + number
        yield _told("bodies", seed, BODIES_PER_PROCESS, "tests.fuzz.run_fuzz", "--seed", str(seed))
        for what, module, count in (
            ("regions", "tests.fuzz.run_region_fuzz", REGIONS_PER_ROUND),
            ("parsers", "tests.fuzz.run_parsers", PARSED_PER_ROUND),
        ):
            yield _told(what, seed, count, module, "--seed", str(seed), str(count))


def main(arguments: list[str]) -> int:
    """Run all rounds and print what was found.

    Returns:
        0 where nothing was found, else 1.
    """
    cases = int(arguments[0]) if arguments else CASES
    first = int(arguments[1]) if len(arguments) > 1 else time.time_ns() % 1_000_000_000
    print(f"{cases or 'endless'} cases, seeds from {first}", flush=True)
    done = failed = 0
    for told in rounds(cases, first):
        done, failed = done + told.cases, failed + (told.status != 0)
        if told.status < 0:
            print(f"{told.what}, seed {told.seed}: ended by {signal.Signals(-told.status).name}", flush=True)
        print(f"{done} cases, {failed} seeds with faults; {told.what} took {told.peak_bytes >> 20} MiB", flush=True)
    return int(failed > 0)


def _told(what: str, seed: int, cases: int, *arguments: str) -> Told:
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL)
    _, raw, used = os.wait4(process.pid, 0)
    process.returncode = status = os.waitstatus_to_exitcode(raw)
    return Told(
        what=what, seed=seed, cases=cases, status=status, peak_bytes=used.ru_maxrss << 10,
        cpu_seconds=used.ru_utime + used.ru_stime,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
