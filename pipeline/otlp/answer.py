"""What a sender of OTLP is answered: a message, whatever became of its request.

Called by `pipeline.receiver.receiver`. Part of a body that can't be taken is said in `partial_success` with 200, since
it would be refused again; a request that failed is answered with a `google.rpc.Status`, and 429 and 503 with
Retry-After, on which the sender comes again. Source: opentelemetry.io/docs/specs/otlp ("OTLP/HTTP Response"),
open-telemetry/opentelemetry-proto:opentelemetry/proto/collector/metrics/v1/metrics_service.proto,
googleapis/googleapis:google/rpc/status.proto and code.proto.
"""

from __future__ import annotations

from pipeline.remote_write.protobuf_fields import bytes_field, varint

CONTENT_TYPE = "application/x-protobuf"
_CODES = {401: 16, 403: 7, 413: 8, 429: 8, 500: 13, 503: 14}
_INVALID_ARGUMENT = 3


def response_of(rejected: int, text: str) -> bytes:
    """An ExportMetricsServiceResponse; empty where everything was taken.

    Args:
        rejected: points that were not taken.
        text: why, one line.
    """
    if not text:
        return b""
    count = b"\x08" + varint(rejected) if rejected else b""
    return bytes_field(1, count + bytes_field(2, text.encode()))


def status_of(http_status: int, text: str) -> bytes:
    """A `google.rpc.Status` of a request that was not taken."""
    return b"\x08" + varint(_CODES.get(http_status, _INVALID_ARGUMENT)) + bytes_field(2, text.encode())
