"""The one word for a workload, why, and how sure: the thresholds of the settings applied in a fixed order.

Unknown comes first, because thin evidence makes every other word a guess; then idle (and idle-held), partly idle,
off-peak, oversized, and busy for what is none of these. Called by `analyzer.profile` on the facts of each workload.
"""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.confidence import IDLE_PRIOR, Calibration
from analyzer.facts import Facts
from analyzer.presence import SilenceBasis
from fleet.profiles import WorkloadState
from fleet.sentences import Sentence, sentence
from fleet.settings.settings import AnalyzerSettings

RECENT_COVERAGE_MIN = 0.5
"""Share of the idle window in which compute must be known before older days say anything about now."""
CONFIDENCE_MAX = 0.99
"""Nothing about the future is surer than this, however long the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """State of one workload.

    Attributes:
        state: the word.
        confidence: chance that it holds for the next seven days, 0-1; 0 for unknown.
        why: clauses of one sentence with numbers.
    """

    state: WorkloadState
    confidence: float
    why: tuple[Sentence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaks:
    """For how many days in a row a workload had been so by the end of the history.

    Attributes:
        idle: silent.
        idle_at_risk: days before which it was silent, all through the history.
        idle_broke: of them those on which it woke.
        waking_score: logarithm of how much sooner it wakes than one that never worked.
        small_compute: compute stayed within the limit of `oversized`.
        small_need: so did the need of framebuffer.
        busy: something was used.
        promised: off-peak hours that earlier days would have promised.
        kept: how many of them stayed low.
    """

    idle: int
    idle_at_risk: int
    idle_broke: int
    waking_score: float
    small_compute: int
    small_need: int
    busy: int
    promised: int
    kept: int


def verdict(
    facts: Facts, streaks: Streaks, calibration: Calibration, slack_seconds: float, settings: AnalyzerSettings
) -> Verdict:
    """Names the state of one workload.

    Args:
        streaks: how long it had been so.
        calibration: how such states fared in this history.
        slack_seconds: by how much a history may fall short of its minimum, because steps are whole.
    """
    unknown = why_unknown(facts, slack_seconds, settings)
    if unknown is not None:
        return Verdict(state=WorkloadState.UNKNOWN, confidence=0.0, why=(unknown,))
    by = sentence("by_sm_active" if facts.is_sm else "by_duty_cycle")
    hidden = (sentence("need_hidden"),) if facts.footprint.profile.is_hidden else ()
    if facts.is_idle or facts.idle_slices:
        return _idle(facts, streaks, calibration, settings)
    if facts.gave_way:
        return Verdict(state=WorkloadState.UNKNOWN, confidence=0.0, why=(sentence("gave_way"),))
    if len(facts.off_peak_hours) >= settings.off_peak_hours_min:
        return Verdict(
            state=WorkloadState.OFF_PEAK,
            confidence=_confidence(calibration.promise(streaks.promised, streaks.kept)),
            why=(sentence("off_peak", hours=len(facts.off_peak_hours), off_peak_ratio=settings.off_peak_ratio), by),
        )
    kind, compute, need = facts.workload_class, facts.compute, facts.footprint.profile
    small_compute = compute.p99 is not None and compute.p99 <= settings.oversized_compute_ratio * compute.granted_ratio
    small_need = need.need_max is not None and need.need_max <= settings.oversized_framebuffer_ratio * need.granted
    if small_compute or small_need:
        chances, why = [], []
        if small_compute:
            chances.append(calibration.survival(calibration.small_compute, kind, streaks.small_compute))
            why.append(sentence("small_compute", p99_ratio=compute.p99 or 0.0, granted_ratio=compute.granted_ratio))
        if small_need and need.need_max is not None:
            chances.append(calibration.survival(calibration.small_need, kind, streaks.small_need))
            why.append(sentence("small_need", need_bytes=need.need_max, granted_bytes=need.granted))
        return Verdict(state=WorkloadState.OVERSIZED, confidence=_confidence(max(chances)), why=(*why, by, *hidden))
    return Verdict(
        state=WorkloadState.BUSY,
        confidence=_confidence(calibration.survival(calibration.busy, kind, streaks.busy)),
        why=(
            *((sentence("busy", p95_ratio=compute.p95), by) if compute.p95 is not None else (sentence("works"),)),
            *hidden,
        ),
    )


def why_unknown(facts: Facts, slack_seconds: float, settings: AnalyzerSettings) -> Sentence | None:
    """Why nothing can be said of a workload; None where something can."""
    lies = [item for item in facts.findings if item.distrusts]
    if lies:
        return sentence("counter_untrusted", counter=lies[0].counter, check=lies[0].check, **dict(lies[0].values))
    if facts.history_seconds < settings.history_seconds_min - slack_seconds:
        return sentence(
            "history_too_short" if facts.changed_at is None else "history_too_short_since_change",
            seen_hours=round(facts.history_seconds / 3600, 1),
            needed_hours=round(settings.history_seconds_min / 3600, 1),
        )
    if facts.silence is SilenceBasis.NOTHING:
        return sentence("no_samples")
    if facts.coverage_ratio < settings.coverage_min and not facts.gave_way:
        return sentence(
            "coverage_too_low", coverage_ratio=round(facts.coverage_ratio, 4), coverage_min=settings.coverage_min
        )
    if facts.recent_coverage_ratio < RECENT_COVERAGE_MIN:
        return sentence(
            "recent_coverage_too_low",
            coverage_ratio=round(facts.recent_coverage_ratio, 4),
            hours=round(settings.idle_seconds / 3600),
        )
    if facts.compute.p50 is None:
        return sentence("no_compute_counter")
    return None


def _idle(facts: Facts, streaks: Streaks, calibration: Calibration, settings: AnalyzerSettings) -> Verdict:
    chance = calibration.survival(
        calibration.idle,
        facts.workload_class,
        max(1, streaks.idle),
        at_risk=streaks.idle_at_risk,
        broke=streaks.idle_broke,
        waking_score=streaks.waking_score,
    )
    ground: tuple[Sentence, ...] = ()
    if facts.silence is SilenceBasis.NODE:
        # Nobody measured the card itself, so the fleet's own record of idleness does not carry over in full.
        chance = min(chance, IDLE_PRIOR)
        ground = (sentence("silent_by_node"),)
    elif facts.silence is SilenceBasis.CARD:
        ground = (sentence("silent_by_card"),)
    chance = _confidence(chance)
    if not facts.is_idle:
        return Verdict(
            state=WorkloadState.PARTLY_IDLE,
            confidence=chance,
            why=(sentence("partly_idle", idle_slices=facts.idle_slices, live_slices=facts.live_slices), *ground),
        )
    since = facts.idle_since
    held = facts.footprint.held_recently_max
    seen = sentence(
        "idle" if since is not None else "idle_ever",
        idle_ratio_max=settings.idle_ratio_max,
        since="" if since is None else f"{since:%Y-%m-%d %H:%M} UTC",
        coverage_ratio=round(facts.idle_coverage_ratio, 4),
    )
    if held is not None and held > settings.idle_held_bytes_min:
        return Verdict(
            state=WorkloadState.IDLE_HELD,
            confidence=chance,
            why=(seen, sentence("framebuffer_held", held_bytes=round(held)), *ground),
        )
    return Verdict(state=WorkloadState.IDLE, confidence=chance, why=(seen, *ground))


def _confidence(chance: float) -> float:
    return round(min(CONFIDENCE_MAX, chance), 3)
