"""The whole agent on one node: real regions, views that change, and actions that note what was asked of them."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from enforcer.agent.held_regions import KEEPS_BETWEEN
from enforcer.agent.live_limits import WantedLimit
from enforcer.agent.node_agent import BLIND_SECONDS, Acts, AgentFolders, NodeAgent
from enforcer.agent.node_view import NodeView, SliceView
from enforcer.agent.orders import Orders, orders_text
from enforcer.agent.region_writing import open_for_writing
from enforcer.agent.watermark import Shortage
from enforcer.host_memory import HostMemory
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.inventory import Priority
from fleet.regions.fields import LAUNCH_SEEN
from fleet.settings.agent import AgentSettings, GiveWayManner
from tests.enforcer.agent.nodes import CARD, GIB, OTHER_CARD, START, add_region, key_of, region_path, slice_of, view_of
from tests.enforcer.agent.test_sleepers import status
from tests.regions.plain_regions import MIB, PLAIN

NOW = datetime.fromtimestamp(START, UTC)


@dataclass
class FakeReader:
    """Sees what it is told to."""

    view: NodeView
    is_blind: bool = False

    def read(self, deadline_seconds: float) -> NodeView:
        del deadline_seconds
        if self.is_blind:
            raise Unavailable("cannot look at the cards: the driver has not answered")
        return self.view


@dataclass
class Actions:
    """An API server that notes what is asked of it, or is away."""

    is_away: bool = False
    misses_right: bool = False
    done: list[tuple[object, ...]] = field(default_factory=list)
    closed: dict[str, float] = field(default_factory=dict)

    def evict(self, namespace: str, pod: str, short_of: Shortage) -> None:
        self._note("evict", namespace, pod, *([] if short_of is Shortage.FRAMEBUFFER else [short_of]))

    def close_card(self, card: str, until_seconds: float) -> None:
        self._note("close", card)
        self.closed[card] = until_seconds

    def open_cards(self, now_seconds: float) -> tuple[str, ...]:
        self._check()
        over = tuple(card for card, until in self.closed.items() if until <= now_seconds)
        for card in over:
            del self.closed[card]
        return over

    def account(self, seat: SliceView, limit: WantedLimit) -> None:
        assert seat.key == limit.container
        self._note("account", limit.container.pod_uid, limit.framebuffer_bytes)

    def _check(self) -> None:
        if self.misses_right:
            raise Misconfigured("cannot do that: a right is missing")

    def _note(self, *what: object) -> None:
        self._check()
        if self.is_away:
            raise Unavailable("cannot reach the API server")
        self.done.append(what)


@dataclass
class World:
    """A node with a low-priority pod 1 and a high-priority pod 2."""

    containers: Path
    state: Path
    reader: FakeReader
    actions: Actions
    now: float = 0.0
    others: tuple[SliceView, ...] = ()

    def agent(
        self,
        manner: GiveWayManner = GiveWayManner.STRICT,
        host_memory: Callable[[], tuple[HostMemory, ...]] | None = None,
    ) -> NodeAgent:
        return NodeAgent(
            self.reader,
            self.actions,
            AgentFolders(containers=self.containers, state=self.state),
            AgentSettings(give_way=manner, framebuffer_free_ratio_min=0.05),
            host_memory=host_memory,
            clock=lambda: self.now,
        )

    def see(self, *, duty: float | None = 0.0, at: float = 0.0, free: int = 40 * GIB) -> None:
        self.now = at
        low = slice_of(1, Priority.LOW, framebuffer_granted_bytes=4000 * MIB, framebuffer_limit_bytes=self.limit(1))
        high = slice_of(2, Priority.HIGH, duty_cycle_ratio=duty, framebuffer_granted_bytes=4000 * MIB)
        low, high = replace(low, framebuffer_used_bytes=GIB), replace(high, framebuffer_limit_bytes=self.limit(2))
        self.reader.view = view_of(low, replace(high, framebuffer_used_bytes=GIB), *self.others, at=at, free=free)

    def limit(self, number: int) -> int:
        with open_for_writing(region_path(self.containers, number)) as region:
            return region.limits[0]


@pytest.fixture
def world(containers: Path, tmp_path: Path) -> World:
    for number in (1, 2):
        add_region(containers, number, cards=(CARD,), limit=4000 * MIB)
    made = World(containers=containers, state=tmp_path / "state", reader=FakeReader(view_of()), actions=Actions())
    made.see()
    return made


def orders(**fields: object) -> str:
    values = {"issued_at": NOW - timedelta(minutes=1), "expires_at": NOW + timedelta(minutes=10), **fields}
    return orders_text(Orders(**values))  # type: ignore[arg-type]


def acts(world: World) -> list[str]:
    return [str(act["act"]) for act in Acts(world.state / "acts.jsonl").read()]


def test_low_priority_sleeps_while_high_priority_works(world: World) -> None:
    agent = world.agent()
    assert agent.look(1.0).slept == ()
    world.see(duty=0.5, at=1.0)
    assert agent.look(1.0).slept == (key_of(1),)
    assert (status(world.containers, 1), status(world.containers, 2)) == (2, 1)
    look_on(world, agent, 2.0, 5.0)
    world.see(at=6.5)
    assert agent.look(1.0).woke == (key_of(1),)
    assert status(world.containers, 1) == 1
    assert acts(world) == ["sleep", "wake"]


def look_on(world: World, agent: NodeAgent, begin: float, end: float) -> None:
    """Look once a second while high priority does nothing."""
    for at in range(round(begin), round(end) + 1):
        world.see(at=float(at))
        agent.look(1.0)


def put_recent(world: World, number: int, value: int) -> None:
    """Write what the library or HAMi's monitor writes into `recent_kernel`."""
    with region_path(world.containers, number).open("r+b") as file:
        file.seek(PLAIN["v1.2"].proc_num + 8)
        file.write(struct.pack("<i", value))


