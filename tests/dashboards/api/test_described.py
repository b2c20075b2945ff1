"""The API keeps to its OpenAPI document, whatever is asked of it: schemathesis makes the requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dashboards.access.sign_in import Ways
from dashboards.api.operations import OPERATIONS
from dashboards.app import create_app
from tests.dashboards.access.keys import HOST, a_right, a_roster, an_app, bearer, some_sessions
from tests.dashboards.embedded import CLUSTER, make_views

pytestmark = pytest.mark.long

EXAMPLES = 25
"""Requests of each operation, wrong ones among them; each costs as much as drawing and checking it."""
NAMES = [operation.name for operation in OPERATIONS]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from schemathesis.openapi import from_wsgi  # noqa: PLC0415 - takes seconds to load

    views, _ = make_views()
    ways = Ways(
        roster=a_roster(tmp_path_factory.mktemp("rights"), a_right("admin", token="boss")),
        sessions=some_sessions(),
    )
    return from_wsgi("/api/v1/openapi.json", create_app(views, ways=ways).server, headers=bearer("boss"))


@pytest.mark.parametrize("name", ["me", *NAMES])
def test_operation_answers_as_described(schema: Any, name: str) -> None:
    from schemathesis import GenerationMode  # noqa: PLC0415 - as above

    operations = [found.ok() for found in schema.get_all_operations()]
    operation = next(found for found in operations if found.definition.raw["operationId"] == name)
    strategy = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))
    seen = set()

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=strategy)
    def ask(case: Any) -> None:
        # Called without a network, it unpacks nothing.
        answer = case.call(headers={**bearer("boss"), "Accept-Encoding": "identity"})
        seen.add(answer.status_code)
        case.validate_response(answer, headers=bearer("boss"))

    ask()
    assert seen


def test_document_names_every_operation_once_and_every_answer_is_json(tmp_path: Path) -> None:
    views, _ = make_views()
    client = an_app(views, Ways(operator="mei"))
    described = client.get("/api/v1/openapi.json", headers=HOST).get_json()
    found = [entry["operationId"] for path in described["paths"].values() for entry in path.values()]
    assert sorted(found) == sorted(["me", *NAMES])
    for path in ("/api/v1", "/api/v1/", "/api/v1/nothing", f"/api/v1/clusters/{CLUSTER}", "/api/v1/plans/7/approve"):
        answer = client.get(path, headers=HOST)
        assert (answer.status_code, answer.mimetype) in ((404, "application/json"), (405, "application/json"))
