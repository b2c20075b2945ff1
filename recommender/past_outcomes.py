"""What a cluster's earlier plans and measured pairs teach the planner; a factor on every forecast of harm among it.

A forecast that was too low before is too low again, because the days to come differ from those seen in the same way.
So the harm realised since each plan was applied is compared with the harm that it predicted for the same workloads,
pooled over all plans that were watched to the end, and forecasts are multiplied by the ratio. The ratio never makes
them smaller: a plan that harmed less than predicted may have been lucky, and the prediction for a workload is an
average over its moves. Made by `gputide plan make` from the outcomes that are kept, for `planner`; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome
from fleet.priority_holds import NOBODY, Holders
from recommender.harm.interference import Interference
from recommender.replica_counts import Span

PRIOR_STEPS = 100.0
"""Violated pod-steps, as many predicted as realised, that count beside what was seen: a first plan proves little."""
FACTOR_MAX = 4.0
"""Beyond this the forecast is not too small but wrong, and a person must look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPast:
    """What this cluster's earlier plans and measurements taught.

    Attributes:
        calibration_ratio: factor on forecasts of harm, 1 … `FACTOR_MAX`.
        scalings: spans in which our own tide moved a workload's replicas, see `replica_counts`.
        absences: since when and until when our own tide had replicas of a workload away, and how many stayed.
        night_evictions_per_hour: how often work had to go before its time in nights of the tide, per hour that it ran;
            None where too few nights say it.
        interference: what measured pairs teach; None where there are none.
        holders: agents that were seen, and what probes saw of the gate of low priority.
    """

    calibration_ratio: float = 1.0
    scalings: Mapping[WorkloadId, Sequence[Span]] = field(default_factory=dict)
    absences: Mapping[WorkloadId, Sequence[tuple[datetime, datetime, int]]] = field(default_factory=dict)
    night_evictions_per_hour: float | None = None
    interference: Interference | None = None
    holders: Holders = NOBODY


def calibration_of(outcomes: Iterable[Outcome]) -> float:
    """The factor on forecasts of harm, 1 … `FACTOR_MAX`; 1 where nothing was verified yet.

    Args:
        outcomes: what came of earlier plans, one per plan; interim ones are left out.
    """
    predicted = realised = PRIOR_STEPS
    for outcome in outcomes:
        if not outcome.is_final:
            continue
        # Workloads that no plan touched suffer too; that much is not the plans' doing.
        aside = outcome.control_violation_ratio or 0.0
        for item in outcome.workloads:
            if item.violation_ratio is not None:
                predicted += item.active_steps * item.predicted_violation_ratio
                realised += item.active_steps * max(0.0, item.violation_ratio - aside)
    return min(FACTOR_MAX, max(1.0, realised / predicted))
