"""All regions of a node, reading after reading."""

import os
import shutil
import struct
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exporter.regions.columns import CardFacts, HamiReading, SliceColumns
from exporter.regions.decode import DutyDoubt
from exporter.regions.looks import SLOTS_MAX
from exporter.regions.reader import HamiReader
from exporter.regions.slices import LYING_READINGS
from fleet.errors import Unavailable
from fleet.regions.doubts import RegionDoubt, doubts_of
from fleet.regions.layouts import LayoutName
from tests.regions.plain_regions import MIB, NOW, PLAIN, PlainProcess, PlainRegion, write_region

CARDS = tuple(f"GPU-{number:08x}-0000-4000-8000-{number:012x}" for number in range(8))
BUSY = {card: CardFacts(framebuffer_bytes=40960.0 * MIB, duty_cycle_ratio=0.9) for card in CARDS}
IDLE = {card: CardFacts(framebuffer_bytes=40960.0 * MIB, duty_cycle_ratio=0.0) for card in CARDS}
ZERO = PlainProcess(sm_util=0)


def place(root: Path, pod: int, region: PlainRegion | None, container: str = "main") -> Path:
    """Make a container's directory, with a region unless it is None; the region's path."""
    made = root / f"{pod:08x}-0000-4000-8000-000000000000_{container}"
    made.mkdir()
    path = made / f"{pod:08x}-1111-4000-8000-000000000000.cache"
    if region is not None:
        write_region(path, region)
    return path


def on(card: int, *cards: int, **changes: object) -> PlainRegion:
    return replace(PlainRegion(cards=tuple(CARDS[number] for number in (card, *cards))), **changes)  # type: ignore[arg-type]


def read(reader: HamiReader, cards: dict[str, CardFacts] = BUSY) -> HamiReading:
    return reader.read(cards, now_seconds=NOW, deadline_seconds=30)


def names(slices: SliceColumns) -> list[tuple[int, str, str]]:
    return [(int(key.container.pod_uid[:8], 16), key.container.container, key.card) for key in slices.keys]


def doubts(reading: HamiReading) -> tuple[tuple[RegionDoubt, ...], ...]:
    return tuple(doubts_of(bits) for bits in reading.containers.doubts.tolist())


def poke(path: Path, offset: int, form: str, *values: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack(form, *values))


def test_containers_and_cards_come_in_order_whatever_their_layouts(tmp_path: Path) -> None:
    place(tmp_path, 3, on(0, layout="v0"))
    place(tmp_path, 1, on(2, 1, layout="v1.1-odd", limit=111 * MIB))
    place(tmp_path, 1, on(0, processes=tuple(PlainProcess(pid=pid) for pid in (1, 2, 3))), "sidecar")
    place(tmp_path, 2, None)
    place(tmp_path, 4, on(5, 6, 7, layout="pre-v0", processes=()))
    reading = read(HamiReader(tmp_path))
    assert names(reading.slices) == [
        (1, "main", CARDS[2]), (1, "main", CARDS[1]), (1, "sidecar", CARDS[0]), (3, "main", CARDS[0]),
        (4, "main", CARDS[5]), (4, "main", CARDS[6]), (4, "main", CARDS[7]),
    ]  # fmt: skip
    assert reading.slices.containers.tolist() == [0, 0, 1, 3, 4, 4, 4]
    one = 1320.0 * MIB
    assert reading.slices.framebuffer_used.tolist() == [one, one, 3 * one, one, 0, 0, 0]
    assert reading.slices.framebuffer_limit.tolist() == [111.0 * MIB] * 2 + [4000.0 * MIB] * 5
    assert reading.slices.duty_cycle.tolist()[:4] == [0.35, 0.35, 1.0, 0.35]
    assert reading.containers.layouts == (
        LayoutName.V1_1_ODD, LayoutName.V1_2, None, LayoutName.V0, LayoutName.PRE_V0,
    )  # fmt: skip
    assert reading.containers.has_region.tolist() == [True, True, False, True, True]
    assert reading.containers.processes.tolist()[:2] == [1, 3]
    assert np.isnan(reading.containers.processes[2])
    assert reading.processes.containers.tolist() == [0, 1, 1, 1, 3]
    assert reading.processes.pids.tolist() == [7, 1, 2, 3, 7]
    assert reading.processes.host_pids.tolist() == [7007] * 5
    assert doubts(reading) == ((),) * 5


def test_columns_follow_the_regions_without_new_keys(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0))
    place(tmp_path, 2, on(1))
    reader = HamiReader(tmp_path)
    first = read(reader)
    poke(path, PLAIN["v1.2"].limit, "<Q", 55 * MIB)
    second = read(reader)
    assert second.slices.framebuffer_limit.tolist() == [55.0 * MIB, 4000.0 * MIB]
    assert second.slices.keys is first.slices.keys
    assert second.containers.keys is first.containers.keys


