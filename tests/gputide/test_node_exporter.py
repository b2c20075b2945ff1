"""`gputide run export node` as a process: cards and pods, what it says where there are none, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cluster_api import SimulatedApi, start_server
from exporter.allocation.records import OwnerLinkRecord
from fleet.errors import Misconfigured
from gputide.cli import app
from tests.exporter.kubeconfigs import write_kubeconfig
from tests.exporter.kubelet import StandInKubelet, container, device, pod
from tests.exporter.node import NODE, manifest
from tests.exporter.nvml.standin import DATA_VARIABLE, FIELDS, GPM, H100, StandInWorld, library_file, uuid
from tests.waiting import until

pytestmark = pytest.mark.long

SECONDS_MAX = 60.0
GPUTIDE = (str(Path(sys.executable).with_name("gputide")),)


class Exporting:
    """An exporter that runs."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.address = self._until(r"serving (http://[\d.:]+)/metrics")

    def said(self) -> str:
        return self._log.read_text()

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.address + path, timeout=SECONDS_MAX) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    def until_shown(self, pattern: str) -> str:
        """The whole answer, once it holds a line."""
        deadline = time.monotonic() + SECONDS_MAX
        while not re.search(pattern, text := self.ask("/metrics")[1], re.MULTILINE):
            assert time.monotonic() < deadline, text[-2000:]
            time.sleep(0.1)
        return text

    def _until(self, pattern: str) -> str:
        deadline = time.monotonic() + SECONDS_MAX
        while (found := re.search(pattern, self.said())) is None:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        return found[1]


