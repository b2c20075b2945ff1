"""What freed cards of owned and reserved machines could be worth to queues: new quotas as text, beside emitted files.

Such a machine is paid with or without work, so a freed card of it saves nothing until somebody uses it. It is offered
to the queues of Kueue, Volcano or KAI that count cards, in proportion to what they deserve. Nothing is written to them.
Pure.

Sources: kubernetes-sigs/kueue:apis/kueue (ClusterQueue), volcano-sh/apis:pkg/apis/scheduling/v1beta1 (Queue.deserved),
NVIDIA/KAI-Scheduler:pkg/apis/scheduling/v2 (Queue.spec.resources.gpu.quota).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from enforcer.record.savings import promised_cards
from fleet.decisions import Plan
from fleet.inventory import Inventory, Quota

_CARD_RESOURCES = frozenset({"nvidia.com/gpu", "gpu", "amd.com/gpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOffer:
    """One queue, and how many cards it could have more.

    Attributes:
        cards: at least 1.
    """

    queue: Quota
    cards: int

    @property
    def wanted(self) -> int:
        """The quota with them."""
        return round(self.queue.deserved or 0.0) + self.cards

    @property
    def text(self) -> str:
        """What to change, and the command where one word says which field."""
        queue, was = self.queue, round(self.queue.deserved or 0.0)
        # As JSON, so that no name ends the line.
        what = f"# queue {json.dumps(queue.name)} ({queue.kind}): {queue.resource} from {was} to {self.wanted}"
        if queue.kind == "volcano":
            deserved = {"spec": {"deserved": {queue.resource: str(self.wanted)}}}
            return f"{what}\n{_patched('queues.scheduling.volcano.sh', queue.name, deserved)}"
        if queue.kind == "kai":
            patch = {"spec": {"resources": {"gpu": {"quota": self.wanted}}}}
            return f"{what}\n{_patched('queues.scheduling.run.ai', queue.name, patch)}"
        return f"{what}\n# its nominalQuota of {queue.resource}: kubectl edit clusterqueues.kueue.x-k8s.io"


def offered_cards(plan: Plan, stages: Iterable[int], inventory: Inventory, paid: Collection[str]) -> int:
    """How many cards some stages free on nodes that are paid with or without them.

    Args:
        paid: nodes that are paid for whole, and go instead.
    """
    node_of = {card.card: card.node for card in inventory.cards}
    free = (card for card in promised_cards(plan, stages) if card.replaced_by is None)
    return sum(node_of.get(card.card) not in paid for card in free if card.card in node_of)


def queue_offers(cards: int, quotas: Sequence[Quota]) -> tuple[QueueOffer, ...]:
    """Cards divided among queues that count cards, in proportion to what each deserves; whole cards, none left over."""
    queues = [one for one in quotas if one.kind in ("kueue", "volcano", "kai") and one.resource in _CARD_RESOURCES]
    queues = sorted((one for one in queues if one.deserved), key=lambda one: (one.kind, one.name, one.resource))
    total = sum(one.deserved or 0.0 for one in queues)
    if not cards or not total:
        return ()
    exact = [cards * (one.deserved or 0.0) / total for one in queues]
    given = [int(share) for share in exact]
    largest = sorted(range(len(queues)), key=lambda number: (given[number] - exact[number], number))
    for number in largest[: cards - sum(given)]:
        given[number] += 1
    return tuple(
        QueueOffer(queue=queue, cards=more) for queue, more in zip(queues, given, strict=True) if more
    )  # fmt: skip


def offers_text(cards: int, offers: Sequence[QueueOffer]) -> str:
    """The file that stands beside what is emitted."""
    head = (
        f"# {cards} cards of machines that are paid anyway are freed. Queues could have them, by what each deserves.\n"
        "# Apply the plan first; nothing here is run by anybody.\n"
    )
    return head + "".join(f"\n{offer.text}\n" for offer in offers)


def _patched(resource: str, name: str, patch: object) -> str:
    body = shlex.quote(json.dumps(patch, sort_keys=True))
    return f"kubectl patch {resource} {shlex.quote(name)} --type merge -p {body}"
