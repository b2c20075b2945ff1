"""What the pages ask: the ports that `dashboards.stored` fulfils, and the records they answer with.

Every method may raise `NotEnoughData`, `Unavailable`, `Corrupt` or `Refused`: the page shows the message instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from dashboards.view_models.card_history import CardHistory, Series
from dashboards.view_models.cluster_sighting import ClusterSighting
from dashboards.view_models.health import LagChain, SourcesSeen
from dashboards.view_models.relief_acts import ReliefActs
from dashboards.view_models.slice_uses import SliceUse
from enforcer.preview import ObjectDiff
from enforcer.record.savings import PlanRecord
from enforcer.switch_preview import NodeStanding, SwitchPreview
from fleet.errors import Unavailable
from fleet.inventory import Quota, WorkloadId
from fleet.money.budgets import BudgetStatus
from fleet.money.cost_days import CostDays
from fleet.money.prices import Prices
from fleet.money.unit_costs import UnitCost
from fleet.money.week_hours import WeekHours
from fleet.node_changes import NodeSwitch
from fleet.outcomes import Outcome
from fleet.profiles import Profiles
from fleet.sentences import Sentence


class NotMadeYet(Unavailable):
    """The first answer about a cluster is being made: the page that asked comes again by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How much the figures of a page may be trusted.

    Attributes:
        coverage_ratio: windows with a row / windows expected, over the last day, 0-1.
        newest_at: end of the newest window that arrived, UTC; None where none did.
        interval_seconds: how often a window is expected.
        now: the moment to count the age from (the clock of the data, which a replay sets).
    """

    coverage_ratio: float
    newest_at: datetime | None
    interval_seconds: float
    now: datetime

    @property
    def age_seconds(self) -> float | None:
        """Age of the newest window; None where there is none."""
        return None if self.newest_at is None else max(0.0, (self.now - self.newest_at).total_seconds())

    @property
    def is_doubtful(self) -> bool:
        """True under 90 % coverage, or when two intervals passed without data."""
        return self.coverage_ratio < 0.9 or self.age_seconds is None or self.age_seconds > 2 * self.interval_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a workload: restart, out of memory, a change by gputide."""

    at: datetime
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadHistory:
    """One workload over time, at most a few thousand steps.

    Attributes:
        times: start of each step, UTC, shape (steps,).
        compute_p50: median over its slices of SM active (or duty cycle), 0-1, shape (steps,).
        compute_p95: 95th percentile over its slices.
        compute_max: largest sample of the step.
        framebuffer_used_bytes: largest over its slices.
        framebuffer_need_bytes: real need where pre-allocation hides it; None where unknown.
        framebuffer_granted_bytes: granted to one slice.
        request_rate: requests per second; None where no server exports it.
        events: what happened meanwhile.
    """

    times: tuple[datetime, ...]
    compute_p50: Series
    compute_p95: Series
    compute_max: Series
    framebuffer_used_bytes: Series
    framebuffer_need_bytes: Series | None
    framebuffer_granted_bytes: Series
    request_rate: Series | None
    events: tuple[Event, ...] = ()


