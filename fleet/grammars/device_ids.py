"""Device ids as device plugins write them for the kubelet, and what each can say of the real card.

Pure parsing; read by the exporter's attribution. An id is a plugin's word for a unit that it hands out,
not a card: HAMi's and Volcano's name a card that the pod may not hold at all, ids of framebuffer and cores are mere
counts, and MIG instances and GKE's numbers need the driver to find their card (`IdTruth`).

Sources: NVIDIA/k8s-device-plugin:internal/rm, NVIDIA/dcgm-exporter:internal/pkg/transformation/kubernetes.go,
Project-HAMi/HAMi:pkg/device-plugin/nvidiadevice/nvinternal/rm/devices.go (GetPluginDevices),
Project-HAMi/volcano-vgpu-device-plugin:pkg/plugin/server.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import Corrupt
from fleet.grammars.text import shown

_ID_LENGTH_MAX = 128
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NUMBER = r"\d{1,6}"
_DEVICE_ID = re.compile(
    rf"(?P<card>GPU-{_UUID})"
    rf"(?:-(?P<slice>{_NUMBER})|::(?P<replica>{_NUMBER})|-memory-(?P<memory>{_NUMBER})|-core-(?P<core>{_NUMBER}))?"
    rf"|(?P<mig>MIG-{_UUID})(?:::(?P<mig_replica>{_NUMBER}))?"
    rf"|MIG-(?P<parent>GPU-{_UUID})/(?P<gi>{_NUMBER})/(?P<ci>{_NUMBER})(?:::(?P<legacy_replica>{_NUMBER}))?"
    rf"|nvidia(?P<index>{_NUMBER})(?:/gi(?P<gke_gi>{_NUMBER}))?(?:/vgpu(?P<gke_slice>{_NUMBER}))?",
    re.ASCII,
)
_CARD_ID = re.compile(rf"GPU-{_UUID}", re.ASCII)
_INSTANCE_ID = re.compile(rf"MIG-(?:{_UUID}|GPU-{_UUID}/{_NUMBER}/{_NUMBER})", re.ASCII)


class IdTruth(StrEnum):
    """What an id says of the card that the pod really holds."""

    CARD = "card"
    """Names the card itself."""
    INSTANCE = "instance"
    """Names a MIG instance; the driver knows its card."""
    INDEX = "index"
    """Names a card by its number on the node; the driver knows which one that is."""
    MAY_DIFFER = "may_differ"
    """Names a card, but the plugin may have handed out another: the scheduler's annotation is the truth."""
    AMOUNT = "amount"
    """Stands for one unit of framebuffer or cores; says nothing of a card."""


