"""What recommendations are written from: the problem, what is permitted, where every pod sits, and the evidence.

Made by `proposals`; every kind of advice (`recommender.advice`) reads it and answers with drafts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import numpy as np

from fleet.capabilities.capability import Division, FramebufferIsolation
from fleet.decisions import Evidence, FreedCard, FreedNode, Need, Recommendation
from fleet.inventory import CardId, CardModelName, Grant, WorkloadId
from fleet.money.paid_nodes import price_per_week
from fleet.money.saving import saving_of
from fleet.priority_holds import Hold
from fleet.schema import Measure
from fleet.sentences import Sentence, sentence
from recommender.advice.case import Permits
from recommender.lent_cards import LentCard
from recommender.mig.instance_size import InstanceAdvice
from recommender.placement import Arrangement, Move
from recommender.problem import PlanningProblem
from recommender.sleep_seats import SleepingSeat
from recommender.tide import Tide


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Recommendations that are carried out together.

    Attributes:
        title: of their stage; None where people carry them out by hand, so that there is none.
        recommendations: in the order in which they are carried out.
        batch: number of the batch of moving workloads that they belong to, from 1; None for a stage of their own.
        turn: place within the batch: 0 makes room, 1 cuts, 2 moves.
    """

    title: Sentence | None
    recommendations: Sequence[Recommendation]
    batch: int | None = None
    turn: int = 0


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The plan's world, before it is written down as recommendations.

    Attributes:
        permits: what may be proposed to which workload.
        arrangement: where every pod sits afterwards.
        tide: workloads that scale in at quiet hours; None where none may, or where it frees no card.
        sleeping: cards that idle models may share asleep.
        batches: workloads that move, in batches (`recommender.proposals`).
    """

    problem: PlanningProblem
    permits: Permits
    arrangement: Arrangement
    tide: Tide | None = None
    sleeping: Sequence[SleepingSeat] = ()
    batches: Sequence[Sequence[WorkloadId]] = ()

    @property
    def grants(self) -> Sequence[Grant]:
        """Live grants by row."""
        return self.problem.demand.grants

    @cached_property
    def moves_of(self) -> dict[WorkloadId, list[Move]]:
        """Moves of each workload of which a pod moves."""
        moves_of: dict[WorkloadId, list[Move]] = defaultdict(list)
        for move in self.arrangement.moves:
            moves_of[self.grants[move.row].workload_id].append(move)
        return dict(moves_of)

    def waits(self, name: WorkloadId) -> bool:
        """Whether a workload is cut only when pods of it move: all replicas restart then, or it has its turn."""
        is_cut_before = self.problem.capability.admits_pods and name not in self._in_turn
        return name in self.moves_of and not is_cut_before

    @cached_property
    def _in_turn(self) -> frozenset[WorkloadId]:
        return frozenset(self.arrangement.sequence)

    def pods(self, rows: Sequence[int]) -> tuple[str, ...]:
        """Pods of rows, sorted."""
        return tuple(sorted({self.grants[row].pod_id for row in rows}))

    def freed(self, cards: Iterable[CardId]) -> tuple[FreedCard, ...]:
        """Cards that are emptied, sorted, with what each saves: less the price of the card that is used instead."""
        known = self.problem.cards
        return tuple(
            FreedCard(
                card=card,
                saving_per_week=saving_of(
                    (known[card],),
                    self.problem.prices,
                    taken=(known[self.replaced[card]],) if card in self.replaced else (),
                ),
                is_spare=card in self.spare,
                replaced_by=self.replaced.get(card),
            )
            for card in sorted(cards)
        )

    @cached_property
    def spare(self) -> frozenset[CardId]:
        """Freed cards kept for moves at run time: the cheapest, by name where prices are equal or unknown.

        A card keeps its node in use, so one on a node that is paid for whole and left is taken last.
        """
        arrangement, known = self.arrangement, self.problem.cards
        if not arrangement.moves:
            return frozenset()
        wanted = self.problem.spares_wanted(len(arrangement.seats))
        counted = sorted(
            arrangement.freed - self.replaced.keys(),
            key=lambda card: (known[card].node in self._left, self.problem.prices.of(known[card]).amortised or 0, card),
        )
        return frozenset(counted[:wanted])

    @cached_property
    def _left(self) -> frozenset[str]:
        """Nodes that are paid for whole and on which no pod is left."""
        busy = {seat.node for seat in self.arrangement.seats}
        return frozenset(self.problem.paid_nodes.keys() - busy)

    @cached_property
    def freed_nodes(self) -> tuple[FreedNode, ...]:
        """Those of them that somebody held cards of, and that keep no spare one, sorted."""
        spared = {self.problem.cards[card].node for card in self.spare}
        return tuple(
            FreedNode(
                node=node,
                cards=len(self.problem.paid_nodes[node]),
                per_week=price_per_week(self.problem.paid_nodes[node], self.problem.prices),
            )
            for node in sorted({grant.node for grant in self.grants} & self._left - spared)
        )

    @cached_property
    def replaced(self) -> Mapping[CardId, CardId]:
        """Freed cards that are not counted, and the card that was unallocated and is used instead of each.

        A cheaper card, or one of the same model: on shared nodes, under the pods that made room for them, where a
        service changes cards without a gap, and where the scheduler chooses the cards of a node.
        """
        arrangement, cards = self.arrangement, self.problem.cards
        found = {
            self.grants[row].card: card.card
            for item in arrangement.rehomed
            for row, card in item.targets.items()
            if card.card in arrangement.taken
        }
        nodes = {seat.node for seat in arrangement.seats if len(seat.rows) > 1} if arrangement.together else set()
        new = {seat.card for seat in arrangement.seats if seat.node in nodes} | set(arrangement.displaced.values())
        new |= arrangement.surge_cards
        if self.problem.capability.division is Division.SCHEDULER:
            new |= {seat.card for seat in arrangement.seats if len(seat.rows) > 1}
        left: dict[CardModelName, list[CardId]] = defaultdict(list)
        for card in sorted(new & arrangement.taken, reverse=True):
            left[cards[card].card_model].append(card)
        sources = {move.source for move in arrangement.moves}
        for card in sorted(arrangement.freed & sources):
            if left[cards[card].card_model]:
                found[card] = left[cards[card].card_model].pop()
        return found

    @cached_property
    def timed_cards(self) -> frozenset[CardId]:
        """Cards of pods of which it was asked how much later their requests are answered beside others."""
        timed = self.arrangement.inflations.keys()
        return frozenset(seat.card for seat in self.arrangement.seats if not timed.isdisjoint(seat.rows))

    @cached_property
    def _lent_of(self) -> Mapping[int, LentCard]:
        """The card of each row that is on one on which framebuffer is lent."""
        return {row: card for card in self.arrangement.lent.values() for row in card.rows}

    def lent_on(self, rows: Sequence[int]) -> list[LentCard]:
        """Cards of rows on which framebuffer is lent, by name."""
        found = {lent.card: lent for row in rows if (lent := self._lent_of.get(row)) is not None}
        return [found[card] for card in sorted(found)]

    def lending(self, rows: Sequence[int]) -> tuple[Sentence, ...]:
        """What lending comes to on the cards of rows: the clause that is said of it; none where nothing is lent."""
        cards = self.lent_on(rows)
        if not cards:
            return ()
        loans = [card.loan for card in cards]
        switches = sum(loan.switches_per_day for loan in loans)
        waits = sum(loan.switches_per_day * loan.switch_seconds for loan in loans)
        return (
            sentence(
                "lend",
                cards=len(cards),
                scaling=max(loan.scaling for loan in loans),
                switches_per_day=round(switches / len(loans), 2),
                switch_seconds=round(waits / switches, 2) if switches else 0.0,
                host_bytes=round(sum(loan.host_bytes for loan in loans)),
            ),
        )

    def evidence(self, name: WorkloadId) -> Evidence:
        """The numbers that advice on a workload rests on, with those of the slice or instance that it gets."""
        demand, history, rows = self.problem.demand, self.problem.history, self.problem.rows_of[name]
        profile, cut = self.problem.profile_of.get(name), self.arrangement.cuts.get(name)
        instance, inflation = self._instances.get(name), self._inflation(rows)
        compute = demand.counted[list(rows)]
        counter = (Measure.SM_ACTIVE if demand.by_sm[list(rows)].any() else Measure.DUTY_CYCLE).value
        seen = np.isfinite(compute)
        first = int(seen.any(axis=0).argmax()) if seen.any() else 0
        since = history.slices.since + timedelta(seconds=first * demand.step_seconds)
        values = compute[seen].astype(float)
        numbers: list[tuple[str, float]] = [("pods", float(len({demand.grants[row].pod_id for row in rows})))]
        if len(values):
            quantiles = np.quantile(values, (0.5, 0.95, 0.99, 1.0))
            stem = counter.removesuffix("_ratio")
            numbers += [
                (f"{stem}_{label}_ratio", round(float(value), 6))
                for label, value in zip(("p50", "p95", "p99", "max"), quantiles, strict=True)
            ]
        need = demand.need_bytes[list(rows)]
        if np.isfinite(need).any():
            numbers.append(("framebuffer_need_max_bytes", float(np.nanmax(need))))
        if cut is not None:
            is_granted = self.problem.capability.framebuffer_isolation is not FramebufferIsolation.NONE
            numbers.append(
                (f"framebuffer_{'granted' if is_granted else 'planned'}_bytes", float(cut.framebuffer_bytes))
            )
            if cut.compute_ratio is not None:
                numbers.append(("compute_granted_ratio", cut.compute_ratio))
        if instance is not None:
            numbers.append(("card_load_max_ratio", round(instance.load_max, 6)))
            numbers.append(("instance_framebuffer_bytes", float(instance.framebuffer_bytes)))
            numbers.append(("instance_compute_ratio", round(instance.compute_ratio, 4)))
            inflation = instance.inflation
        if inflation is not None:
            numbers.append(("latency_p99_inflation_ratio", round(inflation, 3)))
        coverage = profile.coverage_ratio if profile is not None else float(seen.mean()) if seen.size else 0.0
        return Evidence(
            since=since,
            until=history.slices.until,
            samples=int(seen.sum()),
            coverage_ratio=coverage,
            counters=(counter, Measure.FRAMEBUFFER_USED.value),
            numbers=tuple(numbers),
        )

    @cached_property
    def _instances(self) -> dict[WorkloadId, InstanceAdvice]:
        return {item.workload: item.advice for item in self.arrangement.carved if item.stage}

    def _inflation(self, rows: Sequence[int]) -> float | None:
        """The largest predicted P99 latency beside others / alone of a workload's pods."""
        known = self.arrangement.inflations
        return max((ratio for row in rows if (ratio := known.get(row)) is not None), default=None)


