"""Refuses a stage that counts on low priority being held back where nothing does so now.

A plan says for each co-location what it counts on: the backend's own levels, its gate between pods with core limits, a
gate that a probe saw, or the agent of the node. Each is looked for in the cluster before anything is rendered, by
`apply` and by its dry run alike.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet.capabilities.capability import SHARED_PERCENT_MAX, Capabilities, CorePolicy
from fleet.decisions import CardPlacement, Need, Plan, Recommendation
from fleet.errors import Refused
from fleet.inventory import Priority
from fleet.priority_holds import Holders
from fleet.sentences import Sentence, sentence


def check_priority(plan: Plan, chosen: Iterable[Recommendation], record: Capabilities, holders: Holders) -> None:
    """Refuse advice whose promise nothing keeps.

    Args:
        chosen: recommendations of the stage.
        record: what the running version enforces.
        holders: agents that run now, and what probes saw.

    Raises:
        Refused: naming the advice, the card, and what is missing there.
    """
    for item in chosen:
        if Need.PRIORITY not in item.needs:
            continue
        pods = set(item.pods)
        for card in plan.placement:
            is_mixed = len({part.priority is Priority.LOW for part in card.slices}) == 2
            why = _unheld(item, card, record, holders) if is_mixed else None
            if why is not None and not pods.isdisjoint(part.pod_id for part in card.slices):
                raise Refused(
                    sentence("guard.priority_unheld", plan=plan.plan_id, item=item.id, card=str(card.card), why=why)
                )


def _unheld(item: Recommendation, card: CardPlacement, record: Capabilities, holders: Holders) -> Sentence | None:
    """Why low priority is not held back on a card as advice counts on; None where it is."""
    node, backend = card.node or "", record.backend
    if record.priority_levels < 2:
        return sentence("guard.unheld_levels", backend=backend)
    if not record.gates_priority_by_cores:
        return None
    if Need.GRAPH_PAUSE in item.needs and node not in holders.graphs_pause:
        return sentence("guard.unheld_graphs", node=node)
    if Need.AGENT in item.needs:
        return None if node in holders.agents else sentence("guard.unheld_agent", node=node)
    if Need.PROBED_GATE in item.needs:
        return None if node in holders.gated else sentence("guard.unheld_probe", node=node)
    if node in holders.ungated:
        return sentence("guard.unheld_gate", node=node)
    for part in card.slices:
        percent = 0 if part.compute_ratio is None else round(part.compute_ratio * 100)
        if not 1 <= percent <= SHARED_PERCENT_MAX or part.core_policy is not CorePolicy.HARD:
            return sentence("guard.unheld_limit", backend=backend, pod=part.pod_id)
    return None
