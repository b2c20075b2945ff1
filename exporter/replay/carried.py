"""What the replicas of a service carry while others of it are away: the load of all that the trace recorded.

Scaled in, stopped or pending, a replica serves nothing, and whoever asked it asks its siblings. One piece of
`exporter.replay.reader`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fleet.schema import MEASURES, Measure

NO_SERVICE = -1
_LOAD = frozenset(
    {
        Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.MEMORY_ACTIVE, Measure.ENCODER, Measure.DECODER,
        Measure.KV_CACHE_USAGE, Measure.REQUEST_RATE, Measure.PROMPT_TOKEN_RATE, Measure.GENERATED_TOKEN_RATE,
        Measure.REQUESTS_RUNNING,
    }
)  # fmt: skip
"""Measures that grow with the requests; framebuffer, power and temperature stay as they are, a latency too."""
_MOST = {column.measure: column.value_max for column in MEASURES}
_BELOW_ONE = 1.0 - 1e-9


def carried(
    values: Mapping[Measure, NDArray[np.float64]],
    cells: NDArray[np.int64],
    services: NDArray[np.int64],
    runs: NDArray[np.bool_],
) -> dict[Measure, NDArray[np.float64]]:
    """Values of all samples, in which those of replicas that run have grown by an equal part of what others had.

    Args:
        values: per measure, (samples,); NaN where a sample holds none.
        cells: step of each sample, (samples,), at least 0.
        services: number of its service; `NO_SERVICE` where replicas are not alike, (samples,).
        runs: False for samples of replicas that are away, (samples,).
    """
    width = int(cells.max(initial=0)) + 1
    codes = np.maximum(services, 0) * width + cells
    is_service = services != NO_SERVICE
    here, gone = runs & is_service, ~runs & is_service
    size = int(codes.max(initial=0)) + 1
    siblings = np.bincount(codes[here], minlength=size)
    found = dict(values)
    for measure in _LOAD & values.keys():
        # Kernels of replicas know nothing of each other: idle together = idle × idle.
        is_duty = measure is Measure.DUTY_CYCLE
        amount = -np.log1p(-np.minimum(values[measure], _BELOW_ONE)) if is_duty else values[measure]
        known = gone & np.isfinite(amount)
        left = np.bincount(codes[known], weights=amount[known], minlength=size)
        part = np.divide(left, siblings, out=np.zeros(size), where=siblings > 0)[codes[here]]
        grown = amount[here] + part
        column = values[measure].copy()
        with_more = -np.expm1(-grown) if is_duty else np.minimum(grown, _MOST[measure])
        column[here] = np.where(part > 0, with_more, column[here])
        found[measure] = column
    return found
