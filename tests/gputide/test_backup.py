"""A back-up is whole although everything runs, is believed only byte by byte, and gives back the same answers."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import PlanStore
from fleet.data_folder import DataFolder, open_data_folder
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.schema import POD_USAGE, SCHEMA_VERSION, Measure
from gputide.operate.backup_create import STATE_OF_FLINK, create_backup, restore_backup
from gputide.operate.backup_list import LIST_NAME, BackedFile, BackupList, check_files, read_list, write_list
from pipeline.flink.state import FlinkRun, FlinkState
from pipeline.remote_write.decode import Version
from pipeline.warehouse.compact import compact, remove_replaced
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.enforcer.builders import standard_plan
from tests.pipeline.builders import (
    START_MS,
    Rows,
    Sample,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    roll_up,
    stored_rows,
)

pytestmark = pytest.mark.long

NOW = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=1)
STEP_MS = 15_000
_DAY = (86_400,)


def sample_of(step: int) -> Sample:
    return Sample(step % 3, Measure.DUTY_CYCLE, START_MS + STEP_MS * (step + 1), (step % 100) / 100)


def a_folder(path: Path, steps: int = 6) -> DataFolder:
    """A data folder with samples in the warehouse and on the bus, a ledger, two plans and a simulated cluster."""
    folder = open_data_folder(path, create=True)
    with closing(file_bus(folder.bus())) as bus, closing(DuckdbWarehouse(folder.warehouse)) as warehouse:
        intake = intake_of(bus)
        for step in range(steps):
            intake.take(body_of([sample_of(step)]), Version.V2)
            if step == steps // 2:
                roll_up(bus, warehouse)
    Ledger(folder.ledger).append([("begin", {"by": "ann", "stages": [1], "cards_granted": []})], plan_id="p", at=NOW)
    store = PlanStore(folder.plans)
    for days in (1, 2):
        store.add(seal_plan(_aged(days)))
    with closing(sqlite3.connect(folder.cluster)) as database:
        database.execute("CREATE TABLE seats (pod TEXT)")
        database.execute("INSERT INTO seats VALUES ('a-0')")
        database.commit()
    return folder


def _aged(days: int) -> Plan:
    plan = standard_plan()
    return replace(plan, expires_at=plan.expires_at + timedelta(days=days))


def rolled_up(folder: DataFolder) -> Rows:
    """Rows of days of a folder once its bus is empty."""
    with closing(file_bus(folder.bus())) as bus, closing(DuckdbWarehouse(folder.warehouse)) as warehouse:
        roll_up(bus, warehouse)
        return stored_rows(warehouse, POD_USAGE, levels=_DAY)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_restored_folder_gives_the_same_rows_ledger_plans_and_cluster(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "data")
    newest = PlanStore(folder.plans).newest()
    made = create_backup(folder, folder.warehouse, tmp_path / "backup", NOW)
    check_files(tmp_path / "backup", read_list(tmp_path / "backup"))
    again = DataFolder(path=tmp_path / "again")
    assert restore_backup(tmp_path / "backup", again.path, again.warehouse) == made
    assert open_data_folder(again.path, create=False) == again
    assert Ledger(again.ledger).verify() == 1
    assert PlanStore(again.plans).newest() == newest
    with closing(sqlite3.connect(again.cluster)) as database:
        assert database.execute("SELECT pod FROM seats").fetchall() == [("a-0",)]
    assert (
        rolled_up(again) == rolled_up(folder) == expected_rows([sample_of(step) for step in range(6)], POD_USAGE, _DAY)
    )
    kept = {name: text for name, text in contents(folder.path).items() if name.startswith(("plans", "ledger"))}
    assert kept.items() <= contents(again.path).items()


def test_samples_acknowledged_before_a_backup_of_a_running_folder_are_in_it_once(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    steps, stop = 0, threading.Event()

    def run() -> None:
        nonlocal steps
        with (
            closing(file_bus(folder.bus(), segment_bytes=512)) as bus,
            closing(DuckdbWarehouse(folder.warehouse)) as warehouse,
        ):
            intake = intake_of(bus)
            while not stop.is_set():
                for _ in range(5):
                    intake.take(body_of([sample_of(steps)]), Version.V2)
                    steps += 1
                roll_up(bus, warehouse, chunk_bytes=600)
                list(compact(warehouse, now=NOW, files_max=1))
                remove_replaced(warehouse, now=NOW + timedelta(days=1), keep_seconds=0)

    worker = threading.Thread(target=run)
    worker.start()
    try:
        before = []
        for number in range(2):
            target = steps + 10
            while steps < target:
                stop.wait(0.005)
            acknowledged = steps
            try:
                create_backup(folder, folder.warehouse, tmp_path / f"backup-{number}", NOW)
            except Exception:
                stop.set()
                raise
            before.append(acknowledged)
    finally:
        stop.set()
        worker.join()
    for number, acknowledged in enumerate(before):
        again = DataFolder(path=tmp_path / f"again-{number}")
        restore_backup(tmp_path / f"backup-{number}", again.path, again.warehouse)
        rows = rolled_up(again)
        held = sum(row["samples"] for row in rows.values())
        assert acknowledged <= held <= steps
        assert rows == expected_rows([sample_of(step) for step in range(held)], POD_USAGE, _DAY)


def _flip(backup: Path) -> None:
    path = backup / "data" / "ledger.jsonl"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)


def _lose(backup: Path) -> None:
    next(iter((backup / "warehouse").rglob("*.parquet"))).unlink()


def _link(backup: Path) -> None:
    path = backup / "data" / "ledger.jsonl"
    aside = backup / "elsewhere"
    path.rename(aside)
    path.symlink_to(aside)


@pytest.mark.parametrize("damage", [_flip, _lose, _link])
def test_damaged_backup_is_refused_and_leaves_nothing_behind(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = a_folder(tmp_path / "data")
    create_backup(folder, folder.warehouse, tmp_path / "backup", NOW)
    damage(tmp_path / "backup")
    with pytest.raises(Corrupt):
        check_files(tmp_path / "backup", read_list(tmp_path / "backup"))
    again = DataFolder(path=tmp_path / "again")
    with pytest.raises(Corrupt):
        restore_backup(tmp_path / "backup", again.path, again.warehouse)
    assert not again.path.exists()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("holds", "somebody-else", "is of something else"),
        ("schema_version", SCHEMA_VERSION + 1, "use a newer gputide"),
        ("clusters", ["other"], "it was edited or damaged"),
    ],
)
def test_foreign_newer_or_edited_list_is_refused(tmp_path: Path, field: str, value: object, said: str) -> None:
    folder = a_folder(tmp_path / "data", steps=1)
    create_backup(folder, folder.warehouse, tmp_path / "backup", NOW)
    path = tmp_path / "backup" / LIST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(Corrupt, match=said):
        read_list(tmp_path / "backup")


@pytest.mark.parametrize("place", ["../outside", "data/../../outside", "/outside", "data//x", "elsewhere/x", "data"])
def test_list_that_names_a_place_outside_is_refused(tmp_path: Path, place: str) -> None:
    entry = BackedFile(path=place, bytes=0, sha256="", modified_ns=0, mode=0o600)
    write_list(tmp_path, BackupList(created_at=NOW, schema_version=SCHEMA_VERSION, clusters=(), files=(entry,)))
    with pytest.raises(Corrupt, match="is no place of a back-up"):
        read_list(tmp_path)


def test_permissions_come_back_and_nobody_may_read_the_backup_itself(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "data", steps=4)
    folder.scan_key.write_bytes(b"secret")
    folder.scan_key.chmod(0o600)
    rows = next(folder.warehouse.rglob("*.parquet"))
    rows.chmod(0o644)
    create_backup(folder, folder.warehouse, tmp_path / "backup", NOW)
    again = DataFolder(path=tmp_path / "again")
    restore_backup(tmp_path / "backup", again.path, again.warehouse)
    assert again.path.stat().st_mode & 0o077 == 0
    assert again.scan_key.stat().st_mode & 0o777 == 0o600
    assert (again.warehouse / rows.relative_to(folder.warehouse)).stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0


def test_link_in_the_folder_is_refused_and_not_left_out(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "data", steps=1)
    folder.plans.rename(tmp_path / "plans")
    folder.plans.symlink_to(tmp_path / "plans")
    with pytest.raises(Misconfigured, match="it is a link to"):
        create_backup(folder, folder.warehouse, tmp_path / "backup", NOW)
    assert not (tmp_path / "backup").exists()


def test_root_of_a_volume_is_backed_up_and_stays_where_a_restore_fails(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "data", steps=1)
    for path in (folder.path, tmp_path / "volume"):
        (path / "lost+found").mkdir(parents=True)
    (folder.path / "lost+found" / "inode").touch()  # stands for what root alone may list
    made = create_backup(folder, folder.warehouse, tmp_path / "backup", NOW)
    assert not [file for file in made.files if "lost+found" in file.path]
    _flip(tmp_path / "backup")
    with pytest.raises(Corrupt):
        restore_backup(tmp_path / "backup", tmp_path / "volume", tmp_path / "volume" / "warehouse")
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["lost+found"]


@pytest.mark.parametrize(("token", "is_copied"), [("", True), ("running", False)])
def test_state_of_a_flink_job_is_in_it_where_the_job_was_stopped(tmp_path: Path, token: str, is_copied: bool) -> None:
    folder = a_folder(tmp_path / "data", steps=1)
    state = FlinkState(folder.path / STATE_OF_FLINK)
    state.remember(FlinkRun(job="0" * 32, token=token, fingerprint="s"))
    made = create_backup(folder, folder.warehouse, tmp_path / "backup", NOW)
    assert ("data/flink/RUN.json" in {file.path for file in made.files}) is is_copied


def test_place_that_takes_nothing_is_said_with_its_own_name(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "data", steps=1)
    (tmp_path / "file").touch()
    with pytest.raises(Corrupt, match=r"cannot write .*/file/backup: .*; DIR must be a folder that can be written"):
        create_backup(folder, folder.warehouse, tmp_path / "file" / "backup", NOW)


def test_what_a_killed_backup_left_goes_with_the_next_one_and_what_lives_stays(tmp_path: Path) -> None:
    folder, place = a_folder(tmp_path / "data", steps=1), tmp_path / "backups"
    script = (
        "import os, sys; from datetime import UTC, datetime; from pathlib import Path; "
        "from fleet.data_folder import DataFolder; from gputide.operate.backup_create import create_backup; "
        "folder = DataFolder(path=Path(sys.argv[1])); "
        "wait = lambda done: (print('under way', flush=True), sys.stdin.read()); "
        "create_backup(folder, folder.warehouse, Path(sys.argv[2]), datetime.now(UTC), on_file=wait)"
    )
    command = [sys.executable, "-c", script, str(folder.path), str(place / "first")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"under way\n"
        (living,) = place.iterdir()
        create_backup(folder, folder.warehouse, place / "second", NOW)
        assert set(place.iterdir()) == {living, place / "second"}
        process.kill()
    assert living.is_dir()
    create_backup(folder, folder.warehouse, place / "third", NOW)
    assert sorted(path.name for path in place.iterdir()) == ["second", "third"]
    check_files(place / "second", read_list(place / "second"))


def test_nothing_is_overwritten_neither_a_backup_nor_a_data_folder(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "data", steps=1)
    create_backup(folder, folder.warehouse, tmp_path / "backup", NOW)
    with pytest.raises(Misconfigured, match="it holds a back-up already"):
        create_backup(folder, folder.warehouse, tmp_path / "backup", NOW)
    with pytest.raises(Misconfigured, match="which is what is backed up"):
        create_backup(folder, folder.warehouse, folder.path / "backup", NOW)
    before = contents(folder.path)
    with pytest.raises(Refused, match="it holds something"):
        restore_backup(tmp_path / "backup", folder.path, folder.warehouse)
    assert contents(folder.path) == before
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "ledger.jsonl").touch()
    with pytest.raises(Refused, match="or remove what a restore that was killed has left there"):
        restore_backup(tmp_path / "backup", tmp_path / "half", tmp_path / "half" / "warehouse")
    assert contents(tmp_path / "half") == {"ledger.jsonl": b""}
