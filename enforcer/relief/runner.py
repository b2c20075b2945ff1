"""Relief, one look at a time: who is overloaded, who sleeps, who moves, who comes home.

A look that finds nothing costs nothing: the API server is asked only where a card is in trouble, a move is under way or
somebody is to come home. What is done is decided anew from views, ledger and cluster, so a relief that was killed goes
on with the next. A freeze stops everything but what expires by itself; one enforcer acts at a time (the lease).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from enforcer.admission import unpinned
from enforcer.agent.node_view import NodeView
from enforcer.dialect import Dialect
from enforcer.manifest import Manifest
from enforcer.node_choice import may_run_on, nodes_for
from enforcer.relief.book import Manner, MoveOrder, MoveRecord
from enforcer.relief.choice import Field, Proposal, choose, room_at_home
from enforcer.relief.demand_memory import DemandMemory
from enforcer.relief.moving import Mover
from enforcer.relief.overload import Overload, overloads
from enforcer.relief.sleeping import Sleeping
from enforcer.relief.tools import ReliefPolicy, ReliefTools
from enforcer.relief.warm_replica import move_name, replica_name
from enforcer.relief.wishes import Movable, movable
from enforcer.safety.harm_budget import Brake
from enforcer.snapshot import Snapshot, take_snapshot
from enforcer.words import Words
from fleet.errors import Misconfigured, Refused, Unavailable
from fleet.inventory import WorkloadId
from fleet.logs import logger

DAY = timedelta(days=1)
_HOME_LOOK_SECONDS = 60.0
_SETTLED = timedelta(seconds=2)
"""How long after a move its card's use is still that of before: the driver's figures are means over a second."""
_FRUITLESS_SECONDS = 5.0
_FRUITLESS_SECONDS_MAX = 120.0
_CANDIDATES_MAX = 32
SLEEP_SECONDS_MAX = 20.0
"""How long low priority may take to fall asleep by an order: agents look at theirs every `agent.orders_seconds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefLook:
    """What one look found and did.

    Attributes:
        overloads: cards that are overloaded now.
        said: what people should know, one sentence each.
        is_busy: something is under way: the next look should come soon.
    """

    overloads: tuple[Overload, ...] = ()
    said: tuple[str, ...] = ()
    is_busy: bool = False


class ReliefRunner:
    """Relieves the cards of one cluster; mutable: it remembers demand, and since when cards are in trouble.

    Args:
        tools: what it works with.
        policy: how careful it is.
        memory: what was used before.
    """

    def __init__(self, tools: ReliefTools, policy: ReliefPolicy, memory: DemandMemory | None = None) -> None:
        self._tools, self._policy = tools, policy
        self._memory = memory or DemandMemory()
        self._mover = Mover(tools.reader, tools.writer, tools.book, policy.patience)
        self._sleeping = Sleeping(tools, policy)
        self._since: dict[str, float] = {}
        self._first_seen: dict[str, float] = {}
        self._fruitless: dict[str, tuple[datetime, float]] = {}
        self._home_look_at: datetime | None = None
        self._judged: dict[str, tuple[float, tuple[Overload, ...]]] = {}
        self._had_broken = False
        self._has_lease = False
        self._told: frozenset[str] = frozenset()
        self._log = logger("enforcer.relief")

    @property
    def mover(self) -> Mover:
        """Carries out moves; tests swap it for one that stops on the way."""
        return self._mover

    @mover.setter
    def mover(self, mover: Mover) -> None:
        self._mover = mover

    def see(self, views: Mapping[str, NodeView]) -> tuple[Overload, ...]:
        """Take views in, and say which cards are overloaded; changes nothing in the cluster.

        Raises:
            Unavailable: whoever knows of latency objectives can't be asked.
        """
        return self._seen(views, self._broken())

    def _broken(self) -> dict[str, str]:
        return {entry.pod_id: entry.query for entry in self._tools.objectives.broken()}

    def _seen(self, views: Mapping[str, NodeView], broken: Mapping[str, str]) -> tuple[Overload, ...]:
        self._memory.see(views)
        found = tuple(self._grown(entry) for entry in self._overloads(views, broken))
        troubled = {entry.card for entry in found}
        moving = {entry.card for entry in found if entry.needs_move}
        self._first_seen = {card: at for card, at in self._first_seen.items() if card in troubled}
        self._since = {card: at for card, at in self._since.items() if card in moving}
        for entry in found:
            self._first_seen.setdefault(entry.card, entry.at_seconds)
            if entry.needs_move:
                self._since.setdefault(entry.card, entry.at_seconds)
        return found

    def look(self, views: Mapping[str, NodeView]) -> ReliefLook:
        """Look once, and do what is due.

        Raises:
            Unavailable: the cluster can't be reached; the next look goes on.
            Corrupt: the ledger was edited or can't be written.
        """
        said: list[str] = []
        try:
            broken = self._broken()
        except Unavailable as exc:
            # Who suffers is not known; what nodes see still is.
            said.append(str(exc))
            broken = {}
        found = self._seen(views, broken)
        book, now = self._tools.book, self._tools.reader.now()
        plan = self._sleeping.plan(found)
        is_watched = bool(found or book.open_squeezes())
        is_due = any(self._is_due(entry, now) for entry in found) or self._is_home_due()
        if plan is None and not book.open_moves() and not is_due:
            self._let_go()
            return ReliefLook(overloads=found, said=self._news(said), is_busy=is_watched)
        try:
            self._tools.guard.check_frozen(self._tools.reader)
        except Refused as exc:
            self._let_go()
            return ReliefLook(overloads=found, said=self._news([*said, str(exc)]), is_busy=is_watched)
        if not self._tools.lease.acquire(self._tools.holder, self._policy.lease_seconds):
            self._has_lease = False
            text = "cannot relieve now: somebody else holds the lease gputide/enforcer"
            return ReliefLook(overloads=found, said=self._news([*said, text]), is_busy=True)
        self._has_lease = True
        works: tuple[Callable[[], list[str]], ...] = (
            lambda: [] if plan is None else self._sleeping.carry_out(plan),
            self._go_on,
            lambda: self._move(found, views),
            lambda: self._go_home(views),
        )
        for work in works:
            try:
                said += work()
            except (Misconfigured, Refused) as exc:
                # What can't be done to one keeps nobody else from being relieved.
                said.append(str(exc))
        if not book.open_moves():
            # Others may act while all there is to do is to watch.
            self._let_go()
        is_busy = bool(found or book.open_moves() or book.open_squeezes())
        return ReliefLook(overloads=found, said=self._news(said), is_busy=is_busy)

    def stop(self) -> None:
        """Give the lease back; moves that are under way are gone on with by the next start, orders expire."""
        self._let_go()

    def would_move(self, views: Mapping[str, NodeView]) -> tuple[tuple[Overload, Proposal | None, str], ...]:
        """What would leave each card that needs it, or why nobody can; changes nothing.

        Raises:
            Refused: the backend can't be told a card.
            Unavailable: the cluster can't be reached.
        """
        found = self.see(views)
        needed = [entry for entry in found if entry.needs_move]
        if not needed:
            return ()
        snapshot = take_snapshot(self._tools.reader, self._tools.dialect)
        self._words(snapshot)
        result = []
        for overload in needed:
            ground, left = self._ground(snapshot, views, overload, found, self._tools.reader.now())
            result.append((overload, choose(overload, ground, self._policy.rules), _reasons(left)))
        return tuple(result)

    def _grown(self, entry: Overload) -> Overload:
        """An overload that low priority should have ended by now: it opted out, or sleeps nowhere but on paper."""
        since = self._first_seen.get(entry.card, entry.at_seconds)
        if entry.needs_move or not entry.can_move or entry.at_seconds - since < SLEEP_SECONDS_MAX:
            return entry
        return replace(entry, needs_move=True, reason=f"{entry.reason}; low priority did not end it")

    def _overloads(self, views: Mapping[str, NodeView], broken: Mapping[str, str]) -> tuple[Overload, ...]:
        """Overloads of all nodes; those of a view that was judged before are remembered."""
        judged: dict[str, tuple[float, tuple[Overload, ...]]] = {}
        for node, view in views.items():
            known = None if broken or self._had_broken else self._judged.get(node)
            if known is None or known[0] != view.at_seconds:
                known = (view.at_seconds, overloads({node: view}, self._policy.overload, broken))
            judged[node] = known
        self._judged, self._had_broken = judged, bool(broken)
        return tuple(entry for node in sorted(judged) for entry in judged[node][1])

    # --- who moves ---

    def _go_on(self) -> list[str]:
        records = self._tools.book.open_moves()
        if not records:
            return []
        words = self._words(None)
        return [text for record in records if (text := self._mover.go_on(record, words))]

    def _move(self, found: Sequence[Overload], views: Mapping[str, NodeView]) -> list[str]:
        tools, policy, now = self._tools, self._policy, self._tools.reader.now()
        due = [entry for entry in found if self._is_due(entry, now)]
        free = policy.moves_at_once_max - len(tools.book.open_moves())
        if not due or free <= 0:
            return []
        snapshot = take_snapshot(tools.reader, tools.dialect)
        words = self._words(snapshot)
        said = []
        for overload in due:
            if free <= 0:
                break
            ground, left = self._ground(snapshot, views, overload, found, now)
            proposal = choose(overload, ground, policy.rules)
            if proposal is None:
                said.append(f"{overload.card} stays overloaded: {_reasons(left)}")
                self._found_nothing(overload.card, now)
                continue
            overloaded_at = datetime.fromtimestamp(self._first_seen[overload.card], UTC)
            try:
                said.append(self._mover.begin(self._order(proposal, overload.reason, overloaded_at, now), words))
                free -= 1
                self._fruitless.pop(overload.card, None)
            except (Misconfigured, Refused) as exc:
                said.append(str(exc))
                self._found_nothing(overload.card, now)
        return said

    def _is_due(self, overload: Overload, now: datetime) -> bool:
        since = self._since.get(overload.card)
        if not overload.needs_move or since is None or overload.at_seconds - since < self._policy.sustain_seconds:
            return False
        seen = datetime.fromtimestamp(overload.at_seconds, UTC)
        # Who left after this was seen, or is about to, relieves the card already.
        leaving = {
            record.order.from_card
            for record in self._tools.book.moves()
            if record.is_open or (record.ended_at is not None and seen <= record.ended_at + _SETTLED)
        }
        last = self._fruitless.get(overload.card)
        return overload.card not in leaving and (last is None or (now - last[0]).total_seconds() >= last[1])

    def _found_nothing(self, card: str, now: datetime) -> None:
        pause = self._fruitless[card][1] * 2 if card in self._fruitless else _FRUITLESS_SECONDS
        self._fruitless[card] = (now, min(pause, _FRUITLESS_SECONDS_MAX))

    def _ground(
        self,
        snapshot: Snapshot,
        views: Mapping[str, NodeView],
        overload: Overload,
        found: Sequence[Overload],
        now: datetime,
    ) -> tuple[Field, dict[str, str]]:
        movables: dict[str, Movable] = {}
        nodes: dict[str, frozenset[str]] = {}
        left: dict[str, str] = {}
        low = {part.pod_id for part in overload.low}
        there = [seat for seat in snapshot.seats.values() if overload.card in seat.cards and seat.pod_id not in low]
        for seat in there[:_CANDIDATES_MAX]:
            pod = self._tools.reader.get("Pod", seat.namespace, seat.pod)
            entry = None if pod is None else movable(pod, self._tools.reader, restarts=self._policy.restarts)
            why = "it is gone" if entry is None else entry.why if entry.manner is None else self._held(entry, now)
            if entry is None or why:
                left[seat.pod_id] = why or ""
            else:
                movables[seat.pod_id] = entry
                nodes[seat.pod_id] = nodes_for(unpinned(pod or {}), snapshot.nodes)
        moves = self._tools.book.open_moves()
        rest = self._policy.rest
        recent = [record for record in self._tools.book.moves() if record.ended_at and now - record.ended_at < rest]
        ground = Field(
            snapshot=snapshot,
            views=views,
            memory=self._memory,
            movables=movables,
            nodes=nodes,
            resting=frozenset(f"{record.order.namespace}/{record.order.replica}" for record in recent),
            coming={record.order.pod_id: record.order.to_card for record in moves},
            arrived=frozenset(f"{record.order.namespace}/{record.order.replica}" for record in moves),
            closed=frozenset(entry.card for entry in found),
        )
        return ground, left

    def _held(self, entry: Movable, now: datetime) -> str:
        """Why a workload is left alone now; empty where it is not."""
        book, policy = self._tools.book, self._policy
        moved = book.moved_since(entry.workload, now - DAY)
        if moved >= policy.moves_per_day_max:
            limit = f"relief.moves_per_day_max={policy.moves_per_day_max}"
            return f"{entry.workload} was moved {moved} times in a day, {limit}"
        until = book.backs_off_until(entry.workload, policy.backoff)
        if until is not None and now < until:
            return f"{entry.workload} is left alone until {until:%H:%M:%S}: its last move came to nothing"
        return self._braked(entry.workload, now)

    def _braked(self, workload: WorkloadId, now: datetime) -> str:
        """Whether the harm that a workload suffered since relief first moved it forbids to move it again."""
        first = next((record for record in self._tools.book.moves() if record.order.workload == workload), None)
        if self._tools.harm is None or first is None:
            return ""
        try:
            judged = self._tools.harm.judge([workload], first.begun_at, now)
        except Unavailable:
            # A warehouse that is away must not keep a card overloaded.
            return ""
        return judged.reason if judged.brake in (Brake.FREEZE, Brake.RESTORE) else ""

    def _order(
        self, proposal: Proposal, reason: str, overloaded_at: datetime, now: datetime, *, is_home: bool = False
    ) -> MoveOrder:
        seat, entry = proposal.seat, proposal.movable
        name = move_name(entry.uid, now.isoformat())
        manner = entry.manner or Manner.RESTART
        return MoveOrder(
            move_id=name,
            namespace=seat.namespace,
            pod=seat.pod,
            pod_uid=entry.uid,
            workload=entry.workload,
            maker=entry.maker,
            replica=replica_name(entry.maker, name) if manner is Manner.WARM else "",
            from_node=seat.node or "",
            from_card=str(proposal.part.card),
            to_card=proposal.target.card,
            framebuffer_mib=proposal.part.framebuffer_mib,
            manner=manner,
            is_home=is_home,
            reason=reason,
            overloaded_at=overloaded_at,
        )

    # --- who comes home ---

    def _is_home_due(self) -> bool:
        now = self._tools.reader.now()
        if self._home_look_at is not None and (now - self._home_look_at).total_seconds() < _HOME_LOOK_SECONDS:
            return False
        return bool(self._tools.book.away())

    def _go_home(self, views: Mapping[str, NodeView]) -> list[str]:
        if not self._is_home_due():
            return []
        tools, policy, now = self._tools, self._policy, self._tools.reader.now()
        self._home_look_at = now
        free = policy.moves_at_once_max - len(tools.book.open_moves())
        leaving = {record.order.pod for record in tools.book.open_moves()}
        rest = min(policy.rest, timedelta(seconds=policy.home_seconds))
        rested = [
            record
            for record in tools.book.away()
            if record.ended_at is not None and now - record.ended_at >= rest and record.order.replica not in leaving
        ]
        if not rested or free <= 0:
            return []
        snapshot = take_snapshot(tools.reader, tools.dialect)
        said = []
        for record in rested:
            if free <= 0:
                break
            proposal = self._proposed_home(record, snapshot, views, now)
            if proposal is not None:
                reason = (
                    f"its old card had room for it for relief.home_seconds={policy.home_seconds:g}, at most "
                    f"relief.home_ratio={policy.home_ratio:.0%} in use"
                )
                order = self._order(proposal, reason, now, now, is_home=True)
                said.append(self._mover.begin(order, self._words(snapshot)))
                free -= 1
        return said

    def _proposed_home(
        self, record: MoveRecord, snapshot: Snapshot, views: Mapping[str, NodeView], now: datetime
    ) -> Proposal | None:
        order = record.order
        seat = snapshot.seats.get(f"{order.namespace}/{order.replica}")
        pod = None if seat is None else self._tools.reader.get("Pod", order.namespace, order.replica)
        if seat is None or pod is None or len(seat.slices) != 1:
            return None
        ground = Field(snapshot=snapshot, views=views, memory=self._memory, closed=frozenset(self._first_seen))
        if not room_at_home(
            seat, order.from_card, ground, ratio_max=self._policy.home_ratio, seconds=self._policy.home_seconds
        ):
            return None
        entry = movable(pod, self._tools.reader, restarts=False)
        if entry.manner is None or self._held(entry, now):
            return None
        target = snapshot.cards[order.from_card]
        if not may_run_on(unpinned(pod), snapshot.nodes[target.node]):
            return None
        return Proposal(seat=seat, part=seat.slices[0], target=target, movable=entry, overload=None)

    # --- inside ---

    def _words(self, snapshot: Snapshot | None) -> Words:
        """The names of this installation.

        Raises:
            Refused: its pods don't ask by names that a card can be chosen by.
        """
        dialect: Dialect = self._tools.dialect
        if snapshot is not None:
            dialect = snapshot.dialect
        else:
            configs: dict[tuple[str, str, str], Manifest] = {}
            for key in dialect.config_objects:
                manifest = self._tools.reader.get(*key)
                if manifest is not None:
                    configs[key] = manifest
            dialect = dialect.configured(configs)
        words = getattr(dialect, "words", None)
        if not isinstance(words, Words) or words.use_card is None:
            raise Refused(
                "cannot move pods: this backend can't be told a card by its UUID; low priority sleeps, no more"
            )
        return words

    def _let_go(self) -> None:
        if self._has_lease:
            self._has_lease = False
            with suppress(Unavailable):
                self._tools.lease.release(self._tools.holder)

    def _news(self, said: Sequence[str]) -> tuple[str, ...]:
        """What was not said at the look before."""
        fresh = tuple(text for text in dict.fromkeys(said) if text not in self._told)
        self._told = frozenset(said)
        for text in fresh:
            self._log.info("relief", said=text)
        return fresh


def _reasons(left: Mapping[str, str]) -> str:
    """Why nobody can leave a card, the first three."""
    return "; ".join(f"{pod}: {why}" for pod, why in sorted(left.items())[:3]) or "no card has room for one of its pods"
