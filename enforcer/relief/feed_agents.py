"""What node agents report, asked over HTTP: the port `DemandFeed` of a real cluster.

Each agent is asked again and again for its view, and answers when a card gets into trouble or a while has passed (see
`enforcer.agent.view_server`), so trouble is known within one look of the agent while a thousand cards cost a few
questions a second. Addresses are resolved anew from time to time, so that nodes that come are asked, and nodes that go
are forgotten. An agent that answers nonsense counts as silent.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from urllib.parse import urlsplit

from enforcer.agent.node_view import NodeView
from enforcer.agent.node_view_text import VIEW_BYTES_MAX, ToldView, parse_view
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.logs import logger
from wire.credentials import Credentials, FixedHeader
from wire.http_answer import read_body
from wire.http_client import Endpoint, HttpClient, Request
from wire.tls import Tls, TlsContexts

AGENTS_MAX = 5000
_RESOLVE_SECONDS = 30.0
_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS_MIN = 0.5
_PAUSE_SECONDS_MAX = 10.0
_STALE_FACTOR = 2.5
_AHEAD_SECONDS = 60.0
_STACK_BYTES = 256 * 1024
_TROUBLED_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """A view, and when it came, by our own monotonic clock."""

    told: ToldView
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where an agent answers; `tls_name` is what its certificate must say, None for plain HTTP."""

    host: str
    port: int
    tls_name: str | None


