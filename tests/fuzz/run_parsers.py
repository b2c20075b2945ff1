"""All other parsers, in processes that may neither crash, hang nor grow: `make fuzz` and `bench/bars/fuzz`.

    python -m tests.fuzz.run_parsers [CASES [FIRST SEED]]

Every process takes one seed through every parser, under a limit on memory and a clock; one that finds a fault prints
the parser, the seed and the input, in hexadecimal digits, to be kept under `tests/fuzz/corpus/PARSER`. Ends with status
1 where anything was found; CASES of 0 goes on until it is stopped.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.mutations import Mutations
from tests.fuzz.parser_list import all_parsers
from tests.fuzz.parsers import Parser
from tests.fuzz.parsers_cluster import remove_scratch

CASES = 1_000_000
CASES_PER_PROCESS = 50_000
WARM_UP_CASES = 20
"""Cases of each parser before memory is limited: what it loads once is loaded."""
CASE_CPU_SECONDS_MAX = 5
"""Processor time of one case: a busy machine makes no input slow."""
CASE_SECONDS_MAX = 120
MORE_BYTES_MAX = 1 << 29
"""Address space that the cases may take beyond what the process has when it begins."""


def main(arguments: list[str]) -> int:
    """Run all seeds and print what was found.

    Returns:
        0 where nothing was found, else 1.
    """
    if arguments[:1] == ["--seed"]:
        return run_seed(int(arguments[1]), int(arguments[2]))
    cases = int(arguments[0]) if arguments else CASES
    first = int(arguments[1]) if len(arguments) > 1 else time.time_ns() % 1_000_000_000
    print(f"{cases or 'endless'} cases over {len(all_parsers())} parsers, seeds from {first}", flush=True)
    done = failed = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for told in pool.map(lambda share: _status_of(*share), _shares(cases, first)):
            done, failed = done + told[1], failed + (told[0] != 0)
            print(f"{done} cases, {failed} seeds with faults, {told[2] >> 20} MiB at most", flush=True)
    return int(failed > 0)


def shares_of(parsers: tuple[Parser, ...], cases: int) -> list[int]:
    """How many of the cases each parser gets: fewer where one is dear, and one at least."""
    weights = [1 / parser.cost for parser in parsers]
    return [max(1, round(cases * weight / sum(weights))) for weight in weights]


def run_seed(seed: int, cases: int) -> int:
    """One seed through every parser, in this process; the last line of its output is a JSON object of figures.

    Returns:
        0 where nothing was found, else 1; a crash or hang ends the process by a signal.
    """
    parsers = all_parsers()
    rows = [Mutations(parser.seeds, seed) for parser in parsers]
    done = found = 0
    for parser, row in zip(parsers, rows, strict=True):
        for _ in range(WARM_UP_CASES):
            found += _is_faulty(parser, row.next(), seed)
            done += 1
    limit = _address_space_bytes() + MORE_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for parser, row, share in zip(parsers, rows, shares_of(parsers, cases), strict=True):
        for _ in range(max(0, share - WARM_UP_CASES)):
            data = row.next()
            _now_at.update(parser=parser.name, data=data)
            signal.setitimer(signal.ITIMER_PROF, CASE_CPU_SECONDS_MAX)
            signal.alarm(CASE_SECONDS_MAX)
            found += _is_faulty(parser, data, seed)
            done += 1
            if found > 20:
                break
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    remove_scratch()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps({"cases": done, "faults": found, "peak_bytes": peak_bytes}), flush=True)
    return int(found > 0)


_now_at: dict[str, object] = {}


def _is_faulty(parser: Parser, data: bytes, seed: int) -> bool:
    fault = parser.fault_of(data)
    if fault is not None:
        print(f"{parser.name}, seed {seed}: {fault}\n{data.hex()}", file=sys.stderr, flush=True)
    return fault is not None


def _shares(cases: int, first: int) -> Iterator[tuple[int, int]]:
    if cases == 0:
        yield from ((seed, CASES_PER_PROCESS) for seed in itertools.count(first))
    for number, start in enumerate(range(0, cases, CASES_PER_PROCESS)):
        yield first + number, min(CASES_PER_PROCESS, cases - start)


def _status_of(seed: int, cases: int) -> tuple[int, int, int]:
    """Status, cases and the most memory of one process."""
    command = [sys.executable, "-m", "tests.fuzz.run_parsers", "--seed", str(seed), str(cases)]
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if ended.returncode < 0:
        print(f"seed {seed}: ended by {signal.Signals(-ended.returncode).name}", file=sys.stderr, flush=True)
        return ended.returncode, 0, 0
    figures = json.loads(ended.stdout.splitlines()[-1])
    return ended.returncode, figures["cases"], figures["peak_bytes"]


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
