"""KServe's InferenceService: its predictor is a pod specification with the model's container beside it.

`spec.predictor` holds the fields of a pod specification next to `model` (or the name of a framework), which is the
container `kserve-container`; annotations and labels of the component go on its pods. A component without such a
container lists its containers itself. In RawDeployment mode each component is a Deployment, in serverless mode a
Knative Service. Where the cards stand in the ServingRuntime alone, there is nothing in the InferenceService to change.

Stopped by its annotation `serving.kserve.io/stop` (which takes the Deployment or the Knative Service away), beside
`minReplicas: 0`, by which a serverless one of an older release goes as soon as nobody asks.

Source: kserve/kserve:pkg/apis/serving/v1beta1/{component,predictor,podspec}.go, kserve/kserve:pkg/constants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from enforcer.kinds.kind import (
    Fields,
    PodTemplate,
    Reach,
    Scaling,
    Size,
    WorkloadKind,
    condition,
    in_trouble,
    is_observed,
)
from enforcer.manifest import Manifest
from fleet.sentences import Sentence, sentence

MODEL_CONTAINER = "kserve-container"
COMPONENT_LABEL = "component"
STOP_ANNOTATION = "serving.kserve.io/stop"

COMPONENTS = ("predictor", "transformer", "explainer")
MODELS = (
    "model",
    "sklearn",
    "xgboost",
    "tensorflow",
    "pytorch",
    "triton",
    "onnx",
    "huggingface",
    "pmml",
    "lightgbm",
    "paddle",
)
_OF_POD = ("containers", "initContainers", "nodeSelector", "affinity", "tolerations", "schedulerName", "resourceClaims")


def _templates(owner: Manifest) -> tuple[PodTemplate, ...]:
    found = []
    for component in COMPONENTS:
        body = owner.get("spec", {}).get(component)
        if isinstance(body, dict):
            found.append(_template(component, body))
    return tuple(found)


def _template(component: str, body: Manifest) -> PodTemplate:
    path = f"spec.{component}"
    pieces = {".metadata.annotations": f"{path}.annotations", ".metadata.labels": f"{path}.labels", ".spec": path}
    containers = list(body.get("containers") or ())
    model = next((name for name in MODELS if isinstance(body.get(name), dict)), None)
    if model is not None:
        containers.insert(0, {**body[model], "name": MODEL_CONTAINER})
        pieces[f".spec.containers[{MODEL_CONTAINER}]"] = f"{path}.{model}"
    spec = {key: body[key] for key in _OF_POD if key in body} | {"containers": containers}
    metadata = {"annotations": body.get("annotations") or {}, "labels": body.get("labels") or {}}
    return PodTemplate(role=component, path=path, body={"metadata": metadata, "spec": spec}, pieces=pieces)


def _role_of(labels: Mapping[str, Any]) -> str:
    component = labels.get(COMPONENT_LABEL)
    return str(component) if component in COMPONENTS else COMPONENTS[0]


def _sizes(owner: Mapping[str, Any]) -> tuple[Size, ...]:
    spec = owner.get("spec", {})
    return tuple(
        Size(role=component, path=f"spec.{component}.minReplicas")
        for component in COMPONENTS
        if isinstance(spec.get(component), Mapping)
    )


def _scale(scaling: Scaling) -> Fields:
    fields: Fields = {}
    for size in _sizes(scaling.owner):
        going = sum(pod.role == size.role for pod in scaling.leaving)
        if not going:
            continue
        replicas = max(0, size.pods(scaling.owner) - going)
        if not any(pod.role == size.role for pod in scaling.staying):
            replicas = 0
        fields[size.path] = str(replicas)
        component = scaling.owner["spec"][size.role]
        if component.get("maxReplicas") == component.get("minReplicas", 1) and replicas:
            # A fixed number of replicas stays one; a range leaves its autoscaler free.
            fields[f"spec.{size.role}.maxReplicas"] = str(replicas)
    if not scaling.staying:
        fields[f"metadata.annotations[{STOP_ANNOTATION}]"] = "true"
    return fields


def _refusal(owner: Mapping[str, Any]) -> str | None:
    spec = owner.get("spec", {})
    percent = (spec.get("predictor") or {}).get("canaryTrafficPercent")
    if percent not in (None, 100):
        return f"a canary of its own is under way (spec.predictor.canaryTrafficPercent={percent}); end it first"
    # A container that asks for cards by name stands here, or in the ServingRuntime, which serves others too.
    for template in _templates(dict(owner)):
        for container in template.body["spec"]["containers"]:
            if any("/" in name for name in (container.get("resources") or {}).get("limits") or ()):
                return None
    return (
        "it asks for no card itself: its ServingRuntime does, which serves others too; write the limits into "
        "spec.predictor.model.resources first"
    )


def is_raw(owner: Mapping[str, Any]) -> bool:
    """Whether its components are Deployments: by its annotation, else by its status.

    Source: kserve/kserve:pkg/constants (RawDeployment; called Standard since release 0.16).
    """
    annotations = owner["metadata"].get("annotations") or {}
    mode = annotations.get("serving.kserve.io/deploymentMode") or owner.get("status", {}).get("deploymentMode")
    return mode in ("RawDeployment", "Standard")


def _trouble(owner: Mapping[str, Any]) -> Sentence | None:
    status = owner.get("status", {})
    model = status.get("modelStatus") or {}
    if model.get("transitionStatus") in ("BlockedByFailedLoad", "InvalidSpec"):
        failure = model.get("lastFailureInfo") or {}
        return in_trouble(sentence("trouble.no_model"), model["transitionStatus"], failure.get("message"))
    return None


def _is_settled(owner: Mapping[str, Any]) -> bool:
    ready = condition(owner, "PredictorReady")
    is_stopped = condition(owner, "Stopped").get("status") == "True"
    return is_observed(owner) and (is_stopped or ready.get("status", "True") == "True")


INFERENCE_SERVICE = WorkloadKind(
    kind="InferenceService",
    reach=Reach.ROLLS,
    template_fields=re.compile(
        r"spec\.(predictor|transformer|explainer)\."
        r"(?!(minReplicas|maxReplicas|deploymentStrategy|canaryTrafficPercent)\b)"
    ),
    templates=_templates,
    role_of=_role_of,
    sizes=_sizes,
    stop_field=f"metadata.annotations[{STOP_ANNOTATION}]",
    scale=_scale,
    refusal=_refusal,
    by_replica_sets=True,
    trouble=_trouble,
    is_settled=_is_settled,
)
