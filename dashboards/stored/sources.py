"""Sources that contradict each other, as the Prometheus that a scan reads has them, asked beside the pages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from dashboards.stored.last_answers import LastAnswers, Patience
from dashboards.view_models.health import SourcesSeen
from fleet.inventory import CardId

ASKED_SECONDS = 600.0
"""How often it is asked anew, while somebody looks."""
_PATIENCE = Patience(
    what="sources",
    not_yet="cannot say yet whether sources of {cluster} contradict each other: Prometheus is being asked",
    first_seconds=2.0,
)


class AskedSources:
    """`Sources` over a Prometheus.

    Args:
        ask: what contradicts each other there, in all clusters; None where there is no Prometheus to ask.
        cards: the cards of a cluster.
        is_patient: True to wait for the answer.
    """

    def __init__(
        self,
        ask: Callable[[], SourcesSeen] | None,
        cards: Callable[[str], frozenset[CardId]],
        *,
        is_patient: bool = False,
    ) -> None:
        self._cards = cards
        self._asked = None if ask is None else LastAnswers(lambda _: ask(), _PATIENCE, is_patient=is_patient)

    def seen(self, cluster: str) -> SourcesSeen | None:
        """What was found on cards of a cluster; None where nobody can be asked."""
        if self._asked is None:
            return None
        found = self._asked.of(cluster, int(time.monotonic() / ASKED_SECONDS))
        own = self._cards(cluster)
        return replace(found, contradictions=tuple(one for one in found.contradictions if one.card in own))
