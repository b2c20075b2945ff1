"""What is known of workloads and cards: the analyzer's answer (`gputide.profiles/v1`).

The analyzer makes one `Profiles` per cluster; the recommender plans with it, the faces show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fleet.decisions import Withheld
from fleet.inventory import CardId, CardModelName, Priority, WorkloadId
from fleet.sentences import Sentence, Value


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


class HourMeasure(StrEnum):
    """What becomes of a card hour; the parts sum to the hour. Defined by `analyzer.state.card_hours`."""

    UNALLOCATED = "unallocated"
    """Granted to nobody, and can be granted."""
    STRANDED = "stranded"
    """Granted to nobody, and can't be: of compute and framebuffer only one is left."""
    IDLE = "idle"
    """Granted, and part of an idle window (`analyzer.idle_seconds`) without compute."""
    IDLE_HELD = "idle_held"
    """The same, while framebuffer is held (`analyzer.idle_held_bytes_min`)."""
    UNUSED = "unused"
    """Share that was granted to a slice that works, and that it did not use."""
    USED = "used"


class WorkloadClass(StrEnum):
    """What a workload is for, inferred from its behaviour where labels are silent."""

    INFERENCE = "inference"
    TRAINING = "training"
    NEAR_LINE = "near_line"
    NOTEBOOK = "notebook"
    TRANSCODING = "transcoding"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One failed cross-check of a counter.

    Attributes:
        check: name of the check, for example `container_zero_while_card_busy`.
        counter: column name of the distrusted measure.
        values: figures of what was seen, by name; the message `seen.CHECK` says them. Of a workload with several slices
            `slices_found` of its `slices` show it.
        since: first window in which it was seen, UTC.
        distrusts: True where the counter may free nothing; False for a remark.
    """

    check: str
    counter: str
    values: tuple[tuple[str, Value], ...] = ()
    since: datetime | None = None
    distrusts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HourOfWeek:
    """Compute by hour of the week, 168 values each, Monday 00:00 local time first; None where nothing was seen.

    Attributes:
        p50: median.
        p95: 95th percentile.
        max: largest.
        upper: what the hour's peak stays below the next time, nine times in ten: wide where the hour came a few times,
            closer the more often it came; None where it came once. Empty in documents from before it was known.
    """

    p50: tuple[float | None, ...]
    p95: tuple[float | None, ...]
    max: tuple[float | None, ...]
    upper: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftProfile:
    """How the level of a workload's compute moves; None where nothing stands out.

    Attributes:
        shifted_at: start of the first day of a new level, UTC.
        shift_ratio: new level / old level.
        growth_per_week_ratio: change per week / level, since the shift.
    """

    shifted_at: datetime | None
    shift_ratio: float | None
    growth_per_week_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FramebufferProfile:
    """Framebuffer of one slice of a workload, bytes, largest over its slices.

    Attributes:
        granted: granted to a slice.
        used_max: most that was used; None where nothing was collected.
        need_max: most that was needed; None where pre-allocation hides it.
        preallocated: True where the server takes its share at start.
        start_max: most that was needed in the hour after a process started; None where no start was seen.
        steady_max: most that was needed later on; None where nothing was seen then, or pre-allocation hides it.
        pool_min: the least that the server's KV cache is; None where it is not known or there is none.
        pool_max: the most that it is; the same where its size is known.
    """

    granted: int
    used_max: int | None
    need_max: int | None
    preallocated: bool
    start_max: int | None = None
    steady_max: int | None = None
    pool_min: int | None = None
    pool_max: int | None = None

    @property
    def is_hidden(self) -> bool:
        """True where something is held and nothing reveals how much of it is needed: shrinkable with a canary only."""
        return self.used_max is not None and self.need_max is None


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
class NeighbourEffect:
    """How fast a service was on one card with a neighbour that worked, against alone; measured on the own fleet.

    Attributes:
        measured_by: column name of the measure that its speed was read from (`analyzer.neighbours`).
        days: days on which both were seen.
        speed_ratio: speed beside / speed alone, above 0.
        speed_ratio_min: lower end of the interval that holds it with a chance of 95 %.
        speed_ratio_max: upper end.
    """

    neighbour: WorkloadId
    measured_by: str
    days: int
    speed_ratio: float
    speed_ratio_min: float
    speed_ratio_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is known of one workload (`gputide.profiles/v1`).

    Attributes:
        workload: `namespace/Kind/name`.
        pods: names of its live pods.
        state: state; `UNKNOWN` where evidence is too thin.
        idle_since: last activity, UTC, for idle states.
        idle_pods: pods that are idle (for `PARTLY_IDLE`).
        disbelieved_pods: its pods, earlier ones among them, whose compute counters failed a check, where those of at
            least as many live ones passed all: their compute counts as not collected. Where most fail, the workload is
            not trusted (`is_trusted`).
        active_weekdays: days of the week (0 is Monday) on which something was used, as far as the history goes.
        silent_weekdays: days of the week that were seen within the last seven days without any use.
        time_zone: IANA zone of the hours and days of the week.
        off_peak_hours: hours of the week (0-167) promised to stay low.
        period_hours: 24, 168 or None.
        engines: video engines, None where not collected.
        request_rate: requests per second, None where no server exports it.
        coverage_ratio: windows with a row / windows in which its pods lived, 0-1.
        confidence: how often this state held over the next seven days at this evidence, 0-1.
        trust: failed cross-checks.
        why: why this state, as clauses of one sentence (messages `said.CODE`).
        drift: how its level moves, None below a week of history or where compute is not trusted.
        reservation: compute of one slice to keep reserved over the next day, by local hour of the day, 24 values;
            demand passes it one time in twenty. Empty where compute is not known.
        replica_correlation: mean correlation between its replicas, None with fewer than two.
        rises_with: workloads that rise and fall together with it, the closest first.
        beside: how fast it was beside each neighbour, the one first that slowed it most.
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
    disbelieved_pods: tuple[str, ...] = ()
    active_weekdays: tuple[int, ...] = ()
    silent_weekdays: tuple[int, ...] = ()
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
    why: tuple[Sentence, ...]
    drift: DriftProfile | None = None
    reservation: tuple[float | None, ...] = ()
    replica_correlation: float | None = None
    rises_with: tuple[WorkloadId, ...] = ()
    beside: tuple[NeighbourEffect, ...] = ()

    @property
    def is_trusted(self) -> bool:
        """True when no cross-check distrusts its counters."""
        return not any(finding.distrusts for finding in self.trust)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProfile:
    """What is known of one card.

    Attributes:
        framebuffer_used_max: most used, bytes, None where not collected.
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


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Profiles:
    """Everything `workloads` prints (`gputide.profiles/v1`).

    Attributes:
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
