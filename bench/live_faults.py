"""One fault at one step of a rollout, its restoration or an undo, on the real API server: does it end whole?

Three Deployments stand on a node of six cards that no other case has: c's two pods go to one card, then a's two and b's
one to another. Faults of the way come from a proxy (`faulty_way`); pods that never get ready are held by kwok, those
that run out of memory have it written in their status; a kill is SIGKILL of a process. What is left is judged from
objects as the API server gives them and from what HAMi's annotations say: none of the code that is judged is asked.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from bench.fault_words import Fault, Way
from bench.faulty_way import FaultyWay
from bench.live_cluster import ACCOUNT, LiveCluster
from bench.measured_run import ROOT
from bench.wholeness import APPLIED, ELSEWHERE, GONE, HALF, RESTORED, Verdict, ledger_complaints
from enforcer.backends.hami import HamiBackend
from enforcer.cluster import DELETION_COST_ANNOTATION
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.record.journal import Journal
from enforcer.record.ledger import Ledger
from enforcer.rollout.pod_mover import MovePolicy
from enforcer.rollout.progress import Progress, ProgressPhase
from enforcer.rollout.run_context import RolloutPolicy, RunContext
from enforcer.rollout.stages import Rollout
from enforcer.rollout.undo import Undo
from enforcer.rollout.watch import ClusterSignals
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.seat import PodSeat
from enforcer.snapshot import take_snapshot
from fleet.decisions import PlacedSlice, Plan, RecommendationKind
from fleet.documents import seal_plan
from fleet.errors import Refused, Unavailable
from fleet.grammars.hami import DEVICES_ALLOCATED_ANNOTATION, RegisteredDevice, parse_devices_allocated
from fleet.inventory import CardId, WorkloadId
from fleet.units import MIB
from tests.cluster.api import Api, Manifest
from tests.cluster.audit import unwanted
from tests.cluster.hami_double import NAMESPACE_LABEL, hami_node
from tests.cluster.workloads import deployment, is_ready, is_settled, pods, until, until_ready
from tests.control_plane import HOLD_ANNOTATION
from tests.enforcer.builders import a_plan, a_recommendation, a_slice, a_yes

POINTS: Mapping[Way, tuple[tuple[str, int], ...]] = {
    Way.APPLY: (
        ("patch team/Deployment/c", 1), ("watched canary", 2), ("patch team/Deployment/b", 1), ("promote", 1)
    ),
    Way.RESTORE: (("restore team/Deployment/a", 1),),
    Way.UNDO: (("restore team/Deployment/a", 1), ("settled", 1)),
}  # fmt: skip
"""Steps at which faults come: how they begin, and which of those that do; `team` stands for a case's own namespace."""

