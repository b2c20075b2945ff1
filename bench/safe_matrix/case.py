"""One case of the matrix: a fault at a phase of a plan that `gputide apply` carries out on the real API server.

Three Deployments of one, two and two pods stand on two nodes of six cards, by a strategy that never has a pod less than
wanted; containers take a second to start. The plan moves a's and b's pods to one free card and c's to another. The
verbs are called as an operator calls them. After the fault the operator does what anybody would: waits for the process
that applies, aborts where it was killed or gave up, and in the end undoes. Then the case is judged (`judge`).
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.faulty_way import FaultyWay
from bench.live_cluster import LiveCluster
from bench.live_faults import COMPUTE_RATIOS, REPLICAS, STAGES, planned_grants
from bench.live_stages import DATA, MOMENTS, LiveStage
from bench.safe_matrix.judge import (
    RESCHEDULED_SECONDS_MAX,
    Sampler,
    Sight,
    differences,
    end_of,
    not_as_planned,
    stray_writes,
    with_compute,
)
from tests.cluster.api import Manifest

NODES = 2
NEVER_FEWER = {"maxSurge": 1, "maxUnavailable": 0}
START_SECONDS = 1.0
WATCH_SECONDS = 4
SETTLE_SECONDS_MAX = 45.0
QUIET_SECONDS = 3.0
ABORT_SECONDS_MAX = 60.0
OPERATED_MAX = 4
"""How often the operator tries to bring a plan to an end."""
LIFTED_SECONDS = (3.0, 25.0)
"""How long after it came what the API server refuses is lifted."""
_BEGUN_SECONDS_MAX = 60.0
_FINE = (0, 4)
"""Applied, or refused and taken back."""
_GOES_ON = 5
"""It is not over yet, and somebody else goes on with it."""


class Phase(StrEnum):
    """When the fault comes."""

    CANARY = "canary starts"
    WATCHED = "canary is watched"
    REST = "rest follows"
    APPLIED = "applied"
    UNDOING = "undoing"


APPLYING = (Phase.CANARY, Phase.WATCHED, Phase.REST)
"""Phases at which a process applies."""
_ENDS = {Phase.APPLIED: {"applied"}, Phase.UNDOING: {"restored"}}
"""How stages must end where the fault comes after the apply; before, either way is right."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Wanted:
    """A cell of the matrix.

    Attributes:
        fault: name of the fault.
        phase: when it comes.
        seed: of every chance.
    """

    fault: str
    phase: Phase
    seed: int


