"""What is played: the pods that stood there when a plan was made, what they demand on the days that follow, and seats.

A `Stage` is one fold: everything known at the cut, and the coming days. An `Opening` is what a policy makes of it
before the first step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from fleet.decisions import PlacedSlice, Plan
from fleet.inventory import ISOLATION_LABEL, LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL, CardId, Grant, Priority
from fleet.lending import paging_bytes_per_second
from fleet.usage import Float32, History, SliceGrid
from recommender.demand import Demand, demand_of

DAY_SECONDS = 86400
JUDGED_KINDS = frozenset({"Deployment", "StatefulSet"})
"""Owners whose pods live on: jobs and notebooks come and go and say nothing of a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The pods that live at the cut, and their days after it. Rows are live grants, in the inventory's order.

    Attributes:
        known: what was known at the cut.
        whole: the same pods with the days after it.
        demand: demand and need of every row, known and coming, (rows, past + steps).
        past: steps of `demand` that lie before the cut.
        since: the cut.
        is_judged: pods whose harm and cards are counted: of a `Deployment` or `StatefulSet`, seen after the cut.
        is_low: low priority, which others' demand comes before where something holds it back.
        is_alone: pods that share a card with no other: isolated, with several cards or a hardware slice.
        is_single: pods that cannot have a second replica, of a `StatefulSet`: to move is to stop.
        is_fixed: pods that relief must not move: alone, opted out, or single and latency-critical.
        capacity_bytes: framebuffer of each row's card.
        model: number of each row's card model; cards of one name and two sizes are two models.
        models: names of the card models.
    """

    known: History
    whole: History
    demand: Demand
    past: int
    since: datetime
    is_judged: NDArray[np.bool_]
    is_low: NDArray[np.bool_]
    is_alone: NDArray[np.bool_]
    is_single: NDArray[np.bool_]
    is_fixed: NDArray[np.bool_]
    capacity_bytes: NDArray[np.float64]
    model: NDArray[np.int64]
    models: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Number of live grants."""
        return len(self.demand.grants)

    @property
    def steps(self) -> int:
        """Steps that are played."""
        return self.demand.steps - self.past

    @property
    def step_seconds(self) -> int:
        """Length of a step."""
        return self.demand.step_seconds

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Rows whose violation counts: judged, of high or normal priority."""
        return self.is_judged & ~self.is_low

    @property
    def coming(self) -> Float32:
        """Demand of the days that are played, (rows, steps)."""
        return self.demand.compute[:, self.past :]

    def known_at(self, step: int) -> History:
        """What was known of the same pods when a step began."""
        since = self.whole.slices.since
        moment = self.since + timedelta(seconds=step * self.step_seconds)
        part = part_of(self.whole, since, moment)
        return replace(part, inventory=replace(self.known.inventory, as_of=moment))

    def coming_slices(self) -> SliceGrid:
        """Usage of the days that are played."""
        return part_of(self.whole, self.since, self.until).slices

    @property
    def until(self) -> datetime:
        """End of the last step."""
        return self.since + timedelta(seconds=self.steps * self.step_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Seats before the first step.

    Attributes:
        card: number of each row's card, (rows,), int64; any numbers, equal where a card is shared.
        granted_bytes: framebuffer granted to each row, (rows,).
        kept_bytes: what of a grant stays on the card while its pod rests, (rows,); inf where it lends none of it.
        paging_bytes_per_second: how fast lent framebuffer moves to host memory and back, (rows,).
        predicted_violation_ratio: what the policy said beforehand, None where it says nothing.
    """

    card: NDArray[np.int64]
    granted_bytes: NDArray[np.float64]
    kept_bytes: NDArray[np.float64]
    paging_bytes_per_second: NDArray[np.float64]
    predicted_violation_ratio: float | None = None


def cut_history(history: History, *, cut: datetime, until: datetime) -> Stage:
    """One fold of a history that holds both what was known and what came.

    Args:
        cut: when the plan is made.
        until: end of the last day that is played.
    """
    known = history.inventory.known_at(cut)
    before, whole = (part_of(history, history.slices.since, moment) for moment in (cut, until))
    return stage_of(replace(before, inventory=known), replace(whole, inventory=known))