def test_pods_come_and_go(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0))
    reader = HamiReader(tmp_path)
    assert names(read(reader).slices) == [(1, "main", CARDS[0])]
    place(tmp_path, 2, on(1))
    assert [pod for pod, _, _ in names(read(reader).slices)] == [1, 2]
    shutil.rmtree(tmp_path / f"{1:08x}-0000-4000-8000-000000000000_main")
    gone = read(reader)
    assert [pod for pod, _, _ in names(gone.slices)] == [2]
    assert gone.slices.framebuffer_used.tolist() == [1320.0 * MIB]


def test_region_that_is_made_between_two_readings_is_followed_through_its_start(tmp_path: Path) -> None:
    path = place(tmp_path, 1, None)
    reader = HamiReader(tmp_path)
    assert not read(reader).containers.has_region[0]
    write_region(path, on(0, magic=0))  # the library writes the mark last
    assert doubts(read(reader)) == ((RegionDoubt.UNINITIALISED,),)
    poke(path, 0, "<i", 19920718)
    poke(path, PLAIN["v1.2"].num, "<Q", 0)
    assert doubts(read(reader)) == ((RegionDoubt.NO_CARDS,),)
    poke(path, PLAIN["v1.2"].num, "<Q", 1)
    reading = read(reader)
    assert (doubts(reading), names(reading.slices)) == (((),), [(1, "main", CARDS[0])])


def test_cards_that_become_others_are_seen(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0, 1))
    reader = HamiReader(tmp_path)
    read(reader)
    with path.open("r+b") as file:
        file.seek(PLAIN["v1.2"].uuids)
        file.write(CARDS[5].encode())
    assert names(read(reader).slices) == [(1, "main", CARDS[5]), (1, "main", CARDS[1])]


def test_processes_that_come_by_the_hundred_all_count(tmp_path: Path) -> None:
    small = tuple(PlainProcess(pid=pid, context=MIB, module=0, data=0, monitor=0) for pid in range(1, 401))
    path = place(tmp_path, 1, on(0, processes=small, process_count=1))
    reader = HamiReader(tmp_path)
    assert read(reader).containers.processes.tolist() == [1]
    poke(path, PLAIN["v1.2"].proc_num, "<i", 400)
    grown = read(reader)
    assert (grown.containers.processes.tolist(), doubts(grown)) == ([400], ((),))
    assert grown.slices.framebuffer_used.tolist() == [400.0 * MIB]
    poke(path, PLAIN["v1.2"].proc_num, "<i", 2)
    assert read(reader).containers.processes.tolist() == [2]


def test_region_cut_short_between_two_readings_is_told_and_harms_no_other(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0))
    place(tmp_path, 2, on(1))
    reader = HamiReader(tmp_path)
    read(reader)
    for size in (0, 100, 2_008_900):
        os.truncate(path, size)
        reading = read(reader)
        assert doubts(reading) == ((RegionDoubt.UNKNOWN_SIZE,), ())
        assert [pod for pod, _, _ in names(reading.slices)] == [2]


def test_region_that_its_tenant_cuts_while_it_is_read_does_no_harm(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0))
    place(tmp_path, 2, on(1))
    whole = path.read_bytes()
    has_ended = threading.Event()

    def cut_and_mend() -> None:
        fd = os.open(path, os.O_RDWR)
        while not has_ended.is_set():
            os.ftruncate(fd, 0)
            os.ftruncate(fd, len(whole))
            os.pwrite(fd, whole[:4096], 0)
            os.pwrite(fd, whole[-57:], len(whole) - 57)
        os.close(fd)

    tenant = threading.Thread(target=cut_and_mend)
    tenant.start()
    reader = HamiReader(tmp_path)
    told = Counter(doubts(read(reader)) for _ in range(200))
    has_ended.set()
    tenant.join()
    assert {others for _, others in told} == {()}
    assert any(first for first, _ in told)
    assert doubts(read(reader)) == ((), ())


def test_region_that_grew_is_told(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0))
    reader = HamiReader(tmp_path)
    read(reader)
    os.truncate(path, 3_000_000)
    assert doubts(read(reader)) == ((RegionDoubt.UNKNOWN_SIZE,),)


