"""Every route × role × reach: nobody reads or changes what they may not, by pages or by the API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from dashboards.access.sign_in import Ways
from dashboards.api.operations import OPERATIONS
from dashboards.queries import Views
from tests.dashboards.access.keys import HOST, a_right, a_roster, an_app, bearer, some_sessions, text_of
from tests.dashboards.embedded import CLUSTER, EmbeddedCluster, make_views

ROLES = ("viewer", "approver", "operator", "admin")
REACHES = {
    "everything": [],
    "cluster": [f'clusters = ["{CLUSTER}"]'],
    "team": ['namespaces = ["team-3"]'],
    "stranger": ['namespaces = ["nobody"]'],
    "elsewhere": ['clusters = ["mars"]'],
}
WHOLE = ("everything", "cluster")
PEOPLE = [(role, reach) for role in ROLES for reach in REACHES]
PATHS = ("/", "/workloads", "/plan", "/savings", "/cost", "/tenants", "/health")


@dataclass
class World:
    """An app that knows one holder of a token per role and reach."""

    views: Views
    cluster: EmbeddedCluster
    client: FlaskClient

    @property
    def plan_id(self) -> str:
        return self.cluster.plans(CLUSTER)[0].plan.plan_id


@cache
def shared_views() -> tuple[Views, EmbeddedCluster]:
    return make_views()


@cache
def names_of_others() -> frozenset[str]:
    """Names of workloads and pods that are not team-3's."""
    views, _ = shared_views()
    others = [entry for entry in views.fleet.profiles(CLUSTER).workloads if entry.namespace != "team-3"]
    return frozenset(entry.workload.split("/", 2)[2] for entry in others) | {pod for e in others for pod in e.pods}


def a_world(folder: Path, *, fresh: bool) -> World:
    views, cluster = make_views(with_past=False) if fresh else shared_views()
    rights = [a_right(role, token=f"{role}-{reach}", more=more) for role in ROLES for reach, more in REACHES.items()]
    client = an_app(views, Ways(roster=a_roster(folder, *rights), sessions=some_sessions()))
    return World(views=views, cluster=cluster, client=client)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return a_world(tmp_path_factory.mktemp("rights"), fresh=False)


def api_paths(world: World, method: str) -> Iterator[str]:
    theirs = [entry for entry in world.views.fleet.profiles(CLUSTER).workloads if entry.namespace == "team-5"]
    profile = next(entry for entry in theirs if re.fullmatch(r"[\w./-]+", entry.workload))
    namespace, kind, name = profile.workload.split("/", 2)
    values = {"cluster": CLUSTER, "plan_id": world.plan_id, "namespace": namespace, "kind": kind, "name": name}
    for operation in OPERATIONS:
        if operation.method == method:
            yield "/api/v1" + operation.path.format(**values)


def page(client: FlaskClient, path: str, headers: dict[str, str], search: str = "") -> Any:
    body = {
        "output": "..top.children...page.children...page-key.data...again.max_intervals..",
        "outputs": [
            {"id": "top", "property": "children"},
            {"id": "page", "property": "children"},
            {"id": "page-key", "property": "data"},
            {"id": "again", "property": "max_intervals"},
        ],
        "inputs": [
            {"id": "address", "property": "pathname", "value": path},
            {"id": "address", "property": "search", "value": search},
            {"id": "again", "property": "n_intervals", "value": 0},
        ],
        "state": [{"id": "page-key", "property": "data", "value": None}],
        "changedPropIds": ["address.pathname"],
    }
    return client.post("/_dash-update-component", json=body, headers=headers)


def test_nobody_is_answered_without_a_name(world: World) -> None:
    rules = list(world.client.application.url_map.iter_rules())
    assert len(rules) > 20
    for rule in rules:
        path = re.sub(r"<[^>]+>", "x", rule.rule)
        for method in (rule.methods or set()) - {"OPTIONS"}:
            answer = world.client.open(path, method=method, headers=HOST, json=None if method == "GET" else {})
            is_open = path.startswith(("/_dash-component-suites/", "/assets/", "/_favicon.ico", "/sign-in"))
            if is_open:
                assert CLUSTER.encode() not in answer.data
            else:
                assert answer.status_code in (302, 401), (method, path, answer.status_code)
                assert CLUSTER.encode() not in answer.data
            assert "X-Frame-Options" in answer.headers


