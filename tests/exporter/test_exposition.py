"""What a scraper reads is what was measured, however little of it was rendered anew."""

import gzip
import math
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from exporter.collector import CollectorState, Snapshot
from exporter.exposition.block import TextBlock
from exporter.exposition.lines import formatted, head
from exporter.exposition.rendering import Exposition, Packer, TextFormat
from exporter.families import Column, Family, FamilyKind
from exporter.reader import Reading
from exporter.server import accepts_gzip, text_format_of

Parsed = dict[tuple[str, frozenset[tuple[str, str]]], float]


def family(
    name: str = "gputide_card_power_watts",
    values: Sequence[float] = (1.5, 2.0),
    labels: tuple[tuple[str, ...], ...] | None = None,
    kind: FamilyKind = FamilyKind.GAUGE,
    label_names: tuple[str, ...] = ("card",),
) -> Family:
    return Family(
        name=name,
        kind=kind,
        help_text="Power drawn, watts.",
        label_names=label_names,
        labels=labels if labels is not None else tuple((f"GPU-{row}",) for row in range(len(values))),
        values=np.array(values, np.float64),
    )


def columns(*families: Family) -> list[Column]:
    return [(one, one.labels, one.values) for one in families]


def state(*families: Family, number: int = 1, age_seconds: float = 0.5) -> CollectorState:
    reading = Reading(at=datetime(2026, 1, 5, tzinfo=UTC))
    snapshot = Snapshot(
        number=number, reading=reading, cards=(), nodes=(), grants=(), taken_at_seconds=0.0, families=families
    )
    return CollectorState(snapshot=snapshot, age_seconds=age_seconds, readings=number, failures=0)


def parsed(text: bytes, text_format: TextFormat = TextFormat.PROMETHEUS) -> Parsed:
    parse = parse_openmetrics if text_format is TextFormat.OPENMETRICS else parse_prometheus
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for one in parse(text.decode())
        for sample in one.samples
        if not sample.name.startswith("gputide_exporter_")
    }


def told(*families: Family) -> Parsed:
    return {
        (one.name, frozenset((key, text) for key, text in zip(one.label_names, labels, strict=True) if text)): value
        for one in families
        for labels, value in zip(one.labels, one.values.tolist(), strict=True)
        if math.isfinite(value)
    }


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30))
def test_every_value_reads_back_to_the_last_bit(values: list[float]) -> None:
    texts = [b""] * len(values)
    for rows, some in formatted(np.array(values, np.float64)):
        for row, text in zip(rows.tolist(), some, strict=True):
            texts[row] = text
    assert [float(text) for text in texts] == values


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.37, b"0.37"), (85899345920.0, b"85899345920"), (0.0, b"0"), (-3.0, b"-3"), (1e300, b"1e+300")],
)
def test_whole_numbers_have_no_exponent(value: float, text: bytes) -> None:
    assert [texts for _, texts in formatted(np.array([value]))] == [[text]]


label_text = st.text(max_size=8)
rows_of_labels = st.lists(st.tuples(label_text, label_text), unique=True, min_size=1, max_size=5)
value = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 0.37, math.nan, 8589934592.0]))


@st.composite
def histories(draw: st.DrawFn) -> list[list[Family]]:
    """Several snapshots of the same few families: rows, values and whole families come and go."""
    layouts = [tuple(draw(rows_of_labels)) for _ in range(3)]
    history = []
    for _ in range(draw(st.integers(1, 5))):
        families = []
        for place, layout in enumerate(layouts):
            if draw(st.booleans()):
                rows = layout if draw(st.booleans()) else tuple(draw(st.permutations(layout)))[: len(layout) - 1]
                values = draw(st.lists(value, min_size=len(rows), max_size=len(rows)))
                families.append(family(f"gputide_family_{place}_ratio", values, rows, label_names=("card", "pod")))
        history.append(families)
    return history


