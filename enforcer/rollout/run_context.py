"""What one run of rollout or undo works with: cluster, journal, guard, lease, policy, and a pod mover made of them.

Made by `gputide.container.enforcer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from enforcer.backends.hami_dialect import HAMI_DIALECT
from enforcer.cluster import ClusterReader, ClusterWriter, Lease, Pause, followed
from enforcer.dialect import Dialect
from enforcer.record.journal import Journal
from enforcer.rollout.node_steps import NodeStepPolicy, NodeSteps
from enforcer.rollout.patience import RIGHTS_SECONDS_MAX, Patience, PatientCluster
from enforcer.rollout.pod_mover import MovePolicy, PodMover
from enforcer.rollout.progress import Progress, ProgressPhase
from enforcer.rollout.watch import Signals, WatchPolicy
from enforcer.safety.abort_wish import LOOK_SECONDS, Aborted, SeldomAsked, Wishes, aborted_by
from enforcer.safety.guard import Guard
from enforcer.safety.harm_budget import HarmBudgets
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.decisions import Plan
from fleet.errors import GputideError, Refused, Unavailable
from fleet.inventory import WorkloadId
from fleet.logs import logger
from fleet.sentences import Sentence, sentence
from wire.kubernetes.refusals import Forbidden


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPolicy:
    """How carefully to go.

    Attributes:
        canary_workloads: workloads that are changed and watched before the rest of a stage.
        empty_seconds_max: how long pods that pass may take to end on a node that is released.
        leave_seconds_max: how long its owner may take to take a released node.
    """

    canary_workloads: int = 1
    watch_seconds: float = 600.0
    lease_seconds: float = 30.0
    empty_seconds_max: float = 900.0
    leave_seconds_max: float = 1800.0
    watch: WatchPolicy = field(default_factory=WatchPolicy)
    moving: MovePolicy = field(default_factory=MovePolicy)


def _unseen(_: Progress) -> None:
    """News that nobody reads."""


def _unkept() -> None:
    """A pause over which nothing is to be kept."""


def _unstopped(_: str) -> None:
    """A step that nobody stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """What a run is at.

    Attributes:
        cards_freed: cards that all stages of the run free together.
    """

    plan: Plan
    stage: int
    cards_freed: int


