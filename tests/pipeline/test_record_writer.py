"""What goes into one record, how long a body waits for that, and that nobody is answered before it is durable."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import Unavailable
from fleet.schema import ALLOCATIONS, USAGE_MEASURES
from pipeline.bus.bus import BusFull, RecordTooLarge
from pipeline.receiver.record_writer import GATHERED_SAMPLES_MAX, RecordWriter
from pipeline.receiver.turns import SMALL_AT_ONCE
from pipeline.records.joined_rows import joined_sections
from pipeline.records.rows import Section, identities_schema, rows_of, unpack
from pipeline.remote_write.decode import Decoder, Version
from tests.pipeline.builders import (
    START_MS,
    Sample,
    body_limits,
    body_of,
    intake_of,
    series_table,
    small_fleet,
)
from tests.waiting import until

SECONDS = 20.0
HASH = bytes(16)
FLEET = small_fleet(pods=3, hours=1)
SIX = small_fleet(pods=6, hours=1)


class HeldBus:
    """A bus whose appends wait until they are let go."""

    lanes = 1

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        self.begun.release()
        assert self.let_go.acquire(timeout=SECONDS)
        self.records += payloads.values()


class BoundedBus:
    """A bus that takes no record beyond a size."""

    lanes = 1

    def __init__(self, bytes_max: int, failures: Sequence[Exception] = ()) -> None:
        self.records: list[bytes] = []
        self.bytes_max = bytes_max
        self.failures = list(failures)

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if max(map(len, payloads.values())) > self.bytes_max:
            raise RecordTooLarge("too large")
        self.records += payloads.values()


class LanesBus:
    """A bus with lanes that takes everything."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.records: list[tuple[int, bytes]] = []

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        self.records += payloads.items()


