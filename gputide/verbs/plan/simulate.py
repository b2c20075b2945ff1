"""`gputide plan simulate FLEET`: days of a recorded fleet under one policy or all of them, with relief on or off."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from enforcer.relief.relief_journal import relief_timing
from exporter.trace.trace import Trace, open_trace
from fleet.capabilities.register import capabilities_of
from fleet.colocation import AdmissionRules
from fleet.data_folder import DataFolder
from fleet.documents import document, iso
from fleet.errors import Misconfigured, NotEnoughData
from fleet.settings.settings import LowPrioritySettings
from fleet.units import format_count, format_percent, format_time, parse_bytes, parse_duration
from gputide.container.cluster import seen_holders
from gputide.container.relief import played_relief, relief_journal
from gputide.options import answering
from gputide.output import Answer, Listing
from gputide.replay.history import set_stage
from gputide.session import Session
from recommender.simulate.harvest import HarvestRules
from recommender.simulate.policies import Performance, Policy, Table, perform
from recommender.simulate.stage import DAY_SECONDS

app = typer.Typer()


class Replanning(StrEnum):
    """How often seats are looked at anew."""

    NEVER = "never"
    DAILY = "daily"
    WEEKLY = "weekly"


_REPLAN_SECONDS = {Replanning.NEVER: None, Replanning.DAILY: DAY_SECONDS, Replanning.WEEKLY: 7 * DAY_SECONDS}


@app.command(
    epilog="Example: gputide plan simulate traces/fleet --policy gputide --relief --reaction 2m --replan daily"
)
@answering
def simulate(
    session: Session,
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="Folder in the neutral trace format.")],
    policy: Annotated[list[Policy] | None, typer.Option(help="Who decides; may be repeated; all unless given.")] = None,
    relief: Annotated[bool, typer.Option(help="Relieve cards that overload at run time.")] = True,
    reaction: Annotated[
        str | None,
        typer.Option(help="From an overload to the decision: 10s, 2m; as relief measured it, else 2m, unless given."),
    ] = None,
    load_rate: Annotated[
        str | None,
        typer.Option(help="Framebuffer that a moving pod loads per second; as relief measured it, else 1GiB."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Days that are played; what lies before is known.")] = 3,
    replan: Annotated[Replanning, typer.Option(help="How often seats are looked at anew.")] = Replanning.NEVER,
) -> Answer:
    """Play days of a fleet under policies: cards, harm, moves, and the work of low priority that was harvested."""
    trace = open_trace(fleet)
    cut, until = _span(trace, days)
    capability = capabilities_of(session.settings.enforcer.backend)
    given = None if load_rate is None else _positive("--load-rate", load_rate, float(parse_bytes(load_rate)))
    timing = relief_timing(
        relief_journal(DataFolder(path=session.data_path)).measured(),
        reaction_seconds=None if reaction is None else _positive("--reaction", reaction, parse_duration(reaction)),
        load_bytes_per_second=given,
    )
    rate = timing.load_bytes_per_second
    rules = played_relief(session.settings, timing)
    table = Table(
        settings=session.settings,
        capability=capability,
        relief=rules if relief else None,
        replan_seconds=_REPLAN_SECONDS[replan],
        load_bytes_per_second=rate,
        harvest=_harvest_rules(session.settings.low_priority),
        time_zone=session.settings.cluster.time_zone,
        holders=seen_holders(DataFolder(path=session.data_path), session.settings, trace.cluster, until),
    )
    chosen = list(dict.fromkeys(policy or list(Policy)))
    stage = set_stage(trace, cut=cut, until=until)
    found = []
    with session.progress("playing policies") as tick:
        for number, name in enumerate(chosen):
            tick(number, len(chosen))
            found.append(perform(name, stage, table))
    described = {
        "schema": "gputide.simulation/v1",
        "fleet": fleet.resolve().name,
        "learned_since": iso(trace.since),
        "since": iso(cut),
        "until": iso(until),
        "replan": replan.value,
        "timing": {**document(timing), "sentence": timing.sentence},
        "performances": document(found),
    }
    return _answer(described, found)


def _span(trace: Trace, days: int) -> tuple[datetime, datetime]:
    """The last days of the trace, with at least one day known before them."""
    cut = trace.until - timedelta(days=days)
    if cut < trace.since + timedelta(days=1):
        held = (trace.until - trace.since).total_seconds() / DAY_SECONDS
        raise NotEnoughData(
            f"cannot play --days {days}: the trace holds {held:.1f} days ({format_time(trace.since)} to "
            f"{format_time(trace.until)}), and a plan needs one day before them"
        )
    return cut, trace.until


def _harvest_rules(settings: LowPrioritySettings) -> HarvestRules:
    return HarvestRules(
        sizes_ratio=settings.worker_ratios,
        watermark_ratio=settings.watermark_ratio,
        admission=AdmissionRules(evictions_per_hour_max=settings.evictions_per_hour_max),
    )


def _positive(option: str, text: str, value: float) -> float:
    if value <= 0:
        raise Misconfigured(f"cannot use {option} {text}: must be above 0")
    return value


def _answer(described: dict[str, Any], found: Sequence[Performance]) -> Answer:
    pods = found[0].pods if found else 0
    policies = Listing.of(
        "Policies",
        found,
        {
            "policy": lambda item: item.policy,
            "relief": lambda item: "off" if item.reaction_seconds is None else f"{item.reaction_seconds:g} s",
            "cards": lambda item: item.cards_opening,
            "spares": lambda item: max(0, item.cards_peak - item.cards_opening),
            "saved": lambda item: format_percent(item.saved_ratio, digits=1),
            "violation": lambda item: format_percent(item.violation_ratio, digits=3),
            "predicted": _predicted,
            "lost work": lambda item: format_percent(item.lost_work_ratio, digits=3),
            "moves/pod/day": lambda item: f"{item.moves_per_pod_day:.3f}",
            "switches/day": lambda item: f"{item.switches_per_day:.1f}",
            "harvested card-h": lambda item: round(item.low_priority_gpu_hours),
            "evictions/h": lambda item: f"{item.evictions_per_worker_hour:.3f}",
            "lost card-h": lambda item: round(item.low_priority_lost_gpu_hours),
        },
    )
    return Answer(
        document=described,
        headline=(
            (
                f"{described['fleet']}: {format_count(pods)} pods on cards of their own, played {described['since']} "
                f"to {described['until']}, learned since {described['learned_since']}"
            ),
        ),
        listings=(policies,),
        footnotes=(
            *((described["timing"]["sentence"],) if "timing" in described else ()),
            "saved counts spares at their peak; predicted is what the plan alone was expected to violate",
            "switches are pods that wait while framebuffer that they lent comes back from host memory",
            "harvested is work of low priority on what the others leave; lost is what eviction cost it",
        ),
    )


def _predicted(item: Performance) -> str | None:
    ratio = item.predicted_violation_ratio
    return None if ratio is None else format_percent(ratio, digits=2)
