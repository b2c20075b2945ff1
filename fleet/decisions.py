"""What gputide says and does: profiles, recommendations, plans, changes and outcomes.

The analyzer makes `Profile`s, the recommender makes a `Plan` of `Recommendation`s, the enforcer turns it into
`Change`s and measures an `Outcome`; the faces show all of them. `fleet.documents` writes and reads them as the JSON
of the contracts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from fleet.capabilities import CorePolicy
from fleet.inventory import CardId, CardModelName, Priority, WorkloadId


class WorkloadState(StrEnum):
    """What a workload does with its cards; thresholds are settings (`analyzer.*`)."""

    IDLE = "idle"
    IDLE_HELD = "idle_held"
    PARTLY_IDLE = "partly_idle"
    OFF_PEAK = "off_peak"
    OVERSIZED = "oversized"
    BUSY = "busy"
    UNKNOWN = "unknown"


class CardState(StrEnum):
    """What a card does."""

    BUSY = "busy"
    IDLE_HELD = "idle_held"
    LOW_USE = "low_use"
    FREE = "free"
    UNTRUSTED = "untrusted"


class WorkloadClass(StrEnum):
    """What a workload is for, told from its behaviour where labels are silent."""

    INFERENCE = "inference"
    TRAINING = "training"
    NEAR_LINE = "near_line"
    NOTEBOOK = "notebook"
    TRANSCODING = "transcoding"
    UNKNOWN = "unknown"


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
    OVERSUBSCRIPTION = "oversubscription"
    SPILL = "spill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One failed cross-check of a counter.

    Attributes:
        check: name of the check, for example `container_zero_while_card_busy`.
        counter: column name of the distrusted measure.
        detail: what was seen, with numbers.
        since: first window in which it was seen, UTC.
        distrusts: True where the counter may free nothing; False for a remark.
    """

    check: str
    counter: str
    detail: str
    since: datetime | None = None
    distrusts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HourOfWeek:
    """Compute by hour of the week, 168 values each, Monday 00:00 local time first; None where nothing was seen."""

    p50: tuple[float | None, ...]
    p95: tuple[float | None, ...]
    max: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FramebufferProfile:
    """Framebuffer of one slice of a workload, bytes, largest over its slices.

    Attributes:
        granted: granted to a slice.
        used_max: most that was used; None where nothing was collected.
        need_max: most that was needed; None where pre-allocation hides it.
        preallocated: True where the server takes its share at start.
    """

    granted: int
    used_max: int | None
    need_max: int | None
    preallocated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfile:
    """Compute of one slice, share of a card 0-1, quantiles over steps and slices; None where nothing is trusted."""

    granted_ratio: float
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesProfile:
    """Largest use of the video engines, 0-1, None where not collected."""

    encoder_max: float | None
    decoder_max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRateProfile:
    """Requests per second of the whole workload."""

    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is known of one workload (`gputide.profiles/v1`).

    Attributes:
        cluster: cluster.
        namespace: namespace.
        workload: `namespace/Kind/name`.
        workload_kind: Kubernetes kind.
        workload_class: what it does.
        priority: priority of its pods.
        pods: names of its live pods.
        cards: cards they were granted.
        state: state; `UNKNOWN` where evidence is too thin.
        idle_since: last activity, UTC, for idle states.
        idle_pods: pods that are idle (for `PARTLY_IDLE`).
        time_zone: IANA zone of the hours below.
        off_peak_hours: hours of the week (0-167) promised to stay low.
        period_hours: 24, 168 or None.
        hour_of_week: compute by hour of week.
        framebuffer: framebuffer of one slice.
        compute: compute of one slice.
        engines: video engines, None where not collected.
        request_rate: requests per second, None where no server exports it.
        coverage_ratio: windows with a row / windows in which its pods lived, 0-1.
        confidence: how often this state held over the next seven days at this evidence, 0-1.
        trust: failed cross-checks.
        reason: one sentence that says why this state.
    """

    cluster: str
    namespace: str
    workload: WorkloadId
    workload_kind: str
    workload_class: WorkloadClass
    priority: Priority
    pods: tuple[str, ...]
    cards: tuple[CardId, ...]
    state: WorkloadState
    idle_since: datetime | None
    idle_pods: tuple[str, ...] = ()
    time_zone: str
    off_peak_hours: tuple[int, ...]
    period_hours: int | None
    hour_of_week: HourOfWeek
    framebuffer: FramebufferProfile
    compute: ComputeProfile
    engines: EnginesProfile | None
    request_rate: RequestRateProfile | None
    coverage_ratio: float
    confidence: float
    trust: tuple[Finding, ...]
    reason: str

    @property
    def is_trusted(self) -> bool:
        """True when no cross-check distrusts its counters."""
        return not any(finding.distrusts for finding in self.trust)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProfile:
    """What is known of one card.

    Attributes:
        card: card.
        card_model: its model.
        node: its node.
        framebuffer_bytes: its framebuffer.
        framebuffer_used_max: most used, bytes, None where not collected.
        state: state.
        compute_p95: 95th percentile of compute, 0-1, None where not collected.
        idle_since: last activity, UTC, where it is idle.
        workloads: who holds it now.
        coverage_ratio: 0-1.
        reason: one sentence.
    """

    card: CardId
    card_model: CardModelName
    node: str
    framebuffer_bytes: int
    framebuffer_used_max: int | None
    state: CardState
    compute_p95: float | None
    idle_since: datetime | None
    workloads: tuple[WorkloadId, ...]
    coverage_ratio: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """Everything `analyze` prints (`gputide.profiles/v1`).

    Attributes:
        cluster: cluster.
        as_of: moment of the analysis, UTC.
        since: start of the history.
        until: end of the history.
        coverage_ratio: coverage over all workloads, 0-1.
        workloads: one profile per live workload, sorted by id.
        cards: one per card, sorted by id.
        unallocated: cards granted to nobody.
        withheld: kinds of advice that this history can't support, with the reason, for example no SM counter.
    """

    cluster: str
    as_of: datetime
    since: datetime
    until: datetime
    coverage_ratio: float
    workloads: tuple[Profile, ...]
    cards: tuple[CardProfile, ...]
    unallocated: tuple[CardId, ...]
    withheld: tuple[Withheld, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A kind of advice that is not given, and why.

    Attributes:
        kind: what is withheld.
        reason: short code, for example `no_sm_counter`, `history_too_short`.
        detail: one sentence with numbers.
    """

    kind: RecommendationKind
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Saving per week, in the plan's currency.

    Attributes:
        amortised: at the full price of a card hour; None where a model has no price.
        marginal: what stops being paid at once (rent of rented cards; power of owned ones); None where unknown.
    """

    amortised: Decimal | None
    marginal: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a recommendation stands on.

    Attributes:
        since: start of the window.
        until: end of the window.
        samples: samples in it.
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
        kind: what is proposed.
        workloads: who is changed.
        pods: which pods, `namespace/pod`.
        cards_freed: whole cards that become free through it (each card of a plan is counted once).
        saving_per_week: money.
        risk_level: its share in the predicted harm.
        confidence: 0-1.
        reason: one or two plain sentences for a service owner.
        change_of_mind: what would change this advice.
        evidence: numbers behind it.
        needs: what the backend must enforce.
        conflicts_with: ids of recommendations that exclude it.
        violation_ratio: predicted share of its pods' active steps that are violated, 0-1.
        low_priority_gpu_hours_per_week: work of low priority that it makes room for.
    """

    id: str
    kind: RecommendationKind
    workloads: tuple[WorkloadId, ...]
    pods: tuple[str, ...]
    cards_freed: int
    saving_per_week: Saving
    risk_level: RiskLevel
    confidence: float
    reason: str
    change_of_mind: str
    evidence: Evidence
    needs: tuple[Need, ...] = ()
    conflicts_with: tuple[str, ...] = ()
    violation_ratio: float = 0.0
    low_priority_gpu_hours_per_week: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A workload that is left as it is, and why.

    Attributes:
        workload: who.
        reason: short code, for example `opt_out`, `counter_untrusted`, `history_too_short`.
        detail: one sentence with numbers.
        kind: the kind of advice that was refused, None for all.
    """

    workload: WorkloadId
    reason: str
    detail: str
    kind: RecommendationKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSlice:
    """One container's slice of a card after the plan.

    Attributes:
        namespace: namespace.
        pod: pod name.
        container: container.
        workload: owner.
        framebuffer_bytes: framebuffer granted.
        compute_ratio: compute share, 0-1.
        core_policy: hard limit or burst.
        priority: priority.
        oversubscribed: True where the grants on the card may exceed its framebuffer together.
        mig_profile: MIG profile or None.
    """

    namespace: str
    pod: str
    container: str
    workload: WorkloadId
    framebuffer_bytes: int
    compute_ratio: float
    core_policy: CorePolicy
    priority: Priority
    oversubscribed: bool = False
    mig_profile: str | None = None

    @property
    def pod_id(self) -> str:
        """`namespace/pod`."""
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlacement:
    """One card that still carries a pod after the plan.

    Attributes:
        card: card.
        card_model: model.
        node: node or None where the scheduler may choose.
        framebuffer_bytes: framebuffer of the card.
        framebuffer_oversubscription_ratio: grants / framebuffer.
        node_mode: mode the node must be in, None to leave it.
        slices: who sits on it.
    """

    card: CardId
    card_model: CardModelName
    node: str | None
    framebuffer_bytes: int
    framebuffer_oversubscription_ratio: float
    node_mode: str | None = None
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
        title: a few words.
        recommendations: ids, in the order of application.
        cards_freed: cards that are free after it and were not before.
        moves: pods that are restarted on another card or with another grant.
        safe_alone: always True; a stage that is not would be a bug.
    """

    stage: int
    title: str
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
class Totals:
    """Sums over a plan; see `contracts`.

    Attributes:
        cards_before: cards granted to somebody before.
        cards_after: cards granted to somebody after.
        cards_freed: difference less nothing: whole cards that no pod needs any more, spare cards not counted.
        spare_cards: freed cards that are kept for run-time moves.
        nodes_freed: nodes without any granted card after.
        framebuffer_bytes_freed: framebuffer of the freed cards.
        low_priority_gpu_hours_per_week: room made for low priority.
        saving_per_week: money.
        predicted_violation_ratio: violated active steps / active steps of high and normal priority, 0-1.
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
    moves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One point of saved cards against predicted harm.

    Attributes:
        label: preset or naive rule.
        cards_freed: cards.
        violation_ratio: predicted, 0-1.
        is_chosen: True for this plan's point.
    """

    label: str
    cards_freed: int
    violation_ratio: float
    is_chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One consistent plan for one cluster (`gputide.plan/v1`).

    Attributes:
        plan_id: first 12 hex digits of the SHA-256 of the plan's canonical JSON without this field.
        created_at: when, UTC.
        expires_at: until when it may be applied.
        cluster: cluster.
        history: what it was made from.
        inputs_sha256: hash of inventory, usage and settings.
        settings: the settings that shaped it, dotted name and printed value.
        risk: harm preset.
        backend: backend it was planned for.
        currency: ISO 4217.
        totals: sums.
        recommendations: proposals, in order of application.
        refused: who is left alone, and why.
        withheld: kinds of advice not given, and why.
        placement: every card that carries a pod afterwards.
        schedule: tide.
        stages: order of application.
        frontier: other points that were possible.
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


