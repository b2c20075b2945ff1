"""The file bus keeps the bus's contract, and its files survive crashes and damage."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys

import pytest

from fleet.errors import Corrupt, Unavailable
from tests.contracts.bus import BusContract
from tests.pipeline.builders import file_bus, read_all


class TestFileBus(BusContract):
    @pytest.fixture
    def bus(self, tmp_path):
        return file_bus(tmp_path / "bus", segment_bytes=300)

    @pytest.fixture
    def reopened(self, bus, tmp_path):
        def reopen():
            bus.close()
            return file_bus(tmp_path / "bus", segment_bytes=300)

        return reopen

    @pytest.fixture
    def small_bus(self, tmp_path):
        return file_bus(tmp_path / "small", segment_bytes=1000, bytes_max=4000)


def test_torn_tail_is_cut_off_kept_beside_and_written_over(tmp_path):
    bus = file_bus(tmp_path)
    end = bus.append(b"whole")
    bus.append(b"torn")
    bus.close()
    (segment,) = tmp_path.glob("segment-*")
    os.truncate(segment, segment.stat().st_size - 1)
    again = file_bus(tmp_path)
    assert read_all(again).records == (b"whole",)
    again.append(b"next")
    chunk = read_all(again)
    assert (chunk.records, chunk.corrupt) == ((b"whole", b"next"), 0)
    assert [path.name for path in tmp_path.glob("torn-*")] == [f"torn-{end:020d}"]


def test_damage_in_an_older_segment_costs_its_rest_and_is_counted(tmp_path):
    bus = file_bus(tmp_path, segment_bytes=60)
    for number in range(9):
        bus.append(b"%d" % number * 20)
    segments = sorted(tmp_path.glob("segment-*"))
    assert len(segments) == 3
    data = bytearray(segments[1].read_bytes())
    data[-1] ^= 1
    segments[1].write_bytes(data)
    chunk = read_all(bus)
    assert chunk.corrupt == 1
    assert chunk.records == tuple(b"%d" % number * 20 for number in (0, 1, 2, 3, 4, 6, 7, 8))


def test_committed_segments_are_dropped_and_offsets_go_on(tmp_path):
    bus = file_bus(tmp_path, segment_bytes=60)
    ends = [bus.append(b"x" * 30) for _ in range(10)]
    bus.commit(ends[-1])
    assert len(list(tmp_path.glob("segment-*"))) == 1
    bus.close()
    assert file_bus(tmp_path).append(b"y") > ends[-1]


def test_offsets_are_never_given_twice_when_a_crash_left_less_than_was_committed(tmp_path):
    bus = file_bus(tmp_path)
    end = bus.append(b"x" * 30)
    bus.commit(end)
    bus.close()
    (segment,) = tmp_path.glob("segment-*")
    os.truncate(segment, 0)
    again = file_bus(tmp_path)
    assert again.append(b"y") > end
    assert read_all(again, end).records == (b"y",)


def test_second_writer_is_told_who_holds_the_bus(tmp_path):
    bus = file_bus(tmp_path)
    bus.append(b"x")
    with pytest.raises(Unavailable, match=f"process {os.getpid()} holds it"):
        file_bus(tmp_path).append(b"y")
    bus.close()
    file_bus(tmp_path).append(b"y")


def test_reader_beside_a_writer_does_not_take_half_a_record_for_damage(tmp_path):
    writer = file_bus(tmp_path)
    writer.append(b"whole")
    (segment,) = tmp_path.glob("segment-*")
    with segment.open("ab") as file:
        file.write(b"\xff\0\0\0half")
    chunk = read_all(file_bus(tmp_path))
    assert (chunk.records, chunk.corrupt) == ((b"whole",), 0)
    assert file_bus(tmp_path).read(chunk.end, bytes_max=100) is None


def test_newer_schema_is_refused_in_clear_words(tmp_path):
    file_bus(tmp_path)
    stamp = tmp_path / "FORMAT.json"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "schema_version": 99}))
    with pytest.raises(Corrupt, match="its schema version is 99"):
        file_bus(tmp_path)


def test_full_storage_refuses_the_record_and_leaves_no_half_of_it(tmp_path):
    is_full = [False]

    def crash_point(name):
        if is_full[0] and name == "after write":
            raise OSError(errno.ENOSPC, "no space")

    bus = file_bus(tmp_path, crash_point=crash_point)
    bus.append(b"first")
    is_full[0] = True
    with pytest.raises(Corrupt, match="storage is full"):
        bus.append(b"second")
    is_full[0] = False
    bus.append(b"third")
    assert read_all(bus).records == (b"first", b"third")


def test_a_record_that_storage_takes_half_of_is_refused_and_cut_off(tmp_path):
    bus = file_bus(tmp_path)
    bus.append(b"first")
    # The kernel writes up to the limit and says so; the rest meets EFBIG, as it would meet a quota.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(Corrupt, match="File too large"):
            bus.append(bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    bus.append(b"third")
    assert read_all(bus).records == (b"first", b"third")


def test_after_a_failed_fsync_nothing_more_is_acknowledged(tmp_path):
    fails = [False]

    def crash_point(name):
        if fails[0] and name == "before sync":
            raise OSError(errno.EIO, "bad disk")

    bus = file_bus(tmp_path, crash_point=crash_point)
    bus.append(b"first")
    fails[0] = True
    with pytest.raises(Corrupt, match="durable"):
        bus.append(b"second")
    fails[0] = False
    with pytest.raises(Corrupt, match="restart"):
        bus.append(b"third")


_WRITER = """
import os, signal, sys
from pathlib import Path
from pipeline.bus.bus_file import FileBus
count = [0]
def crash_point(name):
    count[0] += name == sys.argv[2]
    if count[0] == 5:
        os.kill(os.getpid(), signal.SIGKILL)
bus = FileBus(Path(sys.argv[1]), segment_bytes=40, bytes_max=1 << 20, crash_point=crash_point)
for number in range(20):
    bus.append(b"%d" % number)
    print(number, flush=True)
"""


@pytest.mark.parametrize("point", ["before write", "after write", "after sync"])
def test_what_was_acknowledged_before_kill_9_is_there_after_it(tmp_path, repository, point):
    done = subprocess.run(
        [sys.executable, "-c", _WRITER, str(tmp_path), point],
        capture_output=True, text=True, check=False, cwd=repository, env={**os.environ, "PYTHONPATH": str(repository)},
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    acknowledged = [line.encode() for line in done.stdout.split()]
    records = read_all(file_bus(tmp_path)).records
    assert list(records[: len(acknowledged)]) == acknowledged
    assert len(records) <= len(acknowledged) + 1
