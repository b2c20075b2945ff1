"""`kubectl gputide watch`: follows a plan until nothing of it is under way."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fleet.errors import Refused
from fleet.units import format_plan_id
from gputide.kubectl.sessions import cluster_objects
from gputide.output import printable
from gputide.session import session_of

app = typer.Typer()


@app.command(epilog="Example: kubectl gputide watch 7f3a")
def watch(
    context: typer.Context,
    identifier: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A plan, by the start of its id; the newest unless given.")
    ] = None,
) -> None:
    """Say each step of a plan that is being applied or taken back; ends once nothing is due any more."""
    said = ""
    with cluster_objects(session_of(context)) as objects:
        name = str(objects.plan(identifier)["metadata"]["name"])
        for head in objects.following(name):
            line = _line(head)
            if line != said:
                typer.echo(printable(line))
                said = line
            if failed := _condition(head, "Failed"):
                raise Refused(f"plan {format_plan_id(head['spec']['plan'])} was taken back: {failed}")
            if _is_settled(head):
                return


def _line(head: dict[str, Any]) -> str:
    status = head.get("status") or {}
    parts = (
        f"plan {format_plan_id(head['spec']['plan'])}: {status.get('state') or 'Proposed'}",
        f"{status['progress']} stages in force" if status.get("progress") else "",
        f"under way: {status['underWay']}" if status.get("underWay") else "",
        _refusal(head),
    )
    return ", ".join(part for part in parts if part)


def _condition(head: dict[str, Any], kind: str) -> str:
    """Message of a condition that is true of what is wanted now; empty where it is not."""
    for one in (head.get("status") or {}).get("conditions") or ():
        is_now = one.get("observedGeneration") == head["metadata"].get("generation")
        if one["type"] == kind and one["status"] == "True" and is_now:
            return str(one.get("message") or one.get("reason"))
    return ""


def _refusal(head: dict[str, Any]) -> str:
    """Why what is wanted is not done yet, where the controller says so."""
    for one in (head.get("status") or {}).get("conditions") or ():
        if one["type"] == "Applied" and one["status"] != "True" and one.get("reason") == "Refused":
            return f"not yet: {one.get('message', '')}"
    return ""


def _is_settled(head: dict[str, Any]) -> bool:
    """Whether what is wanted is in force, as the controller saw it last."""
    status = head.get("status") or {}
    applied = {int(stage) for stage in str(status.get("applied") or "").split(",") if stage.strip()}
    wanted = head["spec"].get("apply")
    is_seen = status.get("observedGeneration") == head["metadata"].get("generation")
    return not status.get("underWay") and (wanted is None or (is_seen and set(wanted) == applied))
