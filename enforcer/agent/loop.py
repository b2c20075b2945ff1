"""Runs the node agent until it is stopped: looks on time, reaches the API server beside it, reads orders.

Four threads, so that neither an API server nor a driver that is slow or away delays what can be done without it: one
looks at the node, one at launches between these looks, one carries out what the newest look asks of the API server, one
reads orders.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from enforcer.agent.node_agent import Look, NodeAgent, Pace, Reach
from enforcer.agent.node_view import NodeView
from fleet.errors import Corrupt, Misconfigured, Refused, Unavailable
from fleet.logs import logger

if TYPE_CHECKING:
    from wire.own_metrics import OwnMetrics

_JOIN_SECONDS = 5.0
_HURRY_SECONDS = 1.0


def _unseen(_: NodeView) -> None:
    """A view that nobody asks for."""


def _calm(_: NodeView) -> bool:
    """A view that never shows trouble."""
    return False


class AgentMetrics:
    """What the agent counts of itself; none of it names a pod."""

    def __init__(self, own: OwnMetrics) -> None:
        self.looks = own.passes("look", "look at the node")
        self.orders_failures = own.counter(
            "orders_failures_total", "Times that the orders could not be read or used, by the kind of error.", "error"
        )
        self._asleep = own.gauge("asleep_containers", "Containers that sleep by this agent.")
        self._slept = own.counter("sleeps_total", "Times that a container was put to sleep.")
        self._woke = own.counter("wakes_total", "Times that a container woke.")
        self._evicted = own.counter("evictions_total", "Pods that were evicted.")
        self._limits = own.counter("limits_total", "Limits of framebuffer that were written.")
        self._refused = own.gauge("refused_acts", "Acts that are wanted and can't be done, by what wants them.", "by")
        self.api_requests = own.followed_counter("api_requests_total", "Requests to the Kubernetes API, watches apart.")

    def take_look(self, look: Look, asleep: int) -> None:
        """Count what a look led to."""
        self.take_switches(look, asleep)
        self._refused.labels("look").set(len(look.refused))

    def take_switches(self, done: Look | Pace, asleep: int) -> None:
        """Count who fell asleep and who woke."""
        self._asleep.set(asleep)
        self._slept.inc(len(done.slept))
        self._woke.inc(len(done.woke))

    def take_reach(self, reach: Reach) -> None:
        """Count what was done with the API server's help."""
        self._evicted.inc(len(reach.evicted))
        self._limits.inc(len(reach.limits))
        self._refused.labels("reach").set(len(reach.refused))


