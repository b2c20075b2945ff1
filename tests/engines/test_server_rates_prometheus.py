"""A real Prometheus makes each server's counters into rates, tokens and latencies of its pod, each sample once.

An hour of what servers write is back-filled. It is read as the recording rules read it, and by a scan of a server that
has no rules.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from bench.served_prometheus import (
    BEHIND_A_PROXY,
    HOUR_S,
    MESH_TRUTH,
    UNTIL,
    UNTIL_S,
    all_truth,
    back_fill,
    errors,
    serving,
)
from dashboards.grafana.normalised import normalised_groups
from dashboards.grafana.rule import RecordingRule
from fleet.data_folder import open_data_folder
from fleet.schema import POD_USAGE, SLICE_MEASURES, Measure
from fleet.server_series import SERVER_READINGS, recorded_name
from fleet.settings.scan import ScanSettings
from fleet.settings.settings import Settings
from gputide.container.warehouse import warehouse
from gputide.scanning.queries import open_history
from gputide.scanning.scan import scan
from tests.engines.go_peers import GoPeers

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def history(go_peers: GoPeers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    back_fill(go_peers, folder)
    return folder


@pytest.mark.parametrize("measure", SERVER_READINGS)
def test_the_rules_record_what_each_pods_server_did(measure: Measure, go_peers: GoPeers, history: Path) -> None:
    rules = {
        rule.record: rule.expression
        for group in normalised_groups()
        for rule in group.rules
        if isinstance(rule, RecordingRule)
    }
    with (
        serving(go_peers, history) as url,
        open_history(ScanSettings(url=url, attempts_max=1)) as source,
    ):
        block = source.computed(
            rules[recorded_name(measure)], since_ms=HOUR_S * 1000, until_ms=UNTIL_S * 1000, step_ms=60_000
        )
    assert all(set(labels) == {"namespace", "pod"} for labels in block.labels)
    values = np.split(block.values, block.starts[1:-1])
    found = {labels["pod"]: float(mine.mean()) for labels, mine in zip(block.labels, values, strict=True)}
    assert len(found) == len(block.labels)
    assert {len(mine) for mine in values} == {60}
    off = errors(found, measure, {**all_truth(), **dict.fromkeys(BEHIND_A_PROXY, MESH_TRUTH)})
    assert max(off.values()) <= 0.01, off


def test_a_scan_reads_them_where_no_rule_records_them(go_peers: GoPeers, history: Path, tmp_path: Path) -> None:
    data = open_data_folder(tmp_path / "data", create=True)
    with serving(go_peers, history) as url:
        scanned = scan(
            data,
            Settings(scan=ScanSettings(url=url, attempts_max=1, since_seconds=3600)),
            now=UNTIL,
            tick=lambda done, total: None,
        )
    assert not scanned.reading.refused
    hour = datetime.fromtimestamp(HOUR_S, UTC)
    rows = warehouse(data, Settings()).windows(
        POD_USAGE, cluster="default", level_seconds=3600, since=hour, until=UNTIL, with_histograms=False
    )
    for measure in SERVER_READINGS:
        found = {
            row["pod"]: row[f"{measure.value}_sum"] / row[f"{measure.value}_count"] / scale_of(measure)
            for row in rows.to_pylist()
            if row[f"{measure.value}_count"]
        }
        off = errors(found, measure, all_truth())
        assert max(off.values()) <= 0.01, (measure, off)


def scale_of(measure: Measure) -> int:
    return next(column.scale for column in SLICE_MEASURES if column.measure is measure)