@dataclass(slots=True, kw_only=True)
class Case:
    """A case under way; mutable: it goes on.

    Attributes:
        live: the cluster.
        wanted: what it is.
        slot: number of its nodes, of which no two at once have the same.
        name: of its namespace.
        folder: its own.
        chance: every chance of it.
        stage: what is applied.
        sampler: what is seen of the pods.
        way: a bad way to the API server, where the fault needs one.
        replicas: pods that each Deployment's users want now.
        theirs: what people changed of each Deployment: `replicas`, `template`.
        keeps: what people changed and must find as they left it.
        cures: what ends the fault.
        lifts: what ends it once the undo has begun.
        displaced: Deployments whose pods may be on other cards than planned, because of the fault.
        refused: credentials by which somebody was to apply a plan that was refused.
        has_struck: the fault met what it was meant for.
        complaints: what is not as it should be, one sentence each.
        operator_data: data folder from which the operator aborts.
        hurt_at: monotonic seconds of the fault.
        is_killed: the process that applies is killed.
    """

    live: LiveCluster
    wanted: Wanted
    slot: int
    name: str
    folder: Path
    chance: random.Random = field(init=False)
    stage: LiveStage = field(init=False)
    sampler: Sampler = field(init=False)
    replicas: dict[str, int] = field(default_factory=lambda: dict(REPLICAS))
    theirs: dict[str, set[str]] = field(default_factory=lambda: {app: set() for app in REPLICAS})
    keeps: list[tuple[str, Callable[[Manifest], bool]]] = field(default_factory=list)
    cures: list[Callable[[], None]] = field(default_factory=list)
    lifts: list[Callable[[], None]] = field(default_factory=list)
    displaced: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    has_struck: bool = True
    complaints: list[str] = field(default_factory=list)
    operator_data: str = DATA
    way: FaultyWay | None = None
    hurt_at: float = 0.0
    is_killed: bool = False

    def run(self, strike: Callable[[Case], None], prepare: Callable[[Case], None]) -> dict[str, Any]:
        """Do it and judge; the figures of one line."""
        self.chance = random.Random(f"{self.wanted.fault} {self.wanted.phase} {self.wanted.seed}")
        self.folder.mkdir(parents=True)
        self.stage = LiveStage(
            live=self.live, slot=self.slot, name=self.name, folder=self.folder / "stage",
            start_seconds=START_SECONDS, watch_seconds=WATCH_SECONDS, nodes=NODES, strategy=NEVER_FEWER,
        )  # fmt: skip
        prepare(self)
        began, audited = time.monotonic(), self.live.audit.size()
        try:
            with self.stage:
                before = Sight.of(self.live.api, self.name)
                self.stage.plan()
                self.sampler = Sampler(api=self.live.api, namespace=self.name, least=dict(REPLICAS))
                with self.sampler:
                    found = self._done(strike, before)
            writes = stray_writes(self.live.audit.writes(audited), self.name, REPLICAS, self.refused)
        finally:
            self._cure()
            self._lift()
            if self.way is not None:
                self.way.close()
            shutil.rmtree(self.folder)
        return {
            **found, "complaints": [*self.complaints, *self.sampler.blindness], "struck": self.has_struck,
            "breaches": self.sampler.breaches, "looks": len(self.sampler.looks),
            "apart_seconds_max": round(self.sampler.apart_seconds_max, 1), "unwanted": writes,
            "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip

    def _done(self, strike: Callable[[Case], None], before: Sight) -> dict[str, Any]:
        phase = self.wanted.phase
        self.stage.apply()
        if phase in APPLYING:
            self.stage.until(MOMENTS[phase.value], self.watched_app())
            time.sleep(self.chance.uniform(0.0, 1.0))
        else:
            self._ended(must_be=(0,))
        if phase is Phase.UNDOING:
            self._start_undo()
            time.sleep(self.chance.uniform(0.0, 4.0))
        if phase is not Phase.APPLIED and not self.stage.is_applying:
            self.miss("the verb had ended")
        self.hurt_at = time.monotonic()
        strike(self)
        self._operate()
        rescheduled = self._settled()
        after = Sight.of(self.live.api, self.name)
        pending = [pod for own in after.pods.values() for pod in own if not pod["spec"].get("nodeName")]
        ends = self._judge(before, after)
        spread = self._spread(after)
        self._cure()
        if phase is not Phase.UNDOING:
            self._undo()
        return {
            "ends": ends, "pending": len(pending), "rescheduled_seconds": rescheduled, "spread": spread,
            "undo": self._left(before),
        }  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the process that applies or undoes."""
        if not self.stage.is_applying:
            self.miss("the verb had ended before it was killed")
        self.stage.kill()
        self.is_killed = True

    def miss(self, why: str) -> None:
        """The fault met nothing that it could hurt, so that the case proves nothing."""
        self.has_struck = False
        self.complaints.append(f"the fault never struck: {why}")

    def watched_app(self) -> str:
        """Whose moment the fault comes at: of stage 1 or 2, whose canary is the Deployment of one pod."""
        if self.wanted.seed % 2:
            return "c"
        return "a" if self.wanted.phase is Phase.REST else "b"

    def hasten(self, *, must_end: bool = True) -> None:
        """Let the operator abort what is under way at once; it must end, unless the fault keeps pods from starting."""
        self._end("abort", fine=_FINE if must_end else (*_FINE, _GOES_ON), is_bounded=must_end)

    def _operate(self) -> None:
        """What an operator does: waits, and brings to an end what was left under way."""
        status = self._ended(must_be=()) if self.stage.is_started and not self.is_killed else 0
        for _ in range(OPERATED_MAX):
            if not self.is_killed and status in _FINE:
                return
            status = self._end("undo" if self.wanted.phase is Phase.UNDOING else "abort")
            self.is_killed = False
        self.complaints.append(f"the operator could not end it: status {status}")

    def _end(self, verb: str, fine: Sequence[int] = _FINE, *, is_bounded: bool = True) -> int:
        words = ("undo", "--yes") if verb == "undo" else ("apply", "--abort", "--yes")
        began = time.monotonic()
        said = self.stage.call(*words, data=self.operator_data)
        seconds = time.monotonic() - began
        if verb == "abort" and is_bounded and seconds > ABORT_SECONDS_MAX:
            self.complaints.append(f"the abort took {seconds:.0f} s")
        is_over = verb == "undo" and said.stderr.strip().endswith(("is applied", "undone already"))
        if said.returncode not in fine and not is_over:
            self.complaints.append(f"{verb} ended with {said.returncode}: {said.stderr.strip()[-300:]}")
        return 0 if is_over else said.returncode

    def _ended(self, *, must_be: tuple[int, ...]) -> int:
        status, words = self.stage.applied()
        if must_be and status not in must_be:
            raise AssertionError(f"it ended with {status}: {words}")
        if status not in (*_FINE, 5):
            self.complaints.append(f"it ended with {status}: {words}")
        return status

    def _settled(self) -> float | None:
        """Wait for pods to settle; seconds from the fault until no pod was missing, None where some still is.

        A controller of somebody's acts some seconds later: they have settled once nothing has moved for as long.
        """
        since = time.monotonic()
        deadline = since + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline and time.monotonic() - since < QUIET_SECONDS:
            if Sight.of(self.live.api, self.name).complaints(self.replicas):
                since = time.monotonic()
            time.sleep(0.3)
        seconds = self.sampler.seconds_short(self.hurt_at, self.replicas)
        return None if seconds is None else round(seconds, 1)

    def _judge(self, before: Sight, after: Sight) -> list[str]:
        self.complaints += after.complaints(self.replicas)
        found = []
        for stage, apps in STAGES.items():
            ends = {app: end_of(before.owners[app], after.owners[app], self.theirs[app]) for app in apps}
            own = set(ends.values()) - {"theirs"}
            if len(own) > 1 or "half" in own:
                self.complaints.append(f"stage {stage} is half: {ends}")
            elif not own <= _ENDS.get(self.wanted.phase, own):
                self.complaints.append(f"stage {stage} is not as the verb should leave it: {ends}")
            for app in apps:
                if ends[app] == "applied":
                    self.complaints += not_as_planned(
                        after.owners[app], after.pods[app], planned_grants(self.stage.planned, app),
                        is_displaced=app in self.displaced,
                    )  # fmt: skip
            found.append("+".join(sorted(set(ends.values()))))
        for app, is_kept in self.keeps:
            if not is_kept(after.owners[app]):
                self.complaints.append(f"{app} is not as somebody set it")
        return found

    def _spread(self, after: Sight) -> dict[str, int]:
        """Replicas beyond the planned ones, and how many of them have compute."""
        app = next((app for app in REPLICAS if self.replicas[app] > REPLICAS[app]), None)
        if app is None:
            return {}
        pods = [pod for own in after.pods.values() for pod in own]
        served = with_compute(pods, app, REPLICAS[app], COMPUTE_RATIOS)
        return {"beyond": self.replicas[app] - REPLICAS[app], "with_compute": served}

    def _start_undo(self) -> None:
        """Start to undo, and wait until the first object is written."""
        before = self._generations()
        self.stage.start("undo", "--yes")
        deadline = time.monotonic() + _BEGUN_SECONDS_MAX
        while self.stage.is_applying and self._generations() == before and time.monotonic() < deadline:
            time.sleep(0.2)

    def _generations(self) -> list[int]:
        owners = Sight.of(self.live.api, self.name).owners
        return [owners[app]["metadata"]["generation"] for app in sorted(owners)]

    def _undo(self) -> None:
        """Undo what is applied; what is to be lifted meanwhile is lifted once the undo has begun."""
        if (self.stage.folder / DATA).exists():
            self.operator_data = DATA
        if self.lifts:
            self._start_undo()
            time.sleep(self.chance.uniform(*LIFTED_SECONDS))
            if not self.stage.is_applying:
                self.miss("the undo had ended")
            self._lift()
            if self._ended(must_be=()) == 0:
                return
        self._end("undo", fine=(0,))

    def _left(self, before: Sight) -> list[str]:
        """Where objects differ from before once all is undone, but for what people changed."""
        self._settled()
        after = Sight.of(self.live.api, self.name)
        self.complaints += [f"after undo {one}" for one in after.complaints(self.replicas)]
        return [
            f"{app}{difference}"
            for app in REPLICAS
            if not self.theirs[app]
            for difference in differences(before.owners[app], after.owners[app])
        ]

    def _cure(self) -> None:
        while self.cures:
            self.cures.pop()()

    def _lift(self) -> None:
        while self.lifts:
            self.lifts.pop()()


def is_good(line: Mapping[str, Any]) -> bool:
    """Whether a case went as it should; one that was not judged did not."""
    if line["unwanted"] is None:
        return False
    is_late = line["rescheduled_seconds"] is None or line["rescheduled_seconds"] > RESCHEDULED_SECONDS_MAX
    bad = (line["complaints"], line["breaches"], line["unwanted"], line["pending"], line["undo"])
    return not any(bad) and not (line["fault"].startswith(("node", "card")) and is_late)