class AgentLoop:
    """One agent and the threads that move it.

    Args:
        read_orders: the orders of this node as they stand, None where there are none.
        is_troubled: whether a view shows trouble: orders are then looked at every second.
    """

    def __init__(
        self,
        agent: NodeAgent,
        read_orders: Callable[[], str | None],
        metrics: AgentMetrics,
        *,
        interval_seconds: float,
        pace_seconds: float,
        orders_seconds: float,
        on_view: Callable[[NodeView], None] = _unseen,
        is_troubled: Callable[[NodeView], bool] = _calm,
    ) -> None:
        self._agent, self._metrics = agent, metrics
        self._read_orders = read_orders
        self._interval_seconds, self._pace_seconds = interval_seconds, pace_seconds
        self._orders_seconds = orders_seconds
        self._on_view, self._is_troubled = on_view, is_troubled
        self._has_trouble = False
        self._stopped = threading.Event()
        self._seen = threading.Condition()
        self._newest: NodeView | None = None
        self._crash: Exception | None = None
        self._told: dict[str, str | None] = {}
        self._log = logger("gputide.agent")

    def stop(self, *_: object) -> None:
        """Have `run` come back; called by any thread, but not within a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Look until stopped, then wake everybody that was put to sleep.

        Raises:
            Corrupt: the agent's own folder can't be written.
        """
        threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("pace", self._pace), ("reach", self._reach), ("orders", self._follow_orders))
        ]
        for thread in threads:
            thread.start()
        try:
            self._look()
        finally:
            self._stopped.set()
            with self._seen:
                self._seen.notify_all()
            self._agent.stop()
            for thread in threads:
                thread.join(_JOIN_SECONDS)
        if self._crash is not None:
            raise self._crash

    def _look(self) -> None:
        due = time.monotonic()
        while not self._stopped.is_set():
            try:
                with self._metrics.looks.one():
                    look = self._agent.look(self._interval_seconds)
            except Unavailable as exc:
                self._tell("look", str(exc))
            else:
                self._tell("look", None)
                self._metrics.take_look(look, self._agent.asleep)
                self._log_switches(look)
                self._on_view(look.view)
                self._has_trouble = self._is_troubled(look.view)
                with self._seen:
                    self._newest = look.view
                    self._seen.notify_all()
            due = max(due + self._interval_seconds, time.monotonic())
            self._stopped.wait(due - time.monotonic())

    def _pace(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            pace = self._agent.pace()
            if pace.slept or pace.woke:
                self._metrics.take_switches(pace, self._agent.asleep)
                self._log_switches(pace)
            if pace.is_needed:
                # Not a wait for the event, which costs twice as much.
                rest = 2 * self._pace_seconds if pace.is_calm else self._pace_seconds
                time.sleep(max(0.0, began + rest - time.monotonic()))
            else:
                self._stopped.wait(self._interval_seconds)

    def _log_switches(self, done: Look | Pace) -> None:
        for word, keys in (("asleep", done.slept), ("awake", done.woke)):
            for key in keys:
                self._log.info(word, pod_uid=key.pod_uid, container=key.container)

    def _reach(self) -> None:
        while True:
            with self._seen:
                self._seen.wait_for(lambda: self._newest is not None or self._stopped.is_set())
                view, self._newest = self._newest, None
            if self._stopped.is_set() or view is None:
                return
            reach = self._agent.reach(view)
            self._metrics.take_reach(reach)
            for eviction in reach.evicted:
                self._log.warning("evicted", namespace=eviction.namespace, pod=eviction.pod, why=eviction.reason)
            for limit in reach.limits:
                self._log.info("limited", pod_uid=limit.container.pod_uid, framebuffer_bytes=limit.framebuffer_bytes)

    def _follow_orders(self) -> None:
        while not self._stopped.is_set():
            try:
                text = self._read_orders()
                if text is not None:
                    self._agent.take_orders(text)
            except (Corrupt, Misconfigured, Refused, Unavailable) as exc:
                self._metrics.orders_failures.labels(type(exc).__name__.lower()).inc()
                self._tell("orders", str(exc))
            else:
                self._tell("orders", None)
            self._rest_of_orders()

    def _rest_of_orders(self) -> None:
        """Wait for the next look at the orders; who is in trouble is about to get some."""
        due = time.monotonic() + self._orders_seconds
        while not self._stopped.wait(min(_HURRY_SECONDS, max(0.0, due - time.monotonic()))):
            if self._has_trouble or time.monotonic() >= due:
                return

    def _guarded(self, work: Callable[[], None]) -> None:
        """A thread that ends by an error ends the agent: one that does half of its work is worse than none."""
        try:
            work()
        except Exception as exc:  # noqa: BLE001 - raised again by `run`, in the thread that waits for it
            self._crash = exc
            self._stopped.set()

    def _tell(self, what: str, why: str | None) -> None:
        """Say the first failure of a row, and that it is over."""
        if why is not None and self._told.get(what) is None:
            self._log.warning("failed", what=what, why=why)
        elif why is None and self._told.get(what) is not None:
            self._log.info("works again", what=what)
        self._told[what] = why


def stop_on_signals(loop: AgentLoop) -> None:
    """Have SIGINT and SIGTERM stop a loop."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        # By a thread: the signal may come while the one it interrupts holds the lock that `stop` needs.
        threading.Thread(target=loop.stop, name="stop", daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