def test_region_becomes_another_layout_in_its_place(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0, layout="v1.1"))
    reader = HamiReader(tmp_path)
    assert read(reader).containers.layouts == (LayoutName.V1_1,)
    os.truncate(path, 0)
    path.unlink()
    write_region(path, on(0, layout="v1.1-dev"))
    reading = read(reader)
    assert (reading.containers.layouts, doubts(reading)) == ((LayoutName.V1_1_DEV,), ((),))


def test_layout_is_corrected_once_a_process_tells_it(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0, layout="v1.1-dev", process_count=0))
    reader = HamiReader(tmp_path)
    assert read(reader).containers.layouts == (LayoutName.V1_1,)  # nothing tells the two apart yet
    poke(path, PLAIN["v1.1-dev"].proc_num, "<i", 1)
    reading = read(reader)
    assert reading.containers.layouts == (LayoutName.V1_1_DEV,)
    assert reading.slices.framebuffer_used.tolist() == [1320.0 * MIB]


def test_slots_that_are_not_in_use_tell_no_layout(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0, layout="v1.1", processes=(PlainProcess(pid=1, status=0),)))
    plain = PLAIN["v1.1-dev"]
    # Behind the only process, what is left over looks like the other layout of this size and label.
    poke(path, plain.procs + plain.slot, "<i", 2)
    poke(path, plain.procs + plain.slot + plain.status, "<i", 1)
    reading = read(HamiReader(tmp_path))
    assert (reading.containers.layouts, doubts(reading)) == ((LayoutName.V1_1,), ((),))


def test_doubtful_region_shows_no_slice_and_says_why(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, cards=("GPU-nonsense",)))
    place(tmp_path, 2, on(1))
    reading = read(HamiReader(tmp_path))
    assert doubts(reading) == ((RegionDoubt.CARD_ID_MALFORMED,), ())
    assert [pod for pod, _, _ in names(reading.slices)] == [2]
    assert np.isnan(reading.containers.priority[0])


def test_claims_of_too_many_processes_are_refused_the_greatest_first(tmp_path: Path) -> None:
    for pod in range(40):
        place(tmp_path, pod, on(0, processes=(), process_count=1024))
    place(tmp_path, 90, on(1))
    reading = read(HamiReader(tmp_path))
    told = doubts(reading)
    assert told[-1] == ()  # the one that claims little is read
    assert told.count((RegionDoubt.TOO_MANY_PROCESSES,)) == 40 - (SLOTS_MAX // 1024 - 1)
    assert [pod for pod, _, _ in names(reading.slices)][-1] == 90


def test_reading_leaves_every_byte_as_it_was(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0))
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    reader = HamiReader(tmp_path)
    read(reader)
    read(reader)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_deadline_that_is_over_is_unavailable_and_the_next_reading_fine(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0))
    reader = HamiReader(tmp_path)
    with pytest.raises(Unavailable, match="in time"):
        reader.read({}, now_seconds=NOW, deadline_seconds=0.0)
    assert len(read(reader).slices.keys) == 1


def test_node_without_hami_has_an_empty_reading(tmp_path: Path) -> None:
    reading = read(HamiReader(tmp_path / "absent"))
    assert (reading.slices.keys, reading.containers.keys, len(reading.processes.pids)) == ((), (), 0)


def test_closing_twice_gives_every_file_back(tmp_path: Path) -> None:
    for pod in range(5):
        place(tmp_path, pod, on(0))
    before = len(os.listdir("/proc/self/fd"))
    reader = HamiReader(tmp_path)
    read(reader)
    assert len(os.listdir("/proc/self/fd")) == before + 5
    reader.close()
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- the counter that shows 0 under full load ------------------------------------------------------------------------


def readings(reader: HamiReader, count: int, cards: dict[str, CardFacts] = BUSY) -> HamiReading:
    return [read(reader, cards) for _ in range(count)][-1]


def test_zero_on_a_busy_card_of_ones_own_is_not_believed_for_long(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, processes=(ZERO,)))
    reader = HamiReader(tmp_path)
    early = readings(reader, LYING_READINGS - 1)
    assert (early.slices.duty_cycle.tolist(), early.slices.duty_doubt.tolist()) == ([0.0], [DutyDoubt.MEASURED])
    late = read(reader)
    assert np.isnan(late.slices.duty_cycle).all()
    assert late.slices.duty_doubt.tolist() == [DutyDoubt.ZERO_WHILE_CARD_BUSY]
    assert late.slices.framebuffer_used.tolist() == [1320.0 * MIB]


def test_zero_is_believed_again_once_the_card_rests(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, processes=(ZERO,)))
    reader = HamiReader(tmp_path)
    readings(reader, LYING_READINGS)
    assert read(reader, IDLE).slices.duty_cycle.tolist() == [0.0]


