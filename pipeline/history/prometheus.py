"""A history behind the query API of Prometheus, as Thanos, Mimir and VictoriaMetrics speak it too.

Samples are asked for as they lie in the store (`metric{…}[6h]`, a range selector in an instant query), so nothing is
interpolated, no step has to fit the scrape's, and a series that has ended does not live on for the five minutes of the
look-back. Where the server or we have a limit, the time asked for is halved.

Sources: prometheus/prometheus:docs/querying/api.md (paths, error types), thanos-io/thanos:docs/components/query.md
(`dedup`, `partial_response`, `max_source_resolution`),
VictoriaMetrics/VictoriaMetrics:app/vmselect/prometheus/prometheus.go (`QueryHandler`: a range selector exports raw
samples), grafana/mimir:docs (limits answer 422 or 429).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.history.matrix import read_matrix
from pipeline.history.source import SampleBlock, SourceWork, joined
from wire.http_client import HttpClient
from wire.prometheus_query import PrometheusQuery, QueryOptions, TooMuch

SPAN_MS_MIN = 60_000
"""A query that is still too large for a minute is given up."""
LOOKS_MAX = 10_000
"""Moments that are asked for in one query; Prometheus refuses more than 11,000."""


class PrometheusHistory:
    """See `HistorySource`.

    Args:
        http: to the server; the caller closes it.
        options: how much is asked for.
        pause: waits that many seconds.
    """

    def __init__(self, http: HttpClient, options: QueryOptions, *, pause: Callable[[float], None]) -> None:
        self.work = SourceWork()
        # Thanos alone knows the first three: one of each pair of replicas, whole answers or none, nothing downsampled.
        # Without the last, VictoriaMetrics moves a question of the last half minute into the past.
        whole = {
            "dedup": "true",
            "partial_response": str(options.take_partial).lower(),
            "max_source_resolution": "0s",
            "nocache": "1",
        }
        self._query = PrometheusQuery(http, replace(options, parameters=whole), work=self.work, pause=pause)

    def selector(self, name: str, *matchers: str) -> str:
        """See `HistorySource`."""
        return self._query.selector(name, *matchers)

    def names(self, wanted: Sequence[str], *, since_ms: int, until_ms: int) -> frozenset[str]:
        """See `HistorySource`."""
        return frozenset(self.label_values("__name__", wanted, since_ms=since_ms, until_ms=until_ms)) & set(wanted)

    def label_values(self, label: str, wanted: Sequence[str], *, since_ms: int, until_ms: int) -> tuple[str, ...]:
        """See `HistorySource`."""
        return self._query.label_values(
            label, selector=self._query.any_of(wanted), since_seconds=since_ms / 1000, until_seconds=until_ms / 1000
        )

    def series(self, name: str, *, since_ms: int, until_ms: int) -> list[Mapping[str, str]]:
        """See `HistorySource`."""
        return self._query.series(self.selector(name), since_seconds=since_ms / 1000, until_seconds=until_ms / 1000)

    def samples(self, name: str, *, since_ms: int, until_ms: int) -> SampleBlock:
        """See `HistorySource`."""
        return self._ranged(f"{self.selector(name)}[{{span_ms}}ms]", name, since_ms, until_ms)

    def computed(self, expression: str, *, since_ms: int, until_ms: int, step_ms: int) -> SampleBlock:
        """See `HistorySource`."""
        return self._ranged(f"({expression})[{{span_ms}}ms:{step_ms}ms]", "what servers do", since_ms, until_ms)

    def looks(self, name: str, *, since_ms: int, until_ms: int, step_ms: int) -> SampleBlock:
        """See `HistorySource`."""

        def ask(start_ms: int, end_ms: int) -> SampleBlock:
            asked = {
                "query": self.selector(name),
                "start": _seconds(-(-start_ms // step_ms) * step_ms),
                "end": _seconds(end_ms),
                "step": _seconds(step_ms),
            }
            if -(-start_ms // step_ms) * step_ms > end_ms:
                return joined([])
            return self._matrix("/api/v1/query_range", asked)

        blocks, start_ms = [], since_ms
        while start_ms < until_ms:
            end_ms = min(until_ms, start_ms + LOOKS_MAX * step_ms)
            blocks += [block for block, _, _ in self._halving(ask, name, start_ms, end_ms)]
            start_ms = end_ms
        return joined(blocks)

    def number(self, expression: str, *, at_ms: int) -> float | None:
        """See `HistorySource`."""
        return self._query.number(expression, at_seconds=at_ms / 1000)

    def _ranged(self, query: str, what: str, since_ms: int, until_ms: int) -> SampleBlock:
        """The samples of a query whose range stands in it as `{span_ms}`."""

        def ask(start_ms: int, end_ms: int) -> SampleBlock:
            asked = query.replace("{span_ms}", str(end_ms - start_ms))
            return self._matrix("/api/v1/query", {"query": asked, "time": _seconds(end_ms)})

        # Prometheus 2 gives the sample at the very start of a range as well.
        return joined(
            [_within(block, start, end) for block, start, end in self._halving(ask, what, since_ms, until_ms)]
        )

    def _halving(
        self, ask: Callable[[int, int], SampleBlock], name: str, since_ms: int, until_ms: int
    ) -> list[tuple[SampleBlock, int, int]]:
        """The answers to a query over parts of a time that are as short as they must be, in order of time."""
        waiting, found = [(since_ms, until_ms)], []
        while waiting:
            start, end = waiting.pop()
            try:
                found.append((ask(start, end), start, end))
            except TooMuch as exc:
                if end - start <= SPAN_MS_MIN:
                    raise TooMuch(
                        f"cannot read {name} of {self._query.server}: too much even for "
                        f"{(end - start) / 1000:.0f} s ({exc}); narrow it with scan.matchers, or "
                        "raise scan.query_bytes_max or the server's own limit"
                    ) from exc
                self.work.halved += 1
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
        return found

    def _matrix(self, path: str, asked: Mapping[str, str]) -> SampleBlock:
        def read(body: bytearray) -> SampleBlock:
            answer = read_matrix(body)
            self._query.weigh(answer.warnings)
            return answer.block

        return self._query.ask(path, asked, read)


def _within(block: SampleBlock, since_ms: int, until_ms: int) -> SampleBlock:
    is_in = (block.ts_ms > since_ms) & (block.ts_ms <= until_ms)
    if is_in.all():
        return block
    before: NDArray[np.int64] = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(is_in, dtype=np.int64)))
    return SampleBlock(
        labels=block.labels, starts=before[block.starts], ts_ms=block.ts_ms[is_in], values=block.values[is_in]
    )


def _seconds(moment_ms: int) -> str:
    return f"{moment_ms // 1000}.{moment_ms % 1000:03d}"
