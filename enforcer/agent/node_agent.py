"""The node agent: looks twice a second, and lets low priority sleep, limits change and pods go where that is needed.

Every look is decided anew from the state of the node, so it may be killed and started again at any moment. What the
node can do alone (`look`) never waits for what takes the API server (`reach`), and what the regions alone show (`pace`)
never waits for the driver: each may have a thread of its own. `pace` looks at launches some dozen times a second, where
high and low priority share a card and the manner is strict, and acts on nothing but who sleeps. Orders of the control
plane count until they expire, whether or not the API server answers: after that the agent wakes the pods that they put
to sleep, changes no limit, and goes on with what it can decide by itself. While the API server is away no pod can be
evicted: low priority on a card that runs out of framebuffer sleeps, so that it takes no more. Where framebuffer is lent
and host memory runs out, whose framebuffer lies there goes as well (`host_guard`).

What the agent did stands on the node as lines of JSON, with the figures that it decided by: durable, bounded, oldest
first. There are two files: when the newer one is full it becomes the older one, and what the older one held is gone.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from enforcer.agent.give_way import GiveWay, Turn
from enforcer.agent.held_regions import region_of
from enforcer.agent.host_guard import HostGuard
from enforcer.agent.launches import Launches
from enforcer.agent.live_limits import WantedLimit, decide_limits
from enforcer.agent.node_view import ContainerKey, NodeReader, NodeView, SliceView
from enforcer.agent.orders import Orders, orders_text, parse_orders
from enforcer.agent.region_writing import open_for_writing, write_limits
from enforcer.agent.sleepers import Sleepers
from enforcer.agent.watermark import Eviction, Shortage, Watermark
from enforcer.host_memory import HostMemory
from fleet.durable import unwritable, write_durably
from fleet.errors import Corrupt, Misconfigured, Refused, Unavailable
from fleet.logs import logger
from fleet.settings.agent import AgentSettings
from fleet.units import format_time

BLIND_SECONDS = 60.0
"""After so long without a look a sleeping container wakes: nothing would show that it need not sleep any more."""

_WAKE_TRIES = 5
_WAKE_PAUSE_SECONDS = 0.1

_NOT_DONE = (Misconfigured, Refused, Unavailable)
"""What an action may answer; a right that is missing is no reason to stop doing what the node can do alone."""


class NodeActions(Protocol):
    """What the agent may do through the API server: to pods of its own node, and to its node's note of closed cards.

    Every call raises Misconfigured where a right is missing, Refused where the agent may not or the backend can't, and
    Unavailable where the API server can't be reached, or a budget allows no eviction now.
    """

    def evict(self, namespace: str, pod: str, short_of: Shortage) -> None:
        """Evict a pod under its disruption budget, for what is short; one that is gone is no error."""
        ...

    def close_card(self, card: str, until_seconds: float) -> None:
        """Keep newcomers off a card until a moment (Unix seconds)."""
        ...

    def open_cards(self, now_seconds: float) -> tuple[str, ...]:
        """Let newcomers onto cards whose time is over; which they are."""
        ...

    def account(self, seat: SliceView, limit: WantedLimit) -> None:
        """Tell the scheduler's books of a limit that was changed while the pod runs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFolders:
    """Where the agent finds and keeps things.

    Attributes:
        containers: root of all regions, `<hook path>/vgpu/containers`.
    """

    containers: Path
    state: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look led to."""

    view: NodeView
    slept: tuple[ContainerKey, ...] = ()
    woke: tuple[ContainerKey, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What one look at launches led to.

    Attributes:
        is_needed: whether there is anything to look at from one `look` to the next.
        is_calm: whether nobody launched for some seconds, so that half as many looks will do.
    """

    is_needed: bool
    is_calm: bool = False
    slept: tuple[ContainerKey, ...] = ()
    woke: tuple[ContainerKey, ...] = ()


