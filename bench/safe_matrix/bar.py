"""A bar over the fault matrix: runs a bounded sample of it, and prints one line of what all asked cases come to.

Called by `bench/bars/safe-*`. Results lie in a file of their own folder, so that a later call goes on.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measured_run import print_bar, print_unmeasured
from bench.safe_matrix.case import Phase, Wanted
from bench.safe_matrix.matrix import Line, add_clusters, cells, run
from fleet.errors import Unavailable

Judged = tuple[float | str, bool, Mapping[str, Any]]
"""Value of a bar, whether it holds, and what else there is to say."""


def bar_over_matrix(
    name: str,
    bar: str,
    faults: Sequence[str],
    judged: Callable[[Sequence[Line]], Judged],
    *,
    phases: Sequence[Phase] = tuple(Phase),
    seeds: int = 1,
) -> None:
    """Run a sample and print the bar.

    Args:
        faults: rows.
        judged: what the lines of all cases that came to an end come to.
        phases: columns.
        seeds: how often each cell runs where nothing else is asked for.
    """
    parser = ArgumentParser(description=bar)
    parser.add_argument("--seconds", type=float, default=1200.0, help="begin no case after so long")
    parser.add_argument("--seeds", type=int, default=seeds, help="how often each cell")
    parser.add_argument("--results", type=Path, help="lines of earlier calls, and where to add; kept nowhere if absent")
    add_clusters(parser)
    parser.add_argument("--any-version", action="store_true", help="results of other code count as well; says so")
    chosen = parser.parse_args()
    wanted = cells(faults, phases, chosen.seeds)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            lines = run(
                wanted, chosen.results or Path(scratch) / "lines.jsonl", chosen.seconds, chosen.clusters,
                any_version=chosen.any_version,
            )  # fmt: skip
        except Unavailable as reason:
            print_unmeasured(name, bar, str(reason))
            return
    value, holds, more = verdict(lines, wanted, judged)
    versions = {"versions": len({line.get("code") for line in lines})} if chosen.any_version else {}
    print_bar(name, value, bar, holds=holds, cases=len(lines), cases_of=len(wanted), **versions, **more)


def verdict(
    lines: Sequence[Line], wanted: Sequence[Wanted], judged: Callable[[Sequence[Line]], Judged]
) -> tuple[float | str, bool | None, dict[str, Any]]:
    """Value of a bar, whether it holds, and what else there is to say.

    It holds where all cases that were asked for came to an end and speak for it; as long as some are missing and none
    speaks against it, nobody knows.
    """
    ended = [line for line in lines if line["unwanted"] is not None]
    value, holds, more = judged(ended)
    open_ended = [line for line in lines if line["unwanted"] is None]
    said = complaints_of(open_ended, lambda line: line["complaints"]).get("against")
    more = {**more, **({"unmeasured": len(open_ended), "unmeasured_for": said} if open_ended else {})}
    if open_ended or (lines and not holds):
        return value, False, more
    return value, True if len(lines) == len(wanted) and lines else None, more


def complaints_of(lines: Sequence[Line], said: Callable[[Line], Sequence[str]]) -> dict[str, Any]:
    """The first sentences of what speaks against some cases, by case."""
    found = {f"{line['fault']}, {line['phase']}, {line['seed']}": list(said(line))[:3] for line in lines if said(line)}
    return {"against": dict(list(found.items())[:5])} if found else {}
