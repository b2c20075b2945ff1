"""What the API takes and answers: good values, and each wrong one with what was expected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from dashboards.access.sign_in import Ways
from tests.dashboards.access.keys import HOST, an_app
from tests.dashboards.embedded import CLUSTER, EmbeddedCluster, make_views, tide_only

LIST = f"/api/v1/clusters/{CLUSTER}"


@pytest.fixture
def asked() -> tuple[FlaskClient, EmbeddedCluster, dict[str, str]]:
    """Return the app, its cluster, and the headers of a page of its operator."""
    views, cluster = make_views(with_past=False)
    client = an_app(views, Ways(operator="mei"))
    token = client.get("/api/v1/me", headers=HOST).get_json()["page_token"]
    return client, cluster, {**HOST, "X-Gputide-Token": token}


def test_program_approves_applies_watches_and_takes_back(
    asked: tuple[FlaskClient, EmbeddedCluster, dict[str, str]],
) -> None:
    client, cluster, headers = asked
    (first,) = client.get(f"{LIST}/plans", headers=HOST).get_json()["plans"]
    plan = f"/api/v1/plans/{first['plan_id']}"
    assert (
        client.post(f"{plan}/apply", json={"stages": [1]}, headers=headers)
        .get_json()["error"]
        .endswith("nobody approved them; `gputide plan approve`")
    )
    status = client.post(f"{plan}/approve", json={"stages": [2, 1]}, headers=headers).get_json()["status"]
    assert (status["approved_stages"], status["approved_by"]) == ([1, 2], ["mei"])
    started = client.post(f"{plan}/apply", json={"stages": [1]}, headers=headers)
    assert (started.status_code, started.get_json()["is_running"]) == (202, True)
    assert _after_a_while(client, plan)["phase"] == "done"
    assert cluster.changed
    assert client.get(f"{plan}/undo", headers=HOST).get_json()["restores"]
    assert client.post(f"{plan}/undo", json={}, headers=headers).status_code == 202
    assert (_after_a_while(client, plan)["phase"], cluster.changed) == ("restored", set())


def test_apply_of_a_tide_says_who_plays_it() -> None:
    views, cluster = make_views(with_past=False)
    (entry,) = cluster.plans(CLUSTER)
    tide = tide_only(entry, 1)
    own = EmbeddedCluster(views.fleet.profiles(CLUSTER), (tide.plan,))
    own.approve(tide.plan.plan_id, (1,), "mei")
    client = an_app(replace(views, plans=own, rollouts=own), Ways(operator="mei"))
    token = client.get("/api/v1/me", headers=HOST).get_json()["page_token"]
    path = f"/api/v1/plans/{tide.plan.plan_id}/apply"
    answer = client.post(path, json={"stages": [1]}, headers={**HOST, "X-Gputide-Token": token}).get_json()
    assert "`gputide run tide` plays it" in answer["message"]
    assert not answer["is_running"]


def test_one_workload_is_its_part_of_the_profiles(asked: tuple[FlaskClient, EmbeddedCluster, dict[str, str]]) -> None:
    client, _, _ = asked
    profiles = client.get(f"{LIST}/profiles", headers=HOST).get_json()["workloads"]
    first = next(one for one in profiles if one["workload"].replace("/", "").replace("-", "").isalnum())
    answer = client.get(f"{LIST}/workloads/{first['workload']}", headers=HOST)
    assert (answer.status_code, answer.get_json()) == (200, first)
    assert client.get(f"{LIST}/workloads/team-3/Deployment/none", headers=HOST).status_code == 404


def _after_a_while(client: FlaskClient, plan: str) -> Any:
    answers = [client.get(f"{plan}/progress", headers=HOST).get_json() for _ in range(9)]
    return answers[-1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "expected"),
        ({"stages": []}, "1 to 1000 different numbers"),
        ({"stages": [1, 1]}, "different"),
        ({"stages": ["1"]}, "whole number"),
        ({"stages": [True]}, "whole number"),
        ({"stages": [1.5]}, "whole number"),
        ({"stages": [None]}, "whole number"),
        ({"stages": {"1": 2}}, "whole number"),
        ({"stages": [0]}, "between 1 and 10000"),
        ({"stages": [10**400]}, "between 1 and 10000"),
        ({"stages": [1], "by": "ada"}, "expected"),
        ([1], "expected"),
        ({"stages": list(range(1, 20_000))}, "at most 65536"),
    ],
)
def test_wrong_body_names_what_was_expected(
    asked: tuple[FlaskClient, EmbeddedCluster, dict[str, str]], body: Any, words: str
) -> None:
    client, cluster, headers = asked
    plan_id = cluster.plans(CLUSTER)[0].plan.plan_id
    answer = client.post(f"/api/v1/plans/{plan_id}/approve", json=body, headers=headers)
    assert answer.status_code == 400
    assert words in answer.get_json()["error"]
    assert cluster.plans(CLUSTER)[0].approved_stages == ()


def test_stage_that_is_written_as_2_0_is_the_second(asked: tuple[FlaskClient, EmbeddedCluster, dict[str, str]]) -> None:
    client, cluster, headers = asked
    plan_id = cluster.plans(CLUSTER)[0].plan.plan_id
    body = {"data": '{"stages": [2.0]}', "content_type": "application/json"}
    assert client.post(f"/api/v1/plans/{plan_id}/approve", headers=headers, **body).status_code == 200
    assert cluster.plans(CLUSTER)[0].approved_stages == (2,)


def test_body_that_nests_without_end_is_refused(asked: tuple[FlaskClient, EmbeddedCluster, dict[str, str]]) -> None:
    client, cluster, headers = asked
    plan_id = cluster.plans(CLUSTER)[0].plan.plan_id
    for data in ("[" * 60_000, '{"stages": ' + "[" * 900 + "]" * 900 + "}", "{", "\xff", ""):
        answer = client.post(
            f"/api/v1/plans/{plan_id}/approve", data=data, content_type="application/json", headers=headers
        )
        assert answer.status_code == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{LIST}/plans?limit=0", 400),
        (f"{LIST}/plans?limit=1&limit=2", 400),
        (f"{LIST}/plans?limit=%D9%A1", 400),
        (f"{LIST}/plans?offset=1", 400),
        (f"{LIST}/workloads/a/b/c/history", 404),
        (f"{LIST}/workloads/a/b/c/history?hours=99999999999", 400),
        ("/api/v1/clusters/mars/profiles", 404),
        (f"/api/v1/clusters/{'m' * 300}/profiles", 404),
        ("/api/v1/plans/zz/progress", 404),
        ("/api/v1/plans/abc/preview?stages=1,,2", 400),
        ("/api/v1/plans/abc/preview?stages=1", 404),
    ],
)
def test_wrong_address_names_what_was_expected(
    asked: tuple[FlaskClient, EmbeddedCluster, dict[str, str]], path: str, status: int
) -> None:
    client, _, _ = asked
    answer = client.get(path, headers=HOST)
    assert answer.status_code == status
    assert answer.get_json()["error"]
