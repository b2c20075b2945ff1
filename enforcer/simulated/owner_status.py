"""What the controllers of a simulated cluster write into the status of the owners that roll."""

from __future__ import annotations

from typing import Any

from enforcer.manifest import Manifest
from enforcer.simulated.controllers import Controllers, desired_pods
from enforcer.simulated.revisions import HASH_LABEL
from enforcer.simulated.store import SimulatedStore


def owner_status(owner: Manifest, controllers: Controllers, store: SimulatedStore) -> dict[str, Any]:
    """The status of a Deployment, StatefulSet, DaemonSet or ReplicaSet, counted from its pods."""
    metadata, kind = owner["metadata"], owner["kind"]
    namespace, name = metadata["namespace"], metadata["name"]
    if kind == "ReplicaSet":
        return _replica_set_status(owner, store)
    pods = controllers.rolling_pods(owner, controllers.pods_of(kind, namespace, name))
    updated = sum(pod.is_current for pod in pods)
    ready = sum(pod.is_ready for pod in pods)
    available = sum(pod.is_available for pod in pods)
    observed: dict[str, Any] = {"observedGeneration": metadata.get("generation", 1)}
    if kind == "DaemonSet":
        return observed | {
            "desiredNumberScheduled": len(pods),
            "currentNumberScheduled": len(pods),
            "updatedNumberScheduled": updated,
            "numberReady": ready,
            "numberAvailable": available,
        }
    found = {
        "replicas": len(pods),
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": available,
    }
    if kind == "Deployment":
        found["unavailableReplicas"] = max(0, (desired_pods(owner) or 0) - available)
    # The API leaves out what is zero.
    return observed | {key: value for key, value in found.items() if value}


def _replica_set_status(owner: Manifest, store: SimulatedStore) -> dict[str, Any]:
    metadata = owner["metadata"]
    references = metadata.get("ownerReferences", ())
    if not references:
        return {}
    pods = store.pods(
        "namespace=? AND owner_kind=? AND owner_name=? AND revision=?",
        metadata["namespace"],
        references[0]["kind"],
        references[0]["name"],
        metadata.get("labels", {}).get(HASH_LABEL, ""),
    )
    return {"replicas": len(pods)}
