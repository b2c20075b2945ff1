"""One workload as advice sees it, the refusals that hold for every kind of advice, and what all kinds permit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fleet.autoscaling import Autoscaler, autoscaler_of
from fleet.capabilities.register import Capabilities, CorePolicy
from fleet.decisions import RecommendationKind, Refusal, Withheld
from fleet.gpu_policy import deciders
from fleet.inventory import (
    AUTOSCALED_LABEL,
    ISOLATION_LABEL,
    LATENCY_CRITICAL_LABEL,
    LIBRARY_OFF_LABEL,
    OPT_OUT_LABEL,
    WARM_REPLICAS_LABEL,
    Grant,
    Priority,
    WorkloadId,
    is_yes,
)
from fleet.priority_holds import Hold
from fleet.profiles import Profile
from fleet.sentences import Sentence, Value
from fleet.settings.settings import Settings
from fleet.workload_kinds import CHANGEABLE_KINDS, JOB_KINDS, ORDERED_KINDS, SERVICE_KINDS, SURGE_KINDS
from recommender.outlook import Member

DAY_SECONDS = 86400
SPAN_SLACK_RATIO = 0.98
"""A pod's first and last steps are seldom whole: this share of the span counts as all of it."""
_DIGITS_MAX = 9
SPARING_REPLICAS_MIN = 4
"""Fewest replicas of which one may be missing: Kubernetes' default of 25 % unavailable is rounded down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload before the rules.

    Attributes:
        profile: what the analyzer says; None where it says nothing.
        grants: its live grants, at least one.
        seen_seconds: span in which any of its live pods was seen, seconds.
        has_need: True where what it needs of framebuffer shows.
        is_estimated: True where that goes by a KV cache of which only the least and the most are known.
        neighbours: other workloads on its cards now.
        spare_rows: rows of cards that its pods hold and never work on, see `spare_cards`.
        spare_held_bytes: most framebuffer that is held on one of those.
        lends: True where what monitors show of its framebuffer is less than it holds, because framebuffer is, or was,
            lent on a node of its pods.
        scalings: how often the number of its replicas changed of late, see `replica_counts`.
        node_policy: core policy that its nodes have for all their pods, None where every pod has its own.
        node_bar: why pods of its nodes can't share, see `node_terms`; None where they can.
        hold: what holds its pods back where they have low priority; None where they have not.
        capability: what the backend enforces.
        now: moment of the plan.
    """

    workload: WorkloadId
    profile: Profile | None
    grants: tuple[Grant, ...]
    seen_seconds: float
    has_need: bool
    is_estimated: bool
    neighbours: tuple[WorkloadId, ...]
    settings: Settings
    capability: Capabilities
    now: datetime
    spare_rows: tuple[int, ...] = ()
    spare_held_bytes: int = 0
    scalings: int = 0
    lends: bool = False
    node_policy: CorePolicy | None = None
    node_bar: Sentence | None = None
    hold: Hold | None = None

    @property
    def workload_kind(self) -> str:
        """Kubernetes kind of the owner."""
        return self.grants[0].workload_kind

    @property
    def priority(self) -> Priority:
        """Highest priority of its pods."""
        found = {grant.priority for grant in self.grants}
        return next(level for level in Priority if level in found)

    @property
    def isolation(self) -> str:
        """Isolation that its pods ask for: `soft` unless set."""
        return next((value for grant in self.grants if (value := grant.label(ISOLATION_LABEL))), "soft")

    @property
    def is_hard(self) -> bool:
        """True where its share of compute is all it gets: by its wish, its nodes, or because nothing lets it burst.

        Low priority is held to no share of its own: it takes what others leave.
        """
        if self.isolation == "hard":
            return True
        record = self.capability
        if record.bursts_by_annotation and self.workload_kind == "Notebook":
            return True
        if self.node_policy is not None:
            return self.node_policy is CorePolicy.HARD and self.priority is not Priority.LOW
        return CorePolicy.HARD in record.core_policies and CorePolicy.BURST not in record.core_policies

    @property
    def takes_limit(self) -> bool:
        """Whether its pods can be held to a core limit at every moment: a Job's template can't be changed for that."""
        return self.workload_kind != "Job"

    @property
    def is_latency_critical(self) -> bool:
        """True where a pod is labelled latency-critical."""
        return self.has_flag(LATENCY_CRITICAL_LABEL)

    @property
    def can_surge(self) -> bool:
        """Whether its controller can make a new pod beside the one that it is to replace."""
        return self.workload_kind in SURGE_KINDS

    @property
    def is_ordered(self) -> bool:
        """Whether its pods change in an order of their own, so that none may rely on another's card."""
        return self.workload_kind in ORDERED_KINDS

    @property
    def spares_one(self) -> bool:
        """Whether it may lose a pod while it changes: it has enough of them, and need not answer fast."""
        return self.pods >= SPARING_REPLICAS_MIN and not self.is_latency_critical

    @property
    def must_gap(self) -> bool:
        """Whether changing it leaves it without a pod that it can't spare: it makes no new one before."""
        is_service = self.workload_kind in SERVICE_KINDS
        return is_service and not self.can_surge and (self.pods == 1 or self.is_latency_critical)

    @property
    def pods(self) -> int:
        """How many pods it has."""
        return len({grant.pod_id for grant in self.grants})

    @property
    def autoscaler(self) -> Autoscaler | None:
        """Who scales it, between which bounds; None where nobody is known to."""
        return next((found for grant in self.grants if (found := autoscaler_of(grant.label(AUTOSCALED_LABEL)))), None)

    @property
    def is_library_off(self) -> bool:
        """Whether a pod keeps the library out that would hold it to its share."""
        name = "volcano" if self.capability.backend == "volcano" else "hami"
        off = (grant.label(LIBRARY_OFF_LABEL) or "" for grant in self.grants)
        return self.capability.gates_priority_by_cores and any(name in said.split(",") for said in off)

    @property
    def video_ratio_max(self) -> float:
        """Largest use of its encoders and decoders, 0-1; 0 where not collected."""
        engines = None if self.profile is None else self.profile.engines
        return 0.0 if engines is None else max(engines.encoder_max or 0.0, engines.decoder_max or 0.0)

    @property
    def warm_replicas(self) -> int:
        """Replicas that must stay warm, by annotation or by the owner's own minimum."""
        asked = [value for grant in self.grants if (value := grant.label(WARM_REPLICAS_LABEL))]
        # A number of more digits than these means all replicas there are.
        wanted = [int(value[:_DIGITS_MAX]) for value in asked if value.isdecimal()]
        # A minimum that can't be read is a wish to keep replicas all the same.
        unread = [1 for value in asked if not value.isdecimal()]
        return max([*wanted, *unread, *(grant.replicas_min or 0 for grant in self.grants)], default=0)

    def has_flag(self, key: str) -> bool:
        """True where a pod carries the annotation with any value but a word for no."""
        return any(is_yes(grant.label(key)) for grant in self.grants)

    def refuse(self, kind: RecommendationKind | None, reason: str, **values: Value) -> Refusal:
        """A refusal of this workload; `values` are the numbers and names in the message `refused.REASON`."""
        return Refusal(workload=self.workload, reason=reason, kind=kind, values=tuple(values.items()))

    def refuse_barred(self, kind: RecommendationKind) -> Refusal | None:
        """A refusal where pods of its nodes, or its own, can't share; None where they can."""
        if self.is_library_off:
            return self.refuse(kind, "library_off", backend=self.capability.backend)
        if self.node_bar is None:
            return None
        return self.refuse(kind, "node_shares_nothing", bar=self.node_bar.code, **dict(self.node_bar.values))

    def refuse_short(self, kind: RecommendationKind, days: int, slack_ratio: float = 1.0) -> Refusal | None:
        """A refusal where it was seen for less than so many days (times the slack); None where it was not."""
        if self.seen_seconds >= days * DAY_SECONDS * slack_ratio:
            return None
        seen_days = round(self.seen_seconds / DAY_SECONDS, 1)
        return self.refuse(kind, "history_too_short", seen_days=seen_days, needed_days=days)

    def refuse_hidden(self, kind: RecommendationKind) -> Refusal | None:
        """A refusal where what it needs of a card does not show; None where it does."""
        if self.lends:
            return self.refuse(kind, "lent_hides_need")
        if not self.has_need:
            return self.refuse(kind, "preallocation_hides_need")
        if self.is_estimated:
            return self.refuse(kind, "pool_estimated")
        if self.video_ratio_max > self.settings.analyzer.idle_ratio_max:
            return self.refuse(kind, "video_engines", video_ratio=round(self.video_ratio_max, 4))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Permits:
    """What may be proposed to which workload.

    Attributes:
        cases: every live workload, sorted.
        reclaimed: workloads that give everything back.
        dropped: rows of cards that pods of several cards give back; their workload stays.
        members: rows that may share cards, sorted by row.
        refused: workloads that are left alone, in what, and why.
        withheld: kinds that no workload is offered.
        off: kinds of sharing that the backend can't carry out.
    """

    cases: dict[WorkloadId, Case]
    kinds: dict[WorkloadId, frozenset[RecommendationKind]]
    reclaimed: tuple[WorkloadId, ...]
    dropped: frozenset[int]
    members: tuple[Member, ...]
    refused: tuple[Refusal, ...]
    withheld: tuple[Withheld, ...]
    off: frozenset[RecommendationKind] = frozenset()


