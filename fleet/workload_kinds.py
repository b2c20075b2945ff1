"""Which kinds of workloads advice may be made for, and what work each does: facts that planner and enforcer share.

A kind stands here when the enforcer changes its pods where they run (`enforcer.kinds` says how, with the sources). A
CronJob is changed for its next run only, a RayService makes its pods twice before one set goes, and a RayJob or a
TrainJob takes no change: of these nothing can be promised, so no advice is made.
"""

from __future__ import annotations

SERVICE_KINDS = frozenset({"Deployment", "InferenceService", "LeaderWorkerSet", "Rollout", "StatefulSet"})
"""Kinds that serve: replicas that are alike, and come again when one goes."""

JOB_KINDS = frozenset({"Job", "JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob"})
"""Kinds that run to an end: a restart loses the work since the last checkpoint."""

SURGE_KINDS = frozenset({"Deployment", "InferenceService", "Rollout"})
"""Kinds whose controller can make a new pod beside the one that it is to replace."""

ORDERED_KINDS = frozenset({"LeaderWorkerSet", "StatefulSet"})
"""Kinds whose controller changes the pod of the highest ordinal first, whichever finds room."""

CHANGEABLE_KINDS = SERVICE_KINDS | JOB_KINDS | {"Notebook", "RayCluster"}
"""Kinds of owners that the enforcer can change."""

NO_WORKLOADS = frozenset({"Node"})
"""Owners that are nobody's workload: a static pod is owned by the node that it runs on."""

TEMPLATE_HASHES = (("rollouts-pod-template-hash", "Rollout"), ("pod-template-hash", "Deployment"))
"""Label with the hash that ends a ReplicaSet's name, and the kind that makes ReplicaSets with it.

Source: kubernetes:pkg/controller/deployment/sync.go (getNewReplicaSet), argoproj/argo-rollouts:utils/defaults.
"""

OWNER_LINKS_MAX = 16
"""Most controllers above one another that are followed."""
