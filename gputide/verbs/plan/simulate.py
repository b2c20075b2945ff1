"""`gputide plan simulate FLEET`: days of a recorded fleet under one policy or all of them, with relief on or off."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from exporter.trace import Trace, open_trace
from fleet.capabilities.register import capabilities_of
from fleet.colocation import AdmissionRules
from fleet.documents import document, iso
from fleet.errors import Misconfigured, NotEnoughData
from fleet.relief import ReliefRules
from fleet.settings.settings import LowPrioritySettings
from fleet.units import format_time, parse_bytes, parse_duration
from gputide.options import FormatOption, OutputOption
from gputide.output import Format, print_answer
from gputide.relief_timing import relief_timing
from gputide.session import session_of
from gputide.simulate import Reaction
from gputide.simulate_answer import simulation_answer
from gputide.simulate_harvest import HarvestRules
from gputide.simulate_policies import Policy, Table, perform
from gputide.simulate_stage import DAY_SECONDS, set_stage

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
def simulate(
    context: typer.Context,
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
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Play days of a fleet under policies: cards, harm, moves, and the work of low priority that was harvested."""
    session = session_of(context)
    trace = open_trace(fleet)
    cut, until = _span(trace, days)
    capability = capabilities_of(session.settings.enforcer.backend)
    timing = relief_timing(
        session.data_path,
        reaction_seconds=None if reaction is None else _positive("--reaction", reaction, parse_duration(reaction)),
        load_bytes_per_second=None
        if load_rate is None
        else _positive("--load-rate", load_rate, float(parse_bytes(load_rate))),
    )
    rate = timing.load_bytes_per_second
    acts = Reaction(
        rules=ReliefRules(load_bytes_per_second=rate, grows_in_place=capability.live_framebuffer_change),
        reaction_seconds=timing.reaction_seconds,
    )
    table = Table(
        settings=session.settings,
        capability=capability,
        reaction=acts if relief else None,
        replan_seconds=_REPLAN_SECONDS[replan],
        load_bytes_per_second=rate,
        harvest=_harvest_rules(session.settings.low_priority),
        time_zone=session.settings.cluster.time_zone,
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
    print_answer(simulation_answer(described, found), form=form, target=output)


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
