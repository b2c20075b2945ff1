"""Low priority sleeps while high priority works, and wakes when nobody wants it asleep any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from enforcer.agent.give_way import STALE_SECONDS_MIN, GiveWay
from enforcer.agent.launches import SeenLaunches
from enforcer.agent.node_view import SliceView
from fleet.inventory import Priority
from fleet.settings.agent import AgentSettings, GiveWayManner
from tests.enforcer.agent.nodes import CARD, OTHER_CARD, key_of, slice_of, view_of

LOW = slice_of(1, Priority.LOW, duty_cycle_ratio=0.4)
STRICT = AgentSettings(give_way=GiveWayManner.STRICT, quiet_seconds=5, release_seconds=0.1)


def high(duty: float | None) -> SliceView:
    return slice_of(2, Priority.HIGH, duty_cycle_ratio=duty)


def sleepers(
    guard: GiveWay, *slices: SliceView, at: float = 0.0, duty: float | None = 0.5, short: bool = False
) -> Sequence[int]:
    """Take a view, and say which of the containers 1 and 2 sleep."""
    guard.see(view_of(*slices, at=at, duty=duty), at, frozenset({CARD} if short else ()))
    return [number for number in (1, 2) if key_of(number) in guard.step(at, {}).asleep]


@pytest.mark.parametrize(
    ("manner", "duty_of_high", "duty_of_card", "sleeps"),
    [
        (GiveWayManner.STRICT, 0.02, 0.3, True),
        (GiveWayManner.STRICT, 0.0, 1.0, False),
        (GiveWayManner.PRESSURE, 0.5, 0.9, False),
        (GiveWayManner.PRESSURE, 0.5, 0.97, True),
        (GiveWayManner.PRESSURE, 0.0, 1.0, False),
        (GiveWayManner.OFF, 1.0, 1.0, False),
        # Who is not measured counts as working.
        (GiveWayManner.STRICT, None, 0.3, True),
        (GiveWayManner.PRESSURE, 0.5, None, True),
    ],
)
def test_who_sleeps(
    manner: GiveWayManner, duty_of_high: float | None, duty_of_card: float | None, sleeps: bool
) -> None:
    guard = GiveWay(AgentSettings(give_way=manner))
    assert sleepers(guard, LOW, high(duty_of_high), duty=duty_of_card) == ([1] if sleeps else [])


def test_normal_priority_is_above_low_and_never_sleeps() -> None:
    assert sleepers(GiveWay(STRICT), LOW, slice_of(2, Priority.NORMAL, duty_cycle_ratio=0.5)) == [1]


def test_work_on_another_card_puts_nobody_to_sleep() -> None:
    elsewhere = slice_of(2, Priority.HIGH, duty_cycle_ratio=1.0, card=OTHER_CARD)
    assert sleepers(GiveWay(STRICT), LOW, elsewhere) == []


def test_low_priority_alone_runs_at_full_speed() -> None:
    assert sleepers(GiveWay(STRICT), LOW, duty=1.0) == []


@pytest.mark.parametrize("manner", [GiveWayManner.STRICT, GiveWayManner.PRESSURE])
def test_it_wakes_when_nobody_worked_for_a_while_and_not_between_two_requests(manner: GiveWayManner) -> None:
    guard = GiveWay(AgentSettings(give_way=manner, quiet_seconds=5))
    asleep = [
        bool(sleepers(guard, LOW, high(0.5 if at in (0, 4) else 0.0), at=float(at), duty=1.0)) for at in range(12)
    ]
    assert asleep == [True] * 9 + [False] * 3


def test_who_is_gone_is_forgotten_at_once() -> None:
    guard = GiveWay(STRICT)
    assert sleepers(guard, LOW, high(0.5)) == [1]
    assert sleepers(guard, high(0.5), at=1.0) == []
    assert sleepers(guard, LOW, at=1.5) == []


def test_framebuffer_that_runs_out_puts_low_priority_to_sleep_whatever_else_is_so() -> None:
    assert sleepers(GiveWay(AgentSettings(give_way=GiveWayManner.OFF)), LOW, high(0.0), short=True) == [1]


def test_container_whose_uid_is_not_known_is_left_awake() -> None:
    unknown = slice_of(1, Priority.LOW, pod_uid=None)
    assert sleepers(GiveWay(STRICT), unknown, high(0.5)) == []


def test_container_above_whose_uid_is_not_known_is_judged_by_its_duty_cycle() -> None:
    assert sleepers(GiveWay(STRICT), LOW, slice_of(2, Priority.HIGH, pod_uid=None, duty_cycle_ratio=0.5)) == [1]


@dataclass
class Card:
    """A card that pods 1 (low) and 2 (high) share, stepped every 20 ms and seen twice a second."""

    guard: GiveWay = field(default_factory=lambda: GiveWay(STRICT))
    at: float = 0.0
    steps: int = 0
    launched_at: float = -math.inf
    slept: list[float] = field(default_factory=list)
    woke: list[float] = field(default_factory=list)
    is_asleep: bool = False
    is_free: bool = False
    awake_seconds: float = 0.0

    def run(
        self,
        seconds: float,
        *,
        launches: bool | None,
        duty: float | Callable[[float], float] | None = 0.0,
        switch: int = 1,
        lasts: float = 0.0,
        sees: bool = True,
    ) -> Card:
        """Let time go on; `launches` None for a region that can't be read, `lasts` the time after which duty is 0."""
        until, begun = self.at + seconds - 1e-9, self.at
        while self.at < until:
            if launches:
                self.launched_at = self.at
            shown_launches = SeenLaunches(launched_at=self.launched_at, has_switch=switch != 0)
            looks = {} if launches is None else {key_of(2): shown_launches}
            if sees and self.steps % 25 == 0:
                measured = duty(self.at) if callable(duty) else duty
                shown = 0.0 if lasts and self.at - begun > lasts else measured
                self.guard.step(self.at, looks)
                self.guard.see(view_of(LOW, high(shown), at=self.at), self.at)
            turn = self.guard.step(self.at, looks)
            self.is_free = key_of(1) in turn.free
            if (key_of(1) in turn.asleep) != self.is_asleep:
                self.is_asleep = not self.is_asleep
                (self.slept if self.is_asleep else self.woke).append(self.at)
            self.awake_seconds += 0.0 if self.is_asleep else 0.02
            self.steps += 1
            self.at = self.steps * 0.02
        return self

    def pause(self, seconds: float = 6.0) -> Card:
        """High priority stops; the driver's mean of a second, and the age of a view, end after it."""
        return self.run(seconds, launches=False, duty=0.5, lasts=1.2)

    def burst(self, seconds: float = 1.0, *, switch: int = 1) -> Card:
        return self.run(seconds, launches=True, duty=0.5, switch=switch)


