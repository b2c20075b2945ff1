"""What the weekly report remembers of a week, kept in the data folder so that the next one can compare."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fleet.data_folder import DataFolder
from fleet.documents import document
from fleet.durable import write_durably
from fleet.errors import Corrupt
from fleet.profiles import CardState
from fleet.settings.faults import fault_words

_CLUSTER = "cluster"
"""Beside a week's facts: whose they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekFacts:
    """What one week is remembered by; the report of a later week takes it from this one.

    Attributes:
        cards_freed: realised, whole cards; None of a team.
        wasted_per_week: price of the card hours of the last seven days that were unallocated or idle; of a team of its
            idle ones; None where nothing is priced or measured.
        violation_ratio: harm of changed services by the verdict that leads, 0-1; None where it is not judged.
        idle_gpu_hours: these card hours; None where the week was not measured.
        low_priority_gpu_hours: card hours granted to pods of low priority.
        kwh: electricity with the data centre's overhead; None where unknown.
        kg_co2: carbon of it; None where unknown.
    """

    week_start: datetime
    cards_freed: int | None
    wasted_per_week: Decimal | None
    violation_ratio: float | None
    cards_by_state: tuple[tuple[CardState, int], ...]
    idle_gpu_hours: float | None = None
    low_priority_gpu_hours: float | None = None
    kwh: float | None = None
    kg_co2: float | None = None


def keep_week(
    folder: DataFolder, facts: WeekFacts, team: str | None = None, *, cluster: str, is_apart: bool = False
) -> None:
    """Keep a week's facts; a later report of the same week replaces them.

    Args:
        team: whose they are; None for the cluster.
        is_apart: True to keep them in a folder of that cluster alone.
    """
    place = _place(folder, team, cluster if is_apart else None)
    place.mkdir(parents=True, exist_ok=True)
    content = {**document(facts), _CLUSTER: cluster}
    write_durably(place / f"{facts.week_start:%Y-%m-%d}.json", json.dumps(content).encode())


def read_weeks(folder: DataFolder, team: str | None = None, *, cluster: str | None = None) -> tuple[WeekFacts, ...]:
    """Every week that was kept, oldest first; what a week did not keep yet is None.

    A cluster that was once the only one has early weeks in the common folder and later ones in its own. A file that
    names no cluster counts for every cluster.

    Args:
        team: whose; None for the cluster.
        cluster: of which cluster; None for all weeks of the common folder.

    Raises:
        Corrupt: a file can't be read.
    """
    adapter = TypeAdapter(WeekFacts)
    places = (_place(folder, team, None), *(() if cluster is None else (_place(folder, team, cluster),)))
    found: dict[str, WeekFacts] = {}
    for file in (file for place in places for file in place.glob("*.json")):
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


def _place(folder: DataFolder, team: str | None, cluster: str | None) -> Path:
    """A team's or cluster's name may hold anything and be long, so its folder is called by a hash of it."""
    place = folder.weeks if cluster is None else folder.weeks / f"cluster-{_hashed(cluster)}"
    return place if team is None else place / f"team-{_hashed(team)}"


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
