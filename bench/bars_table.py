"""Runs every bar and prints its JSON line as it comes, then a table of all. Called by `make bars`.

A bar is one executable file under `bench/bars/` that prints one JSON line
`{"name", "value", "bar", "baseline", "ratio", "holds"}`; what it prints to stderr passes through. `holds` is null where
the bar could not be measured on this machine, and `why` then says why. Names on the command line pick single bars.

Exit status: 0 when every bar that was measured holds, 1 when one does not or a bar fell over, 2 for an unknown name.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
BARS = ROOT / "bench" / "bars"
FIELDS = ("name", "value", "bar", "baseline", "ratio", "holds")


@dataclass(frozen=True, slots=True, kw_only=True)
class BarResult:
    """One line of the table: the fields of a bar's JSON line, as text where the table only shows them."""

    name: str
    value: str
    bar: str
    baseline: str
    ratio: str
    holds: bool | None
    why: str


def main(names: list[str], folder: Path = BARS) -> int:
    """Run the named bars of a folder, or all of them in order of name, and print the table."""
    found = {path.name: path for path in find_bars(folder)}
    if unknown := [name for name in names if name not in found]:
        print(f"no bar called {', '.join(unknown)}; there are {', '.join(found) or 'none'}", file=sys.stderr)
        return 2
    results = [result for name in names or found for result in run_bar(found[name])]
    print_table(results)
    return int(any(result.holds is False for result in results))


def find_bars(folder: Path) -> list[Path]:
    """Return the executable files of a folder in order of name."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in entries if path.is_file() and os.access(path, os.X_OK))


def run_bar(path: Path) -> Iterator[BarResult]:
    """Run one bar and yield a result for each JSON line, printing the line at once.

    A bar that ends with a status other than 0, or without a line, is a bar that does not hold.
    """
    # A bar's shebang is `env python3`: the interpreter that runs this table stands first.
    path_first = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    environment = {**os.environ, "PATH": path_first, "PYTHONPATH": str(ROOT)}
    lines = 0
    with subprocess.Popen([str(path)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if (result := parse_line(line)) is not None:
                lines += 1
                yield result
    if process.returncode != 0 or lines == 0:
        why = f"ended with status {process.returncode} after {lines} JSON lines"
        yield BarResult(name=path.name, value="", bar="", baseline="", ratio="", holds=False, why=why)


def parse_line(line: str) -> BarResult | None:
    """Return the result that a line states, or None for a line that is not a bar's."""
    try:
        stated = json.loads(line)
    except json.JSONDecodeError:
        return None
    if not isinstance(stated, dict) or not stated.keys() >= set(FIELDS):
        return None
    shown = {name: _shown(stated[name]) for name in FIELDS if name != "holds"}
    return BarResult(holds=stated["holds"], why=str(stated.get("why", "")), **shown)


def print_table(results: list[BarResult]) -> None:
    """Print all results, one row each."""
    table = Table("bar", "value", "must be", "baseline", "ratio", "holds", "why")
    for result in results:
        verdict = {True: "yes", False: "NO", None: "not measured"}[result.holds]
        table.add_row(result.name, result.value, result.bar, result.baseline, result.ratio, verdict, result.why)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
    return str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
