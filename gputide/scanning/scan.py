"""Takes in the history that others keep: from the names that a server has to rows and sightings in our warehouse.

Called by `gputide scan`. Whatever else works on a data folder (`workloads`, `plan explain`, `report`, `serve` …) works
on this one afterwards. A scan that was cut goes on where it was; one made later reads what is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured, NotEnoughData
from fleet.provenance import UP, Stranger
from fleet.schema import CARD_IDENTITY, CARD_USAGE, POD_USAGE, SLICE_IDENTITY, Table
from fleet.series import known_names, meaning_of_name
from fleet.server_series import READ_NAMES, SERVER_READINGS, recorded_name, servers_expression
from fleet.settings.settings import Settings
from fleet.units import epoch_ms, format_time, time_from_epoch_ms
from gputide.container.warehouse import open_warehouse
from gputide.scanning.queries import open_history
from gputide.session import Tick
from pipeline.bus.bus import Chunk
from pipeline.history.facts import FACT_NAMES, Facts, read_facts
from pipeline.history.places import Places
from pipeline.history.presence import periods_of, seen_quarters
from pipeline.history.reading import DAY_MS, HistoryLane, HistoryReading, ReadingTally
from pipeline.history.scale import Scale, scale_of
from pipeline.history.seats import SeatTally, sightings_of
from pipeline.history.source import HistorySource, SourceWork
from pipeline.records.rows import Section, pack
from pipeline.records.sightings import INVENTORY_TABLES
from pipeline.rollup.rollup_duckdb import EmbeddedRollup, RollupTarget
from pipeline.warehouse.parquet_reads import ParquetReads
from pipeline.warehouse.usage_grid import Span, UsageFiles, read_span

if TYPE_CHECKING:
    from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
    from pipeline.warehouse.warehouse_hive import HiveWarehouse

STEPS_SECONDS = (60, 300, 900)
"""Lengths of windows that a scan chooses from."""
CELLS_MAX = 3_000_000
"""Windows of one measure of all cards up to which the finer length is taken: bounds the memory of the plan."""
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What a scan found.

    Attributes:
        url: the server.
        since: start of the first day that was read, UTC.
        until: end of the time that was read.
        step_seconds: length of the windows that were kept.
        names: metric names that the server has, of those that mean something.
        facts: what stands beside the samples.
        reading: what became of samples read now; those that an earlier scan read are not among them.
        seats: what became of who was seen.
        scales: what had to be mended in units.
        strangers: targets that may not speak for others, and the metrics that they wrote and that were left out.
        work: what the server was asked for.
    """

    url: str
    cluster: str
    since: datetime
    until: datetime
    step_seconds: int
    names: frozenset[str]
    facts: Facts
    reading: ReadingTally
    seats: SeatTally
    scales: dict[str, Scale]
    strangers: dict[Stranger, set[str]]
    work: SourceWork


