"""The threads of the node agent: what ends one of them, and what does not."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enforcer.agent.loop import AgentLoop, AgentMetrics
from enforcer.agent.node_agent import AgentFolders, NodeAgent
from enforcer.agent.node_view import NodeView
from fleet.errors import Misconfigured
from fleet.inventory import Priority
from fleet.settings.agent import AgentSettings, GiveWayManner
from tests.enforcer.agent.nodes import CARD, add_region, slice_of, view_of
from tests.enforcer.agent.test_node_agent import Actions, FakeReader
from tests.regions.plain_regions import PLAIN
from tests.waiting import until
from wire.own_metrics import OwnMetrics

PATIENCE_SECONDS = 10.0


def run(folder: Path, read_orders: Callable[[AgentLoop], str | None], **how: Any) -> None:
    """Run a loop until its orders stop it, or patience ends."""
    agent = NodeAgent(
        FakeReader(view_of()),
        Actions(),
        AgentFolders(containers=folder, state=folder / "state"),
        AgentSettings(),
    )
    waits = {"interval_seconds": 0.1, "pace_seconds": 0.01, "orders_seconds": 0.05}
    loop = AgentLoop(agent, lambda: read_orders(loop), AgentMetrics(OwnMetrics("agent")), **{**waits, **how})
    timer = threading.Timer(PATIENCE_SECONDS, loop.stop)
    timer.start()
    try:
        loop.run()
    finally:
        timer.cancel()


def test_thread_that_ends_by_an_error_ends_the_agent(tmp_path: Path) -> None:
    def read(_: AgentLoop) -> str | None:
        raise LookupError("nobody foresaw this")

    with pytest.raises(LookupError, match="nobody foresaw"):
        run(tmp_path, read)


def test_orders_that_may_not_be_read_are_asked_for_again(tmp_path: Path) -> None:
    asked = []

    def read(loop: AgentLoop) -> str | None:
        asked.append(1)
        if len(asked) < 3:
            raise Misconfigured("cannot read ConfigMap gputide-orders: a right is missing")
        loop.stop()
        return None

    run(tmp_path, read)
    assert len(asked) == 3


def test_agent_in_trouble_looks_at_its_orders_every_second_and_shows_what_it_sees(tmp_path: Path) -> None:
    asked: list[float] = []
    shown: list[NodeView] = []

    def read(loop: AgentLoop) -> str | None:
        asked.append(time.monotonic())
        if len(asked) == 2:
            loop.stop()
        return None

    run(tmp_path, read, orders_seconds=60.0, on_view=shown.append, is_troubled=lambda _: True)
    assert len(asked) == 2
    assert asked[1] - asked[0] < 3.0
    assert shown[0] == view_of()


def test_launches_are_looked_at_while_the_driver_hangs(tmp_path: Path) -> None:
    """The node is looked at once; then the driver hangs, and low priority still gives way."""
    containers = tmp_path / "containers"
    containers.mkdir()
    low, high = (add_region(containers, number, cards=(CARD,), recent_kernel=0) for number in (1, 2))
    hangs, looked = threading.Event(), threading.Event()
    view = view_of(slice_of(1, Priority.LOW), slice_of(2, Priority.HIGH))

    class HangingReader:
        def read(self, deadline_seconds: float) -> NodeView:
            if looked.is_set():
                hangs.wait(PATIENCE_SECONDS)
            looked.set()
            return view

    agent = NodeAgent(
        HangingReader(),
        Actions(),
        AgentFolders(containers=containers, state=tmp_path / "state"),
        AgentSettings(give_way=GiveWayManner.STRICT),
    )
    metrics = AgentMetrics(OwnMetrics("agent"))
    loop = AgentLoop(agent, lambda: None, metrics, interval_seconds=0.1, pace_seconds=0.01, orders_seconds=60.0)
    running = threading.Thread(target=loop.run)
    running.start()
    try:
        looked.wait(PATIENCE_SECONDS)
        time.sleep(0.3)
        shape = PLAIN["v1.2"]
        with high.open("r+b") as file:
            file.seek(shape.proc_num + 8)
            file.write(struct.pack("<i", 2))
        until(lambda: struct.unpack_from("<i", low.read_bytes(), shape.procs + shape.status)[0] == 2)
        assert not hangs.is_set()
    finally:
        hangs.set()
        loop.stop()
        running.join(PATIENCE_SECONDS)
    assert struct.unpack_from("<i", low.read_bytes(), shape.procs + shape.status)[0] == 1


PROGRAM = """
import signal
from enforcer.agent.loop import AgentLoop, stop_on_signals
loop = AgentLoop(None, None, None, interval_seconds=1.0, pace_seconds=1.0, orders_seconds=1.0)
stop_on_signals(loop)
with loop._stopped._cond:
    signal.raise_signal(signal.SIGTERM)
loop._stopped.wait()
print("stopped")
"""
"""The signal comes while the thread that it interrupts holds the lock of the very event that it is to set."""


def test_signal_in_the_middle_of_a_wait_ends_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "stopped\n"
