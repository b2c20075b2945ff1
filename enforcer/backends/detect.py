"""Which backend shares the cards of each node, by the node's own annotations, labels and resources.

Every backend leaves a sign: the register that its device plugin writes, the label by which it was switched on, or the
resource that it offers. Two that hand out cards must not share a node; where signs of two are seen, all are named, with
what each was seen by. Pure. Sources: the records in `fleet.capabilities.register`, and Project-HAMi/HAMi#646 and #2076
on two plugins on one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from enforcer.manifest import Manifest
from fleet.errors import Misconfigured
from fleet.grammars.hami import NODE_HANDSHAKE_ANNOTATION, NODE_REGISTER_ANNOTATION
from fleet.grammars.kai import READY_CONDITIONS, RESERVATION_NAMESPACES
from fleet.grammars.tensor_fusion import COMPONENT_LABEL, HYPERVISOR
from fleet.grammars.tensor_fusion import NAMESPACE as TENSOR_FUSION_NAMESPACE
from fleet.grammars.vgpumanager import REGISTER_ANNOTATION as VGPU_MANAGER_REGISTER
from fleet.grammars.volcano import COUNT_RESOURCE as VOLCANO_COUNT
from fleet.grammars.volcano import REGISTER_ANNOTATION as VOLCANO_REGISTER
from fleet.sentences import Sentence, sentence
from fleet.units import parse_quantity

_GONE = "Deleted"
"""What HAMi's scheduler writes there when the plugin has not been heard of for long."""

NVIDIA_RESOURCE = "nvidia.com/gpu"
MIG_PREFIX = "nvidia.com/mig-"

ON_NVIDIAS_PLUGIN = frozenset({"kai", "kai_nvfractions", "tensor_fusion"})
"""Backends that work on top of NVIDIA's plugin, or leave it the cards that its pods hold: both stand on a node."""

