"""What was started in a folder: `engines.json`, with the ports of every engine and a record of every process.

Written after every step, so that whoever comes next finds all that runs, however the last one ended. Called by
`gputide.operate.engines`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.durable import write_durably
from fleet.errors import Corrupt
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import ProcessRecord

FILE_NAME = "engines.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """One engine of a folder.

    Attributes:
        engine: which one.
        ports: by the names of its kind; kept when it ends, so that it comes back where its clients look for it.
        processes: the newest of every part, by the part's name, in the order of starting.
    """

    engine: Engine
    ports: Mapping[str, int]
    processes: Mapping[str, ProcessRecord]


def read_register(folder: Path) -> dict[Engine, EngineRun]:
    """All engines that were ever started in a folder; empty where none was.

    Raises:
        Corrupt: the file is not one of ours.
    """
    path = folder / FILE_NAME
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != _VERSION:
            raise Corrupt(f"cannot read {path}: version {document['version']!r}, this program writes {_VERSION}")
        return {run.engine: run for run in map(_run, document["engines"])}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise Corrupt(f"cannot read {path}: {exc!r}; stop what runs there by hand and remove the file") from exc


def write_register(folder: Path, runs: Mapping[Engine, EngineRun]) -> None:
    """Write the file anew.

    Raises:
        Corrupt: the storage can't take it.
    """
    document = {
        "version": _VERSION,
        "engines": [
            {
                "engine": run.engine.value,
                "ports": dict(run.ports),
                "processes": [
                    {"name": name, "pid": record.pid, "started_ticks": record.started_ticks, "log": str(record.log)}
                    for name, record in run.processes.items()
                ],
            }
            for run in runs.values()
        ],
    }
    write_durably(folder / FILE_NAME, json.dumps(document, indent=1).encode() + b"\n")


def _run(document: Any) -> EngineRun:
    records = [
        ProcessRecord(
            name=str(process["name"]),
            pid=int(process["pid"]),
            started_ticks=int(process["started_ticks"]),
            log=Path(process["log"]),
        )
        for process in document["processes"]
    ]
    return EngineRun(
        engine=Engine(document["engine"]),
        ports={str(name): int(port) for name, port in document["ports"].items()},
        processes={record.name: record for record in records},
    )
