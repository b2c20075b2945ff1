"""The newest analysis of each cluster, from the warehouse and the analyzer; reads only, from any thread.

An analysis is kept until the warehouse holds something newer, so a page that polls costs nothing. The analysis of a
large fleet takes minutes: verbs wait for it, and a web app shows the last one while a thread makes the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from dashboards.queries import Event, Freshness, WorkloadHistory
from dashboards.stored.last_answers import LastAnswers, Patience
from dashboards.stored.workload_series import WorkloadSeries
from dashboards.view_models.card_history import CardHistory
from dashboards.view_models.made_once import MADE
from dashboards.view_models.slice_uses import USE_HOURS, SliceUse, price_ratios
from fleet.errors import NotEnoughData
from fleet.inventory import CardId, Grant, Node
from fleet.profiles import Profiles

PATIENCE = Patience(
    what="analysis",
    not_yet="cannot show cluster {cluster} yet: its history is being read and analysed",
    first_seconds=6.0,
    quick_seconds=0.5,
    rest_ratio=4.0,  # analysing takes a fifth of a processor at most
    outlives_faults=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """What is kept of one analysis.

    Attributes:
        series: use of every workload over time.
        interval_seconds: step of the history.
    """

    profiles: Profiles
    nodes: tuple[Node, ...]
    series: WorkloadSeries
    interval_seconds: float


class WarehouseFleet:
    """`Fleet` over the clusters of a warehouse."""

    def __init__(
        self,
        *,
        clusters: Callable[[], tuple[str, ...]],
        version: Callable[[], str],
        analyse: Callable[[str], Analysed],
        now: Callable[[], datetime],
        newest: Callable[[str], datetime | None],
        events: Callable[[str, str], tuple[Event, ...]],
        of_card: Callable[[str, CardId, tuple[Grant, ...], int | None], CardHistory],
        is_patient: bool = True,
    ) -> None:
        """Hold nothing yet; the first question about a cluster has it analysed.

        Args:
            version: text that changes when the warehouse holds something new.
            newest: end of the newest window that a cluster sent, UTC; None where it never sent usage.
            of_card: reads the last hours of a card, or all of them, with its grants.
            is_patient: True to wait for the newest analysis; else the last one is given while the next is made.
        """
        self._clusters = clusters
        self._version = version
        self._now = now
        self._newest = newest
        self._events = events
        self._of_card = of_card
        self._analyses = LastAnswers(analyse, PATIENCE, is_patient=is_patient)
        self._known: set[str] = set()

    def clusters(self) -> tuple[str, ...]:
        """Names of all clusters with data."""
        return self._clusters()

    def profiles(self, cluster: str) -> Profiles:
        """The newest analysis, the same object while nothing changed."""
        return self.analysed(cluster).profiles

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        """Nodes of the newest analysis, the same object while nothing changed."""
        return self.analysed(cluster).nodes

    def history(self, cluster: str, workload: str, hours: int | None) -> WorkloadHistory | None:
        """One workload over its last hours; None where it is unknown."""
        series = self.analysed(cluster).series
        if workload not in series.grants:
            return None
        return series.history(workload, hours, self._events(cluster, workload))

    def card_history(self, cluster: str, card: str, hours: int | None) -> CardHistory | None:
        """One card over its last hours, read anew; None where it is unknown."""
        found = self.analysed(cluster)
        if not any(profile.card == card for profile in found.profiles.cards):
            return None
        return self._of_card(cluster, CardId(card), found.series.grants_of(card), hours)

    def freshness(self, cluster: str) -> Freshness:
        """Coverage and age of the data."""
        analysed = self.analysed(cluster)
        return Freshness(
            coverage_ratio=analysed.profiles.coverage_ratio,
            newest_at=self._newest(cluster),
            interval_seconds=analysed.interval_seconds,
            now=self._now(),
        )

    def analysed(self, cluster: str) -> Analysed:
        """The newest analysis of a cluster.

        Raises:
            NotEnoughData: nothing is known of it.
            NotMadeYet: it is being made for the first time.
        """
        if cluster not in self._known and cluster not in self._clusters():
            raise NotEnoughData(
                f"nothing is known of cluster {cluster!r}; feed it with `gputide admin replay` or `run receive`"
            )
        self._known.add(cluster)
        return self._analyses.of(cluster, self._version())


class StoredSlices:
    """`Slices` over the analyses of a warehouse.

    Args:
        analysed: the newest analysis of a cluster.
        compute_ratio: share of a card's price that its compute stands for, 0-1.
    """

    def __init__(self, analysed: Callable[[str], Analysed], *, compute_ratio: float) -> None:
        self._analysed = analysed
        self._compute_ratio = compute_ratio

    def slices(self, cluster: str) -> tuple[SliceUse, ...]:
        """One per container on a card that lives, by namespace, pod, container and card."""
        found = self._analysed(cluster)
        return MADE.of((found.profiles,), "slices", lambda: self._made(found))

    def _made(self, found: Analysed) -> tuple[SliceUse, ...]:
        grants = found.series.live_grants(found.profiles.as_of)
        figures = found.series.lately(grants, USE_HOURS).tolist()
        ratios = price_ratios(grants, compute_ratio=self._compute_ratio)
        return tuple(
            SliceUse(
                grant=grant,
                price_ratio=ratio,
                compute_mean=_known(mean),
                compute_max=_known(peak),
                framebuffer_used_max=None if math.isnan(used) else round(used),
            )
            for grant, ratio, (mean, peak, used) in zip(grants, ratios, figures, strict=True)
        )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
