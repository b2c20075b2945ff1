"""Puts channels behind messages as the settings say, tells what there is to tell, and remembers it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from dashboards.notify.chat_formats import CHAT_FORMATS, Hook
from dashboards.notify.delivery import Delivery, FileDelivery, Patience, send_patiently
from dashboards.notify.delivery_http import HttpDelivery
from dashboards.notify.delivery_smtp import MailServer, SmtpDelivery, mail_of
from dashboards.notify.digest import Post, Told, in_quiet_hours, posts, receivers
from dashboards.notify.memory import Memory, read_told
from dashboards.notify.message import Message
from dashboards.notify.notices import Telling, budget_notices, notices, report_notice, team_report_notice
from dashboards.notify.team import Team, teams_of
from dashboards.queries import Views
from dashboards.report.report import Report
from dashboards.words.catalogue import Language, Words
from fleet.data_folder import DataFolder
from fleet.errors import GputideError, Misconfigured, Unavailable
from fleet.settings.notify import ChannelKind, ChannelSettings, NoticeTopic, NotifySettings
from fleet.settings.settings import Settings
from gputide.wiring_warehouse import warehouse

_log = structlog.get_logger()

NEWS_DAYS_MAX = 7
"""Age beyond which nobody wants to hear of it: who begins to listen today is not told of last month."""

_SECRET_BYTES_MAX = 8192

_DRY_HOOK = Hook(url="https://dry-run.invalid/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one post; `failure` is None where it was taken."""

    post: Post
    failure: GputideError | None = None


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
        return SmtpDelivery(
            channel=name,
            server=MailServer(
                host=channel.host or "",
                port=channel.port,
                security=channel.security,
                user=channel.user,
                password=secret,
                ca_file=channel.ca_file,
                certificate_file=channel.certificate_file,
                key_file=channel.key_file,
                timeout_seconds=settings.timeout_seconds,
            ),
            sender=channel.sender or "",
            recipients=channel.recipients,
        )
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


def language_of(settings: Settings) -> Language:
    """Language of messages: `notify.language`, else that of the report."""
    return Language(settings.notify.language or settings.report.language)


class News:
    """Everything about plans and budgets that people should hear, of all clusters, by whom it is told to.

    Args:
        views: the pages' ports.
        settings: all settings.
        now: moment of looking, UTC.
    """

    def __init__(self, views: Views, settings: Settings, now: datetime) -> None:
        self._views = views
        self._settings = settings
        self._now = now

    def __call__(self, team: Team | None) -> tuple[Message, ...]:
        """What there is to tell a team, or of None the whole fleet's; oldest first."""
        notify = self._settings.notify
        telling = Telling(base_url=notify.base_url, language=language_of(self._settings), team=team)
        since = self._now - timedelta(days=min(NEWS_DAYS_MAX, notify.remember_days))
        found: list[Message] = []
        for cluster in self._views.fleet.clusters():
            found += notices(
                self._views.plans.plans(cluster),
                self._views.outcomes.outcomes(cluster),
                self._views.outcomes.ledger(cluster),
                now=self._now,
                since=since,
                telling=telling,
            )
            found += self._budgets(cluster, telling)
        return tuple(found)

    def _budgets(self, cluster: str, telling: Telling) -> tuple[Message, ...]:
        """News of budgets; what can't be summed keeps nobody from hearing of harm."""
        try:
            statuses, currency = self._views.money.budgets(cluster), self._views.money.currency
        except GputideError as exc:
            _log.error("budgets not looked at", cluster=cluster, reason=str(exc))
            return ()
        ratio = self._settings.notify.budget_ratio
        return budget_notices(statuses, cluster=cluster, currency=currency, now=self._now, ratio=ratio, telling=telling)


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
    """What goes out now of the news, by what was told before."""
    told, theirs = read_told(folder.notices), teams(folder, settings, now)
    return posts(news, told, settings.notify, theirs, now=now, time_zone=settings.cluster.time_zone)


def due_reports(folder: DataFolder, settings: Settings, report: Report, *, is_again: bool) -> tuple[Post, ...]:
    """The weekly report for everybody who gets it: once a week, whatever the digest's period.

    Args:
        folder: data folder.
        settings: all settings.
        report: the report.
        is_again: True to send it to those who have it too.
    """
    notify = settings.notify
    told = set() if is_again else {(one.receiver, one.channel, one.key) for one in read_told(folder.notices)}
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
            if message.topic in notify.channels[channel].topics and (receiver.name, channel, message.key) not in told
        ]
    return tuple(found)


def send_posts(
    folder: DataFolder,
    settings: NotifySettings,
    wanted: Callable[[], Sequence[Post]],
    now: datetime,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Sent, ...]:
    """Send, and remember after each that was taken; one channel's failure keeps no other from its messages.

    Args:
        folder: data folder.
        settings: the channels.
        wanted: what goes out, asked while no other process sends.
        now: moment that is remembered, UTC.
        pause: waits between tries.

    Raises:
        Unavailable: another process is sending.
        Corrupt: what was told can't be kept.
    """
    patience = Patience(tries_max=settings.tries_max, pause_seconds_max=settings.retry_after_max_seconds, pause=pause)
    memory = Memory(folder.notices, remember_days=settings.remember_days)
    found: list[Sent] = []
    silent: dict[str, GputideError] = {}
    try:
        posts_due = wanted()
        if posts_due:
            # What could not be remembered would be told again at every look.
            memory.keep((), now)
        for post in posts_due:
            if post.channel in silent:
                # Its other messages would wait as long as this one did, and keep everybody else's back.
                found.append(Sent(post=post, failure=silent[post.channel]))
                continue
            try:
                send_patiently(open_channel(post.channel, settings), post.message, patience)
            except GputideError as exc:
                found.append(Sent(post=post, failure=exc))
                if isinstance(exc, Unavailable):
                    silent[post.channel] = exc
                continue
            memory.keep(
                [
                    Told(receiver=post.receiver, channel=post.channel, key=key, topic=topic, at=now)
                    for key, topic in post.keys
                ],
                now,
            )
            found.append(Sent(post=post))
    finally:
        memory.close()
    return tuple(found)


def write_posts(settings: NotifySettings, wanted: Sequence[Post], target: Path, now: datetime) -> None:
    """The dry run: what would be sent, as files; nothing is remembered."""
    channels = {name: dry_channel(name, settings, target, lambda: now) for name in {post.channel for post in wanted}}
    for post in wanted:
        channels[post.channel].send(post.message)


def is_quiet(settings: Settings, now: datetime) -> bool:
    """Whether only harm is told now."""
    return in_quiet_hours(settings.notify.quiet_hours, now, settings.cluster.time_zone)


def trial_message(now: datetime, base_url: str | None, language: Language) -> Message:
    """A message by which people see that a channel works."""
    words = Words(language=language)
    return Message(
        key=f"test:{now.isoformat()}",
        topic=NoticeTopic.REPORT,
        title=words.say("notice.test_title"),
        lines=(words.say("notice.test_line"),),
        link=base_url,
        link_text=words.say("notice.open_app"),
        cluster="",
        namespaces=(),
        workloads=(),
        at=now,
        language=language,
    )


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
