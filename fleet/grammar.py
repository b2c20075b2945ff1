"""The texts in which NVIDIA's and HAMi's components write cards and slices: device ids, allocations, registers.

Pure parsing and rendering. The exporter and the scheduler layer read them; the enforcer and the simulated cluster write
them. The texts come from a cluster, where any tenant with the right may have written them: sizes are bounded, and
everything that is not the grammar is `Corrupt`.

Sources: Project-HAMi/HAMi:pkg/device/devices.go (EncodeContainerDevices, EncodePodSingleDevice, EncodeNodeDevices,
MarshalNodeDevices), Project-HAMi/HAMi:pkg/device-plugin/nvidiadevice/nvinternal/rm/devices.go (GetPluginDevices),
NVIDIA/k8s-device-plugin:internal/rm, NVIDIA/dcgm-exporter:internal/pkg/transformation/kubernetes.go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleet.errors import Corrupt

DEVICES_ALLOCATED_ANNOTATION = "hami.io/vgpu-devices-allocated"
"""Pod annotation with what the HAMi scheduler granted; the truth about which card a pod got."""

DEVICES_TO_ALLOCATE_ANNOTATION = "hami.io/vgpu-devices-to-allocate"
"""The same text while the device plugin has still to hand it out."""

NODE_REGISTER_ANNOTATION = "hami.io/node-nvidia-register"
"""Node annotation in which HAMi's device plugin lists the node's cards."""

VGPU_NODE_ANNOTATION = "hami.io/vgpu-node"
"""Pod annotation and label: the node that the HAMi scheduler chose."""

TEXT_LENGTH_MAX = 262144
"""Longest annotation that is read: Kubernetes keeps no more than 256 KiB of annotations per object."""

_CONTAINERS_MAX = 1024
_DEVICES_MAX = 1024
_NUMBER_DIGITS_MAX = 12
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DEVICE_ID = re.compile(
    rf"(?P<card>GPU-{_UUID})(?:-(?P<slice>\d{{1,6}})|::(?P<replica>\d{{1,6}}))?"
    rf"|(?P<mig>MIG-{_UUID})(?:::(?P<mig_replica>\d{{1,6}}))?"
    rf"|MIG-(?P<parent>GPU-{_UUID})/(?P<gi>\d{{1,6}})/(?P<ci>\d{{1,6}})",
    re.ASCII,
)
_CARD_ID = re.compile(rf"GPU-{_UUID}", re.ASCII)
# Other vendors' ids are read too, as long as they can't be taken for the separators.
_NAMED_ID = re.compile(r"[A-Za-z0-9._/-]{1,128}", re.ASCII)
_TYPE = re.compile(r"[^,:;\x00-\x1f\x7f]{0,128}")


class DeviceIdForm(StrEnum):
    """Who wrote a kubelet device id."""

    CARD = "card"
    """`GPU-<uuid>`: NVIDIA's plugin, a whole card."""
    HAMI_SLICE = "hami_slice"
    """`GPU-<uuid>-<n>`: HAMi; the pod may hold another card than the one named, see `DEVICES_ALLOCATED_ANNOTATION`."""
    REPLICA = "replica"
    """`GPU-<uuid>::<n>`: NVIDIA's plugin, a time slice or MPS share."""
    MIG = "mig"
    """`MIG-<uuid>`: a MIG instance; its card is known to the driver only."""
    MIG_REPLICA = "mig_replica"
    """`MIG-<uuid>::<n>`: a time slice of a MIG instance."""
    MIG_LEGACY = "mig_legacy"
    """`MIG-GPU-<uuid>/<gi>/<ci>`: a MIG instance as drivers before 470 name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceId:
    """A device id as the kubelet's pod-resources list it.

    Attributes:
        form: who wrote it.
        card: UUID of the card it names; None for `MIG-<uuid>`.
        mig: UUID of the MIG instance; None for other forms.
        number: the slice's or replica's number; None where there is none.
        gpu_instance: GPU instance of the legacy MIG form.
        compute_instance: compute instance of the legacy MIG form.
    """

    form: DeviceIdForm
    card: str | None = None
    mig: str | None = None
    number: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrant:
    """One card's share for one container, as HAMi's pod annotation writes it.

    Attributes:
        card: UUID of the card (or MIG instance).
        device_type: vendor's word, such as `NVIDIA`.
        framebuffer_mib: framebuffer granted, MiB.
        core_percent: compute granted, percent of the card; 0 is no limit.
    """

    card: str
    device_type: str
    framebuffer_mib: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredDevice:
    """One card of a node, as HAMi's node annotation lists it.

    Attributes:
        card: UUID.
        slices_max: how many slices the card is split into at most.
        framebuffer_mib: framebuffer that may be granted, MiB, already multiplied by the node's oversubscription factor.
        core_percent: compute that may be granted, percent.
        device_type: `NVIDIA-` and the model as the driver prints it.
        numa: NUMA node.
        is_healthy: False takes it out of scheduling.
        index: number of the card on its node.
        mode: `hami-core`, `mig` or `mps`; None where the release writes none.
    """

    card: str
    slices_max: int
    framebuffer_mib: int
    core_percent: int
    device_type: str
    numa: int
    is_healthy: bool
    index: int = 0
    mode: str | None = None


def is_card_uuid(text: str) -> bool:
    """Whether the text is the UUID of a whole card: `GPU-` and 8-4-4-4-12 small hexadecimal digits."""
    return _CARD_ID.fullmatch(text) is not None


def parse_device_id(text: str) -> DeviceId:
    """Reads a kubelet device id.

    Raises:
        Corrupt: none of the known forms.
    """
    match = _DEVICE_ID.fullmatch(text) if len(text) <= 128 else None
    if match is None:
        raise Corrupt(f"cannot read device id {_shown(text)}: none of the forms of NVIDIA's and HAMi's device plugins")
    if match["parent"]:
        return DeviceId(
            form=DeviceIdForm.MIG_LEGACY,
            card=match["parent"],
            gpu_instance=int(match["gi"]),
            compute_instance=int(match["ci"]),
        )
    if match["mig"]:
        number = match["mig_replica"]
        form = DeviceIdForm.MIG if number is None else DeviceIdForm.MIG_REPLICA
        return DeviceId(form=form, mig=match["mig"], number=None if number is None else int(number))
    if match["slice"]:
        return DeviceId(form=DeviceIdForm.HAMI_SLICE, card=match["card"], number=int(match["slice"]))
    if match["replica"]:
        return DeviceId(form=DeviceIdForm.REPLICA, card=match["card"], number=int(match["replica"]))
    return DeviceId(form=DeviceIdForm.CARD, card=match["card"])


def render_device_id(device: DeviceId) -> str:
    """Writes a device id in its form; the inverse of `parse_device_id`."""
    match device.form:
        case DeviceIdForm.CARD:
            return f"{device.card}"
        case DeviceIdForm.HAMI_SLICE:
            return f"{device.card}-{device.number}"
        case DeviceIdForm.REPLICA:
            return f"{device.card}::{device.number}"
        case DeviceIdForm.MIG:
            return f"{device.mig}"
        case DeviceIdForm.MIG_REPLICA:
            return f"{device.mig}::{device.number}"
        case DeviceIdForm.MIG_LEGACY:
            return f"MIG-{device.card}/{device.gpu_instance}/{device.compute_instance}"


def parse_devices_allocated(text: str) -> tuple[tuple[DeviceGrant, ...], ...]:
    """Reads `hami.io/vgpu-devices-allocated`: `UUID,type,MiB,cores:` per device, `;` after each container.

    Returns:
        One tuple per container in the pod's order, init containers first; empty for a container without a card.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    _check_length(text, DEVICES_ALLOCATED_ANNOTATION)
    containers = _terminated(text, ";", _CONTAINERS_MAX, DEVICES_ALLOCATED_ANNOTATION)
    return tuple(
        tuple(
            _device_grant(device) for device in _terminated(container, ":", _DEVICES_MAX, DEVICES_ALLOCATED_ANNOTATION)
        )
        for container in containers
    )


