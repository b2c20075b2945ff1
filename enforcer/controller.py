"""Looks at every plan again and again, and makes of each what is wanted what is in force.

One process acts, the holder of the lease `controller`; others stand by. It keeps nothing: what is wanted, what is
approved and what is in force stand in the cluster, so a new holder goes on where the last one stopped. A plan that is
refused, or a cluster that is away, is tried again with growing pauses. Called by the command line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from enforcer.cluster import Lease
from enforcer.record.journal import Journal, RunRecord, StageState
from enforcer.record.plan_store import PlanStore, Wish
from enforcer.rollout.reconciler import Reconciler, due
from enforcer.rollout.restore import Stuck
from fleet.errors import GputideError, Unavailable
from fleet.logs import logger
from wire.kubernetes.backoff import Backoff
from wire.own_metrics import OwnMetrics

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 10.0, 300.0
"""Shortest and longest pause before a plan that was refused is tried again."""
DEPARTURES_SECONDS = 300.0
"""How often is looked for pods elsewhere than planned: it lists the pods of each namespace with planned seats."""
LEASE_SECONDS = 30.0

_log = logger("enforcer.controller")


class ControllerMetrics:
    """What a controller counts."""

    def __init__(self, own: OwnMetrics) -> None:
        self.looks = own.passes("look", "look at all plans")
        self.is_leader = own.gauge("leader", "1 while this process is the one that acts, else 0.")
        self.plans = own.gauge("plans", "Plans of which something is wanted or under way.")
        self.waiting = own.gauge(
            "plans_waiting", "Plans that were refused and wait to be tried again: depth of the queue."
        )
        self.acts = own.counter("acts_total", "Times that something was done for a plan.")
        self.reconcile_seconds = own.histogram("reconcile_seconds", "Time of one reconciliation of one plan, seconds.")
        self.reconcile_errors = own.counter(
            "reconcile_errors_total", "Reconciliations of one plan that ended in an error, by its kind.", "error"
        )
        self.api_requests = own.followed_counter("api_requests_total", "Requests to the API server.")


@dataclass(slots=True)
class _Retry:
    """When a plan is tried again; mutable: it goes on.

    Attributes:
        signature: what was wanted and approved when it was refused: once that changes, it is tried at once.
    """

    signature: tuple[object, ...]
    at: float
    backoff: Backoff


class Controller:
    """Looks at all plans.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self,
        plans: PlanStore,
        journal: Journal,
        reconciler: Reconciler,
        metrics: ControllerMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._plans = plans
        self._journal = journal
        self._reconciler = reconciler
        self._metrics = metrics
        self._clock = clock
        self._retries: dict[str, _Retry] = {}
        self._shown: dict[str, tuple[object, ...]] = {}
        self._departures_at: float | None = None

    def look(self) -> bool:
        """Do once, for each plan, what is due; returns whether anything was done.

        Raises:
            Unavailable: the cluster can't be reached.
            Misconfigured: a right is missing.
        """
        with self._metrics.looks.one():
            undos, wishes, runs = self._journal.open_undos(), self._plans.wishes(), _by_plan(self._journal.runs())
            found = {plan_id: (wish, runs.get(plan_id, ())) for plan_id, wish in wishes.items()}
            if self._departures_at is None or self._clock() >= self._departures_at:
                self._reconciler.look_for_departures()
                self._departures_at = self._clock() + DEPARTURES_SECONDS
            active = [wish.stages is not None or _is_open(own) for wish, own in found.values()]
            self._metrics.plans.set(sum(active))
            # The record of changes is enough to take back what is open of a plan that was deleted, or can't be read.
            open_ids = dict.fromkeys((*undos, *(plan_id for plan_id, own in runs.items() if _is_open(own))))
            lone = [plan_id for plan_id in open_ids if plan_id not in found]
            done = [self._tried(plan_id, (), partial(self._reconciler.end_orphan, plan_id)) for plan_id in lone]
            # A run that is open holds up all others: it goes first.
            ordered = sorted(found.items(), key=lambda item: not _is_open(item[1][1]))
            done += [self._one(plan_id, wish, own, plan_id in undos) for plan_id, (wish, own) in ordered]
            damaged = {plan_id: plan for plan_id, plan in self._plans.damaged().items() if plan_id not in undos}
            for plan_id, plan in damaged.items():
                say = partial(self._reconciler.say_damaged, plan_id, plan)
                self._tried(plan_id, ("damaged",), partial(self._show, plan_id, (plan.why, plan.wish.generation), say))
            known = {*found, *lone, *damaged}
            self._retries = {plan_id: retry for plan_id, retry in self._retries.items() if plan_id in known}
            self._metrics.waiting.set(len(self._retries))
        return any(done)

    def _one(self, plan_id: str, wish: Wish, runs: Sequence[RunRecord], is_undoing: bool) -> bool:
        approved = self._plans.copied_approvals(plan_id)
        stages = frozenset(stage for approval in approved for stage in approval.stages)
        if due(wish, runs, stages, is_undoing=is_undoing, tides=partial(self._tides, plan_id)).is_nothing:
            stands = (wish, approved, _states(runs), self._reconciler.departed(plan_id))
            say = partial(self._reconciler.say, plan_id)
            return self._tried(plan_id, ("shown",), partial(self._show, plan_id, stands, say))
        signature = (wish.generation, stages, len(approved))
        return self._tried(plan_id, signature, lambda: self._reconciler.reconcile(self._plans.get(plan_id)))

    def _tides(self, plan_id: str) -> frozenset[int]:
        try:
            return self._reconciler.tide_stages(plan_id)
        except GputideError:
            return frozenset()  # what is wrong with the plan is said where it is reconciled

    def _show(self, plan_id: str, stands: tuple[object, ...], say: Callable[[], None]) -> bool:
        """Say where a plan stands of which nothing is due, once; others may have changed it."""
        if self._shown.get(plan_id) != stands:
            say()
            self._shown[plan_id] = stands
        return False

    def _tried(self, plan_id: str, signature: tuple[object, ...], act: Callable[[], bool]) -> bool:
        """Act for a plan, unless that was refused a moment ago; whether anything was done."""
        retry = self._retries.get(plan_id)
        if retry is not None and retry.signature == signature and self._clock() < retry.at:
            return False
        try:
            with self._metrics.reconcile_seconds.time():
                is_done = act()
        except GputideError as exc:
            self._metrics.reconcile_errors.labels(type(exc).__name__.lower()).inc()
            if isinstance(exc, Unavailable) and not isinstance(exc, Stuck):
                raise
            _log.warning("plan is not as it is wanted, and is tried again later", plan=plan_id, why=str(exc))
            if retry is None or retry.signature != signature:
                backoff = Backoff(seconds_min=RETRY_SECONDS_MIN, seconds_max=RETRY_SECONDS_MAX)
                retry = _Retry(signature=signature, at=0.0, backoff=backoff)
            retry.at = self._clock() + retry.backoff.failed()
            self._retries[plan_id] = retry
            return False
        self._retries.pop(plan_id, None)
        self._metrics.acts.inc(is_done)
        return is_done


