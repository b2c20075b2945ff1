"""What labels of new series may not claim: another cluster than their sender's, and what others' pods and cards do.

Kept by `series_table`, which asks once per series and never per sample.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet.logs import logger
from fleet.provenance import Provenance, Stranger

STRANGERS_SAID_MAX = 20
"""Targets that may not speak for others of which the log names the namespace and job."""

_log = logger(__name__)


class Claims:
    """What is believed of one sender's labels; mutable: counts what was not.

    Args:
        forced_cluster: cluster of all series, whatever their labels claim: the sender's; None to believe the labels.
        provenance: which targets may speak for others.
    """

    def __init__(self, forced_cluster: str | None = None, provenance: Provenance | None = None) -> None:
        self.forced_cluster = forced_cluster
        self.overridden = 0
        """Series whose label claimed another cluster than their sender's."""
        self.untrusted = 0
        """Series left out because their targets may not speak for others."""
        self._provenance = Provenance() if provenance is None else provenance
        self._strangers: set[Stranger] = set()

    def with_forced_cluster(self, labels: dict[str, str]) -> bool:
        """Puts the sender's cluster into labels where it has one; whether they claimed another."""
        if self.forced_cluster is None:
            return False
        claimed = labels.get("cluster", self.forced_cluster)
        labels["cluster"] = self.forced_cluster
        return claimed != self.forced_cluster

    def is_untrusted(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether who wrote a series may not; the log names each such target once."""
        stranger = self._provenance.stranger(name, labels)
        if stranger is not None and stranger not in self._strangers and len(self._strangers) < STRANGERS_SAID_MAX:
            self._strangers.add(stranger)
            _log.warning(
                "series left out: provenance.namespaces does not name the namespace of who wrote it",
                metric=name, namespace=stranger.namespace[:253], job=stranger.job[:253],
            )  # fmt: skip
        return stranger is not None
