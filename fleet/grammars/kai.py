"""KAI's fractions of cards: what a pod asks for, which group it shares, and which card a reservation pod holds.

A pod with a fraction has no device of its own. A reservation pod holds the whole card for the group; the pods of the
group carry its name as a label, and the reservation pod writes the card's UUID into an annotation of its own (whose
name says index). Pure parsing; read by the exporter's attribution and the scheduler layer.

Sources: kai-scheduler/KAI-Scheduler:pkg/common/constants/constants.go, docs/gpu-sharing/README.md,
pkg/resourcereservation/patcher/pod_patcher.go (PatchDeviceInfo).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.errors import Corrupt
from fleet.grammars.text import container_name, number, shown

FRACTION_ANNOTATION = "gpu-fraction"
FRAMEBUFFER_ANNOTATION = "gpu-memory"
"""MiB of each card."""
CARDS_ANNOTATION = "gpu-fraction-num-devices"
CONTAINER_ANNOTATION = "gpu-fraction-container-name"
GROUP_LABEL = "runai-gpu-group"
GROUP_LABEL_PREFIX = "runai-gpu-group/"
"""Labels of a pod that shares several cards: one per group; the value names the group."""
RESERVED_CARD_ANNOTATION = "run.ai/reserve_for_gpu_index"
"""On a reservation pod: UUID of the card that it holds."""
RESERVATION_NAMESPACES = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of reservation pods: KAI's, and Run:ai's before it."""

_CARDS_MAX = 64
_FRACTION = re.compile(r"0?\.\d{1,9}|1(?:\.0{1,9})?", re.ASCII)
_GROUP = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class KaiShare:
    """What a pod shares of cards by KAI.

    Attributes:
        ratio: share of each card, above 0 and at most 1; None where it asked by framebuffer.
        framebuffer_mib: framebuffer of each card, MiB; None where it asked by ratio.
        container: the container that gets them; None for the pod's first.
        groups: names of the groups, one per card, sorted; empty until the pod is bound.
    """

    ratio: float | None
    framebuffer_mib: int | None
    cards: int
    container: str | None
    groups: tuple[str, ...]


def parse_kai_share(annotations: Mapping[str, str], labels: Mapping[str, str]) -> KaiShare | None:
    """Reads what a pod shares by KAI; None for a pod that shares nothing by it.

    A pod with both a fraction and an amount of framebuffer is read by its fraction, as KAI's binder does.

    Raises:
        Corrupt: an annotation or label of KAI's is not the grammar.
    """
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
    )


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