DRIVERS = ("gpu.nvidia.com",)
"""Drivers of resource claims whose cards the DRA backends hand out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedBackend:
    """One backend on one node."""

    node: str
    backend: str
    sign: str


def detect_backends(
    nodes: Iterable[Manifest], pods: Iterable[Manifest] = (), resource_slices: Iterable[Manifest] = ()
) -> tuple[DetectedBackend, ...]:
    """Tell the backends of nodes.

    Args:
        pods: manifests of pods; those of KAI's reservations and of TensorFusion's hypervisor count.
        resource_slices: manifests of `resource.k8s.io` slices.

    Returns:
        What was found, by node and name; nothing for a node without cards. A node with several entries is shared by
        several backends, which is a fault unless one of them is KAI, which works on top of NVIDIA's plugin.
    """
    pods = tuple(pods)
    reserved = {
        pod["spec"].get("nodeName"): pod["metadata"]["namespace"]
        for pod in pods
        if pod["metadata"].get("namespace") in RESERVATION_NAMESPACES
    }
    fused = {
        pod["spec"].get("nodeName")
        for pod in pods
        if pod["metadata"].get("namespace") == TENSOR_FUSION_NAMESPACE
        and _texts(pod, "labels").get(COMPONENT_LABEL) == HYPERVISOR
    }
    claimed = {
        entry["spec"].get("nodeName")
        for entry in resource_slices
        if entry["spec"].get("driver") in DRIVERS and entry["spec"].get("devices")
    }
    found: list[DetectedBackend] = []
    for node in nodes:
        name = node["metadata"]["name"]
        signs = _signs(node)
        capped = _capped(node)
        if capped is not None:
            signs["kai_nvfractions"] = capped
        elif name in reserved:
            signs["kai"] = f"a pod of {reserved[name]}"
        if name in fused:
            signs["tensor_fusion"] = f"a pod with {COMPONENT_LABEL}={HYPERVISOR}"
        if name in claimed:
            signs["dra_shared"] = f"a ResourceSlice of {DRIVERS[0]}"
        found += [DetectedBackend(node=name, backend=backend, sign=sign) for backend, sign in sorted(signs.items())]
    return tuple(sorted(found, key=lambda entry: (entry.node, entry.backend)))


def conflicts(found: Iterable[DetectedBackend]) -> dict[str, Sentence]:
    """Nodes whose cards are handed out by more than one backend, by name, one sentence each."""
    by_node: dict[str, list[DetectedBackend]] = {}
    for entry in found:
        by_node.setdefault(entry.node, []).append(entry)
    return {
        node: sentence("doctor.found.conflict", node=node, backends=_all_of(entries))
        for node, entries in sorted(by_node.items())
        if len({entry.backend for entry in entries} - ON_NVIDIAS_PLUGIN) > 1
    }


def _all_of(entries: Sequence[DetectedBackend]) -> Sentence | str:
    named: list[Sentence | str] = [f"{entry.backend} ({entry.sign})" for entry in entries]
    return reduce(lambda first, second: sentence("doctor.found.both", one=first, other=second), named)


def _signs(node: Manifest) -> dict[str, str]:
    """Backends that a node itself shows, each with its sign."""
    found = {backend: sign for backend, read in _READERS.items() if (sign := read(node)) is not None}
    if found:
        return found
    # HAMi's plugin offers the same resource as NVIDIA's, so what is left over counts only where nothing else is seen.
    return {"whole_cards": NVIDIA_RESOURCE} if _offers(node, NVIDIA_RESOURCE) else {}


def _hami(node: Manifest) -> str | None:
    annotations = _texts(node, "annotations")
    if annotations.get(NODE_HANDSHAKE_ANNOTATION, "").startswith(_GONE):
        return None
    return NODE_REGISTER_ANNOTATION if _is_filled(annotations.get(NODE_REGISTER_ANNOTATION)) else None


def _volcano(node: Manifest) -> str | None:
    if _is_filled(_texts(node, "annotations").get(VOLCANO_REGISTER)):
        return VOLCANO_REGISTER
    return VOLCANO_COUNT if _offers(node, VOLCANO_COUNT) else None


def _vgpu_manager(node: Manifest) -> str | None:
    return VGPU_MANAGER_REGISTER if _is_filled(_texts(node, "annotations").get(VGPU_MANAGER_REGISTER)) else None


def _mgpu(node: Manifest) -> str | None:
    label = "vke.node.gpu.schedule"
    return f"{label}=mgpu" if _texts(node, "labels").get(label) == "mgpu" else None


def _mig(node: Manifest) -> str | None:
    allocatable = node.get("status", {}).get("allocatable", {})
    return next((name for name in sorted(allocatable) if name.startswith(MIG_PREFIX) and _offers(node, name)), None)


def _capped(node: Manifest) -> str | None:
    conditions = node.get("status", {}).get("conditions") or ()
    ready = (one["type"] for one in conditions if one.get("type") in READY_CONDITIONS and one.get("status") == "True")
    return next(ready, None)


def _sharing(strategy: str) -> Callable[[Manifest], str | None]:
    def read(node: Manifest) -> str | None:
        label = "nvidia.com/gpu.sharing-strategy"
        return f"{label}={strategy}" if _texts(node, "labels").get(label) == strategy else None

    return read


_READERS: Mapping[str, Callable[[Manifest], str | None]] = {
    "hami": _hami,
    "volcano": _volcano,
    "vgpu_manager": _vgpu_manager,
    "mgpu": _mgpu,
    "mig": _mig,
    "nvidia_time_slicing": _sharing("time-slicing"),
    "nvidia_mps": _sharing("mps"),
}


def _texts(node: Manifest, part: str) -> Mapping[str, str]:
    found: Mapping[str, str] = node["metadata"].get(part) or {}
    return found


def _is_filled(text: str | None) -> bool:
    return text is not None and text.strip() not in ("", "[]")


def _offers(node: Manifest, resource: str) -> bool:
    text = node.get("status", {}).get("allocatable", {}).get(resource)
    try:
        return text is not None and parse_quantity(str(text)) > 0
    except Misconfigured:
        return False
