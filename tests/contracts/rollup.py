"""What every rollup must do; adapters' tests inherit these claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fleet.schema import Measure
from pipeline.remote_write.decode import Version
from tests.pipeline.builders import (
    DAY_MS,
    START_MS,
    USAGE_TABLES,
    Sample,
    body_of,
    expected_rows,
    intake_of,
    small_fleet,
    stored_rows,
)


class RollupContract:
    """Needs fixtures `bus`, `warehouse` and `rollup` (a function that drains the bus, a new rollup each time)."""

    EARLIER_VALUE_MAY_COUNT = False
    """Of several values for one place between two calls of `rollup`, any may count instead of the largest."""

    def check(self, warehouse: Any, samples: list[Sample]) -> None:
        """Stored rows of both tables and all levels are the oracle's."""
        for table in USAGE_TABLES:
            assert stored_rows(warehouse, table) == expected_rows(samples, table)

    def test_all_levels_hold_what_a_dictionary_would(self, bus: Any, warehouse: Any, rollup: Any) -> None:
        samples = small_fleet()
        intake_of(bus).take(body_of(samples), Version.V2)
        rollup()
        self.check(warehouse, samples)

    @pytest.mark.parametrize("seed", range(2))
    def test_any_order_split_and_repeat_gives_the_same_rows(
        self, bus: Any, warehouse: Any, rollup: Any, seed: int
    ) -> None:
        samples = small_fleet(pods=2, hours=25)
        random = np.random.default_rng(seed)
        sent = [samples[place] for place in random.permutation(len(samples))]
        sent += [samples[place] for place in random.integers(0, len(samples), len(samples) // 3)]
        intake = intake_of(bus)
        for piece in np.array_split(np.arange(len(sent)), 8):
            version = Version(int(random.integers(1, 3)))
            assert intake.take(body_of([sent[place] for place in piece], version), version).status == 204
            if random.random() < 0.5:
                rollup()
        rollup()
        self.check(warehouse, samples)

    def test_late_sample_is_counted_once(self, bus: Any, warehouse: Any, rollup: Any) -> None:
        intake = intake_of(bus)
        newest = [Sample(0, Measure.DUTY_CYCLE, START_MS + 3 * DAY_MS, 0.5)]
        late = [Sample(0, Measure.DUTY_CYCLE, START_MS + 600_000, 0.25)]
        for body in (newest, late, [*late, *newest]):
            intake.take(body_of(body), Version.V2)
            rollup()
        self.check(warehouse, newest + late)

    def test_late_measure_of_a_counted_sample_adds_the_measure_and_no_sample(
        self, bus: Any, warehouse: Any, rollup: Any
    ) -> None:
        duty = Sample(0, Measure.DUTY_CYCLE, START_MS + 600_000, 0.5)
        active = Sample(0, Measure.SM_ACTIVE, START_MS + 600_000, 0.25)
        for sample in (duty, active):
            intake_of(bus).take(body_of([sample]), Version.V2)
            rollup()
        self.check(warehouse, [duty, active])

    def test_sample_belongs_to_the_window_that_its_step_ends_in(self, bus: Any, warehouse: Any, rollup: Any) -> None:
        samples = [Sample(0, Measure.DUTY_CYCLE, START_MS + shift, 0.5) for shift in (-1, 0, 1, 60_000, 60_001)]
        intake_of(bus).take(body_of(samples), Version.V2)
        rollup()
        self.check(warehouse, samples)
        minute = {key[1] - START_MS: row["samples"] for key, row in self.minutes(warehouse).items()}
        assert minute == {-60_000: 2, 0: 2, 60_000: 1}

    def minutes(self, warehouse: Any) -> Any:
        """Rows of the finest level of the slices' table."""
        return {key: row for key, row in stored_rows(warehouse, USAGE_TABLES[0]).items() if key[0] == 60}

    def test_values_on_the_edges_of_bins_and_scales_are_floored(self, bus: Any, warehouse: Any, rollup: Any) -> None:
        values = [0.0, 0.01, 0.29, 0.57, 0.58, 0.999999, 0.9999999, 1.0, 1e-7]
        samples = [
            Sample(0, measure, START_MS + 1 + place, value)
            for place, value in enumerate(values)
            for measure in (Measure.DUTY_CYCLE, Measure.MEMORY_ACTIVE)
        ]
        intake_of(bus).take(body_of(samples), Version.V2)
        rollup()
        self.check(warehouse, samples)

    def test_of_two_values_for_one_place_the_largest_of_a_step_counts_and_what_was_counted_stays(
        self, bus: Any, warehouse: Any, rollup: Any
    ) -> None:
        def at(value: float) -> Sample:
            return Sample(0, Measure.DUTY_CYCLE, START_MS + 600_000, value)

        for value in (0.25, 0.75, 0.5):
            intake_of(bus).take(body_of([at(value)]), Version.V2)
        rollup()
        counted = stored_rows(warehouse, USAGE_TABLES[0])
        candidates = (0.25, 0.75, 0.5) if self.EARLIER_VALUE_MAY_COUNT else (0.75,)
        assert counted in [expected_rows([at(value)], USAGE_TABLES[0]) for value in candidates]
        intake_of(bus).take(body_of([at(0.9)]), Version.V2)
        rollup()
        assert stored_rows(warehouse, USAGE_TABLES[0]) == counted

    def test_clusters_are_kept_apart(self, bus: Any, warehouse: Any, rollup: Any) -> None:
        sample = Sample(0, Measure.DUTY_CYCLE, START_MS + 600_000, 0.5)
        for cluster in ("c1", "../../c1", ""):
            intake_of(bus).take(body_of([sample], cluster=cluster), Version.V2)
        rollup()
        assert warehouse.clusters() == ("../../c1", "c1", "home")
        for cluster in warehouse.clusters():
            for table in USAGE_TABLES[:1]:
                assert stored_rows(warehouse, table, cluster) == expected_rows([sample], table)
