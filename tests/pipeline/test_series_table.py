"""What a new series means does not depend on which way its labels were read, or on what came before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.schema import CARD_IDENTITY, MEASURES, SLICE_IDENTITY
from fleet.series import Subject, known_names, meaning_of_name, resolve
from pipeline.remote_write.decode import Decoder, Version
from pipeline.remote_write.encode import LabelSets
from pipeline.remote_write.label_sets import LabelLimits, fault_of
from pipeline.remote_write.named_rows import INFO_TABLES
from pipeline.remote_write.series_columns import Verdict
from pipeline.remote_write.series_table import SeriesTable
from tests.pipeline.builders import body_limits, series_table

LABELS_MAX, LABEL_BYTES_MAX = 6, 24
NAMES = st.one_of(
    st.sampled_from([name for name in known_names() if not name.endswith("_info")]), st.text("aé_", max_size=30)
)
TEXTS = st.sampled_from(["", "a", "b", "ä", "GPU-1", "x" * 24, "x" * 25, "dcgm-exporter-7", "spx", "\n"])
KEYS = st.sampled_from(
    ["UUID", "Hostname", "pod", "exported_pod", "namespace", "cluster", "card", "node", "GPU_I_ID", "vgpu", "pod_uid",
     "device_uuid", "gpu_uuid", "gpu_compute_partition_type", "vdie_id", "pod_name", "é", "k" * 25]
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
        "gpu_uuid": "GPU-1", "vdie_id": "GPU-1", "pod_name": "p", "pod": "p", "podname": "p", "podName": "p",
        "namespace": "n", "GPU_I_ID": "1", "owner_kind": "Job", "owner_name": "j", "replicaset": "r", "job_name": "j",
    }  # fmt: skip
    meaning = resolve(name, everything)
    assert meaning is not None
    assert (alone.measure, alone.factor, alone.value_max) == (meaning.measure, meaning.factor, meaning.value_max)


@pytest.mark.parametrize("version", Version)
def test_claim_of_another_cluster_is_overridden_and_counted_for_every_series(version):
    limits = LabelLimits(labels_max=8, label_bytes_max=100)
    table = SeriesTable(default_cluster="home", series_max=100, limits=limits, seed=7, forced_cluster="mine")
    sets = [
        {"__name__": name, "card": "GPU-1", "cluster": cluster}
        for name in ("gputide_card_duty_cycle_ratio", "gputide_card_sm_active_ratio", "of_no_interest")
        for cluster in ("theirs", "mine")
    ]
    numbers = looked_up(table, sets, version)
    assert table.claims_overridden == 3
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
