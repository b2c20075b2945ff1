"""Whether what a plan freed left the bill: promised → freed → node gone → no longer billed.

The only place that says so: `gputide cost bill show`, `verify` and the weekly report call `plan_bills`. Cards that are
free are those of the plan's outcome (`enforcer.verify`), the same that the verdict counts. A node is wholly freed where
the outcome has a free card on it and nobody holds any card of it now. Days of which no bill knows are in no sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from enforcer.record.journal import RunRecord, StageState
from enforcer.record.savings import PlanRecord, named_cards, promised_cards, realised_of
from fleet.decisions import FreedCard, Plan, Saving
from fleet.inventory import CardId, Inventory
from fleet.money.bill import EXACT, BillPart, BillScope, ChargeKind, NodeName
from fleet.money.saving import cards_in, saved
from fleet.outcomes import Outcome
from fleet.sentences import Sentence

DAYS_BEFORE_MAX = 7
"""Days before a plan was applied whose mean is what a node cost: one week, so that each day of the week counts once."""
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """How the newest release of a node to its owner went.

    Attributes:
        at: when it was kept or taken back; None while it is under way.
        stays: why the node was given back; None where it was not.
    """

    at: datetime | None
    stays: Sentence | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNow:
    """What stands in a cluster.

    Attributes:
        gone: when each node that is gone was last seen: well before the newest sighting of the cluster.
        released: by node.
    """

    inventory: Inventory
    gone: Mapping[str, datetime]
    released: Mapping[str, Release] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBill:
    """What one wholly freed node costs, before the plan was applied and after.

    Attributes:
        stage: last stage that names a free card of it; None where the scheduler chose the cards.
        gone_since: when it was last seen, where it is gone; None while it stands there.
        released_at: when it was handed to its owner; None where it was not, or was given back.
        stays: why it was given back; None where it was not.
        currency: of the bill; None where no row of any bill speaks of it.
        days_before: whole days before the plan was first applied that the bill covers, at most `DAYS_BEFORE_MAX`.
        days_after: whole days that the bill covers after the day on which it was last seen; while it stands, after the
            day on which its stage was applied.
        before_per_day: what was billed a day; None without a day.
        after_per_day: the same after; None without a day.
        saved: days after × what it cost before - what it cost; None without days on either side, or while it stands.
        is_billed_gone: it is gone, and was billed on such a day; None where it stands, or no bill covers one.
        committed_per_day: effective cost before by commitments and purchases, which are paid though the node goes; None
            without a day.
    """

    node: str
    stage: int | None
    gone_since: datetime | None
    released_at: datetime | None = None
    stays: Sentence | str | None = None
    currency: str | None = None
    days_before: int = 0
    days_after: int = 0
    before_per_day: Decimal | None = None
    after_per_day: Decimal | None = None
    saved: Decimal | None = None
    is_billed_gone: bool | None = None
    committed_per_day: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledTotal:
    """Nodes whose bill is known on both sides, in one currency.

    Attributes:
        nodes: wholly freed nodes that a bill covers before and after.
        saved: over those of them that are gone; None where none is.
    """

    currency: str
    nodes: int
    before_per_day: Decimal
    after_per_day: Decimal
    committed_per_day: Decimal
    saved: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBill:
    """One applied stage.

    Attributes:
        free_cards: cards that are free, of those that the stage names; None before `verify`.
        nodes: wholly freed nodes; None before `verify`.
        gone: those of them that are gone.
    """

    stage: int
    promised_cards: int
    promised_saving_per_week: Saving
    free_cards: int | None
    nodes: int | None
    gone: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBill:
    """What a plan promised, what it freed, and what left the bill.

    Attributes:
        currency: of the promise.
        applied_at: when its first stage was applied.
        promised_nodes: whole nodes that the plan frees once all of it is applied, where nodes are what is paid.
        free_cards: cards that are free, by the plan's outcome; None before `verify`.
        nodes: wholly freed nodes by name, gone or not; None before `verify`.
        covered_until: last day that a bill covers of any of these nodes; None where none does.
        totals: by currency, sorted.
    """

    plan_id: str
    currency: str
    applied_at: datetime
    promised_cards: int
    promised_nodes: tuple[str, ...]
    promised_saving_per_week: Saving
    free_cards: int | None
    nodes: tuple[NodeBill, ...] | None
    covered_until: date | None
    totals: tuple[BilledTotal, ...]
    stages: tuple[StageBill, ...]

    @property
    def gone(self) -> tuple[NodeBill, ...]:
        """Wholly freed nodes that are gone."""
        return tuple(node for node in self.nodes or () if node.gone_since is not None)

    @property
    def standing(self) -> tuple[NodeBill, ...]:
        """Wholly freed nodes that are still there."""
        return tuple(node for node in self.nodes or () if node.gone_since is None)

    @property
    def billed_gone(self) -> tuple[NodeBill, ...]:
        """Nodes that are gone and still billed."""
        return tuple(node for node in self.nodes or () if node.is_billed_gone)

    @property
    def unbilled(self) -> tuple[NodeBill, ...]:
        """Wholly freed nodes of which no bill says what they cost before and after."""
        return tuple(node for node in self.nodes or () if node.before_per_day is None or node.after_per_day is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BillSpan:
    """Which days count: from `since` (None for a week before the apply) to before `until`."""

    since: datetime | None
    until: datetime


@dataclass(slots=True)
class _NodeDays:
    """What one node was billed by day; mutable: row by row."""

    currencies: set[str] = field(default_factory=set)
    scopes: set[BillScope] = field(default_factory=set)
    running: dict[date, Decimal] = field(default_factory=dict)
    committed: dict[date, Decimal] = field(default_factory=dict)


def plan_bills(
    plans: Sequence[PlanRecord],
    applied_at: Mapping[str, Mapping[int, datetime]],
    outcomes: Sequence[Outcome],
    now: ClusterNow,
    parts: Sequence[BillPart],
    span: BillSpan,
) -> tuple[PlanBill, ...]:
    """What became of the applied plans of one cluster on the bill, in the order of the plans.

    A card that two plans free counts with the newer of them, as in `enforcer.record.savings.realised_of`.

    Args:
        plans: newest first; those that nobody applied, or that were undone, are left out.
        applied_at: when each stage of each plan was applied, by plan id.
        outcomes: what `verify` found of plans.
    """
    realised = realised_of(plans, outcomes)
    return tuple(
        _plan_bill(one, applied_at[one.plan.plan_id], realised.get(one.plan.plan_id), now, parts, span)
        for one in plans
        if one.applied_stages and applied_at.get(one.plan.plan_id)
    )


def _plan_bill(
    record: PlanRecord,
    applied_at: Mapping[int, datetime],
    free: Sequence[FreedCard] | None,
    now: ClusterNow,
    parts: Sequence[BillPart],
    span: BillSpan,
) -> PlanBill:
    plan, stages = record.plan, sorted(record.applied_stages)
    promised = promised_cards(plan, stages)
    stage_of = {card.card: stage for stage in stages for card in named_cards(plan, [stage])}
    nodes = None if free is None else _freed_nodes(free, stage_of, now)
    billed = _by_node(parts, {NodeName(plan.cluster, node.node) for node in nodes or ()})
    covered = _Coverage(parts)
    bills = None
    if nodes is not None:
        bills = tuple(
            _node_bill(node, billed[NodeName(plan.cluster, node.node)], covered, applied_at, span) for node in nodes
        )
    return PlanBill(
        plan_id=plan.plan_id,
        currency=plan.currency,
        applied_at=min(applied_at.values()),
        promised_cards=cards_in(promised),
        promised_nodes=tuple(one.node for one in plan.freed_nodes),
        promised_saving_per_week=saved(promised),
        free_cards=None if free is None else cards_in(free),
        nodes=bills,
        covered_until=covered.last({scope for one in billed.values() for scope in one.scopes}),
        totals=_totals(bills or ()),
        stages=tuple(_stage(plan, stage, free, stage_of, bills) for stage in stages),
    )


def _freed_nodes(free: Iterable[FreedCard], stage_of: Mapping[CardId, int], now: ClusterNow) -> list[NodeBill]:
    node_of = {card.card: card.node for card in now.inventory.cards}
    busy = {grant.node for grant in now.inventory.live_grants()}
    found: dict[str, list[int | None]] = {}
    for card in free:
        node = node_of.get(card.card)
        if node is not None and node not in busy:
            found.setdefault(node, []).append(stage_of.get(card.card))
    nobody = Release(at=None)
    return [
        NodeBill(
            node=node,
            stage=max((stage for stage in named if stage is not None), default=None),
            gone_since=now.gone.get(node),
            released_at=None if (release := now.released.get(node, nobody)).stays else release.at,
            stays=release.stays,
        )
        for node, named in sorted(found.items())
    ]


def releases_of(runs: Iterable[RunRecord]) -> dict[str, Release]:
    """The newest release of each node, by the ledger; one that was undone is none.

    Args:
        runs: oldest first.
    """
    found: dict[str, Release] = {}
    for run in runs:
        for own in run.records.values():
            for step in own.node_steps:
                if step.departure is None:
                    continue
                found.pop(step.node, None)
                if own.state is StageState.RESTORED:
                    found[step.node] = Release(at=None, stays=own.reason)
                elif own.state is not StageState.UNDONE:
                    found[step.node] = Release(at=own.applied_at)
    return found


def _by_node(parts: Iterable[BillPart], nodes: Collection[NodeName]) -> Mapping[NodeName, _NodeDays]:
    found = {node: _NodeDays() for node in nodes}
    for part in parts:
        for one in part.days:
            own = found.get(one.node)
            if own is None:
                continue
            own.currencies.add(part.currency)
            own.scopes.add(part.scope)
            if one.kind is ChargeKind.RUNNING:
                own.running[one.day] = EXACT.add(own.running.get(one.day, Decimal(0)), one.billed)
            elif one.kind is ChargeKind.COMMITTED:
                own.committed[one.day] = EXACT.add(own.committed.get(one.day, Decimal(0)), one.effective)
    return found


class _Coverage:
    """Which days bills know of a scope."""

    def __init__(self, parts: Iterable[BillPart]) -> None:
        self._days: dict[BillScope, set[date]] = {}
        for part in parts:
            self._days.setdefault(part.scope, set()).update(part.covered)

    def of(self, scopes: Iterable[BillScope], since: date, until: date) -> list[date]:
        """Days in [since, until) that the bills of all these scopes cover."""
        known = [self._days[scope] for scope in scopes]
        return sorted(day for day in set.intersection(*known) if since <= day < until) if known else []

    def last(self, scopes: Iterable[BillScope]) -> date | None:
        """The last day that any of them covers."""
        return max((day for scope in scopes for day in self._days[scope]), default=None)


def _node_bill(
    node: NodeBill, billed: _NodeDays, covered: _Coverage, applied_at: Mapping[int, datetime], span: BillSpan
) -> NodeBill:
    if len(billed.currencies) != 1:
        return node  # no row speaks of it, or it was billed in two currencies, which are never added
    first = min(applied_at.values())
    applied = _day(first)
    changed = node.gone_since or (first if node.stage is None else applied_at.get(node.stage, first))
    since = applied - _DAY * DAYS_BEFORE_MAX if span.since is None else _day(span.since)
    until = _day(span.until)
    before = covered.of(billed.scopes, max(since, applied - _DAY * DAYS_BEFORE_MAX), min(applied, until))
    after = covered.of(billed.scopes, max(_day(changed) + _DAY, since), until)
    cost_before, cost_after = _sum(billed.running, before), _sum(billed.running, after)
    is_gone = node.gone_since is not None
    return replace(
        node,
        currency=next(iter(billed.currencies)),
        days_before=len(before),
        days_after=len(after),
        before_per_day=cost_before / len(before) if before else None,
        after_per_day=cost_after / len(after) if after else None,
        saved=cost_before * len(after) / len(before) - cost_after if before and after and is_gone else None,
        is_billed_gone=any(billed.running.get(day, Decimal(0)) > 0 for day in after) if after and is_gone else None,
        committed_per_day=_sum(billed.committed, before) / len(before) if before else None,
    )


def _day(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def _sum(amounts: Mapping[date, Decimal], days: Iterable[date]) -> Decimal:
    total = Decimal(0)
    for day in days:
        total = EXACT.add(total, amounts.get(day, Decimal(0)))
    return total


def _totals(nodes: Iterable[NodeBill]) -> tuple[BilledTotal, ...]:
    known: dict[str, list[NodeBill]] = {}
    for node in nodes:
        if node.currency is not None and node.before_per_day is not None and node.after_per_day is not None:
            known.setdefault(node.currency, []).append(node)
    return tuple(
        BilledTotal(
            currency=currency,
            nodes=len(own),
            before_per_day=_all(node.before_per_day for node in own) or Decimal(0),
            after_per_day=_all(node.after_per_day for node in own) or Decimal(0),
            committed_per_day=_all(node.committed_per_day for node in own) or Decimal(0),
            saved=_all(node.saved for node in own),
        )
        for currency, own in sorted(known.items())
    )


def _all(amounts: Iterable[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known else None


def _stage(
    plan: Plan,
    stage: int,
    free: Sequence[FreedCard] | None,
    stage_of: Mapping[CardId, int],
    nodes: Sequence[NodeBill] | None,
) -> StageBill:
    promised = promised_cards(plan, [stage])
    own = None if nodes is None else [node for node in nodes if node.stage == stage]
    of_stage = None if free is None else cards_in(card for card in free if stage_of.get(card.card) == stage)
    return StageBill(
        stage=stage,
        promised_cards=cards_in(promised),
        promised_saving_per_week=saved(promised),
        free_cards=of_stage,
        nodes=None if own is None else len(own),
        gone=None if own is None else sum(node.gone_since is not None for node in own),
    )
