"""Asks the Prometheus of `scan.url` for sources that contradict each other, for the web app.

What they say and by which rule they contradict each other is `gputide.doctor.prometheus_sources`.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

from dashboards.queries import Fleet
from dashboards.stored.sources import AskedSources
from dashboards.view_models.health import SourcesSeen
from fleet.settings.settings import Settings
from gputide.doctor.finding import catalogue
from gputide.doctor.prometheus import asked_server
from gputide.doctor.prometheus_sources import sources_apart, with_since

_MEND = catalogue()["prometheus-sources-contradict"].mend.partition("  #")[0]
"""Without the comment, which the page says in the reader's language."""


def asked_sources(settings: Settings, fleet: Fleet, *, is_patient: bool) -> AskedSources:
    """The port of the pages: what is on a cluster's own cards.

    Args:
        is_patient: True to wait for the server's answer.
    """
    return AskedSources(
        None if settings.scan.url is None else lambda: ask_sources(settings),
        cards=lambda cluster: frozenset(card.card for card in fleet.profiles(cluster).cards),
        is_patient=is_patient,
    )


def ask_sources(settings: Settings) -> SourcesSeen:
    """What contradicts each other there now.

    Raises:
        Unavailable: it can't be reached.
        Misconfigured: it does not let us in.
    """
    scene, history, _ = asked_server(settings.scan)
    rule = settings.provenance.rule
    with closing(scene.ask):
        # By the server's clock: what the pages call now may be a day of the past.
        found = with_since(sources_apart(scene, rule), scene, rule, history, datetime.now(UTC))
    return SourcesSeen(contradictions=found, mend=_MEND)
