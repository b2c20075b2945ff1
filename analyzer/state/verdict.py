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
from fleet.units import MIB

RECENT_COVERAGE_MIN = 0.5
"""Share of the idle window in which compute must be known before older days say anything about now."""
CONFIDENCE_MAX = 0.99
"""Nothing about the future is surer than this, however long the record."""

_HIDDEN = "; how much framebuffer it needs is unknown: it can be shrunk with a canary only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """State of one workload.

    Attributes:
        state: the word.
        reason: one sentence with numbers.
        confidence: chance that it holds for the next seven days, 0-1; 0 for unknown.
        sentences: what the reason says, part by part.
    """

    state: WorkloadState
    reason: str
    confidence: float
    sentences: tuple[Sentence, ...] = ()


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
        facts: its figures.
        streaks: how long it had been so.
        calibration: how such states fared in this history.
        slack_seconds: by how much a history may fall short of its minimum, because steps are whole.
        settings: thresholds.
    """
    unknown = why_unknown(facts, slack_seconds, settings)
    if unknown is not None:
        return Verdict(state=WorkloadState.UNKNOWN, reason=unknown[0], confidence=0.0, sentences=(unknown[1],))
    by = sentence("by_sm_active" if facts.is_sm else "by_duty_cycle")
    hidden = (sentence("need_hidden"),) if facts.footprint.profile.is_hidden else ()
    counter = "SM active" if facts.is_sm else "duty cycle (an upper bound of the need)"
    if facts.is_idle or facts.idle_slices:
        return _idle(facts, streaks, calibration, settings)
    if facts.gave_way:
        return Verdict(
            state=WorkloadState.UNKNOWN,
            reason="did nothing while neighbours of higher priority used its card: giving way is no idleness",
            confidence=0.0,
            sentences=(sentence("gave_way"),),
        )
    if len(facts.off_peak_hours) >= settings.off_peak_hours_min:
        return Verdict(
            state=WorkloadState.OFF_PEAK,
            reason=(
                f"in {len(facts.off_peak_hours)} hours of the week no replica passed {settings.off_peak_ratio:.0%} "
                f"of its p95, by {counter}"
            ),
            confidence=_confidence(calibration.promise(streaks.promised, streaks.kept)),
            sentences=(
                sentence("off_peak", hours=len(facts.off_peak_hours), off_peak_ratio=settings.off_peak_ratio),
                by,
            ),
        )
    kind, compute, need = facts.workload_class, facts.compute, facts.footprint.profile
    small_compute = compute.p99 is not None and compute.p99 <= settings.oversized_compute_ratio * compute.granted_ratio
    small_need = need.need_max is not None and need.need_max <= settings.oversized_framebuffer_ratio * need.granted
    if small_compute or small_need:
        chances, parts, told = [], [], []
        if small_compute:
            chances.append(calibration.survival(calibration.small_compute, kind, streaks.small_compute))
            parts.append(f"p99 of compute is {compute.p99:.1%} of a card with {compute.granted_ratio:.0%} granted")
            told.append(sentence("small_compute", p99_ratio=compute.p99 or 0.0, granted_ratio=compute.granted_ratio))
        if small_need and need.need_max is not None:
            chances.append(calibration.survival(calibration.small_need, kind, streaks.small_need))
            parts.append(f"it needs {need.need_max / MIB:.0f} MiB of {need.granted / MIB:.0f} MiB granted")
            told.append(sentence("small_need", need_bytes=need.need_max, granted_bytes=need.granted))
        return Verdict(
            state=WorkloadState.OVERSIZED,
            reason=f"{' and '.join(parts)}, by {counter}{_HIDDEN if need.is_hidden else ''}",
            confidence=_confidence(max(chances)),
            sentences=(*told, by, *hidden),
        )
    return Verdict(
        state=WorkloadState.BUSY,
        reason=(f"p95 of compute is {compute.p95:.1%}, by {counter}" if compute.p95 is not None else "it works")
        + (_HIDDEN if need.is_hidden else ""),
        confidence=_confidence(calibration.survival(calibration.busy, kind, streaks.busy)),
        sentences=(*((sentence("busy", p95_ratio=compute.p95), by) if compute.p95 is not None else ()), *hidden),
    )


