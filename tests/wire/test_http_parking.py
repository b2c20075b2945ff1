"""Connections without a whole request: they cost no thread, keep nobody out, and are given up in time."""

from __future__ import annotations

import gc
import select
import selectors
import socket
import threading
import time
import tracemalloc
from contextlib import ExitStack, suppress

import pytest

from tests.waiting import until
from tests.wire.http_serving import HEALTH, exchange, served, statuses
from wire.http_connection import BodyBudget, HttpConnection, ServerLimits
from wire.http_parking import Parked, Parking

SLOW_BODY = b"POST /bodies HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nab"


def connected(stack: ExitStack, address: tuple[str, int], sent: bytes = b"", source: str = "") -> socket.socket:
    opened = stack.enter_context(
        socket.create_connection(address, timeout=10, source_address=(source, 0) if source else None)
    )
    opened.sendall(sent)
    return opened


def test_silent_slow_and_half_sent_requests_take_no_thread_and_keep_nobody_out() -> None:
    before = threading.active_count()
    with served(connections_max=2, parked_max=1000) as server, ExitStack() as stack:
        for sent in (b"", b"GET /he", SLOW_BODY) * 60:
            connected(stack, server.address, sent)
        begun = time.monotonic()
        assert [statuses(exchange(server.address, HEALTH)) for _ in range(20)] == [[200]] * 20
        assert time.monotonic() - begun < 5.0
        assert threading.active_count() <= before + 5


def test_request_that_comes_in_pieces_is_answered_once_it_is_whole() -> None:
    with served(parked_max=10) as server, ExitStack() as stack:
        opened = connected(stack, server.address)
        for piece in (SLOW_BODY[:30], SLOW_BODY[30:], b"cd", b"ef"):
            time.sleep(0.05)
            assert server.bodies == []
            opened.sendall(piece)
        assert statuses(opened.recv(4096)) == [204]
        assert server.bodies == [b"abcdef"]


def test_body_of_single_bytes_and_the_request_behind_it_arrive_whole() -> None:
    body = bytes(range(256)) * 8
    sent = b"POST /bodies HTTP/1.1\r\nHost: x\r\nContent-Length: 2048\r\n\r\n" + body
    with served(parked_max=10) as server, ExitStack() as stack:
        opened = connected(stack, server.address)
        for byte in sent[:-1]:
            opened.sendall(bytes([byte]))
        assert server.bodies == []
        opened.sendall(sent[-1:] + HEALTH)
        answers = b""
        while b"ok\n" not in answers:
            answers += opened.recv(4096)
        assert statuses(answers) == [204, 200]
        assert server.bodies == [body]


def test_connection_goes_on_after_an_answer_also_with_requests_in_one_piece() -> None:
    with served(parked_max=10) as server, ExitStack() as stack:
        opened = connected(stack, server.address, HEALTH * 3 + HEALTH[:20])
        answers = b""
        while answers.count(b"ok\n") < 3:
            answers += opened.recv(4096)
        opened.sendall(HEALTH[20:])
        assert statuses(opened.recv(4096)) == [200]
        time.sleep(0.1)
        opened.sendall(HEALTH)
        assert statuses(opened.recv(4096)) == [200]


@pytest.mark.parametrize("sent", [b"", b"GET /he", SLOW_BODY])
def test_request_that_does_not_become_whole_in_time_is_given_up(sent: bytes) -> None:
    with served(parked_max=10, request_seconds=0.4) as server, ExitStack() as stack:
        opened, begun = connected(stack, server.address, sent), time.monotonic()
        assert opened.recv(4096) == b""
        assert 0.3 < time.monotonic() - begun < 5.0


def test_requests_that_came_whole_in_a_crowd_are_taken_though_their_time_is_over() -> None:
    """More than are read at once, and the last of them only when all are looked through for those to be closed."""
    limits = ServerLimits(connections_max=1, parked_max=100, idle_seconds=1.0, request_seconds=0.1)
    taken: list[Parked] = []
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        parking = Parking(selector, limits, taken.append, tls=None, failed=lambda: None)
        pairs = [socket.socketpair() for _ in range(90)]
        for client, opened in pairs:
            stack.enter_context(client)
            stack.enter_context(opened)
            connection = HttpConnection(opened, limits, BodyBudget(1 << 20))
            deadline = time.monotonic() + limits.request_seconds
            parking.enter(Parked(opened=opened, connection=connection, client="127.0.0.1", deadline=deadline))
        for client, _ in pairs[:-1]:
            client.sendall(HEALTH)
        time.sleep(0.6)
        parking.look(0.0)
        assert {parked.opened for parked in taken} == {opened for _, opened in pairs[:-1]}
        assert pairs[-1][0].recv(1) == b"", "who said nothing is closed"


