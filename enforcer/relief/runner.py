"""Relief, one look at a time: who is overloaded, who sleeps, who moves, who comes home.

A look that finds nothing costs nothing: the API server is asked only where a card is in trouble, a move is under way or
somebody is to come home. What is done is decided anew from views, ledger and cluster, so a relief that was killed goes
on with the next. A freeze stops everything but what expires by itself; one enforcer acts at a time (the lease).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from enforcer.admission import unpinned
from enforcer.agent.node_view import NodeView
from enforcer.dialect import Dialect
from enforcer.manifest import Manifest
from enforcer.node_choice import nodes_for
from enforcer.relief.demand_memory import STEP_SECONDS, DemandMemory
from enforcer.relief.moving import Mover
from enforcer.relief.overload import Overload, overloads
from enforcer.relief.proposal import Field, Proposal, choose, may_return
from enforcer.relief.relief_context import ReliefContext, ReliefPolicy
from enforcer.relief.relief_journal import Manner, MoveOrder, MovePhase, ReliefJournal
from enforcer.relief.sleeping import Sleeping
from enforcer.relief.warm_replica import move_name, replica_name
from enforcer.relief.wishes import Movable, movable
from enforcer.resource_names import Words
from enforcer.safety.harm_budget import Brake
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.errors import Misconfigured, Refused, Unavailable
from fleet.inventory import WorkloadId
from fleet.logs import logger
from fleet.relief.moves import PastMove, resting, slots_free, unsettled, why_held
from fleet.relief.pace import Pace
from fleet.sentences import Sentence, sentence

if TYPE_CHECKING:
    from wire.own_metrics import OwnMetrics

_CANDIDATES_MAX = 32


class Blocked(StrEnum):
    """Why a look that had something to do did nothing."""

    FREEZE = "freeze"
    LEASE = "lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefLook:
    """What one look found and did.

    Attributes:
        said: what people should know, one sentence each.
        is_busy: something is under way: the next look should come soon.
        blocked: why it did nothing; None where it did what was due.
        ended: how many moves it ended, by how they ended.
    """

    overloads: tuple[Overload, ...] = ()
    said: tuple[str, ...] = ()
    is_busy: bool = False
    blocked: Blocked | None = None
    is_leader: bool = False
    ended: Mapping[MovePhase, int] = field(default_factory=dict)


class ReliefRunner:
    """Relieves the cards of one cluster; mutable: it remembers demand, and since when cards are in trouble."""

    def __init__(self, tools: ReliefContext, policy: ReliefPolicy, memory: DemandMemory | None = None) -> None:
        self._tools, self._policy = tools, policy
        self._memory = memory or DemandMemory(policy.rules.memory_seconds // STEP_SECONDS)
        self.mover = Mover(tools.reader, tools.writer, tools.journal, policy.patience)
        self._sleeping = Sleeping(tools, policy)
        self._pace = Pace(policy.rules)
        self._judged: dict[str, tuple[float, tuple[Overload, ...]]] = {}
        self._had_broken = False
        self._has_lease = False
        self._told: frozenset[str] = frozenset()
        self._log = logger("enforcer.relief")

    @property
    def journal(self) -> ReliefJournal:
        """What relief did."""
        return self._tools.journal

    def see(self, views: Mapping[str, NodeView]) -> tuple[Overload, ...]:
        """Take views in, and say which cards are overloaded; changes nothing in the cluster.

        Raises:
            Unavailable: the source of latency objectives can't be asked.
        """
        return self._seen(views, self._broken())

    def _broken(self) -> dict[str, str]:
        return {entry.pod_id: entry.query for entry in self._tools.objectives.broken()}

    def _seen(self, views: Mapping[str, NodeView], broken: Mapping[str, str]) -> tuple[Overload, ...]:
        self._memory.see(views)
        found = self._overloads(views, broken)
        return tuple(
            entry
            if entry.needs_move == before.needs_move
            else replace(entry, reason=sentence("relief.not_ended_by_pause", reason=entry.reason))
            for entry, before in zip(self._pace.see(found), found, strict=True)
        )

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
        journal, now = self._tools.journal, self._tools.reader.now()
        plan = self._sleeping.plan(found)
        is_watched = bool(found or journal.open_squeezes())
        past = journal.past_moves()
        is_due = bool(self._pace.due(found, past, now.timestamp()))
        is_due |= self._pace.is_home_look_due(past, now.timestamp())
        if plan is None and not journal.open_moves() and not is_due:
            self._let_go()
            return ReliefLook(overloads=found, said=self._news(said), is_busy=is_watched)
        try:
            self._tools.guard.check_frozen(self._tools.reader)
        except Refused as exc:
            self._let_go()
            text = self._news([*said, str(exc)])
            return ReliefLook(overloads=found, said=text, is_busy=is_watched, blocked=Blocked.FREEZE)
        if not self._tools.lease.acquire(self._tools.holder, self._policy.lease_seconds):
            self._has_lease = False
            text = self._news([*said, "cannot relieve now: somebody else holds the lease gputide/enforcer"])
            return ReliefLook(overloads=found, said=text, is_busy=True, blocked=Blocked.LEASE)
        self._has_lease = True
        ended_before = journal.ended_moves()
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
        if not journal.open_moves():
            # Others may act while all there is to do is to watch.
            self._let_go()
        is_busy = bool(found or journal.open_moves() or journal.open_squeezes())
        return ReliefLook(
            overloads=found,
            said=self._news(said),
            is_busy=is_busy,
            is_leader=self._has_lease,
            ended=journal.ended_moves() - ended_before,
        )

    def stop(self) -> None:
        """Give the lease back; moves that are under way are gone on with by the next start, orders expire."""
        self._let_go()

    def would_move(self, views: Mapping[str, NodeView]) -> tuple[tuple[Overload, Proposal | None, str], ...]:
        """What would leave each card that needs it, or why nobody can; changes nothing.

        Raises:
            Refused: the backend takes no card by name.
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

    def _overloads(self, views: Mapping[str, NodeView], broken: Mapping[str, str]) -> tuple[Overload, ...]:
        """Overloads of all nodes; those of a view that was judged before are remembered."""
        judged: dict[str, tuple[float, tuple[Overload, ...]]] = {}
        for node, view in views.items():
            known = None if broken or self._had_broken else self._judged.get(node)
            if known is None or known[0] != view.at_seconds:
                known = (view.at_seconds, overloads({node: view}, self._policy.rules, broken))
            judged[node] = known
        self._judged, self._had_broken = judged, bool(broken)
        return tuple(entry for node in sorted(judged) for entry in judged[node][1])

    # --- who moves ---

    def _go_on(self) -> list[str]:
        records = self._tools.journal.open_moves()
        if not records:
            return []
        words = self._words(None)
        return [text for record in records if (text := self.mover.go_on(record, words))]

    def _move(self, found: Sequence[Overload], views: Mapping[str, NodeView]) -> list[str]:
        tools, policy, now = self._tools, self._policy, self._tools.reader.now()
        past = tools.journal.past_moves()
        if not self._pace.due(found, past, now.timestamp()) or slots_free(past, policy.rules) <= 0:
            return []
        snapshot = take_snapshot(tools.reader, tools.dialect)
        words = self._words(snapshot)
        said: list[str] = []

        def begin(overload: Overload) -> bool:
            ground, left = self._ground(snapshot, views, overload, found, now)
            proposal = choose(overload, ground, policy.rules)
            if proposal is None:
                said.append(f"{overload.card} stays overloaded: {_reasons(left)}")
                return False
            overloaded_at = datetime.fromtimestamp(self._pace.first_seen(overload.card), UTC)
            try:
                said.append(self.mover.begin(self._order(proposal, overload.reason, overloaded_at, now), words))
            except (Misconfigured, Refused) as exc:
                said.append(str(exc))
                return False
            return True

        self._pace.relieve(found, past, now.timestamp(), begin)
        return said

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
            entry = None if pod is None else movable(pod, self._tools.reader, restarts=self._policy.rules.restarts)
            why = "it is gone"
            if entry is not None:
                why = entry.why if entry.manner is None else self._held(entry, now, snapshot)
            if entry is None or why:
                left[seat.pod_id] = why or ""
            else:
                movables[seat.pod_id] = entry
                nodes[seat.pod_id] = nodes_for(unpinned(pod or {}), snapshot.nodes)
        troubled = {entry.card for entry in found}
        closed = unsettled(self._tools.journal.past_moves(), overload.at_seconds) | troubled
        return self._field(snapshot, views, now, closed, movables=movables, nodes=nodes), left

    def _field(
        self,
        snapshot: Snapshot,
        views: Mapping[str, NodeView],
        now: datetime,
        closed: frozenset[Hashable],
        *,
        movables: Mapping[str, Movable],
        nodes: Mapping[str, frozenset[str]],
    ) -> Field:
        moves = [record.order for record in self._tools.journal.open_moves()]
        return Field(
            snapshot=snapshot,
            views=views,
            memory=self._memory,
            movables=movables,
            nodes=nodes,
            resting=resting(self._tools.journal.past_moves(), now.timestamp(), self._policy.rules),
            coming={order.pod_id: order.to_card for order in moves},
            arrived=frozenset(f"{order.namespace}/{order.replica}" for order in moves),
            closed=closed,
        )

    def _held(self, entry: Movable, now: datetime, snapshot: Snapshot) -> str:
        """Why a workload is left alone now; empty where it is not."""
        past, rules = self._tools.journal.past_moves(), self._policy.rules
        pods = len(snapshot.pods.get(entry.workload, ()))
        why = why_held(past, entry.workload, now.timestamp(), rules, pods=pods)
        return why or self._braked(entry.workload, now)

    def _braked(self, workload: WorkloadId, now: datetime) -> str:
        """Whether the harm that a workload suffered since relief first moved it forbids to move it again."""
        first = next((record for record in self._tools.journal.moves() if record.order.workload == workload), None)
        if self._tools.harm is None or first is None:
            return ""
        try:
            judged = self._tools.harm.judge([workload], first.begun_at, now)
        except Unavailable:
            # A warehouse that is away must not keep a card overloaded.
            return ""
        return str(judged.reason) if judged.brake in (Brake.FREEZE, Brake.RESTORE) else ""

    def _order(
        self, proposal: Proposal, reason: Sentence, overloaded_at: datetime, now: datetime, *, is_home: bool = False
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

    def _go_home(self, views: Mapping[str, NodeView]) -> list[str]:
        tools, rules, now = self._tools, self._policy.rules, self._tools.reader.now()
        past = tools.journal.past_moves()
        if not self._pace.is_home_look_due(past, now.timestamp()):
            return []
        # Only pods that rested are worth a look at the whole cluster.
        snapshot = take_snapshot(tools.reader, tools.dialect) if self._pace.home_due(past, now.timestamp()) else None
        said: list[str] = []

        def begin(move: PastMove) -> bool:
            proposal = None if snapshot is None else self._proposed_home(move, snapshot, views, now)
            if proposal is None:
                return False
            reason = sentence("relief.home", seconds=rules.home_seconds, home_ratio=rules.home_ratio)
            order = self._order(proposal, reason, now, now, is_home=True)
            said.append(self.mover.begin(order, self._words(snapshot)))
            return True

        self._pace.bring_home(past, now.timestamp(), begin)
        return said

    def _proposed_home(
        self, move: PastMove, snapshot: Snapshot, views: Mapping[str, NodeView], now: datetime
    ) -> Proposal | None:
        seat, home = snapshot.seats.get(str(move.arrived_as)), str(move.from_card)
        pod = None if seat is None else self._tools.reader.get("Pod", seat.namespace, seat.pod)
        if seat is None or pod is None:
            return None
        entry = movable(pod, self._tools.reader, restarts=False)
        if entry.manner is None or self._held(entry, now, snapshot):
            return None
        nodes = {seat.pod_id: nodes_for(unpinned(pod), snapshot.nodes)}
        closed = self._pace.troubled | unsettled(self._tools.journal.past_moves(), now.timestamp())
        ground = self._field(snapshot, views, now, closed, movables={seat.pod_id: entry}, nodes=nodes)
        if not may_return(seat, home, ground, self._policy.rules, is_isolated=entry.is_isolated):
            return None
        return Proposal(seat=seat, part=seat.slices[0], target=snapshot.cards[home], movable=entry, overload=None)

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
                "cannot move pods: this backend does not take a card by its UUID; low priority sleeps, no more"
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


class ReliefMetrics:
    """What relief counts of itself."""

    def __init__(self, own: OwnMetrics) -> None:
        self._looks = own.passes("look", "look at the cards")
        self._nodes = own.gauge("nodes", "Nodes whose agents showed what they see, at the last look.")
        self._overloaded = own.gauge("overloaded_cards", "Cards that were overloaded at the last look.")
        self._paused = own.gauge("paused_cards", "Cards whose low priority sleeps by an order of relief.")
        self._open_moves = own.gauge("open_moves", "Moves that are under way.")
        self._moves = own.counter("moves_total", "Moves that ended: done or taken_back.", "result")
        self._blocked = own.counter(
            "blocked_looks_total",
            "Looks that did nothing of what was due, by why: a freeze, or the lease that another enforcer holds.",
            "by",
        )
        self._is_leader = own.gauge(
            "is_leader", "1 while it holds the lease gputide/enforcer, which it does while pods move; else 0."
        )
        self.api_requests = own.followed_counter("api_requests_total", "Requests to the Kubernetes API.")

    def look(self, runner: ReliefRunner, views: Mapping[str, NodeView]) -> ReliefLook:
        """One look, counted; see `ReliefRunner.look`."""
        self._nodes.set(len(views))
        with self._looks.one():
            look = runner.look(views)
        self._overloaded.set(len({entry.card for entry in look.overloads}))
        self._paused.set(len(runner.journal.open_squeezes()))
        self._open_moves.set(len(runner.journal.open_moves()))
        self._is_leader.set(look.is_leader)
        for phase, count in look.ended.items():
            self._moves.labels(phase.value).inc(count)
        if look.blocked is not None:
            self._blocked.labels(look.blocked.value).inc()
        return look
