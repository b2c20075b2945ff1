"""Senders of others against our receiver: Prometheus, speaking both versions at once, and the reference 2.0 client."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from exporter.synthetic.writer import write_synthetic_fleet
from fleet.errors import Unavailable
from fleet.listener_files import ListenerFiles
from fleet.schema import POD_USAGE, Measure
from gputide.operate.engine_process import ProcessRecord, kill_process, start_process, stop_process, wait_until
from gputide.operate.engines import free_port
from pipeline.bus.bus_file import FileBus
from pipeline.receiver.senders import Sender, Senders
from pipeline.records.rows import unpack
from pipeline.remote_write.claims import Claims
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.go_peers import GoPeers
from tests.engines.prometheus_parts import SAMPLES, SERIES, answer_of, send
from tests.pipeline.builders import COLUMN, FAR_OFF, LONG_AGO, file_bus, intake_of, read_all, series_table
from tests.pipeline.receiving import served
from tests.waiting import text_of
from wire.listener_tls import ListenerContexts

pytestmark = pytest.mark.engines

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = ROOT / "tests" / "pipeline" / "certificates"
SCRAPES = 6
TOKEN = "a-token-of-edge-1-0123"

CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: gputide
    static_configs: [{{targets: ["{exporter}"]}}]
remote_write:
  - name: one
    url: http://{receiver}/api/v1/write
    protobuf_message: prometheus.WriteRequest
    queue_config: {{batch_send_deadline: 200ms, retry_on_http_429: true}}
  - name: two
    url: http://{receiver}/api/v1/write
    protobuf_message: io.prometheus.write.v2.Request
    queue_config: {{batch_send_deadline: 200ms, retry_on_http_429: true}}
"""


@contextmanager
def running(name: str, command: list[str], folder: Path) -> Iterator[ProcessRecord]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = start_process(name, command, folder=folder, log=folder / f"{name}.log", environ=environ)
    try:
        yield process
    finally:
        kill_process(process)


def gputide(data: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "gputide.cli", "--data-dir", str(data), *arguments]