def test_trickle_does_not_move_the_moment_at_which_a_request_is_given_up() -> None:
    with served(parked_max=10, request_seconds=0.5) as server, ExitStack() as stack:
        opened, begun = connected(stack, server.address, b"GET / HTTP/1.1\r\n"), time.monotonic()
        with suppress(OSError):
            while time.monotonic() - begun < 5.0:
                opened.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - begun < 3.0


def test_address_that_holds_most_places_loses_one_to_a_newcomer() -> None:
    with served(parked_max=10) as server, ExitStack() as stack:
        few = connected(stack, server.address, b"GET /healthz", source="127.0.0.2")
        many = [connected(stack, server.address) for _ in range(20)]
        until(lambda: many[0].recv(1, socket.MSG_PEEK) == b"")
        few.sendall(HEALTH.removeprefix(b"GET /healthz"))
        assert statuses(few.recv(4096)) == [200]


def test_bodies_of_parked_requests_count_among_all_and_what_refuses_a_request_is_said() -> None:
    with served(parked_max=100, pending_bytes_max=4000) as server, ExitStack() as stack:
        held = [connected(stack, server.address, SLOW_BODY.replace(b"6", b"4000") + b"x" * 900) for _ in range(20)]
        until(lambda: len(select.select(held, [], [], 0)[0]) >= 15)
        refused = [status for opened in select.select(held, [], [], 0)[0] for status in statuses(opened.recv(4096))]
        assert set(refused) == {429}
        assert statuses(exchange(server.address, HEALTH)) == [200]
    with served(parked_max=10) as server:
        assert statuses(exchange(server.address, SLOW_BODY.replace(b"6", b"9999999"))) == [413]
        assert statuses(exchange(server.address, b"nonsense\r\n\r\n")) == [400]
        assert statuses(exchange(server.address, b"GET /" + b"x" * 40_000)) == [431]


def test_refused_requests_give_back_what_they_held_and_hold_nobody_up() -> None:
    busy, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        busy.set()
        go_on.wait(20)

    body = b"POST /bodies HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" + b"x" * 900
    with served(parked_max=10, connections_max=1, pending_bytes_max=4000, in_body=wait) as server, ExitStack() as stack:
        at_work = connected(stack, server.address, body)
        assert busy.wait(10)
        begun = time.monotonic()
        assert [statuses(connected(stack, server.address, body).recv(4096)) for _ in range(6)] == [[503]] * 6
        assert time.monotonic() - begun < 2.0
        go_on.set()
        assert statuses(at_work.recv(4096)) == [204]
        # Its place is free a moment after its answer.
        until(lambda: statuses(exchange(server.address, body)) == [204])


def test_bodies_of_connections_that_wait_for_their_next_request_are_not_kept() -> None:
    body = b"POST /bodies HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n" + b"x" * 4000
    with served(parked_max=100) as server, ExitStack() as stack:
        kept = [connected(stack, server.address) for _ in range(60)]
        tracemalloc.start()
        try:
            for sent, status in ((HEALTH, 200), (body, 204)):
                before, _ = tracemalloc.get_traced_memory()
                for opened in kept:
                    opened.sendall(sent)
                    assert statuses(opened.recv(4096)) == [status]
            server.bodies.clear()
            until(lambda: gc.collect() >= 0 and tracemalloc.get_traced_memory()[0] - before < len(kept) * 2000)
        finally:
            tracemalloc.stop()


def test_stop_closes_parked_connections() -> None:
    with ExitStack() as stack:
        with served(parked_max=10) as server:
            silent = connected(stack, server.address)
            answered = connected(stack, server.address, HEALTH)
            assert statuses(answered.recv(4096)) == [200]
        assert silent.recv(1) == b""
        assert answered.recv(1) == b""