REPLICAS = {"a": 2, "b": 1, "c": 2}
STAGES = {1: ("c",), 2: ("a", "b")}
CARDS = 6
CARD_MIB = 24_576
GRANTED_MIB = {"a": CARD_MIB // 4, "b": CARD_MIB // 2, "c": CARD_MIB // 8}
COMPUTE_RATIOS = {"a": 0.25, "b": 0.5, "c": 0.5}
"""Of a card's compute, by the plan, for each pod: more pods of c fit a card by framebuffer than by compute."""
LEASE_SECONDS = 3.0
PLACEMENT_SECONDS_MAX = 20.0
SETTLE_SECONDS_MAX = 60.0
ROUNDS_MAX = 5
SLOTS = 4
"""Cases at once."""
_SLEEP_SECONDS_MAX = 1.0
_AWAY_SECONDS = 10.0
"""How long a server stays away: whoever changes the cluster waits for it."""
_GPUMEM = "nvidia.com/gpumem"
_PEOPLES_EXCEPT = ("deployment.kubernetes.io",)


@dataclass(slots=True, kw_only=True)
class LiveCase:
    """One case; mutable: it goes on.

    Attributes:
        live: the cluster.
        slot: number of the place where it runs, of which no two cases at once have the same.
        name: of its namespace.
        way: what is being done.
        fault: what goes wrong; None for nothing.
        point: at which step.
        folder: its own.
        seen: steps seen so far.
        gone: Deployments that somebody deleted.
        edited: Deployments of which somebody edited one of our fields.
    """

    live: LiveCluster
    slot: int
    name: str
    way: Way
    fault: Fault | None
    point: tuple[str, int]
    folder: Path
    seen: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    edited: set[str] = field(default_factory=set)
    _faulty: FaultyWay = field(init=False)
    _kubeconfig: Path = field(init=False)
    _cluster: KubernetesCluster = field(init=False)
    _plan: Plan = field(init=False)
    _hurting: threading.Event = field(init=False, default_factory=threading.Event)
    _has_struck: bool = False

    def run(self) -> Verdict:
        """Do it, let the fault loose, go on as an operator would, and judge."""
        self._faulty = FaultyWay(self.live.plane)
        try:
            self._kubeconfig = self._faulty.kubeconfig(self.folder, self.live.kubeconfig)
            stand_up(self.live.api, self.name, self.slot, account=self.live.account)
            before = self._sight()
            self._cluster = opened(self._kubeconfig, self.name)
            self._plan = plan_of(self._cluster, self.name, self.slot)
            self._do()
            return self._judged(before)
        finally:
            self._hurting.set()
            self._unhold()
            if hasattr(self, "_cluster"):
                self._cluster.close()
            self._faulty.close()
            clear_away(self.live.api, self.name)

    @property
    def workloads(self) -> set[str]:
        """`namespace/Deployment/name` of all that the plan changes."""
        return {f"{self.name}/Deployment/{app}" for app in REPLICAS}

    def _do(self) -> None:
        if self.way is Way.UNDO:
            Rollout(self._tools(), HamiBackend(self._cluster.now())).apply(
                self._plan, by="bench", approved=lambda: a_yes(self._plan, 1, 2)
            )
        elif self.way is Way.RESTORE:
            self.live.double.held.add((self.name, "b-"))
        if self.fault is Fault.KILL:
            self._killed()
            self._operate(is_again=True)
        else:
            tools = self._tools()
            tools.step = self._at
            is_again = self._try(lambda: self._go(tools))
            # Whoever is told that a pod does not get ready sees to the pod first.
            if self.fault is not Fault.NEVER_READY:
                self._operate(is_again=is_again)
        if self.fault is not None and not self._has_struck:
            raise AssertionError(f"{self.way} had no step {self.point}: {self.seen}")
        if self.fault is None and not self.seen:
            raise AssertionError(f"{self.way} took no step")
        self._faulty.skew = timedelta(0)
        self._mend()
        self._operate(is_again=False)

    def _tools(self, **changes: Any) -> RunContext:
        def hear(news: Progress) -> None:
            # Who can't run with the changed grant can run again with the former one.
            if news.phase is ProgressPhase.RESTORING and self.way is not Way.UNDO:
                self._hurting.set()
                self.live.double.held -= {(self.name, f"{app}-") for app in REPLICAS}

        return tools_of(self._cluster, self.folder, on_progress=hear, **changes)

    def _go(self, tools: RunContext) -> None:
        if self.way is Way.UNDO:
            Undo(tools).undo(self._plan.plan_id)
        else:
            Rollout(tools, HamiBackend(self._cluster.now())).apply(
                self._plan, by="bench", approved=lambda: a_yes(self._plan, 1, 2)
            )

    def _is_point(self, step: str) -> bool:
        self.seen.append(step.replace(f"{self.name}/", "team/"))
        start, number = self.point
        return [name.startswith(start) for name in self.seen].count(True) == number and self.seen[-1].startswith(start)

    def _at(self, step: str) -> None:
        if self._is_point(step) and self.fault is not None:
            self._has_struck = True
            self._strike(step)

    def _killed(self) -> None:
        """Let another process do it, which SIGKILL ends at the step."""
        with (self.folder / "order.pickle").open("wb") as file:
            pickle.dump((self._kubeconfig, self.name, self.folder, self.way, self.point, self._plan), file)
        child = subprocess.run(
            [sys.executable, "-m", "bench.live_faults", str(self.folder / "order.pickle")],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, cwd=ROOT, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        if child.returncode != -signal.SIGKILL:
            raise AssertionError(f"{self.way} had no step {self.point} to be killed at: status {child.returncode}")
        self._has_struck = True
        self.live.double.held -= {(self.name, f"{app}-") for app in REPLICAS}

    def _strike(self, step: str) -> None:
        """Let the fault loose."""
        app = _victim(step)
        match self.fault:
            case Fault.NEVER_READY:
                self.live.double.held.add((self.name, f"{app}-"))
            case Fault.OUT_OF_MEMORY:
                known = {pod["metadata"]["uid"] for pod in pods(self.live.api, self.name, app)}
                threading.Thread(target=self._hurt, args=(app, known), daemon=True).start()
            case Fault.DELETED | Fault.EDITED_BESIDE | Fault.EDITED:
                self._meddle(app)
            case Fault.TWO | Fault.STALLED:
                self._rival(is_stalled=self.fault is Fault.STALLED)
            case _:
                self._spoil_way()

    def _spoil_way(self) -> None:
        way = self._faulty
        if self.fault in (Fault.AWAY, Fault.BROKEN):
            threading.Timer(_AWAY_SECONDS, way.cure).start()
        match self.fault:
            case Fault.CONFLICT:
                way.refused = [409, 409]
            case Fault.BUSY:
                way.refused = [429, 429]
            case Fault.BROKEN:
                way.is_broken = True
            case Fault.TIME_OUT:
                way.lost_answers = 1
            case Fault.WATCH_CUT:
                way.cut_watches()
                way.cut_reads = 3
            case Fault.AWAY:
                way.is_away = True
                way.cut_watches()
            case Fault.CLOCK_ON:
                way.skew = timedelta(days=2)
            case Fault.CLOCK_BACK:
                way.skew = timedelta(hours=-1)

    def _meddle(self, app: str) -> None:
        """Somebody deletes or edits a Deployment."""
        path = f"/apis/apps/v1/namespaces/{self.name}/deployments/{app}"
        match self.fault:
            case Fault.DELETED:
                self.live.api.delete(path)
                self.gone.add(app)
            case Fault.EDITED_BESIDE:
                self.live.api.patch(path, {"spec": {"revisionHistoryLimit": 7}})
            case Fault.EDITED:
                self._edit(path)
                self.edited.add(app)

    def _edit(self, path: str) -> None:
        """Somebody gives the pods an amount of framebuffer of their own."""
        operations = self.live.api.ask("GET", path)["spec"]["template"]["spec"]["containers"][0]["resources"]
        limits = {**operations.get("limits", {}), _GPUMEM: "9000"}
        container = {"name": "server", "resources": {"limits": limits, "requests": limits}}
        change = {"spec": {"template": {"spec": {"containers": [container]}}}}
        self.live.api.ask("PATCH", path, change, content_type="application/strategic-merge-patch+json")

    def _hurt(self, app: str, known: set[str]) -> None:
        """Write into the status of each new pod that its container was killed for want of memory."""
        while not self._hurting.wait(0.1):
            for pod in pods(self.live.api, self.name, app):
                if pod["metadata"]["uid"] in known or not is_ready(pod):
                    continue
                known.add(pod["metadata"]["uid"])
                (told,) = pod["status"]["containerStatuses"]
                told |= {"restartCount": 1, "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
                place = f"/api/v1/namespaces/{self.name}/pods/{pod['metadata']['name']}/status"
                self.live.api.patch(place, {"status": {"containerStatuses": [told]}})

    def _rival(self, *, is_stalled: bool) -> None:
        """Another enforcer wants to do the same, while this one lives, or while it stands still."""
        cluster = opened(self._kubeconfig, self.name)

        def pause(seconds: float) -> None:
            time.sleep(min(seconds, _SLEEP_SECONDS_MAX))
            if not is_stalled:
                self._cluster.acquire("gputide", LEASE_SECONDS)

        try:
            tools = self._tools(holder="rival", pause=pause, reader=cluster, writer=cluster, lease=cluster)
            self._try(lambda: self._go(tools))
        finally:
            cluster.close()

    def _try(self, call: Callable[[], object]) -> bool:
        """Call; whether it is worth calling again."""
        try:
            call()
        except Refused:
            return False
        except Unavailable:
            return self.fault is not Fault.STALLED
        return False

    def _operate(self, *, is_again: bool) -> None:
        """Call again as long as there is a reason to, the way being good again."""
        for _ in range(ROUNDS_MAX):
            self._faulty.cure()
            tools = self._tools()
            call: Callable[[], object]
            if is_again:
                call = lambda: self._go(tools)  # noqa: E731, B023 - called at once
            elif tools.journal.open_undos():
                call = lambda: Undo(tools).resume(self._plan.plan_id)  # noqa: E731, B023
            elif any(run.is_open for run in tools.journal.runs(self._plan.plan_id)):
                call = lambda: Rollout(tools, HamiBackend(self._cluster.now())).resume(self._plan)  # noqa: E731, B023
            else:
                return
            is_again = self._try(call) and is_again

    def _mend(self) -> None:
        """What kept pods from getting ready is mended."""
        self._hurting.set()
        self._unhold()
        until(
            lambda: all(
                is_ready(pod)
                for app in REPLICAS.keys() - self.gone
                for pod in pods(self.live.api, self.name, app)
                if pod["spec"].get("nodeName")
            ),
            f"pods of {self.name} are ready",
            SETTLE_SECONDS_MAX,
        )

    def _unhold(self) -> None:
        self.live.double.held -= {(self.name, f"{app}-") for app in REPLICAS}
        for app in REPLICAS:
            for pod in pods(self.live.api, self.name, app):
                if HOLD_ANNOTATION in pod["metadata"].get("annotations", {}):
                    place = f"/api/v1/namespaces/{self.name}/pods/{pod['metadata']['name']}"
                    self.live.api.patch(place, {"metadata": {"annotations": {HOLD_ANNOTATION: None}}})

    def _judged(self, before: Sight) -> Verdict:
        left = [app for app in REPLICAS if app not in self.gone]
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        after = self._sight()
        while time.monotonic() < deadline and (
            after.complaints or not all(is_settled(self.live.api, self.name, app) for app in left)
        ):
            time.sleep(0.2)
            after = self._sight()
        complaints = list(after.complaints)
        ends = {}
        for stage, apps in STAGES.items():
            ends[stage], why = self._end_of(before, after, [app for app in apps if app not in self.gone])
            complaints += [f"stage {stage}: {sentence}" for sentence in why]
        complaints += ledger_complaints(Ledger(self.folder / "ledger.jsonl"), self._plan.plan_id, ends)
        return Verdict(ends=tuple(ends.values()), complaints=tuple(complaints))

    def _end_of(self, before: Sight, after: Sight, apps: list[str]) -> tuple[str, list[str]]:
        if not apps:
            return GONE, []
        ends = {app: self._end_of_app(before, after, app) for app in apps}
        theirs = {app for app, end in ends.items() if end == "theirs"}
        said = set(ends.values()) - {"theirs"}
        if not said:
            # All that is left of the stage is what somebody set; the ledger tells which way the rest went.
            return GONE, []
        if len(said) == 1 and HALF not in said:
            return said.pop(), []
        if said == {RESTORED, ELSEWHERE}:
            return ELSEWHERE, []
        return HALF, [f"{app} is {end}: {after.shown(app)}" for app, end in ends.items() if app not in theirs]

    def _end_of_app(self, before: Sight, after: Sight, app: str) -> str:
        old, new = before.objects.get(app), after.objects.get(app)
        if old is None or new is None:
            return HALF
        is_held = _beside_template(old) != _beside_template(new)
        if app in self.edited:
            return HALF if is_held else "theirs"
        if old == new:
            granted = Counter(mib for _, mib in after.grants[app].elements())
            if granted != Counter({CARD_MIB: REPLICAS[app]}):
                return HALF
            return RESTORED if after.grants[app] == before.grants[app] else ELSEWHERE
        return APPLIED if after.grants[app] == planned_grants(self._plan, app) and not is_held else HALF

    def _sight(self) -> Sight:
        return Sight.of(self.live.api, self.name, self.gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a case went.

    Attributes:
        way: what was being done.
        point: at which step.
        fault: what went wrong.
        verdict: how it ended.
        writes: what the enforcer wrote to the case's namespace.
        unwanted: those of them that the plan does not ask for.
    """

    way: Way
    point: tuple[str, int]
    fault: Fault
    verdict: Verdict
    writes: int
    unwanted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A case's namespace as it stands.

    Attributes:
        objects: Deployments, without what the server and its controllers count.
        grants: card and MiB of each ready pod, by Deployment.
        complaints: pods that are not ready, too many, or still marked, one sentence each.
    """

    objects: Mapping[str, Any]
    grants: Mapping[str, Counter[tuple[str, int]]]
    complaints: tuple[str, ...]

    @classmethod
    def of(cls, api: Api, namespace: str, gone: set[str]) -> Sight:
        """Look."""
        found = api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]
        grants: dict[str, Counter[tuple[str, int]]] = {}
        complaints = []
        for app, replicas in REPLICAS.items():
            own = pods(api, namespace, app)
            grants[app] = Counter(part for pod in own if is_ready(pod) for part in _granted(pod))
            complaints += [f"{pod['metadata']['name']} is not ready" for pod in own if not is_ready(pod)]
            marked = [pod for pod in own if DELETION_COST_ANNOTATION in pod["metadata"].get("annotations", {})]
            complaints += [f"{pod['metadata']['name']} is still marked" for pod in marked]
            if len(own) != (0 if app in gone else replicas):
                complaints.append(f"{app} has {len(own)} pods")
        return cls(
            objects={item["metadata"]["name"]: _as_written(item) for item in found},
            grants=grants,
            complaints=tuple(complaints),
        )

    def shown(self, app: str) -> str:
        """What stands of a Deployment, for a message."""
        return f"{dict(self.grants[app])}, {json.dumps(_beside_template(self.objects.get(app) or {}))[:400]}"


Wanted = tuple[Way, tuple[str, int], Fault]
"""What is being done, at which step, and what goes wrong there."""


def every(faults: Sequence[Fault]) -> list[Wanted]:
    """Every fault at every point."""
    return [(way, point, fault) for way, points in POINTS.items() for point in points for fault in faults]


def run_cases(live: LiveCluster, wanted: Sequence[Wanted], folder: Path, tell: Callable[[str], None]) -> list[Outcome]:
    """Run cases, several at once.

    Args:
        live: the cluster.
        wanted: which.
        folder: for ledgers.
        tell: hears how far it is.
    """
    slots: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(SLOTS):
        slots.put(slot)
    done = itertools.count(1)

    def run(number: int, way: Way, point: tuple[str, int], fault: Fault) -> Outcome:
        slot, name = slots.get(), f"case-{number}"
        own = folder / name
        own.mkdir()
        began = live.audit.size()
        case = LiveCase(live=live, slot=slot, name=name, way=way, fault=fault, point=point, folder=own)
        try:
            found = case.run()
        except AssertionError as exc:
            found = Verdict(ends=(HALF,), complaints=(str(exc),))
        finally:
            slots.put(slot)
        writes = [write for write in live.writes(began) if write.namespace == name]
        stray = unwanted(writes, case.workloads, lease_namespace=name)
        tell(f"{next(done)} of {len(wanted)}: {way} {point[0]} x {fault}: {'+'.join(found.ends)} {found.complaints}")
        return Outcome(way=way, point=point, fault=fault, verdict=found, writes=len(writes), unwanted=len(stray))

    with ThreadPoolExecutor(SLOTS) as pool:
        return list(pool.map(lambda job: run(job[0], *job[1]), enumerate(wanted)))


def stand_up(
    api: Api,
    namespace: str,
    slot: int,
    *,
    annotations: dict[str, str] | None = None,
    nodes: int = 1,
    strategy: Manifest | None = None,
    account: str = ACCOUNT,
) -> None:
    """A namespace of three Deployments on nodes of their own, with the lease of their own enforcer.

    Args:
        annotations: of their pods.
        nodes: nodes of six cards.
        strategy: of their rolling updates; None for no surge and one pod unavailable.
        account: service account of the enforcer.
    """
    make_namespace(api, namespace, account)
    for place in range(nodes):
        make_node(api, slot, place)
    until(lambda: api.has(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"), "pods may be made", 120.0)
    for app, replicas in REPLICAS.items():
        deployment(
            api, namespace, app, replicas=replicas, limits={"nvidia.com/gpu": "1"},
            spec=None if strategy is None else {"strategy": {"rollingUpdate": strategy}},
            pod_spec={"nodeSelector": {"slot": str(slot)}}, annotations=annotations,
        )  # fmt: skip
    for app, replicas in REPLICAS.items():
        until_ready(api, namespace, app, replicas)


def make_namespace(api: Api, namespace: str, account: str = ACCOUNT) -> None:
    """A namespace that HAMi admits pods of, with the lease of its own enforcer."""
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": {NAMESPACE_LABEL: "on"}}})
    rules = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]}]
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "gputide"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lease"}
    prefix = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    api.create(f"{prefix}/roles", {"metadata": {"name": "lease"}, "rules": rules})
    api.create(f"{prefix}/rolebindings", {"metadata": {"name": "lease"}, "roleRef": role, "subjects": [subject]})


def node_name(slot: int, place: int) -> str:
    """Name of a slot's node."""
    return f"slot-{slot}-{place}" if place else f"slot-{slot}"


def make_node(api: Api, slot: int, place: int) -> None:
    """A slot's node."""
    name = node_name(slot, place)
    devices = [
        RegisteredDevice(
            card=_card_id(slot, place * CARDS + number), slices_max=10, framebuffer_mib=CARD_MIB, core_percent=100,
            device_type="NVIDIA-NVIDIA A10", numa=0, is_healthy=True, index=number, mode="hami-core",
        )
        for number in range(CARDS)
    ]  # fmt: skip
    hami_node(api, name, devices)
    api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"slot": str(slot)}}, "spec": {"unschedulable": None}})