def confidence_of(evidence: Evidence) -> float:
    """Coverage, times days / (days + 1): one day of history is half a promise, a week seven eighths."""
    days = (evidence.until - evidence.since).total_seconds() / 86400
    return round(evidence.coverage_ratio * days / (days + 1.0), 4)


def needs_of(
    *, is_hard: bool, hold: Hold | None = None, is_strict: bool = False, lends: bool = False
) -> tuple[Need, ...]:
    """What must be enforced for a slice: hard, beside low priority that is held back, or of which a part is lent.

    Args:
        is_strict: an agent that holds low priority back must do so before the card is full.
    """
    needs = [Need.FRAMEBUFFER_LIMIT]
    if is_hard:
        needs.append(Need.CORE_LIMIT)
    if hold not in (None, Hold.NONE):
        needs.append(Need.PRIORITY)
    if lends:
        needs += [Need.OVERSUBSCRIPTION, Need.SPILL]
    if hold in (Hold.AGENT, Hold.GRAPHS):
        needs += [Need.AGENT, Need.STRICT_AGENT] if is_strict else [Need.AGENT]
    if hold is Hold.GRAPHS:
        needs.append(Need.GRAPH_PAUSE)
    if hold is Hold.PROBED:
        needs.append(Need.PROBED_GATE)
    return tuple(needs)


def counted(number: int, word: str) -> str:
    """A number and its noun, `1 card` or `2 cards`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
