"""What earlier weekly reports said, kept in the data folder so that the next one can compare."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dashboards.report.report import WeekFacts
from fleet.data_folder import DataFolder
from fleet.documents import document
from fleet.durable import write_durably
from fleet.errors import Corrupt
from fleet.settings.faults import fault_words

_CLUSTER = "cluster"
"""Beside a week's facts: whose they are."""


def keep_week(
    folder: DataFolder, facts: WeekFacts, team: str | None = None, *, cluster: str, is_apart: bool = False
) -> None:
    """Keep a week's facts; a later report of the same week replaces them.

    Args:
        folder: data folder.
        facts: of the week.
        team: whose they are; None for the cluster.
        cluster: of which cluster they are.
        is_apart: keep them where no other cluster's lie.
    """
    shelf = _shelf(folder, team, cluster if is_apart else None)
    shelf.mkdir(parents=True, exist_ok=True)
    content = {**document(facts), _CLUSTER: cluster}
    write_durably(shelf / f"{facts.week_start:%Y-%m-%d}.json", json.dumps(content).encode())


def read_weeks(folder: DataFolder, team: str | None = None, *, cluster: str | None = None) -> tuple[WeekFacts, ...]:
    """Every week that was kept, oldest first; what a week did not keep yet is None.

    A cluster that was the only one once has weeks on the common shelf, and later ones apart. Weeks of before the
    cluster was written down are everybody's.

    Args:
        folder: data folder.
        team: whose; None for the cluster.
        cluster: of which cluster; None for all weeks of the common shelf.

    Raises:
        Corrupt: a file can't be read.
    """
    adapter = TypeAdapter(WeekFacts)
    shelves = (_shelf(folder, team, None), *(() if cluster is None else (_shelf(folder, team, cluster),)))
    found: dict[str, WeekFacts] = {}
    for file in (file for shelf in shelves for file in shelf.glob("*.json")):
        try:
            content = json.loads(file.read_bytes())
            of = content.get(_CLUSTER)
            facts = adapter.validate_json(json.dumps(content))
        except ValidationError as exc:
            raise Corrupt(f"cannot read {file}: {fault_words(exc)}") from exc
        except (OSError, ValueError, AttributeError, RecursionError) as exc:
            raise Corrupt(f"cannot read {file}: {exc}") from exc
        if None in (cluster, of) or of == cluster:
            found[file.name] = facts
    return tuple(found[name] for name in sorted(found))


def _shelf(folder: DataFolder, team: str | None, cluster: str | None) -> Path:
    """A team's or cluster's name may hold anything and be long, so its folder is called by a hash of it."""
    shelf = folder.weeks if cluster is None else folder.weeks / f"cluster-{_hashed(cluster)}"
    return shelf if team is None else shelf / f"team-{_hashed(team)}"


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
