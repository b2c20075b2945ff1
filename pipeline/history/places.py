"""Where cards sit and what they are called: one answer per card, whatever each exporter calls the same node and model.

dcgm-exporter, HAMi and Volcano may name a card's node by its host name, its Kubernetes name or not at all, and the
model with or without the vendor. Rows of one card must meet, so that each card is known by what its best source says.
Called by `reading` and `facts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet.grammars.kai import RESERVATION_NAMESPACES
from fleet.provenance import Provenance, Stranger, target_of
from fleet.series import SeriesIdentity

TEXT_BYTES_MAX = 1024
"""Longest name that is taken; Kubernetes' own end at 253."""
STRANGERS_MAX = 200
"""Targets that spoke for others and may not, of which it is remembered what they wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlace:
    """A card's node and model; empty where nobody says."""

    node: str
    card_model: str


class Places:
    """What every series of one cluster speaks of; mutable: learns card by card.

    Args:
        cluster_label: label by which the source distinguishes clusters.
        provenance: which targets may speak for others.
    """

    def __init__(self, cluster: str, cluster_label: str, provenance: Provenance) -> None:
        self.cluster = cluster
        self.cards: dict[str, CardPlace] = {}
        self.namespaces: dict[str, str] = {}
        self.strangers: dict[Stranger, set[str]] = {}
        """What targets wrote that may not speak for others: names of metrics."""
        self._cluster_label = cluster_label
        self._provenance = provenance
        self._targets: dict[tuple[str, str], frozenset[str]] = {}

    def learn_target(self, labels: Mapping[str, str]) -> None:
        """Learns where a target is, of the labels of its `up`."""
        target, namespace = target_of(labels)
        self._targets[target] = self._targets.get(target, frozenset()) | {namespace}

    def takes(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether who wrote a series may; remembers who may not.

        Args:
            labels: as the source has them.
        """
        stranger = self._provenance.stranger(name, labels, self._targets)
        if stranger is not None and (stranger in self.strangers or len(self.strangers) < STRANGERS_MAX):
            self.strangers.setdefault(stranger, set()).add(name)
        return stranger is None

    def labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Labels with the name of the cluster that was chosen, whatever the source calls it."""
        found = dict(labels)
        found.pop(self._cluster_label, None)
        found["cluster"] = self.cluster
        return found

    def add(self, identity: SeriesIdentity) -> None:
        """Learns a card's place; what was learnt first stays, and gaps are filled."""
        if identity.card is None:
            return
        known = self.cards.get(identity.card)
        node, model = identity.node or "", identity.card_model or ""
        if known is None:
            self.cards[identity.card] = CardPlace(node=node, card_model=model)
        elif (not known.node and node) or (not known.card_model and model):
            self.cards[identity.card] = CardPlace(node=known.node or node, card_model=known.card_model or model)

    def settled(self, identity: SeriesIdentity) -> SeriesIdentity:
        """The identity with its card's own node and model, and its pod's namespace where the source leaves it out.

        KAI's reservation pods are nobody's: what they are said to do is the card's alone.
        """
        place = None if identity.card is None else self.cards.get(identity.card)
        if place is not None:
            identity = replace(
                identity, node=place.node or identity.node, card_model=place.card_model or identity.card_model
            )
        if identity.pod is not None and identity.namespace is None:
            identity = replace(identity, namespace=self.namespaces.get(identity.pod))
        if identity.namespace in RESERVATION_NAMESPACES:
            # It holds the card for pods that share it and does nothing itself: no tenant.
            identity = replace(identity, namespace=None, pod=None, container=None)
        return identity


def fits(identity: SeriesIdentity) -> bool:
    """Whether all its names are of a length that is taken."""
    texts = (
        identity.cluster, identity.node, identity.card, identity.card_model, identity.namespace, identity.pod,
        identity.container,
    )  # fmt: skip
    return all(text is None or len(text.encode(errors="replace")) <= TEXT_BYTES_MAX for text in texts)
