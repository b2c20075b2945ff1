"""`gputide run agent` as a process: low priority sleeps while high priority works, and wakes when the agent ends."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cluster_api import SimulatedApi, start_server
from fleet.errors import Misconfigured
from gputide.cli import app
from tests.exporter.kubeconfigs import write_kubeconfig
from tests.exporter.node import NODE, hami, manifest, uid
from tests.exporter.nvml.standin import DATA_VARIABLE, GIB, H100, StandInWorld, library_file, uuid
from tests.regions.plain_regions import MIB, PLAIN, PlainProcess, PlainRegion, write_region
from tests.scraping import OWN_PORT, own_url, scraped
from tests.waiting import until

pytestmark = pytest.mark.long

GPUTIDE = str(Path(sys.executable).with_name("gputide"))
SHAPE = PLAIN["v1.2"]
LOW, HIGH = 1, 2


@dataclass
class Node:
    """A node with one card that a low-priority and a high-priority pod share."""

    folder: Path
    world: StandInWorld
    api: SimulatedApi

    def region(self, number: int) -> Path:
        return self.folder / "containers" / f"{uid(number)}_main" / f"{number:08x}-1111-4000-8000-000000000000.cache"

    def add(self, number: int, sm_util: int) -> None:
        path = self.region(number)
        path.parent.mkdir(parents=True)
        process = PlainProcess(pid=7, host_pid=1000 + number, sm_util=sm_util, context=MIB, module=MIB, data=GIB)
        write_region(
            path,
            PlainRegion(
                cards=(uuid(0),), processes=(process,), limit=20 * GIB, last_kernel_time=int(time.time()) - 5,
                priority=int(number == LOW),
            ),
        )  # fmt: skip

    def work(self, number: int, sm_util: int) -> None:
        """Have a container's process use that much, percent."""
        assert SHAPE.util is not None
        with self.region(number).open("r+b") as file:
            file.seek(SHAPE.procs + SHAPE.util + 16)
            file.write(struct.pack("<Q", sm_util))

    def status(self, number: int) -> int:
        raw = self.region(number).read_bytes()
        return int(struct.unpack_from("<i", raw, SHAPE.procs + SHAPE.status)[0])

    def options(self, *more: str) -> list[str]:
        settings = (
            f"exporter.node={NODE}",
            f"exporter.nvml_library={library_file()}",
            f"exporter.containers_folder={self.folder / 'containers'}",
            f"enforcer.kubeconfig={self.folder / 'kubeconfig'}",
            *more,
        )
        words = [word for setting in settings for word in ("--set", setting)]
        return ["--data-dir", str(self.folder / "data"), *words]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Yield the node, with an API server that tells of its pods."""
    world = StandInWorld(tmp_path / "world.txt")
    world.card(**{**H100, "util": 60}).write()
    monkeypatch.setenv(DATA_VARIABLE, str(world.file))
    api = SimulatedApi()
    for number, priority in ((LOW, "1"), (HIGH, "0")):
        resources = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20480", "nvidia.com/priority": priority}
        granted = {**hami(f"{uuid(0)},20480,50"), "hami.io/vgpu-node": NODE}
        api.put("/api/v1/pods", manifest(f"pod-{number}", number, annotations=granted, resources=resources))
    server = start_server(api)
    write_kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_address[1]}")
    made = Node(folder=tmp_path, world=world, api=api)
    made.add(LOW, sm_util=60)
    made.add(HIGH, sm_util=0)
    yield made
    server.shutdown()


@contextmanager
def running(node: Node, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    with (node.folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [GPUTIDE, *node.options(*settings), "run", "agent"], stderr=log, env=dict(os.environ)
        )
        try:
            until(lambda: b"runs; Ctrl-C stops" in (node.folder / "log").read_bytes())
            yield process
        finally:
            process.kill()
            process.wait()


def test_low_priority_sleeps_while_high_priority_works_and_wakes_with_the_agents_end(node: Node) -> None:
    with running(node, "agent.give_way=strict", "agent.quiet_seconds=1") as process:
        node.work(HIGH, 40)
        until(lambda: node.status(LOW) == 2)
        assert node.status(HIGH) == 1
        node.work(HIGH, 0)
        until(lambda: node.status(LOW) == 1)
        node.work(HIGH, 40)
        until(lambda: node.status(LOW) == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert node.status(LOW) == 1
    acts = [
        json.loads(line)["act"] for line in (node.folder / "data" / "agent" / "acts.jsonl").read_text().splitlines()
    ]
    assert acts == ["sleep", "wake", "sleep", "wake"]


def test_a_scraper_sees_who_sleeps_what_failed_and_that_the_agent_still_looks(node: Node) -> None:
    with running(node, "agent.give_way=strict", "agent.quiet_seconds=1", OWN_PORT[1]):
        url = own_url(node.folder / "log")
        until(lambda: scraped(url)["gputide_agent_look_seconds_count"] >= 2)
        node.work(HIGH, 40)
        until(lambda: scraped(url)["gputide_agent_asleep_containers"] == 1)
        node.work(HIGH, 0)
        until(lambda: scraped(url)["gputide_agent_wakes_total"] == 1)
        before = scraped(url)
        node.world.line("hang", dev=0, fn="nvmlDeviceGetUtilizationRates", seconds=60).write()
        until(lambda: 'gputide_agent_look_failures_total{error="unavailable"}' in scraped(url))
        after = scraped(url)
    assert (before["gputide_agent_sleeps_total"], before["gputide_agent_asleep_containers"]) == (1, 0)
    assert before["gputide_agent_api_requests_total"] > 0
    assert before["gputide_agent_last_success_timestamp_seconds"] > before["process_start_time_seconds"]
    assert 'gputide_agent_look_failures_total{error="unavailable"}' not in before
    assert after["gputide_agent_look_seconds_count"] > before["gputide_agent_look_seconds_count"]


def test_pod_is_to_go_before_host_memory_runs_out_where_framebuffer_is_lent(node: Node) -> None:
    """Both are granted 60 of the card's 80 GiB; nothing of vgpu-manager shows what each holds."""
    meminfo = node.folder / "proc" / "meminfo"
    meminfo.parent.mkdir()
    meminfo.write_text("MemTotal: 1000000 kB\n")
    for number in (LOW, HIGH):
        held = {"nvidia.com/real-allocated": f"main[0_{uuid(0)}_50_61440]"}
        node.api.put("/api/v1/pods", manifest(f"pod-{number}", number, annotations=held))
        node.region(number).unlink()
        node.region(number).parent.rmdir()
    log = node.folder / "log"
    choices = ("enforcer.backend=vgpu_manager", "agent.settle_seconds=1", f"exporter.proc_folder={meminfo.parent}")
    with running(node, *choices):
        until(lambda: b"meminfo shows no MemAvailable" in log.read_bytes())
        meminfo.write_text("MemTotal: 1000000 kB\nMemAvailable: 31000 kB\n")
        time.sleep(1.0)
        assert b"evict" not in log.read_bytes()
        meminfo.write_text("MemTotal: 1000000 kB\nMemAvailable: 29999 kB\n")
        # This API server takes no evictions, and says so.
        until(lambda: b"cannot evict team/pod-1" in log.read_bytes())


