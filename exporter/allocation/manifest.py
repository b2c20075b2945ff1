"""Reading pieces of a Kubernetes manifest, each with its bounds: what is not of the expected shape is absent.

The API server checks built-in kinds, yet custom resources may hold anything, and annotations come from tenants. Called
by the modules that turn manifests into `records`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import lru_cache

from fleet.errors import Misconfigured
from fleet.grammars.mgpu import CORES_RESOURCE, RECLAIMED_CORES_RESOURCE
from fleet.grammars.vendors import vendor_device
from fleet.inventory import CardModelName
from fleet.units import parse_quantity

LABELS_MAX = 64
"""Most labels of one object that are kept."""
LABELS_LENGTH_MAX = 4096
"""Most characters of one object's labels, keys and values together; above it only `gputide.io/` ones are kept."""

OWN_PREFIX = "gputide.io/"
_NOTHING: Mapping[str, object] = {}
_TEXT_LENGTH_MAX = 1024
_TUPLES_MAX = 65536
# Amounts of framebuffer and compute, network cards and priorities share the prefix and count no devices.
_NVIDIA_DEVICES = re.compile(r"nvidia\.com/(gpu|gpu[.-][a-z0-9.-]{1,48}|mig-[a-z0-9.-]{1,32}|vgpu-number)", re.ASCII)
# The last two are names that classes of NVIDIA's DRA driver have besides (kubernetes/api:resource/v1/types.go).
_OTHER_DEVICES = frozenset(
    {
        "volcano.sh/vgpu-number", "volcano.sh/gpu-number", "gpu.intel.com/i915", "gpu.intel.com/xe",
        "deviceclass.resource.kubernetes.io/gpu.nvidia.com", "deviceclass.resource.kubernetes.io/mig.nvidia.com",
    }
)  # fmt: skip
MGPU_CORES = frozenset({CORES_RESOURCE, RECLAIMED_CORES_RESOURCE})
"""Percent of cards; the second is what mGPU lends to offline work."""


class Shared:
    """Gives equal values as one object: pods of one workload share their labels, names and requests.

    One per reader of manifests; not safe for several threads.
    """

    def __init__(self) -> None:
        self._tuples: dict[object, object] = {}

    def labels(self, labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """The tuple that was first given of all that are equal to this one."""
        if len(self._tuples) >= _TUPLES_MAX:
            # What lives on is still shared among those who hold it.
            self._tuples.clear()
        found = self._tuples.setdefault(labels, labels)
        return found if isinstance(found, tuple) else labels


def mapping(value: object) -> Mapping[str, object]:
    """The object, or an empty one where there is none."""
    return value if isinstance(value, dict) else _NOTHING


def objects(value: object) -> Sequence[Mapping[str, object]]:
    """The objects of a list; none where it is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else ()


def texts(value: object) -> Mapping[str, str]:
    """The entries of an object whose values are texts, such as labels and annotations."""
    return {key: entry for key, entry in value.items() if isinstance(entry, str)} if isinstance(value, dict) else {}


def words(value: object) -> list[str]:
    """The texts of a list, such as a command; none where it is no list."""
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def text(value: object) -> str:
    """The text, kept once however often it comes; empty where there is none or it is longer than any name."""
    return sys.intern(value) if isinstance(value, str) and len(value) <= _TEXT_LENGTH_MAX else ""


def whole(value: object) -> int | None:
    """The whole number of 0 or more; None where there is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def quantity(value: object) -> float | None:
    """A Kubernetes quantity in base units; None where there is none."""
    if isinstance(value, str) and len(value) <= 64:
        return _quantity(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def epoch_seconds(value: object) -> float | None:
    """A time as the API writes it, in epoch seconds; None where there is none."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return None


def labels_of(
    manifest_labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    labels_max: int = LABELS_MAX,
    length_max: int = LABELS_LENGTH_MAX,
) -> tuple[tuple[str, str], ...]:
    """Labels and `gputide.io/` annotations, sorted by key; of a label that is also annotated, the label's value."""
    own = {key: value for key, value in annotations.items() if key.startswith(OWN_PREFIX)}
    found = {**own, **manifest_labels}
    if len(found) > labels_max or sum(len(key) + len(value) for key, value in found.items()) > length_max:
        kept = sorted((key, value) for key, value in found.items() if key.startswith(OWN_PREFIX) and len(value) <= 256)
        return tuple(kept[:LABELS_MAX])
    return tuple((sys.intern(key), sys.intern(value)) for key, value in sorted(found.items()))


@lru_cache(maxsize=1024)
def counts_devices(resource: str) -> bool:
    """Whether a resource counts GPU devices, rather than framebuffer, compute or something else."""
    if _NVIDIA_DEVICES.fullmatch(resource):
        return resource not in ("nvidia.com/gpu-memory", "nvidia.com/gpu-cores")
    return resource in _OTHER_DEVICES or resource in MGPU_CORES or vendor_device(resource) is not None


def is_extended(resource: str) -> bool:
    """Whether a resource is a device plugin's: its name has a domain that is not Kubernetes' own."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def speaks_of_cards(resource: str, also: AbstractSet[str] = frozenset()) -> bool:
    """Whether a resource name, as quotas and queues write it, is of cards or of amounts of them.

    Args:
        also: further names of resources that count GPU devices.
    """
    name = resource.removeprefix("requests.").removeprefix("limits.")
    return name in also or _speaks_of_cards(name)


@lru_cache(maxsize=1024)
def _speaks_of_cards(name: str) -> bool:
    if counts_devices(name) or name.startswith(("nvidia.com/", "volcano.sh/vgpu-", "vke.volcengine.com/mgpu-")):
        return True
    domain = name.partition("/")[0]
    # Classes of dynamic resource allocation: Kubernetes' quotas, then Volcano's queues, by number or by an amount.
    is_class = name.endswith(".deviceclass.resource.k8s.io/devices") or domain.rpartition(".")[2] == "deviceclass"
    return is_class or domain in _VENDOR_DOMAINS


def devices_of(resources: Mapping[str, object], also: AbstractSet[str] = frozenset()) -> dict[str, float]:
    """Number of each resource that counts GPU devices; mGPU's percent as cards.

    Args:
        also: further names of resources that count GPU devices.
    """
    found: dict[str, float] = {}
    for name, value in resources.items():
        if counts_devices(name) or name in also:
            amount = quantity(value)
            if amount is not None and amount > 0:
                found[sys.intern(name)] = amount / 100 if name in MGPU_CORES else amount
    return found


def card_model_name(words: str) -> CardModelName:
    """A model as the driver prints it, from what a device plugin or gpu-feature-discovery writes.

    Args:
        words: `NVIDIA-NVIDIA A10` (HAMi's register puts the vendor before it) or `NVIDIA-A10-SHARED` (labels).
    """
    return CardModelName(sys.intern(words.removeprefix("NVIDIA-")))


_VENDOR_DOMAINS = frozenset(
    {
        "amd.com", "aws.amazon.com", "birentech.com", "cambricon.com", "enflame.com", "gpu.intel.com", "huawei.com",
        "hygon.com", "iluvatar.ai", "kunlunxin.com", "metax-tech.com", "mthreads.com", "vastaitech.com",
    }
)  # fmt: skip


@lru_cache(maxsize=8192)
def _quantity(value: str) -> float | None:
    try:
        return float(parse_quantity(value))
    except (Misconfigured, OverflowError):
        return None