@pytest.mark.parametrize("token", ["", "viewer", "viewer-everything", "x" * 5000, "\u00e9" * 3])
def test_wrong_token_is_no_name(world: World, token: str) -> None:
    headers = {**HOST, "Authorization": f"Bearer {token}".encode("utf-8", "ignore").decode("latin-1")}
    assert world.client.get("/api/v1/clusters", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("role", "reach"), [(role, reach) for role, reach in PEOPLE if reach not in WHOLE or role == "viewer"]
)
def test_reader_sees_their_own_and_nothing_beside(world: World, role: str, reach: str) -> None:
    headers = bearer(f"{role}-{reach}")
    answers = [world.client.get(path, headers=headers) for path in api_paths(world, "GET")]
    pages = [page(world.client, path, headers) for path in PATHS]
    pages.append(
        page(world.client, "/workloads", headers, "?w=" + world.views.fleet.profiles(CLUSTER).workloads[0].workload)
    )
    text = "".join(answer.get_data(as_text=True) for answer in (*answers, *pages))
    words = set(re.findall(r"[\w.-]+", text))
    assert ("hami-monitor" in text) is (reach in WHOLE)
    if reach in WHOLE:
        assert all(answer.status_code == 200 for answer in answers)
        assert words & names_of_others()
        return
    # What somebody asked for by name may stand in the answer that there is none.
    asked = {world.views.fleet.profiles(CLUSTER).workloads[0].workload.split("/", 2)[2]}
    asked |= set(re.findall(r"[\w.-]+", " ".join(api_paths(world, "GET"))))
    assert not (words & names_of_others()) - asked, "names of others"
    if reach == "elsewhere":
        # Not even that there is such a cluster or such a plan.
        assert all(answer.status_code == 404 for answer in answers[1:])
        assert answers[0].get_json() == {"clusters": []}
        assert "coverage 99" not in text
    if reach == "team":
        profiles = answers[1].get_json()
        assert profiles["workloads"]
        assert {entry["namespace"] for entry in profiles["workloads"]} == {"team-3"}


@pytest.mark.parametrize(("role", "reach"), PEOPLE)
def test_only_who_may_changes_anything(tmp_path: Path, role: str, reach: str) -> None:
    world = a_world(tmp_path, fresh=True)
    headers = bearer(f"{role}-{reach}")
    plan = f"/api/v1/plans/{world.plan_id}"

    def post(what: str, **body: Any) -> int:
        return world.client.post(f"{plan}/{what}", json=body, headers=headers).status_code

    may_approve = reach in WHOLE and role != "viewer"
    may_change = may_approve and role != "approver"
    refused = (404,) if reach == "elsewhere" else (403, 409)
    status = post("approve", stages=[1, 2])
    assert status == 200 if may_approve else status in refused
    entry = world.cluster.plans(CLUSTER)[0]
    assert entry.approved_stages == ((1, 2) if may_approve else ())
    assert entry.approved_by == ((f"{role}-{reach}",) if may_approve else ())
    world.cluster.approve(world.plan_id, (1,), "somebody")
    status = post("apply", stages=[1])
    assert status == 202 if may_change else status in refused
    for _ in range(9):
        world.cluster.progress(world.plan_id)
    assert bool(world.cluster.changed) is may_change
    if not may_change:
        world.cluster.apply(world.plan_id, (1,), "somebody")
        for _ in range(9):
            world.cluster.progress(world.plan_id)
    before = set(world.cluster.changed)
    status = post("undo")
    assert status == 202 if may_change else status in refused
    for _ in range(9):
        world.cluster.progress(world.plan_id)
    assert world.cluster.changed == (set() if may_change else before)


@pytest.mark.parametrize(("role", "reach"), PEOPLE)
def test_operator_of_all_freezes_and_admin_of_all_thaws(tmp_path: Path, role: str, reach: str) -> None:
    world = a_world(tmp_path, fresh=True)
    headers = bearer(f"{role}-{reach}")
    path = f"/api/v1/clusters/{CLUSTER}"

    def post(what: str) -> int:
        return world.client.post(f"{path}/{what}", json={}, headers=headers).status_code

    may_freeze = reach in WHOLE and role in ("operator", "admin")
    may_thaw = reach in WHOLE and role == "admin"
    refused = 404 if reach == "elsewhere" else 403
    assert post("freeze") == (200 if may_freeze else refused)
    assert bool(world.cluster.frozen_by(CLUSTER)) is may_freeze
    if may_freeze:
        assert (world.cluster.ledger(CLUSTER)[0].actor, world.cluster.ledger(CLUSTER)[0].action) == (
            f"{role}-{reach}", "frozen",
        )  # fmt: skip
    world.cluster.freeze(CLUSTER, "somebody")
    assert post("thaw") == (200 if may_thaw else refused)
    assert bool(world.cluster.frozen_by(CLUSTER)) is not may_thaw
    seen = world.client.get(f"{path}/freeze", headers=headers)
    if reach == "team":
        assert seen.get_json() == {"is_frozen": True, "by": "who may see the cluster as a whole"}