def metric(text: str, name: str) -> float:
    """Sum of a metric over all of its labels; 0 where there is none."""
    return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}(\{{|\s)", line))


def test_prometheus_sends_both_versions_and_the_warehouse_has_each_sample_of_its_store_once(
    go_peers: GoPeers, tmp_path: Path
) -> None:
    write_synthetic_fleet(tmp_path / "fleet", cards=60, days=2)
    receiver, exporter, server = (f"127.0.0.1:{free_port()}" for _ in range(3))
    (tmp_path / "prometheus.yml").write_text(CONFIGURATION.format(exporter=exporter, receiver=receiver))
    data = tmp_path / "data"
    export = ["run", "export", "node", "--replay", str(tmp_path / "fleet"), "--listen", exporter, "--interval", "0.5"]
    prometheus = [str(go_peers.prometheus), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
                  f"--web.listen-address={server}"]  # fmt: skip
    with running("receive", gputide(data, "run", "receive", "--listen", receiver), tmp_path) as receiving:
        wait_until(lambda: text_of(f"http://{receiver}/healthz") != "", receiving, seconds_max=60)
        with running("prometheus", prometheus, tmp_path) as sending:
            with running("export", gputide(data, *export), tmp_path) as exporting:
                wait_until(lambda: "_slice_" in text_of(f"http://{exporter}/metrics"), exporting, seconds_max=60)
                wait_until(lambda: scrapes(server) >= SCRAPES, sending, seconds_max=60)
            wait_until(lambda: has_lost_its_target(server), sending, seconds_max=60)
            wait_until(lambda: nothing_waits(server), sending, seconds_max=60)
            stored = stored_in_prometheus(server)
            own = text_of(f"http://{server}/metrics")
        told = text_of(f"http://{receiver}/metrics")
        stop_process(receiving)
    assert metric(own, "prometheus_remote_storage_samples_failed_total") == 0
    assert metric(own, "prometheus_remote_storage_samples_dropped_total") == 0
    assert metric(told, "gputide_receiver_samples_invalid_total") == 0
    # A slow machine may ask a sender to come again: it does, as it is set up to, and the samples below are all there.
    assert {"200", "204"} <= set(re.findall(r'requests_total\{code="(\d+)"', told)) <= {"200", "204", "429"}
    subprocess.run(gputide(data, "run", "rollup", "--drain"), check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert sum(len(values) for values in stored.values()) >= SCRAPES * len(stored) / 2
    assert in_warehouse(data) == {
        card: (len(values), sum(math.floor(value * COLUMN[Measure.DUTY_CYCLE].scale) for value in values))
        for card, values in stored.items()
    }


def scrapes(server: str) -> float:
    """Scrapes that went well; a target that has yet to start counts for none."""
    found = answer_of(f"http://{server}", "sum_over_time(up[5m]) and on() count(gputide_slice_duty_cycle_ratio) > 0")
    return float(found[0]["value"][1]) if found else 0.0


def has_lost_its_target(server: str) -> bool:
    found = answer_of(f"http://{server}", "max(up)")
    return not found or float(found[0]["value"][1]) == 0


def nothing_waits(server: str) -> bool:
    text = text_of(f"http://{server}/metrics")
    newest = metric(text, "prometheus_remote_storage_highest_timestamp_in_seconds")
    sent = [
        float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("prometheus_remote_storage_queue_highest_sent_timestamp_seconds{")
    ]
    return metric(text, "prometheus_remote_storage_samples_pending") == 0 and len(sent) == 2 and newest - min(sent) < 2


def stored_in_prometheus(server: str) -> dict[str, list[float]]:
    """Values of every slice's duty cycle by card, as Prometheus stored them; stale markers are none."""
    found: dict[str, list[float]] = {}
    for series in answer_of(f"http://{server}", "gputide_slice_duty_cycle_ratio[10m]"):
        values = found.setdefault(series["metric"]["card"], [])
        values += [float(value) for _, value in series["values"] if value != "NaN"]
    return {card: values for card, values in found.items() if values}


def in_warehouse(data: Path) -> dict[str, tuple[int, int]]:
    """Number and scaled sum of the duty cycle of all slices by card."""
    with closing(DuckdbWarehouse(data / "warehouse")) as warehouse:
        (cluster,) = warehouse.clusters()
        table = warehouse.windows(POD_USAGE, cluster=cluster, level_seconds=60, since=LONG_AGO, until=FAR_OFF)
    found: dict[str, tuple[int, int]] = {}
    for row in table.to_pylist():
        count, total = found.get(row["card"], (0, 0))
        if row["duty_cycle_ratio_count"]:
            found[row["card"]] = (count + row["duty_cycle_ratio_count"], total + row["duty_cycle_ratio_sum"])
    return found


def rows_on(bus: FileBus) -> int:
    return sum(len(section.ts_ms) for record in read_all(bus).records for section in unpack(record) if section.measures)


def metrics_of(address: tuple[str, int]) -> str:
    return text_of(f"http://{address[0]}:{address[1]}/metrics")


@pytest.mark.parametrize("layout", ["series", "sample"])
@pytest.mark.parametrize("framing", [(), ("-chunked",)], ids=["length", "chunks"])
def test_reference_client_has_all_its_samples_confirmed(
    layout: str, framing: tuple[str, ...], go_peers: GoPeers, tmp_path: Path
) -> None:
    bus = file_bus(tmp_path)
    with served(lambda _sender: intake_of(bus), {"body_bytes_max": 1 << 20}) as receiver:
        said = send(go_peers, "http://{}:{}".format(*receiver.address), "-layout", layout, *framing)
        told = metrics_of(receiver.address)
    assert (said["samples"], said["error"], said["retries"]) == (SERIES * SAMPLES, "", 0)
    assert rows_on(bus) == SERIES * SAMPLES
    assert metric(told, "gputide_receiver_histograms_total") == 1
    assert metric(told, "gputide_receiver_exemplars_total") == SERIES
    assert metric(told, "gputide_receiver_metadata_total") > 0


def test_reference_client_comes_again_until_storage_is_back(go_peers: GoPeers, tmp_path: Path) -> None:
    bus = file_bus(tmp_path)

    class Away:
        """A bus that can't be reached once."""

        lanes = 1
        times = 1

        def append_all(self, payloads: Mapping[int, bytes]) -> None:
            if self.times:
                self.times -= 1
                raise Unavailable("cannot reach the broker")
            bus.append_all(payloads)

    away = Away()
    with served(lambda _sender: intake_of(away), {"body_bytes_max": 1 << 20}) as receiver:
        said = send(go_peers, "http://{}:{}".format(*receiver.address))
    assert (said["samples"], said["error"], said["retries"]) == (SERIES * SAMPLES, "", 1)
    assert rows_on(bus) == SERIES * SAMPLES


@pytest.mark.parametrize(
    "shown",
    [("-token", TOKEN), ("-cert", str(CERTIFICATES / "edge-1.pem"), "-key", str(CERTIFICATES / "edge-1.key.pem"))],
    ids=["token", "certificate"],
)
def test_reference_client_over_tls_is_the_sender_that_it_shows(
    shown: tuple[str, ...], go_peers: GoPeers, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"sha256:{sha256(TOKEN.encode()).hexdigest()} edge-1\n")
    senders = Senders(
        {"edge-1": Sender(name="edge-1", cluster="east")},
        tokens_file=tokens, takes_certificates=True, now_seconds=time.monotonic,
    )  # fmt: skip
    files = ListenerFiles(
        section="receiver", certificate_file=str(CERTIFICATES / "receiver.pem"),
        key_file=str(CERTIFICATES / "receiver.key.pem"), client_ca_file=str(CERTIFICATES / "authority.pem"),
    )  # fmt: skip
    tls = ListenerContexts(files, needs_client=False, now_seconds=time.monotonic)
    bus = file_bus(tmp_path / "bus")
    authority = ("-ca", str(CERTIFICATES / "authority.pem"))
    with served(
        lambda sender: intake_of(bus, series_table(claims=Claims(sender.cluster))),
        {"body_bytes_max": 1 << 20}, senders=senders, tls=tls.context,
    ) as receiver:  # fmt: skip
        url = f"https://localhost:{receiver.address[1]}"
        refused = send(go_peers, url, *authority, status=1)
        assert "401" in refused["error"]
        assert send(go_peers, url, *authority, *shown, "-label", "cluster=west")["error"] == ""
    sections = [section for record in read_all(bus).records for section in unpack(record)]
    assert {name for section in sections for name in section.identities.column("cluster").to_pylist()} == {"east"}
