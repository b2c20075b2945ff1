import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.regions.doubts import OF_REGION_BITS, RegionDoubt, bit_of, doubts_of
from fleet.regions.fields import CARDS_MAX, MAGIC, PROCESSES_MAX, RegionField
from fleet.regions.layouts import LAYOUTS, Layout, LayoutName, candidates, find_layout, locate, parse_card_id
from tests.regions.plain_regions import PLAIN

BY_NAME = {layout.name: layout for layout in LAYOUTS}
UUID = b"0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"


def head_of(layout: Layout, states: list[tuple[int, int]]) -> bytes:
    """The head of a region whose processes have these pids and states."""
    head = bytearray(layout.slots_offset + len(states) * layout.slot_bytes)
    struct.pack_into("<i", head, 0, MAGIC)
    if layout.version is not None:
        struct.pack_into("<II", head, 4, *layout.version)
    for slot, (pid, state) in enumerate(states):
        struct.pack_into("<i", head, locate(layout, RegionField.PID, process=slot), pid)
        struct.pack_into("<i", head, locate(layout, RegionField.STATUS, process=slot), state)
    return bytes(head)


@pytest.mark.parametrize("name", LayoutName)
def test_layout_agrees_with_a_second_table_of_its_offsets(name: LayoutName) -> None:
    layout, plain = BY_NAME[name], PLAIN[name]
    assert layout.file_bytes == plain.size
    assert locate(layout, RegionField.DEVICE_NUM) == plain.num
    assert locate(layout, RegionField.UUIDS, card=3) == plain.uuids + 3 * 96
    assert locate(layout, RegionField.LIMIT, card=15) == plain.limit + 15 * 8
    assert locate(layout, RegionField.SM_LIMIT) == plain.sm_limit
    assert layout.tail_offset == locate(layout, RegionField.PROC_NUM) == plain.proc_num
    slot = plain.procs + 9 * plain.slot
    assert locate(layout, RegionField.USED_TOTAL, card=2, process=9) == slot + plain.used + 2 * plain.used_step + 32
    assert locate(layout, RegionField.MONITORUSED, card=2, process=9) == slot + plain.monitor + 16
    assert locate(layout, RegionField.STATUS, process=9) == slot + plain.status
    assert (RegionField.SM_UTIL in layout.fields) == (plain.util is not None)
    assert (RegionField.SEQLOCK in layout.fields) == (plain.seqlock is not None)
    assert (RegionField.LAST_KERNEL_TIME in layout.fields) == plain.has_time


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_no_two_fields_of_a_layout_overlap(layout: Layout) -> None:
    taken: dict[int, str] = {}
    for field, place in layout.fields.items():
        for process in (0, PROCESSES_MAX - 1) if place.in_slot else (0,):
            for card in range(place.count):
                start = locate(layout, field, card=card, process=process)
                for byte in range(start, start + place.kind.size):
                    assert taken.setdefault(byte, f"{field}{card}") == f"{field}{card}"
                assert start + place.kind.size <= layout.region_bytes
                assert place.in_slot == (layout.slots_offset <= start < layout.tail_offset)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_layout_is_found_by_size_version_and_processes(layout: Layout) -> None:
    assert find_layout(layout.file_bytes, head_of(layout, [(1, 1), (0, 0), (77, 2)]), 3) is layout


def test_two_layouts_of_one_label_are_told_apart_by_their_processes() -> None:
    released, dev = BY_NAME[LayoutName.V1_1], BY_NAME[LayoutName.V1_1_DEV]
    assert (released.file_bytes, released.version) == (dev.file_bytes, dev.version)
    assert find_layout(dev.file_bytes, head_of(dev, [(1, 1)]), 1) is dev
    assert find_layout(dev.file_bytes, head_of(dev, []), 0) is released  # nobody tells


def test_release_that_labels_itself_1_1_is_told_by_its_size() -> None:
    odd = BY_NAME[LayoutName.V1_1_ODD]
    assert odd.version == BY_NAME[LayoutName.V1_1].version
    assert candidates(odd.file_bytes) == (odd,)
    assert locate(odd, RegionField.UUIDS) != locate(BY_NAME[LayoutName.V1_1], RegionField.UUIDS)


@pytest.mark.parametrize(
    ("file_bytes", "version"), [(2_008_953, (1, 3)), (2_008_953, (2, 1)), (2_008_953, (0, 0)), (2_008_985, (1, 2))]
)
def test_unknown_version_has_no_layout(file_bytes: int, version: tuple[int, int]) -> None:
    head = bytearray(2048)
    struct.pack_into("<II", head, 4, *version)
    assert find_layout(file_bytes, bytes(head), 0) is None


@given(st.integers(0, 1 << 22))
def test_no_other_size_has_a_layout(file_bytes: int) -> None:
    sizes = {804_681, 1_197_897, 2_008_953, 2_008_985}
    assert bool(candidates(file_bytes)) == (file_bytes in sizes)


@given(st.sampled_from(LAYOUTS), st.binary(min_size=2000, max_size=9000), st.integers(-(2**31), 2**31 - 1))
def test_any_head_finds_a_layout_of_its_size_or_none(layout: Layout, head: bytes, process_count: int) -> None:
    found = find_layout(layout.file_bytes, head, process_count)
    assert found is None or found in candidates(layout.file_bytes)


@pytest.mark.parametrize(
    ("field", "card", "process"),
    [
        (RegionField.LIMIT, CARDS_MAX, 0),
        (RegionField.LIMIT, -1, 0),
        (RegionField.LIMIT, 0, 1),
        (RegionField.STATUS, 0, PROCESSES_MAX),
        (RegionField.STATUS, 1, 0),
        (RegionField.SEQLOCK, 0, 0),
    ],
)
def test_a_place_that_is_not_there_is_never_given(field: RegionField, card: int, process: int) -> None:
    with pytest.raises(ValueError, match="cannot locate"):
        locate(BY_NAME[LayoutName.V0], field, card=card, process=process)


@pytest.mark.parametrize("kind", ["GPU", "MIG"])
def test_card_id_ends_at_its_first_nul(kind: str) -> None:
    text = kind.encode() + b"-" + UUID
    assert parse_card_id(text.ljust(96, b"\0")) == text.decode()
    assert parse_card_id((text + b"\0left over").ljust(96, b"\0")) == text.decode()


@pytest.mark.parametrize(
    "raw",
    [b"", b"\0" * 96, b"GPU-" + UUID, b"gpu-" + UUID + b"\0", b"GPU-" + UUID + b"\n\0", b"GPU-" + UUID.upper() + b"\0"],
)
def test_what_is_no_card_id_is_none(raw: bytes) -> None:
    assert parse_card_id(raw) is None


@given(st.sets(st.sampled_from(list(RegionDoubt))))
def test_doubts_survive_the_trip_through_bits_gravest_first(doubts: set[RegionDoubt]) -> None:
    bits = sum(bit_of(doubt) for doubt in doubts)
    assert doubts_of(bits) == tuple(doubt for doubt in RegionDoubt if doubt in doubts)


def test_doubts_about_one_figure_leave_the_region_its_others() -> None:
    assert bit_of(RegionDoubt.PROCESS_IMPOSSIBLE) & OF_REGION_BITS
    assert not bit_of(RegionDoubt.FRAMEBUFFER_UNDERFLOWED) & OF_REGION_BITS
