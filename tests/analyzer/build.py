"""Small histories for tests: a few slices, each with its own usage, on cards of 80 GiB."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from analyzer.profile import profile_fleet
from analyzer.state.idleness import COMPUTE
from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Priority
from fleet.profiles import CardProfile, Profile, Profiles
from fleet.schema import Measure
from fleet.settings.settings import AnalyzerSettings
from fleet.units import GIB
from fleet.usage import CardKey, History, SliceKey, UsageGrid

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
MODEL = CardModelName("NVIDIA A100-SXM4-80GB")
Usage = Mapping[Measure, Any]
"""Per measure a number, or an array of one value per step."""
SETTINGS = AnalyzerSettings()


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One slice of a test: what it was granted, and per measure its usage over all steps (a number is a constant)."""

    workload: str = "svc"
    pod: str = ""
    card: str = ""
    node: str = "node-0"
    usage: Usage = field(default_factory=dict)
    has_row: bool = True
    kind: str = "Deployment"
    server: str | None = "triton"
    priority: Priority = Priority.HIGH
    granted: int = 80 * GIB
    compute: float = 1.0
    pool: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


def history(
    slices: Sequence[Slice],
    *,
    days: float = 2.0,
    step_seconds: int = 600,
    since: datetime = MONDAY,
    time_zone: str = "UTC",
    cards: Mapping[str, Usage] | None = None,
    spare_cards: Sequence[str] = (),
    jitter: float = 0.001,
) -> History:
    """A history of `days` in which every slice has a row, but for those without; `cards` is what cards report.

    Compute moves by `jitter` of itself, because no real counter stands still.
    """
    steps = round(days * 86400 / step_seconds)
    end = since + timedelta(seconds=steps * step_seconds)
    grants, keys, rows = [], [], []
    for number, one in enumerate(slices):
        pod, card = one.pod or f"{one.workload}-{number}", one.card or f"GPU-{number:03}"
        identity: dict[str, Any] = {
            "cluster": "c",
            "namespace": "team",
            "pod": pod,
            "container": "server",
            "node": one.node,
            "card": CardId(card),
            "card_model": MODEL,
        }
        grants.append(
            Grant(
                **identity,
                workload=one.workload,
                workload_kind=one.kind,
                framebuffer_bytes=80 * GIB,
                framebuffer_granted_bytes=one.granted,
                compute_granted_ratio=one.compute,
                priority=one.priority,
                server=one.server,
                kv_cache_pool_bytes=one.pool,
                started_at=one.started_at or since,
                ended_at=one.ended_at,
            )
        )
        if one.has_row:
            keys.append(SliceKey(**identity))
            rows.append(one.usage)
    names = sorted({(grant.card, grant.node) for grant in grants} | {(CardId(card), "node-0") for card in spare_cards})
    return History(
        inventory=Inventory(
            cluster="c",
            as_of=end,
            time_zone=time_zone,
            cards=tuple(
                Card(card=card, card_model=MODEL, framebuffer_bytes=80 * GIB, node=node, cluster="c")
                for card, node in names
            ),
            grants=tuple(grants),
        ),
        slices=_grid(tuple(keys), rows, since, step_seconds, steps, jitter),
        cards=None
        if cards is None
        else _grid(
            tuple(
                CardKey(cluster="c", node=dict(names)[CardId(card)], card=CardId(card), card_model=MODEL)
                for card in cards
            ),
            list(cards.values()),
            since,
            step_seconds,
            steps,
            jitter,
        ),
    )


def _grid(keys, rows, since, step_seconds, steps, jitter):
    random = np.random.default_rng(4)
    measures = sorted({measure for row in rows for measure in row})
    mean = {measure: np.full((len(keys), steps), np.nan, np.float32) for measure in measures}
    for number, row in enumerate(rows):
        for measure, values in row.items():
            mean[measure][number] = values
            if measure in COMPUTE and jitter:
                mean[measure][number] *= random.uniform(1 - jitter, 1, steps)
    return UsageGrid(keys=keys, since=since, step_seconds=step_seconds, steps=steps, mean=mean, peak=mean)


def work(level: float | np.ndarray, *, framebuffer: float | np.ndarray = 20 * GIB) -> Usage:
    """Usage of a service that fills its card to `level`: SM active, a duty cycle above it, and its framebuffer."""
    return {
        Measure.SM_ACTIVE: level,
        Measure.DUTY_CYCLE: 1.0 - (1.0 - np.asarray(level)) ** 3,
        Measure.FRAMEBUFFER_USED: framebuffer,
    }


def noise(days: float, *, low: float, high: float, step_seconds: int = 600, seed: int = 1) -> np.ndarray:
    """Even noise between two levels, one value per step."""
    return np.random.default_rng(seed).uniform(low, high, round(days * 86400 / step_seconds)).astype(np.float32)


def by_hour(
    days: float,
    levels: Sequence[float],
    *,
    step_seconds: int = 600,
    since: datetime = MONDAY,
    zone=UTC,
    spread: float = 0.1,
) -> np.ndarray:
    """A habit: `levels` per local hour of the day (24 values) or of the week (168), with a tenth of noise."""
    steps = round(days * 86400 / step_seconds)
    random = np.random.default_rng(2)
    values = np.empty(steps, np.float32)
    for step in range(steps):
        local = (since + timedelta(seconds=(step + 0.5) * step_seconds)).astimezone(zone)
        hour = local.hour if len(levels) == 24 else local.weekday() * 24 + local.hour
        values[step] = levels[hour] * random.uniform(1 - spread, 1 + spread)
    return values


def profiles(given: History, settings: AnalyzerSettings = SETTINGS) -> Profiles:
    """Profiles at the end of a history."""
    return profile_fleet(given, settings=settings, now=given.inventory.as_of)


def profile(given: History, workload: str = "svc") -> Profile:
    """Profile of one workload, by its bare name."""
    return next(one for one in profiles(given).workloads if one.workload.rsplit("/", 1)[1] == workload)


def card_profile(given: History, card: str) -> CardProfile:
    """Profile of one card."""
    return next(one for one in profiles(given).cards if one.card == card)