def scan(folder: DataFolder, settings: Settings, *, now: datetime, tick: Tick) -> Scanned:
    """Read a server's history into the data folder.

    Args:
        folder: data folder, held for writing.
        settings: all settings; `scan.url` names the server.
        now: end of the time that is read, UTC.
        tick: told how far it is, in minutes of history.

    Raises:
        Misconfigured: the address or the folder can't be used, the server does not let us in, or a cluster must be
            chosen.
        NotEnoughData: the server has none of the metrics.
        Unavailable: it can't be reached or is overloaded; the same call goes on where this one ended.
    """
    _check_folder(folder)
    until_ms = epoch_ms(now)
    since_ms = (until_ms - settings.scan.since_seconds * 1000) // DAY_MS * DAY_MS
    with open_history(settings.scan) as source, open_warehouse(folder, settings) as target:
        wanted = (*known_names(), *FACT_NAMES, *sorted(READ_NAMES - set(known_names())))
        names = source.names(wanted, since_ms=since_ms, until_ms=until_ms)
        usage = sorted(names & set(known_names()) - {name for name in names if name.startswith("kube_")})
        if not usage:
            raise NotEnoughData(_nothing_found(settings, names, since_ms, until_ms))
        cluster = _cluster(source, settings, usage, since_ms, until_ms)
        places = Places(cluster, settings.scan.cluster_label, settings.provenance.rule)
        facts = read_facts(source, names, places, since_ms=since_ms, until_ms=until_ms)
        elsewhere = {stranger.namespace for stranger in places.strangers}
        scales = {name: scale_of(source, name, until_ms=until_ms, but=elsewhere) for name in usage}
        step_seconds = settings.scan.step_seconds or _step_seconds(len(places.cards), until_ms - since_ms)
        reading = HistoryReading(
            source,
            names=[name for name in usage if (meaning := meaning_of_name(name)) is not None and meaning.measure],
            expressions=_expressions(source, names),
            scales=scales,
            places=places,
            samples_max=settings.scan.samples_per_append_max,
        )
        lanes = _Lanes(settings, places.cluster)
        for day_ms in range(since_ms, until_ms, DAY_MS):
            lane = HistoryLane(
                reading,
                name=lanes.of_day(day_ms),
                since_ms=day_ms,
                until_ms=min(day_ms + DAY_MS, until_ms),
                tell=lambda at_ms: tick((at_ms - since_ms) // 60_000, (until_ms - since_ms) // 60_000),
            )
            _roll_up(lane, target, step_seconds)
        seats = _keep_inventory(target, facts, places, lanes.inventory, since_ms, until_ms, step_seconds)
        return Scanned(
            url=settings.scan.url or "",
            cluster=places.cluster,
            since=time_from_epoch_ms(since_ms),
            until=now,
            step_seconds=step_seconds,
            names=names,
            facts=facts,
            reading=reading.tally,
            seats=seats,
            scales=scales,
            strangers=places.strangers,
            work=source.work,
        )


def _expressions(source: HistorySource, names: frozenset[str]) -> dict[str, str]:
    """What servers do, where no recording rule says it: the rule's name, and what it would compute of what is there."""
    found = {}
    for measure in SERVER_READINGS:
        expression = servers_expression(measure, selector=source.selector, names=names)
        if expression is not None and recorded_name(measure) not in names:
            found[recorded_name(measure)] = expression
    return found


class _Lanes:
    """Names of the lanes of one source: the same server, matchers and cluster are the same source."""

    def __init__(self, settings: Settings, cluster: str) -> None:
        asked = settings.scan
        texts = ((asked.url or "").rstrip("/"), *sorted(asked.matchers), asked.cluster_label, cluster)
        self._source = hashlib.blake2b("\n".join(texts).encode(), digest_size=6).hexdigest()

    def of_day(self, day_ms: int) -> str:
        """The lane of one day."""
        return f"scan-{self._source}-{time_from_epoch_ms(day_ms):%Y%m%d}"

    @property
    def inventory(self) -> str:
        """The lane of sightings."""
        return f"scan-{self._source}-inventory"


class _OneRecord:
    """A lane with one record, that counts from wherever the lane was."""

    def __init__(self, name: str, start: int, sections: Sequence[Section]) -> None:
        self._chunk = Chunk(
            source=name, start=start, end=start + 1, records=(pack(tuple(sections), bytes(16)),), ends=(start + 1,)
        )

    def append(self, payload: bytes) -> int:
        """Nothing is added."""
        raise ValueError(f"a record of {len(payload)} bytes can't be added to one that is there")

    def read(self, start: int, *, bytes_max: int) -> Chunk | None:
        """See `Bus`."""
        return self._chunk if start <= self._chunk.start and bytes_max > 0 else None

    def commit(self, offset: int) -> None:
        """See `Bus`; the warehouse remembers."""

    def committed(self) -> int:
        """See `Bus`."""
        return self._chunk.start


def _roll_up(lane: HistoryLane | _OneRecord, target: RollupTarget, step_seconds: int) -> None:
    rollup = EmbeddedRollup(
        lambda: (lane,), target, chunk_bytes=_NO_LIMIT, window_seconds=step_seconds, rows_per_step_max=_NO_LIMIT
    )
    while rollup.step() is not None:
        pass


def _check_folder(folder: DataFolder) -> None:
    if folder.clock.exists() or any(folder.bus(lane).exists() for lane in folder.bus_lanes):
        raise Misconfigured(
            f"cannot scan into {folder.path}: it holds what was received or replayed, and the two would count twice; "
            "name another folder with --data-dir"
        )


def _cluster(source: HistorySource, settings: Settings, usage: Sequence[str], since_ms: int, until_ms: int) -> str:
    """The cluster that is read: the one that was chosen, or the only one."""
    asked = settings.scan
    if asked.cluster is not None:
        return asked.cluster
    found = [
        value
        for value in source.label_values(asked.cluster_label, usage, since_ms=since_ms, until_ms=until_ms)
        if value
    ]
    if len(found) > 1:
        listed = ", ".join(repr(value[:80]) for value in found[:10])
        raise Misconfigured(
            f"cannot choose a cluster: label {asked.cluster_label!r} has {len(found)} values ({listed}); choose one "
            "with --cluster, or the label with --cluster-label"
        )
    return found[0][:253] if found else settings.cluster.name


def _step_seconds(cards: int, span_ms: int) -> int:
    for step in STEPS_SECONDS:
        if cards * span_ms // (step * 1000) <= CELLS_MAX:
            return step
    return STEPS_SECONDS[-1]


def _keep_inventory(
    target: DuckdbWarehouse | HiveWarehouse,
    facts: Facts,
    places: Places,
    lane: str,
    since_ms: int,
    until_ms: int,
    step_seconds: int,
) -> SeatTally:
    """Writes the inventory anew from all that is in the warehouse."""
    spans = [
        _span(target, table, names, places.cluster)
        for table, names in ((POD_USAGE, SLICE_IDENTITY), (CARD_USAGE, CARD_IDENTITY))
    ]
    seen = seen_quarters(spans)
    slices, cards = (periods_of(span, seen, until_ms=until_ms) for span in spans)
    strange = ", ".join(sorted({stranger.namespace[:253] for stranger in places.strangers})[:5])
    left_out = f"; what pods of {strange} say is left out: provenance.namespaces does not name them" if strange else ""
    sections, tally = sightings_of(facts, places, slices, cards, until_ms=until_ms, window_ms=step_seconds * 1000)
    if not sections:
        raise NotEnoughData(
            f"cannot make an inventory of cluster {places.cluster!r}: no sample between "
            f"{format_time(time_from_epoch_ms(since_ms))} and {format_time(time_from_epoch_ms(until_ms))} names a card"
            + (f" of a known model ({', '.join(sorted(tally.unsized)[:5])})" if tally.unsized else "")
            + left_out
        )
    files = target.files
    with files.upkeep():
        for part in files.partitions():
            if part.cluster == places.cluster and part.table in {table.name for table in INVENTORY_TABLES}:
                # Grants that an earlier scan took for lasting may be known to have ended by now.
                files.replace(part, files.partition_files(part), (), until_ms)
    _roll_up(_OneRecord(lane, target.applied_offset(lane), sections), target, step_seconds)
    return tally


def _span(target: ParquetReads, table: Table, names: tuple[str, ...], cluster: str) -> Span:
    paths = [Path(file.path) for file in target.files.files(table, cluster)]
    return read_span(UsageFiles(paths=tuple(paths), names=names, opened=target.files.rows.opened))


def _nothing_found(settings: Settings, names: frozenset[str], since_ms: int, until_ms: int) -> str:
    period = f"{format_time(time_from_epoch_ms(since_ms))} to {format_time(time_from_epoch_ms(until_ms))}"
    named = sorted(names - {UP})[:3]
    beside = f"; it has {', '.join(named)}, which tell of pods and not of cards" if named else ""
    narrowed = " that match scan.matchers and --cluster" if settings.scan.matchers or settings.scan.cluster else ""
    return (
        f"cannot scan {settings.scan.url}: from {period} it has no metric of dcgm-exporter, HAMi, Volcano or "
        f"gputide{narrowed}{beside}; install NVIDIA's dcgm-exporter, or name the server that scrapes it"
    )
