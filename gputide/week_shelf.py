"""What earlier weekly reports said, kept in the data folder so that the next one can compare."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dashboards.report import WeekFacts
from fleet.documents import document
from fleet.durable import write_durably
from fleet.errors import Corrupt
from gputide.data_folder import DataFolder


def keep_week(folder: DataFolder, facts: WeekFacts, team: str | None = None) -> None:
    """Keep a week's facts; a later report of the same week replaces them.

    Args:
        folder: data folder.
        facts: of the week.
        team: whose they are; None for the cluster.
    """
    shelf = _shelf(folder, team)
    shelf.mkdir(parents=True, exist_ok=True)
    write_durably(shelf / f"{facts.week_start:%Y-%m-%d}.json", json.dumps(document(facts)).encode())


def read_weeks(folder: DataFolder, team: str | None = None) -> tuple[WeekFacts, ...]:
    """Every week that was kept, oldest first; what a week did not keep yet is None.

    Args:
        folder: data folder.
        team: whose; None for the cluster.

    Raises:
        Corrupt: a file can't be read.
    """
    adapter = TypeAdapter(WeekFacts)
    shelf = _shelf(folder, team)
    found = []
    for file in sorted(shelf.glob("*.json")) if shelf.is_dir() else ():
        try:
            found.append(adapter.validate_json(file.read_bytes()))
        except (OSError, ValidationError) as exc:
            raise Corrupt(f"cannot read {file}: {exc}") from exc
    return tuple(found)


def _shelf(folder: DataFolder, team: str | None) -> Path:
    """A team's name may hold anything and be long, so its folder is called by a hash of it."""
    if team is None:
        return folder.weeks
    return folder.weeks / f"team-{hashlib.sha256(team.encode()).hexdigest()[:16]}"