def clear_away(api: Api, namespace: str) -> None:
    """Take a case's namespace away, and wait until its cards are free."""
    for app in REPLICAS:
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{app}"
        if api.has(path):
            api.delete(path)
    listed = f"/api/v1/namespaces/{namespace}/pods"
    until(lambda: not api.ask("GET", listed)["items"], f"pods of {namespace} are gone", 120.0)
    api.delete(f"/api/v1/namespaces/{namespace}")


def opened(kubeconfig: Path, namespace: str) -> KubernetesCluster:
    """The cluster with the writer's rights; the lease lies in the case's namespace."""
    return KubernetesCluster(
        ClusterPlace(kubeconfig=kubeconfig, namespace=namespace, requests_per_second=500.0, requests_burst=500)
    )


def tools_of(cluster: KubernetesCluster, folder: Path, **changes: Any) -> RunContext:
    """What a case's rollout and undo work with; who waits for a server to recover waits a second at most."""
    tools = RunContext(
        reader=cluster, writer=cluster, lease=cluster,
        pause=lambda seconds: time.sleep(min(seconds, _SLEEP_SECONDS_MAX)),
        journal=Journal(Ledger(folder / "ledger.jsonl")), guard=Guard(GuardPolicy(gaps_allowed=True)),
        signals=ClusterSignals(cluster),
        policy=RolloutPolicy(
            watch_seconds=1.0, lease_seconds=LEASE_SECONDS,
            moving=MovePolicy(poll_seconds=0.5, placement_seconds_max=PLACEMENT_SECONDS_MAX),
        ),
    )  # fmt: skip
    for name, value in changes.items():
        setattr(tools, name, value)
    return tools


