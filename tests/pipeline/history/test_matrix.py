"""Answers of a query come out as what they say, and as an error where they are cut or something else."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.errors import Corrupt
from pipeline.history.matrix import read_matrix

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def answer(*series, **extra):
    result = [{"metric": labels, "values": [[ts, value] for ts, value in points]} for labels, points in series]
    return json.dumps({"status": "success", **extra, "data": {"resultType": "matrix", "result": result}}).encode()


@settings(max_examples=60, deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=8))
@example([0.1, -0.0, 1e22, 1e23, 5e-324, 1.7976931348623157e308, 123456789012345678.0])
def test_a_value_has_the_bits_that_python_reads(values):
    found = read_matrix(answer(({"a": "b"}, [(1.5, repr(value)) for value in values]))).block
    assert [struct.pack("d", value) for value in found.values] == [struct.pack("d", value) for value in values]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4_102_444_800_000), st.booleans())
def test_a_time_is_exact_to_the_millisecond(ts_ms, is_spaced):
    moment = f"{ts_ms // 1000}.{ts_ms % 1000:03d}"
    body = '{"data":{"resultType":"matrix","result":[{"metric":{},"values":[[' + moment + ',"1"]]}]}}'
    found = read_matrix((body.replace(":", " : ").replace(",", " , ") if is_spaced else body).encode()).block
    assert found.ts_ms.tolist() == [ts_ms]


@pytest.mark.parametrize("moment", ["1.767571200123e+09", "1767571200.123", "1767571200.1230001"])
def test_a_time_is_read_in_each_form_that_go_writes(moment):
    body = '{"data":{"resultType":"matrix","result":[{"metric":{},"values":[[' + moment + ',"1"],[7,"2"]]}]}}'
    found = read_matrix(body.encode()).block
    assert (found.ts_ms.tolist(), found.values.tolist()) == ([1_767_571_200_123, 7_000], [1.0, 2.0])


def test_texts_that_look_like_samples_stay_texts():
    labels = {"values": '"values":[[1,"2"]]', "x": '\\"values\\":[[', "y": "]}"}
    found = read_matrix(answer((labels, [(1, "2")]), ({"z": "values"}, [(3, "4"), (5, "6")]))).block
    assert found.labels == (labels, {"z": "values"})
    assert found.starts.tolist() == [0, 1, 3]
    assert found.values.tolist() == [2.0, 4.0, 6.0]


def test_words_for_numbers_are_read():
    found = read_matrix(answer(({}, [(1, "NaN"), (2, "+Inf"), (3, "-Inf"), (4, "1e+06")]))).block
    assert str(found.values.tolist()) == "[nan, inf, -inf, 1000000.0]"


def test_a_series_of_native_histograms_is_passed_over():
    body = json.loads(answer(({"a": "b"}, [(1, "2")])))
    body["data"]["result"].insert(0, {"metric": {"h": "1"}, "histograms": [[1, {"count": "1"}]]})
    assert read_matrix(json.dumps(body).encode()).block.labels == ({"a": "b"},)


def test_an_answer_cut_anywhere_is_an_error():
    whole = answer(({"a": "b"}, [(1.5, "2.5"), (2, "3e7")]), ({"c": "d"}, [(1, "NaN")]))
    for length in range(len(whole)):
        with pytest.raises(Corrupt):
            read_matrix(whole[:length])


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"<html></html>",
        b'{"data":{"resultType":"vector","result":[]}}',
        b'{"data":{"resultType":"matrix","result":[{"metric":{"a":1},"values":[]}]}}',
        b'{"data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,2]]}]}}',
        b'{"data":{"resultType":"matrix","result":[{"metric":{},"values":[["1","2"]]}]}}',
        b'{"data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"x"]]}]}}',
        b'{"data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"2"],]}]}}',
        b'{"data":{"values":[[1,"2"]],"resultType":"matrix","result":[]}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_matrix_is_an_error(body):
    with pytest.raises(Corrupt):
        read_matrix(body)


def test_a_partial_answer_says_so():
    assert read_matrix(answer(warnings=["store a is down"])).warnings == ("store a is down",)
    assert read_matrix(answer(isPartial=True)).warnings == ("the answer is partial",)
