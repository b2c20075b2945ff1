"""A card costs from the hour it came to the hour it went, and whoever holds a slice of it proves that it is there."""

from datetime import timedelta
from decimal import Decimal

from fleet.inventory import CardId, Inventory
from fleet.money.tenancies import lives_of, team_of, tenancies
from tests.fleet.money.builders import DAY, END, a_card, a_day, a_grant, charged, settled

FIRST, SECOND = CardId("GPU-0"), CardId("GPU-1")


def test_a_card_that_fell_silent_while_others_were_seen_is_gone() -> None:
    seen = {FIRST: (DAY, DAY + timedelta(hours=21)), SECOND: (DAY, END - timedelta(minutes=20))}
    assert lives_of(seen, until=END) == {FIRST: (DAY, DAY + timedelta(hours=21)), SECOND: (DAY, None)}


def test_when_all_cards_fall_silent_it_is_the_source_that_stopped() -> None:
    last = DAY + timedelta(hours=3)
    assert lives_of({FIRST: (DAY, last), SECOND: (DAY, last)}, until=END) == {FIRST: (DAY, None), SECOND: (DAY, None)}


def test_a_card_that_came_after_the_period_is_not_in_it() -> None:
    assert lives_of({FIRST: (END, END)}, until=END) == {}


def test_a_card_costs_every_hour_in_which_it_stood_there_at_all() -> None:
    inventory = Inventory(cluster="c", as_of=END, cards=(a_card(0),))
    came, went = DAY + timedelta(hours=2, minutes=59), DAY + timedelta(hours=5, minutes=1)
    who = tenancies(inventory, {FIRST: (came, went)}, until=END)
    assert charged(who, a_day(who)).total.cost.allocation == Decimal("0.9") * 4


def test_who_holds_a_slice_proves_that_the_card_is_there() -> None:
    who = tenancies(Inventory(cluster="c", as_of=END, grants=(a_grant(0, "a"),)), {}, until=END)
    assert charged(who, a_day(who)).total.card_hours == 24


def test_the_later_form_of_a_grant_counts_where_both_began_together() -> None:
    closed = a_grant(0, "a", share=0.25, ended_at=DAY + timedelta(hours=6))
    who = settled([a_card(0)], [closed, a_grant(0, "a", share=0.5)])
    assert [grant.compute_granted_ratio for grant in who.grants] == [0.5]


def test_the_first_team_label_that_is_set_names_the_team() -> None:
    labels = ("gputide.io/team", "team")
    assert team_of(a_grant(0, "a", labels=(("team", "b"), ("gputide.io/team", "a"))), labels) == "a"
    assert team_of(a_grant(0, "a", labels=(("team", ""),)), labels) == "team"
