"""Bodies decode to what was encoded, and nothing that is sent can do more than be refused."""

from __future__ import annotations

import contextlib
import math
import struct

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import Corrupt
from pipeline.remote_write import kernels
from pipeline.remote_write.decode import DecodedBody, Decoder, TooLarge, Version
from pipeline.remote_write.encode import LabelSets
from pipeline.remote_write.label_sets import pairs_of_region, pairs_of_symbols
from pipeline.remote_write.series_columns import Verdict
from tests.pipeline.builders import body_limits, series_table

LIMIT = 1 << 20
LIMITS = body_limits(LIMIT)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NAMED = st.dictionaries(TEXT, TEXT, max_size=4).map(lambda pairs: {**pairs, "__name__": "m"})
BITS = st.integers(0, 2**64 - 1)
TIME = st.integers(-(2**63), 2**63 - 1)


def message(body: bytes) -> bytes:
    return bytes(cramjam.snappy.decompress_raw(body))


def packed(raw: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(raw))


def references(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
    return numbers


def label_sets(body: DecodedBody) -> list[tuple[tuple[str, str], ...]]:
    sets = []
    for row in body.series:
        start, end = int(row[kernels.LABELS_START]), int(row[kernels.LABELS_END])
        if body.version is Version.V1:
            sets.append(pairs_of_region(body.data[start:end].tobytes()))
        else:
            spans = [body.symbols[reference] for reference in references(body.data[start:end].tobytes())]
            sets.append(pairs_of_symbols([body.data[a:b].tobytes() for a, b in spans]))
    return sets


@given(
    st.sampled_from(Version),
    st.lists(st.tuples(NAMED, st.lists(st.tuples(TIME, BITS), min_size=1, max_size=4)), max_size=5),
)
def test_decode_gives_what_was_encoded_with_the_very_bits(version, series):
    numbers = [number for number, (_, samples) in enumerate(series) for _ in samples]
    times = [ts for _, samples in series for ts, _ in samples]
    bits = [value for _, samples in series for _, value in samples]
    sets = LabelSets([labels for labels, _ in series])
    body = sets.encode(
        version, np.array(numbers, dtype=np.int64), np.array(times, dtype=np.int64),
        np.array(bits, dtype=np.uint64).view(np.float64),
    )  # fmt: skip
    decoded = Decoder(LIMITS).decode(body, version)
    assert decoded.ts_ms.tolist() == times
    assert decoded.values.view(np.uint64).tolist() == bits
    assert label_sets(decoded) == [tuple(sorted(labels.items())) for labels, _ in series]


def whole_body(version: Version) -> bytes:
    sets = LabelSets([{"__name__": "a", "x": "y"}, {"__name__": "b"}])
    return sets.encode(version, np.array([0, 0, 1]), np.array([1, 2, 3]), np.array([1.0, math.nan, math.inf]))


@pytest.mark.parametrize("version", Version)
def test_every_cut_of_a_message_decodes_or_is_corrupt(version):
    raw = message(whole_body(version))
    corrupt = 0
    for length in range(1, len(raw)):
        try:
            Decoder(LIMITS).decode(packed(raw[:length]), version)
        except Corrupt:
            corrupt += 1
    assert corrupt > len(raw) // 2


@given(st.sampled_from(Version), st.data())
def test_a_message_with_changed_bytes_decodes_or_is_corrupt(version, data):
    raw = bytearray(message(whole_body(version)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = Decoder(LIMITS).decode(packed(bytes(raw)), version)
    except Corrupt:
        return
    assert (decoded.series[:, kernels.SAMPLES_END] <= len(decoded.ts_ms)).all()
    assert (decoded.series[:, kernels.LABELS_END] <= len(decoded.data)).all()
    assert (decoded.series[:, kernels.LABELS_START] >= 0).all()


@given(st.sampled_from(Version), st.binary(max_size=60))
def test_any_bytes_decode_or_are_corrupt(version, raw):
    for body in (raw, packed(raw)):
        with contextlib.suppress(Corrupt):
            assert len(Decoder(LIMITS).decode(body, version).data) <= LIMIT


def test_declared_length_is_refused_before_memory_is_taken():
    with pytest.raises(Corrupt, match=r"receiver\.decoded_bytes_max=1048576"):
        Decoder(LIMITS).decode(b"\xff\xff\xff\xff\x0f" + b"\0" * 10, Version.V1)
    with pytest.raises(Corrupt, match="can't hold"):
        Decoder(LIMITS).decode(b"\xff\xff\x3f" + b"\0" * 10, Version.V1)


@pytest.mark.parametrize("version", Version)
def test_body_under_the_other_versions_name_is_corrupt_and_not_silently_empty(version):
    with pytest.raises(Corrupt, match="other version"):
        Decoder(LIMITS).decode(whole_body(version), Version(3 - version))


def field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2, len(payload)]) + payload


def test_first_symbol_must_be_empty():
    with pytest.raises(Corrupt, match="first symbol"):
        Decoder(LIMITS).decode(packed(field(4, b"x") + field(5, field(1, b"\0\0"))), Version.V2)


def test_exemplars_histograms_and_metadata_are_counted():
    series = field(2, b"\x09" + struct.pack("<d", 1.0) + b"\x10\x05") + field(3, b"") + field(4, b"") + field(4, b"")
    label = field(1, field(1, b"__name__") + field(2, b"m"))
    first = Decoder(LIMITS).decode(packed(field(1, label + series) + field(3, b"")), Version.V1)
    assert (first.exemplars, first.histograms, first.metadata) == (1, 2, 1)
    series2 = field(1, b"\x01\x02") + series + field(5, b"\x08\x02")
    symbols = field(4, b"") + field(4, b"__name__") + field(4, b"m")
    second = Decoder(LIMITS).decode(packed(symbols + field(5, series2)), Version.V2)
    assert (second.exemplars, second.histograms, second.metadata) == (2, 1, 1)


def test_unpacked_references_and_unknown_fields_are_read():
    # Field 3 of a sample is a start timestamp, field 6 of a series a created timestamp: senders of either layout exist.
    sample = b"\x09" + struct.pack("<d", 2.5) + b"\x10\x05\x18\x04"
    series = b"\x08\x01\x08\x02" + field(2, sample) + b"\x30\x07"
    symbols = field(4, b"") + field(4, b"__name__") + field(4, b"m")
    decoded = Decoder(LIMITS).decode(packed(symbols + field(5, series)), Version.V2)
    assert (label_sets(decoded), decoded.ts_ms.tolist(), decoded.values.tolist()) == (
        [(("__name__", "m"),)],
        [5],
        [2.5],
    )


def one_series(*fields: bytes) -> bytes:
    """A version-2 message of one series, with three symbols."""
    symbols = field(4, b"") + field(4, b"__name__") + field(4, b"m")
    return symbols + field(5, b"".join(fields))


SAMPLE = b"\x09" + struct.pack("<d", 2.5) + b"\x10\x05"


@pytest.mark.parametrize(
    "raw",
    [
        one_series(field(1, b"\1\2"), field(2, SAMPLE)),
        one_series(field(1, b"\1\2"), field(2, SAMPLE), field(5, b"\x08\x02")),
        one_series(field(1, b"\1\2"), field(2, SAMPLE + b"\x18\x04")),
        one_series(field(1, b"\1\2"), field(2, SAMPLE), b"\x30\x07"),
        one_series(field(2, SAMPLE), field(1, b"\1\2")),
        one_series(field(1, b"\1"), field(2, SAMPLE), field(1, b"\2")),
        one_series(b"\x08\x01", field(1, b"\2"), field(2, SAMPLE)),
        one_series(field(1, b"\1\2"), field(2, b"\x10\x05\x09" + struct.pack("<d", 2.5))),
        one_series(field(1, b"\x81\x00\x82\x80\x00"), field(2, SAMPLE)),
        b"".join((field(5, field(1, b"\1\2") + field(2, SAMPLE)), field(4, b""),
                  field(4, b"__name__"), field(4, b"m"))),
    ],
    ids=["plain", "metadata", "sample-start-timestamp", "series-created-timestamp", "sample-first", "two-packed",
         "packed-and-unpacked", "time-before-value", "long-varints", "symbols-behind"],
)  # fmt: skip
def test_every_layout_of_a_series_means_the_same(raw):
    table = series_table()
    decoded = Decoder(LIMITS).decode(packed(raw), Version.V2)
    assert (decoded.ts_ms.tolist(), decoded.values.tolist(), decoded.metadata in {0, 1}) == ([5], [2.5], True)
    (number,) = table.lookup(decoded).tolist()
    assert (number, table.columns.verdict[number]) == (0, Verdict.UNWANTED)
    plain = Decoder(LIMITS).decode(packed(one_series(field(1, b"\1\2"), field(2, SAMPLE))), Version.V2)
    assert table.lookup(plain).tolist() == [0]


@pytest.mark.parametrize("version", Version)
def test_dense_body_is_decoded_in_full(version):
    """More series a byte than any sender writes: the room made at first does not do."""
    empty = bytes([10 if version is Version.V1 else 42, 2, 18, 0])
    raw = (b"" if version is Version.V1 else field(4, b"")) + empty * 5000
    assert len(Decoder(LIMITS).decode(packed(raw), version).series) == 5000
    samples = field(2, b"") * 60
    raw = (b"" if version is Version.V1 else field(4, b"")) + empty[:1] + bytes([len(samples)]) + samples
    assert Decoder(LIMITS).decode(packed(raw), version).ts_ms.tolist() == [0] * 60


def test_decoder_keeps_nothing_of_the_body_before():
    decoder = Decoder(LIMITS)
    for version in (Version.V1, Version.V2, Version.V1):
        long = LabelSets([{"__name__": f"m{number}"} for number in range(50)])
        numbers = np.arange(50)
        decoder.decode(long.encode(version, numbers, numbers, numbers.astype(float)), version)
        decoded = decoder.decode(whole_body(version), version)
        assert label_sets(decoded) == [(("__name__", "a"), ("x", "y")), (("__name__", "b"),)]
        assert decoded.ts_ms.tolist() == [1, 2, 3]


@pytest.mark.parametrize("version", Version)
def test_series_without_samples_and_histograms_cost_nothing_and_too_many_are_refused(version):
    tag = bytes([10 if version is Version.V1 else 42])
    first = b"" if version is Version.V1 else field(4, b"")
    limits = body_limits(LIMIT, samples=100)
    assert len(Decoder(limits).decode(packed(first + (tag + b"\0") * 100), version).series) == 0
    with pytest.raises(TooLarge, match=r"more than 100 series or samples: receiver\.body_samples_max=100"):
        Decoder(limits).decode(packed(first + (tag + b"\0") * 101), version)


@pytest.mark.parametrize("version", Version)
def test_samples_of_one_series_and_symbols_are_bounded_too(version):
    tag = bytes([10 if version is Version.V1 else 42])
    first = b"" if version is Version.V1 else field(4, b"")
    limits = body_limits(LIMIT, samples=20)
    decoded = Decoder(limits).decode(packed(first + tag + bytes([40]) + b"\x12\0" * 20), version)
    assert len(decoded.ts_ms) == 20
    with pytest.raises(TooLarge, match="body_samples_max=20"):
        Decoder(limits).decode(packed(first + tag + bytes([42]) + b"\x12\0" * 21), version)
    with pytest.raises(TooLarge, match=r"more than 80 symbols: receiver\.body_samples_max=20"):
        Decoder(limits).decode(packed(field(4, b"") * 81), Version.V2)