def proven() -> Card:
    """A card whose high priority has shown that its duty cycle ends with its launches."""
    card = Card().burst().pause()
    assert not card.is_asleep
    assert card.is_free
    return card


def test_first_launch_puts_low_priority_to_sleep_in_the_same_step() -> None:
    card = proven()
    began = card.at
    card.burst(0.1)
    assert card.slept[-1] == began


def test_container_that_is_not_proven_yet_is_waited_for_until_its_duty_cycle_is_over() -> None:
    card = Card().burst()
    ended = card.at
    card.run(1.9, launches=False, duty=0.5, lasts=1.2)
    assert card.is_asleep
    assert not card.is_free
    card.run(0.6, launches=False)
    assert 1.9 < card.woke[-1] - ended <= 2.5


def test_proven_container_is_waited_for_by_the_time_of_release_alone() -> None:
    card = proven().burst()
    ended = card.at
    card.pause()
    assert card.woke[-1] - ended == pytest.approx(0.08, abs=0.021)
    assert len(card.woke) == 2


def test_pause_between_two_requests_that_is_shorter_than_the_release_wakes_nobody() -> None:
    card = proven()
    switches = len(card.slept) + len(card.woke)
    for _ in range(50):
        card.run(0.02, launches=True, duty=0.5).run(0.08, launches=False, duty=0.5)
    assert len(card.slept) + len(card.woke) == switches + 1


def test_work_that_no_launch_explains_puts_low_priority_to_sleep_and_takes_the_short_time_away() -> None:
    card = proven()
    began = card.at
    card.run(1.0, launches=False, duty=0.5)
    assert card.slept[-1] - began < 0.5
    ended = card.at
    card.run(6.0, launches=False)
    assert card.woke[-1] - ended > 4.0
    # One pause is not enough now; a second one is.
    card.burst().pause()
    assert not card.is_free
    card.burst().pause()
    assert card.is_free


def test_graphs_and_kernels_that_outlast_their_launch_never_earn_the_short_time() -> None:
    card = Card()
    for _ in range(4):
        card.burst(0.1).run(4.0, launches=False, duty=0.5).run(8.0, launches=False)
        assert not card.is_free
    assert min(woke - slept for slept, woke in zip(card.slept, card.woke, strict=True)) > 8.0


def test_container_whose_launches_never_show_is_judged_by_its_duty_cycle() -> None:
    card = Card().run(3.0, launches=False, duty=0.5)
    assert card.is_asleep
    ended = card.at
    card.run(8.0, launches=False)
    assert 4.0 < card.woke[-1] - ended < 5.1
    assert not card.is_free


