"""Native histograms whose count is not that of their buckets are refused, and everything beside them is taken."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import cramjam
import numpy as np
import pytest

from pipeline.remote_write.decode import Decoder, Version
from pipeline.remote_write.protobuf_fields import varint
from tests.pipeline.builders import file_bus, intake_of
from tests.pipeline.test_remote_write import LIMITS


def zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def message(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """A native histogram: buckets in spans of some length, on two sides."""

    negative: tuple[tuple[int, ...], ...]
    positive: tuple[tuple[int, ...], ...]
    zero: int
    count: int
    total: float = 1.5
    is_float: bool = False

    def written(self, random: np.random.Generator) -> bytes:
        """As protobuf, fields in any order, deltas packed or not."""
        fields = [varint(3 << 3 | 1) + struct.pack("<d", self.total), varint(4 << 3) + zigzag(3)]
        fields.append(varint(15 << 3) + varint(1_700_000_000_000))
        if self.is_float:
            fields += [
                varint(2 << 3 | 1) + struct.pack("<d", self.count),
                varint(7 << 3 | 1) + struct.pack("<d", self.zero),
            ]
        else:
            fields += [varint(1 << 3) + varint(self.count), varint(6 << 3) + varint(self.zero)]
        for side, spans in ((8, self.negative), (11, self.positive)):
            lengths = [
                varint(1 << 3) + zigzag(int(random.integers(-5, 5))) + varint(2 << 3) + varint(len(span))
                for span in spans
            ]
            fields.append(b"".join(message(side, length) for length in lengths))
            counts = [count for span in spans for count in span]
            if self.is_float:
                fields.append(message(side + 2, struct.pack(f"<{len(counts)}d", *counts)))
            else:
                deltas = [zigzag(after - before) for before, after in zip([0, *counts], counts, strict=False)]
                is_packed = random.random() < 0.5
                tag = varint(side + 1 << 3)
                fields.append(
                    message(side + 1, b"".join(deltas)) if is_packed else b"".join(tag + one for one in deltas)
                )
        return b"".join(fields[place] for place in random.permutation(len(fields)))


def drawn(random: np.random.Generator, *, is_float: bool = False) -> Histogram:
    """One that holds together."""

    def side() -> tuple[tuple[int, ...], ...]:
        sizes = random.integers(1, 5, int(random.integers(0, 4)))
        return tuple(tuple(int(count) for count in random.integers(0, 1000, size)) for size in sizes)

    negative, positive, zero = side(), side(), int(random.integers(0, 50))
    count = zero + sum(count for spans in (negative, positive) for span in spans for count in span)
    return Histogram(negative=negative, positive=positive, zero=zero, count=count, is_float=is_float)


def body(*histograms: bytes, sample: bool = False) -> bytes:
    """A body of version 2: a series of histograms, and one of a sample."""
    symbols = b"".join(message(4, text) for text in (b"", b"__name__", b"latency"))
    series = [message(1, b"\x01\x02") + b"".join(message(3, one) for one in histograms)]
    if sample:
        value = b"\x09" + struct.pack("<d", 1.0) + b"\x10" + varint(1_700_000_000_000)
        series.append(message(1, b"\x01\x02") + message(2, value))
    return bytes(cramjam.snappy.compress_raw(symbols + b"".join(message(5, one) for one in series)))


def unsound(*histograms: bytes) -> int:
    decoded = Decoder(LIMITS).decode(body(*histograms), Version.V2)
    assert decoded.histograms == len(histograms)
    return decoded.unsound_histograms


@pytest.mark.parametrize("seed", range(30))
def test_those_that_hold_together_are_sound_however_they_are_written(seed: int) -> None:
    random = np.random.default_rng(seed)
    assert unsound(*(drawn(random, is_float=random.random() < 0.3).written(random) for _ in range(20))) == 0


@pytest.mark.parametrize("seed", range(30))
def test_each_that_does_not_is_counted(seed: int) -> None:
    random = np.random.default_rng(seed)
    good = drawn(random)
    bad = [
        replace(good, count=good.count + 1),
        replace(good, zero=good.zero + 1),
        replace(good, positive=(*good.positive, (-1,)), count=good.count - 1),
        replace(good, is_float=True, negative=(*good.negative, (-1,))),
        replace(good, is_float=True, count=-1),
        replace(good, total=math.nan, count=good.count - 1),
    ]
    bad = [one for one in bad if one.count >= 0 or one.is_float]
    assert unsound(good.written(random), *(one.written(random) for one in bad)) == len(bad)
    # A span that promises one bucket more, and a message that is cut.
    longer = good.written(random) + message(11, varint(2 << 3) + varint(1))
    assert unsound(longer, good.written(random)[:-1]) == 2


def test_observations_that_are_no_number_lie_in_no_bucket() -> None:
    random = np.random.default_rng(1)
    good = drawn(random)
    assert unsound(replace(good, total=math.nan, count=good.count + 3).written(random)) == 0
    assert unsound(b"") == 0


def test_refusal_names_them_and_takes_the_rest(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    good = drawn(random)
    sent = body(good.written(random), replace(good, count=good.count + 1).written(random), sample=True)
    answer = intake_of(file_bus(tmp_path / "bus")).take(sent, Version.V2)
    assert (answer.status, answer.histograms, answer.samples) == (400, 1, 1)
    assert "cannot take 1 histograms: count and buckets do not agree" in answer.text
