"""Small clusters for the recommender's tests: one line per workload, series drawn from a seed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from analyzer.profile import profile_fleet
from fleet.capabilities.register import HAMI
from fleet.decisions import Plan, RecommendationKind
from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Node, Priority
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.units import GIB
from fleet.usage import History, SliceGrid, SliceKey, UsageGrid
from recommender.planner import make_plan
from recommender.problem import PlanScope

NOW = datetime(2026, 3, 9, tzinfo=UTC)
STEP_SECONDS = 600
PER_DAY = 144
A10 = CardModelName("NVIDIA A10")
ANY_CONFIDENCE = {"recommender": {"reclaim_confidence_min": 0.0}}
"""Settings by which a silent week is enough for a reclaim: little else is known of these small clusters."""
MIXED_KINDS = ("Deployment",) * 6 + ("StatefulSet", "Notebook", "Job", "Job")
"""Kinds of a fleet's workloads, as often as they are drawn."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """One workload: `level` of a card at its peak, `hours` in which it works, framebuffer used in GiB.

    Of the cards of each pod the last `idle_cards` do nothing and hold nothing. Of a KV cache of `pool_gib` so much is
    used as `cache_ratio` says. `args` are those of its container where it really stands.
    """

    name: str
    replicas: int = 1
    level: float = 0.2
    hours: tuple[int, int] = (0, 24)
    used_gib: float = 4.0
    kind: str = "Deployment"
    namespace: str = "team"
    priority: Priority = Priority.HIGH
    server: str | None = "triton"
    pool_gib: float | None = None
    cache_ratio: float | None = None
    args: tuple[str, ...] = ()
    cards_per_pod: int = 1
    idle_cards: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    age_days: float = 30.0
    mig_profile: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)


def cluster(
    *services: Service,
    days: int = 7,
    seed: int = 1,
    spare_cards: int = 0,
    card_model: str = A10,
    card_gib: int = 24,
    host_gib: int | None = None,
    card_id: str = "GPU-{:04d}",
) -> History:
    """A cluster in which every pod has its own cards, four cards to a node, seen for `days`."""
    random = np.random.default_rng(seed)
    steps = days * PER_DAY
    since = NOW - timedelta(days=days)
    cards: list[Card] = []
    grants: list[Grant] = []
    keys: list[SliceKey] = []
    compute: list[np.ndarray] = []
    used: list[np.ndarray] = []
    cached: list[np.ndarray] = []
    for service in services:
        for replica in range(service.replicas):
            for place in range(service.cards_per_pod):
                works_here = place < service.cards_per_pod - service.idle_cards
                card = _card(card_id.format(len(cards)), len(cards), card_model, card_gib)
                cards.append(card)
                grant = _grant(service, replica, card)
                grants.append(grant)
                keys.append(
                    SliceKey(
                        cluster="c", namespace=grant.namespace, pod=grant.pod, container=grant.container,
                        node=grant.node, card=grant.card, card_model=grant.card_model,
                    )
                )  # fmt: skip
                hour = np.arange(steps) * STEP_SECONDS // 3600 % 24
                works = (hour >= service.hours[0]) & (hour < service.hours[1])
                works &= works_here
                series = np.where(works, service.level * random.uniform(0.7, 1.0, steps), 0.0).astype(np.float32)
                unborn = max(0, steps - round(service.age_days * PER_DAY))
                series[:unborn] = np.nan
                compute.append(series)
                ratio = np.nan if service.cache_ratio is None else service.cache_ratio
                cached.append(np.where(np.isnan(series), np.nan, ratio).astype(np.float32))
                held = service.used_gib * GIB if works_here else 0.0
                used.append(np.where(np.isnan(series), np.nan, held).astype(np.float32))
    cards += [
        _card(card_id.format(number), number, card_model, card_gib)
        for number in range(len(cards), len(cards) + spare_cards)
    ]
    host_bytes = None if host_gib is None else host_gib * GIB
    nodes = tuple(
        Node(node=name, cluster="c", memory_bytes=host_bytes) for name in sorted({card.node for card in cards})
    )
    inventory = Inventory(
        cluster="c", as_of=NOW, cards=tuple(cards), nodes=nodes,
        grants=tuple(sorted(grants, key=lambda grant: (grant.pod_id, grant.card))),
    )  # fmt: skip
    shape = (len(keys), steps)
    mean = {
        Measure.SM_ACTIVE: np.array(compute, np.float32).reshape(shape),
        Measure.DUTY_CYCLE: np.array(compute, np.float32).reshape(shape),
        Measure.FRAMEBUFFER_USED: np.array(used, np.float32).reshape(shape),
    }
    if np.isfinite(cached).any():
        mean[Measure.KV_CACHE_USAGE] = np.array(cached, np.float32).reshape(shape)
    grid: SliceGrid = UsageGrid(
        keys=tuple(keys), since=since, step_seconds=STEP_SECONDS, steps=steps, mean=mean, peak=mean
    )
    return History(inventory=inventory, slices=grid)


def full_services_of(seed: int, kinds: Sequence[str] = MIXED_KINDS) -> tuple[Service, ...]:
    """Workloads of one to six pods that leave no card free, an eighth of them idle; drawn from a seed."""
    random = np.random.default_rng(seed)
    found: list[Service] = []
    used, wanted = 0, int(random.integers(16, 41))
    while used < wanted:
        kind = str(random.choice(kinds))
        replicas = 1 if kind in ("Notebook", "Job") else int(random.choice([1, 2, 2, 3, 4, 6]))
        is_idle = random.uniform() < 0.12
        found.append(
            Service(
                name=f"{kind.lower()}-{len(found)}", kind=kind, replicas=replicas,
                level=0.0 if is_idle else float(random.uniform(0.05, 0.4)), used_gib=float(random.uniform(1.0, 10.0)),
                hours=(0, 24) if random.uniform() < 0.7 else (0, 8),
                priority=Priority.LOW if kind == "Job" else Priority.HIGH,
            )
        )  # fmt: skip
        used += replicas
    return tuple(found)


def _card(card_id: str, number: int, card_model: str, card_gib: int) -> Card:
    return Card(
        card=CardId(card_id), card_model=CardModelName(card_model), framebuffer_bytes=card_gib * GIB,
        node=f"node-{number // 4}", cluster="c",
    )  # fmt: skip


def _grant(service: Service, replica: int, card: Card) -> Grant:
    grant = Grant(
        cluster="c",
        namespace=service.namespace,
        pod=f"{service.name}-{replica}",
        container="main",
        workload=service.name,
        workload_kind=service.kind,
        node=card.node,
        card=card.card,
        card_model=card.card_model,
        framebuffer_bytes=card.framebuffer_bytes,
        framebuffer_granted_bytes=card.framebuffer_bytes,
        compute_granted_ratio=1.0,
        priority=service.priority,
        server=service.server,
        kv_cache_pool_bytes=None if service.pool_gib is None else int(service.pool_gib * GIB),
        mig_profile=service.mig_profile,
        labels=service.labels,
        started_at=NOW - timedelta(days=service.age_days),
    )
    return replace(grant, **service.changes)


def plan_of(history: History, *, risk: str = "high", **options: Any) -> Plan:
    """The plan for a history, profiled on the way."""
    chosen = {
        "risk": {"preset": risk},
        "plan": {"spare_card_ratio": 0.0},
        "guard": {"gaps_allowed": True},
        **options.pop("settings", {}),
    }
    settings = Settings.model_validate(chosen)
    profiles = profile_fleet(history, settings=settings.analyzer, now=NOW)
    capability = options.pop("capability", HAMI)
    scope = PlanScope(**{name: options.pop(name) for name in ("only", "namespace", "moves_max") if name in options})
    return make_plan(history, profiles, settings=settings, capability=capability, now=NOW, scope=scope, **options)


def check_plan(plan: Plan, history: History) -> None:
    """What holds of every plan."""
    live = Counter((grant.namespace, grant.pod, grant.container) for grant in history.inventory.live_grants())
    placed = Counter((part.namespace, part.pod, part.container) for card in plan.placement for part in card.slices)
    gone = {pod for item in plan.recommendations if item.kind is RecommendationKind.RECLAIM for pod in item.pods}
    assert placed == Counter({key: n for key, n in live.items() if f"{key[0]}/{key[1]}" not in gone})
    assert len({card.card for card in plan.placement}) == len(plan.placement) == plan.totals.cards_after
    known = {card.card for card in history.inventory.cards} | {g.card for g in history.inventory.grants}
    for card in plan.placement:
        assert card.card in known
        fits = sum(part.framebuffer_bytes for part in card.slices) <= card.framebuffer_bytes
        assert fits or all(part.oversubscribed for part in card.slices)
        assert sum(part.compute_ratio or 0.0 for part in card.slices if part.core_policy.value == "hard") <= 1.005
    totals = plan.totals
    assert totals.cards_before - totals.cards_after == totals.cards_freed + totals.spare_cards
    assert sum(item.cards_freed for item in plan.recommendations) == totals.cards_freed + totals.spare_cards
    assert sum(stage.cards_freed for stage in plan.stages) == totals.cards_freed
    tides = {item.id for item in plan.recommendations if item.kind is RecommendationKind.TIDE}
    carrying = [stage for stage in plan.stages if tides & set(stage.recommendations)]
    assert carrying == [stage for stage in plan.stages[-1:] if tides]
    assert all(set(stage.recommendations) == tides and stage.moves == 0 for stage in carrying)
    staged = [name for stage in plan.stages for name in stage.recommendations]
    assert sorted(staged) == sorted(
        item.id for item in plan.recommendations if item.kind is not RecommendationKind.SLEEP
    )
    assert len(staged) == len(set(staged))
    grants: dict[str, set[int]] = {}
    changed = {name for item in plan.recommendations for name in item.workloads}
    for part in (part for card in plan.placement for part in card.slices):
        if part.workload in changed:
            grants.setdefault(part.workload, set()).add(part.framebuffer_bytes)
    assert all(len(sizes) == 1 for sizes in grants.values())
