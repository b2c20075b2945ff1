"""The kubelet's pod-resources messages as bytes: the few fields that are wanted, read straight from the protobuf.

Generated classes and their runtime would cost the node exporter more memory than the whole client. Unknown fields are
skipped, as protobuf demands; devices of `AMOUNT_RESOURCES` are skipped unread, for Volcano hands them out by the tens
of thousands. What is read is sorted, for the kubelet takes pods and ids from Go's maps, in another order each time.
What is no such message is `Corrupt`. Called by
`exporter.kubelet.client`. Pure.

Sources: kubernetes/kubelet:pkg/apis/podresources/v1/api.proto (field numbers),
protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

from exporter.kubelet.pod_resources import AMOUNT_RESOURCES, ClaimRow, ContainerRow, DeviceRow, PodRow
from fleet.errors import Corrupt

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_VARINT_BYTES_MAX = 10

Span = tuple[int, int]
"""Where a field's bytes begin and end."""


def decode_list(data: bytes) -> tuple[PodRow, ...]:
    """Reads a ListPodResourcesResponse."""
    pods = (_pod(data, span) for number, span in _spans(data, (0, len(data))) if number == 1)
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.pod)))


def decode_allocatable(data: bytes) -> tuple[DeviceRow, ...]:
    """Reads an AllocatableResourcesResponse, its devices alone."""
    rows = (_device(data, span) for number, span in _spans(data, (0, len(data))) if number == 1)
    return _in_order([row for row in rows if row is not None])


def _pod(data: bytes, span: Span) -> PodRow:
    name = namespace = ""
    containers = []
    for number, part in _spans(data, span):
        if number == 1:
            name = _text(data, part)
        elif number == 2:
            namespace = _text(data, part)
        elif number == 3:
            containers.append(_container(data, part))
    return PodRow(namespace=namespace, pod=name, containers=tuple(containers))


def _container(data: bytes, span: Span) -> ContainerRow:
    name = ""
    devices: list[DeviceRow] = []
    claims: list[ClaimRow] = []
    for number, part in _spans(data, span):
        if number == 1:
            name = _text(data, part)
        elif number == 2:
            device = _device(data, part)
            if device is not None:
                devices.append(device)
        elif number == 5:
            claims.extend(_claims(data, part))
    claims.sort(key=lambda row: (row.namespace, row.claim, row.driver, row.pool, row.device, row.share_id or ""))
    return ContainerRow(container=name, devices=_in_order(devices), claims=tuple(claims))


def _device(data: bytes, span: Span) -> DeviceRow | None:
    """Devices of one resource; None for one that only counts. The kubelet writes one row per device or NUMA node."""
    resource = ""
    for number, part in _spans(data, span):
        if number == 1:
            resource = _text(data, part)
            break
    if resource in AMOUNT_RESOURCES:
        return None
    ids = sorted(_text(data, part) for number, part in _spans(data, span) if number == 2)
    return DeviceRow(resource=resource, ids=tuple(ids))


def _claims(data: bytes, span: Span) -> Iterator[ClaimRow]:
    claim = namespace = ""
    resources = []
    for number, part in _spans(data, span):
        if number == 2:
            claim = _text(data, part)
        elif number == 3:
            namespace = _text(data, part)
        elif number == 4:
            resources.append(part)
    for resource in resources:
        yield _claim(data, resource, claim, namespace)


def _claim(data: bytes, span: Span, claim: str, namespace: str) -> ClaimRow:
    texts = {2: "", 3: "", 4: "", 5: ""}
    for number, part in _spans(data, span):
        if number in texts:
            texts[number] = _text(data, part)
    return ClaimRow(
        claim=claim, namespace=namespace, driver=texts[2], pool=texts[3], device=texts[4], share_id=texts[5] or None
    )


def _in_order(rows: list[DeviceRow]) -> tuple[DeviceRow, ...]:
    return tuple(rows if len(rows) < 2 else sorted(rows, key=lambda row: (row.resource, row.ids)))


def _spans(data: bytes, span: Span) -> Iterator[tuple[int, Span]]:
    """Number and place of every field that holds bytes; others are stepped over."""
    at, end = span
    while at < end:
        # Nearly every key and length is one byte, and this is where the time goes.
        key = data[at]
        at += 1
        if key > 0x7F:
            key, at = _varint(data, at - 1, end)
        number, wire_type = key >> 3, key & 7
        if wire_type == _BYTES:
            if at < end and data[at] <= 0x7F:
                length, at = data[at], at + 1
            else:
                length, at = _varint(data, at, end)
            if length > end - at:
                raise Corrupt(f"cannot read the kubelet's answer: a field of {length} bytes ends after its message")
            yield number, (at, at + length)
            at += length
        elif wire_type == _VARINT:
            _, at = _varint(data, at, end)
        elif wire_type in (_FIXED32, _FIXED64):
            at += 4 if wire_type == _FIXED32 else 8
            if at > end:
                raise Corrupt("cannot read the kubelet's answer: it ends within a number")
        else:
            raise Corrupt(f"cannot read the kubelet's answer: no field has wire type {wire_type}")


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    for position in range(at, min(end, at + _VARINT_BYTES_MAX)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise Corrupt("cannot read the kubelet's answer: it ends within a number, or the number does not end")


def _text(data: bytes, span: Span) -> str:
    try:
        return data[span[0] : span[1]].decode()
    except UnicodeDecodeError as exc:
        raise Corrupt("cannot read the kubelet's answer: a text is not UTF-8") from exc
