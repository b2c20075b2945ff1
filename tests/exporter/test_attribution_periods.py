"""Grants begin once, last while the slice does, and end; another life or another size is another period."""

from datetime import timedelta

from exporter.allocation.records import OwnerLinkRecord
from exporter.attribution.attributor import Attributor, attribute
from exporter.attribution.records import ProcessOnCard
from exporter.node.reader import GrantPeriods
from tests.exporter.node import GIB, NOW, card_id, facts, hami, handed, known, place, row, view

LATER = NOW + timedelta(seconds=30)
ROWS = [row("a", handed(card_id(0)))]


def test_a_slice_that_stays_begins_once() -> None:
    periods = GrantPeriods()
    first = periods.follow(attribute(view(rows=ROWS, pods=[facts("a", 1)]), NOW), NOW)
    assert [grant.pod for grant in first.started] == ["a"]
    again = periods.follow(attribute(view(rows=ROWS, pods=[facts("a", 1)]), LATER), LATER)
    assert (again.started, again.ended) == ((), ())
    assert periods.slices[0].grant == first.started[0]


def test_a_slice_that_goes_ends_as_what_was_started() -> None:
    periods = GrantPeriods()
    (started,) = periods.follow(attribute(view(rows=ROWS, pods=[facts("a", 1)]), NOW), NOW).started
    change = periods.follow(attribute(view(pods=[]), LATER), LATER)
    (ended,) = change.ended
    assert (ended.card, ended.started_at, ended.ended_at) == (started.card, started.started_at, LATER)
    assert periods.slices == ()


def test_a_pod_that_comes_back_under_its_name_is_another_life() -> None:
    periods = GrantPeriods()
    periods.follow(attribute(view(rows=ROWS, pods=[facts("a", 1)]), NOW), NOW)
    again = facts("a", 2, bound_at="2026-03-04T12:00:20Z")
    change = periods.follow(attribute(view(rows=ROWS, pods=[again]), LATER), LATER)
    assert [grant.ended_at for grant in change.ended] == [LATER]
    assert [grant.started_at for grant in change.started] == [NOW + timedelta(seconds=20)]
    assert periods.slices[0].pod_uid == again.record.uid


def test_a_grant_of_another_size_is_another_period() -> None:
    periods = GrantPeriods()
    periods.follow(
        attribute(view(rows=None, pods=[facts("a", 1, annotations=hami(f"{card_id(0)},1024,10"))]), NOW), NOW
    )
    change = periods.follow(
        attribute(view(rows=None, pods=[facts("a", 1, annotations=hami(f"{card_id(0)},2048,10"))]), LATER), LATER
    )
    assert [grant.framebuffer_granted_bytes for grant in change.ended] == [GIB]
    assert [(grant.framebuffer_granted_bytes, grant.started_at) for grant in change.started] == [(2 * GIB, LATER)]


def test_an_api_server_that_goes_away_ends_no_grant_and_takes_no_owner() -> None:
    periods = GrantPeriods()
    first = periods.follow(attribute(view(rows=ROWS, pods=[facts("a", 1, labels={"app": "x"})]), NOW), NOW)
    change = periods.follow(attribute(view(rows=ROWS, pods=None), LATER), LATER)
    assert (change.started, change.ended) == ((), ())
    assert periods.slices[0].grant == first.started[0]
    assert periods.slices[0].pod_uid is not None


def test_what_is_learnt_of_a_pod_later_is_told_with_the_start_that_its_status_tells() -> None:
    periods = GrantPeriods()
    (guessed,) = periods.follow(attribute(view(rows=ROWS, pods=None), NOW), NOW).started
    assert guessed.started_at == NOW
    named = facts("a", 1, labels={"app": "x"}, bound_at="2026-03-04T09:00:00Z")
    change = periods.follow(attribute(view(rows=ROWS, pods=[named]), LATER), LATER)
    # The same grant, known better: it takes the place of what was told, and nothing has ended.
    assert [(grant.label("app"), grant.started_at) for grant in change.started] == [("x", NOW - timedelta(hours=3))]
    assert change.ended == ()


