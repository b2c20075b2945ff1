"""A port for each model of a card: requests wake it, and nothing but what is for clients passes.

Whoever reaches a server with sleep mode can put it to sleep, and run code in it: its development mode serves
`/collective_rpc` and more beside `/sleep`. So clients reach the API for people (`/v1/` and a few names beside it) and
nothing else. Reading (GET, HEAD) wakes nobody: the front of a sleeping server still answers probes and scrapes.

Source: vllm-project/vllm:docs/features/sleep_mode.md and vllm/entrypoints (paths). Called by `gputide run router`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from enforcer.router.shared_card import Declined, RouterMetrics, SharedCard
from fleet.errors import Misconfigured, Unavailable
from fleet.sleeping import ASLEEP_BYTES, SLEEP_MODES
from wire.http_proxy import Contexts, Passed, ProxiedPort, ServersBehind, origin_of, proxying, servers_behind

_PREFIX = "/v1/"
_FRONT = frozenset({"/health", "/ping", "/version", "/metrics"})
"""What the front of a server answers, asleep or not."""
_NAMES = frozenset({"/tokenize", "/detokenize", "/invocations", "/pooling", "/classify", "/score", "/rerank"}) | _FRONT
_CLOSED = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""vLLM: for development alone, not for the users of a server."""
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_ASK_SECONDS = 5.0
_MOVE_SECONDS_MAX = 30.0
"""Longest that a server may take to wake or to fall asleep: weights of 59 GB take five seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedModel:
    """One model behind the router.

    Attributes:
        name: how logs and metrics call it.
        host: that its clients reach, with `port`.
        server: origin of its server, such as `http://10.0.0.7:8000`.
        limit_bytes: framebuffer that it may take while it is awake.
    """

    name: str
    host: str
    port: int
    server: str
    limit_bytes: int


class VllmServer:
    """A server of vLLM that was started with sleep mode."""

    _MODE = SLEEP_MODES["vllm"]

    def __init__(self, servers: ServersBehind, origin: str) -> None:
        self._servers, self._origin = servers, origin

    async def is_asleep(self) -> bool:
        """See `ModelServer`."""
        text = await self._ask(self._MODE.state, _ASK_SECONDS)
        try:
            said = json.loads(text)["is_sleeping"]
            if not isinstance(said, bool):
                raise TypeError(said)
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            raise Unavailable(f"{self._origin} does not say whether it sleeps: {text[:200]!r}") from exc
        return said

    async def sleep(self) -> None:
        """See `ModelServer`."""
        await self._ask(self._MODE.sleep, _MOVE_SECONDS_MAX)

    async def wake(self) -> None:
        """See `ModelServer`."""
        await self._ask(self._MODE.wake, _MOVE_SECONDS_MAX)

    async def _ask(self, request: str, seconds: float) -> str:
        method, path = request.split()
        status, text = await self._servers.ask(method, self._origin, path, seconds)
        if status != 200:
            raise Declined(f"{self._origin} answered {request} with {status}: {text[:200]!r}")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelGate:
    """Lets requests to a model pass when it is awake."""

    name: str
    card: SharedCard
    wait_seconds: float
    metrics: RouterMetrics

    def objection(self, raw_path: str) -> str | None:
        return None if is_for_clients(raw_path) else f"{raw_path[:200]!r} is not for clients of this address"

    @asynccontextmanager
    async def held_open(self, method: str, raw_path: str) -> AsyncIterator[None]:
        if method in _READS or unquote(raw_path) in _FRONT:
            yield
            return
        async with self.card.awake(self.name, self.wait_seconds) as waited:
            self.metrics.waited.labels(self.name).observe(waited)
            yield

    def ended(self, how: Passed) -> None:
        if how in (Passed.FAILED, Passed.PASSED):
            self.card.answered(self.name, is_well=how is Passed.PASSED)
        self.metrics.requests.labels(self.name, how.value).inc()


@asynccontextmanager
async def routing(
    models: Sequence[RoutedModel],
    *,
    card_bytes: int,
    wait_seconds: float,
    metrics: RouterMetrics,
    tls: Contexts | None = None,
) -> AsyncIterator[Mapping[str, int]]:
    """Routes to the models of a card meanwhile, and gives the port of each.

    Args:
        models: whose names differ.
        card_bytes: framebuffer of the card.
        wait_seconds: longest that a request waits for its model.
        tls: gives the ports' TLS context; None for plain HTTP.

    Raises:
        Misconfigured: models can't share the card: one never has room, a name stands twice, or a server can't be.
        Unavailable: a port can't be had.
    """
    _check(models, card_bytes)
    async with servers_behind() as servers, AsyncExitStack() as listening:
        known = {one.name: (one.limit_bytes, VllmServer(servers, one.server)) for one in models}
        card = SharedCard(known, card_bytes, metrics)
        gates = [_ModelGate(name=one.name, card=card, wait_seconds=wait_seconds, metrics=metrics) for one in models]
        ports = [
            ProxiedPort(host=one.host, port=one.port, origin=one.server, gate=gate)
            for one, gate in zip(models, gates, strict=True)
        ]
        bound = await listening.enter_async_context(proxying(ports, servers, tls))
        # What fails in the keeper ends the router; it wakes models until the last request has ended.
        async with asyncio.TaskGroup() as tasks:
            keeper = tasks.create_task(card.keep())
            try:
                yield dict(zip((one.name for one in models), bound, strict=True))
            finally:
                await listening.aclose()
                keeper.cancel()


def is_for_clients(raw_path: str) -> bool:
    """Whether clients may ask for a path, as it stands in the request."""
    path = unquote(raw_path)
    parts = path.split("/")
    # Not printable: a server's router (Starlette) takes a path with a newline at its end for the path without it.
    is_plain = path.isprintable() and not {"\\", "%", ";"} & set(path) and not {"", ".", ".."} & set(parts[1:])
    return is_plain and path not in _CLOSED and (path in _NAMES or path.startswith(_PREFIX))


def _check(models: Sequence[RoutedModel], card_bytes: int) -> None:
    """Each model must find room beside all others asleep, or it would wait for ever, and others behind it."""
    for one in models:
        origin_of(one.server)
        needed = one.limit_bytes + ASLEEP_BYTES * (len(models) - 1)
        if needed > card_bytes:
            raise Misconfigured(
                f"cannot route to {one.name}: its limit of {one.limit_bytes} bytes and what the others keep asleep are "
                f"{needed}, more than router.card_bytes={card_bytes}"
            )
    if len({one.name for one in models}) < len(models):
        raise Misconfigured("cannot route: two models of router.models have the same name")
