"""How often a region is looked at before it is believed."""

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.regions.followed import FollowedRegion
from exporter.regions.looks import LOOKS_MAX, RegionLooks
from tests.regions.plain_regions import NOW, PLAIN, PlainProcess, PlainRegion, write_open_region


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "region", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def looks(region: FollowedRegion) -> list[bool]:
    """Whether each look of one reading was final."""
    found = RegionLooks().at([region], framebuffers={}, now_seconds=NOW, deadline_at=time.monotonic() + 30)
    return [bool(look.is_final[0]) for look in found]


def test_settled_region_is_looked_at_once(fd: int) -> None:
    write_open_region(fd, PlainRegion())
    region = FollowedRegion(fd)
    assert looks(region) == [False, True]  # the table was never seen before
    assert looks(region) == [True]


def test_changed_process_table_is_believed_when_two_looks_agree(fd: int) -> None:
    write_open_region(fd, PlainRegion())
    region = FollowedRegion(fd)
    looks(region)
    os.pwrite(fd, struct.pack("<i", 8), PLAIN["v1.2"].procs)
    assert looks(region) == [False, True]
    os.pwrite(fd, struct.pack("<i", 2), PLAIN["v1.2"].procs + PLAIN["v1.2"].status)
    assert looks(region) == [False, True]


def test_usage_that_changes_alone_needs_no_second_look(fd: int) -> None:
    write_open_region(fd, PlainRegion())
    region = FollowedRegion(fd)
    looks(region)
    os.pwrite(fd, struct.pack("<5Q", 1, 2, 3, 0, 6), PLAIN["v1.2"].procs + PLAIN["v1.2"].used)
    assert looks(region) == [True]


@pytest.mark.parametrize("process", [PlainProcess(seqlock=3), PlainProcess(total=1)])
def test_half_changed_usage_is_looked_at_again_until_it_stands_still(process: PlainProcess, fd: int) -> None:
    write_open_region(fd, PlainRegion(processes=(process,)))
    region = FollowedRegion(fd)
    looks(region)
    assert looks(region) == [False, True]


def test_more_processes_than_before_are_read_with_more_room(fd: int) -> None:
    processes = tuple(PlainProcess(pid=pid) for pid in range(1, 101))
    write_open_region(fd, PlainRegion(processes=processes, process_count=1))
    region = FollowedRegion(fd)
    looks(region)
    few = region.slots
    os.pwrite(fd, struct.pack("<i", 100), PLAIN["v1.2"].proc_num)
    assert looks(region) == [False, False, True]  # no room, a new table, the same table
    assert few < 100 <= region.slots
    assert len(looks(region)) < LOOKS_MAX
