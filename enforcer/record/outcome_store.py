"""The newest outcome of every plan that was verified: one file per plan in the data folder.

Written by `gputide verify`; read by pages, reports, messages and the planner's calibration.
"""

from __future__ import annotations

import json
from pathlib import Path

from fleet.data_folder import DataFolder
from fleet.documents import outcome_document, outcome_of
from fleet.durable import write_durably
from fleet.errors import Corrupt
from fleet.json_text import json_value
from fleet.outcomes import Outcome


def keep_outcome(folder: DataFolder, outcome: Outcome) -> None:
    """Keep the newest outcome of a plan."""
    folder.outcomes.mkdir(exist_ok=True)
    write_durably(_file(folder, outcome.plan_id), json.dumps(outcome_document(outcome)).encode())


def read_outcomes(folder: DataFolder) -> tuple[Outcome, ...]:
    """The newest outcome of every plan that was verified, the newest first.

    Raises:
        Corrupt: a file can't be read.
    """
    found = []
    for file in sorted(folder.outcomes.glob("*.json")) if folder.outcomes.is_dir() else ():
        try:
            found.append(outcome_of(json_value(file.read_bytes()), name=str(file)))
        except (OSError, ValueError) as exc:
            raise Corrupt(f"cannot read {file}: {exc}") from exc
    return tuple(sorted(found, key=lambda outcome: outcome.since, reverse=True))


def _file(folder: DataFolder, plan_id: str) -> Path:
    return folder.outcomes / f"{plan_id}.json"