@settings(max_examples=150, deadline=None)
@given(histories())
def test_what_is_kept_from_former_snapshots_changes_nothing(history: list[list[Family]]) -> None:
    kept = Exposition()
    for number, families in enumerate(history, 1):
        now = state(*families, number=number)
        for text_format in TextFormat:
            text = kept.render(now, text_format)
            assert text == Exposition().render(now, text_format)
            packed = b"".join(kept.scrape(now, text_format, is_packed=True))
            assert gzip.decompress(packed) == text
        assert parsed(kept.render(now)) == told(*families)


def test_values_that_did_not_change_are_not_rendered_again() -> None:
    block = TextBlock(is_openmetrics=False)
    power, heat = family(), family("gputide_card_temperature_celsius", (40.0, 41.0))
    assert block.show(columns(power, heat))
    text, pieces = block.text(), list(block.pieces())
    again = [family(labels=power.labels), family(heat.name, (40.0, 41.0), heat.labels)]
    assert not block.show(columns(*again))
    assert block.text() is text
    assert block.show(columns(again[0], family(heat.name, (40.0, 42.0), heat.labels)))
    assert block.pieces()[0] is pieces[0]
    assert block.pieces()[1] != pieces[1]


def test_a_scrape_of_the_same_snapshot_hands_out_the_same_bytes() -> None:
    exposition, now = Exposition(), state(family())
    for is_packed in (False, True):
        first, second = (exposition.scrape(now, is_packed=is_packed) for _ in range(2))
        assert first[0] is second[0]


def test_the_age_is_fresh_in_every_scrape() -> None:
    exposition, power = Exposition(), family()
    first = state(power, age_seconds=1.25)
    later = CollectorState(snapshot=first.snapshot, age_seconds=61.25, readings=1, failures=3)
    assert b"gputide_exporter_data_age_seconds 1.25\n" in exposition.render(first)
    assert b"gputide_exporter_data_age_seconds 61.25\n" in exposition.render(later)
    assert b"gputide_exporter_reading_failures_total 3\n" in exposition.render(later)


@pytest.mark.parametrize("text_format", TextFormat)
def test_before_the_first_reading_there_are_the_exporters_own_figures(text_format: TextFormat) -> None:
    nothing = CollectorState(snapshot=None, age_seconds=2.0, readings=0, failures=1)
    for exposed in (nothing, state(family(values=(math.nan,)))):
        text = Exposition().render(exposed, text_format)
        packed = Exposition().scrape(exposed, text_format, is_packed=True)
        assert text.startswith(b"# HELP gputide_exporter_data_age_seconds ")
        assert gzip.decompress(b"".join(packed)) == text
        assert parsed(text, text_format) == {}


def test_a_counter_is_a_counter_in_both_formats() -> None:
    # A scraper that takes a counter for a gauge shows its level as if it were a rate.
    energy = family("gputide_card_energy_joules_total", (5.0,), kind=FamilyKind.COUNTER)
    now = state(energy)
    plain = Exposition().render(now)
    assert b"# TYPE gputide_card_energy_joules_total counter\ngputide_card_energy_joules_total{" in plain
    (first, *_) = parse_openmetrics(Exposition().render(now, TextFormat.OPENMETRICS).decode())
    assert (first.name, first.type, first.unit) == ("gputide_card_energy_joules", "counter", "joules")
    assert [(sample.name, sample.value) for sample in first.samples] == [("gputide_card_energy_joules_total", 5.0)]


def test_a_counter_that_starts_anew_is_shown_as_it_is() -> None:
    exposition, seen = Exposition(), []
    labels = (("GPU-a", "79"),)
    for number, count in enumerate((7.0, 7.0, 2.0), 1):
        errors = family(
            "gputide_card_xid_errors_total", (count,), labels, FamilyKind.COUNTER, label_names=("card", "xid")
        )
        seen += list(parsed(exposition.render(state(errors, number=number))).values())
    assert seen == [7.0, 7.0, 2.0]


