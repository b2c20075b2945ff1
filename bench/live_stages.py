"""A stage that `gputide apply` carries out on the real API server, and what people do meanwhile: a hotfix, an abort.

Three Deployments stand on a node of six cards (`bench.live_faults`). Containers take some seconds to start, as those of
services on cards do: kwok holds each pod back until it was bound for so long. The verbs are called as an operator calls
them, each in a process of its own, with the writer's rights and a data folder that holds the plan.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.live_cluster import LiveCluster
from bench.live_faults import REPLICAS, STAGES, Sight, clear_away, opened, plan_of, stand_up
from bench.measured_run import ROOT
from enforcer.rollout.held_mark import HELD_ANNOTATION
from fleet.data_folder import open_data_folder
from fleet.decisions import Plan
from fleet.settings.settings import Settings
from gputide.container.plans import keep_plan
from tests.cluster.api import Manifest
from tests.cluster.workloads import is_ready, is_settled, pods, until
from tests.control_plane import ENDS_WITH_US, HOLD_ANNOTATION

PROGRAM = Path(sys.executable).with_name("gputide")
WAIT_SECONDS_MAX = 240.0
HOTFIX = "gputide-bench/hotfix"
DATA = "data"
"""The data folder of the machine that applies; another stands for another machine."""


@dataclass(slots=True, kw_only=True)
class LiveStage:
    """A fleet, a plan for it, and the process that applies it; mutable: it goes on.

    Attributes:
        live: the cluster.
        slot: number of the node, of which no two at once have the same.
        name: of the namespace.
        folder: its own.
        start_seconds: how long a container takes to start.
        watch_seconds: how long a change is watched.
        nodes: how many nodes of six cards there are; see `bench.live_faults.plan_of`.
        strategy: of the Deployments' rolling updates; None for no surge and one pod unavailable.
        kubeconfig: of the verbs; None for the writer's.
        stuck: Deployments whose containers do not start.
        before: the Deployments before anything is applied.
        planned: the plan of `plan`.
    """

    live: LiveCluster
    slot: int
    name: str
    folder: Path
    start_seconds: float
    watch_seconds: int
    nodes: int = 1
    strategy: Manifest | None = None
    kubeconfig: Path | None = None
    stuck: set[str] = field(default_factory=set)
    before: Sight = field(init=False)
    planned: Plan = field(init=False)
    _cluster_name: str = ""
    _applying: subprocess.Popen[str] | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> LiveStage:
        self.folder.mkdir(parents=True)
        threading.Thread(target=self._start_containers, daemon=True).start()
        stand_up(
            self.live.api, self.name, self.slot, annotations={HOLD_ANNOTATION: "starting"}, nodes=self.nodes,
            strategy=self.strategy,
        )  # fmt: skip
        self.before = Sight.of(self.live.api, self.name, set())
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        clear_away(self.live.api, self.name)
        self._over.set()

    def plan(self) -> None:
        """Keep a plan, approved."""
        cluster = opened(self.live.kubeconfig, self.name)
        self.planned = plan_of(cluster, self.name, self.slot, nodes=self.nodes)
        cluster.close()
        self.keep(self.planned)

    def keep(self, plan: Plan, data: str = DATA) -> None:
        """Keep a plan in a data folder, approved."""
        self.store(plan, data)
        # The writer approves nothing.
        kubeconfig = self.live.plane.kubeconfig()
        said = self.call("--set", f"enforcer.kubeconfig={kubeconfig}", "plan", "approve", data=data)
        if said.returncode != 0:
            raise AssertionError(said.stderr)

    def store(self, plan: Plan, data: str = DATA) -> None:
        """Keep a plan in a data folder; the verbs know the cluster by the name that the first one has."""
        self._cluster_name = self._cluster_name or plan.cluster
        folder = open_data_folder(self.folder / data, create=True)
        settings = Settings.model_validate(
            {"enforcer": {"cluster": "kubernetes", "kubeconfig": str(self.live.kubeconfig)}}
        )
        keep_plan(folder, settings, plan)

    def call(self, *verb: str, data: str = DATA) -> subprocess.CompletedProcess[str]:
        """Call the program on a data folder and wait for its end."""
        words = self._words(*verb, data=data)
        return subprocess.run(words, check=False, capture_output=True, text=True, env=_environ())

    def apply(self) -> None:
        """Start to apply the plan, in a process of its own."""
        self.start("apply", "--yes")

    def start(self, *verb: str) -> None:
        """Start a verb in a process of its own."""
        self._applying = subprocess.Popen(
            self._words(*verb), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=_environ(),
        )  # fmt: skip

    def applied(self, *, seconds_max: float = WAIT_SECONDS_MAX) -> tuple[int, str]:
        """Exit status and last words of the process that applies, once it has ended.

        Raises:
            TimeoutExpired: it takes longer.
        """
        if self._applying is None:
            raise AssertionError("nothing was applied")
        ended = self._applying
        _, said = ended.communicate(timeout=seconds_max)
        self._applying = None
        return ended.returncode, said.strip()[-300:]

    @property
    def is_started(self) -> bool:
        """Whether a verb was started of which the end was not heard yet."""
        return self._applying is not None

    @property
    def is_applying(self) -> bool:
        """Whether the process that applies is still there."""
        return self._applying is not None and self._applying.poll() is None

    def kill(self) -> None:
        """SIGKILL to the process that applies."""
        if self._applying is not None and self.is_applying:
            self._applying.send_signal(signal.SIGKILL)
            self._applying.wait()

    def stop(self, seconds: float) -> None:
        """Let the process that applies stand still for a while."""
        if self._applying is not None and self.is_applying:
            self._applying.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self._applying.send_signal(signal.SIGCONT)

    def until(self, moment: Callable[[Manifest, list[Manifest]], bool], app: str) -> None:
        """Wait for a moment of a Deployment and its pods.

        Raises:
            AssertionError: the process that applies ended before, with its last words.
        """
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not moment(self.owner(app), pods(self.live.api, self.name, app)):
            if time.monotonic() > deadline or (self._applying is not None and self._applying.poll() is not None):
                raise AssertionError(f"{self.name} never came to it: {self.applied()}")
            time.sleep(0.05)

    def owner(self, app: str) -> Manifest:
        """A Deployment as it stands."""
        found: Manifest = self.live.api.ask("GET", f"/apis/apps/v1/namespaces/{self.name}/deployments/{app}")
        return found

    def hotfix(self, app: str) -> float:
        """Change the template of a Deployment as a user does; seconds until all its pods are ready and have it."""
        path = f"/apis/apps/v1/namespaces/{self.name}/deployments/{app}"
        began = time.monotonic()
        self.live.api.patch(path, {"spec": {"template": {"metadata": {"annotations": {HOTFIX: "1"}}}}})

        def is_available() -> bool:
            own = pods(self.live.api, self.name, app)
            ready = [pod for pod in own if is_ready(pod)]
            return len(ready) == REPLICAS[app] and all(HOTFIX in pod["metadata"]["annotations"] for pod in own)

        until(is_available, f"the hotfix of {self.name}/{app} is available", WAIT_SECONDS_MAX)
        return time.monotonic() - began

    def complaints(self) -> list[str]:
        """What is not whole, one sentence each, once pods have settled."""
        with suppress(AssertionError):
            until(lambda: all(is_settled(self.live.api, self.name, app) for app in REPLICAS) and not self._seen(), "",
                  60.0)  # fmt: skip
        return self._seen()

    def _seen(self) -> list[str]:
        now = Sight.of(self.live.api, self.name, set())
        found = list(now.complaints)
        for stage, apps in STAGES.items():
            ends = {app: _end_of(self.before.objects[app], now.objects[app]) for app in apps}
            if len(set(ends.values())) > 1 or "half" in ends.values():
                found.append(f"stage {stage}: {ends}")
        return found

    def _words(self, *verb: str, data: str = DATA) -> list[str]:
        chosen = {
            "cluster.name": self._cluster_name, "enforcer.cluster": "kubernetes",
            "enforcer.kubeconfig": self.kubeconfig or self.live.kubeconfig, "enforcer.namespace": self.name,
            "enforcer.poll_seconds": 0.5, "enforcer.watch_seconds": self.watch_seconds, "enforcer.lease_seconds": 15,
            "enforcer.requests_per_second": 500, "enforcer.requests_burst": 500,
        }  # fmt: skip
        flags = [flag for name, value in chosen.items() for flag in ("--set", f"{name}={value}")]
        return [*ENDS_WITH_US, str(PROGRAM), "--data-dir", str(self.folder / data), *flags, *verb]

    def _start_containers(self) -> None:
        """A pod that was bound for some seconds starts."""
        bound: dict[str, float] = {}
        while not self._over.is_set():
            with suppress(Exception):
                for pod in self.live.api.ask("GET", f"/api/v1/namespaces/{self.name}/pods")["items"]:
                    metadata = pod["metadata"]
                    if pod["spec"].get("nodeName") and HOLD_ANNOTATION in metadata.get("annotations", {}):
                        since = bound.setdefault(metadata["uid"], time.monotonic())
                        is_stuck = metadata.get("labels", {}).get("app") in self.stuck
                        if time.monotonic() - since >= self.start_seconds and not is_stuck:
                            place = f"/api/v1/namespaces/{self.name}/pods/{metadata['name']}"
                            self.live.api.patch(place, {"metadata": {"annotations": {HOLD_ANNOTATION: None}}})
            time.sleep(0.25)


def is_held(owner: Manifest, _: list[Manifest]) -> bool:
    """A stage holds it: its first new pod starts."""
    return HELD_ANNOTATION in owner["metadata"].get("annotations", {})


def is_canary_ready(owner: Manifest, own: list[Manifest]) -> bool:
    """Its first new pod is ready and watched."""
    return is_held(owner, own) and bool(owner["spec"].get("minReadySeconds")) and owner["status"].get(
        "updatedReplicas"
    ) == 1 and sum(map(is_ready, own)) == len(own)  # fmt: skip


def is_rest(owner: Manifest, own: list[Manifest]) -> bool:
    """All its pods follow."""
    return is_held(owner, own) and not owner["spec"].get("minReadySeconds")


MOMENTS: Mapping[str, Callable[[Manifest, list[Manifest]], bool]] = {
    "canary starts": is_held, "canary is watched": is_canary_ready, "rest follows": is_rest
}  # fmt: skip
"""When people act."""


def _end_of(before: Any, now: Any) -> str:
    if now == before:
        return "restored"
    parts = [{name: value for name, value in one["spec"].items() if name != "template"} for one in (before, now)]
    marks = now["annotations"]
    return "half" if parts[0] != parts[1] or HELD_ANNOTATION in marks else "applied"


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "PYTHONWARNINGS": "ignore"}
