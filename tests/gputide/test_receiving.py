"""`gputide run receive` as a process: what it answers, and that what it acknowledged is on the bus however it ends."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from fleet.data_folder import DataFolder
from fleet.schema import POD_USAGE, Measure
from pipeline.bus.bus_file import FileBus
from pipeline.records.rows import unpack
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.gputide.conftest import Program, Running, Said
from tests.pipeline.builders import START_MS, Sample, body_of, stored_rows
from tests.pipeline.receiving import V2, post
from tests.scraping import OWN_PORT, own_url, scraped
from tests.waiting import until
from tests.wire.http_serving import exchange, statuses

pytestmark = pytest.mark.long

KILLED = -signal.SIGKILL
SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def receivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A caller of the program for receivers; verbs that run beside one are called by `program`."""
    caller = Program(tmp_path_factory.mktemp("receivers"))
    yield caller
    caller.close()


class Receiving:
    """A receiver that runs."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.said: Said | None = None
        self.address = ("", 0)

    def wait_until_it_listens(self) -> None:
        """Wait for its address."""
        deadline = time.monotonic() + SECONDS_MAX
        while (found := re.search(r"listening on https?://([\d.]+):(\d+)/", self.running.err.read_text())) is None:
            assert time.monotonic() < deadline, self.running.err.read_text()
            time.sleep(0.01)
        self.address = found[1], int(found[2])

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own; waits until it is served."""
        return http.client.HTTPConnection(*self.address, timeout=SECONDS_MAX)

    def ask(self, body: bytes) -> int:
        """Post a body on a connection of its own."""
        with closing(self.connect()) as connection:
            return int(post(connection, body, V2)[0].status)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> Said:
        """End it and wait; what it said."""
        os.kill(self.running.pid, how)
        return self.ended()

    def ended(self) -> Said:
        """Wait for its end."""
        if self.said is None:
            self.said = self.running.wait()
        return self.said


@contextmanager
def receiving(receivers: Program, data: Path, *options: str, **more: object) -> Iterator[Receiving]:
    """A receiver on a port of its own, ended at the latest at the end."""
    running = receivers.start(data, *options, "run", "receive", "--listen", "127.0.0.1:0", **more)  # type: ignore[arg-type]
    receiver = Receiving(running)
    try:
        receiver.wait_until_it_listens()
        yield receiver
    finally:
        if receiver.said is None:
            receiver.stop(signal.SIGKILL)


def body_at(step: int, samples: int = 1) -> bytes:
    return body_of([Sample(pod, Measure.DUTY_CYCLE, START_MS + step, 0.5) for pod in range(samples)])


def times_on_bus(data: Path) -> list[int]:
    """Steps of all rows on all lanes of the bus, sorted."""
    folder = DataFolder(path=data)
    found: list[int] = []
    for lane in folder.bus_lanes:
        with closing(FileBus(folder.bus(lane), segment_bytes=1 << 26, bytes_max=1 << 34)) as bus:
            chunk = bus.read(0, bytes_max=1 << 30)
            assert chunk is None or chunk.corrupt == 0
            for record in () if chunk is None else chunk.records:
                found += [int(time_ms) - START_MS for section in unpack(record) for time_ms in section.ts_ms]
    return sorted(found)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_stopped_receiver_ends_with_0_and_everything_acknowledged_is_on_the_bus(
    how: signal.Signals, tmp_path: Path, receivers: Program
) -> None:
    with receiving(receivers, tmp_path / "data") as receiver:
        acknowledged: list[int] = []
        sender = threading.Thread(target=send_until_gone, args=(receiver, acknowledged))
        sender.start()
        until(lambda: len(acknowledged) >= 20)
        said = receiver.stop(how)
        sender.join()
    assert said.status == 0
    assert "everything acknowledged is on the bus" in said.err
    assert set(acknowledged) <= set(times_on_bus(tmp_path / "data"))