class Leadership:
    """Keeps a lease, in a thread of its own, as long as this process runs.

    Args:
        show: called with whether this process is the one that acts, again and again.
    """

    def __init__(self, lease: Lease, holder: str, show: Callable[[bool], None]) -> None:
        self._lease = lease
        self._holder = holder
        self._show = show
        self._over = threading.Event()
        self._is_held = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to ask for the lease."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until this process is the one that acts; whether it is."""
        return self._is_held.wait(seconds)

    def stop(self) -> None:
        """Give the lease back, so that another one need not wait."""
        self._over.set()
        self._thread.join()
        with suppress(GputideError):
            self._lease.release(self._holder)

    def _keep(self) -> None:
        while not self._over.is_set():
            try:
                is_held = self._lease.acquire(self._holder, LEASE_SECONDS)
            except GputideError as exc:
                _log.warning("lease can't be kept now", why=str(exc))
                is_held = False
            (self._is_held.set if is_held else self._is_held.clear)()
            self._show(is_held)
            self._over.wait(LEASE_SECONDS / 6)


def _is_open(runs: Sequence[RunRecord]) -> bool:
    return any(run.is_open for run in runs)


def _states(runs: Sequence[RunRecord]) -> tuple[tuple[int, StageState], ...]:
    """How far each stage of a plan came."""
    return tuple((number, record.state) for run in runs for number, record in run.records.items())


def _by_plan(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.plan_id, []).append(run)
    return found
