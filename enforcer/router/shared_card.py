"""Who of the models that share a card is awake, who wakes next, and who falls asleep for it.

The rule is the one that plans predict with (docs/advice.md, "Models that sleep"): a request wakes its model; where that
does not fit beside those that are awake, models without a request fall asleep before, the one that rested longest
first; a model with a request never does; one model at a time wakes, in the order in which they were asked for. One
whose requests waited in vain goes behind the others.

Servers are believed about themselves alone: each is asked every few seconds whether it sleeps. One that came up anew is
awake, whatever it was before. One that does not answer several times may be on its way up, so it keeps its room for ten
minutes after the last request for it. A server that does not do as it was asked is left alone for a while, longer each
time. Where it did not answer, or did not wake, what it says of its sleep is not believed until it must have ended what
it was asked for, unless it says that it did that.

Everything runs in one event loop. Called by `enforcer.router.model_router`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from fleet.errors import Unavailable
from fleet.logs import logger
from fleet.sleeping import ASLEEP_BYTES

if TYPE_CHECKING:
    from wire.own_metrics import OwnMetrics

LOOK_SECONDS = 5.0
"""Time between two questions to a server whether it sleeps."""
LOST_SECONDS = 600.0
"""How long the room of a server that does not answer is kept: a restart loads its weights, and takes its framebuffer
when it is done."""
UNANSWERED_MAX = 3
"""Questions without an answer, and no request that ended well between them, after which a server counts as gone."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 5.0, 300.0
"""How long a server that did not do as asked is left alone: doubled each time."""
SETTLE_SECONDS = 60.0
"""How long after that it may still be at it, so that it counts with all it may take."""
LEFT_SECONDS = 2.0
"""How long a model still counts as at work for a client that left: the server has to notice."""
WAITING_MAX = 1000
"""Requests of one model that may wait for it; more are refused at once."""


