"""What a look at a region says of launches, and what it leaves there for HAMi's monitor and the library."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from enforcer.agent.launches import COUNTED_SECONDS, Launches
from enforcer.agent.node_view import ContainerKey
from fleet.regions.fields import LAUNCHED
from tests.enforcer.agent.nodes import START, add_region, key_of, region_path
from tests.regions.plain_regions import PLAIN

KEY = key_of(1)


class Region:
    """The words at the end of one region, as the library and HAMi's monitor write them."""

    def __init__(self, containers: Path, layout: str = "v1.2", **fields: object) -> None:
        self.path = add_region(containers, 1, layout=layout, **fields)
        self._offset = PLAIN[layout].proc_num

    def put(self, place: int, value: int) -> None:
        with self.path.open("r+b") as file:
            file.seek(self._offset + 4 * place)
            file.write(struct.pack("<i", value))

    def launch(self) -> None:
        self.put(2, 2)

    def monitor(self) -> bool:
        """Take one off, as the monitor does; whether it counts the container as active."""
        if self.recent > 0:
            self.put(2, self.recent - 1)
            return self.recent > 0
        return False

    @property
    def recent(self) -> int:
        return int(struct.unpack_from("<i", self.path.read_bytes(), self._offset + 8)[0])


def watching(containers: Path, *keys: ContainerKey) -> Launches:
    launches = Launches(containers, wall_clock=lambda: START)
    launches.watch(set(keys or (KEY,)))
    return launches


def launched_at(launches: Launches) -> float:
    return launches.seen[KEY].launched_at


@pytest.mark.parametrize("layout", ["v0", "v1.1", "v1.1-odd", "v1.2"])
def test_each_launch_shows_in_the_next_look_and_in_no_other(containers: Path, layout: str) -> None:
    region = Region(containers, layout, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    assert launches.look(1.0) == frozenset()
    for at in (2.0, 3.0):
        region.launch()
        assert launches.look(at) == {KEY}
        assert launched_at(launches) == at
        assert launches.look(at + 0.5) == frozenset()
        assert launched_at(launches) == at


def test_monitor_that_counts_down_is_no_launch_and_still_counts_ours(containers: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    region.launch()
    launches.look(1.0)
    assert region.monitor()
    assert launches.look(2.0) == frozenset()
    assert launched_at(launches) == 1.0


def test_launch_that_the_monitor_counted_down_before_we_looked_is_a_launch(containers: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    region.launch()
    region.monitor()
    assert launches.look(1.0) == {KEY}


def test_launch_is_counted_as_long_as_the_monitor_would_have(containers: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    region.launch()
    launches.look(1.0)
    launches.look(0.9 + COUNTED_SECONDS)
    assert region.monitor()
    launches.look(1.0 + COUNTED_SECONDS)
    assert region.recent == 0
    assert not region.monitor()
    assert launches.look(2.0 + COUNTED_SECONDS) == frozenset()


def test_launch_is_uncounted_when_low_priority_goes_on(containers: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    region.launch()
    launches.look(1.0)
    launches.uncount({KEY, key_of(9)})
    assert region.recent == 0
    region.launch()
    launches.uncount({KEY})
    assert region.recent == 2
    assert launches.look(1.1) == {KEY}


def test_file_that_was_closed_is_never_used_again(containers: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    os.truncate(region.path, 100)
    launches.uncount({KEY})
    assert not launches.is_watching
    assert launches.look(1.0) == frozenset()


def test_block_by_the_monitor_is_left_alone(containers: Path) -> None:
    region = Region(containers, recent_kernel=-1)
    launches = watching(containers)
    for at in (0.0, 1.0, 100.0):
        launches.look(at)
    assert region.recent == -1
    assert launched_at(launches) < 0


@pytest.mark.parametrize(("age", "is_launch"), [(1, True), (60, False)])
def test_what_stands_there_at_the_first_look_counts_where_it_is_fresh(
    containers: Path, age: int, is_launch: bool
) -> None:
    region = Region(containers, recent_kernel=2, last_kernel_time=int(START) - age)
    launches = watching(containers)
    launches.look(5.0)
    assert (launched_at(launches) == 5.0) == is_launch
    region.launch()
    launches.look(6.0)
    assert launched_at(launches) == 6.0


def test_value_that_nobody_writes_counts_as_a_launch_each_time(containers: Path) -> None:
    region = Region(containers, recent_kernel=77)
    launches = watching(containers)
    for at in (1.0, 2.0):
        assert launches.look(at) == {KEY}
        assert launched_at(launches) == at
    assert region.recent == 77


def test_switch_is_news(containers: Path) -> None:
    region = Region(containers, recent_kernel=0, switch=0)
    launches = watching(containers)
    launches.look(0.0)
    region.put(1, 1)
    assert launches.look(1.0) == {KEY}
    assert launches.seen[KEY].has_switch


def test_region_that_is_cut_short_is_told_and_taken_again_when_it_is_whole(containers: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    whole = region.path.read_bytes()
    os.truncate(region.path, 4096)
    assert launches.look(1.0) == {KEY}
    assert KEY not in launches.seen
    for _ in range(20):
        launches.watch({KEY})
    assert launches.look(2.0) == frozenset()
    region.path.write_bytes(whole)
    for _ in range(20):
        launches.watch({KEY})
    launches.look(3.0)
    assert KEY in launches.seen


def test_region_that_is_gone_is_not_looked_at_any_more(containers: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    region.path.unlink()
    launches.watch({KEY})
    assert not launches.is_watching
    region = Region(containers, recent_kernel=0)
    launches.watch({KEY})
    launches.watch({KEY})
    assert launches.is_watching


def test_file_that_a_tenant_links_elsewhere_is_not_written_any_more(containers: Path, tmp_path: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    os.link(region.path, tmp_path / "mine")
    launches.watch({KEY})
    region.launch()
    assert launches.look(1.0) == frozenset()
    assert region.recent == 2


def test_file_in_the_place_of_one_that_a_tenant_moved_away_is_looked_at_instead(
    containers: Path, tmp_path: Path
) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    copy = region.path.read_bytes()
    region.path.rename(tmp_path / "mine")
    region.path.write_bytes(copy)
    launches.watch({KEY})
    launches.watch({KEY})
    launches.look(1.0)
    region.launch()
    assert launches.look(2.0) == {KEY}


def test_calm_is_when_nobody_launched_for_a_while(containers: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    region.launch()
    launches.look(1.0)
    assert not launches.is_calm(1.0 + COUNTED_SECONDS - 0.1)
    assert launches.is_calm(1.0 + COUNTED_SECONDS)


@pytest.mark.parametrize("counted", [0, 1])
def test_mark_that_is_left_behind_counts_as_long_as_the_launch_would_have(containers: Path, counted: int) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    region.launch()
    launches.look(1.0)
    before = [region.monitor() for _ in range(counted)]
    launches.watch(frozenset())
    # As the library's own 2 without any agent.
    assert [*before, region.monitor(), region.monitor()][:2] == [True, False]


def test_launch_that_was_not_looked_at_is_left_alone_at_the_end(containers: Path) -> None:
    region = Region(containers, recent_kernel=0)
    launches = watching(containers)
    launches.look(0.0)
    region.launch()
    launches.close()
    assert region.recent == LAUNCHED


def test_closing_closes_every_file(containers: Path) -> None:
    Region(containers)
    before = len(os.listdir("/proc/self/fd"))
    launches = watching(containers)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    launches.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert region_path(containers, 1).exists()
