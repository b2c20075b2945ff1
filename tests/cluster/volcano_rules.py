"""Volcano's own decisions about shares of cards, by its published rules: if a node takes a pod, and on which cards.

Pure, and written apart from everything that gputide ships. All of volcano-sh/volcano v1.15.1 and v1.16.0-alpha.1,
plugin `deviceshare` with `deviceshare.VGPUEnable`; `volcano_decisions.jsonl` holds what the functions of both decided,
case by case. Without a ConfigMap `volcano-vgpu-device-config`, as here, `volcano.sh/vgpu-memory-percentage` says
nothing (pkg/scheduler/api/devices/config/config.go, GetDefaultDevicesConfig). No stable release reads
`volcano.sh/vgpu-use-gpuuuid`; the alpha does. Which of several nodes is taken depends on Volcano's other plugins and is
left out, as is MIG.

Source: pkg/scheduler/api/devices/nvidia/vgpu (utils.go, device_info.go, hamicore.go) where nothing else is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

Manifest = dict[str, Any]

COUNT, FRAMEBUFFER = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
CORES = "volcano.sh/vgpu-cores"
GROUP, GROUP_POLICY = "scheduling.k8s.io/group-name", "volcano.sh/vgpu-podgroup-policy"
USE_MODEL, AVOID_MODEL = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
MODE = "volcano.sh/vgpu-mode"
_USE_CARD, _AVOID_CARD = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"


class Unfit(Exception):
    """A node does not take a pod; the text is Volcano's, with `NODE` for the node's name."""


@dataclass(slots=True, kw_only=True)
class Card:
    """One card as its node registers it, and what is granted on it; mutable."""

    card: str
    index: int
    slices_max: int
    mib: int
    device_type: str
    slices: int = 0
    used_mib: int = 0
    used_cores: int = 0
    groups: set[str] = field(default_factory=set)

    def take(self, mib: int, cores: int) -> None:
        """Book a grant (TryAddPod)."""
        self.slices += 1
        self.used_mib += mib
        self.used_cores += cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one container asks for: cards, MiB of each or 0 for all, and percent of each one's cores."""

    count: int
    mib: int
    cores: int


def read_register(text: str) -> list[Card]:
    """decodeNodeDevices: `UUID,count,MiB,type,health,mode:` per card. That a card is unhealthy is not looked at."""
    devices = [part.split(",") for part in text.split(":") if part]
    return [
        Card(card=card, index=index, slices_max=int(count), mib=int(mib), device_type=kind)
        for index, (card, count, mib, kind, _, _) in enumerate(devices)
    ]


def book(cards: Sequence[Card], ids: str, group: str = "") -> None:
    """AddResource: what a pod holds. Of several grants of one pod on one card only the first counts (AddPod)."""
    seen = set()
    for grant in ids.replace(";", ":").split(":"):
        if not grant:
            continue
        name, _, mib, cores = grant.split(",")
        for card in cards:
            if card.card in name and card.card not in seen:
                seen.add(card.card)
                card.take(int(mib), int(cores))
                card.groups |= {group} if group and (int(mib) or int(cores)) else set()


def is_asking(pod: Manifest) -> bool:
    """checkVGPUResourcesInPod: cores or a percentage alone ask for nothing, and neither do init containers."""
    return any(_limits(container).keys() & {COUNT, FRAMEBUFFER} for container in pod["spec"]["containers"])


def asks_of(pod: Manifest) -> list[Ask]:
    """pkg/scheduler/api/devices/util.go (ExtractResourceRequest): one per container that asks for a card."""
    asks = []
    for limits in map(_limits, pod["spec"]["containers"]):
        if limits.keys() & {COUNT, FRAMEBUFFER}:
            count, mib, cores = (
                int(limits.get(name, usual)) for name, usual in ((COUNT, 1), (FRAMEBUFFER, 0), (CORES, 0))
            )
            asks.append(Ask(count=count, mib=mib, cores=cores))
    return asks


