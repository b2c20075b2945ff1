"""Bodies of remote write and OTLP that cost a receiver as much as a body can, a few kinds each up to the largest.

Used by the bar `trust-ceiling`. Every body is one that a sender may send: snappy or gzip that unpacks, protobuf that
reads.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from random import Random

import cramjam

from bench.receiver_load import START_MS
from pipeline.otlp.decode import Otlp
from pipeline.remote_write.decode import Version
from pipeline.remote_write.protobuf_fields import bytes_field, varint

Body = tuple[Version | Otlp, bytes]
_SAMPLE = bytes_field(2, b"\x09" + struct.pack("<d", 0.5) + b"\x10" + varint(START_MS))
_WANTED = b"gputide_slice_duty_cycle_ratio"


def packed(raw: bytes) -> bytes:
    """A message as a body."""
    return bytes(cramjam.snappy.compress_raw(raw))


def hostile_bodies(seed: int) -> Iterator[tuple[str, Body]]:
    """Names and bodies, without an end."""
    random = Random(seed)
    while True:
        for name, make in KINDS.items():
            yield name, make(random)


def empty_series(random: Random) -> Body:
    """What first took 2 GiB: series without anything, 127 MiB of them; or as many as may be."""
    size = random.choice((49_000, 16 << 20, 127 << 19))
    return Version.V1, packed(b"\x0a\x00" * size)


def many_labels(random: Random) -> Body:
    """Series with more labels than may be."""
    labels = b"".join(_label(b"l%05d" % number, b"v%d" % random.randrange(10**9)) for number in range(20_000))
    return Version.V1, packed(bytes_field(1, labels + _SAMPLE) * random.randint(1, 40))


def giant_label(random: Random) -> Body:
    """One label as long as a body."""
    value = random.randbytes(64) * random.randint(1000, 240_000)
    return Version.V1, packed(bytes_field(1, _label(b"__name__", _WANTED) + _label(b"a", value) + _SAMPLE))


def new_series(random: Random) -> Body:
    """As many wanted series never seen as one body may have."""
    first = random.randrange(10**12)
    return Version.V1, packed(
        b"".join(
            bytes_field(
                1,
                _label(b"__name__", _WANTED)
                + _label(b"card", b"GPU-%d" % number)
                + _label(b"cluster", b"c")
                + _label(b"namespace", b"n")
                + _label(b"pod", b"p-%d" % number)
                + _SAMPLE,
            )
            for number in range(first, first + random.choice((4000, 16_000, 49_000)))
        )
    )


def unwanted_series(random: Random) -> Body:
    """As many series that nobody asked for as one body may have."""
    first = random.randrange(10**12)
    return Version.V1, packed(
        b"".join(
            bytes_field(1, _label(b"__name__", b"m%d" % number) + _label(b"x", b"y" * 300) + _SAMPLE)
            for number in range(first, first + random.choice((10_000, 49_000)))
        )
    )


def repeated_symbols(random: Random) -> Body:
    """Version 2: long texts said once and meant by thousands of series."""
    long = [random.randbytes(500).hex().encode() for _ in range(5)]
    names = [b"__name__", _WANTED, b"card", b"cluster", b"container", b"namespace", b"node", b"pod"]
    count = random.choice((500, 3000, 16_000, 40_000))
    texts = [b"", *names, *long, *(b"GPU-%d" % random.randrange(10**12) for _ in range(count))]
    symbols = b"".join(bytes_field(4, text) for text in texts)
    series = b"".join(
        bytes_field(
            5,
            bytes_field(1, b"\x01\x02\x03" + varint(14 + number) + b"\x04\x09\x05\x0a\x06\x0b\x07\x0c\x08\x0d")
            + _SAMPLE,
        )
        for number in range(count)
    )
    return Version.V2, packed(symbols + series)


def junk_symbols(random: Random) -> Body:
    """Version 2: symbols that no series means, as many as may be, and more."""
    count = random.choice((150_000, 199_000, 1_000_000))
    first = random.randrange(10**12)
    return Version.V2, packed(
        bytes_field(4, b"") + b"".join(bytes_field(4, b"%x" % (first + at)) for at in range(count))
    )


def split_references(random: Random) -> Body:
    """Version 2: references one by one, which are brought together behind the message."""
    symbols = b"".join(bytes_field(4, text) for text in (b"", b"__name__", _WANTED))
    refs = b"\x08\x01\x08\x02" * random.randint(10, 400_000)
    return Version.V2, packed(symbols + bytes_field(5, refs + _SAMPLE) * 5)


def histograms(random: Random) -> Body:
    """Series with thousands of native histograms."""
    series = _label(b"__name__", b"h%d" % random.randrange(10**9)) + bytes_field(4, b"\x11" + bytes(8)) * 3000
    return Version.V1, packed(bytes_field(1, series) * 100)


def many_samples(random: Random) -> Body:
    """As many samples as may be, each a row of its own, and one more."""
    labels = _label(b"__name__", _WANTED) + _label(b"card", b"GPU-h") + _label(b"pod", b"p-%d" % random.randrange(100))
    count = random.choice((16_000, 50_000, 50_001))
    samples = b"".join(
        bytes_field(2, b"\x09" + struct.pack("<d", random.random()) + b"\x10" + varint(START_MS + at))
        for at in range(count)
    )
    return Version.V1, packed(bytes_field(1, labels + samples))


def bomb(random: Random) -> Body:
    """Snappy that declares more than may be, or than it holds."""
    declared = random.choice((1 << 25, 1 << 30, (1 << 32) - 1))
    return Version.V1, varint(declared) + bytes(packed(bytes(1 << 20)))[4:]


def otlp_new_series(random: Random) -> Body:
    """OTLP: as many points of series never seen as one body may have."""
    first = random.randrange(10**12)
    points = (
        bytes_field(
            1,
            bytes_field(7, _attribute(b"UUID", b"GPU-%d" % number))
            + bytes_field(7, _attribute(b"exported_pod", b"p-%d" % number))
            + _POINT,
        )
        for number in range(first, first + random.choice((4000, 16_000, 199_000)))
    )
    return Otlp.METRICS, gzip.compress(_request(b"", bytes_field(1, _GAUGE) + bytes_field(5, b"".join(points))), 1)


def otlp_long_resource(random: Random) -> Body:
    """OTLP: a resource as long as may be, which becomes labels of every point."""
    value = random.randbytes(32).hex().encode() * random.choice((1, 30, 100_000))
    points = b"".join(
        bytes_field(1, bytes_field(7, _attribute(b"UUID", b"GPU-%d" % number)) + _POINT) for number in range(150_000)
    )
    resource = bytes_field(1, _attribute(b"service.name", value))
    return Otlp.METRICS, gzip.compress(_request(resource, bytes_field(1, _GAUGE) + bytes_field(5, points)), 1)


def otlp_metrics_of_a_long_resource(random: Random) -> Body:
    """OTLP: as many metrics as may be of a resource as long as may be, each with a wanted name and no points."""
    resource = bytes_field(1, _attribute(b"process.command_line", bytes(random.choice((1 << 20, 20 << 20)))))
    metric = bytes_field(2, bytes_field(1, b"DCGM_FI_DEV_GPU_UTIL") + bytes_field(5, b""))
    scope = bytes_field(2, metric * random.choice((16_000, 199_000)))
    return Otlp.METRICS, gzip.compress(bytes_field(1, bytes_field(1, resource) + scope), 1)


def otlp_long_names(random: Random) -> Body:
    """OTLP: metrics whose names mean nothing, as long as may be."""
    name = b"%d" % random.randrange(10**12) + bytes(random.choice((1 << 20, 3 << 20)))
    return Otlp.METRICS, gzip.compress(_request(b"", bytes_field(1, name) + bytes_field(5, b"")), 1)


def otlp_empty_parts(random: Random) -> Body:
    """OTLP: metrics, points or resources without anything, as many as fit."""
    count = random.choice((199_000, 12 << 20))
    empty = b"\x12\x00" * count
    parts = (b"\x0a\x00" * count, bytes_field(1, empty), bytes_field(1, bytes_field(2, empty)))
    return Otlp.METRICS, gzip.compress(random.choice(parts), 1)


def otlp_many_attributes(random: Random) -> Body:
    """OTLP: points with thousands of attributes each."""
    attributes = b"".join(bytes_field(7, _attribute(b"a%d" % number, b"v")) for number in range(20_000))
    points = bytes_field(1, attributes + _POINT) * random.randint(1, 60)
    return Otlp.METRICS, gzip.compress(_request(b"", bytes_field(1, _GAUGE) + bytes_field(5, points)), 1)


def otlp_bomb(random: Random) -> Body:
    """OTLP: gzip that becomes as much as may be, and more, of one byte; or says so and does not."""
    size = random.choice((31 << 20, 256 << 20))
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()
    return Otlp.METRICS, body if random.random() < 0.5 else body[:-4] + struct.pack("<I", 31 << 20)


KINDS: dict[str, Callable[[Random], Body]] = {
    make.__name__: make
    for make in (
        empty_series,
        many_labels,
        giant_label,
        new_series,
        unwanted_series,
        repeated_symbols,
        junk_symbols,
        split_references,
        histograms,
        many_samples,
        bomb,
        otlp_new_series,
        otlp_long_resource,
        otlp_metrics_of_a_long_resource,
        otlp_long_names,
        otlp_empty_parts,
        otlp_many_attributes,
        otlp_bomb,
    )
}

_GAUGE = b"DCGM_FI_DEV_GPU_UTIL"
_POINT = b"\x19" + struct.pack("<Q", START_MS * 1_000_000) + b"\x21" + struct.pack("<d", 50.0)


def _attribute(key: bytes, value: bytes) -> bytes:
    return bytes_field(1, key) + bytes_field(2, bytes_field(1, value))


def _request(resource: bytes, metric: bytes) -> bytes:
    return bytes_field(1, bytes_field(1, resource) + bytes_field(2, bytes_field(2, metric)))


def _label(name: bytes, value: bytes) -> bytes:
    return bytes_field(1, bytes_field(1, name) + bytes_field(2, value))
