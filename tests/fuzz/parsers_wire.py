"""Messages of other programs: the kubelet's, Prometheus's, an adapter's, a bus's, heads of requests, views, orders."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import cramjam

from dashboards.address import read_address
from dashboards.notify.chat_formats import code_in
from enforcer.agent.node_view_text import parse_view
from enforcer.agent.orders import parse_orders
from exporter.kubelet.wire import decode_allocatable, decode_list
from exporter.server import accepts_gzip, text_format_of
from fleet.probe_results import PROBE_SCHEMA, parse_probe
from pipeline.bus.adapter_messages import AdapterDecoder
from pipeline.history.matrix import read_matrix
from pipeline.otlp.decode import OtlpDecoder
from pipeline.receiver.receiver import otlp_message_of, version_of
from pipeline.records.rows import unpack
from pipeline.remote_write.decode import BodyLimits, Decoder, Version
from tests.fuzz.hostile_bodies import field, varint
from tests.fuzz.parsers import Parser, text_of
from wire.header_lines import checked_headers, header_lines
from wire.http_head import Refusal, head_of
from wire.prometheus_query import read_object, read_vector

KEY = b"a key of a probe that is long enough"
_LIMITS = BodyLimits(decoded_bytes=1 << 20, samples=50_000)
_DECODER, _OTLP = Decoder(_LIMITS), OtlpDecoder(_LIMITS)
_REFUSAL = code_in("errcode", "code", passing=frozenset({130101}))


def _pod_resources() -> bytes:
    numa = field(1, b"\x08\x01")
    device = field(1, b"nvidia.com/gpu") + field(2, b"GPU-0::1") + field(2, b"GPU-0::2") + field(3, numa)
    claim = (
        field(1, b"claim")
        + field(2, b"team")
        + field(
            3,
            field(1, field(1, b"nvidia.com/gpu=0"))
            + field(2, b"gpu.nvidia.com")
            + field(3, b"n1")
            + field(4, b"gpu-0"),
        )
    )
    container = field(1, b"main") + field(2, device) + field(5, claim)
    return field(1, field(1, b"web-0") + field(2, b"team") + field(3, container))


def _body_v1() -> bytes:
    labels = b"".join(field(1, field(1, n) + field(2, v)) for n, v in ((b"__name__", b"up"), (b"job", b"x")))
    return field(1, labels + field(2, b"\x09" + struct.pack("<d", 1.0) + b"\x10" + varint(1_767_571_200_000)))


def _body_v2() -> bytes:
    sample = field(2, b"\x09" + struct.pack("<d", 1.0) + b"\x10" + varint(1_767_571_200_000))
    symbols = b"".join(field(4, text) for text in (b"", b"__name__", b"up"))
    return symbols + field(5, field(1, b"\x01\x02") + sample)


def _otlp_body() -> bytes:
    values = (b"\x0a\x05GPU-0", b"\x10\x01", b"\x18\x07", b"\x21" + struct.pack("<d", 0.5), b"\x2a\x00")
    pairs = [field(1, b"k%d" % place) + field(2, value) for place, value in enumerate(values)]
    point = b"".join(field(7, pair) for pair in pairs) + b"\x19" + struct.pack("<Q", 1_767_571_200_000_000_000)
    gauge = field(1, b"DCGM_FI_DEV_GPU_UTIL") + field(5, field(1, point + b"\x21" + struct.pack("<d", 50.0)))
    deltas = field(1, b"hw.power") + field(7, field(1, point + b"\x31" + bytes(8) + b"\x40\x01") + b"\x10\x02\x18\x01")
    distribution = field(1, b"x") + field(9, field(1, b"") + b"\x10\x02")
    resource = field(1, field(1, field(1, b"service.name") + field(2, values[0])))
    return field(1, resource + field(2, b"".join(field(2, one) for one in (gauge, deltas, distribution))))


def _adapter_bad(data: bytes) -> object:
    return AdapterDecoder().decode([data])


def _signed(data: bytes) -> object:
    """A probe's result whose signature fits: whoever has the key may write anything."""
    try:
        content = json.loads(data)
        content = {**content, "schema": PROBE_SCHEMA}
        content.pop("signature", None)
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        signature = hmac.new(KEY, canonical.encode(), hashlib.sha256).hexdigest()
        text = json.dumps({**content, "signature": signature})
    except (ValueError, RecursionError, TypeError, AttributeError):
        text = text_of(data)
    return parse_probe(text, KEY)


