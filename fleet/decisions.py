"""What gputide proposes: recommendations and the plan that holds them (`gputide.plan/v1`).

The recommender makes a `Plan` of `Recommendation`s, the enforcer carries it out, the faces show it. `fleet.documents`
writes and reads it as the JSON of the contracts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from fleet.capabilities.capability import CorePolicy
from fleet.gpu_policy import PolicyDecision
from fleet.inventory import CardId, CardModelName, Priority, WorkloadId
from fleet.node_changes import NodeRelease, NodeSwitch
from fleet.sentences import Sentence, Value
from fleet.units import format_plan_id


class RecommendationKind(StrEnum):
    """What may be proposed."""

    RECLAIM = "reclaim"
    SLICE = "slice"
    OVERSUBSCRIBE = "oversubscribe"
    COLOCATE = "colocate"
    OFFPEAK_PAIR = "offpeak_pair"
    TIDE = "tide"
    MIG = "mig"
    REHOME = "rehome"
    FEWER_CARDS = "fewer_cards"
    SLEEP = "sleep"
    """Carried out by hand: in no stage of a plan, and none of its totals counts it."""

    @property
    def ends_pods(self) -> bool:
        """Whether carrying it out may leave a pod without a card."""
        return self in (RecommendationKind.RECLAIM, RecommendationKind.FEWER_CARDS)


class RiskLevel(StrEnum):
    """A harm preset: the violation ratio that may be predicted (0.1, 0.5, 2 %)."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Need(StrEnum):
    """What a backend must enforce for a recommendation to hold."""

    FRAMEBUFFER_LIMIT = "framebuffer_limit"
    CORE_LIMIT = "core_limit"
    PRIORITY = "priority"
    AGENT = "agent"
    """The agent of the node, which lets low priority sleep."""
    STRICT_AGENT = "strict_agent"
    """One that does so whenever somebody above works, beside pods whose requests must be answered fast."""
    GRAPH_PAUSE = "graph_pause"
    """A pause by the agent that stops launches of CUDA graphs as well, as a probe on the node saw it."""
    PROBED_GATE = "probed_gate"
    """A gate of low priority that needs no core limit, as a probe on the node saw it."""
    OVERSUBSCRIPTION = "oversubscription"
    SPILL = "spill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A kind of advice that is not given, and why.

    Attributes:
        kind: what is withheld.
        reason: short code, for example `history_too_short`; the message `refused.CODE` says it.
        values: numbers and names in that message.
    """

    kind: RecommendationKind
    reason: str
    values: tuple[tuple[str, Value], ...] = ()


_MONEY_DIGITS_MAX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Saving per week, in the plan's currency.

    Attributes:
        amortised: at the full price of a card hour; None where a model has no price.
        marginal: what stops being paid at once (rent of rented cards; power of owned ones); None where unknown.
    """

    amortised: Decimal | None
    marginal: Decimal | None

    def __post_init__(self) -> None:
        """Raises `ValueError` for what is no sum of money: documents hold it as a number."""
        for amount in (self.amortised, self.marginal):
            if amount is not None and (not amount.is_finite() or amount.adjusted() > _MONEY_DIGITS_MAX):
                raise ValueError(f"expected an amount of fewer than {_MONEY_DIGITS_MAX} digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class FreedCard:
    """One card that no pod needs any more.

    Attributes:
        card: card that the planner empties. Where the backend leaves the choice of cards to the scheduler, another one
            may be emptied instead; the name then stands for it.
        saving_per_week: what its freedom saves; where another card is used instead, the difference of the two.
        is_spare: kept for moves at run time, so it is neither counted nor saved.
        replaced_by: card that nobody held before and that is used instead; such a card saves money but is not counted.
    """

    card: CardId
    saving_per_week: Saving
    is_spare: bool = False
    replaced_by: CardId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a recommendation stands on.

    Attributes:
        coverage_ratio: 0-1.
        counters: column names that were used.
        numbers: named figures, base units (unit last in the name).
    """

    since: datetime
    until: datetime
    samples: int
    coverage_ratio: float
    counters: tuple[str, ...]
    numbers: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One proposal.

    Attributes:
        id: stable within a plan, for example `slice-0007`.
        pods: which pods, `namespace/pod`.
        cards_freed: whole cards that are freed through it, spares included (each card of a plan is counted once).
        saving_per_week: money, that of spares included.
        risk_level: the worse of what its predicted harm and its confidence say.
        confidence: chance that it holds, 0-1.
        why: what is said for it to a service owner, as clauses of one sentence (messages `said.CODE`); the message
            `changes.CODE` of the last one says what would change the advice.
        needs: what the backend must enforce.
        conflicts_with: ids of recommendations that exclude it.
        violation_ratio: predicted share of its pods' active steps that are violated, 0-1.
        low_priority_gpu_hours_per_week: work of low priority that it makes room for.
        freed: the cards, by name: those of `cards_freed` and those that others replace. A card is named once in a plan.
    """

    id: str
    kind: RecommendationKind
    workloads: tuple[WorkloadId, ...]
    pods: tuple[str, ...]
    cards_freed: int
    saving_per_week: Saving
    risk_level: RiskLevel
    confidence: float
    why: tuple[Sentence, ...]
    evidence: Evidence
    needs: tuple[Need, ...] = ()
    conflicts_with: tuple[str, ...] = ()
    violation_ratio: float = 0.0
    low_priority_gpu_hours_per_week: float = 0.0
    freed: tuple[FreedCard, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A workload that is left as it is, and why.

    Attributes:
        reason: short code, for example `opt_out`, `counter_untrusted`; the message `refused.CODE` says it.
        kind: the kind of advice that was refused, None for all.
        values: numbers and names in that message.
    """

    workload: WorkloadId
    reason: str
    kind: RecommendationKind | None = None
    values: tuple[tuple[str, Value], ...] = ()


POOL_ESTIMATED = "slice_pool_estimated"
"""Reason of advice whose need rests on an estimated KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCut:
    """By how much a server that takes framebuffer at its start must take less, so that a smaller slice holds it.

    Attributes:
        server: name of the server (`fleet.servers`).
        seen_before_bytes: memory that it sees now: its slice, or the card where no limit is shown to it.
        seen_bytes: memory that it sees in its new slice, likewise.
        taken_bytes: all that it takes now.
        pool_bytes: its KV cache then.
        cut_bytes: by how much that is smaller than now.
    """

    server: str
    seen_before_bytes: int
    seen_bytes: int
    taken_bytes: int
    pool_bytes: int
    cut_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSlice:
    """One container's slice of a card after the plan.

    Attributes:
        framebuffer_bytes: framebuffer granted; planned with where the backend isolates none.
        compute_ratio: compute share, 0-1; None where nothing limits it.
        core_policy: hard limit or burst.
        oversubscribed: True where the grants on the card may exceed its framebuffer together.
        mig_profile: MIG profile or None.
        pool_cut: what its pre-allocating server must take less; None where it takes no less, or none runs there.
    """

    namespace: str
    pod: str
    container: str
    workload: WorkloadId
    framebuffer_bytes: int
    compute_ratio: float | None
    core_policy: CorePolicy
    priority: Priority
    oversubscribed: bool = False
    mig_profile: str | None = None
    pool_cut: PoolCut | None = None

    @property
    def pod_id(self) -> str:
        """`namespace/pod`."""
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlacement:
    """One card that still carries a pod after the plan.

    Attributes:
        node: node or None where the scheduler may choose.
        framebuffer_oversubscription_ratio: grants / framebuffer.
        node_mode: mode the node must be in, None to leave it.
        memory_scaling: factor by which the card's node must divide grants, so that pods of the card lend each other
            framebuffer; None where they lend none.
        kept_ratio: share of each grant that then stays on the card while its pod rests, at most, 0-1.
    """

    card: CardId
    card_model: CardModelName
    node: str | None
    framebuffer_bytes: int
    framebuffer_oversubscription_ratio: float
    node_mode: str | None = None
    memory_scaling: float | None = None
    kept_ratio: float | None = None
    slices: tuple[PlacedSlice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledReplicas:
    """Replicas of one workload in a window of the day (tide)."""

    workload: WorkloadId
    replicas: int
    start: str
    end: str
    time_zone: str
    frees: tuple[CardId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Recommendations that are applied together; each stage is safe if the plan stops after it.

    Attributes:
        stage: number, from 1.
        title: a few words (message `stage.CODE`).
        recommendations: ids, in the order of application.
        cards_freed: cards that are free for good after it and were in use before; spares are none of them.
        moves: pods that are restarted on another card or with another grant.
        safe_alone: always True; a stage that is not would be a bug.
    """

    stage: int
    title: Sentence
    recommendations: tuple[str, ...]
    cards_freed: int
    moves: int
    safe_alone: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySpan:
    """The history a plan was made from."""

    since: datetime
    until: datetime
    coverage_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtested:
    """What came of plans as dense as this one, made on earlier days of the own history and judged on those after.

    Attributes:
        trials: how many plans.
        within_limit: how many of them harmed no more than may be predicted now.
        since: start of the first judged day.
        until: end of the last.
        violation_ratio_min: least that any of them harmed, share of active time, 0-1.
        violation_ratio_max: most.
    """

    trials: int
    within_limit: int
    since: datetime
    until: datetime
    violation_ratio_min: float
    violation_ratio_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over a plan; see `contracts`.

    Attributes:
        cards_before: cards granted to somebody before.
        cards_after: cards granted to somebody after.
        cards_freed: difference less nothing: whole cards that no pod needs any more, spare cards not counted.
        spare_cards: freed cards that are kept for run-time moves.
        surge_cards: free cards that the plan needs at once while services change cards without a gap: as many are free
            again after it.
        nodes_freed: nodes without any granted card after.
        framebuffer_bytes_freed: framebuffer of the freed cards.
        low_priority_gpu_hours_per_week: room made for low priority.
        predicted_violation_ratio: violated active steps / active steps of high and normal priority, 0-1.
        predicted_violation_interval: between which of that nine of ten such plans are expected to stay; None where the
            history is too short for plans of earlier days.
        unrelieved_violation_ratio: what would be violated should relief not run, 0-1; None where the plan counts on
            none.
        shift_ratio: how many times as busy the whole fleet gets when a company launches something: as it once did
            within the history, else by what other fleets showed.
        shifted_violation_ratio: what would be violated on days on which the whole fleet is so many times as busy, 0-1;
            None where the plan was not asked.
        relief_moves_per_pod_day: moves that relief is expected to make; None where no plan of earlier days says it.
        moves: pods that are restarted.
    """

    cards_before: int
    cards_after: int
    cards_freed: int
    spare_cards: int
    nodes_freed: int
    framebuffer_bytes_freed: int
    low_priority_gpu_hours_per_week: float
    saving_per_week: Saving
    predicted_violation_ratio: float
    predicted_violation_interval: tuple[float, float] | None = None
    unrelieved_violation_ratio: float | None = None
    shift_ratio: float | None = None
    shifted_violation_ratio: float | None = None
    relief_moves_per_pod_day: float | None = None
    moves: int
    surge_cards: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FreedNode:
    """One node that is paid for whole, and of which no pod needs a card any more.

    Attributes:
        cards: all of it, also those that nobody held before.
        per_week: what it costs, which is saved once it is gone; None where a card of it has no price.
    """

    node: str
    cards: int
    per_week: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One point of saved cards against predicted harm.

    Attributes:
        label: preset or naive rule.
        violation_ratio: predicted, 0-1.
        is_chosen: True for this plan's point.
        cards_beyond_max: most cards more that any packing of the same slices could free without more harm, proven on
            the days that were predicted; None where nothing was proven.
    """

    label: str
    cards_freed: int
    violation_ratio: float
    is_chosen: bool = False
    cards_beyond_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Plan:
    """One consistent plan for one cluster (`gputide.plan/v1`).

    Attributes:
        plan_id: SHA-256 of the plan's canonical JSON without this field, in hex; people see `short_id`.
        expires_at: until when it may be applied.
        history: what it was made from.
        inputs_sha256: hash of inventory, usage and settings.
        settings: the settings that shaped it, dotted name and printed value.
        risk: harm preset.
        backend_version: tag of the version it was planned for; None where none was seen: the newest that is known.
        recommendations: proposals, in order of application.
        refused: who is left alone, and why.
        withheld: kinds of advice not given, and why.
        placement: every card that carries a pod afterwards.
        schedule: tide.
        stages: order of application.
        frontier: other points that were possible.
        freed_nodes: nodes that can go, where nodes are what is paid; empty where none is paid so, or none can.
        calibration_ratio: factor by which forecasts of harm were multiplied, by what came of earlier plans and of plans
            tried on earlier days; 1 where neither says anything.
        backtested: what came of plans tried on earlier days; None where the history is too short.
        node_switch: what its one stage does, where it was made by `gputide admin node mode`; None of all others.
        node_release: the same of `gputide admin node release`.
        policies: what policies decided for workloads, sorted; None where they decided nothing.
    """

    plan_id: str
    created_at: datetime
    expires_at: datetime
    cluster: str
    history: HistorySpan
    inputs_sha256: str
    settings: tuple[tuple[str, str], ...]
    risk: RiskLevel
    backend: str
    currency: str
    totals: Totals
    recommendations: tuple[Recommendation, ...]
    refused: tuple[Refusal, ...]
    withheld: tuple[Withheld, ...]
    placement: tuple[CardPlacement, ...]
    schedule: tuple[ScheduledReplicas, ...] = ()
    stages: tuple[Stage, ...]
    frontier: tuple[FrontierPoint, ...] = ()
    freed_nodes: tuple[FreedNode, ...] = ()
    calibration_ratio: float = 1.0
    backtested: Backtested | None = None
    backend_version: str | None = None
    node_switch: NodeSwitch | None = None
    node_release: NodeRelease | None = None
    policies: tuple[PolicyDecision, ...] | None = None

    @property
    def short_id(self) -> str:
        """Its id as people see and type it."""
        return format_plan_id(self.plan_id)

    @property
    def is_of_node(self) -> bool:
        """Whether somebody asked for it of one node, so that it promises nothing; others carry out recommendations."""
        return self.node_switch is not None or self.node_release is not None

    @property
    def tide_stages(self) -> frozenset[int]:
        """Stages that `gputide run tide` plays night by night once they are approved; apply moves nothing for them."""
        tides = {item.id for item in self.recommendations if item.kind is RecommendationKind.TIDE}
        return frozenset(stage.stage for stage in self.stages if not tides.isdisjoint(stage.recommendations))

    @property
    def by_hand(self) -> tuple[Recommendation, ...]:
        """Recommendations that stand in no stage: people carry them out, and nothing here does."""
        return tuple(item for item in self.recommendations if item.kind is RecommendationKind.SLEEP)

    @property
    def rollout_stages(self) -> tuple[int, ...]:
        """Stages that apply carries out, in order: all but those of the tide."""
        tides = self.tide_stages
        return tuple(stage.stage for stage in self.stages if stage.stage not in tides)
