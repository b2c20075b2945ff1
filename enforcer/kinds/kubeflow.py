"""Kubeflow's kinds: Notebook, the training jobs of the training operator, and TrainJob of the trainer after it.

A training job has one template for each type of replica. Its controller makes missing pods from the template as it
stands and leaves those that run, so a changed template comes with an eviction; the work since the last checkpoint is
lost, as it is with every eviction. A job is stopped whole by `runPolicy.suspend`. A TrainJob takes its template from a
TrainingRuntime, which other jobs use too.

Source: kubeflow/kubeflow:components/notebook-controller/api/v1/notebook_types.go,
kubeflow/trainer:pkg/apis/kubeflow.org/v1/{common,pytorch,tensorflow,mpi,xgboost,paddlepaddle,jax}_types.go (release
1.9), kubeflow/trainer:pkg/controller.v1/common/pod.go (labels, names), kubeflow/trainer:pkg/apis/trainer/v1alpha1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from enforcer.cluster import STOPPED_ANNOTATION
from enforcer.kinds.kind import NOW, PodTemplate, Reach, Size, WorkloadKind, condition, in_trouble, stopped_whole
from enforcer.manifest import Manifest
from fleet.sentences import Sentence, sentence

ROLE_LABELS = ("training.kubeflow.org/replica-type", "replica-type")
"""On a pod of a training job: the type of its replica in lower case; the second is that of MPI's own operator."""

_SUSPEND = "spec.runPolicy.suspend"
_STOPPED = f"metadata.annotations[{STOPPED_ANNOTATION}]"
_TYPE = re.compile(r"[A-Za-z]{1,32}")


def _replica_specs(field: str) -> Callable[[Mapping[str, Any]], dict[str, Mapping[str, Any]]]:
    def replica_specs(owner: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        found = owner.get("spec", {}).get(field)
        held = found if isinstance(found, Mapping) else {}
        return {name: spec for name, spec in held.items() if _TYPE.fullmatch(name) and isinstance(spec, Mapping)}

    return replica_specs


def _role_of(labels: Mapping[str, Any]) -> str:
    return next((str(labels[label]).lower() for label in ROLE_LABELS if label in labels), "worker")


def _trouble(owner: Mapping[str, Any]) -> Sentence | None:
    failed = condition(owner, "Failed")
    return in_trouble(sentence("trouble.failed"), failed.get("message")) if failed.get("status") == "True" else None


def _training_job(kind: str, field: str) -> WorkloadKind:
    specs = _replica_specs(field)

    def templates(owner: Manifest) -> tuple[PodTemplate, ...]:
        return tuple(
            PodTemplate(role=name.lower(), path=f"spec.{field}.{name}.template", body=spec["template"])
            for name, spec in specs(owner).items()
            if isinstance(spec.get("template"), dict)
        )

    def sizes(owner: Mapping[str, Any]) -> tuple[Size, ...]:
        return tuple(Size(role=name.lower(), path=f"spec.{field}.{name}.replicas") for name in specs(owner))

    return WorkloadKind(
        kind=kind,
        reach=Reach.EVICTED,
        template_fields=re.compile(rf"spec\.{field}\.[A-Za-z]+\.template\."),
        templates=templates,
        role_of=_role_of,
        sizes=sizes,
        stop_field=_SUSPEND,
        scale=stopped_whole(_SUSPEND),
        trouble=_trouble,
        note="its pods are evicted: what was trained since the last checkpoint is lost",
    )


def _runtime_is_shared(owner: Mapping[str, Any]) -> str:
    del owner
    return (
        "a TrainJob takes its template from a TrainingRuntime, which other jobs use too; write the grant into "
        "spec.trainer.resourcesPerNode of the next one"
    )


def _no_templates(owner: Manifest) -> tuple[PodTemplate, ...]:
    del owner
    return ()


NOTEBOOK = WorkloadKind(
    kind="Notebook", reach=Reach.EVICTED, stop_field=_STOPPED, stop_value=NOW, scale=stopped_whole(_STOPPED, NOW)
)
PYTORCH_JOB = _training_job("PyTorchJob", "pytorchReplicaSpecs")
TF_JOB = _training_job("TFJob", "tfReplicaSpecs")
MPI_JOB = _training_job("MPIJob", "mpiReplicaSpecs")
XGBOOST_JOB = _training_job("XGBoostJob", "xgbReplicaSpecs")
PADDLE_JOB = _training_job("PaddleJob", "paddleReplicaSpecs")
JAX_JOB = _training_job("JAXJob", "jaxReplicaSpecs")
TRAIN_JOB = WorkloadKind(
    kind="TrainJob",
    reach=Reach.FIXED,
    templates=_no_templates,
    stop_field="spec.suspend",
    scale=stopped_whole("spec.suspend"),
    refusal=_runtime_is_shared,
)