def test_agent_that_was_killed_is_made_good_by_the_next_one(node: Node) -> None:
    with running(node, "agent.give_way=strict") as process:
        node.work(HIGH, 40)
        until(lambda: node.status(LOW) == 2)
        process.kill()
        process.wait()
    node.work(HIGH, 0)
    with running(node, "agent.give_way=strict"):
        until(lambda: node.status(LOW) == 1)


def test_check_says_that_low_priority_works_beside_high(node: Node) -> None:
    node.work(HIGH, 40)
    answer = CliRunner().invoke(
        app,
        [*node.options("agent.interval_seconds=0.2"), "run", "agent", "check", "--seconds", "4", "--format", "json"],
    )
    assert answer.exit_code == 1, answer.output
    found = json.loads(answer.stdout)
    (both,) = [entry for entry in found["situations"] if entry["situation"] == "both"]
    assert (both["verdict"], both["card"], both["low_duty_max"]) == ("broken", uuid(0), 0.6)
    assert 0.1 < found["resolution_seconds"] < 2.0


def test_container_that_never_called_cuda_does_nothing(node: Node) -> None:
    node.region(HIGH).unlink()
    answer = CliRunner().invoke(
        app, [*node.options("agent.interval_seconds=0.2"), "run", "agent", "check", "--seconds", "1"]
    )
    # A container without a region never called CUDA: it shares the card and does nothing.
    assert answer.exit_code == 0, answer.output
    assert "low alone" in answer.stdout


def test_agent_without_regions_or_api_server_says_what_is_missing(node: Node) -> None:
    with pytest.raises(Misconfigured, match="containers_folder=none"):
        CliRunner().invoke(
            app, [*node.options("exporter.containers_folder=none"), "run", "agent"], catch_exceptions=False
        )
    (node.folder / "kubeconfig").unlink()
    with pytest.raises(Misconfigured, match=r"see enforcer\.kubeconfig"):
        CliRunner().invoke(app, [*node.options(), "run", "agent"], catch_exceptions=False)