def untouchable(case: Case) -> Refusal | None:
    """Why no advice at all may be given; None where it may."""
    namespace = case.grants[0].namespace
    if case.has_flag(OPT_OUT_LABEL):
        by = next((by for grant in case.grants if (by := deciders(dict(grant.labels)).get(OPT_OUT_LABEL))), None)
        return case.refuse(None, "opt_out") if by is None else case.refuse(None, "opt_out", policy=by)
    if namespace in case.settings.recommender.opt_out_namespaces:
        return case.refuse(None, "opt_out", namespace=namespace)
    if case.workload_kind not in CHANGEABLE_KINDS:
        return case.refuse(
            None, "unknown_owner", owner_kind=case.workload_kind, changed_kinds=", ".join(sorted(CHANGEABLE_KINDS))
        )
    return None


def is_restartable(case: Case) -> bool:
    """Whether its pods may be made anew for the sake of others: nobody forbade it, no work is lost, nobody waits."""
    return untouchable(case) is None and case.workload_kind not in JOB_KINDS and not case.is_latency_critical


def untrusted(case: Case, kind: RecommendationKind | None) -> Refusal | None:
    """Why the workload's counters can't carry advice: distrusted, or too short; None where they can."""
    if case.profile is not None and not case.profile.is_trusted:
        finding = next(finding for finding in case.profile.trust if finding.distrusts)
        return case.refuse(
            kind, "counter_untrusted", counter=finding.counter, check=finding.check, **dict(finding.values)
        )
    least = max(DAY_SECONDS, case.settings.analyzer.history_seconds_min)
    if case.profile is None or case.seen_seconds < least * SPAN_SLACK_RATIO:
        return case.refuse(
            kind,
            "history_too_short",
            seen_hours=round(case.seen_seconds / 3600, 1),
            needed_hours=round(least / 3600, 1),
        )
    if case.profile.coverage_ratio < case.settings.analyzer.coverage_min:
        return case.refuse(
            kind,
            "coverage_too_low",
            coverage_ratio=round(case.profile.coverage_ratio, 4),
            coverage_min=case.settings.analyzer.coverage_min,
        )
    return None
