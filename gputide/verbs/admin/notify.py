"""`gputide admin notify`: messages to mail and chats about plans that wait, harm and what was taken back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import structlog
import typer

from dashboards.notify.digest import Post, in_quiet_hours, receivers
from dashboards.notify.news import News, language_of, trial_message
from dashboards.notify.sending import NotifyMetrics, Sent, read_sent, send_posts
from dashboards.notify.team import Team
from dashboards.queries import Views
from dashboards.report.report import Report
from fleet.documents import iso
from fleet.errors import GputideError, Misconfigured, Unavailable
from fleet.settings.notify import ChannelKind
from gputide.container.notify import due, due_reports, open_channel, teams, write_posts
from gputide.container.own_metrics import open_own_metrics
from gputide.container.pages import views_of
from gputide.options import answering
from gputide.output import Answer, Listing
from gputide.session import Session, session_of

_log = structlog.get_logger()

app = typer.Typer(
    no_args_is_help=True, help="Messages to mail and chats. Example: gputide admin notify send --to-file ./out"
)

ToFileOption = Annotated[
    Path | None,
    typer.Option("--to-file", metavar="DIR", help="Write what would be sent into this folder; send nothing."),
]


@app.command("show", epilog="Example: gputide admin notify show")
@answering
def show(session: Session) -> Answer:
    """Show channels, who gets what, and which news wait to be sent."""
    settings, folder, now = session.settings, session.folder(), session.now()
    notify = settings.notify
    news = News(views_of(session), settings, now)
    sent = read_sent(folder.notices)
    waiting = due(folder, settings, news, now)
    channels = Listing.of(
        "Channels",
        notify.channels.items(),
        {
            "channel": lambda one: one[0],
            "kind": lambda one: one[1].kind.value,
            "topics": lambda one: ", ".join(topic.value for topic in one[1].topics),
            "where": lambda one: _where(one[1].host, one[1].kind),
        },
    )
    people = Listing.of(
        "Who gets what",
        receivers(notify, teams(folder, settings, now)),
        {
            "receiver": lambda one: one.name,
            "concerns": lambda one: _whose(one.team),
            "channels": lambda one: ", ".join(one.channels),
        },
    )
    now_due = [(post.receiver, post.channel, post.message.topic.value, post.message.title) for post in waiting]
    document = {
        "channels": channels.records(),
        "receivers": people.records(),
        "due": [dict(zip(("receiver", "channel", "topic", "title"), row, strict=True)) for row in now_due],
        "sent": [
            {"receiver": one.receiver, "channel": one.channel, "key": one.key, "at": iso(one.at)} for one in sent
        ],
    }  # fmt: skip
    notes = [] if notify.channels else ["no channel is set: write [notify.channels.NAME] into the TOML file"]
    if in_quiet_hours(notify.quiet_hours, now, settings.cluster.time_zone):
        notes.append(f"quiet hours {notify.quiet_hours}: only harm is sent")
    return Answer(
        document=document,
        listings=(
            Listing(title="Goes out now", columns=("receiver", "channel", "about", "title"), rows=now_due),
            channels,
            people,
        ),
        footnotes=(*notes, f"{len(news(None))} news in all, {len(sent)} messages remembered"),
    )


@app.command("send", epilog="Example: gputide admin notify send --to-file ./out")
def send(context: typer.Context, to_file: ToFileOption = None) -> None:
    """Send what there is to tell now: once per news, one message per receiver and period."""
    session = session_of(context)
    if to_file is not None:
        folder, now = session.folder(), session.now()
        wanted = due(folder, session.settings, News(views_of(session), session.settings, now), now)
        write_posts(session.settings.notify, wanted, to_file, now)
        typer.echo(f"wrote {len(wanted)} messages to {to_file}; nothing was sent")
        return
    _need_channels(session)
    told_of(_sent(session, views_of(session)))


@app.command("run", epilog="Example: gputide admin notify run")
def run(context: typer.Context) -> None:
    """Look for news every notify.interval_seconds and send them, until stopped."""
    session = session_of(context)
    _need_channels(session)
    # One for all looks: what the budgets come to is kept for the hour.
    views, pause = views_of(session), threading.Event()
    with open_own_metrics(session.settings, "notify", NotifyMetrics) as metrics:
        while True:
            try:
                with metrics.looks.one():
                    found = _sent(session, views)
            except Unavailable as exc:
                _log.warning("news not looked at", reason=str(exc))
            else:
                metrics.take(found)
                for one in found:
                    said = {"receiver": one.post.receiver, "channel": one.post.channel, "title": one.post.message.title}
                    if one.failure is None:
                        _log.info("message sent", **said)
                    else:
                        _log.error("message not sent", **said, reason=str(one.failure))
            pause.wait(session.settings.notify.interval_seconds)


@app.command("test", epilog="Example: gputide admin notify test ops")
def test(context: typer.Context, channel: Annotated[str, typer.Argument(help="Name of a channel.")]) -> None:
    """Send one test message to a channel."""
    session = session_of(context)
    notify = session.settings.notify
    open_channel(channel, notify).send(trial_message(datetime.now(UTC), notify.base_url, language_of(session.settings)))
    typer.echo(f"channel {channel} took the message")


def send_report(session: Session, report: Report, *, to_file: Path | None, is_again: bool) -> None:
    """Tell the weekly report to everybody who gets it, or write what would be sent into a folder.

    Args:
        report: with as many rows in its top list as teams' messages may be picked from.
        to_file: folder of the dry run; None to send.
        is_again: True to send it to those who have it too.

    Raises:
        Misconfigured: there is no channel, or one refused.
    """
    settings, folder, now = session.settings, session.folder(), session.now()
    _need_channels(session)
    if to_file is not None:
        wanted = due_reports(folder, settings, report, is_again=is_again)
        write_posts(settings.notify, wanted, to_file, now)
        typer.echo(f"wrote {len(wanted)} messages to {to_file}; nothing was sent")
        return
    told_of(_sent_posts(session, lambda: due_reports(folder, settings, report, is_again=is_again)))


def told_of(found: tuple[Sent, ...]) -> None:
    """Print what became of each message.

    Raises:
        GputideError: of the first that failed, after all are printed.
    """
    for one in found:
        typer.echo(_line(one))
    if not found:
        typer.echo("nothing to tell")
    failed: list[GputideError] = [one.failure for one in found if one.failure is not None]
    if failed:
        raise failed[0]


def _sent(session: Session, views: Views) -> tuple[Sent, ...]:
    folder, settings, now = session.folder(), session.settings, session.now()
    news = News(views, settings, now)
    return _sent_posts(session, lambda: due(folder, settings, news, now))


def _sent_posts(session: Session, wanted: Callable[[], Sequence[Post]]) -> tuple[Sent, ...]:
    notify = session.settings.notify
    return send_posts(
        session.folder(), notify, wanted, session.now(), open_channel=lambda name: open_channel(name, notify)
    )


def _need_channels(session: Session) -> None:
    if not session.settings.notify.everything and not session.settings.notify.teams:
        raise Misconfigured(
            "cannot tell anybody: set notify.channels and notify.everything or notify.teams in the TOML file "
            "(docs/notify.md)"
        )


def _line(one: Sent) -> str:
    what = f"{one.post.receiver} by {one.post.channel}: {one.post.message.title}"
    return f"sent: {what}" if one.failure is None else f"not sent: {what}: {one.failure}"


def _whose(team: Team | None) -> str:
    if team is None:
        return "all"
    by_label = f"{len(team.workloads)} workloads by label" if team.workloads else ""
    return ", ".join(filter(None, (*team.namespaces, by_label)))


def _where(host: str | None, kind: ChannelKind) -> str:
    """Addresses of hooks are secrets: only a mail server is shown."""
    return host or "" if kind is ChannelKind.MAIL else "(address in its file)"
