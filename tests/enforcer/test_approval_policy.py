"""An admission policy holds approvals to who makes them only if nothing in it lets one through."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from enforcer.kubernetes.approval_policy import UNSERVED, guarded_since
from fleet.units import format_time
from tests.enforcer.builders import NOW
from wire.kubernetes.refusals import Deed

SHIPPED = Path(__file__).resolve().parents[2] / "docs" / "custom-resources.yaml"
LATER = NOW + timedelta(hours=1)


class Server:
    """The shipped policy, made now, and its binding, made an hour later; for tests to change."""

    def __init__(self) -> None:
        found = {one["kind"]: one for one in yaml.safe_load_all(SHIPPED.read_text(encoding="utf-8"))}
        self.policy: Any = found["ValidatingAdmissionPolicy"]
        self.binding: Any = found["ValidatingAdmissionPolicyBinding"]
        self.policy["metadata"]["creationTimestamp"] = format_time(NOW)
        self.binding["metadata"]["creationTimestamp"] = format_time(LATER)

    def get(self, deed: Deed, path: str) -> dict[str, Any]:
        assert deed.verb == "list"
        return {"items": [self.binding if path.endswith("bindings") else self.policy]}


def test_shipped_policy_holds_approvals_from_when_it_and_its_binding_stood() -> None:
    assert guarded_since(Server().get) == LATER


def test_cluster_that_knows_no_such_policies_has_people_to_trust() -> None:
    assert guarded_since(lambda deed, path: None) == UNSERVED


SPOILT: tuple[Callable[[Server], object], ...] = (
    lambda server: server.policy["spec"].update(failurePolicy="Ignore"),
    lambda server: server.policy["spec"].update(matchConditions=[{"name": "never", "expression": "false"}]),
    lambda server: server.policy["spec"]["validations"][0].update(expression="true"),
    lambda server: server.policy["spec"]["matchConstraints"]["resourceRules"][0].update(operations=["UPDATE"]),
    lambda server: server.policy["spec"]["matchConstraints"].update(resourceRules=[]),
    lambda server: server.policy["spec"]["matchConstraints"].update(
        excludeResourceRules=[{"operations": ["CREATE"], "resources": ["gpuapprovals"]}]
    ),
    lambda server: server.policy["spec"]["matchConstraints"].update(objectSelector={"matchLabels": {"a": "b"}}),
    lambda server: server.policy["spec"]["matchConstraints"]["resourceRules"][0].update(resourceNames=["one"]),
    lambda server: server.binding["spec"].update(validationActions=["Audit"]),
    lambda server: server.binding["spec"].update(policyName="another"),
    lambda server: server.binding["spec"].update(matchResources={"objectSelector": {"matchLabels": {"a": "b"}}}),
)


@pytest.mark.parametrize("spoil", SPOILT)
def test_policy_that_lets_some_approvals_through_holds_none(spoil: Callable[[Server], object]) -> None:
    server = Server()
    spoil(server)
    assert guarded_since(server.get) is None
