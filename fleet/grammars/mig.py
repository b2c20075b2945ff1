"""HAMi's record of the MIG instances that it made for a pod, and the names of MIG profiles.

Since v2.10 HAMi's scheduler reserves a place on a card, its device plugin makes the instance there and fills in what
the driver named it. Pure parsing; read by the exporter's attribution and the scheduler layer.

Sources: Project-HAMi/HAMi:docs/develop/dynamic-mig.md, pkg/device/nvidia.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet.errors import Corrupt
from fleet.grammars.device_ids import is_card_uuid, is_instance_uuid
from fleet.grammars.text import integer_member, json_list, json_object, shown, text_member

MIG_ALLOCATIONS_ANNOTATION = "hami.io/vgpu-mig-allocations"
"""Pod annotation with the instances that are reserved or made for the pod."""

_PROFILE = re.compile(r"(\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb([+-][a-z0-9.]{1,16})?", re.ASCII)
_PROFILE_RESOURCE = re.compile(
    r"nvidia\.com/mig-(?P<profile>\d{1,2}g\.\d{1,4}gb(?:-[a-z0-9]{1,16})?)"
    r"(?:\.(?P<with>[a-z0-9]{1,16}(?:\.[a-z0-9]{1,16})*))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllocation:
    """One MIG instance of one container.

    Attributes:
        container_index: number of the container in the pod, init containers first.
        profile: profile, such as `1g.10gb`.
        placement_start: first memory slice.
        placement_size: memory slices.
        instance: UUID of the instance; None while it is reserved only.
        gpu_instance: the driver's number of the GPU instance; None while it is reserved only.
        compute_instance: the driver's number of the compute instance; None while it is reserved only.
    """

    container_index: int
    device_index: int
    card: str
    profile: str
    placement_start: int
    placement_size: int
    instance: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


def is_mig_profile(text: str) -> bool:
    """Whether the text names a profile: `3g.40gb`, `1g.10gb+me`, `1g.24gb-me`, `1c.3g.40gb`."""
    return _PROFILE.fullmatch(text) is not None


def profile_of_resource(resource: str) -> str | None:
    """The profile that a resource of NVIDIA's plugin hands out under the mixed strategy; None for other resources.

    `nvidia.com/mig-1g.10gb.me` stands for `1g.10gb+me`: a resource's name can't hold a plus sign
    (NVIDIA/k8s-device-plugin:internal/resource).
    """
    match = _PROFILE_RESOURCE.fullmatch(resource.removesuffix(".shared"))
    if match is None:
        return None
    return match["profile"] + (f"+{match['with']}" if match["with"] else "")


def parse_mig_allocations(text: str) -> tuple[MigAllocation, ...]:
    """Reads `hami.io/vgpu-mig-allocations`, a JSON list.

    An entry whose `migUUID` is absent or empty is reserved only; its instance numbers mean nothing yet.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    return tuple(
        _allocation(json_object(entry, MIG_ALLOCATIONS_ANNOTATION))
        for entry in json_list(text, MIG_ALLOCATIONS_ANNOTATION)
    )


def _allocation(entry: dict[str, object]) -> MigAllocation:
    what = MIG_ALLOCATIONS_ANNOTATION
    card = text_member(entry, "gpuUUID", what)
    if not is_card_uuid(card):
        raise Corrupt(f"cannot read {what}: gpuUUID {shown(card)} is no card")
    profile = text_member(entry, "profile", what)
    if not is_mig_profile(profile):
        raise Corrupt(f"cannot read {what}: {shown(profile)} is no MIG profile")
    instance = text_member(entry, "migUUID", what) or None
    if instance is not None and not is_instance_uuid(instance):
        raise Corrupt(f"cannot read {what}: migUUID {shown(instance)} is no MIG instance")
    placement = json_object(entry.get("placement", {}), what)
    return MigAllocation(
        container_index=integer_member(entry, "containerIndex", what),
        device_index=integer_member(entry, "deviceIndex", what),
        card=card,
        profile=profile,
        placement_start=integer_member(placement, "start", what),
        placement_size=integer_member(placement, "size", what),
        instance=instance,
        gpu_instance=None if instance is None else integer_member(entry, "gpuInstanceID", what),
        compute_instance=None if instance is None else integer_member(entry, "computeInstanceID", what),
    )
