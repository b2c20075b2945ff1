"""One card tells what it can, and nothing that it can't: the traps of GPU figures are met here on the real pynvml."""

from pathlib import Path

import pytest

from exporter.nvml.calls import ASK_AGAIN_SECONDS, CardLost, LibraryLost
from exporter.nvml.figures import Activity, CardFigures, ClockReason, ComputeMode, Counter, Gauge
from exporter.nvml.library import NvmlLibrary
from tests.exporter.nvml.drivers import Clock, card_reader
from tests.exporter.nvml.standin import A100, FIELDS, GIB, GPM, H100, T4, StandInWorld

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, UNKNOWN = 3, 4, 13, 999
UINT_NONE = 2**32 - 1
CAPABLE = {**H100, "gpm": GPM, "fields": FIELDS}


def figures_of(world: StandInWorld, library: NvmlLibrary, samples: int = 1, /, **card: object) -> CardFigures:
    world.card(**card).write()
    reader = card_reader(library)
    for _ in range(samples):
        reader.sample()
    return reader.read()


def mean(figures: CardFigures, activity: Activity) -> float | None:
    spread = figures.activities.get(activity)
    return None if spread is None else spread.mean


def test_hopper_card_tells_what_its_counters_saw(world: StandInWorld, library: NvmlLibrary) -> None:
    found = figures_of(world, library, **CAPABLE, util=90)
    assert mean(found, Activity.DUTY_CYCLE) == pytest.approx(0.9)
    assert mean(found, Activity.SM_ACTIVE) == pytest.approx(0.4)
    assert mean(found, Activity.MEMORY_ACTIVE) == pytest.approx(0.2)
    assert mean(found, Activity.TENSOR_ACTIVE) == pytest.approx(0.3)
    assert mean(found, Activity.PCIE_TRANSMIT) == 100 * 1024 * 1024
    assert mean(found, Activity.NVLINK_RECEIVE) == 7 * 1024 * 1024


def test_old_card_without_gpm_has_a_duty_cycle_and_no_sm_activity(world: StandInWorld, library: NvmlLibrary) -> None:
    # A duty cycle is no SM activity: one tiny kernel makes it 100 %. It must not stand in where GPM is missing.
    found = figures_of(world, library, **T4, util=100)
    assert mean(found, Activity.DUTY_CYCLE) == 1.0
    assert Activity.SM_ACTIVE not in found.activities
    assert Activity.MEMORY_ACTIVE not in found.activities


def test_card_under_mig_has_no_duty_cycle(world: StandInWorld, library: NvmlLibrary) -> None:
    found = figures_of(world, library, **A100, mig=1)
    assert found.mig_mode is True
    assert Activity.DUTY_CYCLE not in found.activities
    assert Activity.ENCODER not in found.activities
    assert mean(found, Activity.POWER) == 100.0


def test_transcoder_that_runs_no_kernel_is_seen_at_its_engines(world: StandInWorld, library: NvmlLibrary) -> None:
    found = figures_of(world, library, **T4, util=0, enc=80, dec=60, jpg=5, ofa=1)
    assert mean(found, Activity.DUTY_CYCLE) == 0.0
    engines = (Activity.ENCODER, Activity.DECODER, Activity.JPEG, Activity.OPTICAL_FLOW)
    assert [mean(found, engine) for engine in engines] == pytest.approx([0.8, 0.6, 0.05, 0.01])


def test_engine_that_has_no_function_of_its_own_is_seen_by_the_cards_counters(
    world: StandInWorld, library: NvmlLibrary
) -> None:
    world.line("err", fn="nvmlDeviceGetJpgUtilization", ret=3)
    found = figures_of(world, library, **{**CAPABLE, "gpm": {**GPM, 40: 70, 41: 20}}, dec=5)
    assert mean(found, Activity.JPEG) == pytest.approx(0.7)
    assert mean(found, Activity.DECODER) == pytest.approx(0.05)


def test_burst_between_two_readings_is_in_the_peak(world: StandInWorld, library: NvmlLibrary) -> None:
    found = figures_of(world, library, 4, **T4, util=[0, 0, 100, 0, 0])
    spread = found.activities[Activity.DUTY_CYCLE]
    assert (spread.mean, spread.peak, spread.samples) == pytest.approx((0.2, 1.0, 5))


def test_burst_between_two_sub_samples_is_in_the_drivers_buffer(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4, util=0, samples=[0, 0, 0, 95, 0]).write()
    reader = card_reader(library)
    spread = reader.read().activities[Activity.DUTY_CYCLE]
    assert (spread.mean, spread.peak) == pytest.approx((0.19, 0.95))
    # The buffer still holds what was read: it must not count again.
    spread = reader.read().activities[Activity.DUTY_CYCLE]
    assert (spread.mean, spread.peak) == (0.0, 0.0)


