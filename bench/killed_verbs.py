"""Verbs that change a cluster, killed (-9) while they run, on the real API server: is there a change without an undo?

A namespace of three Deployments is planned, approved, applied and undone again and again, each verb in a process of its
own that is killed at a moment of its run time, and called again as an operator would. A verb waits for pods and for its
watch nine tenths of its time, and a cluster lets one plan be applied at a time, so two clusters are at it at once. What
is judged is read from the API server alone, objects and `GpuChange` records, by field names that a user sees with
`kubectl`.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.live_cluster import LiveCluster, live_cluster
from bench.live_faults import REPLICAS, STAGES, opened, plan_of
from bench.live_stages import LiveStage
from bench.safe_matrix.judge import Sight, differences
from tests.cluster.api import Api, Manifest
from tests.control_plane import KubernetesPrograms

VERBS = ("approve", "apply", "undo")
GROUP = "/apis/gputide.io/v1alpha1"
CLUSTERS = 2
"""At once."""
NODES = 2
NEVER_FEWER = {"maxSurge": 1, "maxUnavailable": 0}
START_SECONDS, WATCH_SECONDS = 0.3, 1
AGAIN_MAX = 5
"""How often an operator calls a verb before it counts as one that can't be brought to an end."""
SETTLE_SECONDS_MAX = 60.0
_FINE = (0, 4)
"""Done, or refused and taken back."""


def spread(count: int, chance: random.Random) -> list[float]:
    """Moments of a run as parts of its time, one at random in each of as many equal parts, in random order."""
    moments = [(part + chance.random()) / count for part in range(count)]
    chance.shuffle(moments)
    return moments


@dataclass(slots=True, kw_only=True)
class KilledVerbs:
    """How it goes; mutable: it grows.

    Attributes:
        kills: of each verb; one that ended before its moment was not killed.
        changed: applies that were killed after they had changed something.
        faults: what is wrong, one sentence each.
        seconds: of each verb without a kill, the shortest time that was seen.
    """

    kills: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    faults: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, live: LiveCluster, folder: Path, rounds: Sequence[Mapping[str, float]], deadline: float) -> None:
        """Kills each verb once a round, or until `deadline`, of time.monotonic().

        Args:
            rounds: of each the moment of each verb, as a part of its run time.
        """
        stage = LiveStage(
            live=live, slot=0, name="killed", folder=folder, start_seconds=START_SECONDS,
            watch_seconds=WATCH_SECONDS, nodes=NODES, strategy=NEVER_FEWER,
        )  # fmt: skip
        with stage:
            before = Sight.of(live.api, stage.name)
            self._unkilled(stage, before)
            for number, moments in enumerate(rounds):
                if time.monotonic() > deadline:
                    break
                self._round(stage, before, moments, number)
                if self.faults:
                    # What is left of one round would be blamed on the next.
                    break
            self._must(stage, "admin", "ledger", "verify")

    def _unkilled(self, stage: LiveStage, before: Sight) -> None:
        """How long each verb takes, and that it does what is to be interrupted."""
        plan_again(stage)
        for verb in VERBS:
            began = time.monotonic()
            self._must(stage, *words_of(stage, verb))
            self.seconds[verb] = time.monotonic() - began
            if verb == "apply" and not changed_objects(before, Sight.of(stage.live.api, stage.name)):
                raise AssertionError("apply changed nothing")
        self.faults += left_of(stage, before)

    def _round(self, stage: LiveStage, before: Sight, moments: Mapping[str, float], number: int) -> None:
        plan_again(stage)
        self._kill(stage, "approve", moments["approve"])
        self._must(stage, *words_of(stage, "approve"))
        stages = {
            stage_number
            for item in listed(stage.live.api, "gpuapprovals")
            if item["spec"]["plan"] == stage.planned.plan_id
            for stage_number in item["spec"]["stages"]
        }
        if stages != set(STAGES):
            self.faults.append(f"round {number}: approved again, and stages {sorted(stages)} have an approval")
        is_killed = self._kill(stage, "apply", moments["apply"])
        changed = changed_objects(before, Sight.of(stage.live.api, stage.name))
        self.changed += is_killed and bool(changed)
        self._check_known(stage, before, number)
        if number % 2 or not changed:
            self._again(stage, number, "apply")
            self._check_known(stage, before, number)
        self._kill(stage, "undo", moments["undo"])
        self._again(stage, number, "undo")
        self.faults += [f"round {number}, moments {dict(moments)}: {one}" for one in left_of(stage, before)]

    def _kill(self, stage: LiveStage, verb: str, moment: float) -> bool:
        """Starts a verb and kills it at a moment of its run time; whether it still ran then."""
        began = time.monotonic()
        stage.start(*words_of(stage, verb))
        with suppress(subprocess.TimeoutExpired):
            stage.applied(seconds_max=moment * self.seconds[verb])
            self.seconds[verb] = min(self.seconds[verb], time.monotonic() - began)
            return False
        stage.kill()
        status, _ = stage.applied()
        self.kills[verb] += status == -9
        return status == -9

    def _again(self, stage: LiveStage, number: int, verb: str) -> None:
        """Calls a verb until it says that it is over."""
        last = ""
        for _ in range(AGAIN_MAX):
            said = stage.call(*words_of(stage, verb))
            is_over = said.stderr.strip().endswith(("is applied", "undone already"))
            if said.returncode in _FINE or (verb == "undo" and is_over):
                return
            last = f"{said.returncode}: {said.stderr.strip()[-300:]}"
        self.faults.append(f"round {number}: {verb} ends with {last}")

    def _check_known(self, stage: LiveStage, before: Sight, number: int) -> None:
        """No object may have changed that no record in the cluster names."""
        changed = changed_objects(before, Sight.of(stage.live.api, stage.name))
        unknown = changed - set(recorded_objects(listed(stage.live.api, "gpuchanges"), stage.name))
        if unknown:
            self.faults.append(f"round {number}: {sorted(unknown)} changed, and no GpuChange names them")

    def _must(self, stage: LiveStage, *words: str) -> None:
        said = stage.call(*words)
        if said.returncode != 0:
            raise AssertionError(f"{' '.join(words)} ended with {said.returncode}: {said.stderr.strip()[-500:]}")


