"""The one definition of measures and of every table's columns.

The codec of the bus, the DDL of every engine and the loaders are derived from here, so one measure is added in one
line (`MEASURES`). Rows are additive: per measure a count, a sum, a maximum and, for ratios that need quantiles, the
bucket counts of a histogram. Sums are integers (value × `scale`, floored), so every engine gives the same bits in
every order. Standard library only; a job on Flink is handed its columns (`pipeline.flink.description`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Measure(StrEnum):
    """A measured quantity; the value is its column name, unit last."""

    DUTY_CYCLE = "duty_cycle_ratio"
    SM_ACTIVE = "sm_active_ratio"
    MEMORY_ACTIVE = "memory_active_ratio"
    ENCODER = "encoder_ratio"
    DECODER = "decoder_ratio"
    FRAMEBUFFER_USED = "framebuffer_used_bytes"
    KV_CACHE_USAGE = "kv_cache_usage_ratio"
    POWER = "power_watts"
    TEMPERATURE = "temperature_celsius"
    REQUEST_RATE = "request_rate_per_second"
    LATENCY_P99 = "latency_p99_seconds"
    PROMPT_TOKEN_RATE = "prompt_token_rate_per_second"
    GENERATED_TOKEN_RATE = "generated_token_rate_per_second"
    REQUESTS_RUNNING = "requests_running_count"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureColumn:
    """How one measure is kept and described.

    Attributes:
        help_text: one sentence with its unit, as its series show it.
        scale: stored integer = floor(value × scale); ratios in millionths, bytes as they are.
        value_min: lowest valid value.
        value_max: highest valid value, in the measure's unit; a sample outside is rejected.
        has_histogram: True where bucket counts (bin = floor(100 × ratio), 0-100) are kept.
        of_slice: True where a pod's slice has it.
    """

    measure: Measure
    help_text: str
    scale: int
    value_min: float = 0.0
    value_max: float
    has_histogram: bool = False
    of_card: bool = True
    of_slice: bool = True


MEASURES: tuple[MeasureColumn, ...] = (
    MeasureColumn(
        measure=Measure.DUTY_CYCLE,
        help_text="Share of time with at least one kernel running, 0-1.",
        scale=1_000_000,
        value_max=1.0,
        has_histogram=True,
    ),
    MeasureColumn(
        measure=Measure.SM_ACTIVE,
        help_text="Share of SM cycles with a warp resident, 0-1.",
        scale=1_000_000,
        value_max=1.0,
        has_histogram=True,
    ),
    MeasureColumn(
        measure=Measure.MEMORY_ACTIVE,
        help_text="Share of time in which the framebuffer was read or written, 0-1.",
        scale=1_000_000,
        value_max=1.0,
    ),
    MeasureColumn(measure=Measure.ENCODER, help_text="Use of the video encoder, 0-1.", scale=1_000_000, value_max=1.0),
    MeasureColumn(measure=Measure.DECODER, help_text="Use of the video decoder, 0-1.", scale=1_000_000, value_max=1.0),
    MeasureColumn(
        measure=Measure.FRAMEBUFFER_USED, help_text="Framebuffer held, bytes.", scale=1, value_max=float(2**44)
    ),
    MeasureColumn(
        measure=Measure.KV_CACHE_USAGE,
        help_text="Share of the server's KV cache in use, 0-1; of replayed fleets (live: the server itself).",
        scale=1_000_000,
        value_max=1.0,
        of_card=False,
    ),
    MeasureColumn(measure=Measure.POWER, help_text="Power drawn, watts.", scale=1_000, value_max=10_000.0),
    MeasureColumn(
        measure=Measure.TEMPERATURE,
        help_text="Temperature of the card, degrees Celsius.",
        scale=1_000,
        value_min=-50.0,
        value_max=200.0,
        of_slice=False,
    ),
    MeasureColumn(
        measure=Measure.REQUEST_RATE,
        help_text="Requests answered per second; of replayed fleets (live: recording rules).",
        scale=1_000,
        value_max=1e9,
        of_card=False,
    ),
    MeasureColumn(
        measure=Measure.LATENCY_P99,
        help_text="99th percentile of request latency, seconds; of replayed fleets (live: recording rules).",
        scale=1_000_000,
        value_max=1e6,
        of_card=False,
    ),
    MeasureColumn(
        measure=Measure.PROMPT_TOKEN_RATE,
        help_text="Tokens of prompts read per second; of replayed fleets (live: recording rules).",
        scale=1_000,
        value_max=1e9,
        of_card=False,
    ),
    MeasureColumn(
        measure=Measure.GENERATED_TOKEN_RATE,
        help_text="Tokens generated per second; of replayed fleets (live: recording rules).",
        scale=1_000,
        value_max=1e9,
        of_card=False,
    ),
    MeasureColumn(
        measure=Measure.REQUESTS_RUNNING,
        help_text="Requests in work at once; of replayed fleets (live: recording rules).",
        scale=1_000,
        value_max=1e9,
        of_card=False,
    ),
)
"""Every measure, in column order."""


class ColumnKind(StrEnum):
    """Type of a column, named independently of any engine."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"
    TIME_MS = "time_ms"
    """Epoch milliseconds in a 64-bit integer (Flink writes INT96 timestamps, Hive shifts zones)."""
    HISTOGRAM = "histogram"
    """Sparse bucket counts: map of bin (0-100) to count."""


