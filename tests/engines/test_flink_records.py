"""The Java program reads of any bytes what the receiver's own reader does, and refuses what that refuses."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fleet.errors import Corrupt
from fleet.schema import MEASURES, USAGE_MEASURES, Table
from gputide.operate.engine_flink import FlinkStock
from pipeline.flink.description import FlinkDescription, FlinkTopic
from pipeline.records.rows import KINDS, Section, identities_schema, pack, unpack

pytestmark = pytest.mark.engines

RECORDS = 150
DAMAGED = 3000
PROBES = Path(__file__).parent / "java" / "gputide"
START_MS = 1_767_571_200_000


def test_records_are_read_to_the_bit_and_damaged_ones_refused_alike(flink: FlinkStock, tmp_path: Path) -> None:
    random = np.random.default_rng(11)
    whole = [pack(random_sections(random), bytes(16)) for _ in range(RECORDS)]
    damaged = [damage(random, whole[int(random.integers(len(whole)))]) for _ in range(DAMAGED)]
    answers = read_by_java(flink, tmp_path, [*whole, *damaged])
    assert answers[:RECORDS] == [digest(record) for record in whole]
    refused = 0
    for record, answer in zip(damaged, answers[RECORDS:], strict=True):
        try:
            wanted = digest(record)
        except Corrupt:
            assert answer.startswith("unreadable: "), answer
            refused += 1
        else:
            assert answer == wanted, answer
    assert DAMAGED / 10 < refused < DAMAGED


def random_sections(random: np.random.Generator) -> tuple[Section, ...]:
    """Some sections, as receivers make them: of any table, sparse or full, whole numbers or not."""
    kinds = random.choice(len(KINDS), size=int(random.integers(1, 4)), replace=False)
    return tuple(random_section(random, KINDS[kind]) for kind in sorted(kinds.tolist()))


def random_section(random: np.random.Generator, table: Table) -> Section:
    rows, identities = int(random.integers(1, 300)), int(random.integers(1, 400))
    if random.random() < 0.3:
        identities = rows
    places = np.arange(rows) if identities == rows else random.integers(0, identities, rows)
    own = USAGE_MEASURES.get(table.name)
    measures = () if own is None else tuple(sorted(MEASURES.index(one) for one in own if random.random() < 0.7))
    if own is not None and not measures:
        measures = (MEASURES.index(own[0]),)
    columns = len(measures) if own is not None else 2
    values = random.random((columns, rows)) * random.choice([1.0, 1e9])
    if random.random() < 0.6:
        values = np.round(values, int(random.integers(0, 4)))
    if own is None:
        values = START_MS + np.floor(values)
    is_missing = random.random(values.shape) < random.choice([0.0, 0.2, 1.0 if own is None else 0.9])
    if own is None:
        is_missing[0] = False  # a sighting has a last time
    values[is_missing] = math.nan
    schema = identities_schema(table)
    texts = [pa.array([text(random) for _ in range(identities)]) for _ in schema.names[1:]]
    hashes = pa.array(random.integers(0, 1 << 63, identities, dtype=np.uint64) * np.uint64(2))
    return Section(
        table=table,
        identities=pa.RecordBatch.from_arrays([hashes, *texts], schema=schema),
        identity=places.astype(np.int32),
        ts_ms=START_MS + random.integers(0, random.choice([1, 100, 60_000, 10**7, 10**11]), rows),
        measures=measures,
        values=values,
    )


def text(random: np.random.Generator) -> str:
    letters = "abc-0123" if random.random() < 0.9 else 'añ汉\U0001f680\0"\\'
    return "".join(random.choice(list(letters), size=int(random.integers(0, 20))))


def damage(random: np.random.Generator, record: bytes) -> bytes:
    """A record that is cut, or has some other bytes: mostly near its begin, where the lengths are."""
    found = bytearray(record)
    if random.random() < 0.1:
        return bytes(found[: int(random.integers(len(found)))])
    for _ in range(int(random.integers(1, 4))):
        place = int(random.integers(min(100, len(found)) if random.random() < 0.5 else len(found)))
        found[place] = (
            int(random.integers(256)) if random.random() < 0.5 else found[place] ^ 1 << int(random.integers(8))
        )
    return bytes(found)


def digest(record: bytes) -> str:
    """As `Probe.java` makes it of what a record holds."""
    found = hashlib.sha256()
    number = struct.Struct(">Q")
    for section in unpack(record):
        found.update(number.pack(KINDS.index(section.table)))
        hashes = section.identities.column(0).to_pylist()
        texts = list(zip(*(column.to_pylist() for column in section.identities.columns[1:]), strict=True))
        columns = section.measures or (0, 1)
        for row, place in enumerate(section.identity.tolist()):
            found.update(number.pack(hashes[place]))
            for one in texts[place]:
                data = one.encode()
                found.update(struct.pack("<I", len(data)) + data)
            found.update(struct.pack(">q", int(section.ts_ms[row])))
            for column, measure in enumerate(columns):
                value = float(section.values[column, row])
                bits = number.pack(0x7FF8000000000000) if math.isnan(value) else struct.pack(">d", value)
                found.update(number.pack(measure) + bits)
    return found.hexdigest()


def read_by_java(flink: FlinkStock, folder: Path, records: Sequence[bytes]) -> list[str]:
    """What `Probe.java` answers."""
    description = FlinkDescription(
        topic=FlinkTopic(servers="", topic="", group=""), staging="", window_seconds=60, late_days=2
    )
    layout = json.dumps(description.document()["layout"]).encode()
    given = b"".join(struct.pack(">i", len(piece)) + piece for piece in (layout, *records))
    return said_by(flink, folder, "Probe", given).splitlines()


def said_by(flink: FlinkStock, folder: Path, name: str, given: bytes = b"") -> str:
    """What a class beside these tests prints, compiled against the job's program."""
    javac = flink.java.resolve().with_name("javac")
    subprocess.run([str(javac), "-d", str(folder), "-cp", flink.class_path, str(PROBES / f"{name}.java")], check=True)
    class_path = os.pathsep.join((str(folder), flink.class_path))
    done = subprocess.run(
        [str(flink.java), "-Xmx1g", "-cp", class_path, f"gputide.{name}"], input=given, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_what_was_counted_is_remembered_to_the_measure_and_takes_little_room(flink: FlinkStock, tmp_path: Path) -> None:
    kept, varying = map(int, said_by(flink, tmp_path, "SeenProbe").split())
    assert kept < 20
    assert varying < 300