@dataclass(slots=True, kw_only=True)
class RunContext:
    """What rollout and undo work with; mutable: a test swaps the step at which it stops.

    What takes, renews or waits with the lease raises `Refused` where somebody else holds it.

    Attributes:
        harm: who watches what services suffer; None where nothing measures it.
        holder: name under which the lease is held; the same after a restart, so that a crash does not lock us out.
        wishes: which stages are wanted and approved: a run ends where its stage no longer is; None where nobody can
            say so.
        under_way: what a run is at; None while nothing is applied, or it is taken back.
    """

    reader: ClusterReader
    writer: ClusterWriter
    lease: Lease
    pause: Pause
    journal: Journal
    guard: Guard
    signals: Signals
    policy: RolloutPolicy = field(default_factory=RolloutPolicy)
    harm: HarmBudgets | None = None
    dialect: Dialect = HAMI_DIALECT
    holder: str = "gputide"
    on_progress: Callable[[Progress], None] = _unseen
    step: Callable[[str], None] = _unstopped
    wishes: Wishes | None = None
    under_way: UnderWay | None = None
    _taken_at: datetime | None = None
    _told: Progress | None = None

    def before_write(self, what: str) -> None:
        """Say what is about to be written to the cluster, and stop where another enforcer went on meanwhile.

        Raises:
            Unavailable: it did; what this one remembers of the run is old.
            Aborted: somebody asked to end the run.
        """
        self.step(what)
        self.check_abort()
        self.journal.check_fence()

    def check_abort(self, *, is_last: bool = False) -> None:
        """Nothing, as long as the stage that is under way is wanted, and as many approve it as must.

        Args:
            is_last: nobody looks again before the stage is kept: what was known a moment ago does not count.

        Raises:
            Aborted: somebody no longer wants it, or has withdrawn an approval.
        """
        if self.wishes is None or self.under_way is None:
            return
        if is_last and isinstance(self.wishes, SeldomAsked):
            self.wishes.renew()
        plan, stage = self.under_way.plan, self.under_way.stage
        try:
            wish, approvals = self.wishes.wish(plan.plan_id), self.wishes.approvals(plan.plan_id)
        except (Unavailable, Forbidden):
            return  # nobody can say anything now; what comes next waits for the cluster, and then looks again
        if wish.stages is not None and stage not in wish.stages:
            raise Aborted(aborted_by(wish.by))
        try:
            self.guard.check_approvals(plan, (stage,), approvals, self.under_way.cards_freed)
        except Refused as exc:
            raise Aborted(sentence("guard.approval_withdrawn", stage=stage, why=exc.said)) from exc

    def mover(self, *, is_slow: bool = False) -> PodMover:
        """A pod mover; a slow one changes one workload at a time."""
        policy = replace(self.policy.moving, parallel_pods_max=1) if is_slow else self.policy.moving
        return PodMover(self.cluster, policy, self.dialect)

    def node_steps(self) -> NodeSteps:
        """Who empties nodes and waits for them."""
        policy = NodeStepPolicy(
            poll_seconds=self.policy.moving.poll_seconds, empty_seconds_max=self.policy.empty_seconds_max,
            leave_seconds_max=self.policy.leave_seconds_max,
        )  # fmt: skip
        return NodeSteps(self.cluster, policy, self.dialect)

    def snapshot(self) -> Snapshot:
        """The cluster as it stands."""
        return self.patiently(lambda: take_snapshot(self.reader, self.dialect))

    @property
    def cluster(self) -> PatientCluster:
        """Reads and writes of a run, which keep its lease while they wait."""
        return PatientCluster(
            reader=self.reader, writer=self.writer, pause=self.rest, patiently=self.patiently, step=self.before_write
        )

    @property
    def patiently(self) -> Patience:
        """Makes calls again while the cluster can't take them; afterwards the lease must be ours still."""
        return self._patience(self._still_ours)

    def leave_events(self, workloads: Iterable[WorkloadId], reason: str, message: str) -> None:
        """Say on each workload what was done to it; one that can't be said now is left out, for it is no ledger."""
        for workload in dict.fromkeys(workloads):
            namespace, kind, name = workload.split("/", 2)
            try:
                self.writer.record_event(kind, namespace, name, reason, message)
            except GputideError as exc:
                logger("enforcer.rollout").warning(
                    "an event was not written", workload=workload, reason=reason, why=str(exc)
                )

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Hold the lease, and write the ledger alone; what was read before may be old."""
        self.take_lease()
        try:
            # A ledger that lies in a cluster which is away is waited for.
            self.journal.fence(self._patience(self.keep_lease))
            # Looking again costs a cluster little that is followed.
            with followed(self.reader):
                yield
        finally:
            self.let_go()

    def _patience(self, before_again: Callable[[], None]) -> Patience:
        """Patience of a run: once it holds the lease, a right that is missing is one that it had, and it asks again."""
        rights = 0.0 if self._taken_at is None else RIGHTS_SECONDS_MAX
        return Patience(self._wait, say=self._say_waiting, before_again=before_again, rights_seconds_max=rights)

    def take_lease(self) -> None:
        """Take or renew the lease, waiting for one that a crash left behind."""
        waited = 0.0
        acquire = self._patience(_unkept)
        while not acquire(lambda: self.lease.acquire(self.holder, self.policy.lease_seconds)):
            if waited > 2 * self.policy.lease_seconds:
                raise Refused(sentence("guard.lease_held"))
            self.pause(self.policy.moving.poll_seconds)
            waited += self.policy.moving.poll_seconds
        self._taken_at = self.now()

    def keep_lease(self) -> None:
        """Renew the lease if a third of its time is over: between the writes of one run, where it is in hand."""
        third = timedelta(seconds=self.policy.lease_seconds / 3)
        if self._taken_at is None or not timedelta(0) <= self.now() - self._taken_at < third:
            self.take_lease()

    def let_go(self) -> None:
        """Give the lease back at the end of a run; one that can't be given back runs out by itself."""
        self.journal.unfence()
        with suppress(Unavailable, Forbidden):
            self.lease.release(self.holder)

    def rest(self, seconds: float) -> None:
        """Let time pass without letting go of the lease (the port `Pause`).

        Raises:
            Refused: somebody else holds it, or somebody asked to end the run.
        """
        self._wait(seconds, self.keep_lease)

    def _wait(self, seconds: float, keep: Callable[[], None] = _unkept) -> None:
        """Let time pass in parts so small that nothing is missed."""
        longest = self.policy.lease_seconds / 3
        if self.wishes is not None:
            longest = min(longest, LOOK_SECONDS)
        left = seconds
        while left > 0:
            self.check_abort()
            keep()
            part = min(left, longest)
            self.pause(part)
            left -= part

    def now(self) -> datetime:
        """The cluster's clock, UTC."""
        return self._patience(_unkept)(self.reader.now)

    def _still_ours(self) -> None:
        """After the cluster was away: another may have gone on with the run.

        Raises:
            Unavailable: another enforcer went on.
        """
        self.keep_lease()
        self.journal.check_fence()

    def _say_waiting(self, why: GputideError, seconds: float) -> None:
        said = sentence("progress.waiting", seconds=seconds, why=why.said)
        if not seconds:
            logger("enforcer.rollout").warning("waits for the cluster, which does not answer", why=str(why))
        if self._told is not None:
            self.on_progress(replace(self._told, said=said))

    def tell(
        self, plan_id: str, stage: int, phase: ProgressPhase, said: Sentence, done: int = 0, total: int = 0
    ) -> None:
        """Report progress."""
        self._told = Progress(
            at=self.now(), plan_id=plan_id, stage=stage, phase=phase, said=said, done=done, total=total
        )
        self.on_progress(self._told)
