"""Which step of the chain is named where the newest sample is old."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dashboards.queries import Freshness
from dashboards.stored.arrivals import StoredFlow
from dashboards.view_models.health import LagCause, LagChain
from fleet.data_folder import DataFolder, open_data_folder
from fleet.settings.settings import Settings
from gputide.container.bus import file_bus

NOW = datetime(2026, 1, 22, 9, 0, tzinfo=UTC)
OLD = LagChain(
    newest_at=NOW, sample_age_seconds=3600.0, interval_seconds=60.0, received_age_seconds=5.0, waiting_bytes=0,
    stored_age_seconds=5.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"sample_age_seconds": 299.0, "waiting_bytes": 10**9}, LagCause.NONE),
        ({"sample_age_seconds": 1100.0, "interval_seconds": 600.0}, LagCause.NONE),
        ({"waiting_bytes": 10, "stored_age_seconds": 3000.0}, LagCause.ROLLUP),
        ({"waiting_bytes": 10, "stored_age_seconds": None}, LagCause.ROLLUP),
        ({"received_age_seconds": 3000.0}, LagCause.SENDER),
        ({"received_age_seconds": None, "sample_age_seconds": None}, LagCause.SENDER),
        ({}, LagCause.LATE_SAMPLES),
        ({"is_shared": True}, LagCause.SENDER_OR_LATE),
        ({"is_shared": True, "received_age_seconds": 3000.0}, LagCause.SENDER),
        ({"waiting_bytes": None, "received_age_seconds": None}, LagCause.UNKNOWN),
    ],
)
def test_the_step_that_holds_the_chain_up_is_named(changed: dict[str, Any], cause: LagCause) -> None:
    assert replace(OLD, **changed).cause is cause


class _Fleet:
    """A cluster whose newest sample is an hour old."""

    def clusters(self) -> tuple[str, ...]:
        return ("c1",)

    def freshness(self, cluster: str) -> Freshness:
        return Freshness(coverage_ratio=1.0, newest_at=NOW - timedelta(hours=1), interval_seconds=60.0, now=NOW)


def a_flow(folder: DataFolder, settings: Settings) -> StoredFlow:
    return StoredFlow(
        folder,
        settings,
        _Fleet(),  # type: ignore[arg-type]
        bus=lambda lane: file_bus(folder, settings, lane),
        manifest=folder.warehouse / "MANIFEST",
        clock=lambda: NOW,
    )


def test_chain_is_read_from_bus_and_warehouse_and_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    folder, settings = open_data_folder(tmp_path / "data", create=True), Settings()
    flow = a_flow(folder, settings)
    found = flow.lags("c1")
    assert (found.waiting_bytes, found.received_age_seconds, found.stored_age_seconds) == (0, None, None)
    assert not folder.bus().exists()
    bus = file_bus(folder, settings)
    first = bus.append(b"x" * 100)
    bus.append(b"y" * 50)
    for path in folder.bus().iterdir():
        os.utime(path, (NOW.timestamp() - 30, NOW.timestamp() - 30))
    found = flow.lags("c1")
    assert found.received_age_seconds == pytest.approx(30)
    assert (found.waiting_bytes or 0) > 150
    assert found.cause is LagCause.ROLLUP
    bus.commit(first)
    assert 50 < (flow.lags("c1").waiting_bytes or 0) < (found.waiting_bytes or 0)
    bus.close()
    on_kafka = Settings.model_validate({"bus": {"kind": "kafka"}})
    assert a_flow(folder, on_kafka).lags("c1").cause is LagCause.UNKNOWN
