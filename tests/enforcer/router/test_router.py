"""Requests wake their model, and who rests makes room: the router in front of servers that speak real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from enforcer.router import model_router, shared_card
from enforcer.router.model_router import RoutedModel, is_for_clients, routing
from enforcer.router.shared_card import RouterMetrics
from fleet.errors import GputideError, Misconfigured, Unavailable
from fleet.units import GIB
from tests.sleeping_servers import SleepingServer, router_process, sleeping_servers
from tests.waiting import text_of, until
from wire import http_proxy
from wire.own_metrics import OwnMetrics

CARD = 40 * GIB
THREE = {"a": 18 * GIB, "b": 18 * GIB, "c": 18 * GIB}
"""Any one beside two that sleep fits; two awake beside one asleep do not: 18 + 18 + 4.29 GiB."""


@asynccontextmanager
async def routed(
    servers: Mapping[str, SleepingServer], *, card_bytes: int = CARD, wait_seconds: float = 5.0
) -> AsyncIterator[Callable[..., Coroutine[Any, Any, tuple[int, Any]]]]:
    """Give what posts a completion to a model through the router, with its status and answer."""
    models = tuple(
        RoutedModel(name=name, host="127.0.0.1", port=0, server=one.origin, limit_bytes=one.limit_bytes)
        for name, one in servers.items()
    )
    metrics = RouterMetrics(OwnMetrics("router"))
    running = routing(models, card_bytes=card_bytes, wait_seconds=wait_seconds, metrics=metrics)
    async with running as ports, ClientSession(timeout=ClientTimeout(total=20)) as client:

        async def ask(
            name: str, path: str = "/v1/completions", method: str = "POST", rests: float = 0.0, **given: Any
        ) -> tuple[int, Any]:
            url = f"http://127.0.0.1:{ports[name]}{path}"
            headers = {"Authorization": "Bearer mine", "Connection": "X-Hop, keep-alive", "X-Hop": "no"}
            body = json.dumps(given).encode() if method == "POST" else None
            async with client.request(method, url, data=body, headers=headers) as answer:
                await asyncio.sleep(rests)
                text = await answer.text()
                return answer.status, json.loads(text) if text[:1] == "{" else text

        yield ask


def test_a_request_wakes_its_model_and_the_one_that_rested_longest_makes_room() -> None:
    async def play() -> None:
        # Two of four fit beside two that sleep.
        with sleeping_servers({**THREE, "d": 18 * GIB}, 50 * GIB) as (servers, book):
            async with routed(servers, card_bytes=50 * GIB) as ask:
                for name in "abac":
                    status, said = await ask(name, seconds=0.01)
                    assert (status, said["model"]) == (200, name)
            moves = {name: [path for path in one.asked if path[:3] != "/v1"] for name, one in servers.items()}
            assert moves == {"a": ["/wake_up"], "b": ["/wake_up", "/sleep?level=1"], "c": ["/wake_up"], "d": []}
            assert book.faults == []

    asyncio.run(play())


def test_two_that_fit_stay_awake_side_by_side() -> None:
    async def play() -> None:
        with sleeping_servers({"a": 18 * GIB, "b": 18 * GIB}, CARD) as (servers, book):
            async with routed(servers) as ask:
                for name in "abab":
                    assert (await ask(name))[0] == 200
            assert [one.asked.count("/wake_up") for one in servers.values()] == [1, 1]
            assert book.faults == []

    asyncio.run(play())


def test_a_model_with_a_request_never_falls_asleep_and_who_waits_too_long_is_sent_away() -> None:
    async def play() -> None:
        with sleeping_servers(THREE, CARD) as (servers, book):
            async with routed(servers, wait_seconds=0.6) as ask:
                long = [asyncio.create_task(ask("a", seconds=1.5))]
                await asyncio.sleep(0.3)
                status, said = await ask("b", seconds=0.0)
                assert status == 503
                assert said["error"]["message"] == "b did not wake within 0.6 s"
                assert [(await one)[0] for one in long] == [200]
                assert (await ask("b"))[0] == 200
            assert book.faults == []

    asyncio.run(play())


def test_what_a_client_sends_and_gets_passes_unchanged_and_streams() -> None:
    async def play() -> None:
        with sleeping_servers({"a": 18 * GIB}, CARD) as (servers, _):
            async with routed(servers) as ask:
                status, said = await ask("a", prompt="hej" * 50_000)
                assert (status, said["given"]["prompt"]) == (200, "hej" * 50_000)
                assert said["headers"]["Authorization"] == "Bearer mine"
                assert "X-Hop" not in said["headers"]
                assert await ask("a", stream=3) == (200, "data: 0\n\ndata: 1\n\ndata: 2\n\n")

    asyncio.run(play())


def test_probes_and_scrapes_wake_nobody_and_nobody_reaches_what_is_not_for_clients() -> None:
    async def play() -> None:
        with sleeping_servers({"a": 18 * GIB}, CARD) as (servers, _):
            async with routed(servers) as ask:
                for path in ("/health", "/metrics", "/v1/models"):
                    assert await ask("a", path, "GET") == (200, {"path": path})
                for path in ("/sleep?level=1", "/collective_rpc", "/v1/../sleep", "/v1/%2e%2e/sleep", "//sleep"):
                    assert (await ask("a", path))[0] in (403, 404)
            assert servers["a"].asked == []

    asyncio.run(play())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", True), ("/health", True), ("/sleep", False), ("/v1/..%2fsleep", False),
        ("/v1/%2e%2e/collective_rpc", False), ("/v1//x", False), ("/v1/%252e%252e/sleep", False), ("/v1", False),
        ("/v1/a\\..\\sleep", False), ("/wake_up", False), ("/is_sleeping", False), ("/server_info", False),
        ("/v1/load_lora_adapter", False), ("/v1/load_lora_adapter%0a", False),
    ],
)  # fmt: skip
def test_paths_for_clients(path: str, expected: bool) -> None:
    assert is_for_clients(path) is expected


def test_a_server_that_came_up_anew_counts_as_awake_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_card, "LOOK_SECONDS", 0.05)

    async def play() -> None:
        with sleeping_servers(THREE, CARD) as (servers, book):
            async with routed(servers) as ask:
                assert (await ask("a"))[0] == 200
                # Its container was restarted: awake, on a card that had room for it.
                assert servers["a"].move(to_sleep=True)
                assert servers["c"].move(to_sleep=False)
                await asyncio.sleep(0.3)
                assert [(await ask(name))[0] for name in "bac"] == [200, 200, 200]
            assert book.faults == []

    asyncio.run(play())


def test_a_server_that_does_not_wake_fails_its_requests_alone_and_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_card, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(shared_card, "PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(shared_card, "SETTLE_SECONDS", 0.3)

    async def play() -> None:
        with sleeping_servers({"a": 18 * GIB, "b": 18 * GIB}, CARD) as (servers, book):
            servers["a"].breaks = frozenset({"/wake_up"})
            async with routed(servers) as ask:
                found = [await ask("a") for _ in range(3)]
                assert [status for status, _ in found] == [503] * 3
                assert "/wake_up with 500" in found[0][1]["error"]["message"]
                assert "it is asked again in 1 s" in found[2][1]["error"]["message"]
                assert servers["a"].asked.count("/wake_up") == 1
                servers["a"].breaks = frozenset()
                await asyncio.sleep(0.8)
                assert [(await ask(name))[0] for name in "ab"] == [200, 200]
            assert book.faults == []

    asyncio.run(play())


def test_a_server_that_hangs_keeps_its_room_and_the_others_waiting_no_longer_than_a_move_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_router, "_MOVE_SECONDS_MAX", 0.5)

    async def play() -> None:
        with sleeping_servers(THREE, CARD) as (servers, book):
            servers["a"].hangs = True
            async with routed(servers) as ask:
                assert (await ask("a"))[0] == 503
                # It may still wake, so nobody else gets its room; and it asks nobody to wait for it again.
                assert (await ask("b"))[1]["error"]["message"] == "b did not wake within 5 s"
                assert servers["a"].asked.count("/wake_up") == 1
            assert book.faults == []

    asyncio.run(play())


@pytest.mark.parametrize("said", ["[" * 100_000, '{"is_sleeping": "no"}', "[]", "x" * 300_000, '{"is_sleeping"'])
def test_whatever_a_server_says_of_itself_fails_its_own_requests_alone(said: str) -> None:
    async def play() -> None:
        with sleeping_servers({"a": 18 * GIB, "b": 18 * GIB}, CARD) as (servers, _):
            servers["a"].said = said
            async with routed(servers) as ask:
                assert (await ask("a"))[0] == 503
                assert (await ask("b"))[0] == 200

    asyncio.run(play())


def test_a_server_that_refuses_to_sleep_goes_on_serving_and_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_card, "LOOK_SECONDS", 0.05)

    async def play() -> None:
        with sleeping_servers(THREE, CARD) as (servers, book):
            async with routed(servers, wait_seconds=1.0) as ask:
                assert (await ask("a"))[0] == 200
                servers["a"].breaks = frozenset({"/sleep?level=1"})
                refused = asyncio.create_task(ask("b"))
                await asyncio.sleep(0.1)
                assert {(await ask("a"))[0] for _ in range(20) if await asyncio.sleep(0.04, True)} == {200}
                assert (await refused)[0] == 503
            assert servers["a"].asked.count("/sleep?level=1") == 1
            assert book.faults == []

    asyncio.run(play())


def test_a_server_that_hangs_on_its_way_to_sleep_gets_no_request_before_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_card, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(shared_card, "PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(model_router, "_MOVE_SECONDS_MAX", 0.3)

    async def play() -> None:
        with sleeping_servers(THREE, CARD) as (servers, book):
            async with routed(servers, wait_seconds=0.5) as ask:
                assert (await ask("a"))[0] == 200
                servers["a"].hangs = True
                assert (await ask("b"))[0] == 503
                servers["a"].hangs = False
                found = [(await ask("a"))[0] for _ in range(60) if await asyncio.sleep(0.05, True)]
                assert (found[0], found[-1]) == (503, 200)
            assert book.faults == []

    asyncio.run(play())


def test_who_waits_for_a_model_that_came_up_anew_is_served_whoever_waits_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_card, "LOOK_SECONDS", 0.05)
    sizes = {"busy": 18 * GIB, "large": 30 * GIB, "small": 5 * GIB}

    async def play() -> None:
        with sleeping_servers(sizes, CARD) as (servers, book):
            async with routed(servers) as ask:
                waiting = [asyncio.create_task(ask("busy", seconds=2.0))]
                for name in ("large", "small"):
                    await asyncio.sleep(0.3)
                    waiting.append(asyncio.create_task(ask(name)))
                await asyncio.sleep(0.2)
                assert servers["small"].move(to_sleep=False)
                assert (await waiting[2])[0] == 200
                assert not waiting[0].done()
                assert [(await one)[0] for one in waiting] == [200, 200, 200]
            assert book.faults == []

    asyncio.run(play())


class _Stubborn:
    """A server that sleeps, and never wakes."""

    async def is_asleep(self) -> bool:
        return True

    async def sleep(self) -> None:
        raise AssertionError

    async def wake(self) -> None:
        raise Unavailable("no")


def test_a_server_that_fails_for_weeks_is_refused_as_on_the_first_day(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS", "PAUSE_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(shared_card, name, 0.0)

    async def play() -> None:
        card = shared_card.SharedCard({"a": (GIB, _Stubborn())}, CARD, RouterMetrics(OwnMetrics("router")))
        keeper = asyncio.create_task(card.keep())
        for _ in range(1200):
            with pytest.raises(Unavailable):
                async with card.awake("a", 5.0):
                    pass
            await asyncio.sleep(0)
        keeper.cancel()

    asyncio.run(play())


def test_a_server_steers_the_router_to_no_neighbour() -> None:
    async def play() -> None:
        with sleeping_servers({"a": 18 * GIB, "b": 18 * GIB}, CARD) as (servers, book):
            servers["a"].redirect = f"{servers['b'].origin}/sleep?level=1"
            async with routed(servers) as ask:
                assert (await ask("b"))[0] == 200
                assert (await ask("a"))[0] == 503
                assert (await ask("b"))[0] == 200
            assert "/sleep?level=1" not in servers["b"].asked
            assert book.faults == []

    asyncio.run(play())


def test_a_packed_body_passes_byte_for_byte_and_what_follows_it_is_no_request_of_its_own() -> None:
    inner = b"POST /collective_rpc HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    packed = gzip.compress(b"a" * 2000 + inner)

    def sent(port: int, path: str, method: str, length: int, body: bytes) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {length}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
            line.sendall(head.encode() + body)
            line.shutdown(socket.SHUT_WR) if length != len(body) else None
            return line.recv(65_536)

    with sleeping_servers({"a": 18 * GIB}, CARD) as (servers, _), TemporaryDirectory() as folder:
        with router_process(servers, CARD, Path(folder)) as running:
            port = running.ports["a"]
            assert b" 200 " in sent(port, "/v1/completions", "POST", len(packed), packed)
            assert servers["a"].bodies[-1] == packed
            for method, path in (("GET", "/health"), ("POST", "/v1/completions")):
                sent(port, path, method, len(inner) + 50, inner)
                sent(port, path, method, len(packed), packed)
        assert not [path for path in servers["a"].asked if "collective" in path]


def test_a_client_that_announces_more_than_it_sends_holds_nobody_up() -> None:
    with sleeping_servers(THREE, CARD) as (servers, book), TemporaryDirectory() as folder:
        with router_process(servers, CARD, Path(folder)) as running, ExitStack() as held:
            for _ in range(5):
                line = held.enter_context(socket.create_connection(("127.0.0.1", running.ports["a"]), timeout=10))
                line.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert _posted(running.ports["b"]) == 200
            assert "/wake_up" not in servers["a"].asked
        assert book.faults == []


def test_a_client_that_waits_to_be_told_to_go_on_is_told() -> None:
    with (
        sleeping_servers({"a": 18 * GIB}, CARD) as (servers, _),
        TemporaryDirectory() as folder,
        router_process(servers, CARD, Path(folder)) as running,
        socket.create_connection(("127.0.0.1", running.ports["a"]), timeout=10) as line,
    ):
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        line.sendall(head.encode())
        assert line.recv(100).startswith(b"HTTP/1.1 100 ")
        line.sendall(b"{}")
        assert line.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_model_whose_client_left_at_work_is_not_put_to_sleep_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_card, "LEFT_SECONDS", 0.8)

    async def play() -> None:
        with sleeping_servers(THREE, CARD) as (servers, book):
            async with routed(servers) as ask:
                leaving = asyncio.create_task(ask("a", seconds=0.9))
                await asyncio.sleep(0.5)
                leaving.cancel()
                await asyncio.sleep(0.05)
                assert (await ask("b"))[0] == 200
            assert book.faults == []

    asyncio.run(play())


def test_a_client_that_does_not_read_is_cut_off_and_its_model_not_put_to_sleep_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_proxy, "WRITE_SECONDS", 0.3)
    monkeypatch.setattr(shared_card, "LEFT_SECONDS", 0.8)

    async def play() -> None:
        with sleeping_servers(THREE, CARD) as (servers, book):
            async with routed(servers) as ask:
                unread = asyncio.create_task(ask("a", rests=60.0, stream=1000, width=2**20))
                await asyncio.sleep(0.3)
                assert (await ask("b"))[0] == 200
                unread.cancel()
            assert book.faults == []

    asyncio.run(play())


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
    [
        (b"mine", "yours", 200),
        ("é".encode(), "yours", 200),
        (b"caf\xe9", "", 400),
        (b"", "caf\xe9", 502),
        (b"", "\x01", 502),
    ],
)
def test_a_header_that_would_not_arrive_as_it_is_is_refused(asked: bytes, answered: str, expected: int) -> None:
    body = json.dumps({"header": answered}).encode()
    with (
        sleeping_servers({"a": 18 * GIB}, CARD) as (servers, _),
        TemporaryDirectory() as folder,
        router_process(servers, CARD, Path(folder)) as running,
        socket.create_connection(("127.0.0.1", running.ports["a"]), timeout=10) as line,
    ):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-A: %b\r\nContent-Length: %d\r\n\r\n" % (asked, len(body))
        line.sendall(head + body)
        assert line.recv(100).split()[1] == b"%d" % expected


def test_bodies_of_one_model_leave_the_others_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_proxy, "HELD_BYTES_MAX", 2**20)

    async def play() -> None:
        with sleeping_servers(THREE, CARD, move_seconds=1.0) as (servers, _):
            async with routed(servers) as ask:
                greedy = [asyncio.create_task(ask("a", prompt="x" * 200_000)) for _ in range(6)]
                await asyncio.sleep(0.5)
                assert (await ask("b", prompt="x" * 150_000))[0] == 200
                assert {status for status, _ in await asyncio.gather(*greedy)} == {200, 503}

    asyncio.run(play())


def test_who_waited_in_vain_goes_behind_those_that_fit() -> None:
    sizes = {"large": 30 * GIB, "busy": 18 * GIB, "small": 10 * GIB}

    async def play() -> None:
        with sleeping_servers(sizes, CARD) as (servers, book):
            async with routed(servers, wait_seconds=1.0) as ask:
                busy = asyncio.create_task(ask("busy", seconds=4.0))
                await asyncio.sleep(0.3)
                waiting = [asyncio.create_task(ask("large")) for _ in range(3)]
                await asyncio.sleep(0.3)
                waiting.append(asyncio.create_task(ask("large")))
                assert [(await one)[0] for one in waiting] == [503] * 4
                assert (await ask("small"))[0] == 200
                assert (await busy)[0] == 200
            assert book.faults == []

    asyncio.run(play())


def test_a_server_that_is_gone_fails_its_requests_alone_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_card, "LOOK_SECONDS", 0.05)

    async def play() -> None:
        with sleeping_servers({"a": 18 * GIB, "b": 18 * GIB}, CARD) as (servers, book):
            async with routed(servers) as ask:
                assert (await ask("a"))[0] == 200
                servers["a"].stop()
                assert {(await ask("a"))[0] for _ in range(3)} <= {502, 503}
                await asyncio.sleep(0.5)
                assert (await ask("a"))[0] == 503
                assert (await ask("b"))[0] == 200
                servers["a"].start()
                await asyncio.sleep(0.5)
                assert (await ask("a"))[0] == 200
            assert book.faults == []

    asyncio.run(play())


def test_who_asks_a_server_that_is_gone_does_not_wait_behind_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_card, "LOOK_SECONDS", 0.05)

    async def play() -> None:
        with sleeping_servers({"busy": 18 * GIB, "large": 30 * GIB, "gone": 5 * GIB}, CARD) as (servers, book):
            async with routed(servers) as ask:
                servers["gone"].stop()
                waiting = [asyncio.create_task(ask("busy", seconds=2.0))]
                await asyncio.sleep(0.5)
                waiting.append(asyncio.create_task(ask("large")))
                await asyncio.sleep(0.2)
                assert (await ask("gone"))[0] == 503
                assert not waiting[0].done()
                assert [(await one)[0] for one in waiting] == [200, 200]
                servers["gone"].start()
            assert book.faults == []

    asyncio.run(play())


def test_clients_that_leave_while_they_wait_leave_nothing_behind() -> None:
    async def play() -> None:
        with sleeping_servers(THREE, CARD, move_seconds=0.2) as (servers, book):
            async with routed(servers) as ask:
                for _ in range(20):
                    leaving = asyncio.create_task(ask("a"))
                    await asyncio.sleep(0.02)
                    leaving.cancel()
                # Nobody holds a any more, so b finds its room.
                assert (await ask("b"))[0] == 200
                assert (await ask("c"))[0] == 200
            assert book.faults == []

    asyncio.run(play())


def test_many_clients_of_three_models_are_all_served_and_the_card_never_overflows() -> None:
    async def play() -> None:
        with sleeping_servers(THREE, CARD, move_seconds=0.02) as (servers, book):
            async with routed(servers, wait_seconds=15.0) as ask:
                found = await asyncio.gather(*(ask("abc"[number % 3], seconds=0.01) for number in range(90)))
            assert {status for status, _ in found} == {200}
            assert book.faults == []

    asyncio.run(play())


@pytest.mark.parametrize(
    ("names", "limit_bytes", "port", "failure"),
    [
        ("a", 2 * CARD, 0, Misconfigured(r"a: its limit of .* more than router.card_bytes")),
        ("ab", 37 * GIB, 0, Misconfigured(r"a: its limit of .* what the others keep asleep")),
        ("aa", GIB, 0, Misconfigured("the same name")),
        ("a", GIB, None, Unavailable("cannot listen on 127.0.0.1:")),
    ],
)
def test_what_cannot_be_routed_is_said(names: str, limit_bytes: int, port: int | None, failure: GputideError) -> None:
    async def play() -> None:
        with sleeping_servers({"a": 18 * GIB}, CARD) as (servers, _):
            taken = int(servers["a"].origin.rpartition(":")[2]) if port is None else port
            models = [
                RoutedModel(
                    name=name, host="127.0.0.1", port=taken, server="http://127.0.0.1:1", limit_bytes=limit_bytes
                )
                for name in names
            ]
            metrics = RouterMetrics(OwnMetrics("router"))
            with pytest.raises(type(failure), match=str(failure)):
                async with routing(models, card_bytes=CARD, wait_seconds=1.0, metrics=metrics):
                    pass

    asyncio.run(play())


@pytest.mark.parametrize("server", ["http://chat..svc:8000", f"http://{'a' * 64}.svc:8000", "http://chat:99999"])
def test_a_server_whose_name_cannot_be_is_said_to_be_none(server: str) -> None:
    with pytest.raises(Misconfigured, match="cannot speak to server"):
        http_proxy.origin_of(server)


def test_bodies_that_wait_are_held_once(tmp_path: Path) -> None:
    bodies, body = 6, b" " * (20 * 2**20)

    def peak(process: int) -> int:
        (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return 1024 * int(found)

    with (
        sleeping_servers(THREE, CARD, move_seconds=2.0) as (servers, _),
        router_process(servers, CARD, tmp_path) as running,
        ThreadPoolExecutor(bodies) as pool,
    ):
        before = peak(running.process.pid)
        assert list(pool.map(lambda _: _posted(running.ports["a"], body), range(bodies))) == [200] * bodies
        assert peak(running.process.pid) - before < 1.5 * bodies * len(body)


def test_the_verb_takes_as_many_open_files_as_it_may(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:
        with sleeping_servers({"a": GIB * 5}, CARD) as (servers, _), router_process(servers, CARD, tmp_path) as running:
            assert resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_verb_routes_counts_and_stops(tmp_path: Path) -> None:
    with sleeping_servers(THREE, CARD) as (servers, book), router_process(servers, CARD, tmp_path) as running:
        with ThreadPoolExecutor() as pool:
            assert list(pool.map(lambda name: _posted(running.ports[name]), "abcabcabc")) == [200] * 9
        until(lambda: 'gputide_router_requests_total{model="a",result="passed"} 3.0' in text_of(running.metrics_url))
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
    assert book.faults == []


def _posted(port: int, body: bytes = b'{"seconds": 0.05}') -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", data=body)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