_NOBODY = Pace(is_needed=False)
_NOTHING_NEW = Pace(is_needed=True)
_CALM = Pace(is_needed=True, is_calm=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What was done with the API server's help."""

    limits: tuple[WantedLimit, ...] = ()
    evicted: tuple[Eviction, ...] = ()
    opened: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class NodeAgent:
    """One node's agent.

    Args:
        host_memory: reads what host memory has left, see `enforcer.host_memory`; None where the backend moves no
            framebuffer there.

    Raises:
        Corrupt: its own folder can't be made.
    """

    def __init__(
        self,
        reader: NodeReader,
        actions: NodeActions,
        folders: AgentFolders,
        settings: AgentSettings,
        *,
        host_memory: Callable[[], tuple[HostMemory, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader, self._actions, self._folders = reader, actions, folders
        try:
            folders.state.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise unwritable(folders.state, exc) from exc
        self._clock = clock
        self._seen_at = clock()
        self._manner = settings.give_way
        self._give_way = GiveWay(settings)
        self._watermark = Watermark(settings)
        self._host_memory, self._host_guard = host_memory, HostGuard(settings)
        self._sleepers = Sleepers(folders.containers, folders.state / "asleep.json")
        self._launches = Launches(folders.containers)
        self._turn = threading.Lock()
        self._ordered: frozenset[ContainerKey] = frozenset()
        self._done_turn: Turn | None = None
        self._switched: list[Act] = []
        self._acts = Acts(folders.state / "acts.jsonl")
        self._orders_path = folders.state / "orders.json"
        self._orders = self._kept_orders()
        self._done_limits: set[WantedLimit] = set()
        self._told: dict[str, frozenset[str]] = {}
        self._log = logger("enforcer.agent")

    @property
    def orders(self) -> Orders | None:
        """The orders that it goes by; None where there never were any."""
        return self._orders

    @property
    def asleep(self) -> int:
        """How many containers sleep by it."""
        return len(self._sleepers.asleep)

    def take_orders(self, text: str) -> None:
        """Take new orders, and keep them for the time when nobody can be asked.

        Raises:
            Corrupt: they can't be read; the ones before stay.
        """
        orders = parse_orders(text)
        if self._orders is not None and orders.issued_at < self._orders.issued_at:
            raise Corrupt(
                f"cannot take orders of {orders.issued_at.isoformat()}: newer ones of "
                f"{self._orders.issued_at.isoformat()} are known"
            )
        if orders != self._orders:
            write_durably(self._orders_path, orders_text(orders).encode())
            self._acts.write(datetime.now(UTC), "orders", issued_at=orders.issued_at.isoformat())
        self._orders = orders

    def look(self, deadline_seconds: float) -> Look:
        """Look once, and put to sleep or wake whom that concerns.

        Raises:
            Unavailable: the driver did not answer; nobody fell asleep, and after `BLIND_SECONDS` of that all wake.
            Corrupt: its own folder can't be written; nobody fell asleep.
        """
        try:
            view = self._reader.read(deadline_seconds)
        except Unavailable:
            if self._clock() - self._seen_at >= BLIND_SECONDS:
                self.stop()
            raise
        self._seen_at = self._clock()
        at = datetime.fromtimestamp(view.at_seconds, UTC)
        orders = self._valid_orders(at)
        self._give_way.manner = self._manner if orders is None or orders.give_way is None else orders.give_way
        paused = frozenset(() if orders is None else orders.paused)
        with self._turn:
            now = self._clock()
            # The newest launches first: they explain what the view shows.
            self._launches.look(now)
            self._give_way.step(now, self._launches.seen)
            self._give_way.see(view, now, self._watermark.short_cards(view))
            self._ordered = paused and paused.intersection(entry.key for entry in view.slices)
            self._launches.watch(self._give_way.watched)
            self._sleepers.expect(self._give_way.low)
            self._launches.look(now)
            turn = self._give_way.step(now, self._launches.seen)
            slept, woke = self._sleepers.follow(turn.asleep | self._ordered, now)
            self._sleepers.unblock(turn.free.intersection(woke), self._give_way.lows)
            self._launches.uncount(turn.idle)
            self._done_turn = turn
            self._note(at, slept, woke)
            switched, self._switched = self._switched, []
            refused = (
                *(f"cannot put to sleep: {why}" for why in self._sleepers.refused.values()),
                *(f"cannot look at launches: {why}" for why in self._launches.refused.values()),
            )
        self._acts.write_all(switched)
        self._tell("look", refused)
        return Look(view=view, slept=slept, woke=woke, refused=refused)

    def pace(self) -> Pace:
        """Look at launches once, and put to sleep or wake whom that concerns; the next `look` records it.

        Waits for neither driver nor API server, and for storage only where `look` just heard of new pods.
        """
        with self._turn:
            now = self._clock()
            if not self._give_way.is_due(now, self._launches.look(now)):
                if not self._launches.is_watching:
                    return _NOBODY
                return _CALM if self._launches.is_calm(now) else _NOTHING_NEW
            turn = self._give_way.step(now, self._launches.seen)
            if turn is self._done_turn:
                return _NOTHING_NEW
            slept, woke = self._sleepers.follow_quickly(turn.asleep | self._ordered, now)
            self._sleepers.unblock(turn.free.intersection(woke), self._give_way.lows)
            self._launches.uncount(turn.idle)
            self._done_turn = turn
            if slept or woke:
                self._note(datetime.now(UTC), slept, woke)
            return Pace(is_needed=True, slept=slept, woke=woke)

    def reach(self, view: NodeView) -> Reach:
        """Evict, limit, and open cards, as far as that is needed.

        Raises:
            Corrupt: its own folder can't be written.
        """
        at = datetime.fromtimestamp(view.at_seconds, UTC)
        refused: list[str] = []
        evicted = self._evict(view, at, refused)
        opened = self._open(view, at, refused)
        limits = self._limit(view, self._valid_orders(at), at, refused)
        self._tell("reach", refused)
        return Reach(limits=limits, evicted=evicted, opened=opened, refused=tuple(refused))

    def stop(self) -> None:
        """Wake everybody that it put to sleep, as nobody would afterwards."""
        for _ in range(_WAKE_TRIES):
            with self._turn:
                self._give_way.forget()
                self._ordered = frozenset()
                self._launches.close()
                self._note(datetime.now(UTC), (), self._sleepers.wake_all())
                switched, self._switched = self._switched, []
            self._acts.write_all(switched)
            if not self._sleepers.asleep:
                break
            # A region is in doubt for a moment while a process joins or leaves.
            time.sleep(_WAKE_PAUSE_SECONDS)

    def _note(self, at: datetime, slept: Sequence[ContainerKey], woke: Sequence[ContainerKey]) -> None:
        for act, keys in (("sleep", slept), ("wake", woke)):
            self._switched += [(at, act, {"pod_uid": key.pod_uid, "container": key.container}) for key in keys]

    def _limit(
        self, view: NodeView, orders: Orders | None, at: datetime, refused: list[str]
    ) -> tuple[WantedLimit, ...]:
        if orders is None or not orders.limits:
            return ()
        self._done_limits &= set(orders.limits)
        decision = decide_limits(orders.limits, view, self._done_limits)
        refused += [f"cannot limit {_named(entry)}: {why}" for entry, why in decision.refused]
        written: list[WantedLimit] = []
        seats = {(entry.key, entry.card): entry for entry in view.slices}
        for entry in decision.to_write:
            try:
                self._write_limit(seats[entry.place], entry, at)
            except _NOT_DONE as exc:
                # What grows next relied on this one: the rest waits for the next look.
                refused.append(f"cannot limit {_named(entry)}: {exc}")
                break
            written.append(entry)
        return tuple(written)

    def _write_limit(self, seat: SliceView, entry: WantedLimit, at: datetime) -> None:
        """Into the books first when it grows and last when it shrinks, so that the books never promise what is held."""
        with open_for_writing(region_of(self._folders.containers, entry.container)) as region:
            if entry.card not in region.cards:
                raise Refused(f"its region holds {', '.join(region.cards)}")
            old = region.limits[region.cards.index(entry.card)]
            grows = old != 0 and entry.framebuffer_bytes > old
            if grows:
                self._actions.account(seat, entry)
            write_limits(region, {entry.card: entry.framebuffer_bytes})
            if not grows:
                self._actions.account(seat, entry)
        self._done_limits.add(entry)
        self._acts.write(
            at,
            "limit",
            pod_uid=entry.container.pod_uid,
            container=entry.container.container,
            card=entry.card,
            old_bytes=old,
            new_bytes=entry.framebuffer_bytes,
        )

    def _evict(self, view: NodeView, at: datetime, refused: list[str]) -> tuple[Eviction, ...]:
        evicted: list[Eviction] = []
        for entry in self._watermark.evictions(view) or self._for_host_memory(view, refused):
            try:
                # First the card: a pod that goes must not come back to it.
                self._actions.close_card(entry.card, entry.closed_until)
            except _NOT_DONE as exc:
                refused.append(f"cannot close {entry.card}: {exc}")
            try:
                self._actions.evict(entry.namespace, entry.pod, entry.short_of)
            except _NOT_DONE as exc:
                refused.append(f"cannot evict {entry.namespace}/{entry.pod}: {exc}")
                continue
            evicted.append(entry)
            if entry.short_of is Shortage.HOST_MEMORY:
                self._host_guard.went(view.at_seconds)
            self._acts.write(
                at,
                "evict",
                namespace=entry.namespace,
                pod=entry.pod,
                card=entry.card,
                frees_bytes=entry.frees_bytes,
                short_of=entry.short_of.value,
                reason=entry.reason,
            )
        return tuple(evicted)

    def _for_host_memory(self, view: NodeView, refused: list[str]) -> tuple[Eviction, ...]:
        if self._host_memory is None or not self._host_guard.is_needed(view):
            return ()
        memory = self._host_memory()
        if not memory:
            refused.append("cannot watch host memory, to which framebuffer may move: meminfo shows no MemAvailable")
        return self._host_guard.evictions(view, memory, refused)

    def _open(self, view: NodeView, at: datetime, refused: list[str]) -> tuple[str, ...]:
        try:
            opened = self._actions.open_cards(view.at_seconds)
        except _NOT_DONE as exc:
            refused.append(f"cannot open cards again: {exc}")
            return ()
        for card in opened:
            self._acts.write(at, "open", card=card)
        return opened

    def _valid_orders(self, at: datetime) -> Orders | None:
        orders = self._orders
        return orders if orders is not None and at < orders.expires_at else None

    def _tell(self, who: str, refused: Sequence[str]) -> None:
        """Say what could not be done, once."""
        now = frozenset(refused)
        for text in sorted(now - self._told.get(who, frozenset())):
            self._log.warning("not done", why=text)
        self._told[who] = now

    def _kept_orders(self) -> Orders | None:
        try:
            return parse_orders(self._orders_path.read_text(encoding="utf-8"))
        except (OSError, ValueError, Corrupt):
            return None


def _named(entry: WantedLimit) -> str:
    return f"{entry.container.pod_uid}/{entry.container.container} on {entry.card} to {entry.framebuffer_bytes} bytes"


FILE_BYTES_MAX = 8 << 20

Act = tuple[datetime, str, Mapping[str, Any]]
"""When, which, and its figures."""


class Acts:
    """One node's record of acts; several threads may write.

    Args:
        path: the newer file; made with the first act. The older one has `.1` behind its name.
    """

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._turn = threading.Lock()
        self._is_begun = False

    def write(self, at: datetime, act: str, **figures: Any) -> None:
        """One act, durable before this returns; see `write_all`."""
        self.write_all([(at, act, figures)])

    def write_all(self, acts: Sequence[Act]) -> None:
        """Acts in their order, durable before this returns; storage is waited for once.

        Raises:
            Corrupt: storage can't take them.
        """
        if not acts:
            return
        lines = "".join(
            json.dumps({"at": format_time(at), "act": act, **figures}, sort_keys=True, separators=(",", ":")) + "\n"
            for at, act, figures in acts
        )
        try:
            with self._turn:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if self._path.exists() and self._path.stat().st_size + len(lines) > self._bytes_max:
                    self._path.replace(self._path.with_name(self._path.name + ".1"))
                with self._path.open("ab") as file:
                    # A line that a crash left half written must not take this one with it.
                    begin = b"\n" if not self._is_begun and file.tell() else b""
                    file.write(begin + lines.encode())
                    self._is_begun = True
                    file.flush()
                    os.fdatasync(file.fileno())
        except OSError as exc:
            raise unwritable(self._path, exc) from exc

    def read(self) -> tuple[Mapping[str, Any], ...]:
        """All acts that are kept, oldest first; a line that a crash left half written is left out."""
        found: list[Mapping[str, Any]] = []
        for path in (self._path.with_name(self._path.name + ".1"), self._path):
            if path.exists():
                for line in path.read_bytes().splitlines():
                    try:
                        found.append(json.loads(line))
                    except (ValueError, RecursionError):
                        continue
        return tuple(found)
