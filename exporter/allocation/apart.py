"""Whether a pod refuses to run beside its own kind: required anti-affinity whose selector matches the pod itself.

That is how replicas of one workload are kept on machines, or in zones, of their own. What a pod only prefers binds no
scheduler, and is left out. Pure; called by `pods`.

Sources: kubernetes/api:core/v1/types.go (PodAntiAffinity, PodAffinityTerm), apimachinery:pkg/apis/meta/v1/types.go
(LabelSelector).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exporter.allocation.manifest import mapping, objects, text, texts

HOSTNAME_KEY = "kubernetes.io/hostname"
_KEY_LENGTH_MAX = 317
"""A label's key: a prefix of 253, a slash and a name of 63."""


def kept_apart(spec: Mapping[str, object], namespace: str, labels: Mapping[str, str]) -> str | None:
    """The label of nodes in each of whose values at most one pod like this may run; None where it does not mind.

    Args:
        spec: the pod's.
        namespace: the pod's.
        labels: the pod's.

    Returns:
        The widest where there are several: who may not share a zone may not share a machine in it.
    """
    rules = mapping(mapping(spec.get("affinity")).get("podAntiAffinity"))
    terms = objects(rules.get("requiredDuringSchedulingIgnoredDuringExecution"))
    keys = [text(term.get("topologyKey")) for term in terms if _is_of_itself(term, namespace, labels)]
    found = [key for key in keys if 0 < len(key) <= _KEY_LENGTH_MAX]
    wide = [key for key in found if key != HOSTNAME_KEY]
    return next(iter(wide or found), None)


def _is_of_itself(term: Mapping[str, object], namespace: str, labels: Mapping[str, str]) -> bool:
    if term.get("mismatchLabelKeys"):
        return False
    selector = term.get("labelSelector")
    if not isinstance(selector, Mapping):
        # No selector matches nothing, an empty one everything.
        return False
    return _is_of_namespace(term, namespace) and _matches(selector, labels)


def _is_of_namespace(term: Mapping[str, object], namespace: str) -> bool:
    named = term.get("namespaces")
    if isinstance(named, Sequence) and not isinstance(named, str) and named:
        return namespace in named
    chosen = term.get("namespaceSelector")
    # By labels of namespaces, which are not read here, a term may mean others alone.
    return chosen is None or (isinstance(chosen, Mapping) and not chosen)


def _matches(selector: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in texts(selector.get("matchLabels")).items()):
        return False
    return all(_holds(rule, labels) for rule in objects(selector.get("matchExpressions")))


def _holds(rule: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    key, values = text(rule.get("key")), rule.get("values")
    listed = values if isinstance(values, Sequence) and not isinstance(values, str) else ()
    match rule.get("operator"):
        case "In":
            return labels.get(key) in listed
        case "NotIn":
            return labels.get(key) not in listed
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
