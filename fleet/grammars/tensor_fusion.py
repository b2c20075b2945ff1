"""TensorFusion's annotations on the pods that it places: which cards its scheduler gave, and how much of each.

Its cards are objects named by their UUID in small letters. A pod asks for framebuffer as a quantity, and for compute in
percent or in TFLOPS, of which only the first is a share that can be read without the card. Pure parsing; read by the
exporter's attribution and the scheduler layer.

Source: NexusGPU/tensor-fusion:pkg/constants/constants.go, internal/utils/resource.go,
pkg/hypervisor/device/controller.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.errors import Corrupt, Misconfigured
from fleet.grammars.device_ids import is_card_uuid
from fleet.grammars.text import container_name, separated, shown
from fleet.units import parse_quantity

GPU_IDS_ANNOTATION = "tensor-fusion.ai/gpu-ids"
NAMESPACE = "tensor-fusion-sys"
"""Where its chart puts its own pods."""
COMPONENT_LABEL = "tensor-fusion.ai/component"
HYPERVISOR = "hypervisor"
"""Component that runs on every node whose cards it hands out."""

_FRAMEBUFFER = "tensor-fusion.ai/vram-request"
_PERCENT = "tensor-fusion.ai/compute-percent-limit"
_CONTAINERS = "tensor-fusion.ai/inject-container"
_CARDS_MAX = 64
_BYTES_MAX = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFusionShare:
    """What a pod was given.

    Attributes:
        cards: UUIDs as the driver writes them.
        framebuffer_bytes: of each card; None where it asked for none.
        compute_ratio: limit of its compute, share of each card, above 0 and at most 1; None where it has none, or one
            in TFLOPS.
        container: the container that uses them; None for the pod's first.
    """

    cards: tuple[str, ...]
    framebuffer_bytes: int | None
    compute_ratio: float | None
    container: str | None


def parse_tensor_fusion(annotations: Mapping[str, str]) -> TensorFusionShare | None:
    """Reads what a pod was given; None for a pod without cards of TensorFusion's.

    Raises:
        Corrupt: an annotation is not the grammar.
    """
    given = annotations.get(GPU_IDS_ANNOTATION)
    if given is None:
        return None
    names = [part.strip() for part in separated(given, ",", _CARDS_MAX, GPU_IDS_ANNOTATION)]
    cards = tuple(name.replace("gpu-", "GPU-", 1) for name in names if name.startswith("gpu-"))
    if len(cards) != len(names) or not all(map(is_card_uuid, cards)):
        raise Corrupt(f"cannot read {GPU_IDS_ANNOTATION} {shown(given)}: expected UUIDs of cards in small letters")
    asked = annotations.get(_FRAMEBUFFER)
    percent = annotations.get(_PERCENT)
    container = annotations.get(_CONTAINERS, "").partition(",")[0].strip()
    return TensorFusionShare(
        cards=cards,
        framebuffer_bytes=None if asked is None else int(_amount(asked, _FRAMEBUFFER, _BYTES_MAX)),
        compute_ratio=None if percent is None else _amount(percent, _PERCENT, 100) / 100,
        container=container_name(container) if container else None,
    )


def _amount(text: str, what: str, most: int) -> float:
    try:
        amount = float(parse_quantity(text))
    except (Misconfigured, OverflowError) as exc:
        raise Corrupt(f"cannot read {what} {shown(text)}: it is no quantity") from exc
    if not 0 < amount <= most:
        raise Corrupt(f"cannot read {what} {shown(text)}: expected more than 0 and at most {most}")
    return amount