def test_what_was_earned_under_one_switch_counts_for_that_one_alone() -> None:
    card = proven().run(0.5, launches=False, switch=0)
    assert not card.is_free
    assert card.run(0.5, launches=False, switch=1).is_free


def test_pause_that_began_under_another_switch_earns_nothing() -> None:
    card = Card().burst(switch=1).run(0.5, launches=False, duty=0.5, switch=1)
    card.run(8.0, launches=False, duty=0.5, lasts=0.7, switch=0)
    assert not card.is_free
    # Launches that are still seen just after the switch was turned are of the one before.
    card = Card().run(1.0, launches=False, switch=1).run(0.1, launches=True, duty=0.5, switch=0)
    card.run(8.0, launches=False, duty=0.5, lasts=1.2, switch=0)
    assert not card.is_free
    card.burst(switch=0).run(8.0, launches=False, duty=0.5, lasts=1.2, switch=0)
    assert card.is_free


def test_container_that_is_not_measured_counts_as_working_whatever_it_launches() -> None:
    card = proven().run(1.0, launches=False, duty=None)
    # Between two refills by the library nothing is there to be read.
    assert not card.is_asleep
    assert card.run(1.0, launches=False, duty=None).is_asleep
    assert card.run(10.0, launches=False, duty=None).is_asleep


def test_region_that_can_not_be_read_any_more_puts_low_priority_to_sleep_until_the_duty_cycle_speaks() -> None:
    card = proven()
    began = card.at
    card.run(8.0, launches=None)
    assert card.slept[-1] == began
    assert 4.9 < card.woke[-1] - began < 5.1
    assert not card.is_free


def test_load_that_flaps_is_left_alone_and_short_pauses_get_longer_to_wait_for() -> None:
    card = proven()
    woke = len(card.woke)
    began = card.at
    for _ in range(60):
        card.run(0.1, launches=True, duty=0.5).run(0.4, launches=False, duty=0.5)
    # 0.1, 0.2 and then 0.4 s are waited for.
    assert len(card.woke) - woke <= 3
    assert card.at - began == pytest.approx(30.0, abs=0.1)
    card.run(20.0, launches=False, duty=0.5, lasts=1.2).burst()
    ended = card.at
    card.pause()
    assert card.woke[-1] - ended < 0.2


@pytest.mark.parametrize("pause", [0.12, 0.3, 0.7, 1.06, 1.2, 2.0])
def test_low_priority_wakes_no_more_than_once_a_second_whatever_the_load(pause: float) -> None:
    card = proven()
    woke, began = len(card.woke), card.at
    while card.at - began < 30.0:
        card.run(0.02, launches=True, duty=0.5).run(pause, launches=False, duty=0.5)
    assert len(card.woke) - woke <= 30 + 3


@pytest.mark.parametrize("duty", [1.0, 0.5, 0.3])
@pytest.mark.parametrize("period", [0.5, 0.9, 1.1, 1.16, 1.24, 1.36, 1.5, 1.64, 1.74, 1.9, 2.0, 2.1, 2.5])
@pytest.mark.parametrize("late", [0.0, 0.16, 0.34])
def test_graphs_replayed_between_rare_launches_do_not_run_beside_low_priority(
    period: float, duty: float, late: float
) -> None:
    """High priority never stops: it launches one kernel a period, and replays graphs between."""
    card = proven().run(late, launches=False)
    awake, begun = card.awake_seconds, card.at
    while card.at - begun < 90.0:
        card.run(0.02, launches=True, duty=duty).run(period - 0.02, launches=False, duty=duty)
    assert card.awake_seconds - awake <= 0.1 * 90.0


def fading(ended: float) -> Callable[[float], float]:
    """The mean of the last second after work that ended, as late as the library reads it."""
    return lambda at: max(0.0, 1.12 - (at - ended))


@pytest.mark.parametrize("pause", [1.5, 1.64, 1.9, 2.1, 4.0])
def test_pauses_that_the_duty_cycle_bears_out_are_waited_for_by_the_short_time(pause: float) -> None:
    """What a stop leaves in the driver's mean of a second is no work."""
    card = proven()
    awake, begun = card.awake_seconds, card.at
    while card.at - begun < 60.0:
        card.run(1.0, launches=True, duty=1.0)
        card.run(pause, launches=False, duty=fading(card.at))
    idle = 60.0 * pause / (1.0 + pause)
    assert card.awake_seconds - awake >= (1.0 - 0.2 / pause) * idle - 1.0


