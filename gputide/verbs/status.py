"""`gputide status`: what runs on the data folder, how fresh the data are, which plan waits, what was harmed."""

from __future__ import annotations

from pathlib import Path

import typer

from dashboards.view_models.clusters import ClusterLine, cluster_lines
from enforcer.record.harm import harm_budgets
from enforcer.record.outcome_store import read_outcomes
from enforcer.record.verdict import Standing
from fleet.documents import iso
from fleet.durable import lock_holder
from fleet.outcomes import Outcome
from fleet.units import format_count, format_duration, format_plan_id, format_time
from gputide.container.pages import views_of
from gputide.options import answering
from gputide.output import Answer, Listing
from gputide.session import Session

app = typer.Typer()

_LOCKS = {
    "receiver": ("bus/writer.lock", "bus/*/writer.lock"),
    "roll-up": ("warehouse/writer-*.lock", "bus/committer.lock"),
    "relief": ("relief.lock",),
    "the tide": ("tide.lock",),
    "a verb that writes": ("writer.lock",),
}
"""The lock files that a running process holds in the data folder."""


@app.command(epilog="Example: gputide status")
@answering
def status(session: Session) -> Answer:
    """Show what is running, how fresh the data are, which plan waits, what was harmed, and the next command."""
    folder, now = session.folder(), session.now()
    running = _running(folder.path)
    outcomes = {outcome.plan_id: outcome for outcome in read_outcomes(folder)}
    views = views_of(session)
    lines = cluster_lines(views)
    states = [_state(line, outcomes.get(line.plan_id or "")) for line in lines]
    rows = [(line.sighting, line.plan_id, state) for line, (state, _) in zip(lines, states, strict=True)]
    names = [seen.cluster for seen, _, _ in rows]
    budgets = [one for name in names for one in harm_budgets(views.plans.plans(name), views.outcomes.outcomes(name))]
    harmed = [budget for budget in budgets if budget.standing is Standing.OVER_BUDGET]
    restored = [budget for budget in budgets if budget.standing is Standing.RESTORED]
    following = next((command for _, command in states if command), "gputide report") if lines else "gputide demo"
    clusters = Listing.of(
        "Clusters",
        rows,
        {
            "cluster": lambda row: row[0].cluster,
            "cards": lambda row: row[0].cards,
            "newest window": lambda row: format_time(row[0].newest_at),
            "age": lambda row: format_duration(max(0.0, (now - row[0].newest_at).total_seconds())),
            "plan": lambda row: row[2],
        },
    )
    return Answer(
        document={
            "running": [{"process": name, "pid": pid} for name, pid in running],
            "clusters": [
                {"cluster": seen.cluster, "newest_at": iso(seen.newest_at), "plan_id": plan_id, "state": state}
                for seen, plan_id, state in rows
            ],
            "harmed": [{"plan_id": one.plan_id, "workload": one.workload} for one in harmed],
            "restored": [{"plan_id": one.plan_id, "workload": one.workload} for one in restored],
            "next": following,
        },
        headline=(
            "running: " + (", ".join(f"{name} (process {pid})" for name, pid in running) or "nothing on this folder"),
            _harm_words(len(harmed)) + (f", {format_count(len(restored))} restored" if restored else ""),
        ),
        listings=(clusters,) if lines else (),
        footnotes=(f"next: {following}",),
    )


def _harm_words(harmed: int) -> str:
    if not harmed:
        return "no service over its harm budget"
    if harmed == 1:
        return "1 service over its harm budget"
    return f"{format_count(harmed)} services over their harm budget"


def _running(path: Path) -> list[tuple[str, str]]:
    """Processes that hold a lock of the data folder: what each is, and its process id."""
    held = [
        (name, lock_holder(lock))
        for name, globs in _LOCKS.items()
        for glob in globs
        for lock in sorted(path.glob(glob))
    ]
    return list(dict.fromkeys((name, pid) for name, pid in held if pid is not None))


def _state(line: ClusterLine, outcome: Outcome | None) -> tuple[str, str]:
    """Where the newest plan of a cluster stands, and the command that follows; "" where none does."""
    if line.plan_id is None:
        return "none", "gputide plan make"
    plan = format_plan_id(line.plan_id)
    if line.approved_stages > line.applied_stages:
        waiting = line.approved_stages - line.applied_stages
        return f"{plan}: {waiting} approved stages wait to be applied", f"gputide apply --plan {plan}"
    if line.stages == 0 and line.tide_stages:
        if line.is_tide_approved:
            return f"{plan}: its tide is approved", ""
        named = " ".join(f"--stage {stage}" for stage in line.tide_stages)
        return f"{plan}: its tide waits for approval", f"gputide plan approve --plan {plan} {named}"
    if line.stages == 0:
        return f"{plan}: nothing to apply", f"gputide plan show --plan {plan}"
    if line.applied_stages == 0:
        return f"{plan} waits for approval: frees {line.cards_freed} cards", f"gputide plan diff --plan {plan}"
    if outcome is None or not outcome.is_final:
        return f"{plan}: applied, not judged yet", f"gputide verify --plan {plan}"
    return f"{plan}: applied and judged", ""
