"""What each tier is promised of the nights of the tide, and what became of that, as answers of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enforcer.tide.tide_journal import Night, evictions_of
from fleet.decisions import Plan
from fleet.tiers import NIGHT_TIERS, Guarantee, Tier
from fleet.units import format_duration
from gputide.output import Listing


def tiers_promised(plan: Plan, guarantees: Mapping[Tier, Guarantee]) -> tuple[str, ...]:
    """What a plan's nights give to each tier; nothing where the plan has no tide."""
    if not plan.schedule:
        return ()
    cards = len({card for entry in plan.schedule for card in entry.frees})
    tiers = "; ".join(f"{tier} {_promise(guarantees.get(tier, Guarantee()))}" for tier in NIGHT_TIERS)
    return (f"a night frees {cards} cards, in this order for work of tier {tiers}",)


def tiers_kept(nights: Sequence[Night], guarantees: Mapping[Tier, Guarantee]) -> Listing:
    """What each tier was promised and what it got, over nights that are over."""
    over = [night for night in nights if not night.is_open]
    late, early = sum(night.is_late for night in over), sum(len(night.home_early) for night in nights)
    services = f"{late} nights late, {early} services home early"
    rows: list[tuple[str, str, int, str, str, str]] = [
        (Tier.PROTECTED, "all replicas in time", len(over), "", services, _word(late == 0, bool(over)))
    ]
    for tier in NIGHT_TIERS:
        promised = guarantees.get(tier, Guarantee())
        own = [night for night in over for name in night.tiers if name is tier]
        hours = sum(night.work_hours for night in own)
        rate, limit = evictions_of(own), promised.evictions_per_hour_max
        is_kept = limit is None or rate is None or rate <= limit
        said = ("", "") if rate is None else (f"{hours:.1f}", f"{rate:.3f} an hour")
        rows.append((tier, _promise(promised), len(own), *said, _word(is_kept, rate is not None)))
    columns = ("tier", "promised", "let in", "hours", "had to go early", "kept")
    return Listing(title="Tiers", columns=columns, rows=rows, is_whole=True)


def _promise(promised: Guarantee) -> str:
    if promised == Guarantee():
        return "what is left, nothing promised"
    limit = promised.evictions_per_hour_max
    often = "" if limit is None else f", {limit:g} evictions an hour at most"
    return f"{promised.hours_min:g} h at least, {format_duration(promised.notice_seconds)} to save{often}"


def _word(is_kept: bool, is_known: bool) -> str:
    return ("yes" if is_kept else "no") if is_known else ""
