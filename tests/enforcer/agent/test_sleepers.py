"""Who was put to sleep wakes again, whatever happens to the agent in between."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from enforcer.agent.held_regions import ALL_SLOTS_SECONDS, FILES_MAX, KEEPS_BETWEEN, MOVED_MAX, region_of
from enforcer.agent.sleepers import Sleepers
from fleet.errors import Refused
from tests.enforcer.agent.nodes import add_region, key_of, region_path
from tests.regions.plain_regions import PLAIN


def status(containers: Path, number: int) -> int:
    shape = PLAIN["v1.2"]
    raw = region_path(containers, number).read_bytes()
    return int(struct.unpack_from("<i", raw, shape.procs + shape.status)[0])


@pytest.fixture
def sleepers(containers: Path, tmp_path: Path) -> Sleepers:
    return Sleepers(containers, tmp_path / "asleep.json")


def test_containers_fall_asleep_and_wake_as_wanted(sleepers: Sleepers, containers: Path) -> None:
    for number in (1, 2):
        add_region(containers, number)
    assert sleepers.follow({key_of(1)}, 0.0) == ((key_of(1),), ())
    assert (status(containers, 1), status(containers, 2)) == (2, 1)
    assert sleepers.follow({key_of(1), key_of(2)}, 0.0) == ((key_of(2),), ())
    assert sleepers.follow({key_of(2)}, 0.0) == ((), (key_of(1),))
    assert (status(containers, 1), status(containers, 2)) == (1, 2)
    assert sleepers.wake_all() == (key_of(2),)
    assert (status(containers, 1), status(containers, 2)) == (1, 1)


def test_storage_that_fails_under_a_region_is_told_and_hurts_nobody_else(
    sleepers: Sleepers, containers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        add_region(containers, number)
    real = os.pwrite

    def fails_once(fd: int, data: bytes, offset: int) -> int:
        monkeypatch.setattr(os, "pwrite", real)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fails_once)
    assert sleepers.follow({key_of(1), key_of(2)}, 0.0)[0] == (key_of(2),)
    assert "No space left" in sleepers.refused[key_of(1)]
    assert (status(containers, 1), status(containers, 2)) == (1, 2)


def test_process_that_joins_later_is_put_to_sleep_at_the_next_look(sleepers: Sleepers, containers: Path) -> None:
    path = add_region(containers, 1)
    sleepers.follow({key_of(1)}, 0.0)
    shape = PLAIN["v1.2"]
    with path.open("r+b") as file:
        file.seek(shape.procs + shape.status)
        file.write(struct.pack("<i", 1))
    sleepers.follow({key_of(1)}, 0.0)
    assert status(containers, 1) == 2


def test_agent_that_was_killed_wakes_them_when_it_starts_again(
    sleepers: Sleepers, containers: Path, tmp_path: Path
) -> None:
    add_region(containers, 1)
    sleepers.follow({key_of(1)}, 0.0)
    again = Sleepers(containers, tmp_path / "asleep.json")
    assert again.asleep == {key_of(1)}
    assert again.follow(frozenset(), 0.0) == ((), (key_of(1),))
    assert status(containers, 1) == 1
    assert Sleepers(containers, tmp_path / "asleep.json").asleep == frozenset()


def test_container_that_is_gone_needs_no_waking(sleepers: Sleepers, containers: Path) -> None:
    path = add_region(containers, 1)
    sleepers.follow({key_of(1)}, 0.0)
    path.unlink()
    path.parent.rmdir()
    assert sleepers.follow(frozenset(), 0.0) == ((), (key_of(1),))


def test_region_in_doubt_is_woken_once_it_is_believed_again(sleepers: Sleepers, containers: Path) -> None:
    path = add_region(containers, 1)
    sleepers.follow({key_of(1)}, 0.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096])
    assert sleepers.follow(frozenset(), 0.0) == ((), ())
    assert sleepers.asleep == {key_of(1)}
    path.write_bytes(whole)
    assert sleepers.follow(frozenset(), 0.0) == ((), (key_of(1),))
    assert status(containers, 1) == 1


def test_who_can_not_be_put_to_sleep_is_named_with_the_reason(sleepers: Sleepers, containers: Path) -> None:
    add_region(containers, 1, magic=0)
    key_of(2).folder(containers).mkdir()
    assert sleepers.follow({key_of(1), key_of(2), key_of(3)}, 0.0) == ((), ())
    assert "uninitialised" in sleepers.refused[key_of(1)]
    assert "0 files" in sleepers.refused[key_of(2)]
    assert "No such file" in sleepers.refused[key_of(3)]


def test_several_regions_or_a_flood_of_files_are_refused(containers: Path) -> None:
    path = add_region(containers, 1)
    assert region_of(containers, key_of(1)) == path
    path.with_name("0f1e2d3c-2222-4000-8000-000000000001.cache").write_bytes(b"")
    with pytest.raises(Refused, match="2 files"):
        region_of(containers, key_of(1))
    for number in range(FILES_MAX):
        (path.parent / f"{number}.txt").write_bytes(b"")
    with pytest.raises(Refused, match="too_many_files"):
        region_of(containers, key_of(1))


def test_list_that_is_no_list_counts_as_empty(containers: Path, tmp_path: Path) -> None:
    memory = tmp_path / "asleep.json"
    for text in ("", "[1]", '{"a": 1}', '[["a"]]'):
        memory.write_text(text)
        assert Sleepers(containers, memory).asleep == frozenset()


def put_slot(path: Path, slot: int, *, pid: int, status: int) -> None:
    shape = PLAIN["v1.2"]
    with path.open("r+b") as file:
        file.seek(shape.procs + slot * shape.slot)
        file.write(struct.pack("<i", pid))
        file.seek(shape.procs + slot * shape.slot + shape.status)
        file.write(struct.pack("<i", status))


def status_of_slot(path: Path, slot: int) -> int:
    shape = PLAIN["v1.2"]
    return int(struct.unpack_from("<i", path.read_bytes(), shape.procs + slot * shape.slot + shape.status)[0])


@pytest.mark.parametrize("move", ["replaced", "linked", "another"])
def test_file_that_a_tenant_puts_in_the_place_of_his_region_is_not_mistaken_for_it(
    sleepers: Sleepers, containers: Path, tmp_path: Path, move: str
) -> None:
    path = add_region(containers, 1)
    sleepers.expect(frozenset({key_of(1)}))
    copy = path.read_bytes()
    if move == "another":
        path.with_name("0f1e2d3c-2222-4000-8000-000000000001.cache").write_bytes(copy)
    else:
        path.rename(tmp_path / "mine")
        if move == "replaced":
            path.write_bytes(copy)
        else:
            path.symlink_to(tmp_path / "mine")
    for _ in range(KEEPS_BETWEEN):
        sleepers.expect(frozenset({key_of(1)}))
    fallen, _ = sleepers.follow({key_of(1)}, 0.0)
    if move == "replaced":
        assert (fallen, status(containers, 1)) == ((key_of(1),), 2)
    else:
        assert fallen == ()
        assert ("2 files" if move == "another" else "not_a_regular_file") in sleepers.refused[key_of(1)]


@pytest.mark.parametrize("move", ["replaced", "removed", "another"])
def test_processes_that_map_a_region_that_was_moved_sleep_and_wake_all_the_same(
    sleepers: Sleepers, containers: Path, tmp_path: Path, move: str
) -> None:
    path = add_region(containers, 1)
    mapped = os.open(path, os.O_RDONLY)
    sleepers.expect(frozenset({key_of(1)}))
    copy = path.read_bytes()
    if move == "another":
        path.with_name("0f1e2d3c-2222-4000-8000-000000000001.cache").write_bytes(copy)
    elif move == "removed":
        path.unlink()
    else:
        path.rename(tmp_path / "mine")
        path.write_bytes(copy)
    shape = PLAIN["v1.2"]
    for wanted, expected in (({key_of(1)}, 2), (set(), 1)):
        for _ in range(KEEPS_BETWEEN):
            sleepers.expect(frozenset({key_of(1)}))
        sleepers.follow(wanted, 0.0)
        assert struct.unpack("<i", os.pread(mapped, 4, shape.procs + shape.status)) == (expected,)
        assert bool(sleepers.refused) == (move != "replaced" and bool(wanted))
    os.close(mapped)


def test_files_that_were_moved_are_bounded_and_closed_with_their_container(
    sleepers: Sleepers, containers: Path, tmp_path: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    path = add_region(containers, 1)
    for number in range(3 * MOVED_MAX):
        sleepers.follow({key_of(1)}, 0.0)
        copy = path.read_bytes()
        path.rename(tmp_path / str(number))
        path.write_bytes(copy)
    assert len(os.listdir("/proc/self/fd")) - before == MOVED_MAX + 1
    sleepers.follow(frozenset(), 0.0)
    sleepers.expect(frozenset())
    assert len(os.listdir("/proc/self/fd")) == before


def test_slot_behind_those_in_use_sleeps_and_wakes_too(sleepers: Sleepers, containers: Path) -> None:
    path = add_region(containers, 1)
    put_slot(path, 700, pid=9, status=1)
    sleepers.follow({key_of(1)}, 0.0)
    assert status_of_slot(path, 700) == 2
    put_slot(path, 701, pid=10, status=1)
    sleepers.follow({key_of(1)}, 1.0)
    assert status_of_slot(path, 701) == 1
    sleepers.follow({key_of(1)}, ALL_SLOTS_SECONDS)
    assert status_of_slot(path, 701) == 2
    sleepers.follow(frozenset(), ALL_SLOTS_SECONDS)
    assert (status_of_slot(path, 700), status_of_slot(path, 701)) == (1, 1)


def test_expected_containers_change_sides_without_a_word_to_storage(
    sleepers: Sleepers, containers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        add_region(containers, number)
    sleepers.expect(frozenset({key_of(1)}))
    listed = (tmp_path / "asleep.json").read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("storage is asked"))
    # 2 is not expected: a killed agent would leave it asleep for ever.
    assert sleepers.follow_quickly({key_of(1), key_of(2)}, 0.0) == ((key_of(1),), ())
    assert (status(containers, 1), status(containers, 2)) == (2, 1)
    assert sleepers.follow_quickly(frozenset(), 0.1) == ((), (key_of(1),))
    assert status(containers, 1) == 1
    assert (tmp_path / "asleep.json").read_bytes() == listed


def test_who_is_expected_no_more_leaves_the_list(sleepers: Sleepers, containers: Path, tmp_path: Path) -> None:
    add_region(containers, 1)
    sleepers.expect(frozenset({key_of(1)}))
    sleepers.expect(frozenset())
    assert Sleepers(containers, tmp_path / "asleep.json").asleep == frozenset()


def test_doubtful_region_is_not_opened_at_every_look(
    sleepers: Sleepers, containers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_region(containers, 1, magic=0)
    tried: list[str] = []
    real = os.scandir

    def noted(path: str) -> object:
        tried.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", noted)
    for _ in range(4 * KEEPS_BETWEEN):
        sleepers.expect(frozenset({key_of(1)}))
        sleepers.follow_quickly({key_of(1)}, 0.0)
    assert len(tried) == 4
