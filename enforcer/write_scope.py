"""What the enforcer writes, field by field: of it the chart's admission policies for the writer are made.

One table for all kinds, and one of names for each backend. The API server refuses any other write of the writer's
account (`deploy/helm/writer_policy.py` turns the table into CEL); the backends' contract holds what is rendered to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from enforcer.admission import PLAN_ANNOTATION, PREVIOUS_ANNOTATION, SEATING_ANNOTATION, SEATS_ANNOTATION
from enforcer.agent.hami_node_actions import CLOSED_CARDS_ANNOTATION
from enforcer.backends import mgpu, mig, nvidia_sharing, vgpumanager, volcano
from enforcer.backends.effectivegpu import EFFECTIVE_GPU_DIALECT
from enforcer.backends.hami_dialect import HAMI_DIALECT, SCHEDULER_CONFIG_FIELD
from enforcer.backends.node_config import NODE_CONFIG_FIELD
from enforcer.cluster import DELETION_COST_ANNOTATION, STOPPED_ANNOTATION
from enforcer.kinds.kserve import COMPONENTS, MODELS, STOP_ANNOTATION
from enforcer.machines import DELETE_MACHINE_ANNOTATION
from enforcer.manifest import path_parts
from enforcer.node_release import RELEASED_ANNOTATION
from enforcer.relief.warm_replica import HASH_LABELS
from enforcer.resource_names import Words
from enforcer.rollout.held_mark import HELD_ANNOTATION
from enforcer.rollout.node_steps import CLOSED_ANNOTATION
from enforcer.tide.homecoming import SAVE_BY_ANNOTATION
from enforcer.tide.letting_in import RUNS_UNTIL_ANNOTATION
from fleet.grammars import kai
from fleet.grammars.hami import (
    CORE_POLICY_ENV,
    DEVICE_CORDON_ANNOTATION,
    DEVICES_ALLOCATED_ANNOTATION,
    NODE_HANDSHAKE_ANNOTATION,
    PRIORITY_ENV,
)
from fleet.inventory import CORE_LIMIT_LABEL, NODE_MODE_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """A field that may become anything.

    Attributes:
        named: it may only with backends that have it among the `fields` of their names.
    """

    named: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A map.

    Attributes:
        fields: by key; what is not here stays as it is.
        set_name: which of a backend's sets of names matches further keys that are free; empty for none.
        is_container: its command and arguments may change by the framebuffer of a server alone, its variables by
            those that a backend names.
    """

    fields: Mapping[str, Scope] = field(default_factory=dict)
    set_name: str = ""
    is_container: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list whose items are known by a key, and stay in their order."""

    each: Scope
    key: str = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """A map whose values are all alike."""

    each: Scope


Scope = Free | Keys | Items | Values

SETS = ("resources", "template_annotations", "env", "node_labels", "node_annotations", "config_keys")
"""Sets of names that differ by backend, each a regular expression (RE2 and Python's) of whole names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendNames:
    """What a backend's changes are called.

    Attributes:
        sets: by the names of `SETS`, the alternatives of each.
        fields: further fields of templates: `schedulerName`, `claims`.
        plugins: DaemonSets whose pods start anew when their node's configuration changed.
    """

    sets: Mapping[str, tuple[str, ...]]
    fields: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


_OWN_TEMPLATE = (PLAN_ANNOTATION, SEATING_ANNOTATION, CORE_LIMIT_LABEL)
_OWN_NODE = (PLAN_ANNOTATION, PREVIOUS_ANNOTATION, CLOSED_ANNOTATION, CLOSED_CARDS_ANNOTATION, RELEASED_ANNOTATION)
_PLUGIN_RESOURCES = (r"nvidia\.com/gpu(\.shared)?", r"nvidia\.com/mig-[a-z0-9.]+")


def _names(
    resources: tuple[str, ...],
    annotations: tuple[str | None, ...] = (),
    *,
    env: tuple[str, ...] = (),
    node_labels: tuple[str, ...] = (),
    node_annotations: tuple[str, ...] = (),
    config_keys: tuple[str, ...] = (),
    patterns: tuple[str, ...] = (),
    fields: tuple[str, ...] = (),
    plugins: tuple[str, ...] = (),
) -> BackendNames:
    given = tuple(name for name in annotations if name is not None)
    sets = {
        "resources": resources,
        "template_annotations": (*map(re.escape, (*_OWN_TEMPLATE, *given)), *patterns),
        "env": tuple(map(re.escape, env)),
        "node_labels": tuple(map(re.escape, (NODE_MODE_LABEL, *node_labels))),
        "node_annotations": tuple(map(re.escape, (*_OWN_NODE, *node_annotations))),
        "config_keys": config_keys,
    }
    assert tuple(sets) == SETS
    return BackendNames(sets=sets, fields=fields, plugins=plugins)


def _resources(words: Words) -> tuple[str, ...]:
    every = (*words.counts, *words.grant_resources, words.framebuffer_percent)
    return tuple(re.escape(name) for name in dict.fromkeys(every) if name is not None)


def _key(path: str) -> str:
    return re.escape(path_parts(path)[-1])


def _of_hami(plugin: str) -> BackendNames:
    words = HAMI_DIALECT.words
    return _names(
        _resources(words), (words.use_model, words.node_policy, words.card_policy), env=(CORE_POLICY_ENV,),
        node_annotations=(DEVICE_CORDON_ANNOTATION, NODE_HANDSHAKE_ANNOTATION),
        config_keys=(_key(NODE_CONFIG_FIELD), _key(SCHEDULER_CONFIG_FIELD)), plugins=(plugin,),
    )  # fmt: skip


_VOLCANO, _VGPU = volcano.VOLCANO_DIALECT.words, vgpumanager.VGPU_MANAGER_DIALECT.words
_BY_PLUGIN = _names(
    _PLUGIN_RESOURCES, node_labels=(nvidia_sharing.CONFIG_LABEL, mig.CONFIG_LABEL),
    config_keys=(nvidia_sharing.OWN_KEY, _key(mig.MIG_CONFIG_FIELD)),
)  # fmt: skip
_BY_KAI = _names(
    _PLUGIN_RESOURCES,
    (kai.FRAMEBUFFER_ANNOTATION, kai.FRACTION_ANNOTATION, kai.CARDS_ANNOTATION, kai.CONTAINER_ANNOTATION),
    patterns=(kai.SHARE_OF_CONTAINER.pattern,),
)
_BY_CLAIMS = _names(_PLUGIN_RESOURCES, fields=("claims",))

BACKEND_NAMES: Mapping[str, BackendNames] = {
    "whole_cards": _BY_PLUGIN,
    "hami": _of_hami(HAMI_DIALECT.plugin[2]),
    "effectivegpu": _of_hami(EFFECTIVE_GPU_DIALECT.plugin[2]),
    "volcano": _names(
        _resources(_VOLCANO), (_VOLCANO.use_model, volcano.QUEUE_ANNOTATION), env=(PRIORITY_ENV, CORE_POLICY_ENV),
        config_keys=(_key(NODE_CONFIG_FIELD), _key(SCHEDULER_CONFIG_FIELD)),
        fields=("schedulerName",), plugins=(volcano.PLUGIN[2],),
    ),
    "mgpu": _names(tuple(map(re.escape, mgpu.RESOURCES)), (mgpu.POLICY_ANNOTATION, mgpu.QOS_ANNOTATION)),
    "vgpu_manager": _names(
        _resources(_VGPU), (_VGPU.use_model, _VGPU.node_policy, _VGPU.card_policy, vgpumanager.POLICY_ANNOTATION),
        config_keys=(_key(vgpumanager.NODE_CONFIG_FIELD),), fields=("schedulerName",), plugins=(vgpumanager.PLUGIN[2],),
    ),
    "kai": _BY_KAI,
    "kai_nvfractions": _BY_KAI,
    "nvidia_time_slicing": _BY_PLUGIN,
    "nvidia_mps": _BY_PLUGIN,
    "mig": _BY_PLUGIN,
    "dra_mig": _BY_CLAIMS,
    "dra_shared": _BY_CLAIMS,
    "dra_consumable": _BY_CLAIMS,
}  # fmt: skip
"""By the names of `enforcer.backends.register`."""


def _annotated(*names: str, set_name: str = "") -> Keys:
    return Keys(fields={name: Free() for name in names}, set_name=set_name)


_FREE: Scope = Free()
_RESOURCES_OF = Keys(
    fields={
        "limits": Keys(set_name="resources"),
        "requests": Keys(set_name="resources"),
        "claims": Free(named="claims"),
    }
)
_CONTAINER: Scope = Keys(fields={"resources": _RESOURCES_OF}, is_container=True)
_POD: Mapping[str, Scope] = {
    "containers": Items(each=_CONTAINER),
    "schedulerName": Free(named="schedulerName"),
    "resourceClaims": Free(named="claims"),
}
_PODS_ANNOTATIONS = Keys(set_name="template_annotations")
_TEMPLATE: Scope = Keys(fields={"metadata": Keys(fields={"annotations": _PODS_ANNOTATIONS}), "spec": Keys(fields=_POD)})
_BOUNDS = Keys(fields={"maxSurge": _FREE, "maxUnavailable": _FREE})
_MARKS = (PLAN_ANNOTATION, PREVIOUS_ANNOTATION, SEATS_ANNOTATION)
_TIDE_MARKS = (SAVE_BY_ANNOTATION, RUNS_UNTIL_ANNOTATION)


def _owner(spec: Mapping[str, Scope], *marks: str) -> Keys:
    return Keys(
        fields={"metadata": Keys(fields={"annotations": _annotated(*_MARKS, *marks)}), "spec": Keys(fields=spec)}
    )


def _ray(*, is_sized: bool) -> dict[str, Scope]:
    size: Mapping[str, Scope] = {
        "replicas": _FREE,
        "minReplicas": _FREE,
        "scaleStrategy": Keys(fields={"workersToDelete": _FREE}),
    }
    group = Keys(fields={"template": _TEMPLATE, **(size if is_sized else {})})
    head = Keys(fields={"template": _TEMPLATE})
    return {"headGroupSpec": head, "workerGroupSpecs": Items(each=group, key="groupName")}


def _training(specs: str) -> Keys:
    each = Keys(fields={"template": _TEMPLATE, "replicas": _FREE})
    return _owner({specs: Values(each=each), "runPolicy": Keys(fields={"suspend": _FREE})})


def _component() -> Keys:
    rolling = Keys(fields={"rollingUpdate": _BOUNDS})
    sizes: Mapping[str, Scope] = {"minReplicas": _FREE, "maxReplicas": _FREE, "deploymentStrategy": rolling}
    return Keys(fields={"annotations": _PODS_ANNOTATIONS, **_POD, **sizes, **dict.fromkeys(MODELS, _CONTAINER)})


_ROLLING: Mapping[str, Scope] = {
    "minReadySeconds": _FREE,
    "progressDeadlineSeconds": _FREE,
    "replicas": _FREE,
    "template": _TEMPLATE,
}

SCOPES: Mapping[str, Keys] = {
    "Pod": Keys(
        fields={
            "metadata": Keys(
                fields={
                    "annotations": _annotated(DELETION_COST_ANNOTATION, "gputide.io/unpinned"),
                    "labels": _annotated(*HASH_LABELS),
                }
            )
        }
    ),
    "Node": Keys(
        fields={
            "metadata": Keys(
                fields={"annotations": Keys(set_name="node_annotations"), "labels": Keys(set_name="node_labels")}
            ),
            "spec": Keys(fields={"unschedulable": _FREE}),
        }
    ),
    "Machine": Keys(fields={"metadata": Keys(fields={"annotations": _annotated(DELETE_MACHINE_ANNOTATION)})}),
    "MachineDeployment": Keys(fields={"spec": Keys(fields={"replicas": _FREE})}),
    "MachineSet": Keys(fields={"spec": Keys(fields={"replicas": _FREE})}),
    "ConfigMap": Keys(fields={"data": Keys(set_name="config_keys")}),
    "Deployment": _owner({**_ROLLING, "strategy": Keys(fields={"rollingUpdate": _BOUNDS})}, HELD_ANNOTATION),
    "Rollout": _owner({**_ROLLING, "strategy": Keys(fields={"canary": _BOUNDS})}, HELD_ANNOTATION),
    "StatefulSet": _owner(
        {
            "replicas": _FREE,
            "template": _TEMPLATE,
            "updateStrategy": Keys(
                fields={"rollingUpdate": Keys(fields={"partition": _FREE, "maxUnavailable": _FREE})}
            ),
        },
        HELD_ANNOTATION,
    ),
    "DaemonSet": _owner(
        {"template": _TEMPLATE, "updateStrategy": _FREE}, HELD_ANNOTATION, "deprecated.daemonset.template.generation"
    ),
    "Job": _owner({"suspend": _FREE}, *_TIDE_MARKS),
    "CronJob": _owner(
        {"suspend": _FREE, "jobTemplate": Keys(fields={"spec": Keys(fields={"template": _TEMPLATE})})}, HELD_ANNOTATION
    ),
    "LeaderWorkerSet": _owner(
        {
            "replicas": _FREE,
            "leaderWorkerTemplate": Keys(fields={"leaderTemplate": _TEMPLATE, "workerTemplate": _TEMPLATE}),
            "rolloutStrategy": Keys(
                fields={"rollingUpdateConfiguration": Keys(fields={**_BOUNDS.fields, "partition": _FREE})}
            ),
        },
        HELD_ANNOTATION,
    ),
    "InferenceService": _owner({name: _component() for name in COMPONENTS}, STOP_ANNOTATION),
    "RayCluster": _owner({**_ray(is_sized=True), "suspend": _FREE}),
    "RayService": _owner({"rayClusterConfig": Keys(fields=_ray(is_sized=False))}, HELD_ANNOTATION),
    "RayJob": _owner({"suspend": _FREE}),
    "Notebook": _owner({"template": _TEMPLATE}, STOPPED_ANNOTATION),
    "PyTorchJob": _training("pytorchReplicaSpecs"),
    "TFJob": _training("tfReplicaSpecs"),
    "XGBoostJob": _training("xgbReplicaSpecs"),
    "PaddleJob": _training("paddleReplicaSpecs"),
    "JAXJob": _training("jaxReplicaSpecs"),
    "MPIJob": _training("mpiReplicaSpecs"),
    "TrainJob": _owner({"suspend": _FREE}),
    "HorizontalPodAutoscaler": _owner({"minReplicas": _FREE}),
    "ScaledObject": _owner({"minReplicaCount": _FREE}),
    "Workload": _owner({"active": _FREE}, *_TIDE_MARKS),
    "ClusterQueue": _owner({"stopPolicy": _FREE}, *_TIDE_MARKS),
}
"""What the writer changes, by the kinds of `enforcer.kubernetes.kinds`; a kind that is not here it does not change."""

AGENT_SCOPES: Mapping[str, Keys] = {
    "Pod": Keys(fields={"metadata": Keys(fields={"annotations": _annotated(DEVICES_ALLOCATED_ANNOTATION)})}),
    "Node": Keys(
        fields={
            "metadata": Keys(
                fields={
                    "annotations": _annotated(
                        DEVICE_CORDON_ANNOTATION, CLOSED_CARDS_ANNOTATION, NODE_HANDSHAKE_ANNOTATION
                    )
                }
            )
        }
    ),
}
"""What a node's agent changes."""


def is_in_scope(kind: str, path: str, names: BackendNames) -> bool:
    """Whether the policy of a backend lets a field be written, whatever value it gets.

    Args:
        path: as `enforcer.manifest` has it; words of a command count as in scope.
    """
    here: Scope | None = SCOPES.get(kind)
    for part in path_parts(path):
        if isinstance(here, Keys):
            if here.is_container and part in ("args", "command"):
                return True
            if here.is_container and part == "env":
                return _matches(names, "env", path_parts(path)[-1])
            found = here.fields.get(part)
            here = _FREE if found is None and _matches(names, here.set_name, part) else found
        elif isinstance(here, Items | Values):
            here = here.each
        if here is None:
            return False
        if isinstance(here, Free):
            return not here.named or here.named in names.fields
    # A whole map, as undo gives one back that was there before.
    return not isinstance(here, Keys) or _is_all_free(here)


def _is_all_free(here: Scope) -> bool:
    return isinstance(here, Keys) and not here.set_name and all(isinstance(one, Free) for one in here.fields.values())


def _matches(names: BackendNames, set_name: str, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in names.sets.get(set_name, ()))
