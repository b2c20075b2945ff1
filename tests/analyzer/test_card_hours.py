"""What becomes of a card hour: idle windows, and parts that sum to what was allocated."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzer.state.card_hours import SeenHours, idle_hours, measured_parts
from fleet.settings.settings import AnalyzerSettings

SETTINGS = AnalyzerSettings(idle_seconds=4 * 3600)
"""An idle window of four hours."""


def hours(text: str) -> NDArray[np.bool_]:
    """One row; `x` is True."""
    return np.array([[letter == "x" for letter in text]], np.bool_)


def idle(
    used: str, *, known: str | None = None, held: str | None = None, card: str | None = None, is_low: bool = False,
    neighbour: str | None = None, spins: str | None = None,
) -> str:  # fmt: skip
    """The idle hours of the first slice of a card."""
    everything, nothing = "x" * len(used), "." * len(used)
    slices = [(used, known or everything, held or everything, is_low)]
    if neighbour is not None:
        slices.append((neighbour, everything, everything, False))
    found = idle_hours(
        SeenHours(
            known=np.concatenate([hours(one[1]) for one in slices]),
            used=np.concatenate([hours(one[0]) for one in slices]),
            spins=np.concatenate([hours(spins or nothing), *(hours(nothing) for _ in slices[1:])]),
        ),
        SeenHours(known=hours(everything if card else nothing), used=hours(card or nothing), spins=hours(nothing)),
        np.zeros(len(slices), np.int64),
        held=np.concatenate([hours(one[2]) for one in slices]),
        is_low=np.array([one[3] for one in slices], np.bool_),
        settings=SETTINGS,
    )
    return "".join("x" if one else "." for one in found[0])


def test_an_hour_is_idle_when_it_belongs_to_an_idle_window() -> None:
    assert idle("x....x...x") == ".xxxx....."


def test_hours_without_samples_or_before_the_grant_are_not_idle() -> None:
    assert idle("......", known="..xxxx") == "..xxxx"
    assert idle("......", held="..xxx.") == "......"


def test_a_silent_slice_is_idle_where_its_card_is_seen_to_rest() -> None:
    assert idle(".....", known=".....") == "....."
    assert idle(".....", known=".....", card=".....") == "xxxxx"


def test_a_slice_that_reads_zero_on_a_card_that_works_is_not_idle() -> None:
    assert idle(".....", card="xxxxx") == "....."
    assert idle(".....", card="xxxxx", neighbour="xxxxx") == "xxxxx"


def test_what_a_server_does_for_nobody_explains_that_its_card_works() -> None:
    assert idle(".....", spins="xxxxx", card="xxxxx") == "xxxxx"


def test_giving_way_to_a_neighbour_is_no_idleness() -> None:
    assert idle(".....", card="xxxxx", neighbour="xxxxx", is_low=True) == "....."


@given(st.lists(st.booleans(), min_size=20, max_size=40), st.integers(7, 13))
def test_days_counted_one_by_one_add_up_to_the_week(used: list[bool], cut: int) -> None:
    text = "".join("x" if one else "." for one in used)
    whole, margin = idle(text), 3
    assert idle(text[: cut + margin])[:cut] + idle(text[cut - margin :])[margin:] == whole


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans(), st.booleans()), min_size=1, max_size=9
    )
)
def test_parts_sum_to_what_was_allocated(rows: list[tuple[int, int, bool, bool]]) -> None:
    allocated, used, is_idle, is_held = (np.array(column) for column in zip(*rows, strict=True))
    parts = measured_parts(allocated, used, is_idle=is_idle, is_held=is_held)
    assert np.array_equal(np.sum(list(parts.values()), axis=0), allocated)
    assert all((part >= 0).all() for part in parts.values())
