"""A third fleet: one company whose services share its calendar, its launches, its collectors and its releases.

`company_fleet(seed, cards, days)` is a pure function and shares no code with other fleets. Load is counted in requests,
so noise is that of counting. Offices work by the week and keep a holiday; products peak in the evening; batches clear
overnight what the day left; autoscalers follow demand with pods that come and go; releases replace pods and, at times,
the workload's name. A launch lifts most services on one morning and fades to a part that stays. Collectors of whole
nodes fall silent for hours. All services share the company's slow mood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Node, Priority
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import Float32, History, SliceKey, UsageGrid

FIRST_MONDAY = datetime(2026, 6, 1, tzinfo=UTC)
STEP_SECONDS = 600
STEPS_PER_DAY = 86400 // STEP_SECONDS
NODES = ((CardModelName("NVIDIA A10"), 24 * GIB, 4), (CardModelName("NVIDIA A100-SXM4-80GB"), 80 * GIB, 8))
"""Card model, framebuffer and cards of a kind of node."""
LAUNCHES_PER_DAY = 0.1
HEADROOM_RATIO = 0.55
"""Load of a replica that autoscalers aim at, share of what it can do."""

Load = NDArray[np.float64]
"""Demand over the steps of the horizon."""


@dataclass(frozen=True, kw_only=True)
class Calendar:
    """What all services of a company share.

    Attributes:
        hours: middle of each step, hours since midnight of the first day, (steps,).
        weekday: of each step, 0 = Monday.
        holiday: number of the day on which no office works, beyond the horizon for none.
        mood: factor on everybody's demand, (steps,).
        launches: hours at which the company launches something, rising.
    """

    hours: Load
    weekday: NDArray[np.int64]
    holiday: int
    mood: Load
    launches: tuple[float, ...]

    @property
    def days(self) -> int:
        """Length of the horizon."""
        return len(self.hours) // STEPS_PER_DAY


def calendar_of(seed: int, days: int) -> tuple[datetime, Calendar]:
    """Start of a company's history, on a weekday of its own, and what its services share."""
    random = np.random.default_rng([seed, days, 0])
    first_weekday = int(random.integers(7))
    hours: Load = (np.arange(days * STEPS_PER_DAY, dtype=np.float64) + 0.5) * (STEP_SECONDS / 3600)
    periods, phases = random.uniform(30, 200, 5), random.uniform(0, 2 * np.pi, 5)
    mood = np.exp(0.04 * np.sin(2 * np.pi * hours[:, None] / periods + phases).sum(axis=1))
    launched = np.flatnonzero(random.random(days) < LAUNCHES_PER_DAY)
    return FIRST_MONDAY + timedelta(days=first_weekday), Calendar(
        hours=hours,
        weekday=(first_weekday + hours // 24).astype(np.int64) % 7,
        holiday=int(random.integers(3 * days)),
        mood=mood,
        launches=tuple(float(24 * day + random.uniform(6, 11)) for day in launched),
    )


def _office(calendar: Calendar, random: np.random.Generator) -> Load:
    """Meetings and mails of one time zone: two humps around lunch, quiet weekends, nothing on the holiday."""
    local = (calendar.hours + random.choice([0, 1, 8, 17])) % 24
    rush = np.exp(-(((local - random.uniform(9.5, 11)) / 1.6) ** 2))
    rush += random.uniform(0.7, 1.1) * np.exp(-(((local - random.uniform(14, 16)) / 2.2) ** 2))
    off = (calendar.weekday >= 5) | (calendar.hours // 24 == calendar.holiday)
    return np.asarray(0.02 + np.where(off, random.uniform(0.0, 0.2), 1.0) * rush, np.float64)


def _product(calendar: Calendar, random: np.random.Generator) -> Load:
    """People at home: a long rise to the evening, more on Saturday and Sunday."""
    local = (calendar.hours + random.choice([0, 0, 0, 8])) % 24
    rise = 0.5 - 0.5 * np.cos(2 * np.pi * ((local - 4.5) % 24 / 24) ** random.uniform(1.2, 2.2))
    floor = random.uniform(0.08, 0.3)
    return np.asarray((floor + (1 - floor) * rise) * np.where(calendar.weekday >= 5, random.uniform(1, 1.3), 1.0))


def _batch(calendar: Calendar, random: np.random.Generator) -> Load:
    """Flat out from an hour of the night until the day's backlog is done; twice as long once a week."""
    begins, usual, long_day = random.uniform(0, 3), random.uniform(1.5, 5), int(random.integers(7))
    found = np.full(len(calendar.hours), 0.0)
    for night in range(calendar.days):
        middle = min(len(found) - 1, night * STEPS_PER_DAY + STEPS_PER_DAY // 2)
        lasts = usual * calendar.mood[middle] * random.gamma(30, 1 / 30)
        lasts *= 2.0 if calendar.weekday[middle] == long_day else 1.0
        start = 24 * night + begins + random.exponential(0.3)
        found[(calendar.hours >= start) & (calendar.hours < start + lasts)] = 1.0
    return found


def _standby(calendar: Calendar, random: np.random.Generator) -> Load:
    """Probes only; now and then it takes over a whole site for some hours."""
    found = np.full(len(calendar.hours), 0.004)
    for _ in range(random.poisson(calendar.days / 20)):
        start = random.uniform(0, 24 * calendar.days)
        found[(calendar.hours >= start) & (calendar.hours < start + random.gamma(2, 1.5))] = random.uniform(0.4, 0.9)
    return found


def _avalanche(calendar: Calendar, random: np.random.Generator) -> Load:
    """Pipelines whose runs set off further runs: long silence, then crowds."""
    runs = random.poisson(random.uniform(0.2, 1.5) / 24 * STEP_SECONDS / 3600 * np.ones(len(calendar.hours)))
    found, heat, stays = np.zeros(len(runs)), 0.0, np.exp(-STEP_SECONDS / 3600 / random.uniform(0.4, 1.5))
    for step, begun in enumerate(runs):
        heat = heat * stays + begun + random.poisson(min(2.0, 0.12 * heat))
        found[step] = heat
    return np.asarray(np.minimum(1.0, found / 4.0), np.float64)


HABITS: tuple[tuple[Callable[[Calendar, np.random.Generator], Load], float, float], ...] = (
    (_office, 0.34, 0.25), (_product, 0.28, 0.45), (_batch, 0.14, 0.0), (_standby, 0.12, 0.0), (_avalanche, 0.12, 0.0),
)  # fmt: skip
"""A habit, the share of services that go by it, and how many of those are autoscaled."""
FOLLOWS_LAUNCHES = frozenset({_office, _product})


def _lift(calendar: Calendar, random: np.random.Generator) -> Load:
    """What launches do to one service: a rise within the morning, and what of it stays after days."""
    lift = np.ones(len(calendar.hours))
    for launch in calendar.launches:
        if random.random() > 0.65:
            continue
        age = np.maximum(0.0, calendar.hours - launch)
        kept, height = random.uniform(0.1, 0.7), random.gamma(4, 0.15)
        lift *= 1 + height * np.minimum(1.0, age / 3) * (kept + (1 - kept) * np.exp(-age / random.uniform(40, 150)))
    return lift


@dataclass(frozen=True, kw_only=True)
class _Life:
    """One pod: steps from `first` to `stop` - 1 on a card; `stop` of one that still runs is the end."""

    replica: int
    first: int
    stop: int
    hash: str
    workload: str


def _releases(steps: int, random: np.random.Generator) -> list[int]:
    """Steps at which pods are replaced: some teams hardly release, others each week."""
    return sorted(int(one) for one in random.integers(1, steps, random.poisson(steps / STEPS_PER_DAY / 25)))


def _lives(name: str, running: NDArray[np.int64], random: np.random.Generator) -> Iterator[_Life]:
    """Pods of a service by how many replicas run in each step; each release replaces all."""
    steps = len(running)
    cuts, version = [0, *_releases(steps, random), steps], 1
    for start, end in pairwise(cuts):
        # One release in three is a new workload beside the old name.
        version += int(start > 0 and random.random() < 1 / 3)
        workload = name if version == 1 else f"{name}-v{version}"
        for replica in range(int(running.max())):
            is_up = np.concatenate([[False], running[start:end] > replica, [False]])
            edges = np.flatnonzero(np.diff(is_up.astype(np.int8))) + start
            for first, stop in edges.reshape(-1, 2):
                mark = f"{int(random.integers(16**9)):09x}"
                yield _Life(replica=replica, first=int(first), stop=int(stop), hash=mark, workload=workload)


def _replicas(load: Load, most: int, random: np.random.Generator) -> NDArray[np.int64]:
    """How many run: up at once, down after a while of less, as autoscalers stabilise."""
    wanted = np.clip(np.ceil(load / HEADROOM_RATIO), 1, most).astype(np.int64)
    patience = int(random.integers(2, 9))
    return np.asarray([wanted[max(0, step - patience) : step + 1].max() for step in range(len(wanted))], np.int64)


@dataclass(frozen=True, kw_only=True)
class _Server:
    """How a service's pods hold framebuffer, shares of the card."""

    name: str
    weights: float
    by_load: float
    loads: float
    pool: float | None

    def used(self, busy: Load) -> tuple[Load, Load]:
        """Framebuffer used, share of the card, and use of the KV cache, 0-1, NaN without one."""
        grown = self.by_load * (1 - np.exp(-2.5 * busy))
        if self.pool is not None:
            return np.full(len(busy), self.weights + self.pool), np.minimum(1.0, grown / self.pool)
        # Further models are loaded with the first crowd, and stay until the pod goes.
        extra = self.loads * np.floor(3 * np.maximum.accumulate(busy)) / 3
        return np.minimum(0.97, self.weights + grown + extra), np.full(len(busy), np.nan)


def _server(random: np.random.Generator) -> _Server:
    weights = random.beta(2, 9) + 0.03
    by_load, loads = random.beta(2, 8) * 0.7, 0.0
    if random.random() < 0.45:
        return _Server(
            name="vllm", weights=weights, by_load=by_load, loads=0.0, pool=random.uniform(0.8, 0.92) - weights
        )
    loads = random.uniform(0.05, 0.25) if random.random() < 0.4 else 0.0
    return _Server(name="triton", weights=weights, by_load=by_load, loads=loads, pool=None)


def company_fleet(seed: int, cards: int, days: int) -> History:
    """Makes a company.

    Args:
        seed: another seed gives another company.
        cards: its cards; each pod has one to itself, and those of autoscaled services are free at times. At least 1.
        days: length of the history, at least 1.

    Returns:
        The history as known at its end.
    """
    since, calendar = calendar_of(seed, days)
    random = np.random.default_rng([seed, cards, days, 1])
    free = _cards(cards, random)
    owned = sorted((card for some in free.values() for card in some), key=lambda card: card.card)
    keys, grants, columns = [], [], []
    service = 0
    while any(free.values()):
        own = free[sorted(model for model, some in free.items() if some)[-int(random.integers(2))]]
        number = int(random.choice(len(HABITS), p=[share for _, share, _ in HABITS]))
        habit, _, scaled = HABITS[number]
        most = min(len(own), 1 + int(random.poisson(random.choice([0.5, 2.0, 6.0]))))
        slots = [own.pop(0) for _ in range(most)]
        shape = habit(calendar, random) * calendar.mood
        shape *= _lift(calendar, random) if habit in FOLLOWS_LAUNCHES else 1.0
        height = random.uniform(0.15, 0.95) if habit is _batch else random.beta(2, 3.5) * 0.9
        load = height * most * shape
        is_scaled = most > 1 and random.random() < scaled
        running = _replicas(load, most, random) if is_scaled else np.full(len(load), most, np.int64)
        server, per_step = _server(random), random.uniform(25, 600)
        tilt = random.gamma(60, 1 / 60, most)
        for life in _lives(f"svc-{service:04d}", running, random):
            part = slice(life.first, life.stop)
            each = load[part] / running[part] * tilt[life.replica]
            busy = np.minimum(1.0, random.poisson(each * per_step) / per_step)
            column = np.full((3, len(load)), np.nan, np.float32)
            used, cache = server.used(busy)
            column[:, part] = busy, used * slots[life.replica].framebuffer_bytes, cache
            columns.append(column)
            grants.append(_grant(life, service, slots[life.replica], server, since, len(load)))
            keys.append(SliceKey.of(grants[-1]))
        service += 1
    seen = np.stack(columns)
    _silence(seen, [key.node for key in keys], random)
    return _history(since, owned, tuple(keys), grants, seen)


def _cards(cards: int, random: np.random.Generator) -> dict[CardModelName, list[Card]]:
    """Cards by model, node by node: replicas of a service have one model."""
    found: dict[CardModelName, list[Card]] = {model: [] for model, _, _ in NODES}
    made = node = 0
    while made < cards:
        model, capacity, many = NODES[int(random.integers(len(NODES)))]
        for number in range(made, min(cards, made + many)):
            card = Card(card=CardId(f"GPU-c{number:05d}"), card_model=model, framebuffer_bytes=capacity,
                        node=f"gpu-{node:03d}", cluster="company")  # fmt: skip
            found[model].append(card)
        made, node = min(cards, made + many), node + 1
    return found


def _grant(life: _Life, service: int, card: Card, server: _Server, since: datetime, steps: int) -> Grant:
    pool = None if server.pool is None else int(server.pool * card.framebuffer_bytes)
    return Grant(
        cluster="company", namespace=f"unit-{service % 5}", pod=f"{life.workload}-{life.hash}-{life.replica}",
        container="server", workload=life.workload, workload_kind="Deployment", node=card.node, card=card.card,
        card_model=card.card_model, framebuffer_bytes=card.framebuffer_bytes,
        framebuffer_granted_bytes=card.framebuffer_bytes, compute_granted_ratio=1.0, priority=Priority.NORMAL,
        server=server.name, kv_cache_pool_bytes=pool,
        started_at=since + timedelta(seconds=life.first * STEP_SECONDS),
        ended_at=None if life.stop == steps else since + timedelta(seconds=life.stop * STEP_SECONDS),
    )  # fmt: skip


def _silence(seen: Float32, nodes: list[str], random: np.random.Generator) -> None:
    """Takes away, in place, what collectors of nodes missed; once in a while the whole company's are down."""
    steps = seen.shape[2]
    where = np.array(nodes)
    for node in [*sorted(set(nodes)), None]:
        for _ in range(random.poisson(steps / STEPS_PER_DAY / 12)):
            start = int(random.integers(steps))
            stop = start + int(random.integers(1, 5) if node is None else 6 * random.lognormal(1.2, 0.7))
            seen[slice(None) if node is None else where == node, :, start:stop] = np.nan


def _history(
    since: datetime, cards: list[Card], keys: tuple[SliceKey, ...], grants: list[Grant], seen: Float32
) -> History:
    steps = seen.shape[2]
    busy = seen[:, 0]
    measured = {
        Measure.SM_ACTIVE: busy,
        Measure.DUTY_CYCLE: np.minimum(np.float32(1.0), busy * np.float32(1.7)),
        Measure.FRAMEBUFFER_USED: seen[:, 1],
        Measure.KV_CACHE_USAGE: seen[:, 2],
    }
    inventory = Inventory(
        cluster="company",
        as_of=since + timedelta(seconds=steps * STEP_SECONDS),
        cards=tuple(cards),
        nodes=tuple(Node(node=name, cluster="company") for name in sorted({card.node for card in cards})),
        grants=tuple(sorted(grants, key=lambda grant: (grant.pod_id, grant.card, grant.started_at))),
    )
    grid = UsageGrid(keys=keys, since=since, step_seconds=STEP_SECONDS, steps=steps, mean=measured, peak=measured)
    return History(inventory=inventory, slices=grid)