@contextmanager
def exporting(folder: Path, *settings: str, environ: dict[str, str] | None = None) -> Iterator[Exporting]:
    """An exporter on a free port, ended at the latest at the end."""
    log = folder / "log"
    options = [word for setting in settings for word in ("--set", setting)]
    with log.open("wb") as target:
        process = subprocess.Popen(
            [*GPUTIDE, *options, "run", "export", "node", "--listen", "127.0.0.1:0", "--interval", "0.5"],
            stderr=target, env={**os.environ, **(environ or {})},
        )  # fmt: skip
    try:
        yield Exporting(process, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[StandInKubelet]:
    made = StandInKubelet(tmp_path / "kubelet.sock")
    yield made
    made.stop()


def test_cards_and_pods_of_a_node_are_served_and_the_signal_ends_it(tmp_path: Path, kubelet: StandInKubelet) -> None:
    world = StandInWorld(tmp_path / "world.txt").card(**H100, gpm=GPM, fields=FIELDS, util=60).card(**H100).write()
    kubelet.pods = [pod("team", "web-0", container("main", device("nvidia.com/gpu", uuid(0))))]
    kubelet.start()
    with exporting(
        tmp_path, f"exporter.nvml_library={library_file()}", f"exporter.pod_resources_socket={kubelet.path}",
        "exporter.node=gpu-1", "cluster.name=prod", f"exporter.containers_folder={tmp_path / 'none'}",
        environ={DATA_VARIABLE: str(world.file)},
    ) as exporter:  # fmt: skip
        text = exporter.until_shown(r'^gputide_slice_duty_cycle_ratio\{.*pod="web-0".* 0\.6$')
        assert f'gputide_card_info{{cluster="prod",node="gpu-1",card="{uuid(1)}"' in text
        assert re.search(r'^gputide_slice_info\{.*pod="web-0"', text, re.MULTILINE)
        assert re.search(r"^gputide_counter_trusted\{", text, re.MULTILINE)
        # Between two readings that come late the figures are old for a moment.
        until(lambda: exporter.ask("/healthz")[0] == 200)
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(SECONDS_MAX) == 0
        assert exporter.said().rstrip().endswith("stopped")


def test_api_server_tells_the_owner_above_a_pods_own(tmp_path: Path, kubelet: StandInKubelet) -> None:
    world = StandInWorld(tmp_path / "world.txt").card(**H100, gpm=GPM, fields=FIELDS, util=60).write()
    kubelet.pods = [pod("team", "run", container("main", device("nvidia.com/gpu", uuid(0))))]
    kubelet.start()
    api = SimulatedApi()
    api.put("/api/v1/pods", manifest("run", 1, owner=OwnerLinkRecord(uid="j", kind="Job", name="nightly-1")))
    cron = {"uid": "c", "kind": "CronJob", "name": "nightly", "controller": True}
    job = {"metadata": {"namespace": "team", "name": "nightly-1", "uid": "j", "ownerReferences": [cron]}}
    api.put("/apis/batch/v1/jobs", job)
    server = start_server(api)
    (tmp_path / "token").write_text("secret")
    address = f"http://127.0.0.1:{server.server_address[1]}"
    kubeconfig = write_kubeconfig(tmp_path, address, user={"tokenFile": "token"})
    try:
        with exporting(
            tmp_path, f"exporter.nvml_library={library_file()}", f"exporter.pod_resources_socket={kubelet.path}",
            f"exporter.node={NODE}", f"exporter.kubeconfig={kubeconfig}",
            environ={DATA_VARIABLE: str(world.file)},
        ) as exporter:  # fmt: skip
            # The first readings wait for the API server for a moment only, and go on without it.
            text = exporter.until_shown(r'^gputide_slice_info\{.*pod="run".*workload="nightly"')
            (line,) = re.findall(r"^gputide_slice_info\{.*", text, re.MULTILINE)
            assert 'workload="nightly",workload_kind="CronJob"' in line
            assert 'started_at="2026-03-04T11:00:00+00:00"' in line
    finally:
        api.cut(forget=False)
        server.shutdown()
        server.server_close()


def test_node_without_a_driver_says_so_and_is_not_healthy(tmp_path: Path) -> None:
    with exporting(tmp_path, "exporter.nvml_library=/nonexistent/libnvidia-ml.so.1") as exporter:
        exporter.until_shown(r"^gputide_exporter_reading_failures_total [1-9]")
        status, line = exporter.ask("/healthz")
        assert status == 503
        assert "no reading yet" in line
        assert "/nonexistent/libnvidia-ml.so.1" in exporter.said()
        # A card that nobody could read is not a card at 0.
        assert "gputide_card_" not in exporter.ask("/metrics")[1]


def test_wrong_use_of_export_is_refused_with_the_way_out(tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        said = subprocess.run([*GPUTIDE, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        assert said.returncode == 2, said.stderr
        return said.stderr

    assert "--from: it goes with --replay" in refused("run", "export", "node", "--from", "2026-01-01")
    assert "expected HOST:PORT" in refused("run", "export", "node", "--listen", "9400")
    assert "exporter.sample_seconds" in refused("--set", "exporter.sample_second=1", "run", "export", "node")
    assert "see exporter.kubeconfig" in refused(
        "--set", f"exporter.kubeconfig={tmp_path / 'none'}", "run", "export", "cluster"
    )


@pytest.mark.parametrize(
    ("interval", "bound"),
    [("0.2", "expected at least 0.5"), ("-1", "expected at least 0.5"), ("nan", "finite"),
     ("3601", "expected at most 3600")],
)  # fmt: skip
def test_interval_is_bounded_as_its_setting_is(interval: str, bound: str) -> None:
    done = CliRunner().invoke(app, ["run", "export", "node", "--interval", interval])
    assert isinstance(done.exception, Misconfigured)
    assert f"--interval {interval}: exporter.interval_seconds" in str(done.exception)
    assert bound in str(done.exception)


def test_busy_port_ends_the_exporter_with_its_address(tmp_path: Path) -> None:
    with exporting(tmp_path, "exporter.nvml_library=/nonexistent/libnvidia-ml.so.1") as exporter:
        port = exporter.address.rpartition(":")[2]
        second = subprocess.run(
            [*GPUTIDE, "run", "export", "node", "--listen", f"127.0.0.1:{port}"],
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
    assert second.returncode == 5
    assert f"127.0.0.1:{port}" in second.stderr
