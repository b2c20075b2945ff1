"""The clock: of the machine, or of a replay, which is kept in the data folder.

After a replay until January it is January: a plan made then is fresh then, and nothing that happened later is known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from fleet.data_folder import DataFolder
from fleet.durable import write_durably
from fleet.errors import Corrupt
from fleet.json_text import json_value
from fleet.units import parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayClock:
    """Where a replay stands.

    Attributes:
        now: every sample before it has been sent; the moment that all verbs take as now.
        trace: name of the trace folder (its last path component), for messages.
    """

    now: datetime
    trace: str
    cluster: str


def read_replay_clock(folder: DataFolder) -> ReplayClock | None:
    """The replay's clock, None where nothing was ever replayed.

    Raises:
        Corrupt: the file can't be read.
    """
    if not folder.clock.exists():
        return None
    try:
        raw = json_value(folder.clock.read_bytes())
        return ReplayClock(now=parse_time(str(raw["now"])), trace=str(raw["trace"]), cluster=str(raw["cluster"]))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise Corrupt(f"cannot read the clock {folder.clock}: {exc}") from exc


def write_replay_clock(folder: DataFolder, clock: ReplayClock) -> None:
    """Set the replay's clock; survives a power cut."""
    from fleet.documents import iso  # loads plans, which a verb that only asks for the time does without

    write_durably(
        folder.clock,
        json.dumps({"now": iso(clock.now), "trace": clock.trace, "cluster": clock.cluster}).encode(),
    )


def now_of(folder: DataFolder, override: datetime | None) -> datetime:
    """What time it is: the `--now` option, else the replay's clock, else the machine's."""
    if override is not None:
        return override
    clock = read_replay_clock(folder)
    return clock.now if clock is not None else datetime.now(UTC)
