"""OpenTelemetry's collector against our receiver, beside a Prometheus that scrapes the same page; our own traces."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.settings.settings import load_settings
from gputide.container.telemetry import open_telemetry
from gputide.operate.engine_process import kill_process, start_process, wait_until
from gputide.operate.engines import free_port
from pipeline.records.rows import unpack
from pipeline.rollup.rollup import RollupMetrics
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.go_peers import GoPeers
from tests.pipeline.builders import USAGE_TABLES, file_bus, intake_of, roll_up, stored_rows
from tests.pipeline.receiving import served
from wire import telemetry
from wire.own_metrics import OwnMetrics

pytestmark = pytest.mark.engines

STEPS = 4
STEP_SECONDS = 3.0
CARDS = 5
LIMITS = {"body_bytes_max": 1 << 22, "pending_bytes_max": 1 << 25, "pending_requests_max": 16}
TARGETS = {"namespace": "gpu-operator", "pod": "dcgm-exporter-x", "node": "n1", "cluster": "c1"}
"""Labels of the target, as relabelling attaches them."""


class Page:
    """A page of dcgm-exporter and vLLM with times of its own; mutable: the test turns to the next step."""

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        self.step = 0
        self.reads: list[tuple[int, str]] = []

    def readers(self) -> int:
        """How many have read what is shown now."""
        return len({reader for step, reader in self.reads if step == self.step})

    def text(self) -> str:
        """What is shown now."""
        at = self._began_ms + self.step * 15_000
        lines = []
        for name, kind, scale in (("DCGM_FI_DEV_GPU_UTIL", "gauge", 7), ("DCGM_FI_DEV_FB_USED", "gauge", 1111)):
            lines.append(f"# TYPE {name} {kind}")
            for card in range(CARDS):
                labels = f'gpu="{card}",UUID="GPU-{card}",modelName="NVIDIA A10",Hostname="n1"'
                pod = f',namespace="team",pod="web-{card}",container="main"' if card else ""
                lines.append(f"{name}{{{labels}{pod}}} {(card + self.step) * scale} {at}")
        lines += ["# TYPE vllm:kv_cache_usage_perc gauge", f'vllm:kv_cache_usage_perc{{model_name="m"}} 0.5 {at}']
        lines += ["# TYPE python_gc_total counter", f"python_gc_total {self.step} {at}"]
        return "\n".join(lines) + "\n"


@contextmanager
def shown(page: Page) -> Iterator[str]:
    """The page on a port; `page.reads` names who read which step."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page.text().encode()
            page.reads.append((page.step, self.headers["User-Agent"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def scrape_of(page: str) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": "dcgm", "static_configs": [{"targets": [page], "labels": TARGETS}]},
        ],
    }


@contextmanager
def program(name: str, folder: Path, command: list[str], config: dict[str, Any]) -> Iterator[Any]:
    """A program with its configuration in `folder/name.yml`."""
    (folder / f"{name}.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    process = start_process(name, command, folder=folder, log=folder / f"{name}.log", environ=dict(os.environ))
    try:
        yield process
    finally:
        kill_process(process)


def collector(peers: GoPeers, folder: Path, pipelines: dict[str, Any]) -> Any:
    """The collector with some receivers, exporters and pipelines, its own metrics off."""
    silent = {"telemetry": {"metrics": {"level": "none"}}}
    config = {**pipelines, "service": {**silent, "pipelines": pipelines["service"]}}
    return program("collector", folder, [str(peers.collector), "--config=file:collector.yml"], config)


def rows_of(bus: Any, folder: Path) -> tuple[Any, ...]:
    """Rows of the warehouse after a roll-up of a bus."""
    with closing(DuckdbWarehouse(folder)) as warehouse:
        roll_up(bus, warehouse)
        return tuple(stored_rows(warehouse, table) for table in USAGE_TABLES)


def samples_in(bus: Any) -> int:
    chunk = bus.read(0, bytes_max=1 << 30)
    records = [] if chunk is None else chunk.records
    return len({(one.table.name, at) for record in records for one in unpack(record) for at in one.ts_ms.tolist()})


def test_the_collector_and_prometheus_make_the_same_rows_of_one_page(go_peers: GoPeers, tmp_path: Path) -> None:
    # Prometheus writes nothing on from before it was started.
    page = Page(int(time.time()) * 1000 + 60_000)
    sent, written = file_bus(tmp_path / "sent"), file_bus(tmp_path / "written")
    with ExitStack() as opened:
        address = opened.enter_context(shown(page))
        by_otlp, by_remote_write = intake_of(sent), intake_of(written)
        otlp = opened.enter_context(served(lambda _sender: by_otlp, LIMITS)).address
        remote = opened.enter_context(served(lambda _sender: by_remote_write, LIMITS)).address
        opened.enter_context(
            collector(
                go_peers, tmp_path,
                {
                    "receivers": {"prometheus": {"config": scrape_of(address)}},
                    "exporters": {"otlphttp": {"endpoint": f"http://{otlp[0]}:{otlp[1]}"}},
                    "service": {"metrics": {"receivers": ["prometheus"], "exporters": ["otlphttp"]}},
                },
            )
        )  # fmt: skip
        url = f"http://{remote[0]}:{remote[1]}/api/v1/write"
        prometheus = opened.enter_context(
            program(
                "prometheus", tmp_path,
                [str(go_peers.prometheus), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
                 f"--web.listen-address=127.0.0.1:{free_port()}"],
                {**scrape_of(address), "remote_write": [{"url": url}]},
            )
        )  # fmt: skip
        for step in range(STEPS):
            page.step = step
            wait_until(lambda: page.readers() == 2, prometheus, seconds_max=90)
            time.sleep(STEP_SECONDS)
        wait_until(lambda: min(samples_in(sent), samples_in(written)) >= 2 * STEPS, prometheus, seconds_max=60)
    assert by_otlp.counts["samples_invalid"] == by_otlp.counts["corrupt_bodies"] == by_otlp.untrusted == 0
    found = pods, cards = rows_of(sent, tmp_path / "a")
    assert found == rows_of(written, tmp_path / "b")
    assert {key[2] for key in cards} == {f"GPU-{card}" for card in range(CARDS)}
    assert {key[2] for key in pods} >= {f"GPU-{card}" for card in range(1, CARDS)}
    day = max(level for level, _, _ in cards)
    assert {row["samples"] for (level, _, _), row in cards.items() if level == day} == {STEPS}


def test_the_collector_understands_our_traces_and_passes_own_metrics_on_to_our_receiver(
    go_peers: GoPeers, tmp_path: Path
) -> None:
    intake, port = intake_of(file_bus(tmp_path / "bus")), free_port()
    with ExitStack() as opened:
        receiver = opened.enter_context(served(lambda _sender: intake, LIMITS))
        host, bound = receiver.address
        collecting = opened.enter_context(
            collector(
                go_peers, tmp_path,
                {
                    "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
                    "exporters": {"debug": {"verbosity": "detailed"},
                                  "otlphttp": {"endpoint": f"http://{host}:{bound}"}},
                    "service": {"traces": {"receivers": ["otlp"], "exporters": ["debug"]},
                                "metrics": {"receivers": ["otlp"], "exporters": ["debug", "otlphttp"]}},
                },
            )
        )  # fmt: skip
        log = tmp_path / "collector.log"
        wait_until(lambda: "Everything is ready" in log.read_text(), collecting, seconds_max=60)
        settings = load_settings(None, {"telemetry.endpoint": f"http://127.0.0.1:{port}"}, {})
        with open_telemetry(settings, "cli"):
            own = OwnMetrics("rollup")
            RollupMetrics(own).samples.inc(5)
            telemetry.show(own)
            with telemetry.span("gputide plan make"), telemetry.span("gputide.plan.decide", cards=3):
                pass
        wait_until(
            lambda: "gputide plan make" in log.read_text() and intake.counts["bodies"] > 0, collecting, seconds_max=60
        )
    said = log.read_text()
    for words in ("gputide.plan.decide", "gputide-cli", "gputide_rollup_samples_total", "gputide_rollup_step_seconds"):
        assert words in said
    # None of our own metrics is a usage row: they are counted as what nobody asked for, not refused.
    assert intake.counts["samples_unwanted"] > 0
    assert intake.counts["samples_invalid"] == intake.counts["samples_delta"] == 0
