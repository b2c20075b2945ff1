"""`gputide run export cluster` as a process, against an HTTP server that answers as an API server does."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bench.cluster_api import SimulatedApi, fill, start_server
from tests.exporter.kubeconfigs import write_kubeconfig
from tests.gputide.conftest import Program

SECONDS_MAX = 60.0
GPUTIDE = str(Path(sys.executable).with_name("gputide"))


def test_what_a_cluster_granted_is_served_until_the_signal(tmp_path: Path) -> None:
    api = SimulatedApi()
    fill(api, nodes=2, pods=6, cards_per_node=2)
    server = start_server(api)
    kubeconfig = write_kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_address[1]}")
    log = tmp_path / "log"
    options = ["--set", f"exporter.kubeconfig={kubeconfig}", "--set", "cluster.name=prod"]
    with log.open("wb") as said:
        exporter = subprocess.Popen(
            [GPUTIDE, *options, "run", "export", "cluster", "--listen", "127.0.0.1:0"], stderr=said
        )
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while (address := re.search(r"serving (http://[\d.:]+/metrics)", log.read_text())) is None:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        text = ""
        while text.count("\ngputide_slice_info{") < 6:
            assert time.monotonic() < deadline, text[-2000:]
            time.sleep(0.1)
            with urllib.request.urlopen(address[1], timeout=SECONDS_MAX) as answer:
                text = answer.read().decode()
        assert text.count("\ngputide_card_info{") == 4
        assert 'cluster="prod"' in text
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(SECONDS_MAX) == 0
        assert log.read_text().rstrip().endswith("stopped")
    finally:
        exporter.kill()
        exporter.wait()
        api.cut(forget=False)
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("option", [("--compat", "dcgm"), ("--processes", "5")])
def test_options_of_a_node_are_refused_for_a_cluster(program: Program, tmp_path: Path, option: tuple[str, str]) -> None:
    said = program(tmp_path, "run", "export", "cluster", *option)
    assert said.status == 2
    assert option[0] in said.err
