"""The same content always gets the same number, whatever order it comes in, and is given back byte for byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.remote_write.intern_table import BAD_REFERENCE, InternTable, SequenceTable

TEXTS = st.lists(st.lists(st.binary(max_size=20), max_size=12), max_size=6)


def spans(parts: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ends = np.cumsum([len(part) for part in parts], dtype=np.int32)
    starts = np.concatenate((np.zeros(1, dtype=np.int32), ends[:-1])) if len(ends) else ends
    return np.frombuffer(b"".join(parts) or b"\0", dtype=np.uint8), starts.astype(np.int32), ends.astype(np.int32)


@given(TEXTS)
def test_strings_are_numbered_as_a_dictionary_would(batches):
    table, known = InternTable(7), dict[bytes, int]()
    for batch in batches:
        expected = [known.setdefault(text, len(known)) for text in batch]
        assert table.intern(*spans(batch)).tolist() == expected
    assert [table.bytes_of(number) for number in range(len(table))] == list(known)


@given(TEXTS, st.randoms())
def test_find_adds_nothing_and_counts_what_is_missing_in_any_order(batches, random):
    table, known = InternTable(7), dict[bytes, int]()
    for batch in batches:
        numbers, missing, missing_bytes = table.find(*spans(batch))
        assert numbers.tolist() == [known.get(text, -1) for text in batch]
        unknown = [text for text in batch if text not in known]
        assert (missing, missing_bytes) == (len(unknown), sum(map(len, unknown)))
        assert len(table) == len(known)
        shuffled = random.sample(batch, len(batch))
        for text, number in zip(shuffled, table.intern(*spans(shuffled)).tolist(), strict=True):
            assert known.setdefault(text, number) == number


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


SEQUENCES = st.lists(st.lists(st.lists(st.integers(0, 299), max_size=8), max_size=8), max_size=5)


@given(SEQUENCES)
def test_sequences_are_numbered_by_what_their_references_lead_to(batches):
    table, known = SequenceTable(7), dict[tuple[int, ...], int]()
    # Each batch has its own symbols, as each request has: 20,000 of them, so that references take up to three bytes.
    for turn, batch in enumerate(batches):
        words = np.roll(np.arange(20_000, dtype=np.int32), turn * 7_000)
        parts = [b"".join(varint((word + turn * 7_000) % 20_000) for word in sequence) for sequence in batch]
        expected = [known.setdefault(tuple(sequence), len(known)) for sequence in batch]
        assert table.intern(words, *spans(parts)).tolist() == expected
    assert [tuple(table.part(number).tolist()) for number in range(len(table))] == list(known)


def test_reference_out_of_range_is_told_from_one_never_seen():
    words = np.arange(3, dtype=np.int32)
    parts = [b"\x00\x01", b"\x03", b"\x80\x80\x80\x80\x80\x01", b"\x00\x02"]
    found = SequenceTable(7).intern(words, *spans(parts))
    assert found.tolist() == [0, BAD_REFERENCE, BAD_REFERENCE, 1]
