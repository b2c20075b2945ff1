"""Sends messages and remembers which were taken, so that none is sent twice. Called by `gputide admin notify`.

Which news were sent to whom is kept in a file, so that a restart sends nothing twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from dashboards.notify.delivery import Delivery, Patience, send_patiently
from dashboards.notify.digest import Post, SentNews
from fleet.data_folder import DataFolder
from fleet.documents import document
from fleet.durable import FolderLock, unwritable, write_durably
from fleet.errors import Corrupt, GputideError, Unavailable
from fleet.settings.faults import fault_words
from fleet.settings.notify import NotifySettings

if TYPE_CHECKING:
    from wire.own_metrics import OwnMetrics

_FILE = "sent.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one post; `failure` is None where it was taken."""

    post: Post
    failure: GputideError | None = None


class NotifyMetrics:
    """What counts the messages; channels are those of the settings."""

    def __init__(self, own: OwnMetrics) -> None:
        self.looks = own.passes("look", "look for news")
        self._messages = own.counter("messages_total", "Messages: sent or failed.", "channel", "result")

    def take(self, found: Sequence[Sent]) -> None:
        """Count what became of messages."""
        for one in found:
            self._messages.labels(one.post.channel, "sent" if one.failure is None else "failed").inc()


def send_posts(
    folder: DataFolder,
    settings: NotifySettings,
    wanted: Callable[[], Sequence[Post]],
    now: datetime,
    *,
    open_channel: Callable[[str], Delivery],
) -> tuple[Sent, ...]:
    """Send, and remember after each that was taken; one channel's failure keeps no other from its messages.

    Args:
        settings: how patiently, and for how long what was sent is remembered.
        wanted: gives what goes out; called while no other process sends.

    Raises:
        Unavailable: another process is sending.
        Corrupt: what was sent can't be kept.
    """
    longest = settings.retry_after_max_seconds
    patience = Patience(tries_max=settings.tries_max, pause_seconds_max=longest, pause=time.sleep)
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
                    SentNews(receiver=post.receiver, channel=post.channel, key=key, topic=topic, at=now)
                    for key, topic in post.keys
                ],
                now,
            )
            found.append(Sent(post=post))
    finally:
        memory.close()
    return tuple(found)


class Memory:
    """The news sent so far, in a folder; one process at a time may hold it.

    Args:
        folder: made where it is missing.
        remember_days: older news are forgotten.

    Raises:
        Unavailable: another process holds it.
        Corrupt: the folder can't be written, or its file can't be read.
    """

    def __init__(self, folder: Path, *, remember_days: int) -> None:
        self._path = folder / _FILE
        self._remember = timedelta(days=remember_days)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise unwritable(folder, exc) from exc
        self._lock = FolderLock(folder, "notify")
        try:
            self._sent = read_sent(folder)
        except Corrupt:
            self._lock.release()
            raise

    def keep(self, more: Sequence[SentNews], now: datetime) -> None:
        """Add what was sent, durably.

        Raises:
            Corrupt: the file can't be written.
        """
        self._sent = tuple(one for one in (*self._sent, *more) if now - one.at <= self._remember)
        content = [document(one) for one in self._sent]
        write_durably(self._path, json.dumps(content, ensure_ascii=False).encode())

    def close(self) -> None:
        """Let another process have it."""
        self._lock.release()


def read_sent(folder: Path) -> tuple[SentNews, ...]:
    """What was sent, oldest first, without holding the folder.

    Raises:
        Corrupt: the file can't be read.
    """
    path = folder / _FILE
    try:
        return tuple(TypeAdapter(list[SentNews]).validate_json(path.read_bytes()))
    except FileNotFoundError:
        return ()
    except (OSError, ValidationError) as exc:
        fault = fault_words(exc) if isinstance(exc, ValidationError) else exc
        raise Corrupt(f"cannot read {path}: {fault}; move it away to begin anew: messages are then sent again") from exc