def test_an_owner_that_is_learnt_later_leaves_the_grants_start() -> None:
    job = OwnerLinkRecord(uid="j", kind="Job", name="nightly-1")
    cron = OwnerLinkRecord(uid="c", kind="CronJob", name="nightly")
    pods = [facts("a", 1, owner=job, bound_at="2026-03-04T09:00:00Z")]
    periods = GrantPeriods()
    (first,) = periods.follow(attribute(view(rows=ROWS, pods=pods), NOW), NOW).started
    change = periods.follow(attribute(view(rows=ROWS, pods=pods, owners={"j": cron}), LATER), LATER)
    assert [(grant.workload_kind, grant.workload, grant.started_at) for grant in change.started] == [
        ("CronJob", "nightly", first.started_at)
    ]
    assert change.ended == ()
    assert periods.slices[0].grant == change.started[0]


def test_a_label_that_changes_is_another_period() -> None:
    periods = GrantPeriods()
    periods.follow(attribute(view(rows=ROWS, pods=[facts("a", 1, labels={"app": "x"})]), NOW), NOW)
    change = periods.follow(attribute(view(rows=ROWS, pods=[facts("a", 1, labels={"app": "y"})]), LATER), LATER)
    assert [(grant.label("app"), grant.started_at) for grant in change.started] == [("y", LATER)]
    assert [(grant.label("app"), grant.ended_at) for grant in change.ended] == [("x", LATER)]


def test_rounds_in_which_only_processes_change_find_what_a_fresh_join_finds() -> None:
    attributor = Attributor()
    pods = (facts("a", 1), facts("b", 2))
    rows = (row("a", handed(card_id(0))), row("b", handed(card_id(1))))
    periods = GrantPeriods()
    for number in range(3):
        process = ProcessOnCard(pid=number, card=card_id(0), places=(place(1 + number % 2),))
        node = view(rows=rows, pods=pods, processes=(process,))
        now = NOW + timedelta(seconds=number)
        found = attributor.attribute(node, now)
        assert found == attribute(node, now)
        change = periods.follow(found, now)
        assert len(change.started) == (2 if number == 0 else 0)
        assert [slice_.pids for slice_ in periods.slices] == ([(number,), ()] if number % 2 == 0 else [(), ()])


def test_what_is_handed_out_or_told_anew_is_seen_in_the_next_round() -> None:
    attributor = Attributor()
    node = view(rows=ROWS, pods=None)
    first = attributor.attribute(node, NOW)
    assert attributor.attribute(node, LATER) == first
    more = view(rows=[*ROWS, row("b", handed(card_id(1)))], pods=None)
    assert [found.grant.pod for found in attributor.attribute(more, LATER).slices] == ["a", "b"]
    named = view(rows=ROWS, pods=[facts("a", 1, labels={"app": "x"})])
    assert [found.grant.label("app") for found in attributor.attribute(named, LATER).slices] == ["x"]
    gone = view(cards=[known(1)], rows=ROWS, pods=None)
    assert attributor.attribute(gone, LATER).slices == ()


def test_share_stands_while_the_plugin_is_away_and_lists_nothing() -> None:
    attributor, periods = Attributor(), GrantPeriods()
    rows = [row("a", handed(f"{card_id(0)}::1"))]
    replicas = [f"{card_id(0)}::{number}" for number in range(4)]
    for minute, listed in enumerate((replicas, [], replicas)):
        now = NOW + timedelta(minutes=minute)
        found = attributor.attribute(view(rows=rows, pods=[facts("a", 1)], allocatable=listed), now)
        change = periods.follow(found, now)
        assert [grant.compute_granted_ratio for grant in change.started] == ([0.25] if minute == 0 else [])
        assert change.ended == ()
        assert found.findings == ()


def test_share_follows_a_plugin_that_comes_back_with_other_replicas() -> None:
    attributor = Attributor()
    rows = [row("a", handed(f"{card_id(0)}::1"))]
    ratios = []
    for count in (4, 0, 2):
        listed = [f"{card_id(0)}::{number}" for number in range(count)]
        found = attributor.attribute(view(rows=rows, pods=[facts("a", 1)], allocatable=listed), NOW)
        ratios.append(found.slices[0].grant.compute_granted_ratio)
    assert ratios == [0.25, 0.25, 0.5]