def recent(world: World, number: int) -> int:
    raw = region_path(world.containers, number).read_bytes()
    return int(struct.unpack_from("<i", raw, PLAIN["v1.2"].proc_num + 8)[0])


def proven(world: World) -> NodeAgent:
    """An agent that knows that high priority does nothing when it launches nothing; the clock says 9."""
    agent = world.agent()
    for at, duty, launches in ((0.0, 0.0, False), (1.0, 0.5, True), (2.0, 0.5, False), (3.5, 0.0, False)):
        if launches:
            put_recent(world, 2, 2)
        world.see(duty=duty, at=at)
        agent.look(1.0)
    look_on(world, agent, 4.0, 9.0)
    assert (status(world.containers, 1), agent.asleep) == (1, 0)
    return agent


def test_launch_puts_low_priority_to_sleep_between_two_looks_and_its_end_wakes_it(world: World) -> None:
    agent = proven(world)
    world.now = 9.02
    assert agent.pace().slept == ()
    put_recent(world, 2, 2)
    world.now = 9.04
    assert agent.pace().slept == (key_of(1),)
    assert status(world.containers, 1) == 2
    for at in (9.06, 9.08, 9.1, 9.12):
        world.now = at
        assert (agent.pace().woke, status(world.containers, 1)) == ((), 2)
    world.now = 9.15
    assert agent.pace().woke == (key_of(1),)
    assert (status(world.containers, 1), recent(world, 2)) == (1, 0)
    # The next look writes them down.
    before = acts(world)
    world.see(at=9.5)
    agent.look(1.0)
    assert acts(world) == [*before, "sleep", "wake"]


def test_waking_takes_the_block_of_hamis_monitor_away_once(world: World) -> None:
    agent = proven(world)
    put_recent(world, 2, 2)
    world.now = 9.02
    agent.pace()
    put_recent(world, 1, -1)
    world.now = 9.2
    assert agent.pace().woke == (key_of(1),)
    assert recent(world, 1) == 0
    # A block that comes later is not about what this waking knew.
    put_recent(world, 1, -1)
    world.see(at=9.5)
    agent.look(1.0)
    assert recent(world, 1) == -1


@pytest.mark.parametrize(("ranks", "is_unblocked"), [((1, 1), True), ((1, 2), False)])
def test_block_between_two_pods_of_low_priority_stays(world: World, ranks: tuple[int, int], is_unblocked: bool) -> None:
    """HAMi's monitor blocks whoever has the larger number; that the one above both is idle says nothing of that."""
    for number, rank in zip((1, 3), ranks, strict=True):
        region_path(world.containers, number).unlink(missing_ok=True)
        add_region(world.containers, number, cards=(CARD,), limit=4000 * MIB, priority=rank)
    world.others = (slice_of(3, Priority.LOW),)
    agent = proven(world)
    put_recent(world, 2, 2)
    world.now = 9.02
    assert set(agent.pace().slept) == {key_of(1), key_of(3)}
    put_recent(world, 3, -1)
    world.now = 9.2
    assert set(agent.pace().woke) == {key_of(1), key_of(3)}
    assert (recent(world, 3) == 0) == is_unblocked


