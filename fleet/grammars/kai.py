"""KAI's fractions of cards: what a pod asks for, which group it shares, and which card a reservation pod holds.

A pod with a fraction has no device of its own. A reservation pod holds the whole card for the group; the pods of the
group carry its name as a label, and the reservation pod writes the card's UUID into an annotation of its own (whose
name says index). With `NvFractions`, from 0.18 on, a pod may ask for one of its containers by annotations that name it:
a request, which is counted, and a limit, up to which the driver lets it grow; the scheduler adds the cards that the
container sees. Pure parsing; read by the exporter's attribution and the scheduler layer.

Sources: kai-scheduler/KAI-Scheduler:pkg/common/constants/constants.go, docs/gpu-sharing/README.md,
docs/gpu-sharing/nv-fraction, pkg/resourcereservation/patcher/pod_patcher.go (PatchDeviceInfo);
kai-scheduler/kai-gpu-fractioning:fractioning-manager/fractiond/internal/annotations/annotations.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.errors import Corrupt, Misconfigured
from fleet.grammars.device_ids import is_card_uuid
from fleet.grammars.text import container_name, number, shown
from fleet.units import MIB, parse_quantity

FRACTION_ANNOTATION = "gpu-fraction"
FRAMEBUFFER_ANNOTATION = "gpu-memory"
"""MiB of each card."""
CARDS_ANNOTATION = "gpu-fraction-num-devices"
CONTAINER_ANNOTATION = "gpu-fraction-container-name"
READY_CONDITION = "gpu-fractioning.nvidia.com/Ready"
"""Of a node: its containers' framebuffer is capped by the driver; KAI places no pod by `NvFractions` before."""
READY_CONDITIONS = (READY_CONDITION, "gpu-sharing.nvidia.com/Ready")
"""That condition, and its name before."""
METRIC_PREFIXES = ("gpu_fractioning_gpu_", "gpu_sharing_gpu_")
"""Of what the driver's operator measures of containers that `NvFractions` caps, and its name before."""
GROUP_LABEL = "runai-gpu-group"
GROUP_LABEL_PREFIX = "runai-gpu-group/"
"""Labels of a pod that shares several cards: one per group; the value names the group."""
RESERVED_CARD_ANNOTATION = "run.ai/reserve_for_gpu_index"
"""On a reservation pod: UUID of the card that it holds."""
TIME_SLICING_MODE = "time-slicing"
"""What a pod that names no mode has."""
RESERVATION_NAMESPACES = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of reservation pods: KAI's, and Run:ai's before it."""

_CARDS_MAX = 64
_FRACTION = re.compile(r"0?\.\d{1,9}|1(?:\.0{1,9})?", re.ASCII)
SHARE_OF_CONTAINER = re.compile(
    r"nvidia\.com/container\.(?P<container>[^.]{1,63})\.gpu-memory\.(?P<bound>request|limit)", re.ASCII
)
_MODE_OF_CONTAINER = re.compile(r"nvidia\.com/container\.[^.]{1,63}\.gpu-compute\.mode", re.ASCII)
_MODE_BEFORE = "kai.scheduler/gpu-compute-sharing-mode"
_CARDS_OF_CONTAINER = re.compile(r"nvidia\.com/container\.[^.]{1,63}\.gpus\.devices", re.ASCII)
_WRITTEN = re.compile(
    r"annotation_nvidia_com_container_(?P<container>[a-z0-9_]{1,63})"
    r"_gpu(?P<what>_memory_request|_memory_limit|s_devices)",
    re.ASCII,
)
_WRITTEN_AS = {
    "_memory_request": "gpu-memory.request", "_memory_limit": "gpu-memory.limit", "s_devices": "gpus.devices",
}  # fmt: skip
_FRAMEBUFFER_BYTES_MAX = 1 << 50
_GROUP = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class KaiShare:
    """What a pod shares of cards by KAI.

    Attributes:
        ratio: share of each card, above 0 and at most 1; None where it asked by framebuffer.
        framebuffer_mib: framebuffer of each card, MiB; None where it asked by ratio.
        container: the container that gets them; None for the pod's first.
        is_capped: asked by the annotations of `NvFractions`, whose limit the driver holds.
        groups: names of the groups, one per card, sorted; empty until the pod is bound.
        on_cards: UUIDs of the cards that the container sees, sorted; empty where the pod does not say. The scheduler's
            word only where `is_capped` and the node's `READY_CONDITION` is True: elsewhere a tenant can write it.
    """

    ratio: float | None
    framebuffer_mib: int | None
    cards: int
    container: str | None
    groups: tuple[str, ...]
    is_capped: bool = False
    on_cards: tuple[str, ...] = ()


def parse_kai_share(annotations: Mapping[str, str], labels: Mapping[str, str]) -> KaiShare | None:
    """Reads what a pod shares by KAI; None for a pod that shares nothing by it.

    A pod with both a fraction and an amount of framebuffer is read by its fraction, as KAI's binder does; one that asks
    for a container by name, by that. Of a request and a limit the request is what is counted.

    Raises:
        Corrupt: an annotation or label of KAI's is not the grammar.
    """
    capped = _capped_share(annotations)
    if capped is not None:
        return KaiShare(
            ratio=None,
            framebuffer_mib=capped[1],
            cards=_cards(annotations.get(CARDS_ANNOTATION, "1")),
            container=capped[0],
            groups=kai_groups(labels),
            is_capped=True,
            on_cards=_cards_seen(annotations),
        )
    fraction = annotations.get(FRACTION_ANNOTATION)
    framebuffer = annotations.get(FRAMEBUFFER_ANNOTATION)
    if fraction is None and framebuffer is None:
        return None
    container = annotations.get(CONTAINER_ANNOTATION)
    return KaiShare(
        ratio=None if fraction is None else _ratio(fraction),
        framebuffer_mib=number(framebuffer) if fraction is None and framebuffer is not None else None,
        cards=_cards(annotations.get(CARDS_ANNOTATION, "1")),
        container=None if container is None else container_name(container),
        groups=kai_groups(labels),
        on_cards=_cards_seen(annotations),
    )


def asks_kai(annotations: Mapping[str, str]) -> bool:
    """Whether a pod's annotations ask KAI for a share of a card, in whatever way."""
    return (
        FRACTION_ANNOTATION in annotations
        or FRAMEBUFFER_ANNOTATION in annotations
        or any(SHARE_OF_CONTAINER.fullmatch(key) for key in annotations)
    )


