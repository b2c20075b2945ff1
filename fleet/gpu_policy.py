"""What a `GpuPolicy` asks for the pods that it selects in its namespace: what labels of a workload ask for else.

A label or annotation of a workload wins for that workload. Where several policies select a pod, the most careful of
their wishes counts for each label, so their order says nothing. A tenant writes them, so each field is checked, and one
that can't be read asks for the most careful thing that it can mean: the pods are left alone. Pure. Called by the
exporter, which puts the wishes among the labels of pods, and by the enforcer, which asks before it changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.inventory import ISOLATION_LABEL, LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL, WARM_REPLICAS_LABEL
from fleet.selectors import selects_labels

POLICIES_MAX = 64
"""Most policies of one namespace that are read: where there are more, all its pods are left alone."""
WARM_REPLICAS_MAX = 1_000_000
"""Most replicas that a policy keeps warm."""

_FLAGS = {"optOut": OPT_OUT_LABEL, "latencyCritical": LATENCY_CRITICAL_LABEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPolicy:
    """One policy.

    Attributes:
        namespace: of the policy, and of the pods that it speaks of.
        selector: selector of their labels; an empty one selects all.
        wishes: label and value of each wish, sorted.
    """

    name: str
    namespace: str
    selector: Mapping[str, Any]
    wishes: tuple[tuple[str, str], ...]


def gpu_policy(manifest: Mapping[str, Any]) -> GpuPolicy:
    """Reads a policy as the API serves it.

    Raises nothing: with a field that is not of its type it wants its pods to be left alone.
    """
    metadata, spec = manifest.get("metadata"), manifest.get("spec")
    known = metadata if isinstance(metadata, Mapping) else {}
    selector = spec.get("selector", {}) if isinstance(spec, Mapping) else None
    wishes = _wishes(spec) if isinstance(spec, Mapping) else None
    if wishes is None or not isinstance(selector, Mapping):
        wishes = {OPT_OUT_LABEL: "true"}
    return GpuPolicy(
        name=str(known.get("name", "")),
        namespace=str(known.get("namespace", "")),
        selector=dict(selector) if isinstance(selector, Mapping) else {},
        wishes=tuple(sorted(wishes.items())),
    )


def policy_wishes(policies: Iterable[GpuPolicy], namespace: str, labels: Mapping[str, str]) -> dict[str, str]:
    """What policies ask for a pod, by label; to be left alone where there are more than `POLICIES_MAX`.

    Args:
        policies: of any namespace.
    """
    own = [policy for policy in policies if policy.namespace == namespace]
    if len(own) > POLICIES_MAX:
        return {OPT_OUT_LABEL: "true"}
    found: dict[str, str] = {}
    for policy in own:
        if selects_labels(policy.selector, labels):
            for label, value in policy.wishes:
                found[label] = most_careful((found.get(label, value), value))
    return found


def most_careful(values: Iterable[str]) -> str:
    """The largest number, or the hardest wall, of one label's values, of which there is one at least."""
    return max(values, key=lambda value: (int(value) if value.isdecimal() else 0, value == "hard"))


def _wishes(spec: Mapping[str, Any]) -> dict[str, str] | None:
    """Wishes by label; None where one is not of its type."""
    found: dict[str, str] = {}
    for field, label in _FLAGS.items():
        value = spec.get(field, False)
        if not isinstance(value, bool):
            return None
        found |= {label: "true"} if value else {}
    warm = spec.get("minReplicasWarm", 0)
    if not isinstance(warm, int) or isinstance(warm, bool) or not 0 <= warm <= WARM_REPLICAS_MAX:
        return None
    isolation = spec.get("isolation")
    if isolation is not None and isolation not in ("soft", "hard"):
        return None
    found |= {WARM_REPLICAS_LABEL: str(warm)} if warm else {}
    return found | ({ISOLATION_LABEL: str(isolation)} if isolation else {})