class Linger:
    """The time for which the first body of a group waits, as the test lets it pass."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.passed = threading.Event()

    def __call__(self, is_full: threading.Event, seconds: float) -> None:
        self.asked.append(seconds)
        until(lambda: self.passed.is_set() or is_full.is_set(), seconds_max=SECONDS)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(8) as opened:
        yield opened


def sections_of(samples: Sequence[Sample], cluster: str = "c1") -> tuple[Section, ...]:
    body = Decoder(body_limits(1 << 24)).decode(body_of(list(samples), cluster=cluster), Version.V2)
    return rows_of(body, series_table())[0]


def cells_of(sections: Sequence[Section]) -> set[tuple[Any, ...]]:
    """What rows say: one entry per identity, time and measure."""
    return {
        (section.table.name, *section.identities.slice(place, 1).to_pylist()[0].values(), ts_ms, measure, value)
        for section in sections
        for row, (place, ts_ms) in enumerate(zip(section.identity.tolist(), section.ts_ms.tolist(), strict=True))
        for measure, value in zip(section.measures, section.values[:, row].tolist(), strict=True)
        if not np.isnan(value)
    }


def rows_in(records: Sequence[bytes]) -> list[Section]:
    return [section for record in records for section in unpack(record)]


def waiting_in(writer: RecordWriter) -> int:
    group = writer._open
    return 0 if group is None else len(group.bodies)


def joined_by(pool: ThreadPoolExecutor, writer: RecordWriter, bodies: Sequence[Any], samples: int) -> list[Future[Any]]:
    """Writes bodies one after the other into the open group, each from a thread of its own."""
    found = []
    for body in bodies:
        found.append(pool.submit(writer.write, body, HASH, samples))
        until(lambda: waiting_in(writer) == len(found), seconds_max=SECONDS)
    return found


def test_bodies_within_the_linger_are_one_record_and_none_is_answered_before_it_is_durable(
    pool: ThreadPoolExecutor,
) -> None:
    bus, linger = HeldBus(), Linger()
    writer = RecordWriter(bus, linger_seconds=0.1, wait=linger)
    answers = joined_by(pool, writer, [sections_of(FLEET[start::3]) for start in range(3)], samples=10)
    assert linger.asked == [0.1]
    linger.passed.set()
    assert bus.begun.acquire(timeout=SECONDS)
    assert not any(answer.done() for answer in answers)
    bus.let_go.release()
    written = [answer.result(timeout=SECONDS) for answer in answers]
    assert [found.appends for found in written] == [1, 0, 0]
    assert len(bus.records) == 1
    whole = sections_of(FLEET)
    assert cells_of(rows_in(bus.records)) == cells_of(whole)
    # The measures that came apart stand in one row again.
    assert [len(section.ts_ms) for section in rows_in(bus.records)] == [len(section.ts_ms) for section in whole]


def test_a_group_with_enough_samples_waits_no_longer_and_the_next_body_begins_another(pool: ThreadPoolExecutor) -> None:
    bus, linger = HeldBus(), Linger()
    writer = RecordWriter(bus, linger_seconds=1.0, appends_at_once=2, wait=linger)
    quarter = GATHERED_SAMPLES_MAX // 4 - 1
    answers = joined_by(pool, writer, [sections_of(FLEET[start::5]) for start in range(4)], quarter)
    answers.append(pool.submit(writer.write, sections_of(FLEET[4::5]), HASH, quarter))
    assert bus.begun.acquire(timeout=SECONDS)
    joined_by(pool, writer, [sections_of(FLEET)], quarter)
    assert len(linger.asked) == 2
    bus.let_go.release()
    for answer in answers:
        answer.result(timeout=SECONDS)
    assert len(bus.records) == 1
    linger.passed.set()
    bus.let_go.release()


def test_a_writer_that_does_not_gather_writes_every_body_at_once_beside_the_others(pool: ThreadPoolExecutor) -> None:
    bus = HeldBus()
    writer = RecordWriter(bus, gathers=False)
    answers = [pool.submit(writer.write, sections_of(FLEET[start::3]), HASH, 10) for start in range(3)]
    for _ in answers:
        assert bus.begun.acquire(timeout=SECONDS)
    for _ in answers:
        bus.let_go.release()
    assert [answer.result(timeout=SECONDS).appends for answer in answers] == [1, 1, 1]
    assert len(bus.records) == 3
    assert cells_of(rows_in(bus.records)) == cells_of(sections_of(FLEET))


def test_a_body_that_is_large_alone_waits_for_nobody() -> None:
    bus, linger = BoundedBus(1 << 20), Linger()
    writer = RecordWriter(bus, linger_seconds=1.0, wait=linger)
    assert writer.write(sections_of(FLEET), HASH, GATHERED_SAMPLES_MAX // 4).appends == 1
    assert linger.asked == []


def test_decoders_are_given_back_before_large_bodies_wait_for_the_bus_so_that_all_of_them_wait_at_once(
    pool: ThreadPoolExecutor,
) -> None:
    bus = HeldBus()
    intake = intake_of(bus, series_table(series_max=200_000), records=RecordWriter(bus), limits=body_limits(1 << 24))
    bodies = [body_of(_points(pod, count=GATHERED_SAMPLES_MAX // 4)) for pod in range(SMALL_AT_ONCE + 2)]
    answers = [pool.submit(intake.take, body, Version.V2) for body in bodies]
    begun = [bus.begun.acquire(timeout=SECONDS) for _ in bodies]
    for _ in bodies:
        bus.let_go.release()
    assert [answer.result(timeout=SECONDS).status for answer in answers] == [204] * len(bodies)
    assert all(begun)


def test_bodies_of_two_clusters_in_one_group_keep_their_rows_apart_on_every_lane(pool: ThreadPoolExecutor) -> None:
    bus, linger = LanesBus(2), Linger()
    writer = RecordWriter(bus, linger_seconds=1.0, wait=linger)
    bodies = [sections_of(SIX, cluster) for cluster in ("c1", "c2")]
    answers = joined_by(pool, writer, bodies, samples=10)
    linger.passed.set()
    assert [answer.result(timeout=SECONDS).appends for answer in answers] == [1, 0]
    assert sorted(lane for lane, _ in bus.records) == [0, 1]
    whole = cells_of(bodies[0]) | cells_of(bodies[1])
    assert len(whole) == 2 * len(cells_of(bodies[0]))
    by_lane = [cells_of(unpack(record)) for _, record in bus.records]
    assert by_lane[0] | by_lane[1] == whole
    assert not by_lane[0] & by_lane[1]
    alone = LanesBus(2)
    for body in bodies:
        RecordWriter(alone).write(body, HASH, 10)
    for lane, record in bus.records:
        assert cells_of(unpack(record)) == cells_of(rows_in([other for at, other in alone.records if at == lane]))


def test_without_a_linger_the_first_goes_at_once_and_who_comes_meanwhile_goes_together(
    pool: ThreadPoolExecutor,
) -> None:
    bus = HeldBus()
    writer = RecordWriter(bus)
    first = pool.submit(writer.write, sections_of(FLEET[::3]), HASH, 10)
    assert bus.begun.acquire(timeout=SECONDS)
    others = joined_by(pool, writer, [sections_of(FLEET[start::3]) for start in (1, 2)], samples=10)
    bus.let_go.release()
    first.result(timeout=SECONDS)
    assert not any(answer.done() for answer in others)
    bus.let_go.release()
    for answer in others:
        answer.result(timeout=SECONDS)
    assert len(bus.records) == 2
    assert cells_of(rows_in(bus.records)) == cells_of(sections_of(FLEET))


@pytest.mark.parametrize("failure", [BusFull("full"), Unavailable("away"), ZeroDivisionError("a bug")])
def test_an_append_that_fails_is_said_to_every_body_of_the_group_and_to_no_later_one(
    pool: ThreadPoolExecutor, failure: Exception
) -> None:
    bus, linger = BoundedBus(1 << 20, [failure]), Linger()
    writer = RecordWriter(bus, linger_seconds=1.0, wait=linger)
    answers = joined_by(pool, writer, [sections_of(FLEET[start::2]) for start in range(2)], samples=10)
    linger.passed.set()
    for answer in answers:
        with pytest.raises(type(failure), match=str(failure)):
            answer.result(timeout=SECONDS)
    raised = [answer.exception() for answer in answers]
    assert raised[0] is not raised[1]  # each thread writes its own frames into its own
    assert writer.write(sections_of(FLEET), HASH, 10).appends == 1


def test_the_rows_of_a_group_that_failed_are_let_go_with_it(pool: ThreadPoolExecutor) -> None:
    bus, linger = BoundedBus(1 << 20, [Unavailable("away")]), Linger()
    writer = RecordWriter(bus, linger_seconds=1.0, wait=linger)
    answers = joined_by(pool, writer, [sections_of(FLEET[start::2]) for start in range(2)], samples=10)
    group = writer._open
    assert group is not None
    linger.passed.set()
    for answer in answers:
        assert isinstance(answer.exception(timeout=SECONDS), Unavailable)
    assert group.bodies == []
    assert group.failure is not None
    assert group.failure.__traceback__ is None


def test_a_record_that_the_bus_finds_too_large_becomes_smaller_ones_down_to_a_row() -> None:
    whole = sections_of(FLEET)
    bus = BoundedBus(1000)
    written = RecordWriter(bus).write(whole, HASH, 10)
    assert written.appends == len(bus.records) > 1
    assert written.append_bytes == sum(map(len, bus.records))
    assert cells_of(rows_in(bus.records)) == cells_of(whole)
    with pytest.raises(Unavailable, match="too large"):
        RecordWriter(BoundedBus(10)).write(whole, HASH, 10)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_joined_bodies_say_what_one_body_says_however_samples_are_dealt_out_and_repeated(data: st.DataObject) -> None:
    of_body = data.draw(st.lists(st.integers(0, 3), min_size=len(FLEET), max_size=len(FLEET)))
    bodies = [[sample for sample, body in zip(FLEET, of_body, strict=True) if body == number] for number in range(4)]
    bodies = [body for body in bodies if body]
    joined = joined_sections([sections_of(body) for body in (*bodies, bodies[0])])
    whole = sections_of(FLEET)
    assert cells_of(joined) == cells_of(whole)
    assert {section.table.name: len(section.ts_ms) for section in joined} == {
        section.table.name: len(section.ts_ms) for section in whole
    }


def test_another_value_of_a_sample_stays_beside_the_first_one() -> None:
    first = sections_of(FLEET)
    changed = [replace(sample, value=sample.value / 2) if place == 5 else sample for place, sample in enumerate(FLEET)]
    joined = joined_sections([first, sections_of(changed)])
    assert cells_of(joined) == cells_of(first) | cells_of(sections_of(changed))
    for before, after in zip(first, joined, strict=True):
        extra = len(after.ts_ms) - len(before.ts_ms)
        assert extra in (0, 1)
        assert cells_of([_rows(after, slice(0, len(before.ts_ms)))]) == cells_of([before])


def test_identities_that_hash_alike_are_kept_apart() -> None:
    usage = next(section for section in sections_of(FLEET) if section.table.name in USAGE_MEASURES)
    names = usage.identities.schema.names
    pods = pa.array([f"other-{place}" for place in range(usage.identities.num_rows)])
    other = replace(usage, identities=usage.identities.set_column(names.index("node"), "node", pods), identity_set=None)
    joined = joined_sections([(usage,), (other,)])
    assert cells_of(joined) == cells_of([usage]) | cells_of([other])


def test_sightings_of_a_day_become_one_and_those_of_two_days_stay_two() -> None:
    day = 86_400_000
    joined = joined_sections(
        [(_sighting(10 * day + 5, 10 * day + 9, np.nan),), (_sighting(10 * day + 2, 10 * day + 7, 10 * day + 8.0),),
         (_sighting(11 * day + 1, 11 * day + 3, np.nan),)]
    )  # fmt: skip
    assert len(joined) == 1
    assert joined[0].ts_ms.tolist() == [10 * day + 2, 11 * day + 1]
    assert joined[0].values[0].tolist() == [10 * day + 9, 11 * day + 3]
    assert joined[0].values[1].tolist()[0] == 10 * day + 8
    assert np.isnan(joined[0].values[1][1])


def _rows(section: Section, rows: slice) -> Section:
    return replace(section, identity=section.identity[rows], ts_ms=section.ts_ms[rows], values=section.values[:, rows])


def _points(pod: int, count: int) -> list[Sample]:
    return [Sample(pod, FLEET[0].measure, START_MS + 1000 * place, 0.5) for place in range(count)]


def _sighting(first: int, last: int, ended: float) -> Section:
    schema = identities_schema(ALLOCATIONS)
    return Section(
        table=ALLOCATIONS,
        identities=pa.RecordBatch.from_arrays(
            [pa.array([7], pa.uint64()), *(pa.array([name]) for name in schema.names[1:])], schema=schema
        ),
        identity=np.zeros(1, dtype=np.int32),
        ts_ms=np.array([first]),
        measures=(),
        values=np.array([[float(last)], [ended]]),
    )


class Wordy(Exception):
    """A failure that can't be copied, because it is made of more than its text."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


def test_nobody_is_answered_where_the_failure_of_a_group_can_not_be_handed_on(pool: ThreadPoolExecutor) -> None:
    bus, linger = BoundedBus(1 << 20, [Wordy("here", "because")]), Linger()
    writer = RecordWriter(bus, linger_seconds=1.0, wait=linger)
    bodies = joined_by(pool, writer, [sections_of(FLEET), sections_of(SIX)], 1)
    linger.passed.set()
    assert bodies[0].exception(SECONDS) is not None
    with pytest.raises(Unavailable, match="was not written"):
        bodies[1].result(SECONDS)
    assert bus.records == []
