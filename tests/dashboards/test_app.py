"""Who is answered, and which pages come back."""

import json
import select
import socket
import threading
import tracemalloc
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask.testing import FlaskClient

from dashboards.access.sign_in import Ways
from dashboards.address import read_address
from dashboards.app import BODY_BYTES_MAX, PENDING_BYTES_MAX, create_app, open_server
from dashboards.pages.node import layout as node_layout
from dashboards.pages.plan import layout
from dashboards.pages.plan_rollout import apply_reason, stage_statuses
from dashboards.queries import RolloutPhase, RolloutProgress
from dashboards.tokens import DARK, LIGHT, STATE_COLOURS, STATE_INK
from enforcer.switch_preview import NodeStanding
from fleet.errors import Unavailable
from fleet.node_changes import NodeMode
from tests.dashboards.embedded import CLUSTER, HOSTILE, NOW, EmbeddedCluster, EmbeddedNodeModes, make_views, tide_only
from tests.recommender.builders import plan_of
from tests.recommender.test_rules import CASES, OPTIONS
from tests.waiting import until

IDLE = RolloutProgress(phase=RolloutPhase.NOT_STARTED, done=0, total=0)
HOST = {"Host": "127.0.0.1:8050"}


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    views, _ = make_views()
    made: FlaskClient = create_app(views, ways=Ways(operator="mei")).server.test_client()
    return made


