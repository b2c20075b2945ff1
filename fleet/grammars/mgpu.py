"""Volcengine mGPU's annotations: which cards of its node each container of a pod got.

Cards are named by their number on the node alone, so only the driver knows which card that is. How much of them was
granted stands in the container's requests. Pure parsing; read by the exporter's attribution.

Source: volcano-sh/volcano's proposal for mGPU (`VKEAnnotationMGPUContainer`, its examples).
"""

from __future__ import annotations

from fleet.errors import Corrupt
from fleet.grammars.text import check_length, number, separated, shown

INDEX_ANNOTATION_PREFIX = "vke.volcengine.com/gpu-index-container-"
"""Before the container's name, or, in examples, its number in the pod."""
CORES_RESOURCE = "vke.volcengine.com/mgpu-core"
"""Percent of cards; a multiple of 100 without framebuffer means whole cards."""
RECLAIMED_CORES_RESOURCE = "vke.volcengine.com/reclaimed-mgpu-core"
"""The same of what online work leaves idle, lent to offline work."""
FRAMEBUFFER_RESOURCE = "vke.volcengine.com/mgpu-memory"
"""MiB."""

_CARDS_MAX = 64


def parse_card_indexes(text: str) -> tuple[int, ...]:
    """Reads `vke.volcengine.com/gpu-index-container-…`: numbers of cards with commas between.

    Raises:
        Corrupt: not the grammar, larger than its bounds, or a card named twice.
    """
    check_length(text, INDEX_ANNOTATION_PREFIX)
    indexes = tuple(number(part) for part in separated(text, ",", _CARDS_MAX, INDEX_ANNOTATION_PREFIX))
    if len(set(indexes)) != len(indexes):
        raise Corrupt(f"cannot read {INDEX_ANNOTATION_PREFIX}…: {shown(text)} names a card twice")
    return indexes
