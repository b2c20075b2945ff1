"""Whose turn it is: some small bodies are worked on at once, and one large one beside them.

What a body takes while it is worked on is known by its decoded size and its number of samples, so these turns bound the
memory that all bodies under way take, and no small body waits for a large one. Shared by the intakes of all senders.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fleet.errors import Unavailable
from pipeline.otlp.decode import Otlp, OtlpDecoder, message_length
from pipeline.otlp.labels import LabelFields
from pipeline.remote_write.decode import BodyLimits, DecodedBody, Decoder, Version, declared_length

SMALL_BYTES_MAX = 4 << 20
"""Largest message of a small body; twice what Prometheus sends with 10,000 samples in one."""
SMALL_SAMPLES_MAX = 16_384
"""Most samples, and most series, of a small body."""
SMALL_AT_ONCE = 2
LARGE_WAITING_MAX = 48
"""Large bodies that wait for their turn at most: fewer than requests may (`receiver.pending_requests_max`)."""
LARGE_WAIT_SECONDS = 15.0
"""How long they wait: less than the time in which senders want an answer."""


class Crowded(Unavailable):
    """Too many large bodies wait."""


Message = Version | Otlp
"""What a body holds, as its content type says."""


def may_be_small(body: bytes, message: Message) -> bool:
    """Whether a body declares a message of at most `SMALL_BYTES_MAX`."""
    length = message_length(body) if isinstance(message, Otlp) else declared_length(body)
    return (length or 0) <= SMALL_BYTES_MAX


class BodyDecoder:
    """Decodes bodies of every kind, one after another; one thread at a time may use it.

    Args:
        labels: what is remembered of OTLP's labels, which decoders share.
    """

    def __init__(self, limits: BodyLimits, labels: LabelFields) -> None:
        self._remote_write = Decoder(limits)
        self._otlp = OtlpDecoder(limits, labels)

    def decode(self, body: bytes, message: Message) -> DecodedBody:
        """Unpacks and scans one body as it came over the wire.

        Raises:
            TooLarge: the body passes a limit.
            Corrupt: nothing of it can be used.
        """
        if isinstance(message, Otlp):
            return self._otlp.decode(body)
        return self._remote_write.decode(body, message)

    def decode_small(self, body: bytes, message: Message) -> DecodedBody | None:
        """As `decode`; None for a body that must take the turn of a large one: it holds more than it declares."""
        if isinstance(message, Otlp):
            return self._otlp.decode_few(body, SMALL_SAMPLES_MAX)
        decoded = self._remote_write.decode(body, message)
        return decoded if max(len(decoded.ts_ms), len(decoded.series)) <= SMALL_SAMPLES_MAX else None


class Turns:
    """Decoders, handed to one body at a time each. Mutable: threads take turns."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._labels = LabelFields()
        self._decoders = [BodyDecoder(limits, self._labels) for _ in range(SMALL_AT_ONCE)]
        self._freed = threading.Condition()
        self._waiting = 0
        self._large = threading.Lock()
        self._places = threading.Semaphore(1 + LARGE_WAITING_MAX)

    def take_small(self) -> BodyDecoder:
        """Waits for the turn of a small body; `give_back` ends it."""
        try:
            return self._decoders.pop()  # the one that was used last: its memory is in the processor's caches
        except IndexError:
            pass
        with self._freed:
            self._waiting += 1
            try:
                while True:
                    # Another may have taken it without waiting.
                    with suppress(IndexError):
                        return self._decoders.pop()
                    self._freed.wait()
            finally:
                self._waiting -= 1

    def give_back(self, decoder: BodyDecoder) -> None:
        """Ends the turn of a small body; its decoder's memory is kept for the next."""
        self._decoders.append(decoder)
        if self._waiting:
            with self._freed:
                self._freed.notify()

    @contextmanager
    def large(self) -> Iterator[BodyDecoder]:
        """Waits for the turn of a large body; its decoder's memory goes with it.

        Raises:
            Crowded: it did not come.
        """
        if not self._places.acquire(blocking=False):
            raise Crowded(f"cannot take a large body: {LARGE_WAITING_MAX} wait already")
        try:
            if not self._large.acquire(timeout=LARGE_WAIT_SECONDS):
                raise Crowded(f"cannot take a large body: its turn did not come within {LARGE_WAIT_SECONDS:g} s")
            try:
                yield BodyDecoder(self._limits, self._labels)
            finally:
                self._large.release()
        finally:
            self._places.release()
