"""What a Flink job is given: its topic, its files, and tables and measures out of `fleet.schema`.

The job itself is Java (`pipeline/flink/java`), which knows how rows are counted and added up, and no column's name.
Pure; called by `gputide.container.flink` and by `gputide run rollup --engine flink --explain`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from fleet.schema import MEASURES, SCHEMA_VERSION, USAGE_MEASURES, WINDOW_SECONDS, ColumnKind, Merge, Table
from pipeline.records.rows import KINDS, TS_MAX_MS, TS_MIN_MS

_SIGHTING_ROLES = {"first_seen": "FIRST_SEEN", "last_seen": "LAST_SEEN", "ended_at": "ENDED_AT"}
_USAGE_ROLES = {"window_start": "START", "window_seconds": "LEVEL", "samples": "SAMPLES"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkTopic:
    """The topic that the job reads, and as which group.

    Attributes:
        servers: brokers, `HOST:PORT,…`.
        group: consumer group whose offsets show how far checkpoints are.
        properties: further properties of the Kafka client, such as those of TLS and SASL.
    """

    servers: str
    topic: str
    group: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkDescription:
    """What a job does.

    Attributes:
        staging: URI of the folder that takes the Parquet files.
        window_seconds: length of the finest windows.
        late_days: whole days after which a day takes no further samples.
    """

    topic: FlinkTopic
    staging: str
    window_seconds: int
    late_days: int

    def document(self) -> dict[str, Any]:
        """As the Java program reads it."""
        return {
            "source": {**self._source(), "properties": dict(sorted(self.topic.properties.items()))},
            "staging": self.staging,
            "layout": self._layout(),
        }

    def fingerprint(self, program: str) -> str:
        """Distinguishes jobs that read something else, or would write other rows of the same records.

        Args:
            program: name of the Java program, with its version.
        """
        return sha256(json.dumps([program, self._source(), self._layout()], sort_keys=True).encode()).hexdigest()

    def _source(self) -> dict[str, str]:
        return {"servers": self.topic.servers, "topic": self.topic.topic, "group": self.topic.group}

    def _layout(self) -> dict[str, Any]:
        levels = (self.window_seconds, *(level for level in WINDOW_SECONDS if level > self.window_seconds))
        return {
            "schema_version": SCHEMA_VERSION,
            "late_days": self.late_days,
            "time_min_ms": TS_MIN_MS,
            "time_max_ms": TS_MAX_MS,
            "levels_seconds": levels,
            "measures": [{"scale": column.scale, "has_histogram": column.has_histogram} for column in MEASURES],
            "tables": [_table(table) for table in KINDS],
        }


def _table(table: Table) -> dict[str, Any]:
    texts = [column.name for column in table.columns if column.kind is ColumnKind.TEXT]
    measures = USAGE_MEASURES.get(table.name, ())
    places: dict[str, tuple[str, int]] = {name: ("TEXT", place) for place, name in enumerate(texts)}
    if measures:
        places |= {name: (role, 0) for name, role in _USAGE_ROLES.items()}
        for place, column in enumerate(measures):
            names = {"count": "COUNT", "sum": "SUM", "max": "MAX", Merge.HISTOGRAM.value: "HISTOGRAM"}
            places |= {f"{column.measure.value}_{name}": (role, place) for name, role in names.items()}
    else:
        places |= {name: (role, 0) for name, role in _SIGHTING_ROLES.items()}
    return {
        "name": table.name,
        "texts": len(texts),
        "measures": [MEASURES.index(column) for column in measures],
        "columns": [
            {"name": column.name, "role": places[column.name][0], "place": places[column.name][1]}
            for column in table.columns
        ],
    }
