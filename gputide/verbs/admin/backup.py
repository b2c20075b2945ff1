"""`gputide admin backup`: the whole data folder copied while everything runs, checked, and put back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from enforcer.record.ledger import Ledger
from fleet.data_folder import DataFolder
from fleet.documents import iso
from fleet.errors import Misconfigured
from fleet.settings.pipeline import BusKind, WarehouseKind
from fleet.settings.settings import Settings
from fleet.units import format_bytes_short, format_count, format_time
from gputide.container.warehouse import warehouse_folder
from gputide.operate.backup_create import STATE_OF_FLINK, create_backup, restore_backup
from gputide.operate.backup_list import DATA, BackupList, check_files, read_list
from gputide.options import answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer(
    no_args_is_help=True,
    help="Copy, check, restore the data folder. Example: gputide admin backup create /mnt/backup/gputide-2026-01-19",
)

PlaceArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the back-up.")]


_WITHOUT_FLINK = (
    "where Flink rolls up: the state of its job is not in it, since the job ran or flink.state_folder lies elsewhere; "
    "the topic can't be gone on with (docs/operations.md)"
)


@app.command("create", epilog="Example: gputide admin backup create /mnt/backup/gputide-2026-01-19")
@answering
def create(session: Session, place: PlaceArgument) -> Answer:
    """Copy everything: samples, windows, plans, approvals, ledgers, reports. Nothing has to be stopped for it."""
    folder, settings = session.folder(), session.settings
    _check_place_of_rows(settings)
    with session.progress("copying") as tick:
        found = create_backup(
            folder, warehouse_folder(folder, settings), place, session.now(), on_file=lambda done: tick(done, done)
        )
    notes = ["check it: gputide admin backup check DIR; put it back: gputide --data-dir NEW admin backup restore DIR"]
    if settings.bus.kind is BusKind.KAFKA:
        notes.append("samples that wait on Kafka are on Kafka: keep the topic longer than back-ups are apart")
        notes += _note_on_flink(found)
    return _answer(found, f"copied {folder.path} to {place}", notes)


@app.command("check", epilog="Example: gputide admin backup check /mnt/backup/gputide-2026-01-19")
@answering
def check(session: Session, place: PlaceArgument) -> Answer:
    """Read every byte of a back-up and compare it with what was written; verify its ledgers."""
    found = read_list(place)
    with session.progress("reading") as tick:
        check_files(place, found, on_file=lambda done: tick(done, len(found.files)))
    entries = _ledger_entries(DataFolder(path=place / "data"))
    notes = [f"ledgers verify, {format_count(entries)} entries"]
    return _answer(found, f"{place} is whole", notes)


@app.command(
    "restore", epilog="Example: gputide --data-dir /srv/gputide admin backup restore /mnt/backup/gputide-2026-01-19"
)
@answering
def restore(session: Session, place: PlaceArgument) -> Answer:
    """Put a back-up into an empty data folder, checking every byte; nothing is left behind where one is wrong."""
    folder, settings = DataFolder(path=session.data_path), session.settings
    _check_place_of_rows(settings)
    with session.progress("restoring") as tick:
        found = restore_backup(
            place, folder.path, warehouse_folder(folder, settings), on_file=lambda done: tick(done, done)
        )
    entries = _ledger_entries(folder)
    notes = [f"ledgers verify, {format_count(entries)} entries"]
    if settings.warehouse.kind is WarehouseKind.HIVE:
        notes.append("tell Hive of the partitions: gputide admin warehouse migrate")
    if settings.bus.kind is BusKind.KAFKA:
        notes.append(
            f"before a roll-up starts, unless Flink does it, set group {settings.kafka.group} of topic "
            f"{settings.kafka.topic} back to its beginning (docs/operations.md); what the warehouse has counts once"
        )
        notes += _note_on_flink(found)
    return _answer(found, f"{place} was put into {folder.path}", notes)


def _note_on_flink(found: BackupList) -> list[str]:
    is_there = any(file.path.startswith(f"{DATA}/{STATE_OF_FLINK}/") for file in found.files)
    return [] if is_there else [_WITHOUT_FLINK]


def _check_place_of_rows(settings: Settings) -> None:
    if settings.warehouse.kind is WarehouseKind.HIVE and settings.hive.is_elsewhere:
        raise Misconfigured(
            f"cannot copy the warehouse: its rows lie at hive.location={settings.hive.location}; take a snapshot "
            "there, or set hive.folder where that place is mounted"
        )


def _ledger_entries(folder: DataFolder) -> int:
    """Entries of all ledgers; raises where one was edited or cut."""
    ledgers = [path for path in sorted(folder.path.rglob("*.jsonl")) if path.with_name(f"{path.name}.head").exists()]
    return sum(Ledger(path).verify() for path in ledgers)


def _answer(found: BackupList, said: str, notes: list[str]) -> Answer:
    return Answer(
        document={
            "created_at": iso(found.created_at),
            "schema_version": found.schema_version,
            "clusters": list(found.clusters),
            "files": len(found.files),
            "bytes": found.bytes,
        },
        headline=(
            said,
            (
                f"{format_count(len(found.files))} files, {format_bytes_short(found.bytes)}, of "
                f"{format_time(found.created_at)}; clusters: {', '.join(found.clusters[:10]) or 'none'}"
            ),
        ),
        footnotes=tuple(notes),
    )