def test_launches_of_a_pod_with_an_equal_on_another_card_stay_counted(world: World) -> None:
    """There nobody of low priority sits, and HAMi's monitor goes by these launches between the two."""
    world.others = (
        slice_of(2, Priority.HIGH, card=OTHER_CARD),
        slice_of(4, Priority.HIGH, card=OTHER_CARD),
    )
    agent = proven(world)
    put_recent(world, 2, 2)
    world.now = 9.02
    agent.pace()
    world.now = 9.2
    assert agent.pace().woke == (key_of(1),)
    assert recent(world, 2) == LAUNCH_SEEN


def test_block_of_hamis_monitor_stays_where_launches_are_not_believed(world: World) -> None:
    agent = world.agent()
    agent.look(1.0)
    put_recent(world, 1, -1)
    world.see(at=0.5)
    agent.look(1.0)
    assert (recent(world, 1), status(world.containers, 1)) == (-1, 1)


def test_who_may_have_to_sleep_between_two_looks_is_listed_before(world: World) -> None:
    agent = proven(world)
    put_recent(world, 2, 2)
    world.now = 9.02
    agent.pace()
    assert status(world.containers, 1) == 2
    # It is killed here; the next one wakes whom it finds on the list.
    again = world.agent()
    world.see(at=20.0)
    put_recent(world, 2, 0)
    assert again.look(1.0).woke == (key_of(1),)
    assert status(world.containers, 1) == 1


def test_agent_that_stopped_puts_nobody_to_sleep_any_more(world: World) -> None:
    agent = proven(world)
    agent.stop()
    put_recent(world, 2, 2)
    world.now = 9.02
    assert (agent.pace().is_needed, status(world.containers, 1)) == (False, 1)


def test_orders_that_pause_a_pod_hold_while_launches_come_and_go(world: World) -> None:
    agent = proven(world)
    agent.take_orders(orders(paused=(key_of(1),)))
    world.see(at=9.5)
    assert agent.look(1.0).slept == (key_of(1),)
    put_recent(world, 2, 2)
    for at in (9.52, 9.8, 10.0):
        world.now = at
        assert agent.pace().woke == ()
    assert status(world.containers, 1) == 2


@pytest.mark.parametrize("harm", ["truncated", "removed", "forged"])
def test_region_of_high_priority_that_is_spoilt_puts_low_priority_to_sleep(world: World, harm: str) -> None:
    agent = proven(world)
    path = region_path(world.containers, 2)
    if harm == "truncated":
        os.truncate(path, 100)
    elif harm == "removed":
        path.unlink()
        agent.look(1.0)
    else:
        put_recent(world, 2, 12345)
    world.now = 9.02
    agent.pace()
    assert status(world.containers, 1) == 2


@pytest.mark.parametrize("harm", ["truncated", "two"])
def test_region_of_high_priority_whose_launches_can_not_be_looked_at_is_told(world: World, harm: str) -> None:
    agent = proven(world)
    path = region_path(world.containers, 2)
    whole = path.read_bytes()
    if harm == "truncated":
        os.truncate(path, 100)
    else:
        path.unlink()
        for number in (1, 2):
            path.with_name(f"0f1e2d3c-{number:04}-4000-8000-000000000001.cache").write_bytes(whole)
    agent.look(1.0)
    for _ in range(2):
        (why,) = agent.look(1.0).refused
        assert why.startswith("cannot look at launches: ")
    for entry in path.parent.iterdir():
        entry.unlink()
    # One without a region has called nothing yet: that is no failure.
    assert [agent.look(1.0).refused for _ in range(KEEPS_BETWEEN)][-1] == ()
    path.write_bytes(whole)
    assert [agent.look(1.0).refused for _ in range(KEEPS_BETWEEN)][-1] == ()


@pytest.mark.parametrize("harm", ["truncated", "removed", "forged"])
def test_region_of_low_priority_that_is_spoilt_is_refused_and_others_still_sleep(world: World, harm: str) -> None:
    agent = world.agent()
    path = add_region(world.containers, 3, cards=(CARD,))
    lows = (slice_of(1, Priority.LOW), slice_of(3, Priority.LOW))
    world.reader.view = view_of(*lows, slice_of(2, Priority.HIGH))
    agent.look(1.0)
    if harm == "truncated":
        os.truncate(path, 100)
    elif harm == "removed":
        path.unlink()
    else:
        path.write_bytes(b"\xff" * path.stat().st_size)
    world.reader.view = view_of(*lows, slice_of(2, Priority.HIGH, duty_cycle_ratio=0.5), at=1.0)
    world.now = 1.0
    look = agent.look(1.0)
    assert (look.slept, status(world.containers, 1)) == ((key_of(1),), 2)
    assert len(look.refused) == 1


