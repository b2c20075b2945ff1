"""Why a pod waits, as one word of few: what its PodScheduled condition says, without any events.

A scheduler's message names a reason per node (`0/5 nodes are available: 2 2/2 CardInsufficientMemory, 3 node(s) had
untolerated taint …`), so what speaks of cards counts before what keeps the pod off nodes that have none.

Sources: Project-HAMi/HAMi:pkg/scheduler/score.go, pkg/device/common, pkg/device/metax/sdevice.go,
kubernetes/kubernetes:pkg/scheduler/framework, kubernetes/api:core/v1/types.go (PodReasonSchedulingGated).
"""

from __future__ import annotations

from collections.abc import Mapping

GATED = "gated"
"""Held back by a scheduling gate, such as a queue's."""
NOT_TRIED = "not_tried"
"""No scheduler has said anything of it yet: the one that it names may not run."""
OTHER = "other"

_MESSAGE_LENGTH_MAX = 8192
# In the order in which they count.
_WORDS: tuple[tuple[str, str], ...] = (
    ("CardInsufficientMemory", "insufficient_framebuffer"),
    ("CardInsufficientCore", "insufficient_compute"),
    ("ExclusiveDeviceAllocateConflict", "insufficient_compute"),
    ("CardComputeUnitsExhausted", "insufficient_compute"),
    ("CardTimeSlicingExhausted", "insufficient_slices"),
    ("AllocatedCardsInsufficientRequest", "insufficient_cards"),
    ("NodeInsufficientDevice", "insufficient_cards"),
    ("CardTypeMismatch", "card_mismatch"),
    ("CardUuidMismatch", "card_mismatch"),
    ("CardUUIDMismatch", "card_mismatch"),
    ("CardNotFoundCustomFilterRule", "card_mismatch"),
    ("CardQosPolicyMismatch", "card_mismatch"),
    ("CardAppClassMismatch", "card_mismatch"),
    ("ModeNotFit", "card_mismatch"),
    ("CardMigTopologyInfeasible", "insufficient_slices"),
    ("NumaNotFit", "numa"),
    ("CardNotHealth", "unhealthy_card"),
    ("CardUnhealthy", "unhealthy_card"),
    ("CardCordoned", "cordoned"),
    ("ResourceQuotaNotFit", "quota"),
    ("cannot allocate all claims", "insufficient_cards"),
    ("exceeded quota", "quota"),
    ("over quota", "quota"),
    ("queue", "queue"),
    ("pod group is not ready", "gang"),
    ("gang", "gang"),
    ("Insufficient cpu", "insufficient_cpu"),
    ("Insufficient memory", "insufficient_memory"),
    ("Insufficient pods", "insufficient_pods"),
    ("PersistentVolumeClaim", "volume"),
    ("volume", "volume"),
    ("untolerated taint", "taint"),
    ("were unschedulable", "cordoned"),
    ("affinity/selector", "node_mismatch"),
    ("node affinity", "node_mismatch"),
)
REASONS: tuple[str, ...] = tuple(sorted({GATED, NOT_TRIED, OTHER, "insufficient_cards", *(word for _, word in _WORDS)}))
"""Every word that there is."""


def waiting_reason(condition: Mapping[str, object], spec: Mapping[str, object]) -> str:
    """Why a pod that is bound to no node waits: one of `REASONS`.

    Args:
        condition: its PodScheduled condition; empty where it has none.
    """
    if condition.get("reason") == "SchedulingGated" or spec.get("schedulingGates"):
        return GATED
    message = condition.get("message")
    if not isinstance(message, str) or not message:
        return NOT_TRIED if condition.get("status") != "False" else OTHER
    message = message[:_MESSAGE_LENGTH_MAX]
    # `Insufficient nvidia.com/gpu`: resources of cards have a domain, the node's own have none.
    for found in message.split("Insufficient ")[1:]:
        if "/" in found.split(",", 1)[0].split(" ", 1)[0]:
            return "insufficient_cards"
    return next((word for needle, word in _WORDS if needle in message), OTHER)