def _route(client: FlaskClient, path: str, search: str = "", **headers: str) -> Any:
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
    return client.post("/_dash-update-component", json=body, headers={**HOST, **headers})


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8050", "127.0.0.1.evil.example", "127.0.0.2"])
def test_foreign_host_name_is_turned_away(client: FlaskClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost:1", "[::1]:8050"])
def test_loopback_names_are_answered(client: FlaskClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("way", [Ways(operator="mei"), Ways()], ids=["operator", "nobody"])
def test_health_is_answered_to_a_kubelet_and_tells_nothing(way: Ways) -> None:
    asked = create_app(make_views()[0], ways=way).server.test_client()
    found = asked.get("/healthz", headers={"Host": "10.1.2.3:8050"})
    assert (found.status_code, found.data) == (200, b"ok\n")
    assert "Set-Cookie" not in found.headers
    for path in ("/healthz/", "/healthz/../api/v1/clusters", "/"):
        assert asked.get(path, headers={"Host": "10.1.2.3:8050"}).status_code == 403, path


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_write_from_another_origin_is_turned_away(client: FlaskClient, headers: dict[str, str]) -> None:
    assert _route(client, "/", **headers).status_code == 403


def test_write_that_needs_no_preflight_is_turned_away(client: FlaskClient) -> None:
    answer = client.post("/_dash-update-component", data="{}", content_type="text/plain", headers=HOST)
    assert answer.status_code == 403


def test_own_page_may_write(client: FlaskClient) -> None:
    assert _route(client, "/", Origin="http://127.0.0.1:8050").status_code == 200


def test_page_by_its_public_address_may_write_where_a_proxy_changes_the_host() -> None:
    views, _ = make_views()
    app = create_app(views, ways=Ways(operator="mei"), public_url="https://gpus.example.com")
    client = app.server.test_client()
    assert _route(client, "/", Origin="https://gpus.example.com").status_code == 200
    assert _route(client, "/", Origin="https://gpus.example.com.evil").status_code == 403


def test_page_names_only_its_own_files_and_forbids_others(client: FlaskClient) -> None:
    answer = client.get("/", headers=HOST)
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "unsafe-eval" not in answer.headers["Content-Security-Policy"]
    text = answer.get_data(as_text=True)
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.parametrize("path", ["/", "/workloads", "/plan", "/savings", "/cost", "/tenants", "/health"])
def test_every_page_answers(client: FlaskClient, path: str) -> None:
    text = _route(client, path).get_data(as_text=True)
    assert CLUSTER in text
    assert "coverage 99.4 %" in text
    assert "missing" not in text


@pytest.mark.parametrize(
    ("path", "search", "words"),
    [
        ("/nowhere", "", "There is no page at /nowhere"),
        ("/plan", "?plan=123", "There is no plan 123"),
        ("/workloads", "?w=a/b/c", "a/b/c has no live pod"),
        ("/", "?cluster=mars", "no such cluster"),
    ],
)
def test_unknown_name_says_what_is_missing(client: FlaskClient, path: str, search: str, words: str) -> None:
    assert words in json.dumps(_route(client, path, search).get_json())


@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31", "2026-13-01", "٢٠٢٦-01-01"])
def test_a_span_of_any_days_in_the_address_is_answered(client: FlaskClient, day: str) -> None:
    answer = _route(client, "/cost", f"?since={day}&until={day}")
    assert answer.status_code == 200
    assert "cost-days" in answer.get_data(as_text=True)


def test_search_of_the_address_is_shown_as_text_only(client: FlaskClient) -> None:
    content = json.loads(_route(client, "/workloads", f"?w={HOSTILE}").get_data(as_text=True))
    assert "dangerously_allow_html" not in json.dumps(content)


def _act(client: FlaskClient, button: str, plan_id: str, token: object) -> Any:
    stage = [{"id": {"type": "stage", "stage": 1}, "property": "value", "value": [1]}]
    body = {
        "output": "..plan-message.children...plan-message.className...plan-bump.data..",
        "outputs": [
            {"id": "plan-message", "property": "children"},
            {"id": "plan-message", "property": "className"},
            {"id": "plan-bump", "property": "data"},
        ],
        "inputs": [
            {"id": name, "property": "n_clicks", "value": 1 if name == button else None}
            for name in ("approve", "apply", "undo")
        ],
        "state": [
            {"id": "plan-id", "property": "data", "value": plan_id},
            stage,
            {"id": "token", "property": "data", "value": token},
            {"id": "plan-bump", "property": "data", "value": 0},
        ],
        "changedPropIds": [f"{button}.n_clicks"],
    }
    answer = client.post("/_dash-update-component", json=body, headers=HOST)
    assert answer.status_code == 200
    return answer.get_json()["response"]["plan-message"]


def _token(client: FlaskClient) -> str:
    layout = client.get("/_dash-layout", headers=HOST).get_json()
    return next(str(c["props"]["data"]) for c in layout["props"]["children"] if c["props"].get("id") == "token")


@pytest.mark.parametrize("token", ["", "guess", None, 7])
def test_button_without_the_token_changes_nothing(token: object) -> None:
    views, cluster = make_views(with_past=False)
    client = create_app(views, ways=Ways(operator="mei")).server.test_client()
    plan_id = cluster.plans(CLUSTER)[0].plan.plan_id
    assert "of another process or session" in _act(client, "approve", plan_id, token)["children"]
    assert cluster.plans(CLUSTER)[0].approved_stages == ()


def test_approval_is_given_in_the_operators_name_and_for_the_chosen_stages_only() -> None:
    views, cluster = make_views(with_past=False)
    client = create_app(views, ways=Ways(operator="mei")).server.test_client()
    plan_id = cluster.plans(CLUSTER)[0].plan.plan_id
    message = _act(client, "approve", plan_id, _token(client))
    assert message == {"children": "Approved by mei: stage 1", "className": "message"}
    entry = cluster.plans(CLUSTER)[0]
    assert (entry.approved_stages, entry.approved_by) == ((1,), ("mei",))


def test_apply_of_what_nobody_approved_is_refused_with_the_reason() -> None:
    views, cluster = make_views(with_past=False)
    client = create_app(views, ways=Ways(operator="mei")).server.test_client()
    plan_id = cluster.plans(CLUSTER)[0].plan.plan_id
    message = _act(client, "apply", plan_id, _token(client))
    assert message["children"] == "cannot apply: none of the chosen stages is approved"
    assert message["className"] == "message failed"
    assert cluster.changed == set()


def test_apply_says_why_it_is_disabled() -> None:
    views, cluster = make_views(with_past=False)
    plan_id = cluster.plans(CLUSTER)[0].plan.plan_id
    fresh = cluster.plans(CLUSTER)[0]
    assert apply_reason(fresh, (), IDLE) == "no stage is chosen"
    assert apply_reason(fresh, (1,), IDLE) == "the chosen stages are not approved yet"
    approved = views.plans.approve(plan_id, (1, 2), "mei")
    assert apply_reason(approved, (1,), IDLE) is None
    running = RolloutProgress(phase=RolloutPhase.WATCHING, done=1, total=9)
    assert apply_reason(approved, (1,), running) == "a rollout is running"


def test_apply_waits_for_the_second_approver_and_names_them() -> None:
    views, _ = make_views(with_past=False)
    plan = views.plans.plans(CLUSTER)[0].plan
    strict = EmbeddedCluster(views.fleet.profiles(CLUSTER), (plan,), approvals_needed=("wei",))
    entry = strict.approve(plan.plan_id, (1,), "mei")
    assert apply_reason(entry, (1,), IDLE) == "still needs the approval of wei"


def test_stage_of_the_tide_is_approved_on_the_page_and_left_to_its_verb() -> None:
    _, cluster = make_views(with_past=False)
    (entry,) = cluster.plans(CLUSTER)
    number = len(entry.plan.stages) + 1
    tide = tide_only(entry).plan
    stages = (*entry.plan.stages, replace(tide.stages[0], stage=number))
    advice = (*entry.plan.recommendations, *tide.recommendations)
    fresh = replace(entry, plan=replace(entry.plan, stages=stages, recommendations=advice))
    assert apply_reason(fresh, (number,), IDLE) == "the chosen stages are not approved yet"
    approved = replace(fresh, approved_stages=(1, number))
    assert "`gputide run tide` plays it" in (apply_reason(approved, (number,), IDLE) or "")
    assert apply_reason(approved, (1, number), IDLE) is None
    assert apply_reason(replace(approved, applied_stages=(1,)), (1, number), IDLE) == "these stages are applied"
    assert stage_statuses(approved, [1, number]) == ["✓ approved", "✓ approved, by night"]
    assert "approved" not in stage_statuses(fresh, [number])[0]


def test_what_is_done_by_hand_is_shown_apart_from_stages_and_said_to_be_counted_nowhere() -> None:
    asleep = plan_of(CASES["sleep"], **OPTIONS["sleep"]).by_hand
    views, cluster = make_views(with_past=False)
    (entry,) = cluster.plans(CLUSTER)
    address, profiles = read_address("/plan", f"?cluster={CLUSTER}"), views.fleet.profiles(CLUSTER)
    plans = EmbeddedCluster(profiles, (replace(entry.plan, recommendations=(*entry.plan.recommendations, *asleep)),))
    without, page = (str(layout(one, address, profiles)) for one in (views, replace(views, plans=plans)))
    assert "sleep-0001" not in without
    assert all(said in page for said in ("sleep-0001", "By hand: 4 models could share 2 cards", "/wake_up"))
    assert "By hand" not in without


@pytest.mark.parametrize("is_approved", [False, True])
def test_title_of_an_expired_plan_says_that_its_approved_tide_may_go_on(is_approved: bool) -> None:
    views, cluster = make_views(with_past=False)
    (entry,) = cluster.plans(CLUSTER)
    plan = tide_only(entry).plan
    own = EmbeddedCluster(views.fleet.profiles(CLUSTER), (replace(plan, expires_at=NOW),))
    if is_approved:
        own.approve(plan.plan_id, (1,), "mei")
    address = read_address("/plan", f"?cluster={CLUSTER}")
    page = str(layout(replace(views, plans=own), address, views.fleet.profiles(CLUSTER)))
    assert ("nights of its approved tide may go on" in page) is is_approved
    assert "expired" in page


@pytest.mark.parametrize(("mode", "hint"), [(NodeMode.VGPU, "as the backend has it"), (NodeMode.MPS, "2 or more")])
def test_empty_number_of_parts_says_what_it_would_mean(mode: NodeMode, hint: str) -> None:
    class Standing(EmbeddedNodeModes):
        def standing(self, cluster: str, node: str) -> NodeStanding:
            return replace(super().standing(cluster, node), modes=((mode, None),))

    views, _ = make_views(with_past=False)
    profiles = views.fleet.profiles(CLUSTER)
    address = read_address("/node", f"?cluster={CLUSTER}&node={profiles.cards[0].node}")
    assert f"placeholder='{hint}'" in str(node_layout(replace(views, nodes=Standing()), address, profiles))


def test_address_carries_state_from_page_to_page() -> None:
    address = read_address("/", "?cluster=a&card=GPU-1&range=24h")
    assert address.href("/plan") == "/plan?cluster=a&range=24h"
    assert address.href(card=None) == "/?cluster=a&range=24h"
    assert read_address("/workloads", address.href("/workloads", w="a/b/c&d").partition("?")[2]).get("w") == "a/b/c&d"


def test_busy_port_says_which_setting_to_change() -> None:
    views, _ = make_views()
    app = create_app(views, ways=Ways(operator="mei"))
    first = open_server(app, host="127.0.0.1", port=0)
    port = int(first.address.rstrip("/").rpartition(":")[2])
    with pytest.raises(Unavailable, match=r"dashboard\.port"):
        open_server(app, host="127.0.0.1", port=port)
    first.close()


def _contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_has_a_contrast_of_4_5(theme: dict[str, str]) -> None:
    grounds = ("paper", "sheet", "raised", "hover")
    inks = ("ink", "ink-soft", "accent", "warn", "danger", "good")
    assert {(i, g) for i in inks for g in grounds if _contrast(theme[i], theme[g]) < 4.5} == set()
    for ink, ground in (
        ("accent-ink", "accent"),
        ("warn", "warn-soft"),
        ("danger", "danger-soft"),
        ("ink", "accent-soft"),
    ):
        assert _contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)


def test_text_upon_every_state_has_a_contrast_of_4_5() -> None:
    assert {s for s, colour in STATE_COLOURS.items() if _contrast(colour, STATE_INK[s]) < 4.5} == set()


def test_bodies_of_senders_who_never_finish_hold_little_memory() -> None:
    views, _ = make_views()
    server = open_server(create_app(views, ways=Ways()), host="127.0.0.1", port=0)
    threading.Thread(target=server.run, daemon=True).start()
    place = urlsplit(server.address)
    head = f"POST /_dash-update-component HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {BODY_BYTES_MAX}\r\n\r\n"
    part = b"x" * (BODY_BYTES_MAX - 1)
    senders = PENDING_BYTES_MAX // BODY_BYTES_MAX + 8
    with ExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        opened = [stack.enter_context(socket.create_connection((place.hostname, place.port))) for _ in range(senders)]
        for one in opened:
            one.sendall(head.encode() + part)
        until(lambda: len(select.select(opened, [], [], 0)[0]) >= 8)
        assert {one.recv(65536)[:12] for one in select.select(opened, [], [], 0)[0]} == {b"HTTP/1.1 429"}
        assert tracemalloc.get_traced_memory()[0] < 1.5 * PENDING_BYTES_MAX
    server.close()