def place(pod: Manifest, cards: Sequence[Card], policy: str, *, knows_cards: bool) -> tuple[str, float]:
    """checkNodeGPUSharingPredicateAndScore: the annotation `volcano.sh/vgpu-ids-new` on this node, and its score.

    Args:
        cards: the node's, which are left as they are.
        policy: `deviceshare.SchedulePolicy`: `binpack`, `spread` or another word.
        knows_cards: whether it reads which cards a pod names, as from 1.16.0-alpha.1 on.

    Raises:
        Unfit: the node does not take the pod.
    """
    annotations = pod["metadata"].get("annotations") or {}
    mode = annotations.get(MODE, "hami-core")
    if mode != "hami-core":
        raise Unfit(f"pod required sharing mode {mode} is not the same as the node mode hami-core")
    books, score, parts = [copy(card) for card in cards], 0.0, []
    named = [card.card for card in books if not knows_cards or _is_named(card.card, annotations)]
    for ask in asks_of(pod):
        if ask.count > len(books):
            raise Unfit("no enough gpu cards on node NODE")
        grants: list[str] = []
        for card in _sorted(books, policy):
            mib = ask.mib or card.mib
            if card.card not in named or not _fits(card, ask, mib, annotations):
                continue
            card.take(mib, ask.cores)
            if len(grants) < ask.count:
                grants.append(f"{card.card},NVIDIA,{mib},{ask.cores}:")
                # GPUScore looks after the grant, so no card is unused and spread scores nothing.
                score += 100 * (card.used_mib / card.mib) if policy == "binpack" else 0.0
            if len(grants) == ask.count:
                break
        if len(grants) < ask.count:
            if not named:
                words = ", ".join(f'{name}="{annotations.get(name, "")}"' for name in (_USE_CARD, _AVOID_CARD))
                raise Unfit(f"no GPU matches UUID constraints {words} on node NODE")
            raise Unfit("not enough gpu fitted on this node")
        parts.append("".join(grants))
    return ";".join(parts), score


def _sorted(cards: Sequence[Card], policy: str) -> list[Card]:
    """sortedDeviceIndicesByPolicy; without a policy it begins with the last card."""
    if policy == "binpack":
        return sorted(cards, key=lambda card: (-card.used_mib, card.index))
    if policy == "spread":
        return sorted(cards, key=lambda card: (card.slices, card.index))
    return sorted(cards, key=lambda card: -card.index)


def _fits(card: Card, ask: Ask, mib: int, annotations: Mapping[str, str]) -> bool:
    group = annotations.get(GROUP, "") if annotations.get(GROUP_POLICY) == "spread" else ""
    return (
        card.slices < card.slices_max
        and (not group or group not in card.groups)
        and card.mib - card.used_mib >= mib
        and card.used_cores + ask.cores <= 100
        and not (ask.cores == 100 and card.slices)
        and not (card.used_cores == 100 and not ask.cores)
        and "NVIDIA" in card.device_type
        and _is_model(card.device_type.upper(), annotations)
    )


def _is_named(card: str, annotations: Mapping[str, str]) -> bool:
    """gpuUUIDFilter: a whole name, one of those to be used where there are any, and none of those to be avoided."""
    use, avoid = (
        [word.strip() for word in annotations.get(name, "").split(",") if word.strip()]
        for name in (_USE_CARD, _AVOID_CARD)
    )
    return (not use or card in use) and card not in avoid


def _is_model(kind: str, annotations: Mapping[str, str]) -> bool:
    """checkGPUtype: what is to be used wins over what is to be avoided; words are not trimmed, and may be empty."""
    for name, is_wanted in ((USE_MODEL, True), (AVOID_MODEL, False)):
        if name in annotations:
            return any(part.upper() in kind for part in annotations[name].split(",")) == is_wanted
    return True


def _limits(container: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = container.get("resources", {}).get("limits", {})
    return found