def test_agent_that_stops_wakes_everybody(world: World) -> None:
    agent = world.agent()
    world.see(duty=0.5)
    agent.look(1.0)
    agent.stop()
    assert status(world.containers, 1) == 1


def test_agent_that_stops_tries_again_where_somebody_does_not_wake_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.agent()
    world.see(duty=0.5)
    agent.look(1.0)
    real = os.pwrite

    def fails_once(fd: int, data: bytes, offset: int) -> int:
        monkeypatch.setattr(os, "pwrite", real)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", fails_once)
    agent.stop()
    assert status(world.containers, 1) == 1
    assert acts(world) == ["sleep", "wake"]


def test_pod_goes_and_its_card_is_closed_first_when_framebuffer_runs_out(world: World) -> None:
    agent = world.agent()
    world.see(free=GIB)
    look = agent.look(1.0)
    assert [entry.pod for entry in agent.reach(look.view).evicted] == ["pod-1"]
    assert world.actions.done == [("close", CARD), ("evict", "team", "pod-1")]
    assert look.slept == (key_of(1),)
    world.see(at=700.0)
    assert agent.reach(agent.look(1.0).view).opened == (CARD,)
    look_on(world, agent, 701.0, 706.0)
    assert acts(world) == ["sleep", "evict", "open", "wake"]


LENDERS = tuple(
    slice_of(number, Priority.NORMAL, framebuffer_used_bytes=50 * GIB, framebuffer_granted_bytes=60 * GIB)
    for number in (5, 6)
)
"""Pods that hold more together than their card has."""


def test_pod_whose_framebuffer_lies_in_host_memory_goes_before_that_runs_out(world: World) -> None:
    memory = [HostMemory(total_bytes=100 * GIB, available_bytes=2 * GIB)]
    agent = world.agent(host_memory=lambda: tuple(memory))
    view = replace(world.reader.view, slices=LENDERS)
    assert agent.reach(view).evicted == (), "an agent that was just started doesn't know who left a moment ago"
    view = replace(view, at_seconds=view.at_seconds + 30.0)
    assert [entry.pod for entry in agent.reach(view).evicted] == ["pod-5"]
    assert world.actions.done == [("close", CARD), ("evict", "team", "pod-5", Shortage.HOST_MEMORY)]
    (act,) = Acts(world.state / "acts.jsonl").read()
    assert (act["act"], act["short_of"], act["frees_bytes"]) == ("evict", "host_memory", 20 * GIB)
    assert world.agent().reach(view).evicted == (), "a backend that moves nothing there is left alone"


def test_host_memory_that_nobody_knows_is_told_where_it_counts(world: World) -> None:
    agent = world.agent(host_memory=tuple)
    assert agent.reach(world.reader.view).refused == ()
    reach = agent.reach(replace(world.reader.view, slices=LENDERS))
    assert reach.evicted == ()
    assert reach.refused == ("cannot watch host memory, to which framebuffer may move: meminfo shows no MemAvailable",)


def test_while_the_api_server_is_away_low_priority_sleeps_and_goes_later(world: World) -> None:
    agent = world.agent()
    world.actions.is_away = True
    world.see(free=GIB)
    look = agent.look(1.0)
    reach = agent.reach(look.view)
    assert (reach.evicted, look.slept) == ((), (key_of(1),))
    assert any("cannot evict team/pod-1" in text for text in reach.refused)
    world.actions.is_away = False
    world.see(free=GIB, at=40.0)
    assert [entry.pod for entry in agent.reach(agent.look(1.0).view).evicted] == ["pod-1"]


def test_orders_change_limits_and_tell_the_books(world: World) -> None:
    agent = world.agent()
    wanted = [
        WantedLimit(container=key_of(number), card=CARD, framebuffer_bytes=mib * MIB)
        for number, mib in ((2, 5000), (1, 3000))
    ]
    agent.take_orders(orders(limits=tuple(wanted)))
    reach = agent.reach(agent.look(1.0).view)
    assert [entry.framebuffer_bytes for entry in reach.limits] == [3000 * MIB, 5000 * MIB]
    assert (world.limit(1), world.limit(2)) == (3000 * MIB, 5000 * MIB)
    assert [what[2] for what in world.actions.done] == [3000 * MIB, 5000 * MIB]
    world.see(at=1.0)
    assert agent.reach(agent.look(1.0).view).limits == ()


