"""What latency a pod's owner promised, and what its server's requests take now.

A promise is a label or annotation of `OBJECTIVES` of the pod: of a whole request, of its first token, of each token
after it. What is measured is the series that the shipped recording rules keep of inference servers and of meshes'
proxies (`fleet.server_series`), so nobody writes a query. Of a pod without requests there is no latency, and nothing is
broken. Called by the watch after a change and by relief.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from enforcer.instant_query import pod_named
from enforcer.manifest import Manifest
from enforcer.trusted_series import SeriesQuestion, TrustedSeries
from enforcer.wishes import Wishes
from fleet.inventory import FIRST_TOKEN_OBJECTIVE_LABEL, INTER_TOKEN_OBJECTIVE_LABEL, LATENCY_OBJECTIVE_LABEL
from fleet.schema import Measure
from fleet.server_series import OBJECTIVE_READINGS, recorded_name

_FIRST_TOKEN, _INTER_TOKEN = OBJECTIVE_READINGS
OBJECTIVES: Mapping[str, str] = MappingProxyType(
    {
        LATENCY_OBJECTIVE_LABEL: recorded_name(Measure.LATENCY_P99),
        FIRST_TOKEN_OBJECTIVE_LABEL: _FIRST_TOKEN,
        INTER_TOKEN_OBJECTIVE_LABEL: _INTER_TOKEN,
    }
)
"""Labels of promises, and the series that each is held against."""


def objectives_of(pod: Manifest) -> tuple[tuple[str, str], ...]:
    """What a pod promises: labels of `OBJECTIVES` and their texts, as they stand there."""
    return tuple((label, text) for label in OBJECTIVES if (text := Wishes().of(label, pod)) is not None)


def objective_seconds(text: str) -> float | None:
    """A promise in seconds; None for what is no positive number."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def latencies(metrics: TrustedSeries, label: str) -> Mapping[tuple[str, str], float]:
    """What an objective is held against of every pod that answers requests, seconds, by namespace and name.

    Raises:
        Unavailable: it can't be asked.
    """
    found: dict[tuple[str, str], float] = {}
    for sample in metrics.vector(SeriesQuestion(name=OBJECTIVES[label], expression=OBJECTIVES[label])):
        pod = pod_named(sample)
        if pod is not None:
            found[pod] = max(found.get(pod, 0.0), sample.value)
    return found
