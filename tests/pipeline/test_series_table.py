"""What a new series means does not depend on which way its labels were read, or on what came before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.provenance import Provenance
from fleet.schema import CARD_IDENTITY, MEASURES, SLICE_IDENTITY
from fleet.series import Subject, known_names, meaning_of_name, resolve
from pipeline.records import label_rows
from pipeline.records.rows import STALE_BITS, TS_MAX_MS, TS_MIN_MS, rows_of
from pipeline.remote_write.claims import Claims
from pipeline.remote_write.decode import Decoder, TooLarge, Version
from pipeline.remote_write.encode import LabelSets
from pipeline.remote_write.label_sets import LabelLimits, fault_of
from pipeline.remote_write.named_rows import INFO_TABLES
from pipeline.remote_write.series_columns import NO_ROOM, OVERSIZED, Verdict
from pipeline.remote_write.series_table import SeriesTable
from tests.pipeline.builders import START_MS, body_limits, series_table

LABELS_MAX, LABEL_BYTES_MAX = 6, 24
NAMES = st.one_of(
    st.sampled_from([name for name in known_names() if not name.endswith("_info")]), st.text("aé_", max_size=30)
)
TEXTS = st.sampled_from(["", "a", "b", "ä", "GPU-1", "x" * 24, "x" * 25, "dcgm-exporter-7", "spx", "\n"])
KEYS = st.sampled_from(
    ["UUID", "Hostname", "pod", "exported_pod", "namespace", "cluster", "card", "node", "GPU_I_ID", "vgpu", "pod_uid",
     "job", "device_uuid", "gpu_uuid", "gpu_compute_partition_type", "vdie_id", "pod_name", "é", "k" * 25]
)  # fmt: skip
SETS = st.builds(
    lambda name, labels: labels if name is None else {**labels, "__name__": name},
    st.one_of(st.none(), NAMES),
    st.dictionaries(KEYS, TEXTS, max_size=7),
)


def looked_up(table: SeriesTable, sets: list[dict[str, str]], version: Version) -> list[int]:
    numbers = np.arange(len(sets))
    body = LabelSets(sets).encode(version, numbers, numbers, numbers.astype(float))
    found: list[int] = table.lookup(Decoder(body_limits(1 << 20)).decode(body, version)).tolist()
    return found


def expected(labels: dict[str, str]) -> tuple[Verdict, tuple[str, ...] | None, tuple[str, ...] | None]:
    """Verdict, slice and card of a label set, the plain way."""
    pairs = tuple(sorted(labels.items(), key=lambda pair: pair[0].encode()))
    if fault_of(pairs, must_be_sorted=True) is not None:
        return Verdict.INVALID, None, None
    if len(pairs) > LABELS_MAX or any(len(text.encode()) > LABEL_BYTES_MAX for pair in pairs for text in pair):
        return Verdict.DROPPED, None, None
    meaning = resolve(labels["__name__"], labels)
    if meaning is not None and Provenance().stranger(labels["__name__"], labels) is not None:
        return Verdict.DROPPED, None, None
    if meaning is not None and meaning.server is not None:
        return Verdict.SIGHTING, None, None
    if meaning is None or meaning.measure is None or meaning.subject in INFO_TABLES:
        return Verdict.UNWANTED, None, None
    column = next(column for column in MEASURES if column.measure is meaning.measure)
    identity = meaning.identity

    def row(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(getattr(identity, name) or ("home" if name == "cluster" else "") for name in names)

    slice_ = row(SLICE_IDENTITY) if identity.pod is not None and column.of_slice else None
    card = row(CARD_IDENTITY) if meaning.subject is Subject.CARD and column.of_card else None
    return (Verdict.UNWANTED if slice_ is card is None else Verdict.USAGE), slice_, card


@settings(deadline=None)
@given(st.lists(SETS, min_size=1, max_size=8), st.sampled_from(Version))
def test_series_read_together_mean_what_each_means_alone(sets, version):
    table = series_table(labels_max=LABELS_MAX, label_bytes_max=LABEL_BYTES_MAX)
    for labels, number in zip(sets, looked_up(table, sets, version), strict=True):
        verdict, slice_, card = expected(labels)
        assert table.columns.verdict[number] == verdict
        for rows, column, row in (
            (table.rows.slices, table.columns.slice_identity, slice_),
            (table.rows.cards, table.columns.card_identity, card),
        ):
            place = np.array([column[number]], dtype=np.int32)
            assert (place[0] >= 0) == (row is not None)
            if row is not None:
                found = rows.take(place).batch.to_pylist()[0]
                assert tuple(found[name] for name in rows.names) == row
        if verdict is Verdict.USAGE:
            meaning, unit = resolve(labels["__name__"], labels), table.columns.unit[number]
            assert meaning is not None
            assert MEASURES[table.units.measure[unit]].measure is meaning.measure
            assert table.units.factor[unit] == meaning.factor
            assert table.units.clamp_max[unit] == (np.inf if meaning.value_max is None else meaning.value_max)


@pytest.mark.parametrize("name", known_names())
def test_a_name_by_itself_means_what_it_means_with_labels(name):
    alone = meaning_of_name(name)
    assert alone is not None
    everything = {
        "UUID": "GPU-1", "device_uuid": "GPU-1", "deviceuuid": "GPU-1", "devID": "GPU-1", "card": "GPU-1", "node": "n",
        "gpu_uuid": "GPU-1", "vdie_id": "GPU-1", "hw_id": "GPU-1", "pod_name": "p", "pod": "p",
        "podname": "p", "podName": "p", "namespace": "n",
        "GPU_I_ID": "1", "owner_kind": "Job", "owner_name": "j", "replicaset": "r", "job_name": "j",
    }  # fmt: skip
    meaning = resolve(name, everything)
    assert meaning is not None
    assert (alone.measure, alone.factor, alone.value_max) == (meaning.measure, meaning.factor, meaning.value_max)


@pytest.mark.parametrize("version", Version)
def test_claim_of_another_cluster_is_overridden_and_counted_for_every_series(version):
    limits = LabelLimits(labels_max=8, label_bytes_max=100)
    table = SeriesTable(default_cluster="home", series_max=100, limits=limits, seed=7, claims=Claims("mine"))
    sets = [
        {"__name__": name, "card": "GPU-1", "cluster": cluster}
        for name in ("gputide_card_duty_cycle_ratio", "gputide_card_sm_active_ratio", "of_no_interest")
        for cluster in ("theirs", "mine")
    ]
    numbers = looked_up(table, sets, version)
    assert table.claims.overridden == 3
    verdicts = [Verdict(table.columns.verdict[number]) for number in numbers]
    assert verdicts == [Verdict.USAGE] * 4 + [Verdict.UNWANTED] * 2
    cards = table.columns.card_identity[numbers[:4]]
    assert table.rows.cards.take(np.unique(cards).astype(np.int32)).batch.column("cluster").to_pylist() == ["mine"]


def test_known_series_cost_no_memory_when_they_come_again():
    table = series_table(series_max=5000)
    sets = [{"__name__": f"m{number}"} for number in range(500)]
    looked_up(table, sets, Version.V2)
    before = table.memory_bytes
    for _ in range(3):
        looked_up(table, sets[::-1], Version.V2)
    assert (len(table), table.memory_bytes) == (500, before)


def wanted(first: int, count: int) -> list[dict[str, str]]:
    return [
        {
            "__name__": name,
            "card": f"GPU-{number}",
            "cluster": "c",
            "namespace": "n",
            "node": "n1",
            "pod": f"p-{number}",
        }
        for number in range(first, first + count)
        for name in ("gputide_slice_duty_cycle_ratio", "gputide_slice_info")
    ]


def come(table: SeriesTable, sets: list[dict[str, str]], version: Version) -> list[int]:
    """Verdicts of series whose samples come, as the intake takes them."""
    sets = [{**labels, "framebuffer_bytes": "1"} if labels["__name__"].endswith("info") else labels for labels in sets]
    numbers = np.arange(len(sets))
    times = np.full(len(sets), START_MS, dtype=np.int64)
    body = Decoder(body_limits()).decode(
        LabelSets(sets).encode(version, numbers, times, np.full(len(sets), 0.5)), version
    )
    found = table.lookup(body)
    sections, _ = rows_of(body, table, found)
    pods = {pod for section in sections for pod in section.identities.column("pod").to_pylist()}
    written = {labels["pod"] for labels, number in zip(sets, found.tolist(), strict=True)
               if number >= 0 and table.columns.verdict[number] <= Verdict.SIGHTING}  # fmt: skip
    assert pods == written
    return [NO_ROOM if number == NO_ROOM else int(table.columns.verdict[number]) for number in found.tolist()]


@pytest.mark.parametrize("version", Version)
def test_series_that_were_silent_are_forgotten_and_the_others_keep_what_they_mean(version):
    clock = [0.0]
    table = series_table(series_max=1000, forget_seconds=800, now_seconds=lambda: clock[0])
    come(table, wanted(0, 50), version)
    sizes = set()
    for step in range(1, 200):
        clock[0] += 100
        assert set(come(table, [*wanted(5, 5), *wanted(40 + step, 5)], version)) == {Verdict.USAGE, Verdict.SIGHTING}
        sizes.add(table.memory_bytes)
    assert table.wanted < 100
    assert len(sizes) <= 2
    assert len(table.rows.slices) == table.wanted // 2


@pytest.mark.parametrize("version", Version)
def test_churn_beyond_the_bound_is_taken_without_a_refusal_while_what_lives_fits(version):
    clock = [0.0]
    table = series_table(series_max=200, forget_seconds=80_000, now_seconds=lambda: clock[0])
    for step in range(100):
        clock[0] += 5000
        assert set(come(table, wanted(10 * step, 20), version)) == {Verdict.USAGE, Verdict.SIGHTING}
    assert table.wanted <= 200


@pytest.mark.parametrize("version", Version)
def test_unwanted_series_are_not_counted_and_give_way(version):
    clock = [0.0]
    table = series_table(series_max=100, now_seconds=lambda: clock[0])
    come(table, wanted(0, 40), version)
    for step in range(50):
        clock[0] += 1
        looked_up(table, [{"__name__": f"other_{step}_{number}"} for number in range(70)], version)
    assert table.wanted == 80
    assert len(table) <= 200
    assert set(come(table, wanted(0, 50), version)) == {Verdict.USAGE, Verdict.SIGHTING}


@pytest.mark.parametrize("version", Version)
def test_a_series_without_a_place_gets_one_once_others_are_silent(version):
    clock = [0.0]
    table = series_table(series_max=20, forget_seconds=8000, now_seconds=lambda: clock[0])
    come(table, wanted(0, 10), version)
    assert set(come(table, wanted(10, 5), version)) <= {Verdict.BEYOND, NO_ROOM}
    clock[0] += 2500
    come(table, wanted(0, 5), version)
    assert set(come(table, wanted(10, 5), version)) == {Verdict.USAGE, Verdict.SIGHTING}


def test_a_series_far_beyond_the_label_limits_is_dropped_and_not_remembered():
    table = series_table(labels_max=4, label_bytes_max=50)
    long = {"__name__": "gputide_slice_duty_cycle_ratio", **{f"l{number:03}": "x" * 50 for number in range(50)}}
    for version in Version:
        assert looked_up(table, [long, {"__name__": "m"}], version)[0] == OVERSIZED
    assert len(table) == 2


def test_new_series_are_read_a_few_at_a_time():
    table = series_table()
    numbers = np.arange(50)
    for version in Version:
        sets = LabelSets(wanted(0, 25))
        body = Decoder(body_limits()).decode(sets.encode(version, numbers, numbers, numbers.astype(float)), version)
        before = len(table)
        for known in (20, 40):
            assert table.lookup_some(body, 20) is None
            assert len(table) - before == known
        found = table.lookup_some(body, 20)
        assert found is not None
        assert len(set(found.tolist())) == 50


def test_labels_that_repeat_for_ever_cannot_stand_for_more_than_a_body_may(monkeypatch):
    monkeypatch.setattr(label_rows, "SET_BYTES_MAX", 100_000)
    table = series_table(label_bytes_max=2048)
    sets = [{**labels, "namespace": "n" * 2000} for labels in wanted(0, 60)[::2]]
    numbers = np.arange(len(sets))
    times = np.full(len(sets), START_MS, dtype=np.int64)
    body = LabelSets(sets).encode(Version.V2, numbers, times, np.full(len(sets), 0.5))
    assert len(body) < 5000
    with pytest.raises(TooLarge, match="more than 100000"):
        rows_of(Decoder(body_limits()).decode(body, Version.V2), table)


DAY_MS = 86_400_000
STALE = np.uint64(STALE_BITS).view(np.float64)
MOMENTS = st.one_of(
    st.integers(0, 3).map(lambda place: START_MS + place * DAY_MS // 2),
    st.integers(START_MS, START_MS + 2 * DAY_MS),
    st.sampled_from([TS_MIN_MS - 1, TS_MAX_MS + 1]),
)
SAID = st.tuples(st.integers(0, 2), MOMENTS, st.sampled_from([1.0, 0.0, np.nan, STALE, np.inf]))


def days_of(said: list[tuple[int, int, float]]) -> set[tuple[str, int, int, int | None]]:
    """Pod, first and last time and end of each pod and day, the plain way."""
    found = set()
    timely = [one for one in said if TS_MIN_MS <= one[1] <= TS_MAX_MS]
    for pod, day in {(pod, (ts_ms - 1) // DAY_MS) for pod, ts_ms, _ in timely}:
        own = [(ts_ms, value) for other, ts_ms, value in timely if (other, (ts_ms - 1) // DAY_MS) == (pod, day)]
        ended = max((ts_ms for ts_ms, value in own if np.float64(value).view(np.uint64) == STALE_BITS), default=None)
        seen = [ts_ms for ts_ms, value in own if not np.isnan(value)] or ([] if ended is None else [ended])
        if seen:
            found.add((f"p-{pod}", min(seen), max(seen), ended))
    return found


@pytest.mark.parametrize("version", Version)
@given(said=st.lists(SAID, min_size=1, max_size=12))
def test_what_info_series_say_becomes_one_sighting_of_each_pod_and_day(version, said):
    said = sorted(said, key=lambda one: one[0])
    sets = LabelSets([labels | {"framebuffer_bytes": "1"} for labels in wanted(0, 3)[1::2]])
    pods, times, values = (np.array(column) for column in zip(*said, strict=True))
    body = Decoder(body_limits()).decode(sets.encode(version, pods, times, values), version)
    sections, tally = rows_of(body, series_table())
    found = {
        (
            section.identities.column("pod")[int(section.identity[row])].as_py(),
            int(section.ts_ms[row]),
            int(section.values[0, row]),
            None if np.isnan(section.values[1, row]) else int(section.values[1, row]),
        )
        for section in sections
        for row in range(len(section.ts_ms))
    }
    assert found == days_of(said)
    assert sum(len(section.ts_ms) for section in sections) == len(found)
    assert tally.bad_times == sum(not TS_MIN_MS <= ts_ms <= TS_MAX_MS for _, ts_ms, _ in said)
