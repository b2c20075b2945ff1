"""A data folder of every schema that was released is read, gone on with, compacted and backed up as its own would be.

`released/schema-N.tar.xz` is a data folder as the program of that schema left it: forty cards of five days at one hour,
a plan that was approved, applied, verified and undone, and a weekly report. A new schema adds its folder here.
"""

from __future__ import annotations

import tarfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dashboards.report.weeks import read_weeks
from dashboards.stored.changes import StoredOutcomes
from enforcer.record.journal import StageState
from enforcer.record.plan_store import PlanStore
from enforcer.simulated.cluster import SimulatedCluster
from fleet.data_folder import DataFolder, open_data_folder
from fleet.schema import CARD_USAGE, POD_USAGE, SCHEMA_VERSION, WINDOW_SECONDS, Measure, Table
from gputide.container.plans import journal
from gputide.operate.backup_create import create_backup
from gputide.operate.backup_list import check_files
from pipeline.remote_write.decode import Version
from pipeline.warehouse.compact import compact, retain
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import FAR_OFF, LONG_AGO, Sample, body_of, file_bus, intake_of, roll_up

pytestmark = pytest.mark.long

RELEASED = Path(__file__).parent / "released"
PLAN = "146dd87f428e"
ENDED = datetime(2026, 1, 10, tzinfo=UTC)
FACTS = {("pod_usage", 3988): 1741468994, ("card_usage", 3842): 1805683402}
"""Samples of each table, and the sum of their duty cycles in millionths, as the program of the time said."""


@pytest.fixture(params=range(1, SCHEMA_VERSION + 1))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> DataFolder:
    """Unpack the folder of a schema."""
    with tarfile.open(RELEASED / f"schema-{request.param}.tar.xz") as packed:
        packed.extractall(tmp_path / "data", filter="data")
    return open_data_folder(tmp_path / "data", create=False)


def facts(warehouse: DuckdbWarehouse, level_seconds: int, cluster: str = "demo") -> dict[tuple[str, int], int]:
    found = {}
    for table in (POD_USAGE, CARD_USAGE):
        rows = warehouse.windows(
            table, cluster=cluster, level_seconds=level_seconds, since=LONG_AGO, until=FAR_OFF, with_histograms=False
        )
        found[table.name, _sum(rows, "samples")] = _sum(rows, "duty_cycle_ratio_sum")
    return found


def _sum(rows: object, name: str) -> int:
    return sum(filter(None, rows.column(name).to_pylist()))  # type: ignore[attr-defined]


def test_answers_of_an_older_folder_are_the_same_at_the_finest_and_the_coarsest_level(folder: DataFolder) -> None:
    with closing(DuckdbWarehouse(folder.warehouse)) as warehouse:
        assert [facts(warehouse, level) for level in (WINDOW_SECONDS[0], WINDOW_SECONDS[-1])] == [FACTS, FACTS]
        inventory = warehouse.inventory("demo")
        assert (len(inventory.cards), len(inventory.nodes), len(inventory.grants)) == (40, 11, 73)
        history = warehouse.history("demo")
        assert (history.slices.steps, len(history.slices.keys)) == (120, 69)


def test_plans_ledger_outcomes_weeks_and_cluster_of_an_older_folder_are_read(folder: DataFolder) -> None:
    store = PlanStore(folder.plans)
    assert [plan.plan_id for plan in store.plans()] == [PLAN]
    assert store.approved_stages(PLAN) == {1, 2, 3, 4, 5, 6}
    assert store.fingerprint(PLAN) is not None
    # No cluster stands in its ledger yet: such runs are everybody's.
    (run,) = journal(folder, cluster="demo").runs()
    assert {record.state for record in run.records.values()} == {StageState.UNDONE}
    (outcome,) = StoredOutcomes(folder).outcomes("demo")
    assert outcome.promised_cards_freed == 7
    assert len(read_weeks(folder)) == 1
    cluster = SimulatedCluster.open(folder.cluster)
    assert cluster.list_objects("Deployment")
    cluster.close()


def test_older_folder_goes_on_is_merged_and_backed_up(folder: DataFolder, tmp_path: Path) -> None:
    at = ENDED + timedelta(hours=1)
    with closing(file_bus(folder.bus())) as bus, closing(DuckdbWarehouse(folder.warehouse)) as warehouse:
        sample = Sample(0, Measure.DUTY_CYCLE, int(at.timestamp() * 1000), 0.25)
        intake_of(bus).take(body_of([sample], cluster="demo"), Version.V2)
        roll_up(bus, warehouse)
        merged = list(compact(warehouse, now=at, files_max=1))
        assert {item.table for item in merged} >= {"pod_usage", "card_usage"}
        expected = {("pod_usage", 3989): FACTS["pod_usage", 3988] + 250_000, **_of(CARD_USAGE)}
        assert facts(warehouse, 86400) == expected
        assert list(retain(warehouse, now=at + timedelta(days=33), days=30, finest_days=None))
        kept = facts(warehouse, 86400)
        assert kept != expected
    check_files(tmp_path / "backup", create_backup(folder, folder.warehouse, tmp_path / "backup", at))


def _of(table: Table) -> dict[tuple[str, int], int]:
    return {key: total for key, total in FACTS.items() if key[0] == table.name}
