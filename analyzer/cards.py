"""What every card does: measured on the card itself where a source measures cards, else by the sum of its slices.

Called by `analyzer.profile` after the survey.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.compute_demand import DutyCurves, demand, duty_curves
from analyzer.presence import Bools, SilenceBasis, card_rows
from analyzer.survey import Survey
from fleet.inventory import Card, CardId
from fleet.profiles import CardProfile, CardState
from fleet.schema import Measure
from fleet.settings.settings import AnalyzerSettings
from fleet.trust_thresholds import FRAMEBUFFER_OVER_CARD_MIN, SPIN_SM_MAX
from fleet.usage import CardGrid, Float32, History


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One card's steps: compute 0-1, framebuffer in bytes (both NaN where unknown), known and used."""

    compute: Float32
    framebuffer: Float32
    known: Bools
    used: Bools
    source: str


def card_profiles(history: History, look: Survey, settings: AnalyzerSettings) -> tuple[CardProfile, ...]:
    """One profile per card of the inventory, sorted by id.

    A card that no grant lives on is free. A granted one is untrusted where a counter of a tenant fails a check against
    it, or where too little was seen to say anything; idle-held where nothing was used in the idle window; of low use
    where its p95 is low; else busy.
    """
    tenants: dict[CardId, list[int]] = defaultdict(list)
    former: dict[CardId, list[int]] = defaultdict(list)
    for number, life in enumerate(look.lives):
        (tenants if life.is_live else former)[life.latest.card].append(number)
    row_of = card_rows(history.cards)
    curves = None
    if history.cards is not None:
        curves = duty_curves(history.cards, np.arange(len(history.cards.keys)), look.line.steps)
    return tuple(
        _profile(
            card,
            tenants.get(card.card, []),
            _seen(card, tenants.get(card.card, []), row_of, history, look, curves),
            _span(look, tenants.get(card.card, []), former.get(card.card, [])),
            look,
            settings,
        )
        for card in sorted(history.inventory.cards, key=lambda card: card.card)
    )


def _seen(
    card: Card,
    tenants: Sequence[int],
    row_of: dict[CardId, int],
    history: History,
    look: Survey,
    curves: DutyCurves | None,
) -> _Seen:
    steps = look.line.steps
    nothing = np.full(steps, np.nan, np.float32)
    row = row_of.get(card.card)
    if row is not None and history.cards is not None and look.card_activity is not None:
        compute, _ = demand(history.cards, np.array([row], np.int64), steps, curves)
        memory = history.cards.peak.get(Measure.FRAMEBUFFER_USED)
        return _Seen(
            compute=compute[0],
            framebuffer=nothing if memory is None else memory[row, :steps],
            known=look.card_activity.known[row],
            used=look.card_activity.used[row] & ~_only_spins(history.cards, row, look, tenants),
            source="the card's own counters",
        )
    if not tenants:
        none = np.zeros(steps, bool)
        return _Seen(compute=nothing, framebuffer=nothing, known=none, used=none, source="nothing")
    numbers = np.array(tenants, np.int64)
    used = np.asarray(look.used[numbers].any(axis=0), bool)
    wanted, _ = look.demand_of(numbers)
    known = _known(look, tenants)
    memory = look.grid.peak.get(Measure.FRAMEBUFFER_USED)
    rows = [look.lives[number].row for number in tenants if look.lives[number].row is not None]
    held = nothing if memory is None or not rows else memory[np.array(rows, np.int64), :steps].sum(axis=0)
    return _Seen(
        compute=np.where(known, np.nan_to_num(wanted).sum(axis=0), np.nan).astype(np.float32),
        framebuffer=held,
        known=known,
        used=used,
        source="the sum of its slices",
    )


def _only_spins(cards: CardGrid, row: int, look: Survey, tenants: Sequence[int]) -> Bools:
    """Steps in which all that a card did was a server's that had nobody to serve."""
    numbers = np.array(tenants, np.int64)
    only = look.spins[numbers].any(axis=0) & ~look.used[numbers].any(axis=0) & _known(look, tenants)
    sm = cards.peak.get(Measure.SM_ACTIVE, cards.mean.get(Measure.SM_ACTIVE))
    return np.asarray(only if sm is None else only & ~(sm[row, : look.line.steps] > SPIN_SM_MAX), bool)