def stage_of(known: History, whole: History) -> Stage:
    """One fold, from what was known and the same pods' days after it.

    Args:
        known: inventory and usage at the cut.
        whole: the same inventory, usage before and after the cut.
    """
    demand = demand_of(whole)
    past = known.slices.steps
    models = sorted({(grant.card_model, grant.framebuffer_bytes) for grant in demand.grants})
    number = {model: index for index, model in enumerate(models)}
    is_long = np.array([grant.workload_kind in JUDGED_KINDS for grant in demand.grants], bool)
    is_alone = _alone(demand.grants)
    is_single = np.array([grant.workload_kind == "StatefulSet" for grant in demand.grants], bool)
    is_fixed = is_alone | _labelled(demand.grants, OPT_OUT_LABEL)
    return Stage(
        known=known,
        whole=whole,
        demand=demand,
        past=past,
        since=known.slices.until,
        is_judged=is_long & np.isfinite(demand.compute[:, past:]).any(axis=1),
        is_low=np.array([grant.priority is Priority.LOW for grant in demand.grants], bool),
        is_alone=is_alone,
        is_single=is_single,
        is_fixed=is_fixed | (is_single & _labelled(demand.grants, LATENCY_CRITICAL_LABEL)),
        capacity_bytes=np.array([grant.framebuffer_bytes for grant in demand.grants], float),
        model=np.array([number[grant.card_model, grant.framebuffer_bytes] for grant in demand.grants], np.int64),
        models=tuple(name for name, _ in models),
    )


def _alone(grants: tuple[Grant, ...]) -> NDArray[np.bool_]:
    cards = Counter((grant.pod_id, grant.container) for grant in grants)
    return np.array(
        [
            cards[grant.pod_id, grant.container] > 1
            or grant.mig_profile is not None
            or grant.label(ISOLATION_LABEL) not in {None, "soft"}
            for grant in grants
        ],
        bool,
    )


def _labelled(grants: tuple[Grant, ...], label: str) -> NDArray[np.bool_]:
    return np.array([grant.label(label) == "true" for grant in grants], bool)


def part_of(history: History, since: datetime, until: datetime) -> History:
    """The steps of a history between two moments; its inventory as it is."""
    grid = history.slices
    first, last = (round((moment - grid.since).total_seconds() / grid.step_seconds) for moment in (since, until))
    return History(inventory=history.inventory, slices=grid.between(first, last))


def whole_cards(stage: Stage) -> Opening:
    """Every pod keeps a whole card."""
    return Opening(
        card=np.arange(stage.rows, dtype=np.int64),
        granted_bytes=stage.capacity_bytes.copy(),
        kept_bytes=np.full(stage.rows, np.inf),
        paging_bytes_per_second=paging_rates(stage),
    )


def paging_rates(stage: Stage, measured: float | None = None) -> NDArray[np.float64]:
    """How fast framebuffer of each row's card moves to host memory and back, bytes per second, (rows,)."""
    models = [paging_bytes_per_second(name, measured) for name in stage.models]
    return np.array(models, float)[stage.model]


def seats_of(plan: Plan, coming: Demand) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Card number, grant and what of it stays on the card while the pod rests (inf: all of it), of each row.

    A pod that the plan does not place has its own card.
    """
    placed: dict[tuple[str, str, str, CardId | None], tuple[int, PlacedSlice, float]] = {}
    for number, card in enumerate(plan.placement):
        for part in card.slices:
            kept = np.inf if card.kept_ratio is None else part.framebuffer_bytes * card.kept_ratio
            place = (number, part, kept)
            placed[part.namespace, part.pod, part.container, card.card] = place
            # A pod with one card may have moved, so it is found without its card as well.
            placed[part.namespace, part.pod, part.container, None] = place
    rows = len(coming.grants)
    where = np.arange(rows, dtype=np.int64) + len(plan.placement)
    granted = np.array([grant.framebuffer_bytes for grant in coming.grants], float)
    kept_bytes = np.full(rows, np.inf)
    for row, grant in enumerate(coming.grants):
        name = (grant.namespace, grant.pod, grant.container)
        found = placed.get((*name, grant.card)) or placed.get((*name, None))
        if found is not None:
            where[row], granted[row], kept_bytes[row] = found[0], found[1].framebuffer_bytes, found[2]
    return where, granted, kept_bytes


def opening_of_plan(stage: Stage, plan: Plan, *, measured_bytes_per_second: float | None = None) -> Opening:
    """Where a plan seats the pods.

    Args:
        measured_bytes_per_second: what a probe measured of framebuffer that moves to host memory; None where none did.

    Returns:
        Seats, of which those lend framebuffer whose card's node the plan scales. A pod that the plan does not place, or
        places on another card model (where nobody has seen its demand), keeps a card of its own.
    """
    card, granted_bytes, kept_bytes = seats_of(plan, stage.demand)
    models = {number: placed.card_model for number, placed in enumerate(plan.placement)}
    for row, grant in enumerate(stage.demand.grants):
        if models.get(int(card[row]), grant.card_model) != grant.card_model:
            card[row] = len(plan.placement) + row
            granted_bytes[row], kept_bytes[row] = grant.framebuffer_bytes, np.inf
    return Opening(
        card=card,
        granted_bytes=granted_bytes,
        kept_bytes=kept_bytes,
        paging_bytes_per_second=paging_rates(stage, measured_bytes_per_second),
        predicted_violation_ratio=plan.totals.predicted_violation_ratio,
    )