def _exporter_request(data: bytes) -> object:
    head = head_of(data.partition(b"\r\n\r\n")[0])
    return text_format_of(head.fields.get("accept", "")), accepts_gzip(head.fields.get("accept-encoding", ""))


def _otlp_head(data: bytes) -> object:
    head = head_of(data.partition(b"\r\n\r\n")[0])
    return otlp_message_of(head.fields.get("content-type", ""), head.fields.get("content-encoding", ""))


def _receiver_head(data: bytes) -> object:
    head = head_of(data.partition(b"\r\n\r\n")[0])
    return version_of(head.fields.get("content-type", ""), head.fields.get("content-encoding", "snappy"))


def _header_lines(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "headers")
        path.write_bytes(data)
        return list(checked_headers(header_lines(path, setting="x"), setting="x"))


def _address(data: bytes) -> object:
    path, _, search = text_of(data).partition("?")
    address = read_address(path, search)
    return address.href(path, range=address.time_range), address.get("cluster")


def _of_bytes(name: str, read: Callable[[bytes], object], *seeds: bytes | str, cost: int = 1) -> Parser:
    return Parser(name=name, seeds=tuple(s.encode() if isinstance(s, str) else s for s in seeds), read=read, cost=cost)


def _record() -> bytes:
    """A record of the bus, as the receiver writes it for a small body."""
    from pipeline.records.rows import pack, rows_of  # noqa: PLC0415 - loads kernels, which the other readers do without
    from tests.pipeline.builders import body_limits, body_of, series_table, small_fleet  # noqa: PLC0415

    body = body_of(small_fleet(pods=2, hours=1)[:6])
    sections, _ = rows_of(Decoder(body_limits(1 << 20)).decode(body, Version.V2), series_table())
    return pack(sections, b"h" * 16)


_VIEW = {
    "schema": "gputide.node-view/v1", "node": "n1", "at_seconds": 1767571200.5, "trouble": "ab",
    "cards": [{"card": "GPU-0", "framebuffer_bytes": 2**34, "framebuffer_free_bytes": None, "duty_cycle_ratio": 0.5}],
    "slices": [{"namespace": "team", "pod": "web-0", "pod_uid": "0fd1b1e2-3a4b-4c5d-8e9f-a0b1c2d3e4f5",
                "container": "main", "card": "GPU-0", "priority": "low", "framebuffer_used_bytes": 1,
                "framebuffer_granted_bytes": 2, "framebuffer_limit_bytes": None, "duty_cycle_ratio": None}],
}  # fmt: skip
_ORDERS = {
    "schema": "gputide.orders/v1", "issued_at": "2026-01-12T08:30:00Z", "expires_at": "2026-01-12T09:30:00Z",
    "give_way": "strict", "paused": [{"pod_uid": "0fd1b1e2-3a4b-4c5d-8e9f-a0b1c2d3e4f5", "container": "main"}],
    "limits": [{"pod_uid": "0fd1b1e2-3a4b-4c5d-8e9f-a0b1c2d3e4f5", "container": "main",
                "card": "GPU-00000000-0000-4000-8000-000000000000",
                "framebuffer_bytes": 2**33}],
}  # fmt: skip
_PROBE = {
    "schema": PROBE_SCHEMA, "backend": "hami", "node": "n1", "card": "GPU-0", "measured_at": "2026-01-12T08:30:00Z",
    "granted_framebuffer_bytes": 2**33, "allocated_framebuffer_bytes": 2**33, "is_refused": True,
    "managed_escapes": None, "spilled_bytes": 0, "spill_bytes_per_second": 1.5, "granted_compute_ratio": 0.5,
    "compute_ratio": 0.51, "graph_compute_ratio": 0.9, "pause_seconds": 0.1, "resume_seconds": None,
    "graph_pauses": True,
}  # fmt: skip
_MATRIX = {
    "status": "success", "warnings": ["partial"],
    "data": {"resultType": "matrix", "result": [
        {"metric": {"__name__": "up", "pod": "web-0"}, "values": [[1767571200, "0.5"], [1767571215.5, "NaN"]]},
        {"metric": {}, "values": [[1767571200, "+Inf"]]},
    ]},
}  # fmt: skip
_VECTOR = {"status": "success", "data": {"resultType": "vector", "result": [
    {"metric": {"pod": "web-0"}, "value": [1767571200.1, "0.5"]}]}}  # fmt: skip
