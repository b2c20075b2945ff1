"""The port through which a message leaves, how often that is tried, and the dry run: files instead of sending."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from dashboards.notify.message import Message
from fleet.durable import unwritable, write_durably
from fleet.errors import Unavailable

FIRST_PAUSE_SECONDS = 1.0
"""Pause before the second try; it doubles from there."""


class Delivery(Protocol):
    """One channel. Adapters: `delivery_http`, `delivery_smtp`, and `FileDelivery` (the dry run)."""

    def send(self, message: Message) -> None:
        """Hand a message over, once.

        Raises:
            Unavailable: it may be taken later; a `TryAgain` says when.
            Misconfigured: it will never be taken as things are: address, key or password are wrong.
        """
        ...


class TryAgain(Unavailable):
    """The service asks for a pause.

    Attributes:
        pause_seconds: how long; None where it did not say.
    """

    def __init__(self, message: str, pause_seconds: float | None = None) -> None:
        super().__init__(message)
        self.pause_seconds = pause_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often a message is tried.

    Attributes:
        pause_seconds_max: longest pause that a service may ask for; a longer one ends the trying.
        pause: waits so many seconds.
    """

    tries_max: int
    pause_seconds_max: float
    pause: Callable[[float], None]


def send_patiently(delivery: Delivery, message: Message, patience: Patience) -> None:
    """Hand a message over, with back-off.

    Raises:
        Unavailable: every try failed, or the service asks for a longer pause than is waited.
        Misconfigured: see `Delivery.send`.
    """
    pause = FIRST_PAUSE_SECONDS
    for number in range(1, patience.tries_max + 1):
        try:
            delivery.send(message)
            return
        except Unavailable as exc:
            asked = exc.pause_seconds if isinstance(exc, TryAgain) else None
            wait = pause if asked is None else max(asked, 0.0)
            if number == patience.tries_max or wait > patience.pause_seconds_max:
                raise
        patience.pause(wait)
        pause *= 2


class FileDelivery:
    """`Delivery` into a folder: one file per message, with addresses and signatures left out.

    Args:
        channel: its name, the first part of a file's.
        folder: made where it is missing.
        body_of: the message as the service would get it.
    """

    def __init__(
        self,
        *,
        channel: str,
        folder: Path,
        body_of: Callable[[Message, datetime], bytes],
        suffix: str,
        now: Callable[[], datetime],
    ) -> None:
        self._channel = channel
        self._folder = folder
        self._body_of = body_of
        self._suffix = suffix
        self._now = now
        self._number = 0

    def send(self, message: Message) -> None:
        """Write the message; see `Delivery`.

        Raises:
            Corrupt: the folder can't be written.
        """
        self._number += 1
        path = self._folder / f"{self._channel}-{self._number:03}-{message.topic.value}{self._suffix}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise unwritable(path, exc) from exc
        write_durably(path, self._body_of(message, self._now()))