def send_until_gone(receiver: Receiving, acknowledged: list[int]) -> None:
    """One body after the other on one connection, anew after a refusal to connect that is not final."""
    connection = receiver.connect()
    for step in range(100_000):
        try:
            answer, _ = post(connection, body_at(step), V2)
        except (OSError, http.client.HTTPException):
            break
        if answer.status == 204:
            acknowledged.append(step)
        if answer.getheader("Connection") == "close":
            break
    connection.close()


MOMENTS = [(1, "before"), (1, "after"), (2, "before"), (2, "after"), (7, "before"), (8, "before"), (8, "after")]
"""Writes and syncs of the bus take turns, so that every phase of an append is met, early and late."""


@pytest.mark.parametrize(("nth", "moment"), MOMENTS)
def test_killed_receiver_has_everything_acknowledged_on_the_bus(
    nth: int, moment: str, tmp_path: Path, receivers: Program
) -> None:
    data = tmp_path / "data"
    with receiving(receivers, data, dies_at=("append", nth, moment)) as receiver:
        acknowledged: list[int] = []
        send_until_gone(receiver, acknowledged)
        assert receiver.ended().status == KILLED
    on_bus = times_on_bus(data)
    assert set(acknowledged) <= set(on_bus)
    assert len(on_bus) <= len(acknowledged) + 1
    with receiving(receivers, data) as again:
        assert again.ask(body_at(len(acknowledged))) == 204
        assert again.stop().status == 0
    assert set(times_on_bus(data)) == set(range(len(acknowledged) + 1))


def test_receivers_killed_under_load_lose_nothing_acknowledged(tmp_path: Path, receivers: Program) -> None:
    data = tmp_path / "data"
    with receiving(receivers, data, "--set", "receiver.processes=2") as receiver:
        taken: list[list[int]] = [[], [], [], []]
        stopping = threading.Event()

        def send(acknowledged: list[int], first: int) -> None:
            connection, step = receiver.connect(), first
            while not stopping.is_set():
                try:
                    if post(connection, body_at(step), V2)[0].status == 204:
                        acknowledged.append(step)
                        step += len(taken)
                except (OSError, http.client.HTTPException):
                    connection.close()
                    connection = receiver.connect()
                    time.sleep(0.01)

        threads = [threading.Thread(target=send, args=(taken[first], first)) for first in range(len(taken))]
        for thread in threads:
            thread.start()

        def wait_for_more() -> None:
            before = [len(steps) for steps in taken]
            until(lambda: all(len(steps) > count + 3 for steps, count in zip(taken, before, strict=True)))

        for _ in range(3):
            wait_for_more()
            os.kill(children_of(receiver.running.pid)[0], signal.SIGKILL)
        wait_for_more()
        stopping.set()
        for thread in threads:
            thread.join()
        said = receiver.stop()
    assert said.status == 0
    assert said.err.count("a process that receives has ended") == 3
    assert {step for steps in taken for step in steps} <= set(times_on_bus(data))
    assert sorted(path.name for path in data.glob("bus*")) == ["bus", "bus-1"]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_processes_end_with_the_one_that_started_them(tmp_path: Path, receivers: Program) -> None:
    with receiving(receivers, tmp_path / "data", "--set", "receiver.processes=2") as receiver:
        assert receiver.ask(body_at(1)) == 204
        children = children_of(receiver.running.pid)
        assert len(children) == 2
        receiver.stop(signal.SIGKILL)
        until(lambda: not any(is_running(child) for child in children))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_scrape_sees_all_processes(tmp_path: Path, receivers: Program) -> None:
    with receiving(receivers, tmp_path / "data", "--set", "receiver.processes=2") as receiver:
        for step in range(10):
            assert receiver.ask(body_at(step)) == 204
        with closing(receiver.connect()) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
    assert "gputide_receiver_samples_total 10.0\n" in text
    assert "gputide_receiver_processes 2.0\n" in text


def test_second_receiver_on_a_folder_is_refused_at_once_and_names_the_first(
    tmp_path: Path, receivers: Program, program: Program
) -> None:
    with receiving(receivers, tmp_path / "data") as receiver:
        said = program(tmp_path / "data", "run", "receive", "--listen", "127.0.0.1:0")
        assert said.status == 5
        assert f"process {receiver.running.pid} holds it" in said.err
        assert receiver.ask(body_at(1)) == 204


