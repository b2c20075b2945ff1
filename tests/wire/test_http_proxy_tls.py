"""Proxied ports under TLS: records without data end their connection, and keep nobody out."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from fleet.listener_files import ListenerFiles
from tests.security.authority import Authority
from tests.waiting import until
from tests.wire.http_serving import BODY_BYTES_MAX, served
from tests.wire.key_updates import KeyUpdater
from wire.http_proxy import Passed, ProxiedPort, proxying, servers_behind
from wire.listener_tls import ListenerContexts

UPDATES = 4 * 2**20 // 27
"""Four megabytes of updates; each takes 27 bytes (RFC 8446 §5.2)."""
TURN_SECONDS_MAX = 0.06
"""Processor time of the longest turn of the loop: 64 KiB of updates take 20 ms here."""


class Open:
    """A gate that lets everybody in."""

    def objection(self, raw_path: str) -> str | None:
        return None

    def held_open(self, method: str, raw_path: str) -> nullcontext[None]:
        return nullcontext()

    def ended(self, how: Passed) -> None:
        pass


class Proxied:
    """A port under TLS in front of a server, served by a loop in a thread of its own."""

    def __init__(self, folder: Path, origin: str) -> None:
        authority = Authority(folder, "authority")
        own = authority.pair("server")
        files = ListenerFiles(section="x", certificate_file=str(own.certificate), key_file=str(own.key))
        self._contexts = ListenerContexts(files, needs_client=False, now_seconds=time.monotonic)
        self._origin = origin
        self.client = ssl.create_default_context(cafile=str(authority.file))
        self.port = 0
        self.longest_turn_seconds = 0.0

    @contextmanager
    def serving(self) -> Iterator[None]:
        loop, stop, is_up = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

        async def serve() -> None:
            port = ProxiedPort(host="127.0.0.1", port=0, origin=self._origin, gate=Open())
            async with servers_behind() as servers, proxying((port,), servers, self._contexts.context) as ports:
                self.port = ports[0]
                is_up.set()
                self._watch(loop, time.thread_time())
                await stop.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert is_up.wait(20.0)
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

    def _watch(self, loop: asyncio.AbstractEventLoop, before: float) -> None:
        """Two turns of the loop lie between two calls; each spends what others wait for."""
        now = time.thread_time()
        self.longest_turn_seconds = max(self.longest_turn_seconds, now - before)
        loop.call_later(0.0005, self._watch, loop, now)

    def ask(self, body: bytes) -> int:
        asked = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=self.client)
        try:
            asked.request("POST", "/bodies", body)
            return asked.getresponse().status
        finally:
            asked.close()

    def plain(self, stack: ExitStack) -> socket.socket:
        return stack.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=20))


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    with served() as server:
        one = Proxied(tmp_path, f"http://127.0.0.1:{server.address[1]}")
        with one.serving():
            yield one


@pytest.mark.parametrize("begun", [b"", b"POST /bodies HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nab"])
def test_key_updates_without_end_end_their_connection_and_keep_nobody_out(proxied: Proxied, begun: bytes) -> None:
    with ExitStack() as stack:
        updater = KeyUpdater(proxied.plain(stack))
        stack.callback(updater.close)
        updater.send(updater.records(begun) if begun else b"")
        flood = updater.updates(UPDATES)
        assert proxied.ask(b"before") == 204
        proxied.longest_turn_seconds = 0.0
        with suppress(ConnectionError):
            updater.send(flood)
        assert proxied.ask(b"amid") == 204
        until(updater.is_ended, seconds_max=10.0)
    assert proxied.longest_turn_seconds < TURN_SECONDS_MAX


def test_keys_may_be_updated_between_and_amid_requests_that_come_in_small_records(proxied: Proxied) -> None:
    with ExitStack() as stack:
        opened = proxied.plain(stack)
        updater = KeyUpdater(opened)
        stack.callback(updater.close)
        body = b"x" * BODY_BYTES_MAX
        for _ in range(3):
            request = b"POST /bodies HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            for start in range(0, len(request), 7):
                updater.send(updater.updates(1) if start % 70 == 0 else b"")
                updater.send(updater.records(request[start : start + 7]))
            assert opened.recv(65_536)
        assert proxied.ask(b"after") == 204
