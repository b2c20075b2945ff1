"""What a plan wants of a pod: the seats on its owner, or on an owner above that. A pod without a mark costs no request.

Called by the admission of pods, and by who looks after those that wait for their seats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from enforcer.admission import SEATING_ANNOTATION, SEATS_ANNOTATION, WITHOUT_SEATING, PlannedSeat, seats_for
from enforcer.cluster import ClusterReader
from enforcer.kinds.register import workload_kind
from enforcer.kubernetes.kinds import API_KINDS
from enforcer.manifest import Manifest, workload_parts
from enforcer.ownership import controller_of, workload_of_pod
from fleet.inventory import WorkloadId
from fleet.workload_kinds import OWNER_LINKS_MAX

NOTEBOOK_LABEL = "notebook-name"
"""On a pod of a Kubeflow Notebook: its name (kubeflow/kubeflow:components/notebook-controller/controllers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPod:
    """What a plan wants of a pod.

    Attributes:
        seats: those that the pod may be given.
        wanted: how many pods their owner asks for; None where it does not say.
    """

    workload: WorkloadId
    seats: Mapping[str, PlannedSeat]
    wanted: int | None
    owner: Manifest | None


def planned_pod(pod: Manifest, reader: ClusterReader) -> PlannedPod:
    """What a plan wants of a pod, which has a namespace.

    Raises:
        Corrupt: the seats are not what `enforcer.admission` writes.
        Misconfigured: a right is missing.
        Unavailable: the cluster can't be reached.
    """
    workload = workload_of_pod(pod, {})
    namespace, kind, name = workload_parts(workload)
    metadata = pod["metadata"]
    nothing = PlannedPod(workload=workload, seats={}, wanted=None, owner=None)
    notebook = (metadata.get("labels") or {}).get(NOTEBOOK_LABEL)
    if kind == "StatefulSet" and notebook is not None:
        kind, name = "Notebook", str(notebook)
    is_marked = SEATING_ANNOTATION in (metadata.get("annotations") or {})
    if not is_marked and not (kind in WITHOUT_SEATING and _wants_cards(pod)):
        return nothing
    for _ in range(OWNER_LINKS_MAX):
        owner = reader.get(kind, namespace, name) if kind in API_KINDS else None
        if owner is None:
            return nothing
        if SEATS_ANNOTATION in (owner["metadata"].get("annotations") or {}):
            wanted = workload_kind(kind).wanted(owner)
            return PlannedPod(workload=workload, seats=seats_for(pod, owner), wanted=wanted, owner=owner)
        above = controller_of(owner)
        if above is None:
            return nothing
        kind, name = above
    return nothing


def _wants_cards(pod: Manifest) -> bool:
    limits = ((container.get("resources") or {}).get("limits") for container in pod["spec"]["containers"])
    return any("/" in name for found in limits if isinstance(found, Mapping) for name in found)
