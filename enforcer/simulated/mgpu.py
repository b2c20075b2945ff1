"""Volcengine's mGPU as a simulated cluster plays it: online shares, offline shares of what those leave, whole cards.

Its code is closed; the rules are those of its published description and of volcano-sh/volcano's proposal: the scheduler
packs (`binpack`) nodes and cards, a card has 16 containers at most, framebuffer is never granted twice, cores of online
and of offline work add up to a card each, and a pod that shares goes to nodes of its compute policy alone.
Shares of several cards at once (`container-multiple-gpu`) are not simulated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from enforcer.backends.mgpu import (
    CARD_CORES,
    FIXED,
    FRAMEBUFFER_MIB_MIN,
    NODE_LABEL,
    OFFLINE,
    POLICY_ANNOTATION,
    QOS_ANNOTATION,
    node_policy,
)
from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, ContainerAsk, NodeBook, PodAsk
from enforcer.simulated.device_plugin import card_labels, model_selector
from enforcer.simulated.kin import amount, limits_of
from enforcer.simulated.placing import Rules
from enforcer.simulated.system import NodeWords, SharingSystem, TenantWords, by_container, host_request, is_limited
from fleet.capabilities.register import MGPU
from fleet.errors import Refused
from fleet.grammars.mgpu import CORES_RESOURCE, FRAMEBUFFER_RESOURCE, INDEX_ANNOTATION_PREFIX, RECLAIMED_CORES_RESOURCE
from fleet.inventory import Grant, Priority
from fleet.units import MIB


def _limits(grants: Sequence[Grant], resource: str, *, is_slice: bool) -> dict[str, str]:
    first, cards = grants[0], len({grant.card for grant in grants})
    if not is_slice:
        return {resource: str(CARD_CORES * cards)}
    mib = max(FRAMEBUFFER_MIB_MIN, first.framebuffer_granted_bytes // MIB)
    percent = max(1, round(100 * first.compute_granted_ratio))
    return {resource: str(percent * cards), FRAMEBUFFER_RESOURCE: str(mib * cards)}


def _cores(limits: Manifest) -> int:
    return amount(limits, CORES_RESOURCE) + amount(limits, RECLAIMED_CORES_RESOURCE)


def _misfit(pod: PodAsk, ask: ContainerAsk, card: CardBook) -> str | None:
    del pod
    if ask.framebuffer_mib is None:
        return "card is taken" if card.slices else None
    is_offline = ask.resource == RECLAIMED_CORES_RESOURCE
    cores = card.lent_cores if is_offline else card.used_cores
    misfits = (
        (card.slices >= card.slices_max, f"card has maxContainersPerCard={card.slices_max} containers"),
        (card.used_mib + ask.framebuffer_mib > card.framebuffer_mib, "card has too little framebuffer left"),
        (cores + ask.core_percent > CARD_CORES, "card has too few cores left"),
    )
    return next((why for is_misfit, why in misfits if is_misfit), None)


def _order(pod: PodAsk, order: list[CardBook]) -> list[CardBook]:
    """The fullest that fits, and of those alike the first."""
    del pod
    return sorted(order, key=lambda card: (-card.used_mib, card.card))[::-1]


def _grant(ask: ContainerAsk, card: CardBook) -> Allocation:
    is_offline = ask.resource == RECLAIMED_CORES_RESOURCE
    return Allocation(
        container=ask.container,
        card=card.card,
        framebuffer_mib=card.framebuffer_mib if ask.framebuffer_mib is None else ask.framebuffer_mib,
        core_percent=0 if is_offline else ask.core_percent,
        lent_percent=ask.core_percent if is_offline else 0,
    )


def _node_score(pod: PodAsk, node: NodeBook, cards: Sequence[CardBook]) -> float:
    del pod, node
    return sum(card.used_mib for card in cards) / max(1, sum(card.framebuffer_mib for card in cards))


_RULES = Rules(misfit=_misfit, order=_order, grant=_grant, node_score=_node_score)


class MgpuSystem(SharingSystem):
    """mGPU (a `SharingSystem`)."""

    rules = _RULES
    capabilities = MGPU
    wish_path = "$.metadata.annotations"

    def tenant(self, grants: Sequence[Grant], models: Sequence[str]) -> TenantWords:
        """See `SharingSystem`; a slice of low priority is offline work."""
        del models
        first = grants[0]
        is_slice = first.framebuffer_granted_bytes < first.framebuffer_bytes
        is_offline = is_slice and first.priority is Priority.LOW
        annotations = {POLICY_ANNOTATION: FIXED} if is_slice else {}
        if is_offline:
            annotations[QOS_ANNOTATION] = OFFLINE
        containers = by_container(grants)
        resource = RECLAIMED_CORES_RESOURCE if is_offline else CORES_RESOURCE
        return TenantWords(
            annotations=annotations,
            spec=model_selector(first),
            containers={
                name: {"resources": {"limits": _limits(own, resource, is_slice=is_slice)}}
                for name, own in containers.items()
            },
        )

    def mutate(self, pod: Manifest) -> Manifest:
        """See `SharingSystem`."""
        name = pod["metadata"]["name"]
        for container in pod["spec"]["containers"]:
            limits = limits_of(container)
            mib, cores = amount(limits, FRAMEBUFFER_RESOURCE), _cores(limits)
            if 0 < mib < FRAMEBUFFER_MIB_MIN:
                raise Refused(
                    f"cannot admit pod {name}: {FRAMEBUFFER_RESOURCE}={mib}, expected {FRAMEBUFFER_MIB_MIN} or more"
                )
            if not mib and cores % CARD_CORES:
                raise Refused(f"cannot admit pod {name}: {cores} % of cores without {FRAMEBUFFER_RESOURCE}")
        return pod

    def ask_of(self, pod: Manifest) -> PodAsk:
        """See `SharingSystem`."""
        cpu_cores, memory_bytes = host_request(pod)
        asks = []
        for container in pod["spec"]["containers"]:
            limits = limits_of(container)
            mib, cores = amount(limits, FRAMEBUFFER_RESOURCE), _cores(limits)
            count = max(1, cores // CARD_CORES)
            if cores:
                asks.append(
                    ContainerAsk(
                        container=container["name"],
                        count=count,
                        framebuffer_mib=mib // count or None,
                        core_percent=cores // count,
                        resource=RECLAIMED_CORES_RESOURCE if RECLAIMED_CORES_RESOURCE in limits else CORES_RESOURCE,
                    )
                )
        return PodAsk(containers=tuple(asks), cpu_cores=cpu_cores, memory_bytes=memory_bytes)

    def may_run(self, pod: Manifest, node: Manifest) -> bool:
        """See `SharingSystem`: the policy of a pod that shares is its node's."""
        shares = any(FRAMEBUFFER_RESOURCE in limits_of(container) for container in pod["spec"]["containers"])
        policy = pod["metadata"].get("annotations", {}).get(POLICY_ANNOTATION, FIXED)
        return not shares or bool(policy == node_policy(node))

    def marks(self, pod: Manifest, allocations: Sequence[Allocation], cards: Sequence[CardBook]) -> Manifest:
        """See `SharingSystem`: numbers of cards on their node."""
        del pod
        number = {card.card: index for index, card in enumerate(cards)}
        found: dict[str, list[int]] = {}
        for part in allocations:
            found.setdefault(part.container, []).append(number[part.card])
        annotations = {
            f"{INDEX_ANNOTATION_PREFIX}{name}": ",".join(map(str, sorted(own))) for name, own in found.items()
        }
        return {"annotations": annotations}

    def held(self, wish: str | None, core_percent: int) -> tuple[bool, Priority | None]:
        """See `SharingSystem`; offline work has what online work leaves."""
        annotations = json.loads(wish or "{}")
        if annotations.get(QOS_ANNOTATION) == OFFLINE:
            return False, Priority.LOW
        return is_limited(core_percent) and annotations.get(POLICY_ANNOTATION, FIXED) == FIXED, None

    def node(self, cards: Sequence[CardBook]) -> NodeWords:
        """See `SharingSystem`."""
        cores, mib = str(CARD_CORES * len(cards)), str(sum(card.framebuffer_mib for card in cards))
        return NodeWords(
            labels={NODE_LABEL: "mgpu", **card_labels(cards)},
            allocatable={CORES_RESOURCE: cores, RECLAIMED_CORES_RESOURCE: cores, FRAMEBUFFER_RESOURCE: mib},
        )


MGPU_SYSTEM = MgpuSystem()
