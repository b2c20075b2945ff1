"""`gputide run relief`: what is done within seconds when a card overloads, shown, tried once, or run."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType

import typer

from enforcer.relief.overload import Overload
from enforcer.relief.proposal import Proposal
from enforcer.relief.relief_journal import MeasuredRelief, MoveRecord
from enforcer.relief.runner import ReliefLook, ReliefMetrics
from fleet.documents import document, iso
from fleet.durable import FolderLock
from fleet.errors import EXIT_FINDINGS, EXIT_FINE, NotEnoughData, Refused, Unavailable
from fleet.settings.settings import ClusterChoice
from fleet.units import format_bytes_short, format_duration, format_time
from gputide.container.own_metrics import open_own_metrics
from gputide.container.relief import OpenRelief, open_relief, relief_journal
from gputide.options import YesOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session, session_of

app = typer.Typer(
    no_args_is_help=True, help="Relieve cards that overload at run time: low priority sleeps, a pod moves, and home."
)

_SHOWN_MAX = 50
_BUSY_SECONDS = 1.0
_LOOK_SECONDS_MIN = 0.25


@app.command("show", epilog="Example: gputide run relief show")
@answering
def show(session: Session) -> Answer:
    """Show who sleeps and who moved, why, and how long that took."""
    journal = relief_journal(session.folder())
    moves, squeezes, measured = journal.moves(), journal.open_squeezes(), journal.measured()
    asleep = [(entry.node, entry.card, len(entry.containers), format_time(entry.at)) for entry in squeezes]
    shown = Listing.of(
        "Moves",
        moves[-_SHOWN_MAX:],
        {
            "begun": lambda record: format_time(record.begun_at),
            "pod": lambda record: record.order.pod_id,
            "from": lambda record: record.order.from_card,
            "to": lambda record: record.order.to_card,
            "how": lambda record: "home" if record.order.is_home else record.order.manner.value,
            "state": lambda record: record.phase.value.replace("_", " "),
            "after": _duration,
            "why": lambda record: str(record.why or record.order.reason),
        },
    )
    return Answer(
        document={
            "schema": "gputide.relief/v1",
            "measured": None if measured is None else document(measured),
            "asleep": [
                {"node": entry.node, "card": entry.card, "containers": len(entry.containers), "since": iso(entry.at)}
                for entry in squeezes
            ],
            "moves": [_move(record) for record in moves],
        },
        headline=(_measured_line(measured),),
        listings=(
            *_listing("Low priority that sleeps", ("node", "card", "containers", "since"), asleep),
            *((shown,) if moves else ()),
        ),
    )


@app.command("once", epilog="Example: gputide run relief once --yes")
@answering
def once(session: Session, yes: YesOption = False) -> Answer:
    """Look once at what is overloaded; with --yes do what is due. Exit status 1 where a card is overloaded.

    A move takes longer than one look: call again, or let `gputide run relief run` see to it.
    """
    folder = session.folder(create=session.settings.enforcer.cluster is ClusterChoice.KUBERNETES)
    with (
        FolderLock(folder.path, "relief"),
        open_relief(folder, session.settings, session.now(), at_once=True) as relief,
    ):
        views = relief.feed.views(session.settings.relief.wait_seconds)
        if not views:
            raise Unavailable(
                "cannot look for overloaded cards: no agent answered (settings relief.agents, agent.listen)"
            )
        if not yes:
            return _would(relief.runner.see(views), relief.runner.would_move(views), nodes=len(views))
        look = relief.runner.look(views)
        relief.runner.stop()
        return _looked(look, nodes=len(views))


@app.command("run", epilog="Example: gputide --set enforcer.cluster=kubernetes run relief run --yes")
def run(context: typer.Context, yes: YesOption = False) -> None:
    """Relieve cards until it is stopped; what is under way then goes on with the next start."""
    if not yes:
        raise Refused("cannot relieve cards without --yes; see what is due with `gputide run relief once`")
    session = session_of(context)
    folder, settings = session.folder(create=True), session.settings
    with ExitStack() as opened:
        opened.enter_context(FolderLock(folder.path, "relief"))
        metrics = opened.enter_context(open_own_metrics(settings, "relief", ReliefMetrics))
        relief = opened.enter_context(open_relief(folder, settings, session.now(), at_once=False))
        opened.enter_context(metrics.api_requests.following(lambda: relief.cluster.requests))
        stopped = _stop_on_signals()
        typer.echo("relief runs; Ctrl-C stops", err=True)
        _follow(relief, metrics, stopped, settings.relief.wait_seconds)
    typer.echo("stopped; pods that sleep by its order wake when that expires", err=True)


def _follow(relief: OpenRelief, metrics: ReliefMetrics, stopped: threading.Event, wait_seconds: float) -> None:
    is_busy = False
    failure: str | type[NotEnoughData] | None = None
    while not stopped.is_set():
        began = time.monotonic()
        try:
            views = relief.feed.views(_BUSY_SECONDS if is_busy else min(_BUSY_SECONDS * 5, wait_seconds))
            look = metrics.look(relief.runner, views)
        except NotEnoughData as exc:
            # Of a replay nothing is recorded while `apply` watches, for that takes hours of its clock. Each look names
            # others of them.
            if failure is not NotEnoughData:
                typer.echo(f"not now: {exc}", err=True)
            failure, is_busy = NotEnoughData, True
        except (Refused, Unavailable) as exc:
            if failure != str(exc):
                typer.echo(f"not now: {exc}", err=True)
            failure, is_busy = str(exc), True
        else:
            failure, is_busy = None, look.is_busy
            for text in look.said:
                typer.echo(text)
        # A hundred agents in trouble are one look, not a hundred.
        stopped.wait(max(0.0, _LOOK_SECONDS_MIN - (time.monotonic() - began)))


def _stop_on_signals() -> threading.Event:
    stopped = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        # By a thread: the signal may come while the one it interrupts holds the lock that `set` needs.
        threading.Thread(target=stopped.set, name="stop", daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stopped


def _looked(look: ReliefLook, *, nodes: int) -> Answer:
    return Answer(
        document={"nodes": nodes, "overloads": [_overload(entry) for entry in look.overloads], "said": list(look.said)},
        headline=(_count(look.overloads, nodes), *look.said),
        listings=_overload_listing(look.overloads),
        status=EXIT_FINDINGS if look.overloads else EXIT_FINE,
    )


def _would(
    found: tuple[Overload, ...], would: tuple[tuple[Overload, Proposal | None, str], ...], *, nodes: int
) -> Answer:
    rows = [
        (overload.card, proposal.seat.pod_id, proposal.target.card, proposal.target.node, proposal.movable.manner or "")
        if proposal is not None
        else (overload.card, "nobody", "", "", why)
        for overload, proposal, why in would
    ]
    return Answer(
        document={
            "nodes": nodes,
            "overloads": [_overload(entry) for entry in found],
            "would_move": [
                {"card": row[0], "pod": row[1], "to": row[2], "node": row[3], "how": str(row[4])} for row in rows
            ],
        },
        headline=(_count(found, nodes),),
        listings=(*_overload_listing(found), *_listing("Would move", ("card", "pod", "to", "node", "how"), rows)),
        footnotes=("nothing was changed; do it with --yes",) if found else (),
        status=EXIT_FINDINGS if found else EXIT_FINE,
    )


def _count(found: tuple[Overload, ...], nodes: int) -> str:
    return f"{len(found)} cards are overloaded on {nodes} nodes that tell what they see"


def _listing(title: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> tuple[Listing, ...]:
    """A table, none where it would be empty."""
    return (Listing(title=title, columns=columns, rows=list(rows)),) if rows else ()


def _overload_listing(found: tuple[Overload, ...]) -> tuple[Listing, ...]:
    listing = Listing.of(
        "Overloaded",
        found,
        {
            "node": lambda entry: entry.node,
            "card": lambda entry: entry.card,
            "by": lambda entry: entry.cause.value,
            "low priority on it": lambda entry: len({part.pod_id for part in entry.low}),
            "a pod must move": lambda entry: "yes" if entry.needs_move else "no",
            "why": lambda entry: str(entry.reason),
        },
    )
    return (listing,) if found else ()


def _overload(entry: Overload) -> dict[str, object]:
    return {
        "node": entry.node,
        "card": entry.card,
        "cause": entry.cause.value,
        "low_priority_pods": sorted({part.pod_id for part in entry.low}),
        "needs_move": entry.needs_move,
        "reason": str(entry.reason),
    }


def _move(record: MoveRecord) -> dict[str, object]:
    order = record.order
    return {
        "move": order.move_id,
        "pod": order.pod_id,
        "workload": order.workload,
        "from": order.from_card,
        "to": order.to_card,
        "how": order.manner.value,
        "is_home": order.is_home,
        "is_home_again": record.is_home_again,
        "state": record.phase.value,
        "overloaded_at": iso(order.overloaded_at),
        "begun_at": iso(record.begun_at),
        "ready_at": None if record.ready_at is None else iso(record.ready_at),
        "ended_at": None if record.ended_at is None else iso(record.ended_at),
        "reason": str(order.reason),
        "why_taken_back": None if record.why is None else str(record.why),
    }


def _duration(record: MoveRecord) -> str:
    ended = record.ended_at
    return "" if ended is None else format_duration((ended - record.begun_at).total_seconds())


def _measured_line(measured: MeasuredRelief | None) -> str:
    if measured is None:
        return "too few moves were made to say how long they take; plans go by what is assumed"
    reaction = measured.reaction_seconds
    began = "" if reaction is None else f"a move began {reaction:.1f} s after the overload was seen, and "
    return (
        f"measured over {measured.moves} moves: {began}its pod was ready after {measured.ready_seconds:.1f} s "
        f"({format_bytes_short(measured.load_bytes_per_second)}/s)"
    )