def is_ready(conditions: Iterable[Mapping[str, object]]) -> bool:
    """Whether one of a node's conditions says that the driver caps its containers' framebuffer."""
    return any(entry.get("type") in READY_CONDITIONS and entry.get("status") == "True" for entry in conditions)


def compute_mode(annotations: Mapping[str, str]) -> str:
    """How a pod's shares take turns, `time-slicing` or `sm-sharing`; pods of different modes never share a card."""
    modes = [value for key, value in annotations.items() if _MODE_OF_CONTAINER.fullmatch(key)]
    return next(iter(modes), annotations.get(_MODE_BEFORE, "")).strip() or TIME_SLICING_MODE


def request_annotation(container: str) -> str:
    """Annotation by which a pod asks for framebuffer of one of its containers, a quantity of at least 1 MiB."""
    return f"nvidia.com/container.{container}.gpu-memory.request"


def limit_annotation(container: str) -> str:
    """Annotation that says up to which quantity a container may grow."""
    return f"nvidia.com/container.{container}.gpu-memory.limit"


def container_annotations(labels: Mapping[str, str]) -> dict[str, str]:
    """KAI's annotations of one of a pod's containers, from labels of kube-state-metrics' `kube_pod_annotations`.

    Every character of a key but letters and digits is an underscore there; a container's name has none but hyphens.
    """
    found = {}
    for label, value in labels.items():
        match = _WRITTEN.fullmatch(label)
        if match is not None and value:
            container = match["container"].replace("_", "-")
            found[f"nvidia.com/container.{container}.{_WRITTEN_AS[match['what']]}"] = value
    return found


def kai_groups(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The groups that a pod's labels name, reservation pods' included; sorted.

    Raises:
        Corrupt: a label's value can't be a group's name, or there are too many.
    """
    groups = {value for key, value in labels.items() if key == GROUP_LABEL or key.startswith(GROUP_LABEL_PREFIX)}
    if len(groups) > _CARDS_MAX:
        raise Corrupt(f"cannot read labels {GROUP_LABEL}: {len(groups)} groups are more than {_CARDS_MAX}")
    for group in groups:
        if not _GROUP.fullmatch(group):
            raise Corrupt(f"cannot read label {GROUP_LABEL}: {shown(group)} is no group")
    return tuple(sorted(groups))


def _ratio(text: str) -> float:
    ratio = float(text) if _FRACTION.fullmatch(text) else 0.0
    if not ratio > 0.0:
        raise Corrupt(f"cannot read {FRACTION_ANNOTATION} {shown(text)}: expected a number above 0 and at most 1")
    return ratio


def _cards(text: str) -> int:
    cards = number(text)
    if not 1 <= cards <= _CARDS_MAX:
        raise Corrupt(f"cannot read {CARDS_ANNOTATION} {shown(text)}: expected 1 to {_CARDS_MAX}")
    return cards


def _cards_seen(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Cards by UUID; the annotation may also have indexes or `all`, which name no card."""
    texts = [value for key, value in annotations.items() if _CARDS_OF_CONTAINER.fullmatch(key)]
    if len(texts) != 1 or texts[0].count(",") >= _CARDS_MAX:
        return ()
    cards = sorted({part.strip() for part in texts[0].split(",")})
    return tuple(cards) if all(map(is_card_uuid, cards)) else ()


def _capped_share(annotations: Mapping[str, str]) -> tuple[str, int] | None:
    """The container that is asked for by name, and the MiB that count; of request and limit one stands for both."""
    asked: dict[str, dict[str, str]] = {}
    for key, value in annotations.items():
        match = SHARE_OF_CONTAINER.fullmatch(key)
        if match is not None:
            asked.setdefault(match["container"], {})[match["bound"]] = value
    if not asked:
        return None
    if len(asked) > 1:
        raise Corrupt(f"cannot read what is asked for {len(asked)} containers: KAI shares cards with one of a pod")
    ((container, bounds),) = asked.items()
    text = bounds.get("request") or bounds.get("limit", "")
    try:
        size = parse_quantity(text)
    except Misconfigured as exc:
        raise Corrupt(f"cannot read gpu-memory of container {shown(container)}: {shown(text)} is no quantity") from exc
    if not MIB <= size <= _FRAMEBUFFER_BYTES_MAX:
        raise Corrupt(f"cannot read gpu-memory of container {shown(container)}: {shown(text)} is not 1Mi to 1Pi")
    return container_name(container), int(size) // MIB
