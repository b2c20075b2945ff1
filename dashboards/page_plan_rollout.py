"""Where a plan's rollout stands, why a button can't be pressed, and what an undo would do; a part of the plan page."""

from __future__ import annotations

from typing import Any

from dash import html

from dashboards.figures import signal_figure
from dashboards.page_frame import card, graph
from dashboards.queries import PlanEntry, RolloutPhase, RolloutProgress, Views
from dashboards.rows import age_words
from fleet.errors import GputideError
from fleet.units import format_count

OBJECTS_MAX = 60
"""Objects shown on the page."""


def apply_reason(entry: PlanEntry, chosen: tuple[int, ...], progress: RolloutProgress) -> str | None:
    """Why apply can't be pressed, in words; None where it can."""
    if progress.is_running:
        return "a rollout is running"
    if not chosen:
        return "no stage is chosen"
    if not set(chosen) & set(entry.approved_stages):
        return entry.approve_refusal or "the chosen stages are not approved yet"
    if entry.approvals_missing:
        return f"still needs the approval of {', '.join(entry.approvals_missing)}"
    if entry.apply_refusal is not None:
        return entry.apply_refusal
    if set(chosen) & set(entry.approved_stages) <= set(entry.applied_stages):
        return "these stages are applied"
    return None


def stage_status(entry: PlanEntry, stage: int) -> str:
    """Where a stage stands, with a sign."""
    if stage in entry.applied_stages:
        return "● applied"
    return "✓ approved" if stage in entry.approved_stages else "○ proposed"


def approver_words(entry: PlanEntry) -> str:
    """Who approved."""
    return f"approved by {', '.join(entry.approved_by)}" if entry.approved_by else ""


def undo_words(views: Views, entry: PlanEntry) -> Any:
    """What an undo would restore and keep; an open list behind one line."""
    try:
        preview = views.rollouts.undo_preview(entry.plan.plan_id)
    except GputideError as exc:
        return str(exc)
    summary = (
        f"Undo restores {format_count(len(preview.restores))} objects, takes {format_count(preview.cards_taken)} cards"
    )
    keeps = f", keeps {format_count(len(preview.keeps))} changed since" if preview.keeps else ""
    lines = [*(f"↩ {line}" for line in preview.restores), *(f"= {line}" for line in preview.keeps)]
    return html.Details(
        [html.Summary(summary + keeps), html.Ul([html.Li(line) for line in lines[:OBJECTS_MAX]], className="drop")]
    )


def undo_reason(entry: PlanEntry, progress: RolloutProgress) -> str:
    """Why undo can't be pressed."""
    if entry.undo_refusal is not None:
        return entry.undo_refusal
    if progress.is_running:
        return "undo waits for the running step"
    return "undone" if entry.undone_at is not None else "nothing to undo"


def progress_panel(progress: RolloutProgress) -> Any:
    """A rollout as it stands: phases, bar, watched signals against their thresholds, objects."""
    if progress.phase is RolloutPhase.NOT_STARTED:
        return None
    share = progress.done / progress.total if progress.total else 0.0
    left = progress.watch_seconds_left
    path = (RolloutPhase.CANARY, RolloutPhase.WATCHING, RolloutPhase.APPLYING, RolloutPhase.DONE)
    is_back = progress.phase in (RolloutPhase.RESTORING, RolloutPhase.RESTORED, RolloutPhase.FAILED)
    phases = (progress.phase,) if is_back else path
    return card(
        "Progress",
        html.Div(
            [
                html.Span(
                    phase.value.replace("_", " "), className="phase on" if phase is progress.phase else "phase"
                )
                for phase in phases
            ]
            + [html.Span(progress.message, className="soft")],
            className=f"phases {progress.phase.value}",
            id="progress-phase",
        ),
        html.Div(html.Div(className="bar", style={"width": f"{100 * share:.0f}%"}), className="track wide"),
        html.Div(
            [
                html.Div([html.Small(signal.name), graph(signal_figure(signal))], className="signal")
                for signal in progress.signals
            ],
            className="signals",
        )
        if progress.signals
        else None,
        html.Ul(
            [
                html.Li(
                    [
                        html.Span(f"{_phase_sign(item.phase)} {item.phase}", className=f"phase-word {item.phase}"),
                        html.Span(item.workload),
                        html.Small(f"{'canary · ' if item.is_canary else ''}stage {item.stage}"
                                   f"{f' · {item.detail}' if item.detail else ''}"),
                    ]
                )
                for item in progress.objects[:OBJECTS_MAX]
            ],
            className="objects",
        ),
        note=f"{format_count(progress.done)} of {format_count(progress.total)}"
        + (f" · watching {age_words(left)} more" if left is not None else ""),
        class_name="progress",
    )  # fmt: skip


def _phase_sign(phase: str) -> str:
    return {"intended": "○", "applied": "◐", "watched": "◑", "promoted": "●", "restored": "↩", "refused": "✕"}.get(
        phase, "·"
    )


def stage_words(stages: tuple[int, ...]) -> str:
    """Stages by their numbers."""
    return f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
