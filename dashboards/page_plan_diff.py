"""What a stage would change, object by object, as YAML side by side; a part of the plan page."""

from __future__ import annotations

from typing import Any

from dash import html

from dashboards.page_words import say
from dashboards.queries import ObjectDiff
from fleet.units import format_count

OBJECTS_MAX = 60
"""Objects shown on the page; the command line shows all."""


def diffs(objects: tuple[ObjectDiff, ...]) -> Any:
    """Objects before and after, side by side, changed lines marked with a sign and a ground."""
    if not objects:
        return html.P(say("Nothing would change: the cluster is already as the plan wants it."), className="soft")
    refused = [item for item in objects if item.refusal is not None]
    words = say("{count} objects", count=format_count(len(objects)))
    if refused:
        words += say(", {count} refused", count=format_count(len(refused)))
    more = len(objects) - OBJECTS_MAX
    shown = [*refused, *(item for item in objects if item.refusal is None)][:OBJECTS_MAX]
    return html.Div(
        [
            html.P(words, className="soft"),
            *[_diff(item) for item in shown],
            html.P(
                say("… and {count} more: `{command}`", count=format_count(more), command="gputide plan diff"),
                className="soft",
            )
            if more > 0
            else None,
        ],
        className="diffs",
    )


def _diff(item: ObjectDiff) -> Any:
    old, new = item.old_yaml.rstrip("\n").split("\n"), item.new_yaml.rstrip("\n").split("\n")
    name = f"{item.namespace}/{item.name}" if item.namespace else item.name
    return html.Div(
        [
            html.Header([html.B(f"{item.kind} "), html.Span(name), html.Code(item.recommendation)]),
            html.P(f"✕ {item.refusal}", className="message failed") if item.refusal is not None else None,
            html.Div([_side(old, set(new), "-", "gone"), _side(new, set(old), "+", "came")], className="sides"),
        ],
        className="diff",
    )  # fmt: skip


def _side(lines: list[str], other: set[str], sign: str, class_name: str) -> Any:
    return html.Pre(
        [
            html.Span(f"{' ' if line in other else sign} {line}\n", className="" if line in other else class_name)
            for line in lines
        ]
    )
