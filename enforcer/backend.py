"""A GPU-sharing backend as the enforcer uses it: what it enforces, and how a stage of a plan reads in its own words.

One adapter per backend (`backend_hami` …), each with its record in `fleet.capabilities`. Rendering changes nothing; the
rollout carries out what is rendered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from enforcer.seat import SeatSlice
from enforcer.snapshot import Snapshot
from fleet.capabilities import Capabilities
from fleet.decisions import Plan
from fleet.inventory import WorkloadId
from fleet.outcomes import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One pod that gets another seat.

    Attributes:
        namespace: namespace.
        pod: pod.
        workload: owner.
        old: where it sits; empty where it is pending or stopped.
        new: where it shall sit; empty where it shall be gone.
        recommendation: what for.
    """

    namespace: str
    pod: str
    workload: WorkloadId
    old: tuple[SeatSlice, ...]
    new: tuple[SeatSlice, ...]
    recommendation: str

    @property
    def pod_id(self) -> str:
        """`namespace/pod`."""
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedStage:
    """One stage in the backend's words.

    Attributes:
        stage: number.
        changes: fields of objects, grouped by object, in the order of the plan.
        moves: pods that get another seat.
        warnings: what holds only in part, one sentence each.
    """

    stage: int
    changes: tuple[Change, ...]
    moves: tuple[Move, ...]
    warnings: tuple[str, ...]


class Backend(Protocol):
    """Renders plans for one way of sharing cards."""

    @property
    def capabilities(self) -> Capabilities:
        """What it really enforces."""
        ...

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage of a plan into changes of objects.

        Args:
            plan: the plan.
            stage: number of the stage; the ones before it count as applied.
            snapshot: the cluster as it stands; old values and versions come from it.

        Returns:
            What to change. Pods that sit as planned already are left out, so a stage that is applied renders empty.

        Raises:
            Refused: the stage needs what the backend does not enforce, or the cluster lacks what it names.
        """
        ...
