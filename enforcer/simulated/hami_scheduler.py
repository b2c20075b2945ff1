"""Places a pod on cards the way HAMi's scheduler does: filter, then score.

The rules are those of Project-HAMi/HAMi:pkg/device/nvidia/device.go (Fit), pkg/scheduler/score.go and
pkg/scheduler/policy (gpu_policy.go, node_policy.go) of v2.10.0: binpack over nodes and spread over a node's cards,
unless the pod's annotations say otherwise. Modes and weights of scores are not simulated, nor what `placing` leaves
out.
"""

from __future__ import annotations

from collections.abc import Sequence

from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.simulated.books import CardBook, ContainerAsk, NodeBook, PodAsk
from enforcer.simulated.kin import asked_mib, grant
from enforcer.simulated.placing import Rules


def _order(
    pod: PodAsk, ask: ContainerAsk, order: list[CardBook], registered: Sequence[CardBook]
) -> list[CardBook]:  # fmt: skip
    """It stays for the pod's next container, unless the policy is a chain."""
    del ask
    parts = [part.strip() for part in pod.card_policy.split(",")]
    if len(parts) > 1 or parts == ["numa"]:
        places = {card.card: number for number, card in enumerate(registered)}
        order = sorted(order, key=lambda card: places[card.card])
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


HAMI_RULES = Rules(misfit=_misfit, order=_order, grant=grant, node_score=_node_score)
