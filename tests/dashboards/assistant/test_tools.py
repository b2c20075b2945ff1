"""What a client is answered over HTTP by each tool: the same as the API, in units, with its time, cut and marked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from dashboards.access.sign_in import Ways
from dashboards.app import create_app
from dashboards.assistant.answers import INSTRUCTIONS, REQUEST_BYTES_MAX, TOOLS
from dashboards.queries import Views
from fleet.gpu_policy import gpu_policy
from fleet.profiles import CardState
from tests.dashboards.access.keys import HOST, a_right, a_roster, bearer, some_sessions, text_of
from tests.dashboards.assistant.client import asked, listed, listening
from tests.dashboards.assistant.test_harmless import texts
from tests.dashboards.embedded import CLUSTER, EmbeddedCluster, make_views

pytestmark = pytest.mark.long

TEAM = "team-3"
API = f"/api/v1/clusters/{CLUSTER}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Views, EmbeddedCluster, Any]]:
    """Return where the app listens, its ports, the cluster behind them, and a client of its API."""
    views, cluster = make_views()
    roster = a_roster(
        tmp_path_factory.mktemp("rights"),
        a_right("viewer", token="reader"),
        a_right("viewer", token="team", more=[f'namespaces = ["{TEAM}"]']),
        a_right("admin", token="boss"),
        a_right("viewer", token="elsewhere", more=['clusters = ["mars"]']),
    )
    ways = Ways(roster=roster, sessions=some_sessions())
    client = create_app(views, ways=ways).server.test_client()
    with listening(views, ways) as address:
        yield address, views, cluster, client


def found(world: Any, tool: str, token: str = "reader", **arguments: Any) -> dict[str, Any]:
    """The content of a good answer."""
    (answer,) = asked(world[0], (tool, arguments), token=token)
    assert not answer.is_error, answer.structured_content
    content: dict[str, Any] = answer.structured_content
    assert json.loads(answer.content[0].text) == content  # type: ignore[union-attr]
    return content


def api(world: Any, path: str, token: str = "reader") -> Any:
    return world[3].get(path, headers=bearer(token)).get_json()


def test_fleet_counts_what_the_profiles_of_the_api_hold(world: Any) -> None:
    data = found(world, "fleet")["data"]
    cards = api(world, f"{API}/profiles")["cards"]
    assert data["cards"] == len(cards)
    assert {row["state"]: row["cards"] for row in data["cards_by_state"]} == {
        state: sum(card["state"] == state for card in cards) for state in CardState
    }
    assert data["unpriced_cards"] == sum("T4" in card["card_model"] for card in cards)


def test_workloads_that_waste_most_come_first_and_the_rest_is_counted(world: Any) -> None:
    answer = found(world, "workloads", state="idle_held", limit=5)
    every = [one for one in api(world, f"{API}/profiles")["workloads"] if one["state"] == "idle_held"]
    waste = [len(one["cards"]) * (1 - one["compute"]["p95"]) for one in every if one["compute"]["p95"] is not None]
    assert [row["unused_cards"] for row in answer["data"]["workloads"]] == pytest.approx(
        sorted(waste, reverse=True)[:5], abs=1e-3
    )
    assert answer["data"]["matching"] == len(every)
    assert answer["left_out"]["workloads"] == len(every) - 5


def test_one_workload_is_what_the_api_says_of_it(world: Any) -> None:
    name = found(world, "workloads", limit=1)["data"]["workloads"][0]["workload"]
    data = found(world, "workload", workload=name)["data"]
    same = next(one for one in api(world, f"{API}/profiles")["workloads"] if one["workload"] == name)
    for key in ("state", "reason", "compute", "framebuffer", "coverage_ratio", "confidence", "idle_since"):
        assert data[key] == same[key]


def test_plan_and_its_reasons_are_those_of_the_api(world: Any) -> None:
    data = found(world, "plan", kind="reclaim", limit=3)["data"]
    whole = api(world, f"/api/v1/plans/{data['plan_id']}")
    assert data["totals"] == whole["plan"]["totals"]
    assert data["status"] == whole["status"]
    counted = {row["kind"]: row["recommendations"] for row in data["recommendations_by_kind"]}
    assert sum(counted.values()) == len(whole["plan"]["recommendations"])
    first = data["recommendations"][0]
    (explained,) = found(world, "why", recommendation=first["id"])["data"]["explained"]
    same = next(item for item in whole["plan"]["recommendations"] if item["id"] == first["id"])
    assert explained["reason"] == same["reason"]
    assert explained["evidence"]["samples"] == same["evidence"]["samples"]
    refused = whole["plan"]["refused"][0]
    why = found(world, "why", workload=refused["workload"])["data"]
    assert refused["detail"] in [one["detail"] for one in why["refused"]]


def test_money_harm_and_log_are_those_of_the_api(world: Any) -> None:
    week = api(world, f"{API}/card-hours")
    data = found(world, "card_hours", limit=50)["data"]
    by_name = {row["namespace"]: row["idle_held"]["card_hours"] for row in data["namespaces"]}
    assert by_name == {name: measures["idle_held"]["card_hours"] for name, measures in week["tenants"].items()}
    assert found(world, "ledger", limit=2)["data"]["entries"] == api(world, f"{API}/ledger")["entries"][:2]
    harm = found(world, "harm")["data"]
    outcomes = api(world, f"{API}/outcomes")["outcomes"]
    assert [one["verdict"] for one in harm["outcomes"]] == [one["verdict"] for one in outcomes]
    assert found(world, "health")["data"]["lag"] == api(world, f"{API}/lag")
    budgets = found(world, "budgets", limit=50)["data"]["budgets"]
    assert budgets == api(world, f"{API}/budgets")["budgets"]


def test_every_answer_has_units_time_coverage_and_marks_what_it_quotes(world: Any) -> None:
    name = found(world, "workloads", limit=1)["data"]["workloads"][0]["workload"]
    arguments = {
        "workload": {"workload": name}, "why": {"workload": name},
        "draft_policy": {"namespace": TEAM, "name": "quiet", "opt_out": True},
    }  # fmt: skip
    for tool in TOOLS:
        answer = found(world, tool.name, **arguments.get(tool.name, {}))
        assert answer["data_of"]["coverage_ratio"] == 0.994
        assert answer["data_of"]["age_seconds"] == 40.0
        keys = {name.rpartition(".")[2] for name in answer["units"]}
        assert numbers(answer["data"]) <= keys
        profiles = world[1].fleet.profiles(CLUSTER)
        names = {name for one in profiles.workloads for name in (one.workload, one.namespace, *one.pods)}
        names |= {card.node for card in profiles.cards}
        for path, _, text in texts({"data": answer["data"]}):
            assert path in answer["written_by_tenants"] or text not in names


def numbers(value: Any, key: str = "") -> set[str]:
    """Keys that hold a number."""
    if isinstance(value, dict):
        return {one for name, part in value.items() for one in numbers(part, name)}
    if isinstance(value, list):
        return {one for part in value for one in numbers(part, key)}
    return {key} if isinstance(value, int | float) and not isinstance(value, bool) else set()


def test_who_sees_one_namespace_is_shown_it_and_no_name_of_another(world: Any) -> None:
    others = {
        one.workload for one in world[1].fleet.profiles(CLUSTER).workloads if one.namespace != TEAM
    }  # fmt: skip
    for tool in ("fleet", "workloads", "plan", "card_hours", "budgets", "health", "draft_proposal"):
        shown = json.dumps(found(world, tool, token="team", **({"limit": 50} if tool == "workloads" else {})))
        assert not [name for name in others if name in shown]
    data = found(world, "workloads", token="team", limit=50)["data"]
    same = api(world, f"{API}/profiles", token="team")["workloads"]
    assert {row["workload"] for row in data["workloads"]} <= {one["workload"] for one in same}
    assert data["matching"] == len(same)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("ledger", {}, "what the API says"),
        ("harm", {}, "it counts the cluster as a whole, and you may see some namespaces of it"),
        ("workload", {"workload": "team-4/Deployment/x"}, "expected namespace/Kind/name"),
    ],
)
def test_what_the_api_refuses_to_a_team_is_refused_here(world: Any, tool: str, arguments: Any, words: str) -> None:
    (answer,) = asked(world[0], (tool, arguments), token="team")
    assert answer.is_error
    if tool == "ledger":
        words = api(world, f"{API}/ledger", token="team")["error"]
    assert words in answer.structured_content["error"]
    assert answer.structured_content["written_by_tenants"] == ["error"]


def test_cluster_that_one_may_not_see_is_no_data(world: Any) -> None:
    answer = found(world, "fleet", token="elsewhere")
    assert answer["data"] is None
    assert "you may see none" in answer["no_data"]
    named = found(world, "fleet", token="elsewhere", cluster=CLUSTER)
    assert "or you may not see it" in named["no_data"]


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("workloads", {"limit": 51}, "cannot use limit=51 of workloads: expected a whole number between 1 and 50"),
        ("workloads", {"limit": "5"}, "cannot use limit='5'"),
        ("workloads", {"state": "asleep"}, "expected one of idle, idle_held"),
        ("workloads", {"sort": "up"}, "unknown"),
        ("workload", {}, "cannot call workload without workload: expected a text of 1 to 700 characters"),
        ("plan", {"plan_id": "../x"}, "cannot use plan_id='../x'"),
        ("why", {}, "expected one of recommendation and workload"),
        ("why", {"recommendation": "none-0001"}, "holds"),
        ("draft_policy", {"namespace": "a\nb", "name": "x", "opt_out": True}, r"cannot use namespace='a\nb'"),
        ("draft_policy", {"namespace": "a", "name": "x"}, "asks for nothing"),
        ("draft_proposal", {"stages": [99]}, "cannot propose stage 99"),
        ("apply", {}, "cannot call 'apply': expected one of fleet"),
    ],
)
def test_wrong_arguments_name_value_and_what_is_expected(world: Any, tool: str, arguments: Any, words: str) -> None:
    (answer,) = asked(world[0], (tool, arguments), token="reader")
    assert answer.is_error
    said = answer.structured_content["error"]
    assert ("expected cluster" in said) if words == "unknown" else (words in said)


def test_drafts_are_text_that_the_product_reads(world: Any) -> None:
    data = found(
        world, "draft_policy", namespace=TEAM, name="warm", match_labels={"app": "chat"}, min_replicas_warm=2,
        isolation="hard",
    )["data"]  # fmt: skip
    policy = gpu_policy(yaml.safe_load(data["manifest"]))
    assert (policy.namespace, policy.selector) == (TEAM, {"matchLabels": {"app": "chat"}})
    assert dict(policy.wishes) == {"gputide.io/min-replicas-warm": "2", "gputide.io/isolation": "hard"}
    proposal = found(world, "draft_proposal", stages=[1])["data"]
    assert "## Stage 1" in proposal["proposal"]
    assert "## Stage 2" not in proposal["proposal"]
    assert "gputide plan approve --plan" in proposal["proposal"]
    assert (data["is_stored"], proposal["is_stored"]) == (False, False)


def test_nothing_that_is_offered_changes_anything_and_no_text_of_a_tenant_stands_in_it(world: Any) -> None:
    address, views, cluster, _ = world
    tools, instructions = listed(address, "boss")
    assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools.tools)
    assert {tool.name for tool in tools.tools} == {tool.name for tool in TOOLS}
    assert instructions == INSTRUCTIONS
    said = tools.model_dump_json() + instructions
    profiles = views.fleet.profiles(CLUSTER)
    assert not [one.workload for one in profiles.workloads if one.workload in said or one.namespace in said]
    before = (cluster.plans(CLUSTER), cluster.ledger(CLUSTER), cluster.frozen_by(CLUSTER), set(cluster.changed))
    asked(address, *((tool.name, {}) for tool in TOOLS), token="boss")
    assert (cluster.plans(CLUSTER), cluster.ledger(CLUSTER), cluster.frozen_by(CLUSTER), cluster.changed) == before


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_clients_of_both_eras_of_the_protocol_are_answered(world: Any, mode: str) -> None:
    first, second = asked(world[0], ("health", {}), ("health", {}), token="reader", mode=mode)
    assert first.structured_content == second.structured_content


def test_nobody_is_answered_without_a_name_or_from_elsewhere(world: Any) -> None:
    address = world[0]
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    known = {"Authorization": f"Bearer {text_of('reader')}", "Accept": "application/json, text/event-stream"}
    assert httpx2.post(address, json=call).status_code == 401
    assert httpx2.post(address, json=call, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert httpx2.post(address, json=call, headers=known).status_code == 200
    assert httpx2.post(address, json=call, headers={**known, "Origin": "https://evil.example"}).status_code == 403
    assert httpx2.post(address, json=call, headers={**known, "Host": "evil.example"}).status_code == 403
    stream = httpx2.get(address, headers=known)
    assert (stream.status_code, stream.headers["Allow"]) == (405, "POST")
    large = httpx2.post(address, json={**call, "params": {"x": "x" * REQUEST_BYTES_MAX}}, headers=known)
    assert (large.status_code, str(REQUEST_BYTES_MAX) in large.text) == (413, True)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"jsonrpc": "2.0"}', b"[" * 9_000])
def test_what_is_no_call_is_refused_in_a_few_words(world: Any, body: bytes) -> None:
    headers = {
        "Authorization": f"Bearer {text_of('reader')}", "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }  # fmt: skip
    answer = httpx2.post(world[0], content=body, headers=headers)
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 4_000


def test_without_the_sdk_the_path_says_what_brings_it(tmp_path: Path) -> None:
    views, _ = make_views()
    client = create_app(views, ways=Ways(operator="mei")).server.test_client()
    answer = client.post("/mcp", json={}, headers=HOST)
    assert (answer.status_code, "pip install 'gputide[assistant]'" in answer.text) == (404, True)
