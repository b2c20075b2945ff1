"""HAMi as a simulated cluster plays it, and EffectiveGPU, which is HAMi under the names of its own ConfigMaps.

The rules are those of Project-HAMi/HAMi v2.10.0 with its chart's defaults: the webhook's and what a pod asks for are in
pkg/device/nvidia/device.go (MutateAdmission, GenerateResourceRequests), the scheduler's there (Fit), in
pkg/scheduler/score.go and pkg/scheduler/policy (gpu_policy.go, node_policy.go): binpack over nodes and spread over a
node's cards, unless the pod's annotations say otherwise. Modes and weights of scores are not simulated, nor what
`placing` leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from enforcer.backends.effectivegpu import EFFECTIVE_GPU_DIALECT
from enforcer.backends.hami_dialect import HAMI_DIALECT, HamiDialect
from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, ContainerAsk, NodeBook, PodAsk
from enforcer.simulated.kin import (
    LEVELS,
    KinSystem,
    amount,
    asked_mib,
    grant,
    grants_by_container,
    limits_of,
    registered,
)
from enforcer.simulated.placing import Rules
from enforcer.simulated.system import NodeWords, is_limited
from fleet.capabilities.capability import Capabilities
from fleet.capabilities.register import EFFECTIVE_GPU, HAMI
from fleet.errors import Refused
from fleet.grammars.hami import (
    CORES_RESOURCE,
    COUNT_RESOURCE,
    FRAMEBUFFER_PERCENT_RESOURCE,
    FRAMEBUFFER_RESOURCE,
    PRIORITY_ENV,
    PRIORITY_RESOURCE,
    VGPU_NODE_ANNOTATION,
    render_devices_allocated,
    render_node_register,
)
from fleet.inventory import Priority

_CARD_RESOURCES = frozenset({COUNT_RESOURCE, FRAMEBUFFER_RESOURCE, FRAMEBUFFER_PERCENT_RESOURCE, CORES_RESOURCE})
_SCHEDULER = "hami-scheduler"
_FRAMEBUFFER_MIB_MAX = 2**31 - 1
"""A container that asks for more is taken for one that asks for no card."""
_CONTEXT_MIB = 300


def _mutated(container: Manifest, pod: str) -> Manifest:
    limits = dict(limits_of(container))
    percent = amount(limits, FRAMEBUFFER_PERCENT_RESOURCE)
    if not 0 <= percent <= 100:
        raise Refused(f"cannot admit pod {pod}: {FRAMEBUFFER_PERCENT_RESOURCE}={percent}, expected 0 to 100")
    if amount(limits, CORES_RESOURCE) < 0 or amount(limits, FRAMEBUFFER_RESOURCE) < 0:
        raise Refused(f"cannot admit pod {pod}: {CORES_RESOURCE} and {FRAMEBUFFER_RESOURCE} can't be negative")
    mutated = container
    if limits.keys() & _CARD_RESOURCES:
        limits.setdefault(COUNT_RESOURCE, "1")
        is_whole = percent == 100 if FRAMEBUFFER_PERCENT_RESOURCE in limits else FRAMEBUFFER_RESOURCE not in limits
        if is_whole and CORES_RESOURCE not in limits:
            limits[CORES_RESOURCE] = str(WHOLE_CORE_PERCENT)
        mutated = {**container, "resources": {**container["resources"], "limits": limits}}
    if PRIORITY_RESOURCE in limits:
        variable = {"name": PRIORITY_ENV, "value": str(limits[PRIORITY_RESOURCE])}
        mutated = {**mutated, "env": [*container.get("env", ()), variable]}
    return mutated


def _order(pod: PodAsk, order: list[CardBook]) -> list[CardBook]:
    """It stays for the pod's next container, unless the policy is a chain."""
    parts = [part.strip() for part in pod.card_policy.split(",")]
    if len(parts) > 1 or parts == ["numa"]:
        order = sorted(order, key=lambda card: card.card)
    if parts == ["mutex"]:
        return sorted(order, key=lambda card: -card.slices)
    word = next((part for part in parts if part in ("binpack", "spread")), None)
    if word is None and parts == ["numa"]:
        return order
    sign = 1 if word == "binpack" else -1
    return sorted(order, key=lambda card: sign * _card_score(card))


def _misfit(pod: PodAsk, ask: ContainerAsk, card: CardBook) -> str | None:
    is_exclusive = ask.core_percent == WHOLE_CORE_PERCENT
    is_idle_wanted = "mutex" in pod.card_policy.replace(" ", "").split(",")
    cores = card.used_cores + ask.core_percent
    misfits = (
        (not _admits(pod, card), "card is excluded by annotation or type"),
        (bool(pod.use_cards) and card.card not in pod.use_cards, "card is not in use-gpuuuid"),
        (card.slices >= card.slices_max, f"card is split into deviceSplitCount={card.slices_max} slices already"),
        (card.slices > 0 and is_idle_wanted, "card is not idle"),
        (card.used_mib + asked_mib(ask, card) > card.framebuffer_mib, "card has too little framebuffer left"),
        (cores > WHOLE_CORE_PERCENT, "card has too few cores left"),
        (card.slices > 0 and is_exclusive, "card is not free for an exclusive pod"),
        (card.used_cores >= WHOLE_CORE_PERCENT, "card is held exclusively"),
    )
    return next((why for is_misfit, why in misfits if is_misfit), None)