@pytest.mark.parametrize("reach", ["team", "everything"])
def test_click_on_the_freeze_needs_the_right_and_the_token_of_the_page(tmp_path: Path, reach: str) -> None:
    world = a_world(tmp_path, fresh=True)
    world.client.post("/sign-in", data={"token": text_of(f"operator-{reach}"), "next": "/"}, headers=HOST)
    token = world.client.get("/api/v1/me", headers=HOST).get_json()["page_token"]

    def click(given: str) -> str:
        names = ("freeze-state.children", "freeze-message.children", "freeze-message.className", "plan-bump.data")
        renderer = world.client.get("/_dash-dependencies", headers=HOST).get_json()
        output = next(item["output"] for item in renderer if "freeze-message" in item["output"])
        body = {
            "output": output,
            "outputs": [
                {"id": name.split(".")[0], "property": place.split(".", 1)[1].strip(".")}
                for name, place in zip(names, output.strip(".").split("..."), strict=True)
            ],
            "inputs": [
                {"id": "freeze", "property": "n_clicks", "value": 1},
                {"id": "thaw", "property": "n_clicks", "value": None},
            ],
            "state": [
                {"id": "freeze-cluster", "property": "children", "value": CLUSTER},
                {"id": "token", "property": "data", "value": given},
                {"id": "plan-bump", "property": "data", "value": 0},
            ],
            "changedPropIds": ["freeze.n_clicks"],
        }
        answer = world.client.post("/_dash-update-component", json=body, headers=HOST)
        return str(answer.get_json()["response"]["freeze-message"]["className"])

    assert click("guess") == "message failed"
    assert world.cluster.frozen_by(CLUSTER) is None
    assert click(token) == ("message" if reach == "everything" else "message failed")
    assert bool(world.cluster.frozen_by(CLUSTER)) is (reach == "everything")


@pytest.mark.parametrize("reach", ["team", "elsewhere"])
def test_button_of_a_page_changes_nothing_for_who_may_not(tmp_path: Path, reach: str) -> None:
    world = a_world(tmp_path, fresh=True)
    signed = world.client.post("/sign-in", data={"token": text_of(f"admin-{reach}"), "next": "/"}, headers=HOST)
    assert signed.status_code == 302
    token = world.client.get("/api/v1/me", headers=HOST).get_json()["page_token"]
    body = {
        "output": "..plan-message.children...plan-message.className...plan-bump.data..",
        "outputs": [
            {"id": "plan-message", "property": "children"},
            {"id": "plan-message", "property": "className"},
            {"id": "plan-bump", "property": "data"},
        ],
        "inputs": [
            {"id": name, "property": "n_clicks", "value": 1 if name == "approve" else None}
            for name in ("approve", "apply", "undo")
        ],
        "state": [
            {"id": "plan-id", "property": "data", "value": world.plan_id},
            [{"id": {"type": "stage", "stage": 1}, "property": "value", "value": [1]}],
            {"id": "token", "property": "data", "value": token},
            {"id": "plan-bump", "property": "data", "value": 0},
        ],
        "changedPropIds": ["approve.n_clicks"],
    }
    answer = world.client.post("/_dash-update-component", json=body, headers=HOST).get_json()
    assert answer["response"]["plan-message"]["className"] == "message failed"
    assert world.cluster.plans(CLUSTER)[0].approved_stages == ()


@pytest.mark.parametrize("role", ROLES)
def test_switch_can_be_kept_by_who_may_and_others_see_why_not(world: World, role: str) -> None:
    places = [("switch-slices", "value", None), *(("address", name, value) for name, value in (
        ("pathname", "/node"), ("search", f"?cluster={CLUSTER}&node=node-1")))]  # fmt: skip
    slices, path, search = ({"id": place, "property": name, "value": value} for place, name, value in places)
    button = {"id": {"type": "switch-preview", "mode": "whole"}, "property": "n_clicks", "value": 1}
    body = {
        "output": "switch-answer.children",
        "outputs": {"id": "switch-answer", "property": "children"},
        "inputs": [[button]],
        "state": [slices, [], [], path, search],
        "changedPropIds": ['{"mode":"whole","type":"switch-preview"}.n_clicks'],
    }
    answer = world.client.post("/_dash-update-component", json=body, headers=bearer(f"{role}-everything"))
    said = json.dumps(answer.get_json())
    (keep,) = re.findall(r'\{[^{}]*"id": "switch-keep"[^{}]*\}', said)
    assert json.loads(keep)["disabled"] is (role == "viewer")
    assert ("takes the role approver" in said) is (role == "viewer")