STAGE_KIND = "Stage"
"""Kind of an `ObjectDiff` that stands for a whole stage, named by its number, whose changes can't be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry(PlanRecord):
    """A plan with what became of it and what people decided about it.

    Attributes:
        approved_by: who approved its stages, in order.
        approvals_missing: who else must, empty where nobody.
        applied_at: when the first of its stages was applied.
        apply_refusal: why it can't be applied now (expired, frozen, inputs changed, not approved); None where it can.
        approve_refusal: why the person who asks may approve nothing of it; None where they may something.
        undo_refusal: why the person who asks may not take it back; None where they may.
    """

    approved_by: tuple[str, ...] = ()
    approvals_missing: tuple[str, ...] = ()
    applied_at: datetime | None = None
    apply_refusal: Sentence | str | None = None
    approve_refusal: Sentence | str | None = None
    undo_refusal: Sentence | str | None = None

    @property
    def is_tide_only(self) -> bool:
        """Whether apply has nothing to do for it: all its stages are of the tide, and done once they are approved."""
        return bool(self.plan.tide_stages) and not self.plan.rollout_stages

    @property
    def approve_command(self) -> str:
        """What approves it on the command line; a tide is named."""
        named = "".join(f" --stage {stage}" for stage in sorted(self.plan.tide_stages)) if self.is_tide_only else ""
        return f"gputide plan approve --plan {self.plan.short_id}{named}"


class RolloutPhase(StrEnum):
    """Where a rollout stands as a whole."""

    NOT_STARTED = "not_started"
    CANARY = "canary"
    WATCHING = "watching"
    APPLYING = "applying"
    DONE = "done"
    RESTORING = "restoring"
    RESTORED = "restored"
    FAILED = "failed"


RUNNING_PHASES = frozenset({RolloutPhase.CANARY, RolloutPhase.WATCHING, RolloutPhase.APPLYING, RolloutPhase.RESTORING})
"""Phases in which the pages ask again every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectProgress:
    """One workload of a rollout; `phase` is a word of `fleet.outcomes.ChangePhase`."""

    workload: WorkloadId
    stage: int
    phase: str
    is_canary: bool
    detail: Sentence | str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One watched signal of a rollout against its threshold; `values` oldest first."""

    name: str
    values: Series
    threshold: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """A rollout (or its undo) as it stands.

    Attributes:
        done: objects that reached their end.
        watch_seconds_left: until the verdict of the watch; None where nothing is watched.
    """

    phase: RolloutPhase
    done: int
    total: int
    objects: tuple[ObjectProgress, ...] = ()
    signals: tuple[Signal, ...] = ()
    watch_seconds_left: float | None = None
    said: Sentence | None = None

    @property
    def is_running(self) -> bool:
        """True while more progress is to be expected."""
        return self.phase in RUNNING_PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPreview:
    """What an undo restores and what it keeps.

    Attributes:
        keeps: one line per object that somebody else changed since, with the reason.
        cards_taken: freed cards that are granted again.
    """

    restores: tuple[str, ...]
    keeps: tuple[Sentence, ...]
    cards_taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One line of the ledger.

    Attributes:
        actor: who, person or service.
        action: `approved`, `applied`, `promoted`, `restored`, `undone`, `given_back`, `refused` …
        plan_id: plan, empty where none.
        subject: workload, stage or card.
        detail: one sentence; of the stages that were taken back, why.
        cards: whole cards that changed hands through it; 0 where none.
    """

    at: datetime
    actor: str
    action: str
    plan_id: str
    subject: str
    detail: Sentence | str
    cards: int = 0


class Fleet(Protocol):
    """What is known of the clusters; reads only, from any thread."""

    def clusters(self) -> tuple[str, ...]:
        """Names of all clusters with data, the default one first; empty before the first data came."""
        ...

    def profiles(self, cluster: str) -> Profiles:
        """The newest analysis. The same object while nothing changed, so that pages can keep what they made of it.

        Raises:
            NotEnoughData: nothing was analysed yet; the message names the command that does it.
        """
        ...

    def history(self, cluster: str, workload: str, hours: int | None) -> WorkloadHistory | None:
        """One workload over its last hours (None: all); None where it is unknown. At most about 2,000 steps."""
        ...

    def card_history(self, cluster: str, card: str, hours: int | None) -> CardHistory | None:
        """One card over its last hours; None where it is unknown, or somebody held it whom the reader may not see."""
        ...

    def freshness(self, cluster: str) -> Freshness:
        """Coverage and age of the data."""
        ...


class Slices(Protocol):
    """Knows what containers hold of cards now."""

    def slices(self, cluster: str) -> tuple[SliceUse, ...]:
        """One per container on a card, the same object while nothing changed. Raises as `Fleet.profiles`."""
        ...


class Plans(Protocol):
    """Plans and what people decide about them."""

    def plans(self, cluster: str) -> tuple[PlanEntry, ...]:
        """All plans, newest first, switches of nodes after all others."""
        ...

    def plan(self, plan_id: str) -> PlanEntry | None:
        """One plan; None where there is none of this id."""
        ...

    def approve(self, plan_id: str, stages: tuple[int, ...], by: str) -> PlanEntry:
        """Approve stages in a person's name.

        Raises:
            Refused: expired, edited, or the person may not.
        """
        ...

    def preview(self, plan_id: str, stages: tuple[int, ...]) -> tuple[ObjectDiff, ...]:
        """What the stages would change, asked of the API server without changing anything."""
        ...


class Rollouts(Protocol):
    """Changing a cluster, and taking it back. `apply` and `undo` start in the background and return at once."""

    def apply(self, plan_id: str, stages: tuple[int, ...], by: str) -> None:
        """Start the approved stages, canary first.

        Raises:
            Refused: a guard says no.
        """
        ...

    def progress(self, plan_id: str) -> RolloutProgress:
        """Where the rollout or the undo of a plan stands."""
        ...

    def undo_preview(self, plan_id: str) -> UndoPreview:
        """What an undo would restore and keep."""
        ...

    def undo(self, plan_id: str, by: str) -> None:
        """Start to restore everything that the plan changed.

        Raises:
            Refused: a guard says no, or there is nothing to undo.
        """
        ...


