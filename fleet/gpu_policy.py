"""What policies ask for pods, and which policy decides where several speak.

A `ClusterGpuPolicy` speaks for all pods of the cluster, a `GpuPolicy` without a selector for its namespace, one with a
selector for the workloads that it selects there. The rule, field by field (`docs/policies.md`):

1. Of policies of one level (cluster, namespace, workload) that set the field the most careful value counts, so their
   order says nothing.
2. A workload's own label or annotation wins over its namespace's policies; of these, the workload's level wins over the
   namespace's.
3. What the cluster's policies ask for is the least that holds: nothing of a namespace loosens it.

Tenants write labels and policies of their namespace, so each field is checked, and a policy that can't be read asks for
its pods to be left alone. Pure. Called by the exporter, which puts what is decided among the labels of pods; before a
plan is made, of the policies as they are then; and by the enforcer, which asks before it changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fleet.inventory import (
    BY_POLICY_LABEL,
    ISOLATION_LABEL,
    LATENCY_CRITICAL_LABEL,
    OPT_OUT_LABEL,
    WARM_REPLICAS_LABEL,
    WISH_LABELS,
    WorkloadId,
    is_yes,
)
from fleet.json_text import json_value
from fleet.selectors import selects_labels

POLICIES_MAX = 64
"""Most policies of one namespace, or of the cluster, that are read: where there are more, its pods are left alone."""
WARM_REPLICAS_MAX = 1_000_000
"""Most replicas that a policy keeps warm."""
FIELDS = {
    OPT_OUT_LABEL: "optOut",
    LATENCY_CRITICAL_LABEL: "latencyCritical",
    WARM_REPLICAS_LABEL: "minReplicasWarm",
    ISOLATION_LABEL: "isolation",
}
"""Fields of a policy by the label that asks for the same."""

_DIGITS_MAX = 9
_OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}
"""Operators of a selector, and whether each needs values."""
_CUT = ""
"""Among the decisions that are noted at a pod: its labels were too many to select it by once more."""


class Level(IntEnum):
    """How specific a policy is."""

    CLUSTER = 0
    NAMESPACE = 1
    WORKLOAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPolicy:
    """One policy.

    Attributes:
        namespace: of the policy, and of the pods that it speaks of; empty for a `ClusterGpuPolicy`.
        selector: selector of their labels; an empty one selects all.
        wishes: label and value of each field that it sets, sorted.
        fault: why it can't be read; empty where it can.
    """

    name: str
    namespace: str
    selector: Mapping[str, Any]
    wishes: tuple[tuple[str, str], ...]
    fault: str = ""

    @property
    def title(self) -> str:
        """As messages name it: `GpuPolicy team/web`."""
        return f"GpuPolicy {self.namespace}/{self.name}" if self.namespace else f"ClusterGpuPolicy {self.name}"

    @property
    def level(self) -> Level:
        """How specific it is."""
        if not self.namespace:
            return Level.CLUSTER
        return Level.WORKLOAD if any(self.selector.values()) else Level.NAMESPACE

    def speaks_of(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether it speaks of a pod."""
        return not self.namespace or (self.namespace == namespace and selects_labels(self.selector, labels))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What holds for one label of a pod.

    Attributes:
        by: the policy that decided, or that there are too many; empty where the pod's own label did.
    """

    value: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """What a policy decided for a workload that the plan knows.

    Attributes:
        field: of the policy, such as `isolation`.
        value: what holds, as a label has it.
        policy: as messages name it: `GpuPolicy team/web`.
    """

    workload: WorkloadId
    field: str
    value: str
    policy: str


def gpu_policy(manifest: Mapping[str, Any]) -> GpuPolicy:
    """Reads a policy of either kind as the API serves it.

    Raises nothing: with a field that can't be read it wants its pods to be left alone.
    """
    metadata, spec = manifest.get("metadata"), manifest.get("spec")
    known = metadata if isinstance(metadata, Mapping) else {}
    selector = spec.get("selector", {}) if isinstance(spec, Mapping) else {}
    wishes: dict[str, str] = {OPT_OUT_LABEL: "true"}
    fault = "" if isinstance(spec, Mapping) else f"spec={_shown(spec)}: expected an object"
    if isinstance(spec, Mapping):
        try:
            _check_selector(selector)
            wishes = _wishes(spec)
        except ValueError as exc:
            fault = str(exc)
    return GpuPolicy(
        name=str(known.get("name", "")),
        namespace=str(known.get("namespace", "")),
        selector=dict(selector) if isinstance(selector, Mapping) and not fault.startswith("spec.selector") else {},
        wishes=tuple(sorted(wishes.items())),
        fault=fault,
    )


def by_namespace(policies: Iterable[GpuPolicy]) -> dict[str, list[GpuPolicy]]:
    """Policies that are read, by namespace, the cluster's under the empty name: of each one more than `POLICIES_MAX`.

    That one more says that there are too many; who writes thousands makes nobody wait.
    """
    found: dict[str, list[GpuPolicy]] = {}
    for policy in policies:
        own = found.setdefault(policy.namespace, [])
        if len(own) <= POLICIES_MAX:
            own.append(policy)
    return found


def decisions(
    policies: Iterable[GpuPolicy], namespace: str, labels: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, Decision]:
    """What holds for a pod, by label, where anybody says something of it: the rule of this module.

    Args:
        policies: of the cluster and of any namespace.
        labels: labels of the pod, which selectors go by.
        own: labels and annotations that stand on the pod or its workload.
    """
    there = [policy for policy in policies if policy.namespace in ("", namespace)]
    of_cluster = [policy for policy in there if not policy.namespace]
    of_namespace = [policy for policy in there if policy.namespace]
    floor = _decided(of_cluster, "the cluster") or _careful(of_cluster)
    asked = _decided(of_namespace, f"namespace {namespace}")
    if asked is None:
        speaking = [policy for policy in of_namespace if policy.speaks_of(namespace, labels)]
        asked = {
            **_careful([policy for policy in speaking if policy.level is Level.NAMESPACE]),
            **_careful([policy for policy in speaking if policy.level is Level.WORKLOAD]),
        }
    asked |= {label: Decision(value=own[label], by="") for label in WISH_LABELS if label in own}
    for label, least in floor.items():
        said = asked.get(label)
        if said is None or carefulness(label, said.value) < carefulness(label, least.value):
            asked[label] = least
    return asked


def carefulness(label: str, value: str) -> int:
    """How careful a value of a label is: 0 asks for nothing, and the larger number asks for more."""
    if label == WARM_REPLICAS_LABEL:
        # A number that can't be read is a wish to keep replicas all the same.
        return int(value[:_DIGITS_MAX]) if value.isdecimal() and value.isascii() else 1
    return int(value == "hard" if label == ISOLATION_LABEL else is_yes(value))


def with_policies(
    labels: Mapping[str, str],
    policies: Sequence[GpuPolicy],
    namespace: str,
    selectable: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Labels of a pod with what policies decide, and in `BY_POLICY_LABEL` which of them did.

    Args:
        labels: its labels and our annotations; what policies decided before is forgotten, and a note of somebody else
            under our name counts for nothing.
        selectable: labels that selectors go by, where `labels` had to leave some out.
    """
    own, held = _without_policies(labels)
    if held is not None and selectable is None and _CUT in held:
        return dict(labels)
    found = decisions(policies, namespace, own if selectable is None else selectable, own)
    noted: dict[str, list[str]] = {
        label: [said.by, *([own[label]] if label in own else [])]
        for label, said in found.items()
        if said.by and carefulness(label, said.value)
    }
    if not noted:
        return own
    note = noted if selectable is None else {**noted, _CUT: []}
    asked = {label: found[label].value for label in noted}
    return {**own, **asked, BY_POLICY_LABEL: json.dumps(note, sort_keys=True, ensure_ascii=False)}


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels of a pod as they are without policies."""
    return _without_policies(labels)[0]


def deciders(labels: Mapping[str, str]) -> dict[str, str]:
    """The policy that decided each label of a pod, where one did, as `with_policies` noted it."""
    held = _without_policies(labels)[1] or {}
    return {label: entry[0] for label, entry in held.items() if label != _CUT}


def _without_policies(labels: Mapping[str, str]) -> tuple[dict[str, str], dict[str, list[str]] | None]:
    """Labels as they are without policies, and what is noted of these; None where nothing, or nothing of ours, is."""
    note = labels.get(BY_POLICY_LABEL)
    own = {key: value for key, value in labels.items() if key != BY_POLICY_LABEL}
    if note is None:
        return own, None
    try:
        held = json_value(note)
    except ValueError:
        return own, None
    if not isinstance(held, dict) or not all(_is_entry(label, entry) for label, entry in held.items()):
        return own, None
    for label, entry in held.items():
        if len(entry) > 1:
            own[label] = entry[1]
        else:
            own.pop(label, None)
    return own, held


def _is_entry(label: str, entry: object) -> bool:
    if not isinstance(entry, list) or not all(isinstance(text, str) for text in entry):
        return False
    return not entry if label == _CUT else label in WISH_LABELS and len(entry) in (1, 2)


def _decided(policies: Sequence[GpuPolicy], whose: str) -> dict[str, Decision] | None:
    """That pods are left alone because there are more policies than are read; None where there are not."""
    if len(policies) <= POLICIES_MAX:
        return None
    return {OPT_OUT_LABEL: Decision(value="true", by=f"more than {POLICIES_MAX} policies of {whose}")}


def _careful(policies: Iterable[GpuPolicy]) -> dict[str, Decision]:
    """The most careful of what policies of one level say, by label; of two that say the same the first by name."""
    found: dict[str, Decision] = {}
    for policy in sorted(policies, key=lambda policy: policy.name):
        for label, value in policy.wishes:
            said = found.get(label)
            if said is None or carefulness(label, said.value) < carefulness(label, value):
                found[label] = Decision(value=value, by=policy.title)
    return found


def _check_selector(selector: object) -> None:
    """Check what would select nothing, or anything, unnoticed.

    Raises:
        ValueError: naming the part.
    """
    if not isinstance(selector, Mapping):
        raise ValueError(f"spec.selector={_shown(selector)}: expected an object")
    if not isinstance(selector.get("matchLabels") or {}, Mapping):
        raise ValueError(f"spec.selector.matchLabels={_shown(selector['matchLabels'])}: expected an object")
    entries = selector.get("matchExpressions") or ()
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ValueError(f"spec.selector.matchExpressions={_shown(entries)}: expected a list")
    for entry in entries:
        operator = entry.get("operator") if isinstance(entry, Mapping) else None
        needs_values = _OPERATORS.get(operator) if isinstance(operator, str) else None
        if needs_values is None or not entry.get("key") or bool(entry.get("values")) is not needs_values:
            raise ValueError(
                f"spec.selector.matchExpressions has {_shown(entry)}: expected a key, an operator of "
                f"{', '.join(_OPERATORS)}, and values for In and NotIn alone"
            )


def _wishes(spec: Mapping[str, Any]) -> dict[str, str]:
    """What a policy says, by label.

    Raises:
        ValueError: a field is not of its type, naming it.
    """
    found: dict[str, str] = {}
    for label in (OPT_OUT_LABEL, LATENCY_CRITICAL_LABEL):
        value = spec.get(FIELDS[label])
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"spec.{FIELDS[label]}={_shown(value)}: expected true or false")
        found |= {} if value is None else {label: str(value).lower()}
    warm = spec.get("minReplicasWarm")
    if warm is not None:
        if not isinstance(warm, int) or isinstance(warm, bool) or not 0 <= warm <= WARM_REPLICAS_MAX:
            raise ValueError(f"spec.minReplicasWarm={_shown(warm)}: expected 0 to {WARM_REPLICAS_MAX}")
        found[WARM_REPLICAS_LABEL] = str(warm)
    isolation = spec.get("isolation")
    if isolation is not None:
        if isolation not in ("soft", "hard"):
            raise ValueError(f"spec.isolation={_shown(isolation)}: expected soft or hard")
        found[ISOLATION_LABEL] = isolation
    return found


def _shown(value: object) -> str:
    return repr(value)[:64]