_ADAPTER = {"timestamp": "2026-01-12T08:30:00Z", "value": "0.5", "name": "up", "labels": {"__name__": "up", "job": "x"}}
_HEAD = (
    "POST /api/v1/write?x=1 HTTP/1.1\r\nHost: r\r\nContent-Type: application/x-protobuf;proto=prometheus.WriteRequest"
    "\r\nContent-Encoding: snappy\r\nContent-Length: 3\r\nAuthorization: Bearer x\r\n\r\n"
)
_OTLP_HEAD = (
    "POST /v1/metrics HTTP/1.1\r\nHost: r\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: gzip\r\n"
    "Content-Length: 3\r\n\r\n"
)
_SCRAPE = (
    "GET /metrics HTTP/1.1\r\nHost: n\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.6,*/*;q=0.1\r\n"
    "Accept-Encoding: gzip;q=1.0\r\nConnection: close\r\n\r\n"
)


def wire_parsers() -> tuple[Parser, ...]:
    """In the order of the data flow."""
    snappy = tuple(bytes(cramjam.snappy.compress_raw(message)) for message in (_body_v1(), _body_v1() * 300))
    return (
        _of_bytes("pod-resources-list", decode_list, _pod_resources()),
        _of_bytes("pod-resources-allocatable", decode_allocatable, field(1, field(1, b"a/gpu") + field(2, b"G"))),
        Parser(name="exporter-request", seeds=(_SCRAPE.encode(),), read=_exporter_request, also=(Refusal,)),
        Parser(name="receiver-head", seeds=(_HEAD.encode(),), read=_receiver_head, also=(Refusal,)),
        _of_bytes("remote-write-v1", lambda data: _DECODER.decode(_packed(data), Version.V1), _body_v1(), cost=2),
        _of_bytes("remote-write-v2", lambda data: _DECODER.decode(_packed(data), Version.V2), _body_v2(), cost=2),
        _of_bytes("snappy", lambda data: _DECODER.decode(data, Version.V1), *snappy),
        Parser(name="otlp-head", seeds=(_OTLP_HEAD.encode(),), read=_otlp_head, also=(Refusal,)),
        _of_bytes("otlp-metrics", _OTLP.decode, _otlp_body(), gzip.compress(_otlp_body(), mtime=0), cost=2),
        _of_bytes("header-lines", _header_lines, "Authorization: Bearer x\nX-Scope-OrgID: team\n"),
        _of_bytes("adapter-message", _adapter_bad, json.dumps(_ADAPTER)),
        _of_bytes("bus-record", unpack, _record(), cost=2),
        _of_bytes("promql-matrix", read_matrix, json.dumps(_MATRIX)),
        _of_bytes("promql-vector", lambda data: read_vector(read_object(data)), json.dumps(_VECTOR)),
        _of_bytes("node-view", parse_view, json.dumps(_VIEW)),
        _of_bytes("orders", lambda data: parse_orders(text_of(data)), json.dumps(_ORDERS)),
        _of_bytes("probe-result", _signed, json.dumps(_PROBE), cost=2),
        _of_bytes("hook-answer", _REFUSAL, '{"errcode": 130101, "errmsg": "too many"}', '{"code": 0}'),
        _of_bytes("page-address", _address, "/workloads?cluster=c1&range=7d&workload=team/Deployment/web"),
    )  # fmt: skip


def _packed(message: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(message))
