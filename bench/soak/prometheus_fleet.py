"""A fleet of simulated cards and the Prometheus that scrapes it: bodies in time, kept and sent again until taken.

Every card has its own series, one pod's slice with all measures, and the facts of both; every eighth begins a node.
Bodies of one series go over one connection in order, each again and again until the receiver has it, as Prometheus'
shards do; nothing is dropped, so whatever was made must be in the warehouse at the end.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from bench.receiving import HEADERS, WRITE_PATH
from exporter.series_blocks import card_info_labels, grant_info_labels, key_labels, node_info_labels
from fleet.inventory import Card, CardId, CardModelName, Grant, Node, Priority
from fleet.schema import CARD_MEASURES, SLICE_MEASURES
from fleet.series import card_series, slice_series
from fleet.units import GIB
from fleet.usage import CardKey, SliceKey
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets

CARDS_PER_BODY = 80
"""So that a body holds 2,000 samples at most, which is Prometheus' own bound."""
CARDS_PER_NODE = 8
SERIES_PER_CARD = len(CARD_MEASURES) + len(SLICE_MEASURES)
"""Of usage; the facts of card, slice and node come on top."""
FRAMEBUFFER_BYTES = 80 * GIB
_MODEL = CardModelName("NVIDIA A800-SXM4-80GB")
TAKEN = 204
_ANSWER_SECONDS_MAX = 60.0
_RETRY_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    content: bytes
    usage_samples: int
    made_at: float


class _Shard:
    """The series of some cards, one body per scrape."""

    def __init__(self, cluster: str, first: int, cards: int, started_at: datetime) -> None:
        labels: list[dict[str, str]] = []
        for number in range(first, first + cards):
            labels += _usage_labels(cluster, number)
        self.usage_samples = len(labels)
        for number in range(first, first + cards):
            labels += _fact_labels(cluster, number, started_at)
        self._sets = LabelSets([dict(sorted(one.items())) for one in labels])
        self._series = np.arange(len(labels))
        self._random = np.random.default_rng(first)
        # New values every time, so that nothing compresses too well.
        self._maxima = np.array([_value_max(label["__name__"]) for label in labels])

    def body(self, ts_ms: int) -> bytes:
        """The body of one scrape."""
        values = self._maxima * np.round(self._random.random(len(self._series)), 3)
        values[self.usage_samples :] = 1.0
        return self._sets.encode(Version.V2, self._series, np.full(len(self._series), ts_ms, np.int64), values)