def test_zero_on_a_busy_card_that_another_one_shares_is_believed(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, processes=(ZERO,)))
    place(tmp_path, 2, on(0))
    reading = readings(HamiReader(tmp_path), 2 * LYING_READINGS)
    assert reading.slices.duty_cycle.tolist() == [0.0, 0.35]


def test_zero_of_a_container_that_holds_nothing_on_the_busy_card_is_believed(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, processes=()))
    assert readings(HamiReader(tmp_path), 2 * LYING_READINGS).slices.duty_cycle.tolist() == [0.0]


def test_zero_on_a_card_that_nothing_is_known_of_is_believed(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, processes=(ZERO,)))
    assert readings(HamiReader(tmp_path), 2 * LYING_READINGS, {}).slices.duty_cycle.tolist() == [0.0]


def test_distrust_survives_that_other_pods_come(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, processes=(ZERO,)))
    reader = HamiReader(tmp_path)
    readings(reader, LYING_READINGS)
    place(tmp_path, 2, on(1))
    reading = read(reader)
    assert np.isnan(reading.slices.duty_cycle).tolist() == [True, False]


# --- processes that were killed ---------------------------------------------------------------------------------------


def listing(*pids: int, card: int = 0) -> dict[str, CardFacts]:
    """The node's cards as a driver tells of them that lists these processes."""
    return {CARDS[card]: replace(BUSY[CARDS[card]], host_pids=frozenset(pids))}


def two_processes() -> tuple[PlainProcess, ...]:
    return PlainProcess(pid=1, host_pid=7001), PlainProcess(pid=2, host_pid=7002)


def test_process_that_was_killed_holds_nothing_once_the_driver_lists_it_no_more(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, processes=two_processes()))
    reader = HamiReader(tmp_path)
    assert read(reader, listing(7001, 7002)).slices.framebuffer_used.tolist() == [2640.0 * MIB]
    for _ in range(2):
        reading = read(reader, listing(7001))
        assert reading.slices.framebuffer_used.tolist() == [1320.0 * MIB]
        assert reading.processes.host_pids.tolist() == [7001]
    # A card that is not told of keeps what was known of it.
    assert read(reader, BUSY).slices.framebuffer_used.tolist() == [1320.0 * MIB]
    assert read(reader, listing(7001, 7002)).slices.framebuffer_used.tolist() == [2640.0 * MIB]


def test_process_that_the_driver_never_listed_is_not_called_dead(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, processes=two_processes()))
    reader = HamiReader(tmp_path)
    for _ in range(3):
        assert read(reader, listing(7001)).slices.framebuffer_used.tolist() == [2640.0 * MIB]


def test_process_id_that_is_given_anew_is_alive(tmp_path: Path) -> None:
    path = place(tmp_path, 1, on(0, processes=two_processes()))
    layout = PLAIN["v1.2"]
    host_pid = layout.procs + layout.slot + 4
    reader = HamiReader(tmp_path)
    read(reader, listing(7001, 7002))
    assert read(reader, listing(7001)).slices.framebuffer_used.tolist() == [1320.0 * MIB]
    poke(path, host_pid, "<i", 7003)
    read(reader, listing(7001, 7003))
    # The next one of that id is new here, and not listed yet.
    poke(path, host_pid, "<i", 7002)
    assert read(reader, listing(7001)).slices.framebuffer_used.tolist() == [2640.0 * MIB]


def test_process_whose_card_hangs_is_not_called_dead(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, 1, processes=two_processes()))
    reader = HamiReader(tmp_path)
    read(reader, {**listing(7001, 7002), **listing(7001, 7002, card=1)})
    assert read(reader, listing(card=0)).slices.framebuffer_used.tolist() == [2640.0 * MIB] * 2


@pytest.mark.parametrize(
    "cards", [{}, BUSY, {CARDS[1]: CardFacts(host_pids=frozenset())}], ids=["unknown", "unlisted", "another-card"]
)
def test_nobody_is_called_dead_on_a_card_whose_processes_are_not_told(
    tmp_path: Path, cards: dict[str, CardFacts]
) -> None:
    place(tmp_path, 1, on(0, processes=two_processes()))
    reader = HamiReader(tmp_path)
    for _ in range(4):
        assert read(reader, cards).slices.framebuffer_used.tolist() == [2640.0 * MIB]


def test_process_that_the_library_did_not_find_on_the_host_is_not_called_dead(tmp_path: Path) -> None:
    place(tmp_path, 1, on(0, processes=(PlainProcess(host_pid=0),)))
    reader = HamiReader(tmp_path)
    for _ in range(4):
        assert read(reader, listing()).slices.framebuffer_used.tolist() == [1320.0 * MIB]
