"""The threads of the node agent: what ends one of them, and what does not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enforcer.agent.give_way import GiveWayRules
from enforcer.agent.loop import AgentLoop, AgentMetrics
from enforcer.agent.node_agent import AgentFolders, NodeAgent
from enforcer.agent.node_view import NodeView
from enforcer.agent.watermark import WatermarkRules
from fleet.errors import Misconfigured
from tests.enforcer.agent.nodes import view_of
from tests.enforcer.agent.test_node_agent import Actions, FakeReader
from wire.own_metrics import OwnMetrics

PATIENCE_SECONDS = 10.0


def run(folder: Path, read_orders: Callable[[AgentLoop], str | None], **how: Any) -> None:
    """Run a loop until its orders stop it, or patience ends."""
    agent = NodeAgent(
        FakeReader(view_of()),
        Actions(),
        AgentFolders(containers=folder, state=folder / "state"),
        give_way=GiveWayRules(),
        watermark=WatermarkRules(),
    )
    waits = {"interval_seconds": 0.1, "orders_seconds": 0.05}
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


PROGRAM = """
import signal
from enforcer.agent.loop import AgentLoop, stop_on_signals
loop = AgentLoop(None, None, None, interval_seconds=1.0, orders_seconds=1.0)
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