class PrometheusFleet:
    """Scrapes and sends until it is told to end.

    Args:
        address: host and port of the receiver.
        token: that it shows.
        cluster: what its labels claim.
        cards: cards at the beginning.
        interval_seconds: time between two scrapes of a card.
        connections: how many bodies are under way at once at most.
    """

    def __init__(
        self, address: tuple[str, int], *, token: str, cluster: str, cards: int, interval_seconds: float,
        connections: int = 4,
    ) -> None:  # fmt: skip
        self._address = address
        self._headers = {**HEADERS, "Authorization": f"Bearer {token}"}
        self._cluster = cluster
        self._interval_seconds = interval_seconds
        self._times_faster = 1
        self._started_at = datetime.now(UTC).replace(microsecond=0)
        self._shards: list[_Shard] = []
        self._lock = threading.Lock()
        self._queues: list[deque[_Body]] = [deque() for _ in range(connections)]
        self._is_over = threading.Event()
        self.cards = 0
        self.samples_made = 0
        self.statuses: Counter[int] = Counter()
        self.lost_for_good = 0
        self.grow(cards)
        work = [self._make, *(lambda queue=queue: self._send(queue) for queue in self._queues)]
        self._threads = [threading.Thread(target=one, daemon=True) for one in work]

    def start(self) -> None:
        """Begin to scrape."""
        for thread in self._threads:
            thread.start()

    def grow(self, cards: int) -> None:
        """Have as many cards from now on; never fewer."""
        made = [
            _Shard(self._cluster, first, min(CARDS_PER_BODY, cards - first), self._started_at)
            for first in range(self.cards, cards, CARDS_PER_BODY)
        ]
        with self._lock:
            self._shards += made
            self.cards = max(self.cards, cards)

    def hurry(self, times_faster: int) -> None:
        """Scrape as many times as often; 1 as before."""
        self._times_faster = times_faster

    def end(self) -> None:
        """Make no more, and return when all was taken."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    @property
    def waiting_seconds(self) -> float:
        """Age of the oldest body that nobody has taken; 0 where there is none."""
        heads = [queue[0].made_at for queue in self._queues if queue]
        return time.monotonic() - min(heads) if heads else 0.0

    @property
    def refused(self) -> int:
        """Answers other than that a body was taken, and no answers at all."""
        return sum(count for status, count in list(self.statuses.items()) if status != TAKEN)

    def _make(self) -> None:
        due = time.monotonic()
        while True:
            with self._lock:
                shards = list(self._shards)
            pause_seconds = self._interval_seconds / self._times_faster / len(shards)
            ts_ms = time.time_ns() // 1_000_000
            for place, shard in enumerate(shards):
                if self._is_over.wait(max(0.0, due - time.monotonic())):
                    return
                body = _Body(content=shard.body(ts_ms), usage_samples=shard.usage_samples, made_at=time.monotonic())
                self.samples_made += shard.usage_samples
                self._queues[place % len(self._queues)].append(body)
                due += pause_seconds

    def _send(self, queue: deque[_Body]) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=_ANSWER_SECONDS_MAX)
        while queue or not self._is_over.is_set() or self._threads[0].is_alive():
            if not queue:
                time.sleep(0.002)
                continue
            status, wait_seconds = self._post(connection, queue[0].content)
            self.statuses[status] += 1
            if status == TAKEN:
                queue.popleft()
            elif status in (0, 429) or status >= 500:
                time.sleep(min(_RETRY_SECONDS_MAX, wait_seconds))
            else:
                # Prometheus drops what is refused for good; here it is a loss, and counted as one.
                self.lost_for_good += queue.popleft().usage_samples
        connection.close()

    def _post(self, connection: http.client.HTTPConnection, body: bytes) -> tuple[int, float]:
        """Status and how long to wait; status 0 where nobody answered."""
        try:
            connection.request("POST", WRITE_PATH, body, self._headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return 0, 0.2
        told = answer.headers.get("Retry-After", "")
        return answer.status, float(told) if told.isdecimal() else 0.5


def explosion(address: tuple[str, int], *, token: str, cluster: str, seconds: float) -> Counter[int]:
    """Send bodies of ever new pods for some time, as a broken exporter does; statuses of the answers."""
    statuses: Counter[int] = Counter()
    connection = http.client.HTTPConnection(*address, timeout=_ANSWER_SECONDS_MAX)
    headers = {**HEADERS, "Authorization": f"Bearer {token}"}
    end, first, now = time.monotonic() + seconds, 0, datetime.now(UTC)
    while time.monotonic() < end:
        body = _Shard(cluster, first, CARDS_PER_BODY, now).body(time.time_ns() // 1_000_000)
        first += CARDS_PER_BODY
        try:
            connection.request("POST", WRITE_PATH, body, headers)
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
        except (OSError, http.client.HTTPException):
            connection.close()
            statuses[0] += 1
    connection.close()
    return statuses


def _usage_labels(cluster: str, number: int) -> list[dict[str, str]]:
    card = CardKey(cluster=cluster, node=_node(number), card=_card(number), card_model=_MODEL)
    pod = SliceKey(
        cluster=cluster, namespace=_namespace(number), pod=_pod(number), container="server", node=_node(number),
        card=_card(number), card_model=_MODEL,
    )  # fmt: skip
    of_card, of_pod = dict(key_labels(card)), dict(key_labels(pod))
    return [
        *({"__name__": card_series(column.measure), **of_card} for column in CARD_MEASURES),
        *({"__name__": slice_series(column.measure), **of_pod} for column in SLICE_MEASURES),
    ]


def _fact_labels(cluster: str, number: int, started_at: datetime) -> list[dict[str, str]]:
    card = Card(
        card=_card(number), card_model=_MODEL, framebuffer_bytes=FRAMEBUFFER_BYTES, node=_node(number), cluster=cluster
    )
    grant = Grant(
        cluster=cluster, namespace=_namespace(number), pod=_pod(number), container="server",
        workload=_pod(number).rpartition("-")[0], workload_kind="StatefulSet", node=_node(number), card=card.card,
        card_model=_MODEL, framebuffer_bytes=FRAMEBUFFER_BYTES, framebuffer_granted_bytes=FRAMEBUFFER_BYTES,
        compute_granted_ratio=1.0, priority=Priority.HIGH, started_at=started_at,
    )  # fmt: skip
    found = [dict(card_info_labels(card)), dict(grant_info_labels(grant))]
    if number % CARDS_PER_NODE == 0:
        found.append(dict(node_info_labels(Node(node=_node(number), cluster=cluster))))
    return found


def _node(number: int) -> str:
    return f"gpu-node-{number // CARDS_PER_NODE:05d}"


def _card(number: int) -> CardId:
    return CardId(f"GPU-{number:08x}-1f2e-4d3c-9b8a-{number * 7919:012x}")


def _namespace(number: int) -> str:
    return f"team-{number % 19}"


def _pod(number: int) -> str:
    return f"svc-{number // 40}-{number % 40}"


def _value_max(name: str) -> float:
    """A value that a measure may have."""
    if name.endswith("_bytes"):
        return float(FRAMEBUFFER_BYTES)
    return 1.0 if name.endswith("_ratio") else 60.0