class NodeModes(Protocol):
    """How nodes hand out their cards; each call asks the cluster as it is now."""

    def standing(self, cluster: str, node: str) -> NodeStanding:
        """How a node does, and how it could."""
        ...

    def preview(self, cluster: str, switch: NodeSwitch) -> SwitchPreview:
        """What a switch would change, who would leave and where they would go; changes nothing."""
        ...

    def keep(self, cluster: str, switch: NodeSwitch) -> str:
        """Keep the plan of a switch, to be approved and applied as any other; returns its id.

        Raises:
            Refused: something speaks against it, or the person may not.
        """
        ...


class Outcomes(Protocol):
    """What came of it."""

    def outcomes(self, cluster: str) -> tuple[Outcome, ...]:
        """The newest outcome of every plan that was applied, newest plan first."""
        ...

    def ledger(self, cluster: str) -> tuple[LedgerEntry, ...]:
        """Everything that was done, newest first."""
        ...


class Freezes(Protocol):
    """The freeze: one for all clusters that are changed from here."""

    def frozen_by(self, cluster: str) -> str | None:
        """Who stopped every change, and when; None where nobody did."""
        ...

    def freeze(self, cluster: str, by: str) -> None:
        """Stop every change at once.

        Raises:
            Refused: the person may not.
        """
        ...

    def thaw(self, cluster: str, by: str) -> None:
        """Let changes go on.

        Raises:
            Refused: the person may not.
        """
        ...


class Sightings(Protocol):
    """Knows when each cluster was last heard, without analysing any."""

    def sightings(self) -> tuple[ClusterSighting, ...]:
        """Every cluster with data, by name."""
        ...


class Flow(Protocol):
    """How far behind what comes in is."""

    def lags(self, cluster: str) -> LagChain:
        """Every step from the receiver to the warehouse, of one cluster.

        Raises:
            NotEnoughData: nothing is known of it.
        """
        ...


class Sources(Protocol):
    """Whether sources that are trusted contradict each other; never waits long."""

    def seen(self, cluster: str) -> SourcesSeen | None:
        """What was found on cards of a cluster; None where nobody can be asked."""
        ...


class Money(Protocol):
    """What the fleet costs, and what is allowed to whom; never waits long: what takes long is made beside."""

    @property
    def currency(self) -> str:
        """ISO 4217 code of every amount."""
        ...

    def prices(self, cluster: str) -> Prices:
        """What the cards of a cluster cost now; the same object while nothing changed.

        Raises:
            Misconfigured: the book can't be read.
            NotEnoughData: nothing is known of the cluster's nodes.
        """
        ...

    def budgets(self, cluster: str) -> tuple[BudgetStatus, ...]:
        """How this month's budgets stand; empty where there is none, and in the first hour of a month.

        Raises:
            NotMadeYet: they are being summed for the first time.
            Misconfigured: the book can't be read.
        """
        ...

    def quotas(self, cluster: str) -> tuple[Quota, ...]:
        """Quotas and queues that stand; empty where nothing reports them."""
        ...

    def week(self, cluster: str) -> WeekHours | None:
        """Card hours of the last seven days by tenant; None where no card was known then. Raises as `unit_costs`."""
        ...

    def cost_days(self, cluster: str, *, is_quarter: bool) -> CostDays | None:
        """Card hours by day and holder of the last 28 days, or of the last 91; None without a card."""
        ...

    def unit_costs(self, cluster: str) -> tuple[UnitCost, ...]:
        """Cost of a request or token over the last week; empty where nobody knows how many were made.

        Raises as `budgets`, and `Misconfigured` where nobody is named who could count.
        """
        ...


class ReliefLog(Protocol):
    """Knows what relief did."""

    def acts(self, cluster: str) -> ReliefActs:
        """Who sleeps by its orders, and whom it moved; empty where it never acted. `Corrupt` of an edited ledger."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """All ports together, as the app is given them."""

    fleet: Fleet
    slices: Slices
    plans: Plans
    rollouts: Rollouts
    outcomes: Outcomes
    freezes: Freezes
    sightings: Sightings
    flow: Flow
    money: Money
    relief: ReliefLog
    nodes: NodeModes
    sources: Sources
