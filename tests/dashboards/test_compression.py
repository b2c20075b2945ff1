"""What is sent packed, and what is not."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from dashboards.access.sign_in import Ways
from dashboards.app import create_app
from dashboards.request_hooks import BYTES_MIN
from tests.dashboards.embedded import CLUSTER, make_views

HOST = {"Host": "127.0.0.1:8050"}
PACKED = {**HOST, "Accept-Encoding": "gzip, br"}
VIEWS, _ = make_views(with_past=False)
NAME = next(
    p.workload
    for p in VIEWS.fleet.profiles(CLUSTER).workloads
    if p.workload.replace("/", "").replace("-", "").isalnum()
)
HISTORY = f"/api/v1/clusters/{CLUSTER}/workloads/{NAME}/history"


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    made: FlaskClient = create_app(VIEWS, ways=Ways(operator="mei")).server.test_client()
    return made


def ask(client: FlaskClient, path: str, headers: dict[str, str]) -> Any:
    return client.get(path, headers=headers)


def test_long_answer_is_packed_for_whoever_takes_it_and_is_the_same(client: FlaskClient) -> None:
    plain, packed = ask(client, HISTORY, HOST), ask(client, HISTORY, PACKED)
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert "Accept-Encoding" in plain.headers["Vary"]
    assert json.loads(gzip.decompress(packed.data)) == plain.get_json()
    assert len(packed.data) == int(packed.headers["Content-Length"]) < len(plain.data) / 4


def test_browser_that_refuses_gzip_gets_none(client: FlaskClient) -> None:
    assert "Content-Encoding" not in ask(client, HISTORY, {**HOST, "Accept-Encoding": "gzip;q=0, br"}).headers


def test_short_answers_and_errors_go_as_they_are(client: FlaskClient) -> None:
    for path, status in (("/api/v1/clusters", 200), ("/api/v1/clusters/mars/profiles", 404)):
        answer = ask(client, path, PACKED)
        assert answer.status_code == status
        assert "Content-Encoding" not in answer.headers
        assert len(answer.data) < BYTES_MIN


def test_what_carries_the_token_of_a_page_is_never_packed(client: FlaskClient) -> None:
    for path in ("/_dash-layout", "/"):
        assert "Content-Encoding" not in ask(client, path, PACKED).headers


def test_file_of_the_release_is_packed_under_every_name_it_is_asked_by(client: FlaskClient) -> None:
    text = ask(client, "/", HOST).get_data(as_text=True)
    paths = [part for part in text.split('"') if part.startswith("/_dash-component-suites/") and "renderer" in part]
    for path in (paths[0], "/assets/pages.css"):
        first, second = ask(client, path, PACKED), ask(client, path + "?again", PACKED)
        assert first.headers["Content-Encoding"] == "gzip"
        assert first.data == second.data
        assert gzip.decompress(first.data) == ask(client, path, HOST).data
