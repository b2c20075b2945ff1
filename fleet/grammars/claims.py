"""What Kubernetes' dynamic resource allocation says of cards: claims with their results, slices with devices, taints.

A claim's allocation names driver, pool and device; which card that is stands in the driver's ResourceSlice, as the
attribute `uuid`. A device is closed to new pods by a taint, which its driver writes there or an administrator in a
DeviceTaintRule (v1alpha3 to Kubernetes 1.35, v1beta2 in 1.36, v1 from 1.37 on). Read from manifests as the API serves
them; called by the exporter's attribution, the scheduler layer and the enforcer. Pure.

Sources: kubernetes/api:resource/v1/types.go (ResourceClaimStatus, DeviceRequestAllocationResult, ResourceSlice,
DeviceTaint, DeviceTaintSelector), resource/v1alpha3/types.go of 1.34 (selectors by class and CEL),
kubernetes-sigs/dra-driver-nvidia-gpu:cmd/gpu-kubelet-plugin/deviceinfo.go, Project-HAMi/k8s-dra-driver:README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal

from fleet.errors import Corrupt, Misconfigured
from fleet.grammars.device_ids import is_card_uuid, is_instance_uuid
from fleet.grammars.mig import is_mig_profile
from fleet.grammars.text import DEVICES_MAX, json_object, shown, text_member
from fleet.units import parse_quantity

NVIDIA_DRIVER = "gpu.nvidia.com"
HAMI_DRIVER = "hami-core-gpu.project-hami.io"

_DRIVER_OF_CLASS = {NVIDIA_DRIVER: NVIDIA_DRIVER, "mig.nvidia.com": NVIDIA_DRIVER, HAMI_DRIVER: HAMI_DRIVER}
"""Classes that drivers of cards install; the first and the last have their driver's name."""
_CLOSING = ("NoSchedule", "NoExecute")
"""Effects by which no claim gets the device that does not tolerate them; all others count as none."""
_NAME_LENGTH_MAX = 253
_QUANTITY_MAX = Decimal(2**50)
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDevice:
    """One device that a claim was given.

    Attributes:
        pool: pool of the driver, as a rule the node's name.
        device: name of the device within the pool, such as `gpu-0`.
        share_id: id of the share where several claims hold one device; None where it is held alone.
        framebuffer_bytes: framebuffer consumed of a shared device, bytes; None where nothing is said.
        core_percent: cores consumed of a shared device, percent; None where nothing is said.
        is_admin: an administrator's access, which takes the device from nobody.
        request: the claim's request that it was given for, `REQUEST/SUBREQUEST` where that had alternatives; None where
            nothing is said.
    """

    driver: str
    pool: str
    device: str
    share_id: str | None = None
    framebuffer_bytes: int | None = None
    core_percent: float | None = None
    is_admin: bool = False
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAllocation:
    """A ResourceClaim that has been allocated.

    Attributes:
        devices: what it was given.
        reserved_for: UIDs of the pods that may use it, sorted.
        uid: UID of the claim; None where the manifest has none.
    """

    namespace: str
    claim: str
    devices: tuple[ClaimedDevice, ...]
    reserved_for: tuple[str, ...]
    uid: str | None = None

    def given(self, requests: AbstractSet[str]) -> tuple[ClaimedDevice, ...]:
        """The devices of some of its requests; all where none is named."""
        return tuple(
            device
            for device in self.devices
            if not requests or device.request is None or device.request.partition("/")[0] in requests
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTaint:
    """A taint of a device.

    Attributes:
        effect: `NoSchedule`, `NoExecute` (which also evicts), or `None`, by which its author only says something.
        by: who made it: `driver NAME` or `DeviceTaintRule NAME`, with a note where it may mean other devices only.
    """

    key: str
    value: str
    effect: str
    by: str

    @property
    def closes(self) -> bool:
        """Whether no new pod gets the device; no claim of ours tolerates anything."""
        return self.effect in _CLOSING

    def __str__(self) -> str:
        """As `KEY=VALUE:EFFECT of DeviceTaintRule NAME`."""
        return f"{self.key}={self.value}:{self.effect} of {self.by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintRule:
    """An administrator's taint of all devices that a selector means; a part of it that is None means any."""

    taint: DeviceTaint
    driver: str | None
    pool: str | None
    device: str | None

    def covers(self, device: PublishedDevice) -> bool:
        """Whether a device is meant."""
        return (
            self.driver in (None, device.driver)
            and self.pool in (None, device.pool)
            and self.device in (None, device.device)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDevice:
    """One device that a driver publishes.

    Attributes:
        device: name within the pool.
        uuid: UUID of the card or MIG instance; None where the driver says none.
        parent: UUID of the card of a MIG instance; None for cards.
        profile: MIG profile; None for cards.
        framebuffer_bytes: framebuffer, bytes; None where the driver says none.
        core_percent: cores that may be consumed of it, percent; None where they are not counted.
        product: model as the driver prints it; None where it says none.
        is_shareable: several claims may hold a part of it each (`allowMultipleAllocations`).
        taints: what its driver says of it.
    """

    driver: str
    pool: str
    device: str
    uuid: str | None = None
    parent: str | None = None
    profile: str | None = None
    framebuffer_bytes: int | None = None
    core_percent: float | None = None
    product: str | None = None
    is_shareable: bool = False
    taints: tuple[DeviceTaint, ...] = ()

    def tainted(self, rules: Iterable[TaintRule]) -> tuple[DeviceTaint, ...]:
        """All its taints, those of its driver first."""
        return *self.taints, *(rule.taint for rule in rules if rule.covers(self))


def parse_claim(manifest: Mapping[str, object]) -> ClaimAllocation | None:
    """Reads a ResourceClaim (resource.k8s.io v1, v1beta1, v1beta2); None for one that is not allocated.

    Raises:
        Corrupt: not such an object, or larger than its bounds.
    """
    what = "ResourceClaim"
    metadata = json_object(manifest.get("metadata"), what)
    status = json_object(manifest.get("status") or {}, what)
    if not status.get("allocation"):
        return None
    allocation = json_object(status["allocation"], what)
    devices = json_object(allocation.get("devices") or {}, what)
    consumers = [json_object(entry, what) for entry in _entries(status, "reservedFor", what)]
    return ClaimAllocation(
        namespace=_name(metadata, "namespace", what),
        claim=_name(metadata, "name", what),
        devices=tuple(_claimed(json_object(entry, what)) for entry in _entries(devices, "results", what)),
        reserved_for=tuple(
            sorted(_name(consumer, "uid", what) for consumer in consumers if consumer.get("resource") == "pods")
        ),
        uid=_name(metadata, "uid", what) if metadata.get("uid") else None,
    )


def parse_published(manifest: Mapping[str, object]) -> tuple[PublishedDevice, ...]:
    """Reads the devices of a ResourceSlice; v1beta1 writes what is known of a device one level deeper.

    Raises:
        Corrupt: not such an object, or larger than its bounds.
    """
    what = "ResourceSlice"
    spec = json_object(manifest.get("spec"), what)
    driver = _name(spec, "driver", what)
    pool = _name(json_object(spec.get("pool"), what), "name", what)
    return tuple(_published(json_object(entry, what), driver, pool) for entry in _entries(spec, "devices", what))


def parse_taint_rule(manifest: Mapping[str, object]) -> TaintRule | None:
    """Reads a DeviceTaintRule; None for one that selects no device, or only those of a class that has no cards.

    Up to Kubernetes 1.34 a rule could also select by class and by CEL. A class that NVIDIA's or HAMi's driver installs
    means that driver's devices. CEL nobody evaluates here: the rule counts for every device that the rest of it means,
    so that none is taken for open that is not, and its taint says so.

    Raises:
        Corrupt: not such an object.
    """
    what = "DeviceTaintRule"
    name = _name(json_object(manifest.get("metadata"), what), "name", what)
    spec = json_object(manifest.get("spec"), what)
    if not isinstance(spec.get("deviceSelector"), dict):
        return None
    selector = json_object(spec["deviceSelector"], what)
    driver, pool, device = (
        _name(selector, part, what) if selector.get(part) else None for part in ("driver", "pool", "device")
    )
    if driver is None and selector.get("deviceClassName"):
        driver = _DRIVER_OF_CLASS.get(_name(selector, "deviceClassName", what))
        if driver is None:
            return None
    doubt = " (selector not evaluated)" if selector.get("selectors") else ""
    taint = _taint(json_object(spec.get("taint"), what), f"{what} {name}{doubt}", what)
    return TaintRule(taint=taint, driver=driver, pool=pool, device=device)


def _taint(entry: Mapping[str, object], by: str, what: str) -> DeviceTaint:
    return DeviceTaint(
        key=_name(entry, "key", what),
        value=_name(entry, "value", what) if entry.get("value") else "",
        effect=_name(entry, "effect", what),
        by=by,
    )


def _claimed(entry: Mapping[str, object]) -> ClaimedDevice:
    what = "ResourceClaim"
    consumed = _quantities(entry.get("consumedCapacity") or {}, what)
    cores = consumed.get("cores")
    return ClaimedDevice(
        driver=_name(entry, "driver", what),
        pool=_name(entry, "pool", what),
        device=_name(entry, "device", what),
        share_id=_name(entry, "shareID", what) if entry.get("shareID") else None,
        framebuffer_bytes=int(consumed["memory"]) if "memory" in consumed else None,
        core_percent=None if cores is None else float(cores),
        is_admin=entry.get("adminAccess") is True,
        request=_name(entry, "request", what) if entry.get("request") else None,
    )


def _published(entry: Mapping[str, object], driver: str, pool: str) -> PublishedDevice:
    what = "ResourceSlice"
    known = json_object(entry.get("basic") or entry, what)
    attributes = {_unqualified(key): value for key, value in json_object(known.get("attributes") or {}, what).items()}
    if len(attributes) > DEVICES_MAX:
        raise Corrupt(f"cannot read {what}: {len(attributes)} attributes of one device are more than {DEVICES_MAX}")
    uuid = _text_attribute(attributes, "uuid")
    parent = _text_attribute(attributes, "parentUUID")
    profile = _text_attribute(attributes, "profile")
    capacity = json_object(known.get("capacity") or {}, what)
    quantities = _quantities(capacity, what)
    framebuffer, cores = quantities.get("memory"), quantities.get("cores")
    return PublishedDevice(
        driver=driver,
        pool=pool,
        device=_name(entry, "name", what),
        uuid=uuid if uuid is not None and (is_card_uuid(uuid) or is_instance_uuid(uuid)) else None,
        parent=parent if parent is not None and is_card_uuid(parent) else None,
        profile=profile if profile is not None and is_mig_profile(profile) else None,
        framebuffer_bytes=None if framebuffer is None else int(framebuffer),
        core_percent=None if cores is None else float(cores),
        product=_text_attribute(attributes, "productName"),
        is_shareable=known.get("allowMultipleAllocations") is True,
        taints=tuple(
            _taint(json_object(taint, what), f"driver {driver}", what) for taint in _entries(known, "taints", what)
        ),
    )


def _entries(owner: Mapping[str, object], key: str, what: str) -> list[object]:
    entries = owner.get(key) or []
    if not isinstance(entries, list) or len(entries) > DEVICES_MAX:
        raise Corrupt(f"cannot read {what}: {key} is not a list of at most {DEVICES_MAX} entries")
    return entries


def _name(entry: Mapping[str, object], key: str, what: str) -> str:
    name = text_member(entry, key, what)
    if len(name) > _NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise Corrupt(f"cannot read {what}: {key} {shown(name)} is no name")
    return name


def _quantities(value: object, what: str) -> dict[str, Decimal]:
    """Capacities by their unqualified names: `memory: 10Gi`, or `memory: {value: 10Gi}` as slices write it."""
    entries = json_object(value, what)
    if len(entries) > DEVICES_MAX:
        raise Corrupt(f"cannot read {what}: {len(entries)} capacities of one device are more than {DEVICES_MAX}")
    quantities = {}
    for key, entry in entries.items():
        name = _unqualified(key)
        if name not in ("memory", "cores"):
            continue
        text = entry.get("value") if isinstance(entry, dict) else entry
        try:
            quantity = parse_quantity(str(text))
        except Misconfigured as exc:
            raise Corrupt(f"cannot read {what}: {name} {shown(str(text))} is no quantity") from exc
        if not 0 <= quantity < _QUANTITY_MAX:
            raise Corrupt(f"cannot read {what}: {name} {shown(str(text))} is not between 0 and 2^50")
        quantities[name] = quantity
    return quantities


def _text_attribute(attributes: Mapping[str, object], name: str) -> str | None:
    value = attributes.get(name)
    text = value.get("string") if isinstance(value, dict) else None
    return text if isinstance(text, str) and 0 < len(text) <= _NAME_LENGTH_MAX and text.isprintable() else None


def _unqualified(name: object) -> str:
    """`gpu.nvidia.com/uuid` and `uuid` are the same attribute of a driver's own devices."""
    return str(name).rpartition("/")[2]
