"""What holds low priority back: backend, gate, probe, agent; and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from fleet.capabilities.register import CAPABILITIES, EFFECTIVE_GPU, HAMI, MGPU, VOLCANO
from fleet.priority_holds import NOBODY, Hold, Holders, hold_of, holders_of
from fleet.servers import SERVERS, replays_graphs
from tests.fleet.test_probe_results import RESULT

NODES = {"node-1", "node-2"}
EVERYWHERE = frozenset(NODES)
HERE = frozenset({"node-1"})


@pytest.mark.parametrize(
    ("holders", "server", "hold"),
    [
        (NOBODY, "pytorch", Hold.CORES),
        (NOBODY, None, Hold.CORES),
        (NOBODY, "vllm", Hold.NONE),
        (Holders(agents=EVERYWHERE), "pytorch", Hold.AGENT),
        (Holders(agents=HERE), "pytorch", Hold.CORES),
        (Holders(agents=EVERYWHERE), "vllm", Hold.NONE),
        (Holders(agents=EVERYWHERE, graphs_pause=HERE), "vllm", Hold.NONE),
        (Holders(agents=EVERYWHERE, graphs_pause=EVERYWHERE), "vllm", Hold.GRAPHS),
        (Holders(gated=EVERYWHERE), "pytorch", Hold.PROBED),
        (Holders(gated=EVERYWHERE), "vllm", Hold.NONE),
        (Holders(gated=HERE), "pytorch", Hold.CORES),
        (Holders(ungated=HERE), "pytorch", Hold.NONE),
        (Holders(ungated=HERE, agents=EVERYWHERE), "pytorch", Hold.AGENT),
    ],
)
def test_what_holds_must_hold_on_every_node(holders: Holders, server: str | None, hold: Hold) -> None:
    for record in (HAMI, EFFECTIVE_GPU, VOLCANO):
        assert hold_of(record, holders, NODES, server) is hold


def test_suspending_backend_holds_by_itself_and_others_not_at_all() -> None:
    seen = Holders(agents=EVERYWHERE, gated=EVERYWHERE, graphs_pause=EVERYWHERE)
    for record in CAPABILITIES:
        found = hold_of(record, seen, NODES, "vllm")
        if record is MGPU:
            assert found is Hold.BACKEND
        elif record not in (HAMI, EFFECTIVE_GPU, VOLCANO):
            assert found is Hold.NONE, record.backend


def test_probe_counts_for_its_backend_node_and_limit() -> None:
    free = replace(RESULT, granted_compute_ratio=None, gate_holds=True)
    assert holders_of(HAMI, [free]).gated == HERE
    assert holders_of(VOLCANO, [free]) == NOBODY
    assert holders_of(HAMI, [replace(free, gate_holds=False)]) == NOBODY, "without a limit the gate need not hold"
    assert holders_of(HAMI, [replace(RESULT, gate_holds=True)]).gated == frozenset(), "with one it says no more"
    assert holders_of(HAMI, [replace(RESULT, gate_holds=False)]).ungated == HERE
    assert holders_of(HAMI, [RESULT]) == NOBODY, "an older result did not try it"
    assert holders_of(HAMI, [replace(RESULT, graph_pauses=True)], ["node-9"]) == Holders(
        agents=frozenset({"node-9"}), graphs_pause=HERE
    )


def test_agent_whose_pause_a_probe_saw_fail_holds_nobody() -> None:
    failed = replace(RESULT, pause_seconds=None, graph_pauses=False)
    assert holders_of(HAMI, [failed], HERE).agents == frozenset()
    assert holders_of(HAMI, [replace(failed, graph_pauses=None, gate_holds=True)], HERE).agents == frozenset()
    untried = replace(failed, graph_pauses=None)
    assert holders_of(HAMI, [untried], HERE).agents == HERE, "without a region no pause was tried"
    assert holders_of(HAMI, [replace(RESULT, pause_seconds=0.5, graph_pauses=True)], HERE).agents == HERE


def test_what_a_probe_saw_hold_expires_and_what_it_saw_fail_does_not() -> None:
    later = RESULT.measured_at + timedelta(seconds=1)
    free = replace(RESULT, granted_compute_ratio=None, gate_holds=True, pause_seconds=0.5, graph_pauses=True)
    assert holders_of(HAMI, [free], since=RESULT.measured_at) == Holders(gated=HERE, graphs_pause=HERE)
    assert holders_of(HAMI, [free], since=later) == NOBODY
    failed = replace(RESULT, gate_holds=False, pause_seconds=None, graph_pauses=False)
    assert holders_of(HAMI, [failed], HERE, since=later) == Holders(ungated=HERE)


def test_servers_of_language_models_replay_graphs() -> None:
    assert {server.name for server in SERVERS if server.replays_graphs} >= {"vllm", "sglang", "tensorrt-llm", "tgi"}
    assert not replays_graphs("pytorch")
    assert not replays_graphs(None)