class Merge(StrEnum):
    """How rows of one key become one."""

    KEY = "key"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes:
        merge: how the values of rows with one key are merged.
        is_optional: True where null is allowed.
    """

    name: str
    kind: ColumnKind
    merge: Merge
    is_optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: its columns; partitions are `dt` (UTC date of the key time), `cluster`, and `offsets` (the append)."""

    name: str
    columns: tuple[Column, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns, in order."""
        return tuple(column.name for column in self.columns if column.merge is Merge.KEY)


SLICE_IDENTITY = ("cluster", "namespace", "pod", "container", "node", "card", "card_model")
"""Labels that distinguish one slice's series from another's."""
CARD_IDENTITY = ("cluster", "node", "card", "card_model")
"""Labels that distinguish one card's series from another's."""

WINDOW_SECONDS = (60, 900, 3600, 86400)
"""Levels of the usage tables, finest first; each is a merge of the finer ones."""


def _usage_columns(identity: tuple[str, ...], measures: tuple[MeasureColumn, ...]) -> tuple[Column, ...]:
    columns = [
        Column(name="window_start", kind=ColumnKind.TIME_MS, merge=Merge.KEY),
        Column(name="window_seconds", kind=ColumnKind.INTEGER, merge=Merge.KEY),
        *(Column(name=name, kind=ColumnKind.TEXT, merge=Merge.KEY) for name in identity),
        Column(name="samples", kind=ColumnKind.INTEGER, merge=Merge.SUM),
    ]
    for measure in measures:
        name = measure.measure.value
        columns.append(Column(name=f"{name}_count", kind=ColumnKind.INTEGER, merge=Merge.SUM))
        columns.append(Column(name=f"{name}_sum", kind=ColumnKind.INTEGER, merge=Merge.SUM, is_optional=True))
        columns.append(Column(name=f"{name}_max", kind=ColumnKind.INTEGER, merge=Merge.MAX, is_optional=True))
        if measure.has_histogram:
            columns.append(
                Column(name=f"{name}_histogram", kind=ColumnKind.HISTOGRAM, merge=Merge.HISTOGRAM, is_optional=True)
            )
    return tuple(columns)


SLICE_MEASURES = tuple(column for column in MEASURES if column.of_slice)
CARD_MEASURES = tuple(column for column in MEASURES if column.of_card)

POD_USAGE = Table(name="pod_usage", columns=_usage_columns(SLICE_IDENTITY, SLICE_MEASURES))
CARD_USAGE = Table(name="card_usage", columns=_usage_columns(CARD_IDENTITY, CARD_MEASURES))
USAGE_MEASURES = {POD_USAGE.name: SLICE_MEASURES, CARD_USAGE.name: CARD_MEASURES}
"""Measures of a row, by table; tables that are not named hold sightings."""

GRANT_LABELS = (
    *SLICE_IDENTITY,
    "workload",
    "workload_kind",
    "framebuffer_bytes",
    "framebuffer_granted_bytes",
    "compute_granted_ratio",
    "priority",
    "server",
    "kv_cache_pool_bytes",
    "mig_profile",
    "cpu_request_cores",
    "memory_request_bytes",
    "replicas_min",
    "labels",
    "started_at",
)
"""Labels of `gputide_slice_info`, one series per grant; empty text means absent, `labels` is a JSON object."""
CARD_INFO_LABELS = (*CARD_IDENTITY, "framebuffer_bytes", "mig_mode", "is_owned")
"""Labels of `gputide_card_info`."""
NODE_INFO_LABELS = ("cluster", "node", "cpu_cores", "memory_bytes", "taints", "labels", "provider_id")
"""Labels of `gputide_node_info`; `taints` and `labels` are JSON."""
QUOTA_INFO_LABELS = ("cluster", "kind", "namespace", "name", "parent", "resource", "deserved", "quota_limit", "held")
"""Labels of `gputide_quota_info`, one series per quota or queue and resource; amounts in the resource's unit."""
SERVER_LABELS = (
    "cluster", "namespace", "pod", "container", "server", "model", "cache_dtype", "pool_blocks", "block_tokens",
    "pool_bytes",
)  # fmt: skip
"""What an inference server says of itself in its own metrics; of each series what it has, empty text for the rest."""


def _sightings(name: str, labels: tuple[str, ...]) -> Table:
    return Table(
        name=name,
        columns=(
            *(Column(name=label, kind=ColumnKind.TEXT, merge=Merge.KEY) for label in labels),
            Column(name="first_seen", kind=ColumnKind.TIME_MS, merge=Merge.MIN),
            Column(name="last_seen", kind=ColumnKind.TIME_MS, merge=Merge.MAX),
            Column(name="ended_at", kind=ColumnKind.TIME_MS, merge=Merge.MAX, is_optional=True),
        ),
    )


ALLOCATIONS = _sightings("allocations", GRANT_LABELS)
"""Who was granted what: first and last sighting of each grant; `ended_at` is the time of its stale marker."""
INVENTORY_CARDS = _sightings("inventory_cards", CARD_INFO_LABELS)
INVENTORY_NODES = _sightings("inventory_nodes", NODE_INFO_LABELS)
QUOTAS = _sightings("quotas", QUOTA_INFO_LABELS)
"""What namespaces and queues were promised, may have and held of a resource, and when that was seen."""
SERVERS = _sightings("servers", SERVER_LABELS)
"""What inference servers said of their models and KV caches, and when; `fleet.kv_cache` reads it."""

TABLES: tuple[Table, ...] = (CARD_USAGE, POD_USAGE, ALLOCATIONS, INVENTORY_CARDS, INVENTORY_NODES, QUOTAS, SERVERS)
"""Every table, in the order of the flow."""

SCHEMA_VERSION = 1
"""Version that a data folder is stamped with; a newer one is refused."""
