"""Five minutes of the whole system, one fault after the other, on both paths: no sample lost, none counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.soak.faults import FAULTS
from bench.soak.run import SoakTask, run_soak, slope

CARDS = 400


@pytest.mark.engines
@pytest.mark.parametrize(
    ("has_engines", "seconds"), [(False, 110.0), (True, 190.0)], ids=["embedded", "kafka-flink-hive"]
)
def test_fleet_grows_through_every_fault_and_each_of_its_samples_is_counted_once(
    tmp_path: Path, engines_cache: Path, *, has_engines: bool, seconds: float
) -> None:
    assert engines_cache.is_dir()
    result = run_soak(
        tmp_path, SoakTask(cards=CARDS, interval_seconds=5.0, seconds=seconds, has_engines=has_engines), print
    )
    assert [fault.name for fault in result.faults] == [
        fault.name for fault in FAULTS if has_engines or not fault.needs_engines
    ]
    assert result.samples_made > CARDS * 22 * seconds / 5 / 2
    assert result.samples_found == result.samples_made
    assert [fault.name for fault in result.faults if fault.recovery_seconds is None] == []
    bitten = {fault.name for fault in result.faults if fault.refused}
    assert "receiver killed" in bitten
    assert result.cpu_cores["receiver"] > 0


def test_slope_is_that_of_the_trend_and_not_of_one_jump() -> None:
    points = [(float(second), 100.0 + second / 60 + (40 if second > 300 else 0)) for second in range(0, 600, 5)]
    assert slope(points[:60]) == pytest.approx(1 / 60)
    assert slope([(0.0, 5.0)]) == 0.0
