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
from bench.live_faults import REPLICAS, STAGES
from bench.live_stages import DATA, MOMENTS, LiveStage
from bench.safe_matrix.judge import (
    RESCHEDULED_SECONDS_MAX,
    Sampler,
    Sight,
    differences,
    end_of,
    shares_of,
    stray_writes,
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
_FINE = (0, 4)
"""Applied, or refused and taken back."""


class Phase(StrEnum):
    """When the fault comes."""

    CANARY = "canary starts"
    WATCHED = "canary is watched"
    REST = "rest follows"
    APPLIED = "applied"
    UNDOING = "undoing"


APPLYING = (Phase.CANARY, Phase.WATCHED, Phase.REST)
"""Phases at which a process applies."""


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
            writes = stray_writes(self.live.audit.writes(audited), self.name, f"slot-{self.slot}", REPLICAS)
        finally:
            self._cure()
            if self.way is not None:
                self.way.close()
            shutil.rmtree(self.folder)
        return {
            **found, "breaches": self.sampler.breaches, "looks": len(self.sampler.looks), "unwanted": writes,
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
            self.stage.start("undo", "--yes")
            time.sleep(self.chance.uniform(2.0, 8.0))
        self.hurt_at = time.monotonic()
        strike(self)
        self._operate()
        rescheduled = self._settled()
        after = Sight.of(self.live.api, self.name)
        pending = [pod for own in after.pods.values() for pod in own if not pod["spec"].get("nodeName")]
        ends = self._judge(before, after)
        spread = self._spread(after)
        self._cure()
        undone = self._undo(before) if phase is not Phase.UNDOING else []
        return {
            "ends": ends, "complaints": self.complaints, "pending": len(pending), "rescheduled_seconds": rescheduled,
            "spread": spread, "undo": undone,
        }  # fmt: skip

    def watched_app(self) -> str:
        """Whose moment the fault comes at: of stage 1 or 2, whose canary is the Deployment of one pod."""
        if self.wanted.seed % 2:
            return "c"
        return "a" if self.wanted.phase is Phase.REST else "b"

    def hasten(self) -> None:
        """Let the operator abort what is under way at once."""
        self._end("abort")

    def _operate(self) -> None:
        """What an operator does: waits, and brings to an end what was left under way."""
        status = self._ended(must_be=()) if self.stage.is_started and not self.is_killed else 0
        for _ in range(OPERATED_MAX):
            if not self.is_killed and status in _FINE:
                return
            status = self._end("undo" if self.wanted.phase is Phase.UNDOING else "abort")
            self.is_killed = False
        self.complaints.append(f"the operator could not end it: status {status}")

    def _end(self, verb: str, fine: Sequence[int] = _FINE) -> int:
        words = ("undo", "--yes") if verb == "undo" else ("apply", "--abort", "--yes")
        began = time.monotonic()
        said = self.stage.call(*words, data=self.operator_data)
        seconds = time.monotonic() - began
        if verb == "abort" and seconds > ABORT_SECONDS_MAX:
            self.complaints.append(f"the abort took {seconds:.0f} s")
        is_over = verb == "undo" and "nothing is applied" in said.stderr
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
            found.append("+".join(sorted(set(ends.values()))))
        for app, is_kept in self.keeps:
            if not is_kept(after.owners[app]):
                self.complaints.append(f"{app} is not as somebody set it")
        return found

    def _spread(self, after: Sight) -> dict[str, int]:
        """Replicas beyond the planned ones, and how many of them have compute: at most two pods sit on their card."""
        app = next((app for app in REPLICAS if self.replicas[app] > REPLICAS[app]), None)
        if app is None:
            return {}
        shares = shares_of(pod for own in after.pods.values() for pod in own)
        crowded = sum(max(0, sum(one == app for _, one in pods) - 2) for pods in shares.values())
        beyond = self.replicas[app] - REPLICAS[app]
        return {"beyond": beyond, "with_compute": max(0, beyond - crowded)}

    def _undo(self, before: Sight) -> list[str]:
        """Undo what is applied; where objects differ from before, but for what people changed."""
        if (self.stage.folder / DATA).exists():
            self.operator_data = DATA
        self._end("undo", fine=(0,))
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


def is_good(line: Mapping[str, Any]) -> bool:
    """Whether a case went as it should."""
    is_late = line["rescheduled_seconds"] is None or line["rescheduled_seconds"] > RESCHEDULED_SECONDS_MAX
    bad = (line["complaints"], line["breaches"], line["unwanted"], line["pending"])
    return not any(bad) and not (line["fault"].startswith(("node", "card")) and is_late)
