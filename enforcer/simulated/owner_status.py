"""What the controllers of a simulated cluster write into the status of the owners that roll."""

from __future__ import annotations

from typing import Any

from enforcer.manifest import Manifest
from enforcer.simulated.controllers import Controllers
from enforcer.simulated.kind_specs import desired_pods
from enforcer.simulated.pod_making import ROLLING_KINDS
from enforcer.simulated.revisions import HASH_LABEL, HASH_LABELS
from enforcer.simulated.store import SimulatedStore

_HASHES = (HASH_LABEL, *HASH_LABELS.values())


def owner_status(owner: Manifest, controllers: Controllers, store: SimulatedStore) -> dict[str, Any]:
    """The status of a workload or a ReplicaSet, counted from its pods."""
    metadata, kind = owner["metadata"], owner["kind"]
    namespace, name = metadata["namespace"], metadata["name"]
    if kind == "ReplicaSet":
        return _replica_set_status(owner, store)
    if kind not in ROLLING_KINDS:
        return _plain_status(owner)
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
    if kind in ("InferenceService", "RayService"):
        name = "PredictorReady" if kind == "InferenceService" else "UpgradeInProgress"
        is_over = updated == len(pods) and available >= len(pods)
        is_true = is_over if kind == "InferenceService" else updated < len(pods)
        return observed | {"conditions": [{"type": name, "status": "True" if is_true else "False"}]}
    if kind == "Rollout":
        # Its controller writes the generation as text.
        observed = {
            "observedGeneration": str(observed["observedGeneration"]),
            "phase": "Healthy" if updated == available == len(pods) else "Progressing",
        }
    found = {"replicas": len(pods), "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": available}
    if kind == "Deployment":
        found["unavailableReplicas"] = max(0, (desired_pods(owner) or 0) - available)
    # The API leaves out what is zero.
    return observed | {key: value for key, value in found.items() if value}


def _plain_status(owner: Manifest) -> dict[str, Any]:
    """Kinds that only say that they have looked."""
    generation = owner["metadata"].get("generation", 1)
    return {"observedGeneration": generation, "state": "ready"} if owner["kind"] == "RayCluster" else {}


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
        next((metadata.get("labels", {})[key] for key in _HASHES if key in metadata.get("labels", {})), ""),
    )
    return {"replicas": len(pods)}
