"""What latency a pod's owner promised, and what its server's requests take now.

The promise is the label or annotation `gputide.io/latency-p99-seconds` of the pod; what is measured is the series that
the shipped recording rules keep of inference servers and of Istio's proxies (`fleet.server_series`), so nobody writes a
query. Of a pod without requests there is no latency, and nothing is broken. Called by the watch after a change and by
relief.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from enforcer.instant_query import InstantQuery, pod_named
from enforcer.manifest import Manifest
from enforcer.wishes import Wishes
from fleet.inventory import LATENCY_OBJECTIVE_LABEL
from fleet.schema import Measure
from fleet.server_series import recorded_name

LATENCY_QUERY = f"max by (namespace, pod) ({recorded_name(Measure.LATENCY_P99)})"


def objective_text(pod: Manifest) -> str | None:
    """What a pod promises, as it stands there; None where it promises nothing."""
    return Wishes().of(LATENCY_OBJECTIVE_LABEL, pod)


def objective_seconds(text: str) -> float | None:
    """A promise in seconds; None for what is no positive number."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def latencies(metrics: InstantQuery) -> Mapping[tuple[str, str], float]:
    """99th percentile of the latency of every pod that answers requests, seconds, by namespace and name.

    Raises:
        Unavailable: it can't be asked.
    """
    return {pod: sample.value for sample in metrics.vector(LATENCY_QUERY) if (pod := pod_named(sample)) is not None}