def render_devices_allocated(containers: Sequence[Sequence[DeviceGrant]]) -> str:
    """Writes `hami.io/vgpu-devices-allocated`; the inverse of `parse_devices_allocated`."""
    return "".join(
        "".join(f"{grant.card},{grant.device_type},{grant.framebuffer_mib},{grant.core_percent}:" for grant in grants)
        + ";"
        for grants in containers
    )


def parse_node_register(text: str) -> tuple[RegisteredDevice, ...]:
    """Reads `hami.io/node-nvidia-register` in either grammar: JSON (v2.10) or the older CSV of 7 or 9 fields.

    In JSON a field that is zero, empty or false is left out, health included.

    Raises:
        Corrupt: neither grammar, or larger than its bounds.
    """
    _check_length(text, NODE_REGISTER_ANNOTATION)
    if text.startswith("["):
        return _register_of_json(text)
    return tuple(_registered_of_csv(part) for part in _terminated(text, ":", _DEVICES_MAX, NODE_REGISTER_ANNOTATION))


def render_node_register(devices: Sequence[RegisteredDevice]) -> str:
    """Writes `hami.io/node-nvidia-register` as v2.10 does: JSON without fields that are zero, empty or false."""
    entries = [
        {
            "id": device.card,
            "index": device.index,
            "count": device.slices_max,
            "devmem": device.framebuffer_mib,
            "devcore": device.core_percent,
            "type": device.device_type,
            "numa": device.numa,
            "mode": device.mode,
            "health": device.is_healthy,
        }
        for device in devices
    ]
    return json.dumps(
        [{key: value for key, value in entry.items() if value} for entry in entries], separators=(",", ":")
    )


