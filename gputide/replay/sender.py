"""Sends blocks of a trace to a receiver as a Prometheus would: remote write 2.0, one request after the other.

Called by `admin replay`. A receiver that asks to come again later is asked again, as a Prometheus would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from exporter.reader import Block
from exporter.series_blocks import SeriesBlock, SeriesBlocks
from fleet.errors import Unavailable
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from wire.http_answer import read_body
from wire.http_client import HttpClient, Request, endpoint_of

SAMPLES_PER_REQUEST = 200_000
"""Most samples in one body; large enough that label bytes do not matter, small enough for every limit."""
LABEL_SETS_MAX = 16
"""Label sets that are kept apart before they are encoded anew as one."""
RETRIES_MAX = 60
"""How often a body is sent again that the receiver could not take now."""
RETRY_SECONDS_MAX = 5.0
"""Longest pause before a body is sent again."""
ANSWER_SECONDS_MAX = 600.0
"""Longest wait for an answer: before its first one a receiver that was just installed may compile its kernels, which
takes minutes where a processor is emulated."""

_CONTENT_TYPE = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
_ANSWER_BYTES_MAX = 1 << 20


class ReplaySender:
    """A connection to one receiver.

    Args:
        write_url: where bodies go, `http://HOST:PORT/PATH` or `https://…`.
        sleep: waits real seconds before a body is sent again.

    Raises:
        Misconfigured: the URL is none.
    """

    def __init__(self, write_url: str, *, sleep: Callable[[float], None]) -> None:
        self._http = HttpClient(endpoint_of(write_url, setting="--to"), "gputide-replay")
        self._sleep = sleep
        self._series = SeriesBlocks()
        self._sets: list[tuple[int, LabelSets]] = []
        self._known = 0
        self._added: list[SeriesBlock] = []
        self.samples = 0
        self.requests = 0
        self.bytes_sent = 0

    @property
    def waiting(self) -> int:
        """Samples that were added and not yet sent."""
        return sum(len(block.series) for block in self._added)

    def add(self, block: Block) -> None:
        """Keep a block for the next `send`."""
        self._added.append(self._series.of(block))

    def send(self) -> None:
        """Send what was added and wait until the receiver has it.

        Raises:
            Unavailable: the receiver could not take it.
        """
        if not self._added:
            return
        named = _joined(self._added)
        self._added = []
        self._learn(named)
        for place, (first_series, label_set) in enumerate(self._sets):
            beyond = self._sets[place + 1][0] if place + 1 < len(self._sets) else self._known
            start, stop = np.searchsorted(named.series, (first_series, beyond), side="left")
            for first, last in _cuts(named.series[start:stop]):
                cut = slice(start + first, start + last)
                series = named.series[cut].astype(np.int64) - first_series
                self._post(label_set.encode(Version.V2, series, named.ts_ms[cut], named.values[cut]))
                self.samples += last - first

    def _learn(self, named: SeriesBlock) -> None:
        """Encode the labels of new series; those met before keep theirs until there are too many small sets."""
        if len(named.labels) == self._known:
            return
        if len(self._sets) >= LABEL_SETS_MAX:
            self._sets, self._known = [], 0
        new = named.labels[self._known :]
        self._sets.append((self._known, LabelSets([dict(labels) for labels in new])))
        self._known = len(named.labels)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _post(self, body: bytes) -> None:
        headers = {
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "2.0.0",
        }
        status, text, retry_after_seconds = self._answer(body, headers)
        for _ in range(RETRIES_MAX):
            if status not in (429, 503):
                break
            self._sleep(min(retry_after_seconds, RETRY_SECONDS_MAX))
            status, text, retry_after_seconds = self._answer(body, headers)
        if status >= 300:
            raise Unavailable(f"the receiver refused a body: {status} {text}")
        self.requests += 1
        self.bytes_sent += len(body)

    def _answer(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, float]:
        asked = Request(
            path="",
            seconds_max=ANSWER_SECONDS_MAX,
            method="POST",
            body=body,
            content_type=_CONTENT_TYPE,
            headers=headers,
        )
        try:
            with self._http.ask(asked) as answer:
                text = read_body(answer, _ANSWER_BYTES_MAX, is_cut=True).decode(errors="replace").strip()
        except Unavailable as exc:
            raise Unavailable(f"cannot send to the receiver: {exc}") from exc
        pause = answer.retry_after or ""
        return answer.status, text, float(pause) if pause.isdecimal() else 1.0


def _joined(blocks: Sequence[SeriesBlock]) -> SeriesBlock:
    """Blocks in order of time as one, each series' samples together and in order."""
    if len(blocks) == 1:
        return blocks[0]
    series = np.concatenate([block.series for block in blocks])
    order = np.argsort(series, kind="stable")
    return SeriesBlock(
        labels=blocks[-1].labels,
        series=series[order],
        ts_ms=np.concatenate([block.ts_ms for block in blocks])[order],
        # Indexing moves bits as they are, so a stale marker stays one.
        values=np.concatenate([block.values for block in blocks])[order],
    )


def _cuts(series: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Ranges of samples for one body each; the samples of one series stay together."""
    total, first = len(series), 0
    while first < total:
        last = min(first + SAMPLES_PER_REQUEST, total)
        if last < total:
            boundary = int(np.searchsorted(series, series[last], side="left"))
            last = boundary if boundary > first else int(np.searchsorted(series, series[last], side="right"))
        yield first, last
        first = last