class DeviceIdForm(StrEnum):
    """Who wrote a kubelet device id."""

    CARD = "card"
    """`GPU-<uuid>`: NVIDIA's plugin, a whole card."""
    HAMI_SLICE = "hami_slice"
    """`GPU-<uuid>-<n>`: HAMi and Volcano's vGPU; the pod may hold another card than the one named."""
    REPLICA = "replica"
    """`GPU-<uuid>::<n>`: NVIDIA's plugin, a time slice or MPS share."""
    MIG = "mig"
    """`MIG-<uuid>`: a MIG instance; its card is known to the driver only."""
    MIG_REPLICA = "mig_replica"
    """`MIG-<uuid>::<n>`: a time slice of a MIG instance."""
    MIG_LEGACY = "mig_legacy"
    """`MIG-GPU-<uuid>/<gi>/<ci>`: a MIG instance as drivers before 470 name it; `::<n>` behind it for a replica."""
    VOLCANO_FRAMEBUFFER = "volcano_framebuffer"
    """`GPU-<uuid>-memory-<n>`: one unit of `volcano.sh/vgpu-memory`."""
    VOLCANO_CORES = "volcano_cores"
    """`GPU-<uuid>-core-<n>`: one percent of `volcano.sh/vgpu-cores`."""
    GKE = "gke"
    """`nvidia<N>`, `nvidia<N>/gi<M>`, and either with `/vgpu<K>` behind it: GKE's plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceId:
    """A device id as the kubelet's pod-resources list it.

    Attributes:
        card: UUID of the card it names; None for forms that name none.
        mig: UUID of the MIG instance; None for other forms.
        number: the slice's, replica's or unit's number; None where there is none.
        gpu_instance: GPU instance of the legacy MIG form and of GKE's.
        compute_instance: compute instance of the legacy MIG form.
        index: number of the card on its node, in GKE's form.
    """

    form: DeviceIdForm
    card: str | None = None
    mig: str | None = None
    number: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    index: int | None = None

    @property
    def truth(self) -> IdTruth:
        """What it says of the card that the pod really holds."""
        return IdTruth.INSTANCE if self.gpu_instance is not None else _TRUTHS[self.form]

    @property
    def is_replica(self) -> bool:
        """Whether others are handed the same card or instance on purpose."""
        return self.form in _SHARED_FORMS and self.number is not None

    @property
    def unit(self) -> str | None:
        """What replicas share, as one name: the card, instance or index; None for mere amounts."""
        match self.truth:
            case IdTruth.AMOUNT:
                return None
            case IdTruth.CARD | IdTruth.MAY_DIFFER:
                return self.card
            case IdTruth.INDEX:
                return f"nvidia{self.index}"
            case IdTruth.INSTANCE:
                if self.mig is not None:
                    return self.mig
                if self.index is not None:
                    return f"nvidia{self.index}/gi{self.gpu_instance}"
                return f"MIG-{self.card}/{self.gpu_instance}/{self.compute_instance}"


_TRUTHS = {
    DeviceIdForm.CARD: IdTruth.CARD,
    DeviceIdForm.REPLICA: IdTruth.CARD,
    DeviceIdForm.HAMI_SLICE: IdTruth.MAY_DIFFER,
    DeviceIdForm.MIG: IdTruth.INSTANCE,
    DeviceIdForm.MIG_REPLICA: IdTruth.INSTANCE,
    DeviceIdForm.MIG_LEGACY: IdTruth.INSTANCE,
    DeviceIdForm.VOLCANO_FRAMEBUFFER: IdTruth.AMOUNT,
    DeviceIdForm.VOLCANO_CORES: IdTruth.AMOUNT,
    DeviceIdForm.GKE: IdTruth.INDEX,
}
_PARTS = (
    ("slice", DeviceIdForm.HAMI_SLICE),
    ("replica", DeviceIdForm.REPLICA),
    ("memory", DeviceIdForm.VOLCANO_FRAMEBUFFER),
    ("core", DeviceIdForm.VOLCANO_CORES),
)
_SHARED_FORMS = frozenset({DeviceIdForm.REPLICA, DeviceIdForm.MIG_REPLICA, DeviceIdForm.MIG_LEGACY, DeviceIdForm.GKE})


def is_card_uuid(text: str) -> bool:
    """Whether the text is the UUID of a whole card: `GPU-` and 8-4-4-4-12 small hexadecimal digits."""
    return _CARD_ID.fullmatch(text) is not None


def is_instance_uuid(text: str) -> bool:
    """Whether the text names a MIG instance, in the driver's present or older form."""
    return _INSTANCE_ID.fullmatch(text) is not None


def parse_device_id(text: str) -> DeviceId:
    """Reads a kubelet device id.

    Raises:
        Corrupt: none of the known forms.
    """
    match = _DEVICE_ID.fullmatch(text) if len(text) <= _ID_LENGTH_MAX else None
    if match is None:
        raise Corrupt(
            f"cannot read device id {shown(text)}: none of the forms of NVIDIA's, HAMi's, Volcano's and GKE's plugins"
        )
    if match["parent"]:
        return DeviceId(
            form=DeviceIdForm.MIG_LEGACY,
            card=match["parent"],
            gpu_instance=int(match["gi"]),
            compute_instance=int(match["ci"]),
            number=_optional(match["legacy_replica"]),
        )
    if match["mig"]:
        number = _optional(match["mig_replica"])
        form = DeviceIdForm.MIG if number is None else DeviceIdForm.MIG_REPLICA
        return DeviceId(form=form, mig=match["mig"], number=number)
    if match["index"]:
        return DeviceId(
            form=DeviceIdForm.GKE,
            index=int(match["index"]),
            gpu_instance=_optional(match["gke_gi"]),
            number=_optional(match["gke_slice"]),
        )
    return _part_of_card(match)


def _part_of_card(match: re.Match[str]) -> DeviceId:
    for group, form in _PARTS:
        if match[group]:
            return DeviceId(form=form, card=match["card"], number=int(match[group]))
    return DeviceId(form=DeviceIdForm.CARD, card=match["card"])


def _optional(text: str | None) -> int | None:
    return None if text is None else int(text)
