"""Another engine reads the warehouse as the documentation says: Flink's SQL, through the catalogue alone."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.schema import Measure
from fleet.settings.pipeline import IcebergSettings
from gputide.operate.engine_cache import key_of, stocked
from gputide.operate.engine_flink import FlinkStock
from gputide.operate.engine_tools import find_maven, run_tool
from pipeline.remote_write.decode import Version
from pipeline.warehouse.compact import compact
from pipeline.warehouse.iceberg_tables import IcebergTables
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import body_of, file_bus, intake_of, roll_up, small_fleet

pytestmark = pytest.mark.engines

JARS = {
    "org.apache.iceberg:iceberg-flink-runtime-2.1:1.11.0":
        "39e658d876f253815b4b17c6676bebf6a24d517afe93a21298106d1d7fa97331",
    "org.xerial:sqlite-jdbc:3.50.3.0": "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
}  # fmt: skip
"""What Flink reads the tables with, and its SHA-256."""
ASK = Path(__file__).parent / "java" / "Ask.java"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


@pytest.fixture(scope="module")
def readers(engines_cache: Path) -> Path:
    """The folder of the jars that a Flink needs to read Iceberg."""

    def fill(folder: Path) -> None:
        for artifact in JARS:
            words = [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
            run_tool([find_maven(), "-B", "-q", COPY, *words], purpose="fetch a jar")

    folder = stocked(engines_cache, "iceberg-jars", key_of(*map(str.encode, JARS)), fill, tell=print)
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.jar")} == set(JARS.values())
    return folder


def test_the_query_of_the_documentation_gives_what_was_sent(
    flink: FlinkStock, readers: Path, repository: Path, tmp_path: Path
) -> None:
    samples = small_fleet(pods=3, hours=30)
    warehouse, bus = DuckdbWarehouse(tmp_path / "warehouse"), file_bus(tmp_path / "bus")
    settings = IcebergSettings(database=f"sqlite:///{tmp_path}/tables.db")
    with closing(IcebergTables(warehouse.files, settings, f"file://{tmp_path}/warehouse")) as tables:
        for piece in range(3):
            assert intake_of(bus).take(body_of(samples[piece::3]), Version.V2).status == 204
            roll_up(bus, warehouse)
            tables.publish(keep_seconds=3600.0)
        assert list(compact(warehouse, now=datetime(2026, 2, 1, tzinfo=UTC), files_max=2))
        tables.publish(keep_seconds=3600.0)
    found = asked(flink, readers, sql_of_documentation(repository).replace("/mnt/gputide", str(tmp_path)), tmp_path)
    wanted: dict[tuple[str, str], list[int]] = defaultdict(list)
    for sample in samples:
        if sample.measure is Measure.DUTY_CYCLE and not sample.of_card:
            day = datetime.fromtimestamp((sample.ts_ms - 1) / 1000, UTC).date()
            wanted[str(day), "team"].append(math.floor(sample.value * 1e6))
    assert {(day, namespace): float(mean) for day, namespace, mean in found} == {
        key: pytest.approx(sum(values) / 1e6 / len(values)) for key, values in wanted.items()
    }


def sql_of_documentation(repository: Path) -> str:
    """The statements that docs/operations.md shows."""
    (found,) = re.findall(r"```sql\n(.*?)```", (repository / "docs" / "operations.md").read_text("utf-8"), re.DOTALL)
    return str(found)


def asked(flink: FlinkStock, readers: Path, statements: str, folder: Path) -> list[list[str]]:
    """The rows that the last of some statements gives."""
    (folder / "statements.sql").write_text(statements, encoding="utf-8")
    command = [str(flink.java), "-cp", f"{flink.class_path}:{readers}/*", str(ASK), str(folder / "statements.sql")]
    lines = run_tool(command, purpose="ask Flink").splitlines()
    return [line.split("\t")[1:] for line in lines if line.startswith("ROW\t")]
