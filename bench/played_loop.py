"""One backend's loop through the command line: replay, plan, approve, apply stage by stage, verify, undo.

Freed cards are counted where the simulated cluster really has its pods, not where a plan says they are.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bench.measured_run import GPUTIDE
from enforcer.simulated.cluster import SimulatedCluster
from fleet.capabilities.register import capabilities_of

KINDS = ("ConfigMap", "DaemonSet", "Deployment", "Job", "Node", "Notebook", "StatefulSet")
NOT_APPLIED = (4, 5)
"""Exit statuses of a verb that a guard stopped, and of one that could not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedLoop:
    """What came of it.

    Attributes:
        planned: cards that the plan frees by stages that `apply` carries out.
        kept: those of stages that were kept.
        freed: cards that pods held before and none holds after.
        refused: why stages were not kept, by their number.
        changed: objects that are not as they were before the plan, once it was undone.
        outcome: what `verify` says, None where nothing was applied.
        undone: what `undo` says; None where it said nothing.
        advice: the plan, as `plan show` writes it.
        replayed: what `admin replay` said of the days after the plan; None where nothing was applied.
    """

    planned: int
    stages: int
    kept: int
    freed: int
    refused: dict[str, str]
    changed: list[tuple[str, str, str]]
    outcome: dict[str, Any] | None
    verdict: str | None
    undone: str | None
    advice: dict[str, Any]
    replayed: str | None


def caller(backend: str, data: Path, *more: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """What calls verbs on one data folder, whose simulated cluster plays a backend.

    Args:
        more: further settings, `name=value`.
    """

    def call(*verb: str, fine: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
        settings = [f"enforcer.backend={backend}", "enforcer.experimental=true", *more]
        if not capabilities_of(backend).admits_pods:
            # Its template changes all replicas at once; the demo says yes to that, too.
            settings.append("guard.gaps_allowed=true")
        flags = [word for setting in settings for word in ("--set", setting)]
        said = subprocess.run(
            [GPUTIDE, "--data-dir", data, "--quiet", *flags, *verb], check=False, capture_output=True, text=True
        )
        if said.returncode not in fine:
            sys.exit(f"{backend}: {' '.join(verb)} ended with {said.returncode}: {said.stderr[-600:]}")
        return said

    return call


def play(
    backend: str, trace: Path, until: datetime, data: Path, *more: str, judged: timedelta = timedelta(days=0.5)
) -> PlayedLoop:
    """Learn from a trace up to a moment, change the cluster, look at what comes then, and take it back.

    Args:
        more: further settings, `name=value`.
        judged: how long is played after the plan.
    """
    call = caller(backend, data, *more)
    call("admin", "replay", str(trace), "--until", until.isoformat())
    call("plan", "make")
    plan = json.loads(call("plan", "show", "--format", "json").stdout)
    before, held = seen(data)
    tides = {one["id"] for one in plan["recommendations"] if one["kind"] == "tide"}
    # `gputide run tide` plays those, night by night.
    stages = [stage for stage in plan["stages"] if tides.isdisjoint(stage["recommendations"])]
    refused = {}
    for stage in stages:
        number = str(stage["stage"])
        call("plan", "approve", "--stage", number)
        said = call("apply", "--yes", "--stage", number, fine=(0, *NOT_APPLIED))
        if said.returncode:
            refused[number] = said.stderr.strip().splitlines()[-1][:300]
    kept = sum(stage["cards_freed"] for stage in stages if str(stage["stage"]) not in refused)
    freed = len(held) - len(seen(data)[1])
    outcome, verdict, undone, replayed = None, None, None, None
    if len(refused) < len(stages):
        replayed = call("admin", "replay", str(trace), "--until", (until + judged).isoformat()).stdout
        verdict = next(line for line in call("verify", fine=(0, 1)).stdout.splitlines() if line.strip())
        outcome = json.loads(call("verify", "--format", "json", fine=(0, 1)).stdout)
        # Where pods that waited took freed cards meanwhile, some of the plan's can't have theirs back.
        undone = call("undo", "--yes", fine=(0, NOT_APPLIED[1])).stderr.strip()[:300] or None
    after, _ = seen(data)
    # Users end and begin workloads while half a day is played.
    changed = [name for name, body in before.items() if after.get(name, body) != body]
    return PlayedLoop(
        planned=sum(stage["cards_freed"] for stage in stages), stages=len(stages), kept=kept, freed=freed,
        refused=refused, changed=changed, outcome=outcome, verdict=verdict, undone=undone, advice=plan,
        replayed=replayed,
    )  # fmt: skip


def seen(data: Path) -> tuple[dict[tuple[str, str, str], str], set[str]]:
    """What users and plugins wrote, without versions and sizes, and the cards that pods hold."""
    found = {}
    with closing(SimulatedCluster.open(data / "cluster.sqlite")) as cluster:
        for kind in KINDS:
            for one in cluster.list_objects(kind):
                own = one["metadata"].items()
                metadata = {key: value for key, value in own if key not in ("resourceVersion", "generation")}
                spec = {key: value for key, value in one.get("spec", {}).items() if key != "replicas"}
                name = (kind, metadata.get("namespace", ""), metadata["name"])
                found[name] = json.dumps([metadata, spec, one.get("data")], sort_keys=True)
        return found, {seat.card for seat in cluster.seats() if seat.card is not None}