def test_session_changes_nothing_by_a_request_that_its_page_did_not_make(tmp_path: Path) -> None:
    world = a_world(tmp_path, fresh=True)
    world.client.post("/sign-in", data={"token": text_of("admin-everything")}, headers=HOST)
    path = f"/api/v1/plans/{world.plan_id}/approve"
    other = a_world(tmp_path, fresh=True)
    other.client.post("/sign-in", data={"token": text_of("admin-everything")}, headers=HOST)
    foreign = other.client.get("/api/v1/me", headers=HOST).get_json()["page_token"]
    for given in ("", "guess", foreign):
        answer = world.client.post(path, json={"stages": [1]}, headers={**HOST, "X-Gputide-Token": given})
        assert answer.status_code == 403
    own = world.client.get("/api/v1/me", headers=HOST).get_json()["page_token"]
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "http://["}, {"Sec-Fetch-Site": "cross-site"}):
        sent = world.client.post(path, json={"stages": [1]}, headers={**HOST, "X-Gputide-Token": own, **headers})
        assert sent.status_code == 403
    assert world.cluster.plans(CLUSTER)[0].approved_stages == ()
    good = world.client.post(path, json={"stages": [1]}, headers={**HOST, "X-Gputide-Token": own})
    assert good.status_code == 200
    assert json.loads(good.data)["status"]["approved_by"] == ["admin-everything"]


def test_right_that_ends_ends_the_session_s_too(tmp_path: Path) -> None:
    world = a_world(tmp_path, fresh=True)
    world.client.post("/sign-in", data={"token": text_of("viewer-everything")}, headers=HOST)
    assert world.client.get("/api/v1/clusters", headers=HOST).status_code == 200
    (tmp_path / "rights.toml").write_text("", encoding="utf-8")
    answer = world.client.get("/api/v1/clusters", headers=HOST)
    assert answer.status_code == 403
    assert "nobody gave you a right" in answer.get_json()["error"]
    (tmp_path / "rights.toml").write_text("broken", encoding="utf-8")
    assert world.client.get("/api/v1/clusters", headers=HOST).status_code == 503


def test_new_token_in_place_of_one_that_leaked_ends_the_sessions_of_the_old_one(tmp_path: Path) -> None:
    world = a_world(tmp_path, fresh=True)
    world.client.post("/sign-in", data={"token": text_of("admin-everything")}, headers=HOST)
    assert world.client.get("/api/v1/clusters", headers=HOST).status_code == 200
    fresh = a_right("admin", token="fresh").replace('token = "fresh"', 'token = "admin-everything"')
    (tmp_path / "rights.toml").write_text(fresh, encoding="utf-8")
    assert world.client.get("/api/v1/clusters", headers=HOST).status_code == 403
    assert world.client.get("/api/v1/clusters", headers=bearer("fresh")).status_code == 200


def test_wrong_token_is_said_on_the_form_and_a_foreign_way_on_is_not_taken(world: World) -> None:
    answer = world.client.post("/sign-in", data={"token": "x", "next": "//evil.example"}, headers=HOST)
    assert answer.status_code == 401
    assert "not known" in answer.get_data(as_text=True)
    for path in ("//evil.example", "https://evil.example/", "/\\evil.example", "/nowhere", "/plan\r\nX: y"):
        data = {"token": text_of("viewer-everything"), "next": path}
        assert world.client.post("/sign-in", data=data, headers=HOST).location == "/"
    world.client.post("/sign-out", headers=HOST)


def test_cookie_is_for_this_host_and_for_https_where_browsers_come_by_it(tmp_path: Path) -> None:
    views, _ = shared_views()
    ways = Ways(roster=a_roster(tmp_path, a_right("viewer", token="ci")), sessions=some_sessions(), is_secure=True)
    answer = an_app(views, ways).post("/sign-in", data={"token": text_of("ci")}, headers=HOST)
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("__Host-gputide=")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Lax"} <= set(cookie.split("; "))
    assert "max-age" in answer.headers["Strict-Transport-Security"]
    assert answer.headers["Cache-Control"] == "no-store"
