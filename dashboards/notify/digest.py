"""Which news go to whom now: none twice, one message per receiver and period, quiet hours kept. Pure.

Harm goes out by itself and soon; plans and whatever else waits for the receiver's next digest. What can't go out now
is not lost: it is made anew at the next look, and its key has not been sent yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from dashboards.notify.message import Message
from dashboards.notify.team import Team
from fleet.settings.guard import hours_of
from fleet.settings.notify import NoticeTopic, NotifySettings
from fleet.words import Words

EVERYTHING = "everything"
"""The receiver of what concerns the whole fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Who gets messages.

    Attributes:
        name: name of the team, or `EVERYTHING`.
        team: whose messages they are; None for the whole fleet's.
    """

    name: str
    team: Team | None
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentNews:
    """One piece of news that was sent."""

    receiver: str
    channel: str
    key: str
    topic: NoticeTopic
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One message for one channel, and the news in it."""

    receiver: str
    channel: str
    message: Message
    keys: tuple[tuple[str, NoticeTopic], ...]


def receivers(settings: NotifySettings, teams: Sequence[Team]) -> tuple[Receiver, ...]:
    """Everybody who gets messages, the whole fleet's first."""
    everything = Receiver(name=EVERYTHING, team=None, channels=settings.everything)
    theirs = (
        # A team may be called anything: its name must not be taken for the whole fleet's.
        Receiver(name=f"team {team.name}", team=team, channels=team.channels)
        for team in teams
    )
    return (everything, *theirs) if settings.everything else tuple(theirs)


def posts(
    news: Callable[[Team | None], Sequence[Message]],
    sent: Sequence[SentNews],
    settings: NotifySettings,
    teams: Sequence[Team],
    *,
    now: datetime,
    time_zone: str,
) -> tuple[Post, ...]:
    """What goes out now.

    Args:
        news: all news of a team, sent or not; of None those of the whole fleet.
    """
    known = {_heard(one.receiver, one.channel, one.key, one.topic) for one in sent}
    is_quiet = in_quiet_hours(settings.quiet_hours, now, time_zone)
    found: list[Post] = []
    for receiver in receivers(settings, teams):
        theirs = [
            message
            for message in news(receiver.team)
            if receiver.team is None
            or receiver.team.name in message.teams
            or receiver.team.is_concerned(message.namespaces, message.workloads)
        ]
        for channel in receiver.channels:
            topics = settings.channels[channel].topics
            fresh = [
                message
                for message in theirs
                if message.topic in topics
                and known.isdisjoint({(None, channel, message.key), (receiver.name, channel, message.key)})
            ]
            for topics_together, period in _kinds(settings):
                mine = [message for message in fresh if message.topic in topics_together]
                is_harm = NoticeTopic.HARM in topics_together
                if not mine or (is_quiet and not is_harm):
                    continue
                last = _last(sent, receiver.name, channel, topics_together)
                if last is None or now - last >= timedelta(seconds=period):
                    found.append(_post(receiver.name, channel, mine, now))
                    known |= {_heard(receiver.name, channel, message.key, message.topic) for message in mine}
    return tuple(found)


def _heard(receiver: str, channel: str, key: str, topic: NoticeTopic) -> tuple[str | None, str, str]:
    """What a channel has heard; for anybody, without a receiver, where it says all that there is to say.

    A channel hears a thing once, though it be the fleet's and a team's. A team gets its own part of a plan,
    so two teams of one channel get theirs each.
    """
    is_whole = receiver == EVERYTHING or topic is NoticeTopic.BUDGET
    return None if is_whole else receiver, channel, key


def in_quiet_hours(hours: str | None, now: datetime, time_zone: str) -> bool:
    """Whether it is quiet now by the clock of the zone; the begin of the hours belongs to them, the end does not."""
    if hours is None:
        return False
    begin, end = hours_of(hours)
    clock = now.astimezone(ZoneInfo(time_zone)).time()
    return _between(clock, begin, end)


def _between(clock: time, begin: time, end: time) -> bool:
    if begin <= end:
        # 24:00 is read as 00:00 of the next day.
        return begin <= clock and (clock < end or end == time(0))
    return clock >= begin or clock < end


def _kinds(settings: NotifySettings) -> tuple[tuple[tuple[NoticeTopic, ...], int], ...]:
    """Topics that share a message, and the least time between two of them; the weekly report goes by itself."""
    return (
        ((NoticeTopic.HARM,), settings.harm_seconds),
        ((NoticeTopic.PLAN, NoticeTopic.BUDGET), settings.digest_seconds),
    )


def _last(sent: Sequence[SentNews], receiver: str, channel: str, topics: tuple[NoticeTopic, ...]) -> datetime | None:
    times = [
        one.at
        for one in sent
        if one.receiver == receiver and one.channel == channel and one.topic in topics
    ]  # fmt: skip
    return max(times, default=None)


def _post(receiver: str, channel: str, news: Sequence[Message], now: datetime) -> Post:
    keys = tuple((message.key, message.topic) for message in news)
    if len(news) == 1:
        return Post(receiver=receiver, channel=channel, message=news[0], keys=keys)
    newest, words = news[-1], Words(language=news[-1].language)
    ordered = sorted(news, key=lambda message: (message.leads, message.at), reverse=True)
    clusters = sorted({message.cluster for message in news})
    together = replace(
        newest,
        key=f"digest:{receiver}:{now.isoformat()}",
        title=words.say("notice.more", title=ordered[0].title, count=len(news) - 1)
        if ordered[0].leads
        else words.say("notice.digest", clusters=words.say("mark.list").join(clusters), count=len(news)),
        lines=tuple(
            line for message in ordered for line in (message.title, *(f"  {line}" for line in message.lines[:1]))
        ),
        namespaces=tuple(sorted({name for message in news for name in message.namespaces})),
        workloads=tuple(sorted({name for message in news for name in message.workloads})),
        at=now,
    )
    return Post(receiver=receiver, channel=channel, message=together, keys=keys)