def test_sub_samples_count_for_one_reading_only(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4, util=[100, 100, 0]).write()
    reader = card_reader(library)
    reader.sample()
    assert reader.read().activities[Activity.DUTY_CYCLE].mean == 1.0
    assert reader.read().activities[Activity.DUTY_CYCLE].peak == 0.0


def test_reserved_framebuffer_is_not_counted_as_used(world: StandInWorld, library: NvmlLibrary) -> None:
    memory = figures_of(world, library, **H100).framebuffer
    assert memory is not None
    assert (memory.total_bytes, memory.used_bytes, memory.reserved_bytes) == (80 * GIB, 10 * GIB, GIB)
    assert memory.free_bytes == 69 * GIB


def test_driver_without_reserved_framebuffer_counts_it_as_used(world: StandInWorld, library: NvmlLibrary) -> None:
    world.line("err", fn="nvmlDeviceGetMemoryInfo_v2", ret=FUNCTION_NOT_FOUND)
    memory = figures_of(world, library, **H100).framebuffer
    assert memory is not None
    assert (memory.used_bytes, memory.reserved_bytes) == (11 * GIB, None)


@pytest.mark.parametrize("used", [90 * GIB, 2**64 - 1])
def test_framebuffer_beyond_the_card_is_absent(world: StandInWorld, library: NvmlLibrary, used: int) -> None:
    found = figures_of(world, library, **{**H100, "used": used})
    assert found.framebuffer is None
    assert Activity.FRAMEBUFFER_USED not in found.activities


def test_utilisation_above_100_percent_is_absent(world: StandInWorld, library: NvmlLibrary) -> None:
    found = figures_of(world, library, **{**H100, "gpm": {2: 140, 10: 20}}, util=101, enc=UINT_NONE)
    assert Activity.DUTY_CYCLE not in found.activities
    assert Activity.ENCODER not in found.activities
    assert Activity.SM_ACTIVE not in found.activities
    assert mean(found, Activity.MEMORY_ACTIVE) == pytest.approx(0.2)


def test_marks_of_not_available_are_absent(world: StandInWorld, library: NvmlLibrary) -> None:
    card = {**H100, "fields": {**FIELDS, 83: -1, 3: -1}}
    found = figures_of(
        world, library, **card, power=UINT_NONE, temp=UINT_NONE, limit=UINT_NONE, smclock=UINT_NONE, pstate=32,
        energy=2**64 - 1,
    )  # fmt: skip
    assert Activity.POWER not in found.activities
    assert Counter.ENERGY not in found.counters
    assert Counter.ECC_CORRECTED not in found.counters
    absent = {Gauge.TEMPERATURE, Gauge.POWER_LIMIT, Gauge.SM_CLOCK, Gauge.PERFORMANCE_STATE}
    assert absent.isdisjoint(found.gauges)
    assert found.gauges[Gauge.MEMORY_CLOCK] == 1593e6


def test_counters_come_in_base_units(world: StandInWorld, library: NvmlLibrary) -> None:
    found = figures_of(world, library, **CAPABLE)
    assert found.counters[Counter.ENERGY] == pytest.approx(123_456.0)
    assert found.counters[Counter.HELD_BACK_BY_POWER] == pytest.approx(2.0)
    assert found.counters[Counter.NVLINK_TRANSMIT] == 1024 * 1024
    assert found.counters[Counter.PCIE_RECEIVE] == 2e12
    assert found.counters[Counter.ECC_CORRECTED] == 5
    assert found.counters[Counter.ROWS_REMAPPED_UNCORRECTABLE] == 2
    assert found.gauges[Gauge.MEMORY_TEMPERATURE] == 61


def test_counter_that_starts_anew_is_told_as_it_is(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**CAPABLE).write()
    reader = card_reader(library)
    before = reader.read().counters[Counter.ENERGY]
    world.card(0, fields={**FIELDS, 83: 5000}).write()
    after = reader.read().counters[Counter.ENERGY]
    assert (before, after) == pytest.approx((123_456.0, 5.0))


def test_card_without_field_values_tells_energy_and_rows_by_their_own_functions(
    world: StandInWorld, library: NvmlLibrary
) -> None:
    world.line("err", fn="nvmlDeviceGetFieldValues", ret=FUNCTION_NOT_FOUND)
    found = figures_of(world, library, **CAPABLE, energy=7000)
    assert found.counters[Counter.ENERGY] == pytest.approx(7.0)
    assert found.counters[Counter.ROWS_REMAPPED_CORRECTABLE] == 1
    assert Counter.ECC_CORRECTED not in found.counters


