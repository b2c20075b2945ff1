"""Peers are what they are called, and our sender is held against somebody else's receiver first: Prometheus's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from gputide.operate.engine_process import kill_process, start_process, wait_until
from gputide.operate.engines import free_port
from tests.engines.go_peers import GoPeers, NvidiaPeers
from tests.engines.prometheus_parts import SAMPLES, SERIES, answer_of, send
from tests.waiting import text_of

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def receiving_prometheus(go_peers: GoPeers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text("{}\n", encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    server = start_process(
        "prometheus",
        [str(go_peers.prometheus), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
         f"--web.listen-address={url.removeprefix('http://')}", "--web.enable-remote-write-receiver"],
        folder=folder, log=folder / "log", environ=os.environ,
    )  # fmt: skip
    try:
        wait_until(lambda: text_of(f"{url}/-/ready") != "", server, seconds_max=60)
        yield url
    finally:
        kill_process(server)


@pytest.mark.parametrize("layout", ["series", "sample"])
def test_prometheus_confirms_everything_that_the_sender_says_it_sent(
    layout: str, go_peers: GoPeers, receiving_prometheus: str
) -> None:
    said = send(
        go_peers, receiving_prometheus, "-layout", layout, "-metric", f"layout_{layout}", "-label", f"layout={layout}"
    )
    assert said == {"samples": SERIES * SAMPLES, "histograms": 1, "exemplars": SERIES, "retries": 0, "error": ""}
    assert _value(receiving_prometheus, f"sum(count_over_time(layout_{layout}[5m]))") == SERIES * SAMPLES
    assert _value(receiving_prometheus, f'histogram_count(request_seconds{{layout="{layout}"}})') == 3


def test_a_body_in_chunks_is_taken_like_one_with_its_length(go_peers: GoPeers, receiving_prometheus: str) -> None:
    said = send(go_peers, receiving_prometheus, "-chunked", "-metric", "in_chunks", "-histogram=false")
    assert said["samples"] == SERIES * SAMPLES
    assert _value(receiving_prometheus, "sum(count_over_time(in_chunks[5m]))") == SERIES * SAMPLES


def test_the_sender_asks_again_where_nobody_listens(go_peers: GoPeers) -> None:
    said = send(go_peers, f"http://127.0.0.1:{free_port()}", "-retries", "3", "-back-off", "1ms", status=1)
    assert said["retries"] == 3
    assert "connection refused" in said["error"]


def test_promtool_is_of_the_version_that_was_asked_for(go_peers: GoPeers) -> None:
    done = subprocess.run([go_peers.promtool, "--version"], capture_output=True, text=True, check=True)
    assert "version 3.15.0" in done.stdout


def test_nvidias_programs_are_of_the_version_that_was_asked_for(nvidia_peers: NvidiaPeers) -> None:
    for program in (nvidia_peers.device_plugin, nvidia_peers.mps_daemon):
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        assert "version 0.19.3" in done.stdout


def _value(url: str, expression: str) -> float:
    """Return what an expression with one answer is now."""
    (found,) = answer_of(url, expression)
    return float(found["value"][1])
