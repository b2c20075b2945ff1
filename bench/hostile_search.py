"""A search for bodies that cost a receiver most: shapes are changed at random, and those that cost more are kept.

A shape says what a body is made of; what it costs is what the running program takes for it: processor time, in ticks of
10 ms, and how far its resident memory rises. Four aims, each with bodies of its own that are worst so far: processor
time, memory, and each of them per byte that is sent. Seeds are shapes, and bodies of `bench.hostile_senders`, cut,
doubled and spliced below snappy. Used by the bar `trust-ceiling --search SECONDS`.
"""

from __future__ import annotations

import http.client
import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from random import Random

import cramjam

from bench.hostile_senders import KINDS, Body, packed
from bench.receiver_load import START_MS
from bench.receiving import HEADERS, WRITE_PATH, RunningReceiver
from pipeline.remote_write.decode import Version
from pipeline.remote_write.protobuf_fields import bytes_field, varint

RAW_BYTES_MAX, BODY_BYTES_MAX = 32 << 20, 16 << 20
KEPT = 6
"""Bodies that are kept of each aim."""
_BYTES_LEAST = 4096
"""Bytes that the smallest body counts as: its head and its connection cost as much as those."""
_PIECES = 2000
"""Series that differ in bytes; a body with more repeats them with other numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a body is made of; counts of each series unless said otherwise.

    Attributes:
        version: 1 or 2 of the message.
        name: place in `_NAMES`.
        distinct: series of the body that differ.
        late: samples that are far out of time, of a hundred.
        split: references of version 2 that stand alone, of a hundred.
        form: 0 for snappy as senders write it, 1 for literals of one byte, 2 for literals alone.
        splices: parts that are cut and copied once all is written.
    """

    version: int = 1
    series: int = 1000
    distinct: int = 1000
    name: int = 0
    labels: int = 6
    label_bytes: int = 8
    value_bytes: int = 12
    samples: int = 1
    late: int = 0
    histograms: int = 0
    buckets: int = 0
    exemplars: int = 0
    metadata: int = 0
    help_bytes: int = 20
    symbols: int = 0
    split: int = 0
    unknown: int = 0
    form: int = 0
    splices: int = 0


