"""Opens the channels that the settings name, and says what goes out by them now. Called by `gputide admin notify`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from dashboards.notify.chat_formats import CHAT_FORMATS, Hook
from dashboards.notify.delivery import Delivery, FileDelivery
from dashboards.notify.delivery_http import HttpDelivery
from dashboards.notify.delivery_smtp import SmtpDelivery, mail_of
from dashboards.notify.digest import Post, posts, receivers
from dashboards.notify.message import Message
from dashboards.notify.news import News
from dashboards.notify.notices import report_notice, team_report_notice
from dashboards.notify.sending import read_sent
from dashboards.notify.team import Team, teams_of
from dashboards.report.report import Report
from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured
from fleet.settings.notify import ChannelKind, ChannelSettings, NotifySettings
from fleet.settings.settings import Settings
from gputide.container.warehouse import warehouse

_SECRET_BYTES_MAX = 8192

_DRY_HOOK = Hook(url="https://dry-run.invalid/")


def open_channel(name: str, settings: NotifySettings) -> Delivery:
    """A channel by its name.

    Raises:
        Misconfigured: there is none of that name, a file of it can't be read, or its address may not be used.
    """
    channel = settings.channels.get(name)
    if channel is None:
        raise Misconfigured(f"no channel is called {name!r}; there are {', '.join(settings.channels) or 'none'}")
    secret = None if channel.secret_file is None else _secret(channel.secret_file, f"{name}.secret_file")
    if channel.kind is ChannelKind.MAIL:
        return SmtpDelivery(channel=name, server=channel, password=secret, timeout_seconds=settings.timeout_seconds)
    if channel.url_file is None:
        raise TypeError(f"channel {name} has no url_file")
    return HttpDelivery(
        channel=name,
        hook=Hook(url=_secret(channel.url_file, f"{name}.url_file"), secret=secret),
        outgoing=CHAT_FORMATS[channel.kind],
        timeout_seconds=settings.timeout_seconds,
        ca_file=channel.ca_file,
        certificate_file=channel.certificate_file,
        key_file=channel.key_file,
    )


def dry_channel(name: str, settings: NotifySettings, folder: Path, now: Callable[[], datetime]) -> Delivery:
    """The same channel into a folder: nothing secret is read, nothing is signed."""
    channel = settings.channels[name]
    return FileDelivery(
        channel=name,
        folder=folder,
        body_of=lambda message, at: _dry_body(channel, message, at),
        suffix=".eml" if channel.kind is ChannelKind.MAIL else ".json",
        now=now,
    )


def write_posts(settings: NotifySettings, wanted: Sequence[Post], target: Path, now: datetime) -> None:
    """The dry run: what would be sent, as files; nothing is remembered."""
    channels = {name: dry_channel(name, settings, target, lambda: now) for name in {post.channel for post in wanted}}
    for post in wanted:
        channels[post.channel].send(post.message)


def teams(folder: DataFolder, settings: Settings, now: datetime) -> tuple[Team, ...]:
    """The teams of the settings; the inventory is read only where one of them goes by labels."""
    wanted = settings.notify.teams
    if not any(team.labels for team in wanted.values()):
        return teams_of(wanted, ())
    store = warehouse(folder, settings)
    zone = settings.cluster.time_zone
    grants = [
        grant
        for cluster in store.clusters()
        for grant in store.inventory(cluster, as_of=now, time_zone=zone).grants
    ]  # fmt: skip
    return teams_of(wanted, grants)


def due(folder: DataFolder, settings: Settings, news: News, now: datetime) -> tuple[Post, ...]:
    """What goes out now of the news, by what was sent before."""
    sent, theirs = read_sent(folder.notices), teams(folder, settings, now)
    return posts(news, sent, settings.notify, theirs, now=now, time_zone=settings.cluster.time_zone)


def due_reports(folder: DataFolder, settings: Settings, report: Report, *, is_again: bool) -> tuple[Post, ...]:
    """The weekly report for everybody who gets it: once a week, whatever the digest's period.

    Args:
        is_again: True to send it to those who have it too.
    """
    notify = settings.notify
    sent = set() if is_again else {(one.receiver, one.channel, one.key) for one in read_sent(folder.notices)}
    found = []
    for receiver in receivers(notify, teams(folder, settings, report.created_at)):
        if receiver.team is None:
            message: Message | None = report_notice(report, base_url=notify.base_url)
        else:
            message = team_report_notice(report, receiver.team, base_url=notify.base_url)
        if message is None:
            continue
        found += [
            Post(receiver=receiver.name, channel=channel, message=message, keys=((message.key, message.topic),))
            for channel in receiver.channels
            if message.topic in notify.channels[channel].topics and (receiver.name, channel, message.key) not in sent
        ]
    return tuple(found)


def _dry_body(channel: ChannelSettings, message: Message, at: datetime) -> bytes:
    if channel.kind is ChannelKind.MAIL:
        return bytes(mail_of(message, sender=channel.sender or "", recipients=channel.recipients, at=at))
    body = json.loads(CHAT_FORMATS[channel.kind](message, _DRY_HOOK, at).body)
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def _secret(path: Path, name: str) -> str:
    """The first line of a file that holds nothing else."""
    try:
        data = path.read_bytes()[: _SECRET_BYTES_MAX + 1]
        text = data.decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"cannot read notify.channels.{name}={path}: {exc}") from exc
    if len(data) > _SECRET_BYTES_MAX or not text or "\n" in text:
        raise Misconfigured(f"cannot use notify.channels.{name}={path}: expected one line of at most 8 KiB")
    return text
