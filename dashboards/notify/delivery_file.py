"""The dry run: what would be sent, as files that can be looked at; addresses and signatures are left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from dashboards.notify.message import Message
from fleet.durable import unwritable, write_durably


class FileDelivery:
    """`Delivery` into a folder: one file per message.

    Args:
        channel: its name, the first part of a file's.
        folder: made where it is missing.
        body_of: the message as the service would get it.
        suffix: ending of the files.
        now: the time, UTC.
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


def readable(body: bytes) -> bytes:
    """JSON as people read it."""
    return (json.dumps(json.loads(body), indent=1, ensure_ascii=False) + "\n").encode()
