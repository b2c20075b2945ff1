"""What earlier plans of this cluster came to, as one factor on every forecast of harm.

Whoever promised too little harm before promises it again: the days to come differ from those seen in the same way. So
what was realised since each plan was applied is held against what it had foretold for the same workloads, pooled over
all plans that were watched to the end, and forecasts are multiplied by the ratio. They are never made smaller by it: a
plan that harmed less than foretold may have been lucky, and what a workload is foretold is an average over its moves.
Called by the front door, which keeps the outcomes, for `planner`; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome
from recommender.replica_counts import Span

PRIOR_STEPS = 100.0
"""Violated pod-steps, as many foretold as realised, that count beside what was seen: a first plan proves little."""
FACTOR_MAX = 4.0
"""Beyond this the forecast is not too small but wrong, and a person must look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPast:
    """What this cluster's earlier plans taught, and did.

    Attributes:
        calibration_ratio: factor on forecasts of harm, 1 … `FACTOR_MAX`.
        scalings: spans in which our own tide moved a workload's replicas, see `replica_counts`.
    """

    calibration_ratio: float = 1.0
    scalings: Mapping[WorkloadId, Sequence[Span]] = field(default_factory=dict)


def calibration_of(outcomes: Iterable[Outcome]) -> float:
    """The factor on forecasts of harm, 1 … `FACTOR_MAX`; 1 where nothing was verified yet.

    Args:
        outcomes: what came of earlier plans, one per plan; interim ones are left out.
    """
    foretold = realised = PRIOR_STEPS
    for outcome in outcomes:
        if not outcome.is_final:
            continue
        # What those suffer whom no plan touched is not the plans' doing.
        aside = outcome.control_violation_ratio or 0.0
        for item in outcome.workloads:
            if item.violation_ratio is not None:
                foretold += item.active_steps * item.predicted_violation_ratio
                realised += item.active_steps * max(0.0, item.violation_ratio - aside)
    return min(FACTOR_MAX, max(1.0, realised / foretold))
