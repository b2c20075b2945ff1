"""Load on a running `gputide run receive`: distinct bodies on many connections, by schedule or as fast as possible.

Used by the bars of the receiver. A latency is counted from the moment at which a request was due, not from when it
could be sent, so that a receiver that stalls is not measured by fewer requests (coordinated omission).
"""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.receiving import HEADERS, WRITE_PATH
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets

START_MS = 1_767_571_200_000
SERIES = 20_000
_CONNECT_SECONDS = 30.0


@dataclass(slots=True)
class Answers:
    """What was answered; mutable: filled as answers come.

    Attributes:
        statuses: answers by status; 0 for connections that broke.
        seconds: latency of every answer.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """A percentile of the latencies, seconds."""
        return float(np.percentile(self.seconds, share))


class Bodies:
    """Distinct bodies of one fleet, steps of its series in turn.

    Args:
        samples: samples of one body.
    """

    def __init__(self, samples: int) -> None:
        labels = [
            {
                "__name__": f"gputide_slice_{measure}",
                "card": f"GPU-{number:08d}-5a1e-4c0f-9e33-0123456789ab",
                "card_model": "NVIDIA A10",
                "cluster": "bench",
                "container": "server",
                "namespace": f"team-{number % 37}",
                "node": f"node-{number // 8}",
                "pod": f"inference-{number:06d}-7c9d8b6f5-x2x4z",
            }
            for number in range(SERIES // 2)
            for measure in ("duty_cycle_ratio", "sm_active_ratio")
        ]
        self.samples = samples
        self._sets = [LabelSets(labels[first : first + samples]) for first in range(0, SERIES, samples)]
        self._random = np.random.default_rng(1)
        self._made = 0

    def make(self, count: int) -> list[bytes]:
        """The next bodies."""
        return [self._next() for _ in range(count)]

    def _next(self) -> bytes:
        step, place = divmod(self._made, len(self._sets))
        self._made += 1
        times = np.full(self.samples, START_MS + 15_000 * step, dtype=np.int64)
        return self._sets[place].encode(
            Version.V2, np.arange(self.samples), times, self._random.random(self.samples).round(3)
        )


def send_all(
    address: tuple[str, int],
    bodies: list[bytes],
    *,
    connections: int,
    per_second: float | None = None,
    seconds: float | None = None,
) -> Answers:
    """Send bodies and wait for all answers; refused ones are not sent again.

    Args:
        address: of the receiver.
        bodies: in this order; with `seconds`, over and over.
        connections: how many send at once.
        per_second: requests that are due per second; None sends as fast as answers come.
        seconds: how long to send; None until all bodies are sent.
    """
    answers, lock = Answers(), threading.Lock()
    order: Iterator[int] = iter(itertools.count())
    started = time.perf_counter()

    def work() -> None:
        connection = _connected(address)
        mine = Answers()
        while True:
            with lock:
                number = next(order)
            due = started + (number / per_second if per_second is not None else 0.0)
            if (seconds is None and number >= len(bodies)) or (seconds is not None and due - started > seconds):
                break
            now = time.perf_counter()
            if seconds is not None and now - started > seconds:
                break
            if due > now:
                time.sleep(due - now)
            begun = due if per_second is not None else time.perf_counter()
            connection = _post(connection, address, bodies[number % len(bodies)], mine)
            mine.seconds.append(time.perf_counter() - begun)
        connection.close()
        with lock:
            answers.statuses.update(mine.statuses)
            answers.seconds += mine.seconds

    _run_all([work] * connections)
    return answers


def _connected(address: tuple[str, int]) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(*address, timeout=_CONNECT_SECONDS)
    connection.connect()
    return connection


def _post(
    connection: http.client.HTTPConnection, address: tuple[str, int], body: bytes, answers: Answers
) -> http.client.HTTPConnection:
    try:
        connection.request("POST", WRITE_PATH, body, HEADERS)
        answer = connection.getresponse()
        answer.read()
        answers.statuses[answer.status] += 1
    except (OSError, http.client.HTTPException):
        answers.statuses[0] += 1
        connection.close()
        connection = _connected(address)
    return connection


def _run_all(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
