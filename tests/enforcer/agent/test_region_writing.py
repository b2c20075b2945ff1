"""Single fields of regions: written where nothing is in doubt, and nowhere else."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enforcer.agent.region_writing import open_for_writing, pause, resume, write_limits
from fleet.errors import Refused
from tests.enforcer.agent.nodes import CARD, OTHER_CARD
from tests.exporter.region_record import read_region
from tests.regions.plain_regions import MIB, PLAIN, PlainProcess, PlainRegion, write_region
from tests.regions.writer import RegionWriter

WRITABLE = ("v0", "v1.1", "v1.1-odd", "v1.2")
PROCESSES = (PlainProcess(pid=7), PlainProcess(pid=8, host_pid=8008), PlainProcess(pid=9, host_pid=9009))


@pytest.fixture
def region(tmp_path: Path) -> Callable[..., Path]:
    """Return a writer of regions."""

    def write(name: str = "a.cache", **fields: object) -> Path:
        path = tmp_path / name
        write_region(path, PlainRegion(**{"processes": PROCESSES, "cards": (CARD, OTHER_CARD), **fields}))  # type: ignore[arg-type]
        return path

    return write


def statuses(path: Path, layout: str) -> list[int]:
    shape, raw = PLAIN[layout], path.read_bytes()
    return [struct.unpack_from("<i", raw, shape.procs + slot * shape.slot + shape.status)[0] for slot in range(4)]


@pytest.mark.parametrize("layout", WRITABLE)
def test_limit_of_one_card_is_changed_and_nothing_else(layout: str, region: Callable[..., Path]) -> None:
    path = region(layout=layout)
    before = path.read_bytes()
    with open_for_writing(path) as opened:
        assert (opened.cards, opened.limits) == ((CARD, OTHER_CARD), (4000 * MIB, 4000 * MIB))
        write_limits(opened, {OTHER_CARD: 6000 * MIB})
    record = read_region(path, framebuffers={}, now_seconds=time.time())
    assert [card.framebuffer_limit_bytes for card in record.cards] == [4000 * MIB, 6000 * MIB]
    place = PLAIN[layout].limit + 8
    after = path.read_bytes()
    assert (after[:place], after[place + 8 :]) == (before[:place], before[place + 8 :])


@pytest.mark.parametrize("layout", WRITABLE)
def test_pause_and_resume_change_the_state_of_processes_and_nothing_else(
    layout: str, region: Callable[..., Path]
) -> None:
    path = region(layout=layout)
    before = path.read_bytes()
    with open_for_writing(path) as opened:
        assert pause(opened) == 3
        assert statuses(path, layout) == [2, 2, 2, 0]
        assert pause(opened) == 0
        assert resume(opened) == 3
    assert path.read_bytes() == before


def test_process_that_joins_behind_the_count_is_paused_too(region: Callable[..., Path]) -> None:
    path = region(process_count=1)
    with open_for_writing(path) as opened:
        assert pause(opened) == 3


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({"magic": 1}, "uninitialised"),
        ({"minor": 3}, "unknown_version"),
        ({"layout": "v1.1-dev"}, "unknown_version"),
        ({"layout": "pre-v0"}, "unknown_version"),
        ({"card_count": 17}, "card_count_impossible"),
        ({"card_count": 0}, "no_cards"),
        ({"cards": ("GPU-1",)}, "card_id_malformed"),
        ({"cards": (CARD, CARD)}, "card_repeated"),
        ({"process_count": -1}, "process_count_impossible"),
        ({"process_count": 1025}, "process_count_impossible"),
    ],
)
def test_region_in_doubt_is_refused_and_left_as_it_is(
    fields: dict[str, object], doubt: str, region: Callable[..., Path]
) -> None:
    path = region(**fields)
    before = path.read_bytes()
    with pytest.raises(Refused, match=doubt), open_for_writing(path):
        pass
    assert path.read_bytes() == before


def test_file_of_another_size_link_and_second_name_are_refused(region: Callable[..., Path], tmp_path: Path) -> None:
    path = region()
    (tmp_path / "link.cache").symlink_to(path)
    with pytest.raises(Refused, match="not_a_regular_file"), open_for_writing(tmp_path / "link.cache"):
        pass
    (tmp_path / "twin.cache").hardlink_to(path)
    with pytest.raises(Refused, match="not_a_regular_file"), open_for_writing(path):
        pass
    (tmp_path / "twin.cache").unlink()
    os.truncate(path, 4096)
    with pytest.raises(Refused, match="unknown_size"), open_for_writing(path):
        pass


def test_file_that_is_cut_short_or_grows_while_open_is_not_written(region: Callable[..., Path]) -> None:
    for size in (4096, 3_000_000):
        path = region(f"{size}.cache")
        with open_for_writing(path) as opened:
            os.truncate(path, size)
            with pytest.raises(Refused, match="unknown_size"):
                write_limits(opened, {CARD: 5000 * MIB})
        assert path.stat().st_size == size


def test_strange_card_and_no_limit_at_all_are_refused_before_anything_is_written(region: Callable[..., Path]) -> None:
    path = region()
    before = path.read_bytes()
    with open_for_writing(path) as opened:
        with pytest.raises(Refused, match="GPU-ffff"):
            write_limits(opened, {CARD: 5000 * MIB, "GPU-ffffffff-0000-4000-8000-000000000001": 5000 * MIB})
        with pytest.raises(Refused, match="more than 0"):
            write_limits(opened, {CARD: 5000 * MIB, OTHER_CARD: 0})
    assert path.read_bytes() == before


@pytest.mark.parametrize("layout", WRITABLE)
def test_process_under_the_library_sleeps_wakes_and_minds_its_limit(
    layout: str, region_writer: RegionWriter, tmp_path: Path
) -> None:
    path = tmp_path / "a.cache"
    with region_writer.working(layout, path, mib=500) as said, open_for_writing(path) as opened:
        pause(opened)
        assert is_silent(said)
        resume(opened)
        assert said.readline() == b"launched\n"
        write_limits(opened, {opened.cards[0]: 100 * MIB})
        assert b"refused\n" in (said.readline() for _ in range(500))


def is_silent(said: IO[bytes]) -> bool:
    """True once a process that speaks two hundred times a second has said nothing for a fifth of a second."""
    os.set_blocking(said.fileno(), False)
    try:
        heard = []
        for _ in range(50):
            time.sleep(0.1)
            heard.append(bool(said.read()))
            if any(not first and not second for first, second in pairwise(heard)):
                return True
        return False
    finally:
        os.set_blocking(said.fileno(), True)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_region_that_lies_anywhere_is_refused_or_changed_in_one_field_alone(
    tmp_path: Path, data: st.DataObject
) -> None:
    layout = data.draw(st.sampled_from(WRITABLE))
    path = tmp_path / "hostile.cache"
    path.unlink(missing_ok=True)
    write_region(path, PlainRegion(layout=layout, processes=PROCESSES, cards=(CARD, OTHER_CARD)))
    shape = PLAIN[layout]
    places = st.one_of(st.integers(0, shape.procs + 2 * shape.slot), st.integers(shape.proc_num, shape.size - 8))
    with path.open("r+b") as file:
        for _ in range(data.draw(st.integers(0, 4))):
            file.seek(data.draw(places))
            file.write(data.draw(st.binary(min_size=1, max_size=8)))
    before = path.read_bytes()
    changed: set[int] = set()
    try:
        with open_for_writing(path) as opened:
            card = opened.cards[0]
            write_limits(opened, {card: 6000 * MIB})
            changed |= set(range(shape.limit, shape.limit + 8))
            pause(opened)
            statuses_at = (shape.procs + slot * shape.slot + shape.status for slot in range(1024))
            changed |= {start + byte for start in statuses_at for byte in range(4)}
    except Refused:
        pass
    after = path.read_bytes()
    assert len(after) == len(before)
    differ = np.flatnonzero(np.frombuffer(after, np.uint8) != np.frombuffer(before, np.uint8))
    assert set(differ.tolist()) <= changed
