"""A replay gives what was recorded, and after a plan what would happen where the plan put it."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from exporter.reader import Block, DeviceReader
from exporter.replay.reader import ReplayReader
from exporter.replay.seats import Enforced, Seat
from exporter.trace.trace import open_trace
from fleet.errors import Corrupt
from fleet.inventory import CardId, Priority
from fleet.schema import Measure
from fleet.units import GIB
from tests.contracts.device_reader import DeviceReaderContract
from tests.exporter.builders import TraceFiles, at, card, pod, row

A, B = CardId("GPU-a"), CardId("GPU-b")
ALL = Enforced()


class Moves:
    """A seating as a plan leaves it behind: from a moment on, some pods sit elsewhere."""

    def __init__(self, seats: Mapping[str, tuple[Seat, ...]], since: datetime, enforced: Enforced = ALL) -> None:
        self._seats = seats
        self._since = since
        self.enforced = enforced

    def seats(self, at: datetime) -> Mapping[str, tuple[Seat, ...]]:
        return self._seats if at >= self._since else {}


def seat(on: CardId | None, **changes: object) -> Seat:
    fields: dict[str, object] = {"framebuffer_granted_bytes": 12 * GIB, "since": at(30), **changes}
    return Seat(card=on, **fields)  # type: ignore[arg-type]


class TestReplayFulfilsTheContract(DeviceReaderContract):
    @pytest.fixture
    def reader(self, tmp_path: Path) -> DeviceReader:
        files = TraceFiles(pods=[pod("web-0", "GPU-a", ended_at=at(20)), pod("web-1", "GPU-b", started_at=at(20))])
        return ReplayReader(open_trace(files.write(tmp_path)))


def values(block: Block, measure: Measure, name: str) -> list[float]:
    rows = [row for row, key in enumerate(block.slices) if key.pod == name]
    return [float(value) for value in block.slice_samples.values[measure][np.isin(block.slice_samples.rows, rows)]]


def card_values(block: Block, measure: Measure, name: str) -> list[float]:
    rows = [row for row, key in enumerate(block.cards) if key.card == name]
    return [float(value) for value in block.card_samples.values[measure][np.isin(block.card_samples.rows, rows)]]


def replay(files: TraceFiles, folder: Path, **options: object) -> ReplayReader:
    return ReplayReader(open_trace(files.write(folder)), **options)  # type: ignore[arg-type]


def shared_card() -> TraceFiles:
    usage = []
    for minutes in (10, 20, 30, 40):
        usage.append(row(minutes, "web-0", "GPU-a", duty_cycle_ratio=0.5, sm_active_ratio=0.7))
        usage.append(row(minutes, "web-1", "GPU-a", duty_cycle_ratio=0.4, sm_active_ratio=0.6))
    return TraceFiles(pods=[pod("web-0", "GPU-a"), pod("web-1", "GPU-a")], usage=usage)


def test_a_card_shows_the_sum_of_its_slices(tmp_path: Path) -> None:
    block = next(replay(shared_card(), tmp_path).blocks())
    assert card_values(block, Measure.DUTY_CYCLE, A) == pytest.approx([1 - 0.5 * 0.6] * 4)
    assert card_values(block, Measure.SM_ACTIVE, A) == [1.0] * 4
    assert card_values(block, Measure.FRAMEBUFFER_USED, A) == [8 * GIB] * 4


def test_a_card_without_slices_is_absent_not_zero(tmp_path: Path) -> None:
    block = next(replay(shared_card(), tmp_path).blocks())
    assert card_values(block, Measure.DUTY_CYCLE, B) == []


def test_what_a_card_says_of_itself_wins(tmp_path: Path) -> None:
    files = shared_card()
    files.card_usage = [
        {"ts": at(minutes), "card": "GPU-a", "duty_cycle_ratio": 0.9, "power_watts": 100.0} for minutes in (10, 20, 30)
    ]
    block = next(replay(files, tmp_path).blocks())
    # In the last step the card said nothing, and what its slices did is no substitute.
    assert card_values(block, Measure.DUTY_CYCLE, A) == [0.9] * 3
    assert Measure.SM_ACTIVE not in block.card_samples.values


def test_times_that_jitter_around_the_grid_count_in_one_step(tmp_path: Path) -> None:
    files = shared_card()
    for number, entry in enumerate(files.usage):
        entry["ts"] = at((number // 2 + 1) * 10 + (0.3 if number % 2 else -0.3))
    block = next(replay(files, tmp_path).blocks())
    assert card_values(block, Measure.SM_ACTIVE, A) == [1.0] * 4


def test_blocks_of_any_length_give_the_same_samples(tmp_path: Path) -> None:
    trace = open_trace(TraceFiles().write(tmp_path))
    seen = []
    for steps in (1, 4, None):
        rows = [
            (block.slices[number].pod, int(ts))
            for block in ReplayReader(trace).blocks(steps)
            for number, ts in zip(block.slice_samples.rows, block.slice_samples.ts_ms, strict=True)
        ]
        seen.append(rows)
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 12


def test_later_blocks_keep_the_rows_of_earlier_ones(tmp_path: Path) -> None:
    files = TraceFiles()
    files.usage = [entry for entry in files.usage if entry["pod"] == "web-1" or entry["ts"] > at(40)]
    before: tuple[object, ...] = ()
    for block in replay(files, tmp_path).blocks(1):
        assert block.slices[: len(before)] == before
        before = block.slices
    assert len(before) == 2


def test_a_start_in_the_middle_names_what_stands_there_and_nothing_that_is_over(tmp_path: Path) -> None:
    files = TraceFiles()
    files.pods = [pod("web-0", "GPU-a", ended_at=at(20)), pod("web-1", "GPU-b", ended_at=at(50))]
    blocks = list(replay(files, tmp_path, since=at(30)).blocks(1))
    assert [grant.pod for grant in blocks[0].change.grants_started] == ["web-1"]
    ended = [grant for block in blocks for grant in block.change.grants_ended]
    assert [(grant.pod, grant.ended_at) for grant in ended] == [("web-1", at(50))]


def test_a_grant_that_changed_has_one_grant_per_period(tmp_path: Path) -> None:
    files = TraceFiles()
    files.pods = [
        pod("web-0", "GPU-a", ended_at=at(30)),
        pod("web-0", "GPU-a", started_at=at(30), framebuffer_granted_bytes=12 * GIB, container="sidecar"),
        pod("web-1", "GPU-b"),
    ]
    block = next(replay(files, tmp_path).blocks())
    pods = [block.slices[number].pod for number in block.slice_samples.rows]
    assert sorted({key.container for key in block.slices if key.pod == "web-0"}) == ["server", "sidecar"]
    assert pods.count("web-0") == 6
    assert [grant.framebuffer_granted_bytes for grant in block.change.grants_started if grant.pod == "web-0"] == [
        24 * GIB,
        12 * GIB,
    ]


def two_cards() -> TraceFiles:
    files = TraceFiles()
    for entry in files.usage:
        entry["sm_active_ratio"] = 0.8 if entry["pod"] == "web-0" else 0.4
    return files


def moved(folder: Path, files: TraceFiles, **seats: tuple[Seat, ...]) -> list[Block]:
    by_pod = {f"team/{name.replace('_', '-')}": given for name, given in seats.items()}
    return list(replay(files, folder, seating=Moves(by_pod, at(30))).blocks(3))


def test_a_moved_pod_contends_where_it_sits_now(tmp_path: Path) -> None:
    before, after = moved(tmp_path, two_cards(), web_1=(seat(A),))
    assert values(before, Measure.SM_ACTIVE, "web-1") == [0.4] * 3
    assert values(after, Measure.SM_ACTIVE, "web-0") == pytest.approx([0.8 / 1.2] * 3, rel=1e-5)
    assert values(after, Measure.SM_ACTIVE, "web-1") == pytest.approx([0.4 / 1.2] * 3, rel=1e-5)
    assert card_values(after, Measure.SM_ACTIVE, A) == pytest.approx([1.0] * 3, rel=1e-5)
    assert card_values(after, Measure.SM_ACTIVE, B) == []


def test_low_priority_gets_what_is_left(tmp_path: Path) -> None:
    _, after = moved(tmp_path, two_cards(), web_1=(seat(A, priority=Priority.LOW),))
    assert values(after, Measure.SM_ACTIVE, "web-0") == [0.8] * 3
    assert values(after, Measure.SM_ACTIVE, "web-1") == pytest.approx([0.2] * 3, rel=1e-5)


def test_a_hard_share_is_not_passed_even_alone(tmp_path: Path) -> None:
    _, after = moved(tmp_path, two_cards(), web_0=(seat(A, compute_granted_ratio=0.5, is_hard=True),))
    assert values(after, Measure.SM_ACTIVE, "web-0") == pytest.approx([0.5] * 3, rel=1e-5)


def test_framebuffer_stays_within_the_grant(tmp_path: Path) -> None:
    _, after = moved(tmp_path, two_cards(), web_0=(seat(A, framebuffer_granted_bytes=3 * GIB),))
    assert values(after, Measure.FRAMEBUFFER_USED, "web-0") == [3 * GIB] * 3
    assert values(after, Measure.FRAMEBUFFER_USED, "web-1") == [4 * GIB] * 3


def test_a_grant_that_nothing_enforces_binds_nobody(tmp_path: Path) -> None:
    seats = {"team/web-1": (seat(A, framebuffer_granted_bytes=3 * GIB, priority=Priority.LOW),)}
    seating = Moves(seats, at(30), Enforced(framebuffer=False, priority=False))
    _, after = replay(two_cards(), tmp_path, seating=seating).blocks(3)
    assert values(after, Measure.FRAMEBUFFER_USED, "web-1") == [4 * GIB] * 3
    assert [grant.framebuffer_granted_bytes for grant in after.change.grants_started] == [3 * GIB]
    # Priority is a word there: both wait alike.
    assert values(after, Measure.SM_ACTIVE, "web-0") == pytest.approx([0.8 / 1.2] * 3, rel=1e-5)


def test_a_seat_without_a_priority_keeps_the_recorded_one(tmp_path: Path) -> None:
    files = two_cards()
    files.pods[1]["priority"] = "low"
    _, after = moved(tmp_path, files, web_1=(seat(A, priority=None),))
    assert values(after, Measure.SM_ACTIVE, "web-0") == [0.8] * 3


def test_a_server_that_preallocates_takes_its_share_of_the_new_grant(tmp_path: Path) -> None:
    files = two_cards()
    held = round(0.9 * 24 * GIB)
    files.pods[0] |= {"server": "vllm", "kv_cache_pool_bytes": float(held - 6 * GIB)}
    for entry in files.usage:
        if entry["pod"] == "web-0":
            entry |= {"framebuffer_used_bytes": held, "kv_cache_usage_ratio": 0.1}
    _, after = moved(tmp_path, files, web_0=(seat(A, framebuffer_granted_bytes=12 * GIB),))
    assert values(after, Measure.FRAMEBUFFER_USED, "web-0") == pytest.approx([0.9 * 12 * GIB] * 3, rel=1e-6)
    usage = 0.1 * (held - 6 * GIB) / (0.9 * 12 * GIB - 6 * GIB)
    kept = [value for value in values(after, Measure.KV_CACHE_USAGE, "web-0") if not np.isnan(value)]
    assert kept == pytest.approx([usage] * 3, rel=1e-5)
    pools = [grant.kv_cache_pool_bytes for grant in after.change.grants_started]
    assert pools == [pytest.approx(0.9 * 12 * GIB - 6 * GIB, rel=1e-9)]


def test_a_stopped_pod_has_no_rows_and_its_grant_has_ended(tmp_path: Path) -> None:
    _, after = moved(tmp_path, two_cards(), web_1=(seat(None),))
    assert values(after, Measure.SM_ACTIVE, "web-1") == []
    assert [(grant.pod, grant.ended_at) for grant in after.change.grants_ended] == [("web-1", at(30))]
    assert after.change.grants_started == ()


def test_a_move_ends_the_old_grant_and_begins_the_new_one(tmp_path: Path) -> None:
    _, after = moved(tmp_path, two_cards(), web_1=(seat(A),))
    assert [(grant.card, grant.ended_at) for grant in after.change.grants_ended] == [(B, at(30))]
    begun = after.change.grants_started[0]
    assert (begun.card, begun.started_at, begun.framebuffer_granted_bytes) == (A, at(30), 12 * GIB)


def test_a_replay_that_begins_after_the_move_tells_the_same_change(tmp_path: Path) -> None:
    _, whole = moved(tmp_path / "one", two_cards(), web_1=(seat(A),))
    later = Moves({"team/web-1": (seat(A),)}, at(0))
    first = next(replay(two_cards(), tmp_path / "two", since=at(40), seating=later).blocks(3))
    assert first.change.grants_ended == whole.change.grants_ended
    assert [grant for grant in first.change.grants_started if grant.pod == "web-1"] == list(whole.change.grants_started)


def test_a_moved_pod_ends_where_it_was_moved_to(tmp_path: Path) -> None:
    files = two_cards()
    files.pods[1]["ended_at"] = at(50)
    _, after = moved(tmp_path, files, web_1=(seat(A),))
    assert [(grant.card, grant.ended_at) for grant in after.change.grants_ended] == [(B, at(30)), (A, at(50))]


@pytest.mark.parametrize("exchanged", [10, 40], ids=["before the move", "after the move"])
def test_a_pod_whose_card_was_exchanged_keeps_the_seat_that_it_was_moved_to(tmp_path: Path, exchanged: int) -> None:
    files = TraceFiles(
        pods=[
            pod("web-0", "GPU-a", ended_at=at(exchanged)),
            pod("web-0", "GPU-b", started_at=at(exchanged)),
        ],
        cards=[card("GPU-a"), card("GPU-b"), card("GPU-c")],
        usage=[row(ten, "web-0", "GPU-a" if ten <= exchanged else "GPU-b") for ten in range(10, 70, 10)],
    )
    before, after = moved(tmp_path, files, web_0=(seat(CardId("GPU-c")),))
    assert len(values(before, Measure.SM_ACTIVE, "web-0")) == 3
    assert len(values(after, Measure.SM_ACTIVE, "web-0")) == 3
    held = B if exchanged < 30 else A
    mine = [grant for grant in after.change.grants_ended if grant.pod == "web-0"]
    assert [(grant.card, grant.ended_at) for grant in mine] == [(held, at(30))]
    mine = [grant for grant in after.change.grants_started if grant.pod == "web-0"]
    assert [(grant.card, grant.started_at) for grant in mine] == [("GPU-c", at(30))]


def test_giving_back_puts_a_pod_where_it_was_recorded(tmp_path: Path) -> None:
    class ForAWhile:
        enforced = ALL

        def seats(self, at_: datetime) -> Mapping[str, tuple[Seat, ...]]:
            return {"team/web-1": (seat(A),)} if at(30) <= at_ < at(50) else {}

    blocks = list(replay(two_cards(), tmp_path, seating=ForAWhile()).blocks(1))
    last = blocks[-1]
    assert values(last, Measure.SM_ACTIVE, "web-1") == [0.4]
    changes = [
        (grant.card, grant.started_at)
        for block in blocks
        for grant in block.change.grants_started
        if grant.pod == "web-1"
    ]
    assert changes == [(B, at(0)), (A, at(30)), (B, at(50))]


def test_a_pod_that_was_given_back_ends_with_the_grant_it_came_back_with(tmp_path: Path) -> None:
    class ForAWhile:
        enforced = ALL

        def seats(self, at_: datetime) -> Mapping[str, tuple[Seat, ...]]:
            return {"team/web-1": (seat(A, since=at(20)),)} if at(20) <= at_ < at(40) else {}

    files = two_cards()
    files.pods[1]["ended_at"] = at(50)
    ended = [g for block in replay(files, tmp_path, seating=ForAWhile()).blocks(1) for g in block.change.grants_ended]
    assert [(grant.card, grant.started_at, grant.ended_at) for grant in ended] == [
        (B, at(0), at(20)),
        (A, at(20), at(40)),
        (B, at(40), at(50)),
    ]


def test_one_card_of_several_can_be_taken_from_a_pod(tmp_path: Path) -> None:
    files = TraceFiles(pods=[pod("web-0", "GPU-a"), pod("web-0", "GPU-b")])
    for entry in files.usage:
        entry["pod"] = "web-0"
    _, after = moved(tmp_path, files, web_0=(seat(B, framebuffer_granted_bytes=24 * GIB, priority=Priority.HIGH),))
    assert {after.slices[number].card for number in after.slice_samples.rows} == {B}
    assert [grant.card for grant in after.change.grants_ended] == [A]


def test_seats_as_recorded_change_nothing(tmp_path: Path) -> None:
    files = two_cards()
    files.card_usage = [{"ts": at(minutes), "card": "GPU-b", "duty_cycle_ratio": 0.9} for minutes in range(10, 70, 10)]
    same = seat(B, framebuffer_granted_bytes=24 * GIB, priority=Priority.HIGH)
    _, after = moved(tmp_path, files, web_1=(same,))
    assert after.change.grants_started == after.change.grants_ended == ()
    assert card_values(after, Measure.DUTY_CYCLE, B) == [0.9] * 3


def test_a_pod_that_came_back_before_the_replay_went_on_begins_anew(tmp_path: Path) -> None:
    whole = seat(B, framebuffer_granted_bytes=24 * GIB, priority=Priority.HIGH, since=at(20), is_anew=True)
    first, *_ = replay(two_cards(), tmp_path, since=at(30), seating=Moves({"team/web-1": (whole,)}, at(30))).blocks(3)
    mine = [grant for grant in first.change.grants_started if grant.pod == "web-1"]
    assert [(grant.card, grant.started_at, grant.ended_at) for grant in mine] == [(B, at(20), None)]
    # It had left its recorded grant in an earlier replay, which told that end.
    assert not [grant for grant in first.change.grants_ended if grant.pod == "web-1"]


def test_a_seated_pod_that_sits_as_recorded_still_ends(tmp_path: Path) -> None:
    files = two_cards()
    files.pods[1]["ended_at"] = at(50)
    _, after = moved(tmp_path, files, web_1=(seat(B, framebuffer_granted_bytes=24 * GIB, priority=Priority.HIGH),))
    assert [(grant.card, grant.started_at, grant.ended_at) for grant in after.change.grants_ended] == [
        (B, at(0), at(50))
    ]


def test_a_seat_on_an_unknown_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="GPU-nowhere"):
        moved(tmp_path, two_cards(), web_1=(seat(CardId("GPU-nowhere")),))


def test_without_an_sm_counter_the_duty_cycle_is_the_demand(tmp_path: Path) -> None:
    files = TraceFiles(cards=[card("GPU-a"), card("GPU-b")])
    for entry in files.usage:
        entry |= {"sm_active_ratio": None, "duty_cycle_ratio": 0.8}
    _, after = moved(tmp_path, files, web_1=(seat(A),))
    assert values(after, Measure.DUTY_CYCLE, "web-0") == pytest.approx([0.5] * 3, rel=1e-5)
