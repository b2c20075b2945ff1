"""Label selectors of Kubernetes: which objects does a selector select by their labels.

Disruption budgets, webhooks and affinities between pods select by labels; a pod's required node affinity uses the same
requirements, with two operators more (`Gt`, `Lt`). What is not of the right type selects nothing and raises nothing:
the exporter reads manifests as they come.

Sources: kubernetes/apimachinery:pkg/apis/meta/v1/helpers.go (LabelSelectorAsSelector),
kubernetes/apimachinery:pkg/labels/selector.go (Requirement.Matches).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def selects_labels(selector: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    """Whether a selector (`matchLabels`, `matchExpressions`) selects an object with these labels; an empty one does."""
    wanted = selector.get("matchLabels") or {}
    if not isinstance(wanted, Mapping) or any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(
        isinstance(entry, Mapping) and requirement_holds(entry, labels.get(str(entry.get("key"))))
        for entry in _listed(selector.get("matchExpressions"))
    )


def requirement_holds(requirement: Mapping[str, object], value: str | None) -> bool:
    """Whether a requirement (`operator`, `values`) holds for a label's value; an unknown operator never does.

    Args:
        requirement: one entry of `matchExpressions` or of a node selector term.
        value: value of the label that its key names; None where the object has no such label.
    """
    values = [str(found) for found in _listed(requirement.get("values"))]
    match requirement.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(str(operator), value, values)
    return False


def _listed(value: object) -> Iterator[object]:
    return iter(value if isinstance(value, Sequence) and not isinstance(value, str) else ())


def _compares(operator: str, value: str | None, values: list[str]) -> bool:
    try:
        here, limit = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return here > limit if operator == "Gt" else here < limit
