"""Who scales a workload between which bounds, and how that is written beside its pods.

The cluster exporter reads HorizontalPodAutoscalers and KEDA's ScaledObjects and writes what it finds as the value of
`gputide.io/autoscaled` among the labels of every slice of the workload; the recommender reads it there. Standard
library only: the exporter loads this module.

Sources: kubernetes/api:autoscaling/v2/types.go (minReplicas is 1 where absent);
kedacore/keda:apis/keda/v1alpha1/scaledobject_types.go (minReplicaCount is 0, maxReplicaCount 100 where absent).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class AutoscalerKind(StrEnum):
    """Objects that count replicas; the first goes before the second, which it may have made itself."""

    SCALED_OBJECT = "ScaledObject"
    HORIZONTAL_POD_AUTOSCALER = "HorizontalPodAutoscaler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """Who scales a workload.

    Attributes:
        replicas_min: fewest replicas that it keeps, 0 or more.
        replicas_max: most replicas that it makes, at least `replicas_min`.
    """

    kind: AutoscalerKind
    replicas_min: int
    replicas_max: int

    @property
    def told(self) -> str:
        """The value of the label, such as `HorizontalPodAutoscaler 2-10`."""
        return f"{self.kind.value} {self.replicas_min}-{self.replicas_max}"


_TOLD = re.compile(rf"({'|'.join(AutoscalerKind)}) ([0-9]{{1,9}})-([0-9]{{1,9}})", re.ASCII)


def autoscaler_of(told: str | None) -> Autoscaler | None:
    """Reads the value of the label; None where it says something else, as people may who write it themselves."""
    found = _TOLD.fullmatch(told or "")
    if found is None or int(found[2]) > int(found[3]):
        return None
    return Autoscaler(kind=AutoscalerKind(found[1]), replicas_min=int(found[2]), replicas_max=int(found[3]))
