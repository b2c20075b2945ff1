"""How the reading of a cluster fares, as families of the exporter's own. Called by `exporter.allocation.collector`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from exporter.cluster_reader import Watched
from exporter.cluster_reader_watch import WatchState
from exporter.families import CataloguedFamily, Family, counter, gauge

_LABELS = ("cluster", "resource")

WATCH_OBJECTS = gauge(
    "gputide_watch_objects",
    "Objects of a kind that are kept, those that have nothing to do with cards left out.",
    _LABELS,
)
WATCH_IS_KNOWN = gauge(
    "gputide_watch_known",
    "1 where all objects of a kind have been read, else 0; kinds that the API does not serve have no series.",
    _LABELS,
)
WATCH_AGE = gauge(
    "gputide_watch_age_seconds",
    (
        "Time since the API server last said anything of a kind, seconds; a watch where nothing happens grows "
        "to some four minutes old."
    ),
    _LABELS,
)
WATCH_LISTS = counter("gputide_watch_lists_total", "Whole lists of a kind that were read.", _LABELS)
WATCH_EVENTS = counter("gputide_watch_events_total", "Events of a kind that were taken in.", _LABELS)
WATCH_RESTARTS = counter("gputide_watch_restarts_total", "Watches of a kind that failed and were begun anew.", _LABELS)
WATCH_ERRORS = counter(
    "gputide_watch_errors_total",
    "Failures to read a kind: expired, unavailable, refused, corrupt or bug.",
    (*_LABELS, "kind"),
)

HEALTH_FAMILIES: tuple[CataloguedFamily, ...] = (
    WATCH_OBJECTS,
    WATCH_IS_KNOWN,
    WATCH_AGE,
    WATCH_LISTS,
    WATCH_EVENTS,
    WATCH_RESTARTS,
    WATCH_ERRORS,
)
"""Every family of this module, in the order in which they are handed out."""


def health_families(cluster: str, states: Sequence[WatchState], held: Mapping[Watched, int]) -> tuple[Family, ...]:
    """The families as they stand."""
    served = [state for state in states if state.is_served]
    labels = tuple((cluster, state.watched.value) for state in served)
    errors = [(state, kind, count) for state in states for kind, count in state.errors]
    columns = (
        (WATCH_OBJECTS, [held[state.watched] for state in served]),
        (WATCH_IS_KNOWN, [state.is_known for state in served]),
        (WATCH_AGE, [np.nan if state.age_seconds is None else state.age_seconds for state in served]),
        (WATCH_LISTS, [state.lists for state in served]),
        (WATCH_EVENTS, [state.events for state in served]),
        (WATCH_RESTARTS, [state.restarts for state in served]),
    )
    return (
        *(catalogued.of(labels, np.array(values, dtype=np.float64)) for catalogued, values in columns),
        WATCH_ERRORS.of(
            tuple((cluster, state.watched.value, kind) for state, kind, _ in errors),
            np.array([count for _, _, count in errors], dtype=np.float64),
        ),
    )
