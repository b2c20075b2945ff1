"""Sends messages and remembers which were taken, so that none is sent twice. Called by `gputide admin notify`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from dashboards.notify.delivery import Delivery, Patience, send_patiently
from dashboards.notify.digest import Post, Told
from dashboards.notify.memory import Memory
from fleet.data_folder import DataFolder
from fleet.errors import GputideError, Unavailable
from fleet.settings.notify import NotifySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one post; `failure` is None where it was taken."""

    post: Post
    failure: GputideError | None = None


def send_posts(
    folder: DataFolder,
    settings: NotifySettings,
    wanted: Callable[[], Sequence[Post]],
    now: datetime,
    *,
    open_channel: Callable[[str], Delivery],
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Sent, ...]:
    """Send, and remember after each that was taken; one channel's failure keeps no other from its messages.

    Args:
        folder: data folder.
        settings: how patiently, and for how long what was sent is remembered.
        wanted: gives what goes out; called while no other process sends.
        now: moment that is remembered, UTC.
        open_channel: opens a channel by its name.
        pause: waits between tries.

    Raises:
        Unavailable: another process is sending.
        Corrupt: what was sent can't be kept.
    """
    patience = Patience(tries_max=settings.tries_max, pause_seconds_max=settings.retry_after_max_seconds, pause=pause)
    memory = Memory(folder.notices, remember_days=settings.remember_days)
    found: list[Sent] = []
    silent: dict[str, GputideError] = {}
    try:
        posts_due = wanted()
        if posts_due:
            # A message that could not be remembered would be sent again at every look.
            memory.keep((), now)
        for post in posts_due:
            if post.channel in silent:
                # Its other messages would wait as long as this one did, and delay those of other channels.
                found.append(Sent(post=post, failure=silent[post.channel]))
                continue
            try:
                send_patiently(open_channel(post.channel), post.message, patience)
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
