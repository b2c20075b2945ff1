"""Two hundred language models, one on each card, with the arrivals of public serving traces, as a trace folder.

A tenant of alibaba-servegen (rates in ten minutes, burstiness, tokens) is a model. Its traffic is scaled so that one
card serves the busiest; the 180 with the least are thinned further, so that they bring less than 5 % of the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fleet.units import GIB

Floats = NDArray[np.float64]
WINDOW_SECONDS, WINDOWS = 600, 1440
MODELS, HOT = 200, 20
SCALE = 0.01
"""Of the traffic: the busiest model then has 9 requests a second at its peak."""
COLD_RATIO = 0.049
CARD_BYTES, CARDS_PER_NODE, NODE_BYTES = 80 * GIB, 8, 1024 * GIB
CARD_MODEL = "NVIDIA A100-SXM4-80GB"
UTILIZATION = 0.92
OVERHEAD_BYTES = 1.5 * GIB
"""Context, activations and graphs of a server."""
_MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
_TOKEN_SECONDS, _FIRST_TOKEN_SECONDS = 0.03, 0.2
_SCRAPE_SECONDS = 15
_FEW = 4.5 / WINDOW_SECONDS
"""A rate of 0 in the trace is fewer than ten requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model and all its requests.

    Attributes:
        weights_bytes: of the model on its card.
        arrivals: seconds from the first midnight, ascending, (requests,).
        seconds: how long each request runs, (requests,).
        cache_bytes: KV cache of each request, (requests,).
    """

    name: str
    weights_bytes: float
    arrivals: Floats
    seconds: Floats
    cache_bytes: Floats

    @property
    def pool_bytes(self) -> float:
        """KV cache of a server that has its card alone."""
        return UTILIZATION * CARD_BYTES - self.weights_bytes - OVERHEAD_BYTES


def models_of(folder: Path, seed: int) -> list[Model]:
    """The models of a folder of alibaba-servegen.

    Clients of `m-small` have the shape of Qwen2.5-7B (15.2 GB, 57,344 bytes of KV cache a token), those of `m-large`
    that of Qwen2.5-14B (29.5 GB, 196,608 bytes), both in bfloat16.
    """
    random = np.random.default_rng(seed)
    names, rates, spread = _rates(folder)
    order = np.argsort(-rates.sum(axis=1), kind="stable")
    chosen = np.concatenate([order[:HOT], order[len(order) - (MODELS - HOT) :]])
    total = rates.sum(axis=1)
    hot, cold = total[chosen[:HOT]].sum(), total[chosen[HOT:]].sum()
    thinned = min(1.0, COLD_RATIO / (1.0 - COLD_RATIO) * hot / cold)
    tokens = _tokens(folder)
    found = []
    for number, row in enumerate(chosen):
        size, client = names[row]
        is_small = size == "m-small"
        scale = SCALE * (1.0 if number < HOT else thinned)
        arrivals = _arrivals(rates[row] * scale, float(spread[row]), random)
        asked, answered = tokens.get((size, client), tokens[size, -1])
        answers = random.exponential(answered, len(arrivals))
        found.append(
            Model(
                name=f"{size}-{client}",
                weights_bytes=15.2e9 if is_small else 29.5e9,
                arrivals=arrivals,
                seconds=_FIRST_TOKEN_SECONDS + _TOKEN_SECONDS * answers,
                cache_bytes=(57_344 if is_small else 196_608) * (asked + answers),
            )
        )
    return found


def write_trace(models: Sequence[Model], folder: Path, days: int) -> None:
    """The first days as a fleet in the neutral trace format: what exporters show of such servers, and nothing else."""
    folder.mkdir(parents=True)
    windows = days * 86400 // WINDOW_SECONDS
    cards = [f"GPU-{number:04d}" for number in range(len(models))]
    nodes = [f"node-{number // CARDS_PER_NODE:02d}" for number in range(len(models))]
    many = len(models)
    pq.write_table(
        pa.table(
            {
                "card": cards, "card_model": [CARD_MODEL] * many, "framebuffer_bytes": [CARD_BYTES] * many,
                "node": nodes, "cluster": ["models"] * many, "node_memory_bytes": [NODE_BYTES] * many,
            }
        ),
        folder / "cards.parquet",
    )  # fmt: skip
    time = pa.timestamp("us", tz="UTC")
    pq.write_table(
        pa.table(
            {
                "pod": [f"{model.name}-0" for model in models], "container": ["server"] * many,
                "namespace": ["models"] * many, "workload": [model.name for model in models],
                "workload_kind": ["Deployment"] * many, "cluster": ["models"] * many, "node": nodes, "card": cards,
                "card_model": [CARD_MODEL] * many, "framebuffer_bytes": [CARD_BYTES] * many,
                "framebuffer_granted_bytes": [CARD_BYTES] * many, "compute_granted_ratio": [1.0] * many,
                "priority": ["high"] * many, "server": ["vllm"] * many,
                "kv_cache_pool_bytes": [model.pool_bytes for model in models],
                "memory_request_bytes": [16 * GIB] * many,
                "started_at": pa.array([_MONDAY - timedelta(days=1)] * many, time),
                "ended_at": pa.array([None] * many, time),
            }
        ),
        folder / "pods.parquet",
    )  # fmt: skip
    ends = [_MONDAY + timedelta(seconds=WINDOW_SECONDS * (step + 1)) for step in range(windows)]
    seen = [_seen(model, windows) for model in models]
    # Rows stand in the order of time.
    pq.write_table(
        pa.table(
            {
                "ts": pa.array([end for end in ends for _ in models], time),
                "pod": [f"{model.name}-0" for model in models] * windows,
                "card": cards * windows,
                **{column: np.stack([one[column] for one in seen], axis=1).ravel() for column in seen[0]},
            }
        ),
        folder / "usage.parquet",
    )


def _seen(model: Model, windows: int) -> dict[str, NDArray[np.generic]]:
    edges = np.asarray(np.arange(windows + 1) * float(WINDOW_SECONDS), np.float64)
    begun, ended = model.arrivals, model.arrivals + model.seconds
    running = _mean_level(begun, ended, np.ones(len(begun)), edges)
    usage = np.minimum(1.0, _scraped_peak(begun, ended, model.cache_bytes, windows) / model.pool_bytes)
    busy = 1.0 - np.exp(-running)
    return {
        "duty_cycle_ratio": busy.astype(np.float32),
        "sm_active_ratio": (0.5 * busy).astype(np.float32),
        "framebuffer_used_bytes": np.full(windows, int(UTILIZATION * CARD_BYTES), np.int64),
        "kv_cache_usage_ratio": usage.astype(np.float32),
        "request_rate_per_second": np.histogram(ended, edges)[0] / WINDOW_SECONDS,
        "requests_running_count": running,
    }


def _mean_level(begun: Floats, ended: Floats, height: Floats, edges: Floats) -> Floats:
    """Mean of a level that each request raises while it runs, (windows,)."""

    def until(times: Floats) -> Floats:
        order = np.argsort(times)
        at, total = times[order], np.concatenate([[0.0], np.cumsum(height[order])])
        moment = np.concatenate([[0.0], np.cumsum(height[order] * at)])
        place = np.searchsorted(at, edges)
        return np.asarray(total[place] * edges - moment[place], np.float64)

    # Sums of millions of terms leave a rest below zero where nothing runs.
    return np.asarray(np.maximum(0.0, np.diff(until(begun) - until(ended)) / np.diff(edges)), np.float64)


def _scraped_peak(begun: Floats, ended: Floats, height: Floats, windows: int) -> Floats:
    """The most that scrapes of each window saw of a level that each request raises while it runs, (windows,)."""
    scrapes = np.arange(windows * WINDOW_SECONDS // _SCRAPE_SECONDS) * float(_SCRAPE_SECONDS)

    def until(times: Floats) -> Floats:
        order = np.argsort(times)
        total = np.concatenate([[0.0], np.cumsum(height[order])])
        return np.asarray(total[np.searchsorted(times[order], scrapes)], np.float64)

    level = np.maximum(0.0, until(begun) - until(ended))
    return np.asarray(level.reshape(windows, -1).max(axis=1), np.float64)


def _rates(folder: Path) -> tuple[list[tuple[str, int]], Floats, Floats]:
    """Tenants, their requests per second, (tenants, windows), and how bursty they are (coefficient of variation)."""
    table = pq.read_table(folder / "rates_m-large_m-small_day00-09.parquet")
    sizes, clients = table["model"].to_pylist(), table["client"].to_pylist()
    names = sorted(set(zip(sizes, clients, strict=True)))
    place = {name: number for number, name in enumerate(names)}
    row = np.array([place[name] for name in zip(sizes, clients, strict=True)])
    column = np.asarray(table["ts_s"]) // WINDOW_SECONDS
    rates, spread = np.zeros((len(names), WINDOWS)), np.zeros((len(names), WINDOWS))
    rates[row, column], spread[row, column] = np.asarray(table["rate_rps"]), np.asarray(table["cv"])
    weight = np.maximum(rates.sum(axis=1), 1e-12)
    mean_spread = np.clip((rates * spread).sum(axis=1) / weight, 1.0, 8.0)
    # Windows in which nobody of a model has any are gaps of collection.
    for size in {name[0] for name in names}:
        own = np.array([name[0] == size for name in names])
        for gap in np.flatnonzero(~rates[own].any(axis=0)):
            rates[own, gap] = rates[own, gap - 1]
    return names, np.where(rates == 0, _FEW, rates), mean_spread


def _tokens(folder: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Mean tokens of questions and answers of each tenant; under client -1 the medians of its model."""
    means: dict[tuple[str, int, str], list[float]] = {}
    for entry in pq.read_table(folder / "token_stats_derived.parquet").to_pylist():
        means.setdefault((entry["model"], entry["client"], entry["field"]), []).append(entry["mean"])
    known = {
        (size, client): (float(np.mean(means[size, client, "input_tokens"])), float(np.mean(values)))
        for (size, client, field), values in means.items()
        if field == "output_tokens" and (size, client, "input_tokens") in means
    }
    for size in {size for size, _ in known}:
        own = np.array([value for (other, _), value in known.items() if other == size])
        known[size, -1] = (float(np.median(own[:, 0])), float(np.median(own[:, 1])))
    return known


def _arrivals(rate: Floats, spread: float, random: np.random.Generator) -> Floats:
    """Arrivals of a renewal process whose clock runs as fast as the rate: gaps are Gamma with that variation."""
    edges = np.arange(WINDOWS + 1) * float(WINDOW_SECONDS)
    clock = np.concatenate([[0.0], np.cumsum(rate * WINDOW_SECONDS)])
    shape, found, last = 1.0 / spread**2, [], 0.0
    while last < clock[-1]:
        gaps = random.gamma(shape, 1.0 / shape, max(1000, int(clock[-1])))
        times = last + np.cumsum(gaps)
        found.append(times)
        last = float(times[-1])
    ticks = np.concatenate(found)
    return np.asarray(np.interp(ticks[ticks < clock[-1]], clock, edges), np.float64)
