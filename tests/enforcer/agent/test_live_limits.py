"""Which framebuffer limits may be set: never above the card, never below what is in use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enforcer.agent.live_limits import WantedLimit, decide_limits
from fleet.inventory import Priority
from fleet.units import MIB
from tests.enforcer.agent.nodes import CARD, CARD_BYTES, GIB, OTHER_CARD, key_of, slice_of, view_of


def wanted(number: int, gib: float, card: str = CARD) -> WantedLimit:
    return WantedLimit(container=key_of(number), card=card, framebuffer_bytes=int(gib * GIB))


def seat(number: int, granted_gib: float, used_gib: float | None = 1.0, limit_gib: float | None = None) -> object:
    return slice_of(
        number,
        Priority.NORMAL,
        framebuffer_granted_bytes=int(granted_gib * GIB),
        framebuffer_used_bytes=None if used_gib is None else int(used_gib * GIB),
        framebuffer_limit_bytes=int((granted_gib if limit_gib is None else limit_gib) * GIB),
    )


def test_what_stands_there_already_is_not_written_again() -> None:
    view = view_of(seat(1, 10))  # type: ignore[arg-type]
    assert decide_limits([wanted(1, 10)], view).to_write == ()


def test_limit_in_the_books_that_never_reached_the_region_is_written() -> None:
    view = view_of(seat(1, 10, limit_gib=8))  # type: ignore[arg-type]
    assert decide_limits([wanted(1, 10)], view).to_write == (wanted(1, 10),)


def test_limit_in_the_region_that_never_reached_the_books_is_told_again_once() -> None:
    view = view_of(seat(1, 10, limit_gib=8))  # type: ignore[arg-type]
    assert decide_limits([wanted(1, 8)], view).to_write == (wanted(1, 8),)
    assert decide_limits([wanted(1, 8)], view, frozenset({wanted(1, 8)})).to_write == ()


def test_shrinking_goes_first_and_makes_the_room() -> None:
    view = view_of(seat(1, 40), seat(2, 40))  # type: ignore[arg-type]
    decision = decide_limits([wanted(1, 50), wanted(2, 30)], view)
    assert decision.to_write == (wanted(2, 30), wanted(1, 50))
    (refused,) = decide_limits([wanted(1, 50)], view).refused
    assert "hold" in refused[1]


def test_each_refusal_names_its_reason() -> None:
    view = view_of(seat(1, 40, 20), seat(2, 10, None))  # type: ignore[arg-type]
    decision = decide_limits([wanted(1, 90), wanted(2, 5), wanted(3, 1), wanted(1, 10, OTHER_CARD)], view)
    assert decision.to_write == ()
    reasons = {entry.place: why for entry, why in decision.refused}
    assert "more than the card's" in reasons[wanted(1, 90).place]
    assert "not known" in reasons[wanted(2, 5).place]
    assert "no such container" in reasons[wanted(3, 1).place]
    assert "no such container" in reasons[wanted(1, 10, OTHER_CARD).place]
    ((_, why),) = decide_limits([wanted(1, 19)], view).refused
    assert "uses" in why


def test_card_that_is_granted_more_than_once_only_shrinks() -> None:
    view = view_of(seat(1, 60), seat(2, 60))  # type: ignore[arg-type]
    assert decide_limits([wanted(1, 50)], view).to_write == (wanted(1, 50),)
    assert decide_limits([wanted(1, 61)], view).to_write == ()


sizes = st.integers(min_value=1, max_value=CARD_BYTES // MIB).map(lambda mib: mib * MIB)


@given(st.data())
def test_no_prefix_of_what_is_written_holds_more_than_the_card(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 5))
    granted = data.draw(st.lists(sizes, min_size=number, max_size=number).filter(lambda all_: sum(all_) <= CARD_BYTES))
    used = [data.draw(st.integers(0, amount)) for amount in granted]
    slices = [
        slice_of(
            place, Priority.NORMAL, framebuffer_granted_bytes=granted[place], framebuffer_limit_bytes=granted[place],
            framebuffer_used_bytes=used[place],
        )
        for place in range(number)
    ]  # fmt: skip
    orders = [
        WantedLimit(container=key_of(data.draw(st.integers(0, number))), card=CARD, framebuffer_bytes=data.draw(sizes))
        for _ in range(data.draw(st.integers(0, 6)))
    ]
    held = dict(enumerate(granted))
    for entry in decide_limits(orders, view_of(*slices)).to_write:
        place = next(place for place in held if key_of(place) == entry.container)
        assert entry.framebuffer_bytes >= used[place]
        held[place] = entry.framebuffer_bytes
        assert sum(held.values()) <= CARD_BYTES
