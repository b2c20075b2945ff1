"""A second replica of one pod on another card, and how it takes the first one's place without its owner's doing.

A changed template would roll all pods of an owner, and a larger scale would let an autoscaler answer. So relief makes
one pod itself, from the template of the ReplicaSet that made the old one, with the backend's choice of the new card,
and without the label by which that ReplicaSet knows its own: services find it by its other labels, no controller does.
Once it is ready the old pod is evicted, under its disruption budgets, and the new one gets that label: the ReplicaSet
adopts it, and takes away what it may have made meanwhile, which is not ready yet and costs less to delete.

Sources: kubernetes:pkg/controller/controller_ref_manager.go (ClaimPods: a pod without a controller whose labels fit is
adopted), kubernetes:pkg/controller/replicaset/replica_set.go (updatePod, getPodsToDelete),
kubernetes:pkg/controller/controller_utils.go (ActivePodsWithRanks: unready pods go first, then those that cost less).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from enforcer.cluster import DELETION_COST_ANNOTATION
from enforcer.manifest import Manifest, template_of
from enforcer.relief.relief_journal import MoveOrder
from enforcer.resource_names import Words, listed_words
from fleet.errors import Refused

HASH_LABELS = ("pod-template-hash", "rollouts-pod-template-hash")
"""Labels by which ReplicaSets know their pods: those of a Deployment, those of an Argo Rollout."""
RELIEF_LABEL = "gputide.io/relief"
"""On a pod that relief made: the name of the move."""
RELIEVES_ANNOTATION = "gputide.io/relieves"
"""On a pod that relief made: the pod whose place it takes."""
KEPT_COST = "1000"
"""Deletion cost of a warm replica until the old one is gone: of two ready pods the other one goes."""

_NAME_LENGTH_MAX = 63


def replica_name(maker: str, move_id: str) -> str:
    """Name of the warm replica of a move: the same whenever it is asked, so that it is made once."""
    ending = f"-{move_id[:8]}"
    return maker[: _NAME_LENGTH_MAX - len(ending)].rstrip("-.") + ending


def move_name(pod_uid: str, at: str) -> str:
    """Name of a move: ten letters that no other one has."""
    return hashlib.sha256(f"{pod_uid}/{at}".encode()).hexdigest()[:10]


def warm_replica(order: MoveOrder, replica_set: Manifest, words: Words) -> Manifest:
    """The pod that takes the old one's place.

    Args:
        replica_set: who made the old pod.

    Raises:
        Refused: the backend takes no card by name, the ReplicaSet knows its pods by no hash, or its template forbids
            the card; the message is the reason alone.
    """
    if words.use_card is None:
        raise Refused("the backend does not take a card by its UUID")
    template = copy.deepcopy(dict(template_of(replica_set)))
    metadata: Mapping[str, Any] = template.get("metadata") or {}
    labels = dict(metadata.get("labels") or {})
    label, _ = hash_of(replica_set)
    annotations = dict(metadata.get("annotations") or {})
    _check_choice(order, annotations, words)
    del labels[label]
    annotations |= {words.use_card: order.to_card, RELIEVES_ANNOTATION: order.pod, DELETION_COST_ANNOTATION: KEPT_COST}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": order.namespace,
            "name": order.replica,
            "labels": {**labels, RELIEF_LABEL: order.move_id},
            "annotations": annotations,
        },
        "spec": template["spec"],
    }


def hash_of(replica_set: Manifest) -> tuple[str, str]:
    """Name and value of the label by which a ReplicaSet knows its pods.

    Raises:
        Refused: it knows them by none.
    """
    labels = (template_of(replica_set).get("metadata") or {}).get("labels") or {}
    for name in HASH_LABELS:
        if name in labels and name in _selector(replica_set):
            return name, str(labels[name])
    raise Refused(f"ReplicaSet {replica_set['metadata']['name']} does not know its pods by a hash of their template")


def wants_pods(replica_set: Manifest | None) -> bool:
    """Whether a ReplicaSet still keeps pods; one that is rolled away would delete what it adopts."""
    if replica_set is None or replica_set["metadata"].get("deletionTimestamp") is not None:
        return False
    return int(replica_set.get("spec", {}).get("replicas", 1)) > 0


def _check_choice(order: MoveOrder, annotations: Mapping[str, str], words: Words) -> None:
    chosen = listed_words(annotations.get(words.use_card or ""))
    if chosen and order.to_card not in chosen:
        raise Refused(f"its template's {words.use_card} names other cards than {order.to_card}")
    if order.to_card in listed_words(annotations.get(words.avoid_card or "")):
        raise Refused(f"its template's {words.avoid_card} names {order.to_card}")


def _selector(replica_set: Manifest) -> Mapping[str, Any]:
    found = (replica_set.get("spec", {}).get("selector") or {}).get("matchLabels") or {}
    return found if isinstance(found, Mapping) else {}
