"""How the controllers of a simulated cluster name what they make: revisions of a template, ReplicaSets, pods.

Pure. A real cluster draws the last five letters of a pod's name by lot; here they follow from the ReplicaSet and from
how often the pod was made, so that a run that was killed and gone on with ends like one that was not.

Source: kubernetes:pkg/controller/deployment/sync.go (getNewReplicaSet), kubernetes:pkg/util/hash,
kubernetes:staging/src/k8s.io/apimachinery/pkg/util/rand (the alphabet without vowels).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from enforcer.manifest import without_empty

HASH_LABEL = "pod-template-hash"
"""Label with which a Deployment distinguishes the pods of its ReplicaSets."""

HASH_LABELS = {"Rollout": "rollouts-pod-template-hash"}
"""The same for kinds that have a label of their own."""

REVISION_LABEL = "controller-revision-hash"
"""The same for a StatefulSet or a DaemonSet."""

NAME_KEEPING = frozenset(
    {
        "JAXJob",
        "LeaderWorkerSet",
        "MPIJob",
        "Notebook",
        "PaddleJob",
        "Pod",
        "PyTorchJob",
        "StatefulSet",
        "TFJob",
        "XGBoostJob",
    }
)
"""Kinds whose pods keep their names when they are made anew: those of StatefulSets, and of jobs that number them."""

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def revision_of(template: Mapping[str, Any]) -> str:
    """Hash of a pod template, ten letters: the same template is the same revision, whatever stands in it empty."""
    return _letters(json.dumps(without_empty(template), sort_keys=True), 10)


def revision_name(owner: str, revision: str) -> str:
    """Name of the ReplicaSet, or the ControllerRevision, of an owner and a revision."""
    return f"{owner}-{revision}"


def pod_name(maker: str, plays: str, number: int) -> str:
    """Name of a pod.

    Args:
        maker: its ReplicaSet, or its owner where there is none.
        plays: pod of the trace that it stands for.
        number: how often that one was made before.
    """
    return f"{maker}-{_letters(f'{maker}/{plays}/{number}', 5)}"


def pod_uid(namespace: str, name: str, version: int) -> str:
    """Identity of a pod: another one each time it is made."""
    digest = hashlib.sha256(f"{namespace}/{name}/{version}".encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _letters(text: str, count: int) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    found = []
    for _ in range(count):
        number, place = divmod(number, len(_ALPHABET))
        found.append(_ALPHABET[place])
    return "".join(found)
