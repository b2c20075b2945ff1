"""A real Prometheus scrapes a recorded fleet: every query of the boards whose figures a trace can carry finds rows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards.grafana.shipped import boards
from fleet.settings.settings import Settings
from fleet.units import GIB
from gputide.operate.engine_process import kill_process, start_process
from gputide.operate.engines import free_port
from tests.engines.go_peers import GoPeers
from tests.engines.prometheus_parts import answer_of, chosen, evaluating
from tests.exporter.builders import TraceFiles, card, pod, row
from tests.waiting import until

pytestmark = pytest.mark.engines

SETTINGS = Settings()
RULE_SETTINGS = SETTINGS.model_copy(update={"analyzer": SETTINGS.analyzer.model_copy(update={"idle_seconds": 20})})
"""The rules look back on a day; the replay is some seconds old."""
LAST = (
    "gputide:namespace:cards", "gputide:card:idle_held_bytes", "gputide:counter:distrusted",
    "gputide:workload:activity_ratio:max5m",
)  # fmt: skip
"""Recorded series that build on others' and so come last."""
NOT_IN_A_TRACE = {
    "gputide_plan_": "plans: of `gputide run export savings`",
    "gputide_savings_": "savings: of `gputide run export savings`",
    "gputide_week_": "hours and money of the warehouse: of `gputide run export savings`",
    "gputide_warehouse_": "age of the warehouse: of `gputide run export savings`",
    "gputide_workload_": "what the analyzer says: of `gputide run export savings`",
    "gputide:workload:off_peak_limit_ratio": "promised hours: of `gputide run export savings`",
    "gputide:card:xid_last15m": "XID events: a trace has none",
    "gputide:namespace:quota": "quotas: a trace has none",
    "gputide_node_source_age_seconds": "whom a node asks: a replay asks nobody",
    "vllm:": "an inference server's own metrics, beside which the recorded figure stands",
    "prometheus_remote_storage_": "Prometheus's own metrics",
    **{
        f"gputide_{process}_": "a process's own metrics"
        for process in ("receiver", "rollup", "bridge", "agent", "admission", "relief", "tide", "notify")
    },
}
"""What stands in a query that finds nothing, and why; the same list is in docs/exporter.md."""


@pytest.fixture(scope="module")
def prometheus(go_peers: GoPeers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Replay a fleet of a held, a shared, a free and a doubtful card, and let a Prometheus scrape it."""
    folder = tmp_path_factory.mktemp("replay")
    minutes = range(10, 24 * 60, 10)
    served = {"kv_cache_usage_ratio": 0.4, "request_rate_per_second": 3.0, "latency_p99_seconds": 0.2}
    still = {"sm_active_ratio": 0.0, "encoder_ratio": 0.0, "decoder_ratio": 0.0}
    cards = {
        "GPU-a": {"duty_cycle_ratio": 0.0, "framebuffer_used_bytes": 20 * GIB},
        "GPU-b": {"duty_cycle_ratio": 0.8, "framebuffer_used_bytes": 16 * GIB},
        "GPU-c": {"duty_cycle_ratio": 0.0, "framebuffer_used_bytes": 0},
        "GPU-d": {"duty_cycle_ratio": 0.1, "framebuffer_used_bytes": 4 * GIB},
    }
    half = {"framebuffer_granted_bytes": 12 * GIB, "compute_granted_ratio": 0.5}
    TraceFiles(
        cards=[card(name) for name in cards],
        pods=[
            pod("nb-0", "GPU-a"), pod("web-0", "GPU-b", **half), pod("etl-0", "GPU-b", **half), pod("odd-0", "GPU-d")
        ],
        usage=[
            one
            for minute in minutes
            for one in (
                row(minute, "nb-0", "GPU-a", **still, **cards["GPU-a"]),
                row(minute, "web-0", "GPU-b", framebuffer_used_bytes=8 * GIB, **served),
                row(minute, "etl-0", "GPU-b", framebuffer_used_bytes=8 * GIB),
                row(minute, "odd-0", "GPU-d", duty_cycle_ratio=0.9, framebuffer_used_bytes=9 * GIB),
            )
        ],
        card_usage=[
            {**row(minute, "", name, **still, power_watts=60.0, temperature_celsius=40.0), **values}
            for minute in minutes
            for name, values in cards.items()
        ],
    ).write(folder / "fleet")  # fmt: skip
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(Path(sys.executable).with_name("gputide")), "run", "export", "node", "--replay", "fleet",
        "--listen", address, "--interval", "1",
    ]  # fmt: skip
    replay = start_process("replay", command, folder=folder, log=folder / "replay.log", environ=dict(os.environ))
    try:
        with evaluating(go_peers, folder, RULE_SETTINGS, address) as url:
            until(lambda: all(answer_of(url, name) for name in LAST), seconds_max=90)
            yield url
    finally:
        kill_process(replay)


def test_every_query_finds_rows_where_a_trace_can_carry_its_figures(prometheus: str) -> None:
    expressions = [
        target["expr"]
        for text in boards().values()
        for panel in json.loads(text)["panels"]
        for target in panel["targets"]
    ]
    # Of one cluster, for a figure without that label is seen only where all are chosen.
    empty = {one for one in expressions if not answer_of(prometheus, chosen(one, cluster="c1"))}
    assert len(expressions) > 60
    assert empty == {one for one in expressions if any(name in one for name in NOT_IN_A_TRACE)}
    assert not [name for name in NOT_IN_A_TRACE if not any(name in one for one in empty)]


def test_what_is_not_in_a_trace_is_documented() -> None:
    text = Path("docs/exporter.md").read_text(encoding="utf-8")
    assert not [name for name in NOT_IN_A_TRACE if f"`{name}" not in text]