_NAMES = (
    b"gputide_slice_duty_cycle_ratio", b"up", b"gputide_slice_info", b"gputide_card_info", b"kube_pod_owner",
    b"DCGM_FI_DEV_GPU_UTIL", b"vllm:cache_config_info", b"gputide_node_info",
)  # fmt: skip
_KEYS = (b"card", b"cluster", b"container", b"labels", b"namespace", b"node", b"pod", b"framebuffer_bytes", b"workload")
_MOST = {
    "version": 2, "series": 200_000, "distinct": 200_000, "name": len(_NAMES) - 1, "labels": 70, "label_bytes": 2048,
    "value_bytes": 2100, "samples": 200_000, "late": 100, "histograms": 3000, "buckets": 3000, "exemplars": 3000,
    "metadata": 20, "help_bytes": 4000, "symbols": 400_000, "split": 100, "unknown": 500, "form": 2, "splices": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A body and what it cost: processor seconds, and bytes by which the receiver's memory rose."""

    name: str
    body: Body
    shape: Shape | None
    cpu_seconds: float
    memory_bytes: int

    def scores(self) -> tuple[float, float, float, float]:
        """What each aim wants to be large."""
        sent = max(_BYTES_LEAST, len(self.body[1]))
        return self.cpu_seconds, float(self.memory_bytes), self.cpu_seconds / sent, self.memory_bytes / sent


def search(receiver: RunningReceiver, seconds: float, seed: int) -> list[Found]:
    """The worst bodies that were found, those first that take most processor time.

    Raises:
        SystemExit: the receiver is gone, or does not answer within a minute; the body lies in a file beside.
    """
    random = Random(seed)
    best: list[list[Found]] = [[] for _ in range(4)]
    ends = time.monotonic() + seconds
    for number, (kind, body, shape) in enumerate(_tried(random, best)):
        if time.monotonic() > ends:
            break
        found = _measured(receiver, f"search-{number}-{kind}", body, shape)
        for aim, held in enumerate(best):
            held.append(found)
            held.sort(key=lambda one, aim=aim: -one.scores()[aim])  # type: ignore[misc]
            del held[KEPT:]
    worst = {one.name: one for held in best for one in held}
    return sorted(worst.values(), key=lambda one: -one.cpu_seconds)


def _tried(random: Random, best: list[list[Found]]) -> Iterator[tuple[str, Body, Shape | None]]:
    for name, make in KINDS.items():
        yield name, make(random), None
    while True:
        parent = random.choice(random.choice(best))
        if parent.shape is None and random.random() < 0.5:
            version, sent = parent.body
            try:
                raw = bytes(cramjam.snappy.decompress_raw(sent))
            except cramjam.DecompressionError:
                continue
            yield "spliced", (version, packed(_spliced(raw, random)[:RAW_BYTES_MAX])), None
            continue
        shape = _changed(parent.shape or Shape(), random)
        body = made(shape, random)
        if len(body[1]) <= BODY_BYTES_MAX:
            yield "shaped", body, shape


def _changed(shape: Shape, random: Random) -> Shape:
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        name = random.choice([one.name for one in fields(Shape)])
        value, most = getattr(shape, name), _MOST[name]
        drawn = random.choice((0, 1, most, value * 2, value * 8, value // 2, value + 1, random.randint(0, most)))
        shape = replace(shape, **{name: min(most, max(int(name == "version"), drawn))})
    return shape


def made(shape: Shape, random: Random) -> Body:
    """A body of a shape, cut to the most that may be unpacked; its labels are new."""
    version = Version.V2 if shape.version == 2 else Version.V1
    first, symbols = random.randrange(10**12), [b"", *_NAMES, *_KEYS]
    head = b""
    pieces: list[bytes] = []
    size = 0
    for number in range(min(shape.series, max(1, shape.distinct), _PIECES)):
        pieces.append(_series(shape, version, first + number, random, symbols))
        size += len(pieces[-1])
        if size > RAW_BYTES_MAX:
            break
    if version is Version.V2:
        symbols += [b"%x" % (first + at) for at in range(shape.symbols)]
        head = b"".join(bytes_field(4, text) for text in symbols)
    else:
        head = bytes_field(3, b"\x08\x01" + bytes_field(2, b"m" * 20) + bytes_field(4, b"h" * shape.help_bytes)) * (
            shape.metadata * 100
        )
    marker, series = b"%012d" % first, b"".join(pieces)
    raw, whole_bytes = [head], len(head)
    for turn in range(-(-shape.series // max(1, len(pieces)))):
        is_new = turn * len(pieces) < shape.distinct
        raw.append(series.replace(marker[:6], b"%06d" % random.randrange(10**6)) if is_new and turn else series)
        whole_bytes += len(series)
        if whole_bytes > RAW_BYTES_MAX:
            break
    whole = b"".join(raw)[:RAW_BYTES_MAX]
    for _ in range(shape.splices):
        whole = _spliced(whole, random)[:RAW_BYTES_MAX]
    return version, _snappy(whole, shape.form)


def _series(shape: Shape, version: Version, number: int, random: Random, symbols: list[bytes]) -> bytes:
    text = b"%012d" % number
    pairs = [(b"__name__", _NAMES[shape.name])]
    for place in range(shape.labels):
        key = _KEYS[place] if place < len(_KEYS) else b"k%03d" % place + b"k" * shape.label_bytes
        value = b'{"a":"%s"}' % text if key == b"labels" else text + b"v" * shape.value_bytes
        pairs.append((key, b"%d" % (1 << 34) if key == b"framebuffer_bytes" else value))
    pairs.sort()
    if version is Version.V1:
        labels = b"".join(bytes_field(1, bytes_field(1, name) + bytes_field(2, value)) for name, value in pairs)
    else:
        refs = []
        for pair in pairs:
            for one in pair:
                refs.append(symbols.index(one) if one in symbols[:20] else len(symbols))
                symbols += [one] if refs[-1] == len(symbols) else []
        alone = len(refs) * shape.split // 100
        labels = b"".join(b"\x08" + varint(one) for one in refs[:alone])
        labels += bytes_field(1, b"".join(map(varint, refs[alone:])))
    times = ((1 << 62) if random.randrange(100) < shape.late else START_MS + at for at in range(shape.samples))
    samples = b"".join(bytes_field(2, b"\x09" + struct.pack("<d", 0.5) + b"\x10" + varint(at)) for at in times)
    buckets = bytes_field(11, b"\x08\x00\x10" + varint(shape.buckets)) + bytes_field(12, b"\x02" * shape.buckets)
    histogram = b"\x08" + varint(shape.buckets) + b"\x20\x01" + buckets + b"\x78" + varint(START_MS)
    of_version = (3, 4) if version is Version.V1 else (4, 3)
    exemplar = (
        bytes_field(1, bytes_field(1, b"t") + bytes_field(2, text)) if version is Version.V1 else b"\x0a\x02\x01\x02"
    )
    body = (
        labels + samples
        + bytes_field(of_version[0], exemplar + b"\x11" + bytes(8)) * shape.exemplars
        + bytes_field(of_version[1], histogram) * shape.histograms
        + bytes_field(9, b"u") * shape.unknown
        + (bytes_field(5, b"\x08\x01" * shape.metadata) if version is Version.V2 else b"")
    )  # fmt: skip
    return bytes_field(5 if version is Version.V2 else 1, body)


def _spliced(raw: bytes, random: Random) -> bytes:
    start, end, at = sorted(random.randrange(len(raw) + 1) for _ in range(3))
    return random.choice(
        (
            raw[:start] + raw[start:end] * random.choice((2, 10, 1000)) + raw[end:],
            raw[:start] + raw[end:],
            raw[:start] + random.randbytes(random.randrange(1, 9)) + raw[start:],
            raw[:at] + raw[start:end] + raw[at:],
        )
    )


def _snappy(raw: bytes, form: int) -> bytes:
    """Source of the format: google/snappy:format_description.txt."""
    if form == 0 or len(raw) > BODY_BYTES_MAX:
        return packed(raw)
    if form == 1 and 2 * len(raw) < BODY_BYTES_MAX:
        return varint(len(raw)) + b"".join(b"\x00%c" % byte for byte in raw)
    return varint(len(raw)) + b"".join(
        b"\xf4" + struct.pack("<H", len(raw[at : at + 65_536]) - 1) + raw[at : at + 65_536]
        for at in range(0, len(raw), 65_536)
    )


def _measured(receiver: RunningReceiver, name: str, body: Body, shape: Shape | None) -> Found:
    Path(f"/proc/{receiver.pid}/clear_refs").write_text("5")  # VmHWM begins anew (man 5 proc)
    cpu, resident = receiver.cpu_seconds(), receiver.rss_bytes()
    version, data = body
    headers = HEADERS if version is Version.V2 else HEADERS | {"Content-Type": "application/x-protobuf"}
    connection = http.client.HTTPConnection(*receiver.address, timeout=60)
    try:
        connection.request("POST", WRITE_PATH, data, headers)
        connection.getresponse().read()
    except (OSError, http.client.HTTPException) as exc:
        place = Path(f"{name}.body")
        place.write_bytes(data)
        raise SystemExit(f"no answer to {place} ({version}): {exc!r}") from exc
    finally:
        connection.close()
    return Found(
        name=name, body=body, shape=shape, cpu_seconds=receiver.cpu_seconds() - cpu,
        memory_bytes=max(0, receiver.rss_bytes("VmHWM") - resident),
    )  # fmt: skip


def write(found: list[Found], folder: Path) -> None:
    """Each body as a file, and what it costs in `FOUND.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for one in found:
        (folder / f"{one.name}.body").write_bytes(one.body[1])
        lines.append(
            {
                "name": one.name, "version": one.body[0].name, "bytes": len(one.body[1]),
                "cpu_seconds": round(one.cpu_seconds, 4), "memory_mib": one.memory_bytes >> 20,
                "shape": None if one.shape is None else {of.name: getattr(one.shape, of.name) for of in fields(Shape)},
            }
        )  # fmt: skip
    (folder / "FOUND.json").write_text(json.dumps(lines, indent=1))
