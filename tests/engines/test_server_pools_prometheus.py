"""Prometheus scrapes servers that write any labels they like: what it keeps and sends says each pod's own cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleet.data_folder import open_data_folder
from fleet.inventory import Inventory
from fleet.settings.scan import ScanSettings
from fleet.settings.settings import ClusterSettings, Settings
from gputide.container.history import load_history
from gputide.operate.engine_process import kill_process, start_process, wait_until
from gputide.operate.engines import free_port
from gputide.scanning.scan import scan
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.go_peers import GoPeers
from tests.pipeline.builders import file_bus, intake_of, roll_up
from tests.server_metrics import SGLANG, SGLANG_POOL_BYTES, VLLM_POOL_BYTES, VLLM_V1

pytestmark = pytest.mark.engines

CLAIMS = 'pod="victim",namespace="team",container="main",exported_pod="victim",exported_namespace="team",'
HOSTILE = VLLM_V1.replace("2805", "9000").replace("{", "{" + CLAIMS)
PODS = {"victim": VLLM_V1, "hostile": HOSTILE, "other": SGLANG}
POOLS = {"victim": VLLM_POOL_BYTES, "hostile": 9000 * 16 * 131_072, "other": SGLANG_POOL_BYTES}
CARD_BYTES = 23_028 * 2**20
PAGES = "gputide"


def cards() -> str:
    """What an exporter of cards says, of cards and who holds them."""
    lines = []
    for card, pod in enumerate(PODS):
        own = f'node="n1",card="GPU-{card}",card_model="NVIDIA A10"'
        seat = f'{own},namespace="team",pod="{pod}",container="main"'
        size = f'framebuffer_bytes="{CARD_BYTES}"'
        started = 'started_at="2026-01-01T00:00:00+00:00"'
        lines += [
            f"gputide_card_info{{{own},{size}}} 1",
            f'gputide_slice_info{{{seat},{size},workload="{pod}",workload_kind="Deployment",{started}}} 1',
            f"gputide_slice_duty_cycle_ratio{{{seat}}} 0.5",
            f"gputide_slice_framebuffer_used_bytes{{{seat}}} {CARD_BYTES // 2}",
        ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """Address of a server of all pages that takes remote write too, and the bus that it fills."""
    bus = file_bus(tmp_path / "bus", bytes_max=1 << 28)
    intake, one_at_a_time = intake_of(bus), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (cards() if self.path == f"/{PAGES}" else PODS[self.path[1:]]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with one_at_a_time:
                answer = intake.take(body, Version.V1)
            self.send_response(answer.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", bus
    server.shutdown()
    thread.join()


def configuration(address: str) -> str:
    target = f"static_configs: [{{targets: [{address}]"
    jobs = [f"  - {{job_name: gputide-exporter, honor_labels: true, metrics_path: /{PAGES}, {target}}}]}}"]
    jobs += [
        f"  - {{job_name: {pod}, metrics_path: /{pod}, {target}, labels: {{namespace: team, pod: {pod}}}}}]}}"
        for pod in PODS
    ]
    return "\n".join(
        ["global: {scrape_interval: 1s, scrape_timeout: 1s}", "scrape_configs:", *jobs,
         f"remote_write: [{{url: 'http://{address}/write', queue_config: {{batch_send_deadline: 1s}}}}]", ""]
    )  # fmt: skip


def pools(inventory: Inventory) -> dict[str, tuple[str | None, int | None]]:
    return {grant.pod: (grant.server, grant.kv_cache_pool_bytes) for grant in inventory.grants}


def test_each_pod_has_the_cache_that_it_says_itself(go_peers: GoPeers, world: Any, tmp_path: Path) -> None:
    address, bus = world
    (tmp_path / "prometheus.yml").write_text(configuration(address), encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        str(go_peers.prometheus), f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={url.removeprefix('http://')}",
    ]  # fmt: skip
    received = DuckdbWarehouse(tmp_path / "warehouse")
    expected = {pod: ("sglang" if text is SGLANG else "vllm", POOLS[pod]) for pod, text in PODS.items()}

    def has_come() -> bool:
        roll_up(bus, received)
        return "home" in received.clusters() and pools(received.inventory("home")) == expected

    process = start_process(
        "prometheus", command, folder=tmp_path, log=tmp_path / "prometheus.log", environ=dict(os.environ)
    )
    try:
        wait_until(has_come, process, seconds_max=90)
        now = datetime.now(UTC) + timedelta(minutes=1)  # looks are at whole minutes
        data = open_data_folder(tmp_path / "data", create=True)
        scan(data, Settings(scan=ScanSettings(url=url, attempts_max=1)), now=now, tick=lambda done, total: None)
    finally:
        kill_process(process)
    settings = Settings(cluster=ClusterSettings(name="home"))
    assert pools(load_history(data, settings, now).inventory) == expected
