"""Volcengine mGPU on the API server's own objects: if a node takes a pod, on which of its cards, and what is written.

Its code is closed: these are the rules of its published description and of volcano-sh/volcano's proposal (plugin
GPUShare, binpack for nodes and for cards, 16 containers a card). Cores of online and of offline work add up to a card
each, framebuffer is never granted twice, whole cards are empty ones, and a pod that shares goes to nodes of its compute
policy alone. Written apart from everything that gputide ships; several cards a container are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.backend_doubles import CARD_CORES, Granted, Grants, PlayedCard
from tests.cluster.scheduler_double import Binding, Waits

Manifest = dict[str, Any]

CORES, OFFLINE_CORES = "vke.volcengine.com/mgpu-core", "vke.volcengine.com/reclaimed-mgpu-core"
FRAMEBUFFER = "vke.volcengine.com/mgpu-memory"
POLICY = "vke.volcengine.com/mgpu-compute-policy"
INDEX = "vke.volcengine.com/gpu-index-container-"
CONTAINERS_MAX, MIB_MIN = 16, 256


@dataclass(slots=True, kw_only=True)
class Card:
    """A card of a node and what is granted on it; mutable."""

    mib: int
    used_mib: int = 0
    online: int = 0
    offline: int = 0
    containers: int = 0

    def takes(self, mib: int, online: int, offline: int) -> bool:
        """Whether there is room; no framebuffer asks for all of a card that is empty."""
        if not mib:
            return self.containers == 0
        return (
            self.containers < CONTAINERS_MAX
            and self.used_mib + mib <= self.mib
            and self.online + online <= CARD_CORES
            and self.offline + offline <= CARD_CORES
        )

    def book(self, mib: int, online: int, offline: int) -> None:
        """Grant a share."""
        self.containers += 1
        self.used_mib += mib or self.mib
        self.online += online
        self.offline += offline


@dataclass(slots=True)
class MgpuRules:
    """Its scheduler; mutable: it remembers cards, which manifests name by number alone.

    Attributes:
        cards: of each node that was made, in the order of their numbers.
    """

    cards: dict[str, tuple[PlayedCard, ...]] = field(default_factory=dict)
    scheduler: str = "volcano"
    limits: Mapping[str, str] = field(default_factory=lambda: {CORES: str(CARD_CORES)})
    labels: Mapping[str, str] = field(default_factory=dict)

    def node(self, cards: Sequence[PlayedCard]) -> tuple[Manifest, Mapping[str, str]]:
        """Metadata and what is offered."""
        cores = str(CARD_CORES * len(cards))
        offered = {CORES: cores, OFFLINE_CORES: cores, FRAMEBUFFER: str(sum(one.mib for one in cards))}
        return {"labels": {"vke.node.gpu.schedule": "mgpu"}}, offered

    def decide(self, pod: Manifest, nodes: Sequence[Manifest], pods: Sequence[Manifest]) -> Binding:
        """See `Rules`."""
        mib, online, offline = ask_of(pod)
        if (mib and mib < MIB_MIN) or (not mib and (online + offline) % CARD_CORES):
            raise Waits(f"webhook: {mib} MiB with {online + offline} % of cores")
        policy = pod["metadata"].get("annotations", {}).get(POLICY, "fixed-share")
        fits = []
        for node in nodes:
            name = node["metadata"]["name"]
            if mib and node["metadata"].get("labels", {}).get(POLICY, "fixed-share") != policy:
                continue
            cards = [Card(mib=one.mib) for one in self.cards.get(name, ())]
            for other in (one for one in pods if one["spec"]["nodeName"] == name):
                if (index := index_of(other)) is not None:
                    cards[index].book(*ask_of(other))
            used = sum(card.used_mib for card in cards)
            fits += [
                (-used, name, -card.used_mib, index)
                for index, card in enumerate(cards)
                if card.takes(mib, online, offline)
            ]
        if not fits:
            raise Waits("no node has a card with enough left")
        _, chosen, _, index = min(fits)
        container = pod["spec"]["containers"][0]["name"]
        return Binding(
            node=chosen, annotations={"vke.volcengine.com/assumed": "true", f"{INDEX}{container}": str(index)}
        )

    def abandoned(self, pods: Sequence[Manifest]) -> list[Manifest]:
        """None: it has no pods of its own."""
        del pods
        return []

    def grants_of(self, pod: Manifest, pods: Sequence[Manifest]) -> Grants:
        """What a bound pod holds; nothing limits offline work."""
        del pods
        index = index_of(pod)
        if index is None:
            return {}
        card = self.cards[pod["spec"]["nodeName"]][index]
        mib, online, _ = ask_of(pod)
        return {card.card: Granted(mib or card.mib, online)}


def ask_of(pod: Manifest) -> tuple[int, int, int]:
    """MiB, percent of online and percent of offline cores that a pod of one container asks for."""
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    mib, online, offline = (int(limits.get(name, "0")) for name in (FRAMEBUFFER, CORES, OFFLINE_CORES))
    return mib, online, offline


def index_of(pod: Manifest) -> int | None:
    """Number of its card on its node; None where it has none."""
    number = pod["metadata"].get("annotations", {}).get(f"{INDEX}{pod['spec']['containers'][0]['name']}")
    return None if number is None else int(number)