def _known(look: Survey, tenants: Sequence[int]) -> Bools:
    """Every tenant was seen; one that gave way was seen all right: only its own idleness is in doubt."""
    known = np.ones(look.line.steps, bool)
    for number in tenants:
        known &= look.known[number] | look.gave_way[number] | ~look.lived[number]
    lived = look.lived[np.array(tenants, np.int64)].any(axis=0)
    return known & lived


def _span(look: Survey, tenants: Sequence[int], former: Sequence[int]) -> Bools:
    """Steps that report the card as it is granted now: since its tenants came, or since the last of them went."""
    if tenants:
        return np.asarray(look.lived[np.array(tenants, np.int64)].any(axis=0), bool)
    free = np.ones(look.line.steps, bool)
    held = np.flatnonzero(look.lived[np.array(former, np.int64)].any(axis=0))
    if held.size:
        # The step in which the last tenant went still shows its work.
        free[: int(held.max()) + 2] = False
    return free


def _profile(
    card: Card, tenants: Sequence[int], seen: _Seen, lived: Bools, look: Survey, settings: AnalyzerSettings
) -> CardProfile:
    line = look.line
    window = max(1, settings.idle_seconds // line.step_seconds)
    recent = slice(max(0, line.steps + line.missing_steps - window), line.steps)
    stride = max((int(look.stride[number]) for number in tenants), default=1)
    covered = _share(int((seen.known & lived).sum()) * stride, int(lived.sum()))
    recent_covered = _share(int(seen.known[recent].sum()) * stride, window)
    values = seen.compute[lived & ~np.isnan(seen.compute)]
    p95 = float(np.quantile(values, 0.95, method="inverted_cdf")) if len(values) else None
    # What no card can hold was not measured, whatever was written down.
    possible = (seen.framebuffer >= 0) & (seen.framebuffer <= FRAMEBUFFER_OVER_CARD_MIN * card.framebuffer_bytes)
    held = seen.framebuffer[lived & possible]
    is_idle = (
        recent_covered >= settings.idle_coverage_min
        and not seen.used[recent].any()
        and line.steps * line.step_seconds >= settings.idle_seconds - line.slack_seconds
    )
    state, reason = _state(tenants, seen, look, p95, covered, settings, is_idle=is_idle)
    ever = np.flatnonzero(seen.used)
    idle_since = None
    if is_idle:
        idle_since = line.end_of(int(ever[-1]) if len(ever) else int(np.argmax(seen.known)) - 1)
    return CardProfile(
        card=card.card,
        card_model=card.card_model,
        node=card.node,
        framebuffer_bytes=card.framebuffer_bytes,
        framebuffer_used_max=int(held.max()) if len(held) else None,
        state=state,
        compute_p95=None if p95 is None else round(max(0.0, min(1.0, p95)), 4),
        idle_since=idle_since,
        workloads=tuple(sorted({look.lives[number].workload_id for number in tenants})),
        coverage_ratio=round(covered, 4),
        reason=reason,
    )


def _state(
    tenants: Sequence[int],
    seen: _Seen,
    look: Survey,
    p95: float | None,
    covered: float,
    settings: AnalyzerSettings,
    *,
    is_idle: bool,
) -> tuple[CardState, str]:
    if not tenants:
        if p95 is not None and p95 > settings.idle_ratio_max:
            return CardState.UNTRUSTED, f"granted to nobody, yet p95 of compute is {p95:.0%}: work from outside"
        return CardState.FREE, "granted to nobody"
    lies = sorted({item.check for number in tenants for item in look.distrust.get(number, ()) if item.distrusts})
    if lies:
        return CardState.UNTRUSTED, f"counters of its tenants fail: {', '.join(lies)}"
    if p95 is None or covered < settings.coverage_min:
        return CardState.UNTRUSTED, f"only {covered:.0%} of its time was seen (at least {settings.coverage_min:.0%})"
    if is_idle:
        silent = any(look.inferred[n][1] is not SilenceBasis.NOTHING for n in tenants if n in look.inferred)
        extra = "; a tenant never showed a single sample" if silent else ""
        return CardState.IDLE_HELD, f"granted, and no engine moved in the idle window by {seen.source}{extra}"
    if p95 <= settings.low_use_ratio:
        return CardState.LOW_USE, f"p95 of compute is {p95:.1%} by {seen.source}"
    return CardState.BUSY, f"p95 of compute is {p95:.1%} by {seen.source}"


def _share(part: int, whole: int) -> float:
    return min(1.0, part / whole) if whole else 0.0
