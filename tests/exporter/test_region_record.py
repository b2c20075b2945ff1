"""What one region is believed to say, figure by figure: every bound, every lie, every habit of the library."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.regions.decode import DutyDoubt
from fleet.errors import Unavailable
from fleet.regions.doubts import RegionDoubt
from fleet.regions.layouts import LayoutName
from tests.exporter.region_record import RegionCard, RegionRecord, read_region
from tests.regions.plain_regions import (
    MAGIC,
    MIB,
    NOW,
    PLAIN,
    PlainProcess,
    PlainRegion,
    judge,
    write_open_region,
    write_region,
)

CARD = PlainRegion().cards[0]
OTHER = "MIG-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
FRAMEBUFFERS = {CARD: 40960.0 * MIB}


def read(tmp_path: Path, region: PlainRegion) -> RegionRecord:
    write_region(tmp_path / "region", region)
    return read_region(tmp_path / "region", framebuffers=FRAMEBUFFERS, now_seconds=NOW)


def card_of(tmp_path: Path, region: PlainRegion) -> tuple[RegionCard, tuple[RegionDoubt, ...]]:
    record = read(tmp_path, region)
    return record.cards[0], record.doubts


def with_process(**changes: int) -> PlainRegion:
    return PlainRegion(processes=(replace(PlainProcess(), **changes),))


@pytest.mark.parametrize("layout", LayoutName)
def test_healthy_region_is_trusted_in_every_layout(layout: LayoutName, tmp_path: Path) -> None:
    record = read(tmp_path, PlainRegion(layout=layout, cards=(CARD, OTHER)))
    assert (record.layout, record.is_trusted) == (layout, True)
    assert [card.card for card in record.cards] == [CARD, OTHER]
    card = record.cards[1]
    assert card.framebuffer_used_bytes == 1320 * MIB
    assert (card.framebuffer_context_bytes, card.framebuffer_module_bytes) == (300 * MIB, 20 * MIB)
    assert (card.framebuffer_data_bytes, card.framebuffer_of_driver_bytes) == (1000 * MIB, 1400 * MIB)
    assert (card.framebuffer_limit_bytes, card.compute_limit_ratio) == (4000 * MIB, 0.3)
    assert card.duty_cycle_ratio == (None if layout is LayoutName.PRE_V0 else 0.35)
    assert (record.priority, record.is_blocked, record.is_recently_active) == (1, False, True)
    assert record.is_compute_limited
    assert record.last_kernel_at_seconds == (NOW - 12 if PLAIN[layout].has_time else None)


def test_first_process_is_shown_with_its_host_pid_and_its_use(tmp_path: Path) -> None:
    record = read(tmp_path, PlainRegion(processes=(PlainProcess(), PlainProcess(pid=8, host_pid=0, status=2))))
    first, second = record.processes
    assert (first.slot, first.pid, first.host_pid, first.is_suspended) == (0, 7, 7007, False)
    assert (second.slot, second.pid, second.host_pid, second.is_suspended) == (1, 8, None, True)
    assert first.framebuffer_used_bytes == (1320 * MIB,)


def test_blocked_container_is_told(tmp_path: Path) -> None:
    record = read(tmp_path, PlainRegion(recent_kernel=-1, switch=0, priority=0))
    assert (record.is_blocked, record.is_recently_active) == (True, False)
    assert (record.is_compute_limited, record.priority) == (False, 0)


def test_no_limit_is_absent_and_no_compute_limit_is_the_whole_card(tmp_path: Path) -> None:
    card, doubts = card_of(tmp_path, PlainRegion(limit=0, sm_limit=0))
    assert (card.framebuffer_limit_bytes, card.compute_limit_ratio, doubts) == (None, 1.0, ())


def test_use_above_its_limit_is_shown_and_believed(tmp_path: Path) -> None:
    # A second process that was told too much free framebuffer, or a limit that was lowered: the tenant's real use.
    processes = (PlainProcess(), PlainProcess(pid=8, data=9000 * MIB))
    card, doubts = card_of(tmp_path, PlainRegion(processes=processes, limit=4000 * MIB))
    assert (card.framebuffer_used_bytes, card.framebuffer_limit_bytes) == (10640 * MIB, 4000 * MIB)
    assert doubts == ()


def test_dead_processes_do_not_count(tmp_path: Path) -> None:
    dead = (PlainProcess(pid=0), PlainProcess(pid=8, status=0))
    record = read(tmp_path, PlainRegion(processes=(PlainProcess(), *dead)))
    assert record.cards[0].framebuffer_used_bytes == 1320 * MIB
    assert (len(record.processes), record.is_trusted) == (1, True)


def test_slots_behind_the_number_of_processes_are_leftovers(tmp_path: Path) -> None:
    record = read(tmp_path, PlainRegion(processes=(PlainProcess(), PlainProcess(pid=8)), process_count=1))
    assert record.cards[0].framebuffer_used_bytes == 1320 * MIB
    assert record.is_trusted


def test_every_one_of_a_thousand_processes_counts(tmp_path: Path) -> None:
    processes = tuple(PlainProcess(pid=pid, context=MIB, module=0, data=0, monitor=MIB) for pid in range(1, 1025))
    record = read(tmp_path, PlainRegion(processes=processes))
    assert (len(record.processes), record.doubts) == (1024, ())
    assert record.cards[0].framebuffer_used_bytes == 1024 * MIB


@pytest.mark.parametrize(
    ("region", "doubt"),
    [
        (PlainRegion(magic=0), RegionDoubt.UNINITIALISED),
        (PlainRegion(magic=MAGIC + 1), RegionDoubt.UNINITIALISED),
        (PlainRegion(minor=3), RegionDoubt.UNKNOWN_VERSION),
        (PlainRegion(major=2), RegionDoubt.UNKNOWN_VERSION),
        (PlainRegion(layout="v1.1-odd", minor=2), RegionDoubt.UNKNOWN_VERSION),
        (PlainRegion(card_count=17), RegionDoubt.CARD_COUNT_IMPOSSIBLE),
        (PlainRegion(card_count=2**64 - 1), RegionDoubt.CARD_COUNT_IMPOSSIBLE),
        (PlainRegion(card_count=0), RegionDoubt.NO_CARDS),
        (PlainRegion(card_count=2), RegionDoubt.NO_CARDS),
        (PlainRegion(cards=("GPU-1",)), RegionDoubt.CARD_ID_MALFORMED),
        (PlainRegion(cards=(CARD.lower(),)), RegionDoubt.CARD_ID_MALFORMED),
        (PlainRegion(cards=(CARD + '",namespace="kube-system',)), RegionDoubt.CARD_ID_MALFORMED),
        (PlainRegion(cards=(CARD, CARD)), RegionDoubt.CARD_REPEATED),
        (PlainRegion(process_count=-1), RegionDoubt.PROCESS_COUNT_IMPOSSIBLE),
        (PlainRegion(process_count=1025), RegionDoubt.PROCESS_COUNT_IMPOSSIBLE),
        (with_process(pid=-7), RegionDoubt.PROCESS_IMPOSSIBLE),
        (with_process(pid=2**22 + 1), RegionDoubt.PROCESS_IMPOSSIBLE),
        (with_process(host_pid=-1), RegionDoubt.PROCESS_IMPOSSIBLE),
        (with_process(status=3), RegionDoubt.PROCESS_IMPOSSIBLE),
        (PlainRegion(processes=(PlainProcess(), PlainProcess())), RegionDoubt.PROCESS_IMPOSSIBLE),
    ],
)
def test_region_in_doubt_shows_no_figure(region: PlainRegion, doubt: RegionDoubt, tmp_path: Path) -> None:
    record = read(tmp_path, region)
    assert record.doubts == (doubt,)
    assert (record.cards, record.processes, record.priority, record.is_blocked) == ((), (), None, None)


@pytest.mark.parametrize(
    ("region", "doubt"),
    [
        (with_process(data=-4096), RegionDoubt.FRAMEBUFFER_UNDERFLOWED),
        (with_process(data=40960 * MIB), RegionDoubt.FRAMEBUFFER_ABOVE_CARD),
        (with_process(total=1320 * MIB + 1), RegionDoubt.FRAMEBUFFER_PARTS_DISAGREE),
        (
            with_process(context=2**63 - 1, module=2**63 - 1, data=MIB + 2, total=MIB),
            RegionDoubt.FRAMEBUFFER_PARTS_DISAGREE,
        ),
    ],
)
def test_usage_in_doubt_is_absent_and_the_rest_stays(region: PlainRegion, doubt: RegionDoubt, tmp_path: Path) -> None:
    card, doubts = card_of(tmp_path, region)
    assert doubt in doubts
    assert card.framebuffer_used_bytes is None
    assert (card.framebuffer_context_bytes, card.framebuffer_data_bytes) == (None, None)
    assert (card.framebuffer_limit_bytes, card.framebuffer_of_driver_bytes) == (4000 * MIB, 1400 * MIB)


def test_seventeen_terabytes_of_a_card_of_unknown_size_are_not_believed(tmp_path: Path) -> None:
    card, doubts = card_of(tmp_path, PlainRegion(cards=(OTHER,), processes=(PlainProcess(data=17 * 10**12),)))
    assert (card.framebuffer_used_bytes, doubts) == (None, (RegionDoubt.FRAMEBUFFER_ABOVE_CARD,))


def test_doubt_about_one_card_leaves_the_other_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "region"
    write_region(path, PlainRegion(cards=(CARD, OTHER)))
    plain = PLAIN["v1.2"]
    with path.open("r+b") as file:
        file.seek(plain.procs + plain.used + plain.used_step + 32)  # the second card's total
        file.write((5).to_bytes(8, "little"))
    record = read_region(path, framebuffers=FRAMEBUFFERS, now_seconds=NOW)
    assert record.doubts == (RegionDoubt.FRAMEBUFFER_PARTS_DISAGREE,)
    assert [card.framebuffer_used_bytes for card in record.cards] == [1320 * MIB, None]


@pytest.mark.parametrize(
    ("region", "doubt", "field", "value"),
    [
        (PlainRegion(limit=2**44 + 1), RegionDoubt.FRAMEBUFFER_LIMIT_IMPOSSIBLE, "framebuffer_limit_bytes", None),
        (PlainRegion(sm_limit=101), RegionDoubt.COMPUTE_LIMIT_IMPOSSIBLE, "compute_limit_ratio", None),
        (with_process(sm_util=101), RegionDoubt.UTILISATION_IMPOSSIBLE, "duty_cycle_ratio", None),
        (with_process(monitor=2**50), RegionDoubt.FRAMEBUFFER_ABOVE_CARD, "framebuffer_of_driver_bytes", None),
    ],
)
def test_impossible_figure_of_a_card_is_absent_alone(
    region: PlainRegion, doubt: RegionDoubt, field: str, value: object, tmp_path: Path
) -> None:
    card, doubts = card_of(tmp_path, region)
    assert doubts == (doubt,)
    assert getattr(card, field) is value
    assert card.framebuffer_used_bytes == 1320 * MIB


@pytest.mark.parametrize(
    ("region", "doubt", "field"),
    [
        (PlainRegion(recent_kernel=-2), RegionDoubt.STATE_IMPOSSIBLE, "is_blocked"),
        (PlainRegion(recent_kernel=5), RegionDoubt.STATE_IMPOSSIBLE, "is_recently_active"),
        (PlainRegion(switch=2), RegionDoubt.STATE_IMPOSSIBLE, "is_compute_limited"),
        (PlainRegion(priority=-1), RegionDoubt.STATE_IMPOSSIBLE, "priority"),
        (PlainRegion(priority=101), RegionDoubt.STATE_IMPOSSIBLE, "priority"),
        (
            PlainRegion(last_kernel_time=int(NOW) + 60),
            RegionDoubt.LAST_KERNEL_TIME_IMPOSSIBLE,
            "last_kernel_at_seconds",
        ),
        (PlainRegion(last_kernel_time=5), RegionDoubt.LAST_KERNEL_TIME_IMPOSSIBLE, "last_kernel_at_seconds"),
    ],
)
def test_impossible_state_is_absent_alone(region: PlainRegion, doubt: RegionDoubt, field: str, tmp_path: Path) -> None:
    record = read(tmp_path, region)
    assert record.doubts == (doubt,)
    assert getattr(record, field) is None
    assert record.cards[0].framebuffer_used_bytes == 1320 * MIB


def test_time_that_was_never_written_is_absent_without_a_doubt(tmp_path: Path) -> None:
    record = read(tmp_path, PlainRegion(last_kernel_time=0))
    assert (record.last_kernel_at_seconds, record.doubts) == (None, ())


@pytest.mark.parametrize("size", [0, 3, 1856, 2_008_952, 2_008_954, 2_008_984])
def test_file_of_another_size_is_no_region(size: int, tmp_path: Path) -> None:
    write_region(tmp_path / "region", PlainRegion())
    os.truncate(tmp_path / "region", size)
    record = read_region(tmp_path / "region", framebuffers={}, now_seconds=NOW)
    assert (record.layout, record.doubts) == (None, (RegionDoubt.UNKNOWN_SIZE,))


def test_region_of_an_old_release_that_a_new_one_grew_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    write_region(tmp_path / "region", PlainRegion(layout="v0"))
    os.truncate(tmp_path / "region", PLAIN["v1.2"].size)
    record = read_region(tmp_path / "region", framebuffers={}, now_seconds=NOW)
    assert (record.doubts, record.cards) == ((RegionDoubt.UNKNOWN_VERSION,), ())


def test_region_of_1_1_that_release_2_8_1_grew_is_not_believed(tmp_path: Path) -> None:
    write_region(tmp_path / "region", PlainRegion(layout="v1.1"))
    os.truncate(tmp_path / "region", PLAIN["v1.1-odd"].size)
    record = read_region(tmp_path / "region", framebuffers={}, now_seconds=NOW)
    assert record.cards == ()
    assert not record.is_trusted


def test_absent_file_is_unreadable(tmp_path: Path) -> None:
    record = read_region(tmp_path / "region", framebuffers={}, now_seconds=NOW)
    assert record == RegionRecord(doubts=(RegionDoubt.UNREADABLE,))


def test_call_that_takes_too_long_is_unavailable(tmp_path: Path) -> None:
    write_region(tmp_path / "region", PlainRegion())
    with pytest.raises(Unavailable, match="in time"):
        read_region(tmp_path / "region", framebuffers={}, now_seconds=NOW, deadline_seconds=-1)


# --- the duty cycle, and when a 0 is none ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "ratio", "doubt"),
    [
        ((PlainProcess(),), 0.35, DutyDoubt.MEASURED),
        ((), 0.0, DutyDoubt.MEASURED),
        ((PlainProcess(sm_util=0),), 0.0, DutyDoubt.MEASURED),  # the driver's view stands there: a real 0
        ((PlainProcess(sm_util=0, monitor=0),), None, DutyDoubt.BETWEEN_REFILLS),
        ((PlainProcess(sm_util=0, monitor=0, host_pid=0),), None, DutyDoubt.NO_HOST_PID),
        ((PlainProcess(sm_util=0, monitor=0, context=0, module=0, data=0),), 0.0, DutyDoubt.MEASURED),
        ((PlainProcess(sm_util=60), PlainProcess(pid=8, sm_util=60)), 1.0, DutyDoubt.MEASURED),
        ((PlainProcess(sm_util=60), PlainProcess(pid=8, sm_util=0, monitor=0)), 0.6, DutyDoubt.MEASURED),
        ((PlainProcess(sm_util=0), PlainProcess(pid=8, sm_util=0, monitor=0, host_pid=0)), None, DutyDoubt.NO_HOST_PID),
        ((PlainProcess(sm_util=101),), None, DutyDoubt.IMPOSSIBLE),
    ],
)
def test_zero_that_was_not_measured_is_absent(
    processes: tuple[PlainProcess, ...], ratio: float | None, doubt: DutyDoubt, tmp_path: Path
) -> None:
    card, _ = card_of(tmp_path, PlainRegion(processes=processes))
    assert (card.duty_cycle_ratio, card.duty_doubt) == (ratio, doubt)


def test_layout_without_utilisation_has_no_duty_cycle(tmp_path: Path) -> None:
    card, doubts = card_of(tmp_path, PlainRegion(layout="pre-v0"))
    assert (card.duty_cycle_ratio, card.duty_doubt, doubts) == (None, DutyDoubt.NOT_RECORDED, ())


def test_framebuffer_that_the_driver_can_not_tell_is_absent_without_a_doubt(tmp_path: Path) -> None:
    card, doubts = card_of(tmp_path, with_process(monitor=2**64 - 1))
    assert (card.framebuffer_of_driver_bytes, doubts) == (None, ())


def test_seqlock_that_a_killed_process_left_odd_does_not_hide_its_usage(tmp_path: Path) -> None:
    card, doubts = card_of(tmp_path, with_process(seqlock=5))
    assert (card.framebuffer_used_bytes, doubts) == (1320 * MIB, ())


# --- whatever a tenant writes ----------------------------------------------------------------------------------------

WORDS = st.sampled_from((0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**43, 2**63, 2**64 - 1)) | st.integers(0, 2**64 - 1)


@given(
    layout=st.sampled_from(list(PLAIN)),
    writes=st.lists(st.tuples(st.integers(0, 4000), WORDS, st.sampled_from((1, 4, 8))), max_size=6),
    tail=st.none() | st.binary(min_size=24, max_size=24),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_as_the_naive_reader_reads_them(
    layout: str, writes: list[tuple[int, int, int]], tail: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "region"
    with path.open("w+b") as file:
        write_open_region(file.fileno(), PlainRegion(layout=layout))
        for offset, word, size in writes:
            os.pwrite(file.fileno(), (word % 256**size).to_bytes(size, "little"), offset)
        if tail is not None:
            os.pwrite(file.fileno(), tail, PLAIN[layout].proc_num)
        verdict = judge(file.fileno(), FRAMEBUFFERS)
    record = read_region(path, framebuffers=FRAMEBUFFERS, now_seconds=NOW)
    assert record.is_trusted == verdict.is_trusted
    assert [card.card for card in record.cards] == list(verdict.cards)
    assert [card.framebuffer_used_bytes for card in record.cards] == [card.used for card in verdict.cards.values()]
    assert [card.duty_cycle_ratio for card in record.cards] == [card.duty for card in verdict.cards.values()]
