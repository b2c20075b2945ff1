"""`kubectl gputide watch`: follows a plan until nothing of it is under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import typer

from dashboards.usage_api.names import Object
from fleet.errors import Refused
from fleet.units import format_plan_id
from gputide.kubectl.sessions import cluster_objects
from gputide.output import printable
from gputide.session import session_of

app = typer.Typer()

UNSEEN_SECONDS = 20.0
"""After this time it is said that nobody does what is wanted."""
_SETTLED = frozenset({"Applied", "NothingWanted"})
"""Reasons of the condition `Applied` (`enforcer.record.plan_status`) when nothing is due."""


@app.command(epilog="Example: kubectl gputide watch 7f3a")
def watch(
    context: typer.Context,
    identifier: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A plan, by the start of its id; the newest unless given.")
    ] = None,
) -> None:
    """Say each step of a plan that is being applied or taken back; ends once nothing is due any more."""
    with cluster_objects(session_of(context)) as objects:
        name = str(objects.plan(identifier)["metadata"]["name"])
        for line in steps(objects.following(name)):
            typer.echo(printable(line))


def steps(heads: Iterable[Object], now_seconds: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """What is said of a plan that is looked at again and again, until nothing of it is due.

    Raises:
        Refused: a stage of what is wanted was taken back.
    """
    said, seen_at, is_named = "", now_seconds(), False
    for head in heads:
        line = _line(head)
        if line != said:
            yield line
            said = line
        if failed := _condition(head, "Failed"):
            raise Refused(f"plan {format_plan_id(head['spec']['plan'])} was taken back: {failed}")
        if _is_settled(head):
            return
        if _is_seen(head):
            seen_at, is_named = now_seconds(), False
        elif not is_named and now_seconds() - seen_at >= UNSEEN_SECONDS:
            is_named = True
            yield "nobody has taken up what is wanted: does a controller run (enforcer.controller of the chart)?"


def _line(head: Object) -> str:
    status = head.get("status") or {}
    parts = (
        f"plan {format_plan_id(head['spec']['plan'])}: {status.get('state') or 'Proposed'}",
        f"{status['progress']} stages in force" if status.get("progress") else "",
        f"under way: {status['underWay']}" if status.get("underWay") else "",
        _refusal(head),
    )
    return ", ".join(part for part in parts if part)


def _condition(head: Object, kind: str) -> str:
    """Message of a condition that is true of what is wanted now; empty where it is not."""
    for one in (head.get("status") or {}).get("conditions") or ():
        is_now = one.get("observedGeneration") == head["metadata"].get("generation")
        if one.get("type") == kind and one.get("status") == "True" and is_now:
            return str(one.get("message") or one.get("reason"))
    return ""


def _refusal(head: Object) -> str:
    """Why what is wanted is not done yet, where the controller says so."""
    said = _applied(head)
    return f"not yet: {said.get('message', '')}" if said.get("reason") == "Refused" else ""


def _is_settled(head: Object) -> bool:
    """Whether nothing is due any more, as who acts saw it last; stages of tides are nobody's to wait for."""
    if (head.get("status") or {}).get("underWay"):
        return False
    return head["spec"].get("apply") is None or (_is_seen(head) and _applied(head).get("reason") in _SETTLED)


def _is_seen(head: Object) -> bool:
    """Whether somebody has looked at what is wanted now."""
    return bool((head.get("status") or {}).get("observedGeneration") == head["metadata"].get("generation"))


def _applied(head: Object) -> Object:
    """What is said of what is wanted; empty where nobody said anything."""
    conditions = (head.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == "Applied"), {})
