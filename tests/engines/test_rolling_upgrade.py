"""Receivers behind one address are replaced one by one while a Prometheus sends: nothing is lost or doubled."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from exporter.synthetic.writer import write_synthetic_fleet
from fleet.schema import Measure
from gputide.operate.engine_process import ProcessRecord, stop_process, wait_until
from gputide.operate.engines import free_port
from tests.engines.go_peers import GoPeers
from tests.engines.one_address import one_address
from tests.engines.running import Kafka
from tests.engines.test_senders import (
    CONFIGURATION,
    ROOT,
    gputide,
    has_lost_its_target,
    in_warehouse,
    metric,
    nothing_waits,
    running,
    scrapes,
    stored_in_prometheus,
)
from tests.pipeline.builders import COLUMN
from tests.waiting import text_of

pytestmark = pytest.mark.engines


def wait_for_scrapes(server: str, count: int, sending: ProcessRecord) -> None:
    """Wait until Prometheus has scraped so often."""
    wait_until(lambda: scrapes(server) >= count, sending, seconds_max=60)


def test_receivers_replaced_one_by_one_lose_and_double_no_sample_of_prometheus(
    go_peers: GoPeers, kafka: Kafka, fresh_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = fresh_topic(partitions=2)
    options = [
        part
        for setting in (
            "bus.kind=kafka", f"kafka.servers={kafka.bootstrap}", f"kafka.topic={topic}", f"kafka.group=of-{topic}",
        )
        for part in ("--set", setting)
    ]  # fmt: skip
    write_synthetic_fleet(tmp_path / "fleet", cards=60, days=2)
    exporter, server = (f"127.0.0.1:{free_port()}" for _ in range(2))
    ports = [free_port(), free_port()]
    export = ["run", "export", "node", "--replay", str(tmp_path / "fleet"), "--listen", exporter, "--interval", "0.5"]
    prometheus = [str(go_peers.prometheus), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
                  f"--web.listen-address={server}"]  # fmt: skip
    data = [tmp_path / "receiver-0", tmp_path / "receiver-1"]

    with ExitStack() as stack:

        def started(number: int, generation: int) -> ProcessRecord:
            address = f"127.0.0.1:{ports[number]}"
            command = gputide(data[number], *options, "run", "receive", "--listen", address)
            process = stack.enter_context(running(f"receive-{number}-{generation}", command, tmp_path))
            wait_until(lambda: text_of(f"http://{address}/healthz") != "", process, seconds_max=60)
            return process

        receivers = [started(number, 0) for number in (0, 1)]
        address = stack.enter_context(one_address([("127.0.0.1", port) for port in ports]))
        (tmp_path / "prometheus.yml").write_text(CONFIGURATION.format(exporter=exporter, receiver=address))
        sending = stack.enter_context(running("prometheus", prometheus, tmp_path))
        with running("export", gputide(tmp_path / "exporter", *export), tmp_path) as exporting:
            wait_until(lambda: "_slice_" in text_of(f"http://{exporter}/metrics"), exporting, seconds_max=60)
            for generation, number in enumerate((0, 1), start=1):
                wait_for_scrapes(server, 2 * generation, sending)
                stop_process(receivers[number])
                receivers[number] = started(number, generation)
            wait_for_scrapes(server, 6, sending)
        wait_until(lambda: has_lost_its_target(server), sending, seconds_max=60)
        wait_until(lambda: nothing_waits(server), sending, seconds_max=60)
        stored = stored_in_prometheus(server)
        own = text_of(f"http://{server}/metrics")
        for process in receivers:
            stop_process(process)
    assert metric(own, "prometheus_remote_storage_samples_failed_total") == 0
    assert metric(own, "prometheus_remote_storage_samples_dropped_total") == 0
    assert stored
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(gputide(tmp_path / "warehouse", *options, "run", "rollup", "--drain"), check=True, env=environ)
    assert in_warehouse(tmp_path / "warehouse") == {
        card: (len(values), sum(math.floor(value * COLUMN[Measure.DUTY_CYCLE].scale) for value in values))
        for card, values in stored.items()
    }