class AgentFeed:
    """Asks all agents at once, each by a thread that sleeps until its agent answers.

    Args:
        urls: where agents answer, `http://host:port`; a name stands for every address that it resolves to.
        wait_seconds: how long an agent may wait before it answers.
        tls: how agents are checked that are asked by https, and what they are shown; without a server name they must
            be called as their address says.

    Raises:
        Misconfigured: an address is none.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        wait_seconds: float,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._places = [_place_of(url) for url in urls]
        self._tls = tls or Tls()
        # A context holds all authorities, and there may be thousands of agents.
        self._contexts = TlsContexts(self._tls)
        self._credentials = credentials or FixedHeader(None)
        self._wait_seconds = wait_seconds
        self._news = threading.Condition()
        self._heard: dict[str, _Heard] = {}
        self._is_news = False
        self._asked: dict[_Place, threading.Event] = {}
        self._stopped = threading.Event()
        self._log = logger("enforcer.relief.feed_agents")
        self._silent: set[_Place] = set()
        self._resolver = threading.Thread(target=self._follow_addresses, name="agents", daemon=True)

    def start(self) -> None:
        """Ask from now on."""
        self._resolver.start()

    def close(self) -> None:
        """Ask nobody any more."""
        self._stopped.set()
        for event in self._asked.values():
            event.set()
        with self._news:
            self._news.notify_all()

    @property
    def agents(self) -> int:
        """How many agents are asked."""
        return len(self._asked)

    @property
    def silent(self) -> int:
        """How many of them did not answer well the last time."""
        return len(self._silent)

    def views(self, wait_seconds: float) -> Mapping[str, NodeView]:
        """The newest view of every node; see the port."""
        until = time.monotonic() + wait_seconds
        with self._news:
            while not self._is_news and not self._stopped.is_set():
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._news.wait(left)
            self._is_news = False
            oldest = time.monotonic() - _STALE_FACTOR * self._wait_seconds - _PATIENCE_SECONDS
            return {node: heard.told.view for node, heard in self._heard.items() if heard.at >= oldest}

    def _follow_addresses(self) -> None:
        while not self._stopped.is_set():
            found: set[_Place] = set()
            failed: list[_Place] = []
            for place in self._places:
                try:
                    found |= set(_addresses(place, self._tls.server_name))
                except OSError:
                    failed.append(place)
            if failed:
                self._log.warning("agents not found", hosts=[f"{place.host}:{place.port}" for place in failed[:3]])
            self._ask(found, keep_others=bool(failed))
            self._stopped.wait(_RESOLVE_SECONDS)

    def _ask(self, addresses: Iterable[_Place], *, keep_others: bool) -> None:
        wanted = set(sorted(addresses, key=_in_order)[:AGENTS_MAX])
        for address in list(self._asked):
            if address not in wanted and not keep_others:
                self._asked.pop(address).set()
        # A thread that waits for an answer needs little.
        before = threading.stack_size(_STACK_BYTES)
        try:
            for address in sorted(wanted - self._asked.keys(), key=_in_order):
                self._asked[address] = event = threading.Event()
                threading.Thread(target=self._follow, args=(address, event), name="agent", daemon=True).start()
        finally:
            threading.stack_size(before)

    def _follow(self, address: _Place, ended: threading.Event) -> None:
        client = self._client(address)
        trouble, pause = "", _PAUSE_SECONDS_MIN
        # Not all at the same moment.
        ended.wait(random.random() * min(1.0, self._wait_seconds))
        wait = 0.0
        while not ended.is_set() and not self._stopped.is_set():
            try:
                told = self._answer(client, wait, trouble)
                if abs(told.view.at_seconds - time.time()) > _AHEAD_SECONDS:
                    raise Corrupt(f"its view is of {told.view.at_seconds:.0f}, a minute or more from now")
            except (Corrupt, Misconfigured, Unavailable) as exc:
                if address not in self._silent:
                    self._log.warning(
                        "an agent does not answer", address=f"{address.host}:{address.port}", why=str(exc)[:200]
                    )
                self._silent.add(address)
                wait = 0.0
                ended.wait(pause * (0.5 + random.random()))
                pause = min(_PAUSE_SECONDS_MAX, 2 * pause)
                continue
            self._silent.discard(address)
            # While a card is in trouble its use is followed from second to second.
            pause, wait = (
                _PAUSE_SECONDS_MIN,
                min(_TROUBLED_SECONDS, self._wait_seconds) if told.trouble else self._wait_seconds,
            )
            is_news = told.trouble != trouble
            trouble = told.trouble
            self._hear(told, is_news=is_news)
            # Cards that go in and out of trouble are reported once in a while, not at every look.
            ended.wait(_TROUBLED_SECONDS if is_news else 0.0)
        # Whose pod is gone is no longer asked, so it is not silent either.
        self._silent.discard(address)
        client.close()

    def _client(self, address: _Place) -> HttpClient:
        tls = None if address.tls_name is None else replace(self._tls, server_name=address.tls_name)
        endpoint = Endpoint(host=address.host, port=address.port, tls=tls, credentials=self._credentials)
        return HttpClient(endpoint, "gputide-relief", contexts=self._contexts)

    def _answer(self, client: HttpClient, wait_seconds: float, trouble: str) -> ToldView:
        asked = Request(
            path="/view",
            query={"wait": f"{wait_seconds:g}", "trouble": trouble},
            seconds_max=self._wait_seconds + _PATIENCE_SECONDS,
        )
        with client.ask(asked) as answer:
            body = read_body(answer, VIEW_BYTES_MAX)
        if answer.status != HTTPStatus.OK:
            raise Corrupt(f"it answered {answer.status}: {bytes(body[:80])!r}")
        return parse_view(bytes(body))

    def _hear(self, told: ToldView, *, is_news: bool) -> None:
        with self._news:
            self._heard[told.node] = _Heard(told=told, at=time.monotonic())
            if is_news or told.trouble:
                self._is_news = True
                self._news.notify_all()


def _place_of(url: str) -> _Place:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
        raise Misconfigured(f"cannot ask relief.agents={url!r}: expected http://HOST:PORT or https://HOST:PORT")
    return _Place(host=parts.hostname, port=port, tls_name=parts.hostname if parts.scheme == "https" else None)


def _addresses(place: _Place, server_name: str | None) -> list[_Place]:
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    name = None if place.tls_name is None else server_name or place.tls_name
    return [_Place(host=str(entry[4][0]), port=place.port, tls_name=name) for entry in found]


def _in_order(place: _Place) -> tuple[str, int, str]:
    return place.host, place.port, place.tls_name or ""