def _admits(pod: PodAsk, card: CardBook) -> bool:
    if card.card in pod.avoid_cards:
        return False
    kind = card.device_type.lower()
    if pod.use_models and not any(model.lower() in kind for model in pod.use_models):
        return False
    return not any(model.lower() in kind for model in pod.avoid_models)


def _card_score(card: CardBook) -> float:
    """10 × (used slots, cores and framebuffer, each as a share of the card); what is asked for does not weigh in.

    HAMi adds what is asked for to cards whose registered type is `NVIDIA`; its plugin always writes the model too.
    """
    return 10 * (
        card.slices / card.slices_max
        + card.used_cores / WHOLE_CORE_PERCENT
        + card.used_mib / max(1, card.framebuffer_mib)
    )


def _node_score(pod: PodAsk, node: NodeBook, books: Sequence[CardBook]) -> float:
    """10 × (used slots, cores and framebuffer, each as a share of the node); negative where a pod wants to spread."""
    del node
    score = 10 * (
        sum(card.slices for card in books) / max(1, sum(card.slices_max for card in books))
        + sum(card.used_cores for card in books) / max(1, WHOLE_CORE_PERCENT * len(books))
        + sum(card.used_mib for card in books) / max(1, sum(card.framebuffer_mib for card in books))
    )
    return score * (-1 if pod.node_policy == "spread" else 1)


_RULES = Rules(misfit=_misfit, order=_order, grant=grant, node_score=_node_score)


class HamiSystem(KinSystem):
    """HAMi in its mode `hami-core` (a `SharingSystem`)."""

    rules = _RULES
    scheduler = _SCHEDULER

    def __init__(self, capabilities: Capabilities, dialect: HamiDialect) -> None:
        self.capabilities = capabilities
        self._dialect = dialect
        self.words = dialect.words
        self.config = (dialect.node_config, "config.json", json.dumps({"nodeconfig": []}))
        super().__init__()
        self.wish_path = f'$.spec.containers[0].resources.limits."{dialect.words.priority}"'

    def mutate(self, pod: Manifest) -> Manifest:
        """Fill in what HAMi fills in: its scheduler, count, cores of a whole card, the priority's variable.

        Raises:
            Refused: HAMi denies the pod; the message says which value.
        """
        spec, name = dict(pod["spec"]), pod["metadata"]["name"]
        fields = [field for field in ("initContainers", "containers") if field in spec]
        for field in fields:
            spec[field] = [_mutated(container, name) for container in spec[field]]
        every = [container for field in fields for container in spec[field]]
        if any(limits_of(container).keys() & _CARD_RESOURCES for container in every):
            spec["schedulerName"] = _SCHEDULER
            privileged = [one["name"] for one in every if (one.get("securityContext") or {}).get("privileged")]
            if privileged:
                raise Refused(f"cannot admit pod {name}: container {privileged[0]} is privileged")
            if spec.get("nodeName"):
                raise Refused(f"cannot admit pod {name}: pod has node assigned")
        return {**pod, "spec": spec}

    def ask_of(self, pod: Manifest) -> PodAsk:
        """What a pod that was admitted asks for."""
        asks = []
        for container in pod["spec"]["containers"]:
            limits = limits_of(container)
            count = amount(limits, COUNT_RESOURCE)
            mib = amount(limits, FRAMEBUFFER_RESOURCE)
            if count and mib <= _FRAMEBUFFER_MIB_MAX:
                asks.append(
                    ContainerAsk(
                        container=container["name"],
                        count=count,
                        framebuffer_mib=mib or None,
                        framebuffer_percent=amount(limits, FRAMEBUFFER_PERCENT_RESOURCE) or 100,
                        core_percent=min(amount(limits, CORES_RESOURCE), WHOLE_CORE_PERCENT),
                    )
                )
        return self.pod_ask(pod, asks)

    def marks(self, pod: Manifest, allocations: Sequence[Allocation], cards: Sequence[CardBook]) -> Manifest:
        """See `SharingSystem`."""
        grants = list(grants_by_container(pod, allocations).values())
        allocated = {self._dialect.allocated: render_devices_allocated(grants)}
        return {"annotations": {VGPU_NODE_ANNOTATION: cards[0].node, **allocated}}

    def held(self, wish: str | None, core_percent: int) -> tuple[bool, Priority | None]:
        """See `SharingSystem`."""
        return is_limited(core_percent), LEVELS.get(wish or "", Priority.NORMAL)

    def node(self, cards: Sequence[CardBook]) -> NodeWords:
        """See `SharingSystem`."""
        return NodeWords(
            annotations={self._dialect.register: render_node_register(registered(cards))},
            allocatable={self.words.count: str(sum(card.slices_max for card in cards))},
        )


class EffectiveGpuSystem(HamiSystem):
    """EffectiveGPU, with the swap through unified memory that its authors describe."""

    def kept_mib(self, granted_mib: int, scaling: float) -> float | None:
        """See `SharingSystem`: a context stays (some hundred MiB, as CUDA makes it), everything else may go."""
        del scaling
        return min(granted_mib, _CONTEXT_MIB)


HAMI_SYSTEM = HamiSystem(HAMI, HAMI_DIALECT)
EFFECTIVE_GPU_SYSTEM = EffectiveGpuSystem(EFFECTIVE_GPU, EFFECTIVE_GPU_DIALECT)
