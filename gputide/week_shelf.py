"""What earlier weekly reports said, kept in the data folder so that the next one can compare."""

from __future__ import annotations

import json

from pydantic import TypeAdapter, ValidationError

from dashboards.report import WeekFacts
from fleet.documents import document
from fleet.durable import write_durably
from fleet.errors import Corrupt
from gputide.data_folder import DataFolder


def keep_week(folder: DataFolder, facts: WeekFacts) -> None:
    """Keep a week's facts; a later report of the same week replaces them."""
    folder.weeks.mkdir(exist_ok=True)
    write_durably(folder.weeks / f"{facts.week_start:%Y-%m-%d}.json", json.dumps(document(facts)).encode())


def read_weeks(folder: DataFolder) -> tuple[WeekFacts, ...]:
    """Every week that was kept, oldest first.

    Raises:
        Corrupt: a file can't be read.
    """
    adapter = TypeAdapter(WeekFacts)
    found = []
    for file in sorted(folder.weeks.glob("*.json")) if folder.weeks.is_dir() else ():
        try:
            found.append(adapter.validate_json(file.read_bytes()))
        except (OSError, ValidationError) as exc:
            raise Corrupt(f"cannot read {file}: {exc}") from exc
    return tuple(found)
