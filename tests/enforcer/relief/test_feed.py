"""What agents tell over HTTP: at once when there is trouble, and nothing that is not a node's view."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from enforcer.agent.node_view_text import ToldView, parse_view, view_text
from enforcer.agent.view_server import CONNECTIONS_MAX, ViewServer
from enforcer.relief.demand_feed import QueriedObjectives
from enforcer.relief.feed_agents import AgentFeed
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.inventory import Priority
from fleet.settings.prometheus import PrometheusSettings
from gputide.container.prometheus import instant_query
from tests.enforcer.agent.nodes import slice_of, view_of
from tests.waiting import until

CALM = view_of(slice_of(1, Priority.HIGH, duty_cycle_ratio=0.1), slice_of(2, Priority.LOW), duty=0.1)


def at(moment: float, *, duty: float = 0.1) -> object:
    card = replace(CALM.cards[0], duty_cycle_ratio=duty)
    return replace(CALM, at_seconds=moment, cards=(card,))


@pytest.fixture
def server() -> Iterator[ViewServer]:
    found = ViewServer("node-1", host="127.0.0.1", port=0, full_ratio=0.97, free_ratio_min=0.03)
    found.start()
    yield found
    found.stop()


def feed_of(server: ViewServer, wait_seconds: float = 20.0) -> AgentFeed:
    feed = AgentFeed([f"http://127.0.0.1:{server.address[1]}"], wait_seconds=wait_seconds)
    feed.start()
    return feed


def test_view_comes_back_as_it_was_told() -> None:
    told = ToldView(node="node-1", view=CALM, trouble="")
    assert parse_view(view_text(told)) == told


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("schema", "gputide.node-view/v2", "schema"),
        ("node", "n\nx", "node"),
        ("at_seconds", float("nan"), "at_seconds"),
        ("cards", [{"card": "GPU-1", "framebuffer_bytes": -1}], "framebuffer_bytes"),
        ("cards", [{"card": "GPU-1", "framebuffer_bytes": 1, "duty_cycle_ratio": 7}], "duty_cycle_ratio"),
        ("cards", [asdict(CALM.cards[0])] * 100, "100 entries"),
        ("slices", [{"pod_uid": "../../etc", "priority": "low"}], "pod_uid"),
        ("slices", [{"pod_uid": None, "priority": "lowest"}], "priority"),
        ("slices", "x", "slices"),
    ],
)
def test_view_that_lies_about_its_form_is_not_believed(field: str, value: object, named: str) -> None:
    content = json.loads(view_text(ToldView(node="node-1", view=CALM, trouble="")))
    with pytest.raises(Corrupt, match=named):
        parse_view(json.dumps({**content, field: value}).encode())


@pytest.mark.parametrize("text", [b"", b"[1]", b"[" * 100_000, b"x" * (5 << 20)])
def test_what_is_no_view_is_refused_without_harm(text: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_view(text)


def test_trouble_is_told_at_once_and_calm_waits(server: ViewServer) -> None:
    server.show(at(time.time()))  # type: ignore[arg-type]
    feed = feed_of(server)
    try:
        until(lambda: feed.views(0.05).keys() == {"node-1"})
        began = time.monotonic()
        # Nothing new: the wait is over before anybody is told.
        assert feed.views(0.2)["node-1"].cards[0].duty_cycle_ratio == 0.1
        assert time.monotonic() - began >= 0.19
        server.show(at(time.time(), duty=1.0))  # type: ignore[arg-type]
        began = time.monotonic()
        until(lambda: feed.views(5.0)["node-1"].cards[0].duty_cycle_ratio == 1.0)
        assert time.monotonic() - began < 0.5
    finally:
        feed.close()


def test_agent_that_is_blind_or_talks_nonsense_is_left_out(server: ViewServer) -> None:
    feed = feed_of(server, wait_seconds=0.5)
    try:
        until(lambda: feed.silent == 1)
        assert feed.views(0.1) == {}
        server.show(at(time.time() - 3600))  # type: ignore[arg-type]
        time.sleep(0.1)
        assert feed.views(0.1) == {}
        server.show(at(time.time()))  # type: ignore[arg-type]
        until(lambda: feed.views(0.1).keys() == {"node-1"})
        assert feed.silent == 0
    finally:
        feed.close()


def test_requests_that_wait_for_trouble_give_way_to_a_newcomer(server: ViewServer) -> None:
    server.show(at(time.time()))  # type: ignore[arg-type]
    with ExitStack() as held:
        for _ in range(CONNECTIONS_MAX + 4):
            opened = held.enter_context(socket.create_connection(server.address, timeout=10))
            opened.sendall(b"GET /view?wait=30&trouble= HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.2)
        asked = http.client.HTTPConnection(*server.address, timeout=10)
        asked.request("GET", "/healthz")
        assert asked.getresponse().status == 200
        asked.close()


def test_address_that_is_none_is_named() -> None:
    with pytest.raises(Misconfigured, match=r"relief\.agents='http://host'"):
        AgentFeed(["http://host"], wait_seconds=1.0)


class Prometheus:
    """A server that answers every query with the same text."""

    def __init__(self, status: int, body: bytes) -> None:
        outer = self
        self.asked: list[bytes] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/"


def asked(status: int, body: object) -> tuple[Prometheus, QueriedObjectives]:
    server = Prometheus(status, json.dumps(body).encode())
    metrics = instant_query(server.url, "relief.prometheus_url", PrometheusSettings())
    return server, QueriedObjectives(metrics, ["p99 > 2"], interval_seconds=60.0)


def vector(*labels: dict[str, str]) -> dict[str, object]:
    return {"data": {"resultType": "vector", "result": [{"metric": entry, "value": [0, "1"]} for entry in labels]}}


def test_every_series_of_an_answer_is_a_broken_objective_and_is_asked_for_once() -> None:
    hostile = {"namespace": "team", "pod": "../x"}
    body = vector({"namespace": "team", "pod": "chat-1"}, {"pod": "nameless"}, hostile)
    server, objectives = asked(200, body)
    assert [entry.pod_id for entry in objectives.broken()] == ["team/chat-1"]
    assert objectives.broken()[0].query == "p99 > 2"
    assert server.asked == [b"query=p99+%3E+2"]


@pytest.mark.parametrize(("status", "body"), [(400, {"error": "parse error"}), (200, {"data": []}), (200, [])])
def test_prometheus_that_can_not_answer_is_said(status: int, body: object) -> None:
    _, objectives = asked(status, body)
    with pytest.raises(Unavailable, match="p99 > 2"):
        objectives.broken()
