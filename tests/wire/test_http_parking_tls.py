"""Connections under TLS: neither a handshake nor the wait for a request costs a thread or keeps anybody out."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet.listener_files import ListenerFiles
from tests.security.authority import Authority
from tests.waiting import until
from tests.wire.http_serving import BODY_BYTES_MAX, HEALTH, Served, served, statuses
from tests.wire.key_updates import KeyUpdater
from wire.listener_tls import ListenerContexts
from wire.tls_stream import SILENT_BYTES_MAX

HALF_BODY = b"POST /bodies HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nab"
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"


class Port:
    """A server under TLS, and how clients come to it."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder, "authority")
        own = authority.pair("server")
        files = ListenerFiles(
            section="x",
            certificate_file=str(own.certificate),
            key_file=str(own.key),
            client_ca_file=str(authority.file),
        )
        self._contexts = ListenerContexts(files, needs_client=False, now_seconds=time.monotonic)
        self.client = ssl.create_default_context(cafile=str(authority.file))
        self.stranger = ssl.create_default_context(cafile=str(Authority(folder, "stranger").file))

    @property
    def context(self) -> ssl.SSLContext:
        return self._contexts.context()

    @contextmanager
    def served(self, **limits: Any) -> Iterator[Served]:
        with served(self._contexts.context, **limits) as server:
            yield server

    def plain(self, stack: ExitStack, server: Served, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        opened = socket.create_connection(server.address, timeout=10, source_address=(source, 0))
        stack.enter_context(opened).sendall(sent)
        return opened

    def encrypted(
        self, stack: ExitStack, server: Served, sent: bytes = b"", source: str = "127.0.0.1"
    ) -> ssl.SSLSocket:
        opened = socket.create_connection(server.address, timeout=10, source_address=(source, 0))
        encrypted = stack.enter_context(self.client.wrap_socket(opened, server_hostname="localhost"))
        encrypted.sendall(sent)
        return encrypted


def has_taken(server: Served, body: bytes) -> bool:
    """Whether this is the last body that came."""
    return server.bodies[-1:] == [body]


def is_closed(opened: socket.socket) -> bool:
    """Whether the other side has closed it, with or without having read what came."""
    try:
        return opened.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


@pytest.fixture
def port(tmp_path: Path) -> Port:
    return Port(tmp_path)


def test_neither_handshakes_nor_what_waits_behind_them_take_a_thread_or_keep_anybody_out(port: Port) -> None:
    before = threading.active_count()
    with port.served(connections_max=2, parked_max=1000) as server, ExitStack() as stack:
        for _ in range(40):
            port.plain(stack, server)
            port.plain(stack, server, HALF_HELLO)
            port.encrypted(stack, server)
            port.encrypted(stack, server, HALF_BODY)
        begun = time.monotonic()
        for _ in range(20):
            assert statuses(port.encrypted(stack, server, HEALTH).recv(4096)) == [200]
        assert time.monotonic() - begun < 5.0
        assert threading.active_count() <= before + 5


def test_silence_and_half_heads_take_no_thread_of_a_port_whose_bodies_do(port: Port) -> None:
    before = threading.active_count()
    with port.served(connections_max=20) as server, ExitStack() as stack:
        for _ in range(40):
            port.plain(stack, server, HALF_HELLO)
            port.encrypted(stack, server)
            port.encrypted(stack, server, b"GET /he")
        slow = port.encrypted(stack, server, HALF_BODY)
        until(lambda: threading.active_count() > before + 2)
        assert statuses(port.encrypted(stack, server, HEALTH).recv(4096)) == [200]
        assert threading.active_count() <= before + 5
        assert server.refused == []
        slow.sendall(b"cdef")
        assert statuses(slow.recv(4096)) == [204]


def test_address_that_holds_most_places_loses_one_amid_its_handshake(port: Port) -> None:
    with port.served(parked_max=10) as server, ExitStack() as stack:
        few = port.encrypted(stack, server, HEALTH[:9], source="127.0.0.2")
        many = [port.plain(stack, server, HALF_HELLO) for _ in range(20)]
        until(lambda: is_closed(many[0]))
        few.sendall(HEALTH[9:])
        assert statuses(few.recv(4096)) == [200]


def test_handshake_is_given_up_in_time_however_slowly_it_comes(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.http_parking.HANDSHAKE_SECONDS", 0.5)
    with port.served(parked_max=10, request_seconds=60.0) as server, ExitStack() as stack:
        opened, begun = port.plain(stack, server, HALF_HELLO), time.monotonic()
        with suppress(OSError):
            while time.monotonic() - begun < 5.0:
                opened.sendall(b"\x00")
                time.sleep(0.05)
        assert time.monotonic() - begun < 3.0
        until(lambda: server.refused == [0])


def test_request_has_its_own_time_once_the_handshake_is_done(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.http_parking.HANDSHAKE_SECONDS", 0.3)
    with port.served(parked_max=10, request_seconds=2.5) as server, ExitStack() as stack:
        late, never = port.encrypted(stack, server), port.encrypted(stack, server)
        time.sleep(1.2)
        late.sendall(HEALTH)
        assert statuses(late.recv(4096)) == [200]
        begun = time.monotonic()
        with suppress(ssl.SSLEOFError):
            assert never.recv(4096) == b""
        assert time.monotonic() - begun < 5.0


def test_requests_in_one_record_are_all_answered(port: Port) -> None:
    with port.served(parked_max=10) as server, ExitStack() as stack:
        # The thread takes no more than the first body of a record; the rest lies decrypted, where no selector sees it.
        opened = port.encrypted(stack, server, HALF_BODY)
        opened.sendall(b"cdef" + HEALTH * 2 + HEALTH[:20])
        answers = b""
        while answers.count(b"ok\n") < 2:
            answers += opened.recv(4096)
        assert server.bodies == [b"abcdef"]
        opened.sendall(HEALTH[20:])
        assert statuses(opened.recv(4096)) == [200]
        chunked = b"POST /bodies HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        opened.sendall(chunked)
        opened.sendall(b"2\r\nxy\r\n0\r\n\r\n" + HEALTH + HEALTH)
        answers = b""
        while answers.count(b"ok\n") < 2:
            answers += opened.recv(4096)
        assert statuses(answers) == [204, 200, 200]


def test_failed_handshakes_are_counted_and_end(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.http_parking.HANDSHAKE_SECONDS", 0.5)
    with port.served(parked_max=10) as server, ExitStack() as stack:
        for sent in (HEALTH, b"\x16\x03\x01\x00\x02ab"):
            opened = port.plain(stack, server, sent)
            with suppress(ConnectionError):
                while opened.recv(4096):
                    pass
        with pytest.raises(ssl.SSLError):
            port.stranger.wrap_socket(socket.create_connection(server.address), server_hostname="localhost")
        until(lambda: server.refused == [0, 0, 0])
        assert statuses(port.encrypted(stack, server, HEALTH).recv(4096)) == [200]


def test_busy_server_refuses_over_tls_with_a_reason(port: Port) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def in_body() -> None:
        begun.set()
        assert go_on.wait(10)

    body = HALF_BODY + b"cdef"
    with port.served(in_body=in_body, connections_max=1) as server, ExitStack() as stack:
        busy = port.encrypted(stack, server, body)
        assert begun.wait(10)
        refused = port.encrypted(stack, server, HEALTH)
        answer = refused.recv(4096)
        go_on.set()
        assert statuses(answer) == [503]
        assert b"connections_max=1" in answer
        assert statuses(busy.recv(4096)) == [204]


UPDATES_PER_CUT = 10 * SILENT_BYTES_MAX // 27
"""Ten times as many as a connection is heard; each takes 27 bytes (RFC 8446 §5.2)."""


@pytest.mark.parametrize("parked_max", [0, 10])
@pytest.mark.parametrize("begun", [b"", HALF_BODY])
def test_key_updates_without_end_end_their_connection_and_keep_nobody_out(
    port: Port, parked_max: int, begun: bytes
) -> None:
    with port.served(parked_max=parked_max, request_seconds=60.0) as server, ExitStack() as stack:
        updater = KeyUpdater(port.plain(stack, server))
        stack.callback(updater.close)
        updater.send(updater.records(begun) if begun else b"")
        flood = updater.updates(UPDATES_PER_CUT)
        began = time.monotonic()
        with suppress(ConnectionError):
            updater.send(flood)
        assert statuses(port.encrypted(stack, server, HEALTH).recv(4096)) == [200]
        until(updater.is_ended, seconds_max=10.0)
        assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("parked_max", [0, 10])
def test_keys_may_be_updated_between_and_amid_requests_that_come_in_small_records(port: Port, parked_max: int) -> None:
    with port.served(parked_max=parked_max) as server, ExitStack() as stack:
        updater = KeyUpdater(port.plain(stack, server))
        stack.callback(updater.close)
        for number in range(3):
            body = bytes([65 + number]) * BODY_BYTES_MAX
            request = b"POST /bodies HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            for start in range(0, len(request), 7):
                updater.send(updater.updates(1) if start % 70 == 0 else b"")
                updater.send(updater.records(request[start : start + 7]))
            until(partial(has_taken, server, body))
        assert server.refused == []


def test_renegotiation_of_tls_1_2_is_refused(port: Port) -> None:
    assert port.context.options & ssl.OP_NO_RENEGOTIATION