def test_pcie_traffic_of_a_card_without_gpm_is_looked_at_once_per_reading(
    world: StandInWorld, library: NvmlLibrary
) -> None:
    found = figures_of(world, library, 3, **T4, pcietx=10, pcierx=20)
    spread = found.activities[Activity.PCIE_TRANSMIT]
    assert (spread.mean, spread.samples) == (10 * 1024.0, 1)
    assert mean(found, Activity.PCIE_RECEIVE) == 20 * 1024.0


def test_reason_that_holds_clocks_down_is_told_as_a_share(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4, reasons=0x24).write()
    reader = card_reader(library)
    reader.sample()
    world.card(0, reasons=0).write()
    held_back = reader.read().held_back
    assert held_back is not None
    assert held_back[ClockReason.SOFTWARE_POWER_CAP] == 0.5
    assert held_back[ClockReason.SOFTWARE_THERMAL] == 0.5
    assert held_back[ClockReason.HARDWARE_SLOWDOWN] == 0.0


def test_reasons_are_absent_where_the_card_does_not_tell(world: StandInWorld, library: NvmlLibrary) -> None:
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        world.line("err", fn=name, ret=NOT_SUPPORTED)
    assert figures_of(world, library, **T4).held_back is None


def test_compute_mode_is_a_word(world: StandInWorld, library: NvmlLibrary) -> None:
    assert figures_of(world, library, **T4, computemode=3).compute_mode is ComputeMode.EXCLUSIVE_PROCESS


@pytest.mark.parametrize("refusal", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
def test_what_is_refused_is_absent_and_left_alone_for_a_while(
    world: StandInWorld, library: NvmlLibrary, refusal: int
) -> None:
    world.card(**T4, power=70_000).line("err", fn="nvmlDeviceGetPowerUsage", ret=refusal).write()
    clock = Clock()
    reader = card_reader(library, clock=clock)
    assert Activity.POWER not in reader.read().activities
    world.without("err").write()
    assert Activity.POWER not in reader.read().activities
    clock.now += ASK_AGAIN_SECONDS
    assert mean(reader.read(), Activity.POWER) == 70.0


def test_what_failed_once_is_asked_again_at_once(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).line("err", fn="nvmlDeviceGetPowerUsage", ret=UNKNOWN).write()
    reader = card_reader(library)
    found = reader.read()
    assert Activity.POWER not in found.activities
    assert found.failed_calls[("nvmlDeviceGetPowerUsage", "unknown")] == 1
    world.without("err").write()
    assert mean(reader.read(), Activity.POWER) == 100.0


def test_unsupported_field_is_not_asked_for_every_time(
    world: StandInWorld, library: NvmlLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.card(**T4).write()
    reader = card_reader(library)
    reader.read()
    trace = tmp_path / "trace"
    monkeypatch.setenv("NVML_STANDIN_TRACE", str(trace))
    reader.read()
    called = [line.split()[1] for line in trace.read_text().splitlines()]
    assert "nvmlDeviceGetFieldValues" not in called
    assert "nvmlGpmQueryDeviceSupport" not in called
    assert "nvmlDeviceGetPowerUsage" in called


def test_lost_card_says_so_and_can_do_all_again_when_it_is_back(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**CAPABLE).line("err", fn="nvmlDeviceGetPowerUsage", ret=NOT_SUPPORTED).write()
    reader = card_reader(library)
    assert Activity.POWER not in reader.read().activities
    world.card(0, lost=1).without("err").write()
    with pytest.raises(CardLost):
        reader.read()
    with pytest.raises(CardLost):
        reader.sample()
    world.card(0, lost=0).write()
    found = reader.read()
    assert mean(found, Activity.POWER) == 100.0
    reader.sample()
    assert mean(reader.read(), Activity.SM_ACTIVE) == pytest.approx(0.4)


def test_other_card_in_the_same_place_is_not_taken_for_the_lost_one(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).write()
    reader = card_reader(library)
    reader.read()
    world.card(0, lost=1).write()
    with pytest.raises(CardLost):
        reader.read()
    world.card(0, lost=0, uuid="GPU-another").write()
    with pytest.raises(CardLost):
        reader.read()


def test_restarted_driver_is_told_apart_from_a_lost_card(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**T4).write()
    reader = card_reader(library)
    reader.read()
    world.system(generation=1).write()
    with pytest.raises(LibraryLost):
        reader.read()
    assert library.start_anew(1.0)
    assert mean(reader.read(), Activity.POWER) == 100.0