class RouterMetrics:
    """What the router counts of itself; models are named as the settings name them."""

    def __init__(self, own: OwnMetrics) -> None:
        self.requests = own.counter(
            "requests_total",
            "Requests, by what became of them: passed, refused (not for clients, or nobody woke), failed "
            "(the server), left (the client, before an answer).",
            "model",
            "result",
        )
        self.waited = own.histogram(
            "wait_seconds", "How long requests waited for their model, seconds.", "model",
            buckets=(0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
        )  # fmt: skip
        self.woken = own.counter("wakes_total", "Times that a model was woken.", "model")
        self.slept = own.counter("sleeps_total", "Times that a model was put to sleep.", "model")
        self.awake = own.gauge("awake", "1 while a model is awake, else 0.", "model")


class Declined(Unavailable):
    """A server answered that it did not do as it was asked, so it is not at it any more."""


class ModelServer(Protocol):
    """What a server of a model is asked for; each raises `Unavailable` where it can't be done."""

    async def is_asleep(self) -> bool:
        """Whether it sleeps now."""
        ...

    async def sleep(self) -> None:
        """Puts it to sleep; returns when its framebuffer is free."""
        ...

    async def wake(self) -> None:
        """Wakes it; returns when it serves."""
        ...


class Wakefulness(StrEnum):
    """What is known of a model."""

    ASLEEP = "asleep"
    AWAKE = "awake"
    MOVING = "moving"
    """It wakes or falls asleep."""
    LOST = "lost"
    """Its server does not answer, or did not do as it was asked."""


@dataclass(slots=True, kw_only=True)
class _Model:
    """One of the models; mutable: it wakes, works and falls asleep."""

    name: str
    limit_bytes: int
    server: ModelServer
    state: Wakefulness = Wakefulness.LOST
    since: float
    """When it came to this state, or had its last request."""
    moves: int = 0
    """How often its state changed."""
    running: int = 0
    unanswered: int = 0
    pause_seconds: float = 0.0
    retry_at: float = -math.inf
    """When it may be asked to move again."""
    asked_for: Wakefulness = Wakefulness.LOST
    settled_at: float = -math.inf
    """Until then it is believed only where it came to what it was asked for."""
    doubted: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class SharedCard:
    """The models of one card.

    Args:
        servers: by the model's name; the framebuffer that it may take while it is awake, bytes, and its server.
        card_bytes: framebuffer of the card.
        metrics: what is counted.
    """

    def __init__(self, servers: Mapping[str, tuple[int, ModelServer]], card_bytes: int, metrics: RouterMetrics) -> None:
        now = asyncio.get_running_loop().time()
        self._models = {
            name: _Model(name=name, limit_bytes=limit_bytes, server=server, since=now)
            for name, (limit_bytes, server) in servers.items()
        }
        self._card_bytes = card_bytes
        self._metrics = metrics
        self._wanted: deque[_Model] = deque()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def awake(self, name: str, wait_seconds: float) -> AsyncIterator[float]:
        """Holds a model awake for one request; gives the seconds that it waited.

        Args:
            wait_seconds: the longest wait.

        Raises:
            Unavailable: it did not wake in time, its server did not do it, or too many requests wait already.
        """
        model = self._models[name]
        began = self._now()
        if model.state is Wakefulness.AWAKE:
            model.running += 1
        else:
            await self._woken(model, wait_seconds)
        try:
            yield self._now() - began
        except BaseException:
            asyncio.get_running_loop().call_later(LEFT_SECONDS, self._leaves, model)
            raise
        else:
            self._leaves(model)

    def answered(self, name: str, *, is_well: bool) -> None:
        """Notes that a server answered a request, or that it did not: then it is asked at once how it is."""
        model = self._models[name]
        if is_well:
            model.unanswered = 0
        else:
            model.doubted.set()

    async def keep(self) -> None:
        """Wakes and puts to sleep what is due, until it is cancelled."""
        # Before anything moves: who is awake at the start may be at work.
        await asyncio.gather(*(self._ask(model) for model in self._models.values()))
        async with asyncio.TaskGroup() as tasks:
            for model in self._models.values():
                tasks.create_task(self._look(model))
            tasks.create_task(self._move())

    async def _woken(self, model: _Model, wait_seconds: float) -> None:
        """Waits until a request counts as running, which is when its model becomes awake."""
        left = model.retry_at - self._now()
        if left > 0:
            raise Unavailable(f"{model.name} did not wake; it is asked again in {math.ceil(left)} s")
        if len(model.waiting) >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} requests wait for {model.name} already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        model.waiting.append(turn)
        if model not in self._wanted:
            self._wanted.append(model)
        self._changed.set()
        try:
            async with asyncio.timeout(wait_seconds):
                await turn
        except (TimeoutError, asyncio.CancelledError) as exc:
            if turn in model.waiting:
                model.waiting.remove(turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leaves(model)  # its turn came as it left
            if not isinstance(exc, TimeoutError):
                raise
            if model in self._wanted:
                self._wanted.remove(model)
                self._wanted.append(model)
                self._changed.set()
            raise Unavailable(f"{model.name} did not wake within {wait_seconds:g} s") from exc

    def _leaves(self, model: _Model) -> None:
        model.running -= 1
        model.since = self._now()
        self._changed.set()

    async def _look(self, model: _Model) -> None:
        """Asks a server whether it sleeps, again and again, and at once where a request failed."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(model.doubted.wait(), LOOK_SECONDS)
                await asyncio.sleep(min(1.0, LOOK_SECONDS))
            model.doubted.clear()
            if model.state is not Wakefulness.MOVING:
                await self._ask(model)
            self._changed.set()

    async def _ask(self, model: _Model) -> None:
        before, moves = model.state, model.moves
        try:
            is_asleep = await model.server.is_asleep()
        except Unavailable as exc:
            model.unanswered += 1
            if model.unanswered < UNANSWERED_MAX:
                return
            found = Wakefulness.LOST
            reason: str | None = str(exc)
        else:
            model.unanswered = 0
            found = Wakefulness.ASLEEP if is_asleep else Wakefulness.AWAKE
            reason = None
            if found is not model.asked_for and self._now() < model.settled_at:
                return
        if model.moves != moves or found is before:
            return  # it was moved while it answered
        logger(__name__).info("model found", model=model.name, state=found.value, was=before.value, reason=reason)
        self._becomes(model, found)

    async def _move(self) -> None:
        """Wakes one model at a time, and makes room."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while await self._moved():
                pass

    async def _moved(self) -> bool:
        """Does what is due first; false where nothing is, or nothing can be done now."""
        if self._free_bytes() < 0:
            # Somebody came up anew beside those that are awake.
            resting = self._resting()
            if resting:
                await self._put_to_sleep(resting[:1])
                return True
        for model in self._wanted:
            if model.waiting and model.state is Wakefulness.LOST:
                model.since = self._now()  # somebody waits for it, so its room is kept
                self._fail(model, Unavailable(f"the server of {model.name} does not answer"))
        while self._wanted and not self._wanted[0].waiting:
            self._wanted.popleft()
        if not self._wanted:
            return False
        model = self._wanted[0]
        leaving = self._leaving_for(model)
        if leaving is None:
            return False
        await self._put_to_sleep(leaving)
        if not model.waiting or self._free_bytes() < _extra_bytes(model):
            return True  # nobody waits any more, or one did not fall asleep
        await self._wake(model)
        return True

    def _leaving_for(self, model: _Model) -> list[_Model] | None:
        """Who falls asleep so that a model fits; None where those that rest would not make room enough."""
        needed = _extra_bytes(model) - self._free_bytes()
        leaving = []
        for one in self._resting():
            if needed <= 0:
                break
            leaving.append(one)
            needed -= _extra_bytes(one)
        return leaving if needed <= 0 else None

    def _resting(self) -> list[_Model]:
        """Who may be put to sleep now, the one that rested longest first."""
        now = self._now()
        return sorted(
            (
                one
                for one in self._models.values()
                if one.state is Wakefulness.AWAKE and not one.running and one.retry_at <= now
            ),
            key=lambda one: one.since,
        )

    async def _put_to_sleep(self, leaving: list[_Model]) -> None:
        for model in leaving:
            self._becomes(model, Wakefulness.MOVING)
        for model in leaving:
            try:
                await model.server.sleep()
            except Unavailable as exc:
                logger(__name__).warning("cannot put a model to sleep", model=model.name, reason=str(exc))
                self._failed(model, exc, Wakefulness.ASLEEP)
            else:
                model.pause_seconds = 0.0
                self._becomes(model, Wakefulness.ASLEEP)
                self._metrics.slept.labels(model.name).inc()

    async def _wake(self, model: _Model) -> None:
        self._becomes(model, Wakefulness.MOVING)
        try:
            await model.server.wake()
        except Unavailable as exc:
            logger(__name__).warning("cannot wake a model", model=model.name, reason=str(exc))
            self._failed(model, exc, Wakefulness.AWAKE)
        else:
            model.pause_seconds = 0.0
            self._becomes(model, Wakefulness.AWAKE)
            self._metrics.woken.labels(model.name).inc()

    def _failed(self, model: _Model, failure: Unavailable, asked_for: Wakefulness) -> None:
        model.pause_seconds = min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS, 2 * model.pause_seconds))
        model.retry_at = self._now() + model.pause_seconds
        model.doubted.set()
        if asked_for is Wakefulness.ASLEEP and isinstance(failure, Declined):
            self._becomes(model, Wakefulness.AWAKE)
            return
        model.asked_for, model.settled_at = asked_for, self._now() + SETTLE_SECONDS
        self._becomes(model, Wakefulness.LOST)
        self._fail(model, failure)

    def _fail(self, model: _Model, failure: Unavailable) -> None:
        while model.waiting:
            turn = model.waiting.popleft()
            if not turn.done():
                turn.set_exception(failure)

    def _becomes(self, model: _Model, state: Wakefulness) -> None:
        model.state, model.since = state, self._now()
        model.moves += 1
        self._metrics.awake.labels(model.name).set(state is Wakefulness.AWAKE)
        self._changed.set()
        while state is Wakefulness.AWAKE and model.waiting:
            turn = model.waiting.popleft()
            if not turn.done():
                model.running += 1
                turn.set_result(None)

    def _free_bytes(self) -> int:
        return self._card_bytes - sum(self._taken_bytes(model) for model in self._models.values())

    def _taken_bytes(self, model: _Model) -> int:
        if model.state is Wakefulness.ASLEEP:
            return ASLEEP_BYTES
        if model.state is Wakefulness.LOST and self._now() - model.since > LOST_SECONDS:
            return 0
        return model.limit_bytes

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _extra_bytes(model: _Model) -> int:
    """What a model takes awake, beyond what it keeps asleep."""
    return max(0, model.limit_bytes - ASLEEP_BYTES)
