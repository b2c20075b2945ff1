"""The page about sizes: what fleets of 100 to 1,000,000 cards need, computed from measured figures.

Called by `docs/generate.py`. The figures stand in `sizing-figures.toml` with the bar that printed each; this module
holds the arithmetic and says which cells were measured and which are extrapolated.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

FLEETS = (100, 1_000, 10_000, 100_000, 1_000_000)
SERIES_PER_CARD = 40
STEP_SECONDS = 15
ROWS_PER_CARD_AND_STEP = 2
"""One wide row of the card and one of the pod on it."""
HEADROOM = 2.0
"""Cores are given for half load, so that a restart or a burst is no incident."""
REPLICATION = 3
RETENTION_DAYS = 3
BROKER_BYTES_PER_SECOND = 50_000_000
"""What a broker shall carry at most of written bytes, replicas included: an ordinary disk, half used (a choice)."""
BROKER_DISK_BYTES = 4_000_000_000_000
"""What a broker shall keep at most (a choice)."""
DAY_SECONDS = 86_400
WAREHOUSE_DAYS = 29
"""The four weeks of a profile: the least that `warehouse.retain_finest_days` may keep."""
SERIES_MAX = 1_000_000
"""Default of `receiver.series_max`."""
_ENGINES = "use the engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure.

    Attributes:
        value: the figure, in `unit`.
        unit: its unit.
        bar: which bar prints it.
        cards_measured: the largest fleet (in cards of 40 series each 15 s) whose load the bar really had.
        meaning: one line.
    """

    value: float
    unit: str
    bar: str
    cards_measured: int
    meaning: str


def sizing_page(figures_path: Path) -> str:
    """The Markdown page.

    Args:
        figures_path: `sizing-figures.toml`.
    """
    with figures_path.open("rb") as file:
        figures = {name: Figure(**fields) for name, fields in tomllib.load(file).items()}
    lines = [
        "# Sizing\n",
        (
            f"A card has {SERIES_PER_CARD} series, scraped every {STEP_SECONDS} s, which become "
            f"{ROWS_PER_CARD_AND_STEP} wide rows (its own and its pod's). Cores are given for half load. Everything "
            "below is computed from the figures in the second table; a cell in *italics* is extrapolated in proportion "
            "beyond the load that was measured.\n"
        ),
        "| | " + " | ".join(f"{cards:,} cards" for cards in FLEETS) + " |",
        "|---|" + "---|" * len(FLEETS),
    ]
    lines += [
        f"| {label} | " + " | ".join(_cell(shown(cards), cards, measured) for cards in FLEETS) + " |"
        for label, shown, measured in _rows(figures)
    ]
    embedded = figures["embedded_samples_per_second"]
    lines += [
        "",
        (
            "Receivers share nothing: processes on one port (`receiver.processes`) and machines behind one address add "
            "up, and each remembers the series that reach it.\n"
        ),
        "## Where the embedded default ends\n",
        (
            f"One receiver, the file bus and one roll-up were run at {embedded.value:,.0f} samples per second "
            f"(what {embedded.cards_measured:,} cards of the table send; 120,000 with the 18 measures of gputide's own "
            "exporter at 30 s) with less than 70 % of two cores and nothing lost. Beside processor time, these end it: "
            f"`receiver.series_max` ({SERIES_MAX:,}, which is {_cards_of_series():,} cards; raise it with the memory "
            "above), one disk for the warehouse (`warehouse.retain_finest_days` keeps it small), and that bus, roll-up "
            "and warehouse stand on one machine. From there on, or where two machines must be able to fail, Kafka, "
            "Flink and Hive take over with the same rows.\n"
        ),
        "## Measured\n",
        "| figure | value | printed by | load reached |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {figure.meaning} | {figure.value:,g} {figure.unit} | `make bars ARGS={figure.bar}` | "
        f"{figure.cards_measured:,} cards |"
        for figure in figures.values()
    ]
    lines += [
        "",
        (
            "Not measured here: several brokers (one ran, so replication is arithmetic), RocksDB state, HDFS and S3, "
            f"more than two cores. A broker is taken to carry {BROKER_BYTES_PER_SECOND / 1e6:g} MB/s of written bytes, "
            f"replicas included, and to hold {BROKER_DISK_BYTES / 1e12:g} TB."
        ),
    ]
    return "\n".join(lines) + "\n"