def why_unknown(facts: Facts, slack_seconds: float, settings: AnalyzerSettings) -> tuple[str, Sentence] | None:
    """Why nothing can be said of a workload, in one sentence, and what that says; None where something can."""
    lies = [item for item in facts.findings if item.distrusts]
    if lies:
        return (
            f"counter {lies[0].counter} is not trusted ({lies[0].check}): {lies[0].detail}",
            sentence("counter_untrusted", counter=lies[0].counter, check=lies[0].check),
        )
    if facts.history_seconds < settings.history_seconds_min - slack_seconds:
        since = "" if facts.changed_at is None else "since pods came that behave unlike those they replaced "
        return (
            (
                f"only {facts.history_seconds / 3600:.1f} hours of history {since}"
                f"(analyzer.history_seconds_min={settings.history_seconds_min})"
            ),
            sentence(
                "history_too_short" if facts.changed_at is None else "history_too_short_since_change",
                seen_hours=round(facts.history_seconds / 3600, 1),
                needed_hours=round(settings.history_seconds_min / 3600, 1),
            ),
        )
    if facts.silence is SilenceBasis.NOTHING:
        return "a slice never showed a sample, and nothing else would have shown what it did", sentence("no_samples")
    if facts.coverage_ratio < settings.coverage_min and not facts.gave_way:
        return (
            (
                f"only {facts.coverage_ratio:.0%} of the windows it lived in were seen "
                f"(analyzer.coverage_min={settings.coverage_min})"
            ),
            sentence(
                "coverage_too_low",
                coverage_ratio=round(facts.coverage_ratio, 4),
                coverage_min=settings.coverage_min,
            ),
        )
    if facts.recent_coverage_ratio < RECENT_COVERAGE_MIN:
        return (
            (
                f"only {facts.recent_coverage_ratio:.0%} of the last {settings.idle_seconds / 3600:.0f} hours were "
                "seen: what nobody looks at counts as working"
            ),
            sentence(
                "recent_coverage_too_low",
                coverage_ratio=round(facts.recent_coverage_ratio, 4),
                hours=round(settings.idle_seconds / 3600),
            ),
        )
    if facts.compute.p50 is None:
        return "no compute counter was collected", sentence("no_compute_counter")
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
    ground = ""
    told_ground: tuple[Sentence, ...] = ()
    if facts.silence is SilenceBasis.NODE:
        # Nobody measured the card itself, so the fleet's own record of idleness does not carry over in full.
        chance = min(chance, IDLE_PRIOR)
        ground = "; it never showed a sample while its node's exporter reported others"
        told_ground = (sentence("silent_by_node"),)
    elif facts.silence is SilenceBasis.CARD:
        ground = "; it never showed a sample, and its card shows no work of its own"
        told_ground = (sentence("silent_by_card"),)
    chance = _confidence(chance)
    if not facts.is_idle:
        return Verdict(
            state=WorkloadState.PARTLY_IDLE,
            reason=f"{facts.idle_slices} of {facts.live_slices} slices did nothing in the idle window{ground}",
            confidence=chance,
            sentences=(
                sentence("partly_idle", idle_slices=facts.idle_slices, live_slices=facts.live_slices),
                *told_ground,
            ),
        )
    since = facts.idle_since
    when = f"since {since:%Y-%m-%d %H:%M} UTC" if since is not None else "ever"
    held = facts.footprint.held_recently_max
    seen = f"no engine above {settings.idle_ratio_max:.0%} {when}, {facts.idle_coverage_ratio:.0%} of the window seen"
    told = sentence(
        "idle" if since is not None else "idle_ever",
        idle_ratio_max=settings.idle_ratio_max,
        since="" if since is None else f"{since:%Y-%m-%d %H:%M} UTC",
        coverage_ratio=round(facts.idle_coverage_ratio, 4),
    )
    if held is not None and held > settings.idle_held_bytes_min:
        return Verdict(
            state=WorkloadState.IDLE_HELD,
            reason=f"{seen}, while {held / MIB:.0f} MiB of framebuffer are held{ground}",
            confidence=chance,
            sentences=(told, sentence("framebuffer_held", held_bytes=round(held)), *told_ground),
        )
    return Verdict(
        state=WorkloadState.IDLE, reason=f"{seen}{ground}", confidence=chance, sentences=(told, *told_ground)
    )


def _confidence(chance: float) -> float:
    return round(min(CONFIDENCE_MAX, chance), 3)