def test_limit_does_not_grow_where_the_books_can_not_be_told(world: World) -> None:
    agent = world.agent()
    world.actions.is_away = True
    agent.take_orders(orders(limits=(WantedLimit(container=key_of(1), card=CARD, framebuffer_bytes=5000 * MIB),)))
    assert any("cannot limit" in text for text in agent.reach(agent.look(1.0).view).refused)
    assert world.limit(1) == 4000 * MIB


def test_last_orders_are_kept_for_a_restart_and_end_when_they_expire(world: World) -> None:
    agent = world.agent(GiveWayManner.OFF)
    agent.take_orders(orders(paused=(key_of(1),), give_way=GiveWayManner.OFF))
    assert agent.look(1.0).slept == (key_of(1),)
    again = world.agent(GiveWayManner.OFF)
    world.see(at=599.0)
    assert again.look(1.0).woke == ()
    assert status(world.containers, 1) == 2
    world.see(at=600.0)
    assert again.look(1.0).woke == (key_of(1),)


def test_orders_name_another_manner_as_long_as_they_count(world: World) -> None:
    agent = world.agent(GiveWayManner.OFF)
    agent.take_orders(orders(give_way=GiveWayManner.STRICT))
    world.see(duty=0.5)
    assert agent.look(1.0).slept == (key_of(1),)
    world.see(duty=0.5, at=700.0)
    assert agent.look(1.0).woke == (key_of(1),)


def test_bad_and_older_orders_leave_the_ones_before(world: World) -> None:
    agent = world.agent(GiveWayManner.OFF)
    agent.take_orders(orders(paused=(key_of(1),)))
    with pytest.raises(Corrupt, match="not JSON"):
        agent.take_orders("{")
    with pytest.raises(Corrupt, match="newer ones"):
        agent.take_orders(orders(issued_at=NOW - timedelta(hours=1)))
    assert agent.look(1.0).slept == (key_of(1),)


def test_nobody_sleeps_on_while_the_driver_says_nothing_for_long(world: World) -> None:
    agent = world.agent()
    world.see(duty=0.5)
    agent.look(1.0)
    world.reader.is_blind = True
    for seconds, expected in ((1.0, 2), (BLIND_SECONDS, 1)):
        world.now = seconds
        with pytest.raises(Unavailable):
            agent.look(1.0)
        assert status(world.containers, 1) == expected
    world.reader.is_blind = False
    assert agent.look(1.0).slept == (key_of(1),)


def test_region_that_lies_is_told_and_left_alone(world: World) -> None:
    path = region_path(world.containers, 1)
    path.write_bytes(b"\0" * path.stat().st_size)
    before = path.read_bytes()
    agent = world.agent()
    low = slice_of(1, Priority.LOW)
    world.reader.view = view_of(low, slice_of(2, Priority.HIGH, duty_cycle_ratio=0.5))
    look = agent.look(1.0)
    assert any("uninitialised" in text for text in look.refused)
    assert (look.slept, path.read_bytes()) == ((), before)


def test_right_that_is_missing_is_told_and_the_node_goes_on(world: World) -> None:
    agent = world.agent()
    world.actions.misses_right = True
    world.see(free=GIB)
    agent.take_orders(orders(limits=(WantedLimit(container=key_of(2), card=CARD, framebuffer_bytes=5000 * MIB),)))
    look = agent.look(1.0)
    assert look.slept == (key_of(1),)
    refused = agent.reach(look.view).refused
    assert {text.split(":")[0].split()[1] for text in refused} == {"close", "evict", "open", "limit"}


def test_act_after_a_line_that_a_crash_left_half_written_is_kept(tmp_path: Path) -> None:
    (tmp_path / "acts.jsonl").write_bytes(b'{"at": "2026')
    Acts(tmp_path / "acts.jsonl").write(NOW, "sleep", number=1)
    assert [act["act"] for act in Acts(tmp_path / "acts.jsonl").read()] == ["sleep"]


def test_many_acts_wait_for_storage_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    record = Acts(tmp_path / "acts.jsonl")
    record.write_all([(NOW, "sleep", {"number": number}) for number in range(100)])
    assert len(synced) == 1
    assert [act["number"] for act in record.read()] == list(range(100))
    record.write_all([])
    assert len(synced) == 1


def test_acts_are_bounded(tmp_path: Path) -> None:
    record = Acts(tmp_path / "acts.jsonl", bytes_max=1000)
    for number in range(100):
        record.write(NOW, "sleep", number=number)
    assert record.read()[-1]["number"] == 99
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2000
