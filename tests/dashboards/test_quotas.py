"""Who uses less than its quota: from the series of the exporter through the pipeline to the page's lines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from dashboards.view_models.quotas import counts_cards, quota_uses, team_quotas
from dashboards.view_models.tenants import Tenant
from exporter.allocation.records import AmountRecord, QueueRecord
from exporter.allocation.rows import queue_rows
from fleet.inventory import Quota
from fleet.money.charges import MeasuredHours
from fleet.profiles import HourMeasure
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import START_MS, file_bus, intake_of, roll_up

NOW = datetime.fromtimestamp(START_MS / 1000, UTC)
MINUTE_MS = 60_000
GPU = "requests.nvidia.com/gpu"


def quota(namespace: str = "search", limit: float | None = 16.0, held: float | None = 6.0, **more: object) -> Quota:
    """A quota of a namespace."""
    given = {"kind": "ResourceQuota", "name": "cards", "parent": None, "resource": GPU, "deserved": None, **more}
    return Quota(cluster="c1", namespace=namespace, limit=limit, held=held, **given)  # type: ignore[arg-type]


def tenant(name: str, used: float | None) -> Tenant:
    """A team that uses so many cards."""
    return Tenant(
        name=name, workloads=1, distrusted=0, unmeasured_card_hours=6.0 if used is None else 0.0, hours=1.0,
        measures={HourMeasure.USED: MeasuredHours(card_hours=used or 6.0, cost=None)},
    )  # fmt: skip


def told(records: Sequence[QueueRecord]) -> list[dict[str, str]]:
    """Label sets of the info series that the cluster exporter shows for them."""
    rows = [row for record in records for row in queue_rows("c1", record)]
    return [
        {"__name__": family.name, **dict(zip(family.label_names, labels, strict=True))}
        for family, labels, _ in rows
        if family.name == "gputide_quota_info"
    ]


def test_quota_travels_from_the_exporter_to_the_inventory_and_what_was_told_last_counts(tmp_path: Path) -> None:
    def record(held: float) -> list[QueueRecord]:
        amounts = (AmountRecord(resource=GPU, limit=16.0, used=held),)
        queue = QueueRecord(
            kind="kai", namespace="", name="research", parent="all",
            amounts=(AmountRecord(resource="nvidia.com/gpu", deserved=8.0),),
        )  # fmt: skip
        return [
            QueueRecord(kind="ResourceQuota", namespace="search", name="cards", parent=None, amounts=amounts),
            *([queue] if held < 6 else []),
        ]

    bus = file_bus(tmp_path / "bus")
    intake = intake_of(bus)
    for minute, held in ((1, 4.0), (61, 6.0), (241, 6.0)):
        labels = told(record(held))
        count = len(labels)
        times = np.full(count, START_MS + minute * MINUTE_MS, np.int64)
        body = LabelSets(labels).encode(Version.V2, np.arange(count), times, np.ones(count))
        intake.take(body, Version.V2)
    with closing(DuckdbWarehouse(tmp_path / "warehouse")) as warehouse:
        roll_up(bus, warehouse)
        found = warehouse.quotas("c1", as_of=NOW + timedelta(hours=5))
        # The queue was not told of for hours: it is gone.
        assert [(one.kind, one.namespace, one.resource, one.limit, one.held) for one in found] == [
            ("ResourceQuota", "search", GPU, 16.0, 6.0)
        ]
        early = warehouse.quotas("c1", as_of=NOW + timedelta(minutes=30))
        assert [(one.kind, one.deserved, one.held) for one in early] == [
            ("ResourceQuota", None, 4.0),
            ("kai", 8.0, None),
        ]
        assert warehouse.inventory("c1", as_of=NOW + timedelta(hours=5)).quotas == found
    bus.close()


def test_who_uses_least_of_its_quota_comes_first_and_what_is_not_measured_is_not_none() -> None:
    found = quota_uses(
        [quota(), quota("ads", 8.0, 8.0), quota("unseen", 4.0, None), quota("open", None, 2.0)],
        [tenant("search", 2.0), tenant("ads", 8.0), tenant("unseen", None)],
    )
    assert [use.namespace for use in found] == ["search", "ads", "open", "unseen"]
    search, ads, endless, unseen = found
    assert (search.left, search.used_ratio, search.is_underused) == (10.0, 0.125, True)
    assert (ads.left, ads.used_ratio, ads.is_underused) == (0.0, 1.0, False)
    assert (endless.left, endless.used_ratio, endless.is_underused) == (None, None, False)
    assert (unseen.left, unseen.used, unseen.is_underused) == (None, None, False)


def test_promise_goes_before_the_limit_and_a_queue_of_the_cluster_has_no_teams_use() -> None:
    (use,) = quota_uses([quota("", 20.0, 3.0, kind="kueue", deserved=10.0)], [tenant("", 5.0)])
    assert (use.quota, use.left, use.used) == (10.0, 7.0, None)


def test_tightest_quota_of_a_resource_counts_and_requests_and_limits_are_one() -> None:
    found = team_quotas(
        [quota(), quota(limit=12.0, resource="limits.nvidia.com/gpu"), quota("b", 4.0, None),
         quota("ads", 81920.0, resource="nvidia.com/gpumem"), quota("", 9.0, kind="kueue")]
    )  # fmt: skip
    assert {name: (one.quota, one.granted) for name, one in found.items()} == {"search": (12.0, 6.0), "b": (4.0, None)}


@pytest.mark.parametrize(
    ("resource", "is_count"),
    [("requests.nvidia.com/gpu", True), ("nvidia.com/gpumem", False), ("nvidia.com/gpumem-percentage", False),
     ("volcano.sh/vgpu-cores", False), ("nvidia.com/mig-1g.10gb", False), ("volcano.sh/vgpu-number", True),
     ("huawei.com/Ascend910", True)],
)  # fmt: skip
def test_parts_of_cards_are_no_cards(resource: str, is_count: bool) -> None:
    assert counts_cards(resource) is is_count