def test_wish_of_two_cards_is_followed_where_one_of_them_is_taken() -> None:
    guard = GiveWay(STRICT)
    both = [LOW, slice_of(1, Priority.LOW, card=OTHER_CARD)]
    view = view_of(*both, high(0.5))
    cards = (*view.cards, type(view.cards[0])(
        card=OTHER_CARD, framebuffer_bytes=1, framebuffer_free_bytes=None, duty_cycle_ratio=None,
    ))  # fmt: skip
    guard.see(type(view)(at_seconds=view.at_seconds, cards=cards, slices=view.slices), 0.0)
    assert guard.step(0.0, {}).asleep == {key_of(1)}


@pytest.mark.parametrize("launches", [True, False])
def test_nobody_wakes_by_the_clock_alone_while_views_stop(launches: bool) -> None:
    """A pod that replays graphs launches without a sign: that its last launch is long ago says nothing by itself."""
    card = proven().run(0.5, launches=launches, duty=0.9)
    awake = card.awake_seconds
    card.run(20.0, launches=False, duty=0.9, sees=False)
    # Until the bound the last view counts.
    assert card.awake_seconds - awake <= STALE_SECONDS_MIN + 0.04
    assert card.is_asleep
    awake = card.awake_seconds
    card.run(1.0, launches=False, duty=0.9)
    assert card.awake_seconds == awake


def test_believed_container_that_nobody_sees_counts_as_not_measured() -> None:
    card = proven()
    began = card.at
    card.run(10.0, launches=False, sees=False)
    assert STALE_SECONDS_MIN - 0.5 <= card.slept[-1] - began <= STALE_SECONDS_MIN + 0.04
    assert card.is_asleep
    # It is believed again as soon as it is seen.
    card.run(0.1, launches=False)
    assert not card.is_asleep


@pytest.mark.parametrize("manner", [GiveWayManner.STRICT, GiveWayManner.PRESSURE])
def test_last_view_that_showed_work_wakes_nobody_however_short_the_quiet_time(manner: GiveWayManner) -> None:
    guard = GiveWay(AgentSettings(give_way=manner, interval_seconds=10.0, quiet_seconds=11))
    assert sleepers(guard, LOW, high(0.9), duty=1.0) == [1]
    for at in (1.0, 5.0, 19.0, 100.5):
        assert guard.is_due(at, frozenset({key_of(9)}))
        assert guard.step(at, {}).asleep == {key_of(1)}
    assert sleepers(guard, LOW, high(0.0), at=101.0, duty=1.0) == [1]
    assert sleepers(guard, LOW, high(0.0), at=112.1, duty=1.0) == []


def test_card_that_was_full_stays_so_while_views_stop() -> None:
    guard = GiveWay(AgentSettings(give_way=GiveWayManner.PRESSURE))
    assert sleepers(guard, LOW, high(0.9), duty=1.0) == [1]
    assert sleepers(guard, LOW, high(0.9), at=2.0, duty=0.5) == [1]
    for at in range(3, 60):
        assert guard.step(float(at), {}).asleep == {key_of(1)}
    assert sleepers(guard, LOW, high(0.9), at=60.0, duty=0.5) == [1]
    assert sleepers(guard, LOW, high(0.9), at=65.0, duty=0.5) == []


@pytest.mark.parametrize("manner", [GiveWayManner.STRICT, GiveWayManner.PRESSURE])
@pytest.mark.parametrize("duty", [0.5, None])
def test_card_that_is_missing_from_views_wakes_nobody(manner: GiveWayManner, duty: float | None) -> None:
    guard = GiveWay(AgentSettings(give_way=manner))
    assert sleepers(guard, LOW, high(0.5), duty=1.0) == [1]
    for at in range(1, 30):
        guard.see(replace(view_of(LOW, high(duty), at=at), cards=()), float(at))
        assert guard.step(float(at), {}).asleep == {key_of(1)}
    assert sleepers(guard, LOW, high(0.0), at=30.0, duty=1.0) == [1]
    assert sleepers(guard, LOW, high(0.0), at=36.0, duty=1.0) == []
    # Nobody is left on it: nothing is known of it any more.
    assert sleepers(guard, LOW, high(0.5), at=37.0, duty=1.0) == [1]
    guard.see(replace(view_of(), cards=()), 38.0)
    assert guard.step(38.0, {}).asleep == frozenset()


def test_card_that_is_missing_from_one_view_takes_no_short_time_away() -> None:
    card = proven()
    card.guard.see(replace(view_of(LOW, high(None)), cards=()), card.at)
    card.guard.step(card.at, {key_of(2): SeenLaunches(launched_at=card.launched_at, has_switch=True)})
    assert card.run(0.1, launches=False).is_free


def test_forgetting_wants_nobody_asleep() -> None:
    card = proven().burst(0.1)
    assert card.is_asleep
    card.guard.forget()
    assert card.guard.step(card.at, {}).asleep == frozenset()
    assert card.guard.watched == frozenset()