@pytest.mark.parametrize("processes", [1, 2])
def test_busy_port_is_said_so(processes: int, tmp_path: Path, program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = program(
            tmp_path / "data", "--set", f"receiver.processes={processes}", "run", "receive", "--listen", address
        )
    assert said.status == 5
    assert address in said.err
    assert "in use" in said.err


def test_address_for_everybody_needs_senders_that_say_who_they_are(tmp_path: Path, program: Program) -> None:
    said = program(tmp_path / "data", "run", "receive", "--listen", "0.0.0.0:0")
    assert said.status == 2
    assert "receiver.tokens_file" in said.err
    assert "receiver.insecure_listen" in said.err


def test_missing_tokens_file_is_wrong_use(tmp_path: Path, program: Program) -> None:
    said = program(tmp_path / "data", "--set", f"receiver.tokens_file={tmp_path / 'none'}", "run", "receive")
    assert said.status == 2
    assert "receiver.tokens_file" in said.err


BROKEN_VERB = """
import sys, types, typer
from gputide import cli
verb = types.ModuleType("gputide.verbs.serve")
verb.app = typer.Typer()
@verb.app.command()
def serve():
    print(1 // 0)
sys.modules["gputide.verbs.serve"] = verb
sys.argv = ["gputide", "serve"]
cli.main()
"""


def test_bug_ends_with_70_and_is_shown_with_where_it_stands() -> None:
    said = subprocess.run([sys.executable, "-c", BROKEN_VERB], capture_output=True, text=True, check=False, timeout=60)
    assert said.returncode == 70
    assert "ZeroDivisionError" in said.stderr
    assert "this is a bug of gputide" in said.stderr


def test_each_kind_of_request_is_answered_as_the_protocol_says(tmp_path: Path, receivers: Program) -> None:
    with receiving(receivers, tmp_path / "data", "--set", "receiver.body_bytes_max=4KiB") as receiver:
        with closing(receiver.connect()) as connection:
            assert post(connection, body_at(1), V2)[0].status == 204
            assert post(connection, body_at(1), V2)[0].status == 204
            assert post(connection, b"not snappy", V2)[0].status == 400
            assert post(connection, b"x" * 5000, V2)[0].status == 413
            assert post(connection, body_at(2), {"Content-Type": "text/plain"})[0].status == 415
            connection.request("GET", "/api/v1/write")
            assert connection.getresponse().read() == b"cannot GET here: expected POST\n"
            connection.request("POST", "/api/v2/write", b"")
            assert connection.getresponse().status == 404
        head = b"POST /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
        assert statuses(exchange(receiver.address, head + b"\r\n")) == [411]
        assert statuses(exchange(receiver.address, head + b"Content-Length: 99\r\n\r\nabc")) == [400]
        assert receiver.stop().status == 0
    assert times_on_bus(tmp_path / "data") == [1]


def test_repeated_late_and_disordered_requests_are_counted_once(
    tmp_path: Path, receivers: Program, program: Program
) -> None:
    data = tmp_path / "data"
    day = 86_400_000
    steps = [5, 3, 4, -day, day, 3, 5, -day]
    with receiving(receivers, data) as receiver:
        assert [receiver.ask(body_at(step)) for step in steps] == [204] * len(steps)
        assert receiver.ask(body_at(5, samples=2)) == 204
        receiver.stop()
    said = program(data, "run", "rollup", "--drain")
    assert said.status == 0
    warehouse = DuckdbWarehouse(data / "warehouse")
    days = stored_rows(warehouse, POD_USAGE, levels=(86_400,))
    warehouse.close()
    # Of the last body one sample was there already: five times of one pod, and one of the other.
    assert sum(row["samples"] for row in days.values()) == 6
    assert len(days) == 3


def test_full_bus_is_429_and_taken_again_once_the_rollup_has_read(
    tmp_path: Path, receivers: Program, program: Program
) -> None:
    data = tmp_path / "data"
    small = ("--set", "bus.segment_bytes=2KiB", "--set", "bus.bytes_max=8KiB")
    with receiving(receivers, data, *small) as receiver:
        answers = [receiver.ask(body_at(step)) for step in range(60)]
        assert set(answers) == {204, 429}
        assert program(data, *small, "run", "rollup", "--drain").status == 0
        assert receiver.ask(body_at(1000)) == 204


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_full_disk_is_503_and_taken_again_once_there_is_room(tmp_path: Path, receivers: Program) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk, receiving(receivers, disk / "data") as receiver:
        assert receiver.ask(body_at(0)) == 204
        filler = disk / "filler"
        fill(filler)
        answers = [receiver.ask(body_at(step, samples=200)) for step in range(1, 8)]
        assert 503 in answers
        assert set(answers) <= {204, 503}
        filler.unlink()
        assert receiver.ask(body_at(100)) == 204
        assert receiver.stop().status == 0
        acknowledged = {0, 100} | {step for step, status in enumerate(answers, 1) if status == 204}
        assert set(times_on_bus(disk / "data")) == acknowledged


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_read_only_disk_is_refused_at_the_start_and_said_so(tmp_path: Path, program: Program) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        (disk / "data").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        said = program(disk / "data", "run", "receive", "--listen", "127.0.0.1:0")
    assert said.status == 6
    assert "Read-only file system" in said.err


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    """Leave no room on a disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def test_running_rollup_waits_for_more_rather_than_make_a_file_of_every_request(
    tmp_path: Path, receivers: Program, program: Program
) -> None:
    data = tmp_path / "data"
    manifest = DataFolder(path=data).warehouse / "MANIFEST"
    with receiving(receivers, data) as receiver:
        assert receiver.ask(body_at(0)) == 204
        rollup = program.start(data, "--set", "rollup.pause_seconds=3", "run", "rollup")
        try:
            until(lambda: manifest.exists() and manifest.read_text().count("\n") >= 1)
            began = time.monotonic()
            for step in range(1, 31):
                assert receiver.ask(body_at(step)) == 204
                time.sleep(0.1)
            until(lambda: manifest.read_text().count("\n") >= 2)
            appends, seconds = manifest.read_text().count("\n") - 1, time.monotonic() - began
        finally:
            os.kill(rollup.pid, signal.SIGTERM)
        assert rollup.wait().status == 0
    assert appends <= seconds / 3 + 1
    assert program(data, "run", "rollup", "--drain").status == 0
    with closing(DuckdbWarehouse(data / "warehouse")) as warehouse:
        assert sum(row["samples"] for row in stored_rows(warehouse, POD_USAGE, levels=(86_400,)).values()) == 31


def test_running_rollup_shows_a_scraper_what_it_took_and_what_waits(
    tmp_path: Path, receivers: Program, program: Program
) -> None:
    data = tmp_path / "data"
    with receiving(receivers, data) as receiver:
        for step in range(3):
            assert receiver.ask(body_at(step, samples=2)) == 204
        receiver.stop()
    corrupt = FileBus(DataFolder(path=data).bus(0), segment_bytes=1 << 26, bytes_max=1 << 34)
    corrupt.append(b"no record of ours")
    waiting = corrupt.waiting_bytes
    corrupt.close()
    rollup = program.start(data, *OWN_PORT, "--set", "rollup.pause_seconds=0", "run", "rollup")
    try:
        url = own_url(rollup.err)
        until(lambda: scraped(url)["gputide_rollup_samples_total"] == 6)
        until(lambda: scraped(url)["gputide_rollup_waiting_bytes"] == 0)
        began = time.time()
        until(lambda: scraped(url)["gputide_rollup_last_success_timestamp_seconds"] > began)
        found = scraped(url)
    finally:
        os.kill(rollup.pid, signal.SIGTERM)
    assert rollup.wait().status == 0
    assert waiting > 0
    assert found["gputide_rollup_corrupt_total"] == 1
    assert found["gputide_rollup_rows_total"] > 0
    assert found["gputide_rollup_step_seconds_count"] >= 2
    assert found["process_cpu_seconds_total"] > 0
