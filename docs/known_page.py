"""The page about what gputide knows on each path by which it can see a cluster, from what a bar measured.

Called by `docs/generate.py`. `known-by-path.json` is written by `bench/bars/live-paths --seed 0 --known FILE`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATHS = {
    "trace": "neutral trace",
    "own": "gputide's exporters",
    "others": "others' exporters",
    "default-counters": "others, no SM active",
    "no-profiling": "others, no profiling",
    "scan": "`scan`",
}
"""Paths and the heads of their columns, the truth first."""
KINDS = {
    "grant": "Who holds what",
    "card": "Cards",
    "node": "Nodes",
    "slice": "What pods use",
    "of_card": "What cards use",
}
KNOWN_MIN = 0.98
"""Share of the trace's from which a path knows as much."""
_INTRODUCTION = """\
One fleet of eighty cards over a week, seen on every path: as a recorded trace; by gputide's own exporters; by
dcgm-exporter with pod labels, kube-state-metrics, HAMi and vLLM with the chart's recording rules
([how](receiver.md)), with all counters, without `DCGM_FI_PROF_SM_ACTIVE`, and without any `DCGM_FI_PROF_` counter;
and by `gputide scan` of the Prometheus that holds the same. A cell says of how many objects, or in how many steps,
it was known; the first line says what a path is worth (`bench/bars/live-paths --seed 0 --known
docs/known-by-path.json`).
"""
WHY_NOT: dict[tuple[str, str], str] = {}
"""Fields that a trace has and no live path gives, and why."""


def known_page(path: Path) -> str:
    """The Markdown page.

    Args:
        path: `known-by-path.json`.

    Raises:
        KeyError: a field that the trace has and no live path gives is not named in `WHY_NOT`.
    """
    known = json.loads(path.read_text(encoding="utf-8"))
    heads = [head for name, head in PATHS.items() if name in known]
    lines = [
        "# What each source knows\n",
        _INTRODUCTION,
        f"| | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
        _line("**cards that the plan frees**", [str(one["cards_freed"]) for one in _in_order(known)]),
    ]
    absent = []
    for kind, title in KINDS.items():
        names = sorted({name for one in known.values() for name in one.get(kind, ())})
        lines.append(_line(f"**{title}**", [""] * len(heads)))
        for name in names:
            shares = [one.get(kind, {}).get(name, 0.0) for one in _in_order(known)]
            if any(shares):
                lines.append(_line(f"`{name}`", [_cell(share) for share in shares]))
            else:
                absent.append(f"`{name}` ({title[0].lower()}{title[1:]})")
    lines.append("\nThis fleet has none of: " + ", ".join(sorted(absent)) + ".\n")
    missing = [f"- `{name}`: {WHY_NOT[kind, name]}" for kind, name in never_live(known)]
    if missing:
        lines += ["## What only a trace knows\n", *missing, ""]
    return "\n".join(lines)


def never_live(known: dict[str, Any]) -> list[tuple[str, str]]:
    """Fields that the trace has and no live path knows as well."""
    live = [one for name, one in known.items() if name != "trace"]
    return [
        (kind, name)
        for kind in KINDS
        for name, share in sorted(known["trace"].get(kind, {}).items())
        if share and max((one.get(kind, {}).get(name, 0.0) for one in live), default=0.0) < KNOWN_MIN * share
    ]


def _in_order(known: dict[str, Any]) -> list[dict[str, Any]]:
    return [known[name] for name in PATHS if name in known]


def _line(head: str, cells: list[str]) -> str:
    return f"| {head} | {' | '.join(cells)} |"


def _cell(share: float) -> str:
    if not share:
        return "–"
    return "yes" if share >= 0.995 else f"{share:.0%}".replace("%", " %")