class ChangePhase(StrEnum):
    """Where a change stands."""

    INTENDED = "intended"
    APPLIED = "applied"
    WATCHED = "watched"
    PROMOTED = "promoted"
    RESTORED = "restored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field of one object, before and after.

    Attributes:
        kind: Kubernetes kind (`Deployment`, `Notebook`, `Node` …).
        namespace: namespace, empty for cluster-wide objects.
        name: object.
        field: path, for example `spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]`.
        old: value before as the API serialises it; None where the field was absent.
        new: value after; None removes the field.
        resource_version: version the change is conditional on.
        recommendation: id of the recommendation it carries out.
    """

    kind: str
    namespace: str
    name: str
    field: str
    old: str | None
    new: str | None
    resource_version: str
    recommendation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOutcome:
    """What really happened to one changed workload.

    Attributes:
        workload: who.
        predicted_violation_ratio: promised, 0-1.
        violation_ratio: measured since apply, 0-1, None where nothing was collected.
        active_steps: steps it was active in.
        cause: most frequent cause (`contention`, `short`, `full`), None where there is no harm.
    """

    workload: WorkloadId
    predicted_violation_ratio: float
    violation_ratio: float | None
    active_steps: int
    cause: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a plan, promised against realised (`verify`).

    Attributes:
        plan_id: plan.
        measured_at: when, UTC.
        since: moment of apply.
        until: end of the measured span.
        is_final: False while the span is shorter than `enforcer.verify_days`.
        promised_cards_freed: cards.
        realised_cards_freed: cards that are granted to nobody over the span and were granted before.
        promised_saving_per_week: money.
        realised_saving_per_week: money.
        promised_violation_ratio: 0-1.
        realised_violation_ratio: 0-1; None where nothing was collected.
        control_violation_ratio: of workloads that the plan did not touch; None where there are none.
        coverage_ratio: 0-1.
        given_back: cards that were free and are granted again.
        workloads: per changed workload, worst first.
        verdict: one sentence.
    """

    plan_id: str
    measured_at: datetime
    since: datetime
    until: datetime
    is_final: bool
    promised_cards_freed: int
    realised_cards_freed: int
    promised_saving_per_week: Saving
    realised_saving_per_week: Saving
    promised_violation_ratio: float
    realised_violation_ratio: float | None
    control_violation_ratio: float | None
    coverage_ratio: float
    given_back: int
    workloads: tuple[WorkloadOutcome, ...]
    verdict: str
