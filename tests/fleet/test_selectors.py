"""Label selectors select what Kubernetes' own would."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.selectors import selects_labels

LABELS = {"app": "web", "tier": "gpu"}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        ({}, True),
        ({"matchLabels": None, "matchExpressions": None}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "web", "tier": "cpu"}}, False),
        ({"matchLabels": {"none": ""}}, False),
        (expression("app", "In", "web", "db"), True),
        (expression("app", "In", "db"), False),
        (expression("none", "In", "web"), False),
        (expression("app", "NotIn", "web"), False),
        (expression("none", "NotIn", "web"), True),
        (expression("app", "Exists"), True),
        (expression("none", "Exists"), False),
        (expression("none", "DoesNotExist"), True),
        (expression("app", "DoesNotExist"), False),
        (expression("app", "Like", "web"), False),
        ({"matchLabels": {"app": "web"}, **expression("tier", "In", "cpu")}, False),
        # Malformed: nothing is selected.
        ({"matchLabels": "app"}, False),
        ({"matchExpressions": ["app"]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": "web"}]}, False),
    ],
)
def test_labels_and_expressions_must_all_hold(selector: dict[str, Any], is_selected: bool) -> None:
    assert selects_labels(selector, LABELS) is is_selected