def _rows(figures: dict[str, Figure]) -> tuple[tuple[str, Callable[[int], str], int], ...]:
    """Label, what a fleet of some cards needs, and up to how many cards that was measured."""

    def of(name: str) -> float:
        return figures[name].value

    def reached(*names: str) -> int:
        return min(figures[name].cards_measured for name in names)

    return (
        ("samples per second", lambda cards: f"{_samples(cards):,.0f}", FLEETS[-1]),
        ("active series", lambda cards: f"{cards * SERIES_PER_CARD:,}", FLEETS[-1]),
        (
            "receiver cores into the file bus, requests of 2,000 samples back to back",
            lambda cards: _embedded(cards, figures, _cores(_samples(cards) / of("receiver_samples_per_core"))),
            reached("receiver_samples_per_core"),
        ),
        (
            "receiver cores into Kafka, the same requests from eight shards at once",
            lambda cards: _cores(_samples(cards) / of(_into_kafka(cards, figures))),
            reached("kafka_samples_per_core_2"),
        ),
        (
            "receiver memory",
            lambda cards: _bytes(
                of("receiver_bytes_at_least") + cards * SERIES_PER_CARD * of("receiver_bytes_per_series")
            ),
            reached("receiver_bytes_per_series"),
        ),
        (
            "bus: bytes per day",
            lambda cards: _bytes(_samples(cards) * of("column_bytes_per_sample") * DAY_SECONDS),
            reached("column_bytes_per_sample"),
        ),
        (
            f"brokers (replication {REPLICATION}, {RETENTION_DAYS} days)",
            lambda cards: f"{_brokers(_samples(cards) * of('column_bytes_per_sample'))}",
            0,
        ),
        (
            "partitions",
            lambda cards: f"{_partitions(_wide_rows(cards) / of('flink_rows_per_core'))}",
            0,
        ),
        (
            "Kafka: bytes on disk, all replicas",
            lambda cards: _bytes(
                _samples(cards) * of("column_bytes_per_sample") * DAY_SECONDS * RETENTION_DAYS * REPLICATION
            ),
            0,
        ),
        (
            "embedded path",
            lambda cards: _embedded(cards, figures, "yes"),
            FLEETS[-1],
        ),
        (
            "embedded path: cores of receiver and rollup, requests as they come",
            lambda cards: _embedded(cards, figures, _cores(_samples(cards) / of("embedded_samples_per_core"))),
            reached("embedded_samples_per_core"),
        ),
        (
            "embedded rollup memory",
            lambda cards: _embedded(
                cards,
                figures,
                _bytes(of("rollup_bytes_at_least") + cards * SERIES_PER_CARD * of("rollup_bytes_per_series")),
            ),
            reached("rollup_bytes_per_series"),
        ),
        (
            "Flink cores",
            lambda cards: _cores(_wide_rows(cards) / of("flink_rows_per_core")),
            reached("flink_rows_per_core"),
        ),
        (
            "Flink state",
            lambda cards: _bytes(cards * of("flink_state_bytes_per_card")),
            reached("flink_state_bytes_per_card"),
        ),
        (
            "warehouse: bytes per day",
            lambda cards: _bytes(cards * of("warehouse_bytes_per_card_day")),
            reached("warehouse_bytes_per_card_day"),
        ),
        (
            f"warehouse: bytes of {WAREHOUSE_DAYS} days",
            lambda cards: _bytes(cards * of("warehouse_bytes_per_card_day") * WAREHOUSE_DAYS),
            reached("warehouse_bytes_per_card_day"),
        ),
        (
            "analyzer: processor time of a run over four weeks",
            lambda cards: _duration(cards * of("analyzer_cpu_seconds_per_card")),
            reached("analyzer_cpu_seconds_per_card"),
        ),
        (
            "analyzer memory",
            lambda cards: _bytes(of("analyzer_bytes_at_least") + cards * of("analyzer_bytes_per_card")),
            reached("analyzer_bytes_per_card"),
        ),
        (
            "analyzer: disk while it runs",
            lambda cards: _bytes(cards * of("analyzer_scratch_bytes_per_card")),
            reached("analyzer_scratch_bytes_per_card"),
        ),
    )


def _embedded(cards: int, figures: Mapping[str, Figure], text: str) -> str:
    """A cell of what the embedded path takes, where it carries so many cards."""
    return text if _samples(cards) <= figures["embedded_samples_per_second"].value else _ENGINES


def _into_kafka(cards: int, figures: Mapping[str, Figure]) -> str:
    """Name of the figure that was measured with as many partitions as a fleet has, or the next that has more."""
    partitions = _partitions(_wide_rows(cards) / figures["flink_rows_per_core"].value)
    prefix = "kafka_samples_per_core_"
    measured = sorted(int(name.removeprefix(prefix)) for name in figures if name.startswith(prefix))
    return f"{prefix}{next((count for count in measured if count >= partitions), measured[-1])}"


def _samples(cards: int) -> float:
    return cards * SERIES_PER_CARD / STEP_SECONDS


def _wide_rows(cards: int) -> float:
    return cards * ROWS_PER_CARD_AND_STEP / STEP_SECONDS


def _cores(at_full_load: float) -> str:
    cores = at_full_load * HEADROOM
    if cores < 0.001:
        return "< 0.001"
    return f"{cores:.3f}" if cores < 1 else f"{math.ceil(cores):,}"


def _cards_of_series() -> int:
    return SERIES_MAX // SERIES_PER_CARD


def _brokers(bytes_per_second: float) -> int:
    written = bytes_per_second * REPLICATION
    kept = written * DAY_SECONDS * RETENTION_DAYS
    return max(REPLICATION, math.ceil(written / BROKER_BYTES_PER_SECOND), math.ceil(kept / BROKER_DISK_BYTES))


def _partitions(flink_cores: float) -> int:
    """Two for each core of Flink, so that there is room to grow; a power of two, at least 2."""
    return max(2, 1 << math.ceil(math.log2(max(1.0, 2 * flink_cores * HEADROOM))))


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"


def _cell(text: str, cards: int, measured: int) -> str:
    return text if cards <= measured or text == _ENGINES else f"*{text}*"