def test_an_info_is_an_info_in_openmetrics() -> None:
    card = family("gputide_card_info", (1.0,), kind=FamilyKind.INFO)
    (first, *_) = parse_openmetrics(Exposition().render(state(card), TextFormat.OPENMETRICS).decode())
    assert (first.name, first.type) == ("gputide_card", "info")
    assert b"# TYPE gputide_card_info gauge\n" in Exposition().render(state(card))


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("gputide_card_power_watts", b"watts"),
        ("gputide_card_pcie_transmit_bytes_per_second", None),
        ("gputide_slice_requests_per_second", None),
        ("gputide_card_tenants", None),
        # Another exporter's name may be wrong about it: this one is in percent.
        ("hami_host_gpu_utilization_ratio", None),
    ],
)
def test_a_unit_is_told_where_the_name_ends_in_it(name: str, unit: bytes | None) -> None:
    lines = head(family(name), is_openmetrics=True).split(b"\n")
    assert [line for line in lines if line.startswith(b"# UNIT")] == (
        [b"# UNIT " + name.encode() + b" " + unit] if unit else []
    )


def test_two_sources_of_one_name_share_one_head() -> None:
    families = (family(labels=(("a",), ("b",))), family("gputide_other"), family(labels=(("c",), ("d",))))
    for text_format in TextFormat:
        text = Exposition().render(state(*families), text_format)
        assert text.count(b"# TYPE gputide_card_power_watts ") == 1
        assert parsed(text, text_format) == told(*families)


def test_text_that_is_no_text_costs_itself_and_not_the_scrape() -> None:
    hostile = family(values=(1.0,), labels=(('pod\udcff\n"\\{}=,\x00',),))
    text = Exposition().render(state(hostile))
    assert list(parsed(text).values()) == [1.0]
    assert b'card="pod?\\n\\"\\\\{}=,\x00"' in text


def test_a_family_with_a_value_too_few_is_no_family() -> None:
    with pytest.raises(ValueError, match="gputide_card_power_watts has 2 series and 1 values"):
        family(values=(1.0,), labels=(("a",), ("b",)))


def test_series_that_are_gone_are_forgotten() -> None:
    block = TextBlock(is_openmetrics=False)
    for number in range(50):
        block.show(columns(family(values=(1.0,), labels=((f"GPU-{number}",),))))
    held = sum(len(prefixes) for _, _, prefixes in block._prefixes.values())
    assert held == 1


@given(st.lists(st.binary(max_size=200), max_size=6), st.binary(max_size=50))
def test_pieces_make_one_gzip_member(pieces: list[bytes], rest: bytes) -> None:
    packer = Packer()
    for _ in range(2):
        begun = packer.begun(pieces)
        packed = begun.stream + packer.ended(begun, rest)
        assert gzip.decompress(packed) == b"".join(pieces) + rest
        # A second member, or bytes behind the first, would be lost on readers that stop at the first.
        assert packed.count(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff") == 1


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;"
    "version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PROMETHEUS_2, TextFormat.OPENMETRICS),
        (PROMETHEUS_3, TextFormat.OPENMETRICS),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.2", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;version=0.0.1", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;q=0", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;q=nan", TextFormat.PROMETHEUS),
        ("*/*", TextFormat.PROMETHEUS),
        ("", TextFormat.PROMETHEUS),
    ],
)
def test_the_scrapers_weights_decide_the_format(accept: str, expected: TextFormat) -> None:
    assert text_format_of(accept) is expected


@pytest.mark.parametrize(
    ("header", "is_accepted"),
    [("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip;q=0", False), ("identity", False), ("", False)],
)
def test_gzip_is_sent_where_it_is_wanted(header: str, is_accepted: bool) -> None:
    assert accepts_gzip(header) is is_accepted


@given(st.text(max_size=200))
def test_no_header_is_too_odd_to_be_answered(header: str) -> None:
    assert text_format_of(header) in TextFormat
    accepts_gzip(header)