def run_beside(
    found: KubernetesPrograms, folder: Path, kills: int, chance: random.Random, deadline: float
) -> KilledVerbs:
    """Kills each of three verbs a third of so many times, or until `deadline`, on several clusters at once."""
    count = -(-kills // len(VERBS))
    moments = {verb: spread(count, chance) for verb in VERBS}
    rounds = [{verb: moments[verb][number] for verb in VERBS} for number in range(count)]

    def one(place: int) -> KilledVerbs:
        own, played = folder / str(place), KilledVerbs()
        own.mkdir(parents=True)
        with live_cluster(found, own) as live:
            played.run(live, own / "stage", rounds[place::CLUSTERS], deadline)
        return played

    whole = KilledVerbs()
    with ThreadPoolExecutor(CLUSTERS) as pool:
        for played in pool.map(one, range(CLUSTERS)):
            whole.kills += played.kills
            whole.changed += played.changed
            whole.faults += played.faults
            whole.seconds = {verb: min(took, whole.seconds.get(verb, took)) for verb, took in played.seconds.items()}
    return whole


def plan_again(stage: LiveStage) -> None:
    """Keeps a new plan, approved by nobody."""
    cluster = opened(stage.live.kubeconfig, stage.name)
    try:
        stage.planned = plan_of(cluster, stage.name, stage.slot, nodes=NODES)
    finally:
        cluster.close()
    stage.store(stage.planned)


def words_of(stage: LiveStage, verb: str) -> tuple[str, ...]:
    """A verb as it is typed; the writer approves nothing, so an administrator does."""
    if verb == "approve":
        administrator = f"enforcer.kubeconfig={stage.live.plane.kubeconfig()}"
        return "--set", administrator, "plan", "approve", "--plan", stage.planned.plan_id
    return verb, "--plan", stage.planned.plan_id, "--yes"


def listed(api: Api, plural: str) -> list[Manifest]:
    """All objects of a kind of gputide's."""
    found: list[Manifest] = api.ask("GET", f"{GROUP}/{plural}")["items"]
    return found


def changed_objects(before: Sight, now: Sight) -> set[str]:
    """Names of Deployments that are not as they were."""
    return {app for app, owner in before.owners.items() if differences(owner, now.owners[app])}


def recorded_objects(changes: Iterable[Manifest], namespace: str) -> dict[str, int]:
    """Deployments of a namespace that records of changes name, and how often (docs/custom-resources.yaml)."""
    found: dict[str, int] = defaultdict(int)
    for change in changes:
        for entry in change["spec"].get("entries", ()):
            text = entry.get("content") or zlib.decompress(base64.b64decode(entry["packed"]))
            for one in _mappings(json.loads(text)):
                if one.get("kind") == "Deployment" and one.get("namespace") == namespace:
                    found[one["name"]] += 1
    return found


def _mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(part)


def left_of(stage: LiveStage, before: Sight) -> list[str]:
    """What is not as it was before the plan, once pods have settled."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        now = Sight.of(stage.live.api, stage.name)
        complaints = now.complaints(REPLICAS)
        if not complaints or time.monotonic() > deadline:
            break
        time.sleep(0.3)
    different = [f"{app}{one}" for app in REPLICAS for one in differences(before.owners[app], now.owners[app])]
    return [*complaints, *different]