def plan_of(cluster: KubernetesCluster, namespace: str, slot: int, *, nodes: int = 1) -> Plan:
    """Both of c's pods to one card, then a's and b's to another.

    Args:
        nodes: how many the slot has; on more than one the two cards are free ones of different nodes, so that all pods
            can surge, on one they are cards that a pod of c and of a holds.
    """
    seats = {app: take_snapshot(cluster).pods[WorkloadId(f"{namespace}/Deployment/{app}")] for app in REPLICAS}
    homes = {app: min(seat.cards[0] for seat in seats[app]) for app in ("a", "c")}
    if nodes > 1:
        taken = {card for own in seats.values() for seat in own for card in seat.cards}
        free = [card for card in map(partial(_card_id, slot), range(nodes * CARDS)) if card not in taken]
        homes = {"c": free[0], "a": free[-1]}
    node_of = {_card_id(slot, number): node_name(slot, number // CARDS) for number in range(nodes * CARDS)}
    onto = {homes["a"]: ("a", "b"), homes["c"]: ("c",)}
    placed = [[_placed(app, seat) for app in apps for seat in seats[app]] for apps in onto.values()]
    stages = [
        [
            replace(
                a_recommendation(f"colocate-{stage}", RecommendationKind.COLOCATE, [], [], len(apps)),
                pods=tuple(seat.pod_id for app in apps for seat in seats[app]),
                workloads=tuple(WorkloadId(f"{namespace}/Deployment/{app}") for app in apps),
            )
        ]
        for stage, apps in STAGES.items()
    ]
    now = cluster.now()
    plan = a_plan(dict(enumerate(placed)), stages, cards_before=5, expires_at=now + timedelta(days=1))
    cards = tuple(
        replace(card, card=CardId(home), node=node_of[home], framebuffer_bytes=CARD_MIB * MIB)
        for card, home in zip(plan.placement, onto, strict=True)
    )
    history = replace(plan.history, since=now - timedelta(days=7), until=now)
    return seal_plan(replace(plan, placement=cards, created_at=now, history=history))


def planned_grants(plan: Plan, app: str) -> Counter[tuple[str, int]]:
    """Card and MiB of each pod that a plan of `plan_of` gives a Deployment."""
    card = next(str(card.card) for card in plan.placement for part in card.slices if part.workload.endswith(f"/{app}"))
    return Counter({(card, GRANTED_MIB[app]): REPLICAS[app]})


def be_killed(order: Path) -> None:
    """Do what another process ordered, until SIGKILL at the step that it named."""
    with order.open("rb") as file:
        kubeconfig, namespace, folder, way, point, plan = pickle.load(file)  # noqa: S301 - we wrote it
    cluster = opened(kubeconfig, namespace)
    seen: list[str] = []

    def step(name: str) -> None:
        seen.append(name.replace(f"{namespace}/", "team/"))
        start, number = point
        if seen[-1].startswith(start) and [one.startswith(start) for one in seen].count(True) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    tools = tools_of(cluster, folder, step=step)
    if way is Way.UNDO:
        Undo(tools).undo(plan.plan_id)
    else:
        Rollout(tools, HamiBackend(cluster.now())).apply(plan, by="bench", approved=lambda: a_yes(plan, 1, 2))


def _placed(app: str, seat: PodSeat) -> PlacedSlice:
    part = a_slice(
        f"{app}-0", framebuffer_bytes=GRANTED_MIB[app] * MIB, compute_ratio=COMPUTE_RATIOS[app]
    )  # fmt: skip
    return replace(part, namespace=seat.namespace, pod=seat.pod, workload=seat.workload)


def _victim(step: str) -> str:
    """The Deployment that a step is about; b where it names none."""
    for app in REPLICAS:
        if f"/Deployment/{app}" in step:
            return app
    return "b"


def _card_id(slot: int, number: int) -> str:
    return f"GPU-{slot:08d}-0000-0000-0000-{number:012d}"


def _granted(pod: Manifest) -> list[tuple[str, int]]:
    text = pod["metadata"].get("annotations", {}).get(DEVICES_ALLOCATED_ANNOTATION, "")
    return [(grant.card, grant.framebuffer_mib) for parts in parse_devices_allocated(text) for grant in parts]


def _as_written(item: Manifest) -> Any:
    annotations = item["metadata"].get("annotations") or {}
    by_people = {name: value for name, value in annotations.items() if not name.startswith(_PEOPLES_EXCEPT)}
    spec = {name: value for name, value in item["spec"].items() if name != "revisionHistoryLimit"}
    return {"spec": spec, "labels": item["metadata"].get("labels"), "annotations": by_people}


def _beside_template(written: Any) -> Any:
    return {name: value for name, value in written.get("spec", {}).items() if name != "template"}


if __name__ == "__main__":
    be_killed(Path(sys.argv[1]))
