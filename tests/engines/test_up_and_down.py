"""`gputide admin engines` as a user meets it: real Kafka and Hive, started, killed and stopped by the program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputide.operate.engine_answers import hive_answers, kafka_answers, metastore_answers
from gputide.operate.engine_process import read_register
from tests.engines.running import Hive, Kafka

pytestmark = pytest.mark.engines


def test_kafka_comes_up_once_shows_when_it_is_killed_and_comes_back_where_it_was(
    engines_cache: Path, tmp_path: Path
) -> None:
    where = ("--dir", str(tmp_path), "--cache", str(engines_cache))
    try:
        (first,) = _said(_engines("up", "kafka", *where, "--format", "json"))
        assert first["state"] == "answers"
        assert kafka_answers(_port(first))

        (again,) = _said(_engines("up", "kafka", *where, "--format", "json"))
        assert again == first

        os.kill(first["pid"], signal.SIGKILL)
        status = _engines("status", "kafka", *where[:2], "--format", "json", status=1)
        assert [part["state"] for part in _said(status)] == ["dead"]

        (back,) = _said(_engines("up", "kafka", *where, "--format", "json"))
        assert back["pid"] != first["pid"]
        assert back["address"] == first["address"]
    finally:
        _engines("down", *where[:2])
    assert not Path(f"/proc/{back['pid']}").exists() or _is_gone(back["pid"])
    assert _said(_engines("status", "kafka", *where[:2], "--format", "json")) == []
    assert "nothing runs" in _engines("down", *where[:2]).stderr


def test_hive_answers_after_up_and_the_program_stops_both_processes(engines_cache: Path, tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path), "--cache", str(engines_cache))
    try:
        metastore, server = _said(_engines("up", "hive", *where, "--format", "json"))
        assert metastore_answers(_port(metastore))
        assert hive_answers(_port(server))
        assert _said(_engines("up", "hive", *where, "--format", "json")) == [metastore, server]
    finally:
        _engines("down", *where[:2])
    assert _is_gone(metastore["pid"])
    assert _is_gone(server["pid"])


def test_a_flink_cluster_has_a_worker_and_status_shows_the_environment_of_jobs(
    engines_cache: Path, tmp_path: Path
) -> None:
    where = ("--dir", str(tmp_path), "--cache", str(engines_cache))
    try:
        found = _said(_engines("up", "flink", "--flink-cluster", *where, "--format", "json"))
        assert [(part["part"], part["state"]) for part in found] == [
            ("jobmanager", "answers"), ("taskmanager", "answers"), ("environment", "ready"),
        ]  # fmt: skip
        assert (Path(found[2]["address"]) / "lib" / "flink-dist-2.2.1.jar").is_file()
    finally:
        _engines("down", *where[:2])
    assert [part["part"] for part in _said(_engines("status", "flink", *where, "--format", "json"))] == ["environment"]


def test_ctrl_c_while_a_broker_starts_leaves_nothing_running(engines_cache: Path, tmp_path: Path) -> None:
    # Whoever runs tests in the background of a shell has them ignore the signal, and all that they start.
    program = ["env", "--default-signal=INT", sys.executable, "-m", "gputide.cli"]
    command = [*program, "admin", "engines", "up", "kafka", "--dir", str(tmp_path)]
    calling = subprocess.Popen([*command, "--cache", str(engines_cache)], stderr=subprocess.PIPE, text=True)
    pid = _first_pid(tmp_path)
    calling.send_signal(signal.SIGINT)
    calling.communicate(timeout=60)
    assert calling.returncode != 0
    assert _is_gone(pid)
    assert _said(_engines("status", "kafka", "--dir", str(tmp_path), "--format", "json")) == []


def test_a_port_that_somebody_else_has_is_named_and_left_alone(
    kafka: Kafka, engines_cache: Path, tmp_path: Path
) -> None:
    kafka.start()
    taken = kafka.bootstrap.partition(":")[2]
    where = ("--dir", str(tmp_path), "--cache", str(engines_cache))
    said = _engines("up", "kafka", *where, "--kafka-port", taken, status=5)
    assert f"port {taken} of 127.0.0.1 is taken" in said.stderr
    assert kafka_answers(int(taken))


def test_a_broker_that_cannot_start_shows_its_log(engines_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "extra.properties").write_text("log.dirs=/proc/no-such-place\n", encoding="utf-8")
    said = _engines("up", "kafka", "--dir", str(tmp_path), "--cache", str(engines_cache), status=5)
    assert "/proc/no-such-place" in said.stderr


def test_a_killed_metastore_comes_back_with_its_tables_and_the_server_stays(hive: Hive, fresh_database: str) -> None:
    from pyhive import hive as driver  # noqa: PLC0415 - only who runs engines has the driver

    with driver.connect(host=hive.host, port=hive.port, username="gputide") as connection:
        connection.cursor().execute(f"create database {fresh_database}")
    server = read_register(hive.folder)
    hive.kill_metastore()
    assert not metastore_answers(hive.metastore_port)
    hive.restart()
    (before,), (after,) = server.values(), read_register(hive.folder).values()
    assert after.processes["server"] == before.processes["server"]
    assert after.processes["metastore"] != before.processes["metastore"]
    with driver.connect(host=hive.host, port=hive.port, username="gputide") as connection:
        cursor = connection.cursor()
        cursor.execute(f"show databases like '{fresh_database}'")
        assert cursor.fetchall() == [(fresh_database,)]


def _engines(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "gputide.cli", "admin", "engines", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr + done.stdout
    return done


def _said(done: subprocess.CompletedProcess[str]) -> list[dict]:
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def _port(part: dict) -> int:
    return int(part["address"].partition(":")[2])


def _first_pid(folder: Path) -> int:
    """Return the first process that the register of a folder names."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for run in read_register(folder).values():
            for record in run.processes.values():
                return record.pid
        time.sleep(0.05)
    pytest.fail("nothing was started within a minute")


def _is_gone(pid: int) -> bool:
    """Whether a process has ended, be its exit status fetched or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