def render_node_register_csv(devices: Sequence[RegisteredDevice]) -> str:
    """Writes `hami.io/node-nvidia-register` as releases before JSON did: 9 fields, or 7 where no mode is known."""
    parts = []
    for device in devices:
        fields: list[object] = [device.card, device.slices_max, device.framebuffer_mib, device.core_percent]
        fields += [device.device_type, device.numa, "true" if device.is_healthy else "false"]
        fields += [] if device.mode is None else [device.index, device.mode]
        parts.append(",".join(str(field) for field in fields) + ":")
    return "".join(parts)


def _terminated(text: str, terminator: str, count_max: int, what: str) -> list[str]:
    """The parts of a text in which each part ends with the terminator."""
    if not text:
        return []
    if not text.endswith(terminator):
        raise Corrupt(f"cannot read {what}: {_shown(text[-32:])} does not end with {terminator!r}")
    if text.count(terminator) > count_max:
        raise Corrupt(f"cannot read {what}: {text.count(terminator)} parts are more than {count_max}")
    return text[:-1].split(terminator)


def _device_grant(text: str) -> DeviceGrant:
    fields = text.split(",")
    if len(fields) != 4:
        raise Corrupt(f"cannot read {DEVICES_ALLOCATED_ANNOTATION}: {_shown(text)} has {len(fields)} fields, not 4")
    return DeviceGrant(
        card=_identifier(fields[0]),
        device_type=_device_type(fields[1]),
        framebuffer_mib=_number(fields[2]),
        core_percent=_number(fields[3]),
    )


def _registered_of_csv(text: str) -> RegisteredDevice:
    fields = text.split(",")
    if len(fields) not in (7, 9) or fields[6] not in ("true", "false"):
        raise Corrupt(
            f"cannot read {NODE_REGISTER_ANNOTATION}: {_shown(text)} has not 7 or 9 fields, the 7th being its health"
        )
    return RegisteredDevice(
        card=_identifier(fields[0]),
        slices_max=_number(fields[1]),
        framebuffer_mib=_number(fields[2]),
        core_percent=_number(fields[3]),
        device_type=_device_type(fields[4]),
        numa=_number(fields[5]),
        is_healthy=fields[6] == "true",
        index=_number(fields[7]) if len(fields) == 9 else 0,
        mode=(_device_type(fields[8]) or None) if len(fields) == 9 else None,
    )


def _register_of_json(text: str) -> tuple[RegisteredDevice, ...]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise Corrupt(f"cannot read {NODE_REGISTER_ANNOTATION}: not JSON: {_shown(text)}") from exc
    if not isinstance(entries, list) or len(entries) > _DEVICES_MAX:
        raise Corrupt(f"cannot read {NODE_REGISTER_ANNOTATION}: not a list of at most {_DEVICES_MAX} devices")
    return tuple(_registered_of_json(entry) for entry in entries)


def _registered_of_json(entry: object) -> RegisteredDevice:
    if not isinstance(entry, dict):
        raise Corrupt(f"cannot read {NODE_REGISTER_ANNOTATION}: {_shown(repr(entry))} is no object")
    is_healthy = entry.get("health", False)
    if not isinstance(is_healthy, bool):
        raise Corrupt(
            f"cannot read {NODE_REGISTER_ANNOTATION}: health {_shown(repr(is_healthy))} is neither true nor false"
        )
    return RegisteredDevice(
        card=_identifier(_member(entry, "id", "")),
        slices_max=_integer_member(entry, "count"),
        framebuffer_mib=_integer_member(entry, "devmem"),
        core_percent=_integer_member(entry, "devcore"),
        device_type=_device_type(_member(entry, "type", "")),
        numa=_integer_member(entry, "numa"),
        is_healthy=is_healthy,
        index=_integer_member(entry, "index"),
        mode=_device_type(_member(entry, "mode", "")) or None,
    )


def _member(entry: Mapping[str, Any], key: str, default: str) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str):
        raise Corrupt(f"cannot read {NODE_REGISTER_ANNOTATION}: {key} {_shown(repr(value))} is no text")
    return value


def _integer_member(entry: Mapping[str, Any], key: str) -> int:
    value = entry.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**_NUMBER_DIGITS_MAX:
        raise Corrupt(
            f"cannot read {NODE_REGISTER_ANNOTATION}: {key} {_shown(repr(value))} is no whole number of 0 or more"
        )
    return value


def _identifier(text: str) -> str:
    if not _NAMED_ID.fullmatch(text):
        raise Corrupt(f"cannot read device id {_shown(text)}: expected 1 to 128 letters, digits and . _ / -")
    return text


def _device_type(text: str) -> str:
    if not _TYPE.fullmatch(text):
        raise Corrupt(f"cannot read device type {_shown(text)}: expected up to 128 printable characters")
    return text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX):
        raise Corrupt(f"cannot read number {_shown(text)}: expected at most {_NUMBER_DIGITS_MAX} digits")
    return int(text)


def _check_length(text: str, what: str) -> None:
    if len(text) > TEXT_LENGTH_MAX:
        raise Corrupt(f"cannot read {what} of {len(text)} characters: longer than {TEXT_LENGTH_MAX}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:64] + "…")
