"""A plan of any mix of kinds agrees with itself: placement, sums, money, schedule, and the world after every stage."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.capabilities.capability import slices_that_meet
from fleet.capabilities.register import (
    DRA_SHARED,
    HAMI,
    KAI,
    MGPU,
    MIG,
    MPS,
    TIME_SLICING,
    WHOLE_CARDS,
    Capabilities,
    CorePolicy,
    Division,
)  # fmt: skip
from fleet.decisions import Plan, Recommendation, RecommendationKind
from fleet.inventory import LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL, Card, CardId, Priority
from fleet.units import GIB
from fleet.usage import History
from tests.recommender.builders import ANY_CONFIDENCE, Service, plan_of
from tests.recommender.mig_builders import holder, on_a100
from tests.recommender.test_rehome import L4, PRICES

pytestmark = pytest.mark.long

HARD_SHARE_SUM_MAX = 1.005


@dataclass(slots=True)
class World:
    """Who holds what while a plan's stages are applied one after the other.

    `held` has card, framebuffer and MIG profile of each slice of each pod; `layout` the instances of each card that is
    cut.
    """

    held: dict[str, list[tuple[str, int, str | None]]] = field(default_factory=lambda: defaultdict(list))
    layout: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def cards(self) -> set[str]:
        return {card for slices in self.held.values() for card, _, _ in slices}

    def on(self, card: str) -> list[tuple[str, int, str | None]]:
        """Pod, framebuffer and profile of all slices of a card."""
        return [(pod, size, name) for pod, held in self.held.items() for at, size, name in held if at == card]


def world_of(history: History) -> World:
    world = World()
    for grant in history.inventory.live_grants():
        world.held[grant.pod_id].append((grant.card, grant.framebuffer_granted_bytes, grant.mig_profile))
        if grant.mig_profile is not None:
            world.layout[grant.card][grant.mig_profile] += 1
    return world


def after(plan: Plan) -> World:
    world = World()
    for card in plan.placement:
        for part in card.slices:
            world.held[part.pod_id].append((card.card, part.framebuffer_bytes, part.mig_profile))
    return world


def apply(world: World, advice: Recommendation, end: World) -> None:
    """Applies one recommendation that is not MIG's."""
    for pod in advice.pods:
        if advice.kind is RecommendationKind.RECLAIM:
            del world.held[pod]
        elif advice.id.startswith("slice-0"):
            ((card, _, profile),), ((_, size, _),) = world.held[pod], end.held[pod]
            world.held[pod] = [(card, size, profile)]
        else:
            world.held[pod] = end.held[pod]


def cut(world: World, pods: set[str], end: World) -> None:
    """Applies the MIG advice of one stage: cards are cut empty, pods come to instances that are there and free."""
    kept = {pod for pod in pods if all(name is None for _, _, name in end.held[pod])}
    assert all(world.held[pod] == end.held[pod] for pod in kept), "whoever keeps a whole card is only made anew"
    waiting = {pod: end.held[pod][0] for pod in pods - kept}
    wanted = {card: Counter(name for _, _, name in end.on(card) if name is not None) for card, _, _ in waiting.values()}
    moved = True
    while waiting and moved:
        moved = False
        for card, instances in wanted.items():
            leaves = [pod for pod, _, _ in world.on(card) if waiting.get(pod, ("",))[0] != card]
            if instances - world.layout[card] and not leaves:
                # Whoever is still there comes back to it and is down meanwhile.
                for pod, _, _ in world.on(card):
                    world.held[pod] = []
                world.layout[card] = instances
                moved = True
        for pod, (card, size, name) in list(waiting.items()):
            used = Counter(other for other_pod, _, other in world.on(card) if other_pod != pod)
            is_there = not wanted[card] - world.layout[card] and None not in used
            if is_there and name is not None and world.layout[card][name] > used[name]:
                world.held[pod] = [(card, size, name)]
                del waiting[pod]
                moved = True
    assert not waiting, "a card would be cut under somebody"


def check_stages(plan: Plan, history: History) -> None:
    world, end = world_of(history), after(plan)
    advice = {item.id: item for item in plan.recommendations}
    capacity = {card.card: card.framebuffer_bytes for card in history.inventory.cards}
    before = world.cards
    freed_at_last = before - end.cards
    for number, stage in enumerate(plan.stages, start=1):
        assert stage.stage == number
        assert stage.safe_alone
        had = world.cards
        items = [advice[name] for name in stage.recommendations]
        for item in items:
            if item.kind is not RecommendationKind.MIG:
                apply(world, item, end)
        cut(world, {pod for item in items if item.kind is RecommendationKind.MIG for pod in item.pods}, end)
        for card in world.cards:
            slices = world.on(card)
            assert sum(size for _, size, _ in slices) <= capacity[CardId(card)], (stage.title, slices)
            assert len({name is None for _, _, name in slices}) == 1, "a card is whole or cut"
        emptied = (had - world.cards) & freed_at_last
        taken = world.cards - had - before
        assert stage.cards_freed == len(emptied) - len(taken) == sum(item.cards_freed for item in items)
    assert {pod: sorted(held) for pod, held in world.held.items() if held} == {
        pod: sorted(held) for pod, held in end.held.items()
    }


def check_placement(plan: Plan, history: History) -> None:
    live = Counter((grant.pod_id, grant.container) for grant in history.inventory.live_grants())
    for item in plan.recommendations:
        if item.kind is RecommendationKind.RECLAIM:
            live = Counter({key: count for key, count in live.items() if key[0] not in item.pods})
    placed = Counter((part.pod_id, part.container) for card in plan.placement for part in card.slices)
    fewer = {pod for item in plan.recommendations if item.kind is RecommendationKind.FEWER_CARDS for pod in item.pods}
    assert set(placed) == set(live)
    assert all(count == live[key] for key, count in placed.items() if key[0] not in fewer)
    assert all(0 < count < live[key] for key, count in placed.items() if key[0] in fewer)
    assert len({card.card for card in plan.placement}) == len(plan.placement)
    for card in plan.placement:
        fits = sum(part.framebuffer_bytes for part in card.slices) <= card.framebuffer_bytes
        assert fits or all(part.oversubscribed for part in card.slices)
        hard = [part.compute_ratio or 0.0 for part in card.slices if part.core_policy is CorePolicy.HARD]
        assert sum(hard) <= HARD_SHARE_SUM_MAX


def check_sums(plan: Plan) -> None:
    totals = plan.totals
    freed = totals.cards_before - totals.cards_after
    assert totals.cards_after == len(plan.placement)
    assert freed == totals.cards_freed + totals.spare_cards
    assert sum(item.cards_freed for item in plan.recommendations) == freed
    assert all(item.cards_freed >= 0 for item in plan.recommendations)
    named = [card for item in plan.recommendations for card in item.freed]
    assert len({card.card for card in named}) == len(named), "a card is named once in a plan"
    assert {card.card for card in named}.isdisjoint(card.card for card in plan.placement)
    for item in plan.recommendations:
        assert item.cards_freed == sum(card.replaced_by is None for card in item.freed)
    assert totals.spare_cards == sum(card.is_spare for card in named)
    assert {card.replaced_by for card in named} - {None} <= {card.card for card in plan.placement}
    assert totals.saving_per_week.amortised == sum(
        (card.saving_per_week.amortised or Decimal(0) for card in named if not card.is_spare), start=Decimal(0)
    )
    staged = Counter(name for stage in plan.stages for name in stage.recommendations)
    assert staged == Counter({item.id: 1 for item in plan.recommendations})
    assert totals.moves <= sum(len(item.pods) for item in plan.recommendations)
    if not totals.spare_cards:
        assert totals.saving_per_week.amortised == sum(
            (item.saving_per_week.amortised or Decimal(0) for item in plan.recommendations), start=Decimal(0)
        )


def check_schedule(plan: Plan) -> None:
    alone = {
        card.card: card.slices[0].workload
        for card in plan.placement
        if len(card.slices) == 1 and card.slices[0].mig_profile is None
    }
    for window in plan.schedule:
        assert all(alone[card] == window.workload for card in window.frees)
    told = {name for item in plan.recommendations if item.kind is RecommendationKind.TIDE for name in item.workloads}
    assert told == {window.workload for window in plan.schedule}


SORTS = {
    "plain": Service(name=""),
    "fast": Service(name="", labels=((LATENCY_CRITICAL_LABEL, "true"),)),
    "low": Service(name="", kind="Job", priority=Priority.LOW, server="pytorch"),
    "left-alone": Service(name="", labels=((OPT_OUT_LABEL, "true"),)),
    "wide": Service(name="", cards_per_pod=3, idle_cards=2),
    "normal": Service(name="", priority=Priority.NORMAL),
}
SERVICES = st.builds(
    lambda sort, level, hours, used, replicas: replace(
        SORTS[sort], level=level, hours=hours, used_gib=used, replicas=replicas
    ),
    st.sampled_from(sorted(SORTS)),
    st.sampled_from([0.03, 0.08, 0.2, 0.45, 0.9]),
    st.sampled_from([(0, 24), (8, 20), (20, 24)]),
    st.sampled_from([3.0, 12.0, 30.0, 70.0]),
    st.integers(1, 4),
)
HOLDERS = st.lists(st.tuples(st.sampled_from(["1g.10gb", "2g.20gb"]), st.booleans()), max_size=7)
BOOK = Service(name="book", kind="Notebook", level=0.0, priority=Priority.NORMAL, server="jupyter")


def fleet(services: list[Service], *, holders: list[tuple[str, bool]], cheap: int, has_book: bool) -> History:
    """A week of A100s with the services and perhaps an idle notebook, some cut already, and free L4s."""
    named = [replace(service, name=f"s{number}") for number, service in enumerate(services)]
    # Three to a card, so that any of them fit together.
    cut_already = [
        replace(
            holder(f"h{number}", profile, 100 + number // 3, level=0.3),
            labels=((OPT_OUT_LABEL, "true"),) if stays else (),
        )
        for number, (profile, stays) in enumerate(holders)
    ]
    history = on_a100(*named, *([BOOK] if has_book else []), *cut_already, days=7)
    cards = {card.card: card for card in history.inventory.cards}
    for grant in history.inventory.grants:
        cards[grant.card] = replace(cards.get(grant.card, history.inventory.cards[0]), card=grant.card, node=grant.node)
    free = [
        Card(card=CardId(f"GPU-l4-{number}"), card_model=L4, framebuffer_bytes=24 * GIB, node="cheap", cluster="c")
        for number in range(cheap)
    ]
    every = tuple(sorted((*cards.values(), *free), key=lambda card: card.card))
    return replace(history, inventory=replace(history.inventory, cards=every))


@settings(max_examples=20)
@given(
    services=st.lists(SERVICES, min_size=1, max_size=6),
    holders=HOLDERS,
    backend=st.sampled_from([HAMI, MIG, WHOLE_CARDS, MGPU, KAI, TIME_SLICING, MPS, DRA_SHARED]),
    cheap=st.integers(0, 2),
    spare_card_ratio=st.sampled_from([0.0, 0.2]),
)
def test_any_mix_of_kinds_is_one_consistent_plan(
    services: list[Service], holders: list[tuple[str, bool]], backend: Capabilities, cheap: int, spare_card_ratio: float
) -> None:
    history = fleet(services, holders=holders, cheap=cheap, has_book=True)
    options: dict[str, Any] = {**PRICES, **ANY_CONFIDENCE, "plan": {"spare_card_ratio": spare_card_ratio}}
    plan = plan_of(history, capability=backend, settings=options)
    check_placement(plan, history)
    check_sums(plan)
    check_schedule(plan)
    check_stages(plan, history)
    check_divided(plan, backend)


def check_divided(plan: Plan, backend: Capabilities) -> None:
    """What the backend's record says of a card's slices holds wherever the plan lets pods share."""
    if backend.division in (Division.REPLICAS, Division.EQUAL_PARTS):
        on_node = defaultdict(list)
        for card in plan.placement:
            on_node[card.node].append(card)
        for cards in on_node.values():
            if any(part.mig_profile for card in cards for part in card.slices):
                continue
            parts = max(len(card.slices) for card in cards)
            if parts < 2:
                continue
            slices = [part for card in cards for part in card.slices]
            assert all(part.framebuffer_bytes < card.framebuffer_bytes for card in cards for part in card.slices)
            sizes = sorted((part.framebuffer_bytes for part in slices), reverse=True)
            assert sum(sizes[:parts]) <= cards[0].framebuffer_bytes, "any that meet fit together"
            named = [set(entry.recommendations) for entry in plan.stages]
            of_pod = {pod: item.id for item in plan.recommendations for pod in item.pods}
            assert len({next(n for n, ids in enumerate(named) if of_pod[p.pod_id] in ids) for p in slices}) == 1
            if backend.division is Division.EQUAL_PARTS:
                assert {part.compute_ratio for part in slices} == {(100 // parts) / 100}
    if backend.division is Division.SCHEDULER:
        check_scheduler_may_choose(plan, backend)
    if backend.division is Division.CLAIM:
        for card in plan.placement:
            if len(card.slices) > 1:
                assert len({part.namespace for part in card.slices}) == 1


def check_scheduler_may_choose(plan: Plan, backend: Capabilities) -> None:
    """Every node needs as many cards as planned, in whatever order its pods come."""
    sliced = defaultdict(list)
    for card in plan.placement:
        is_cut = any(part.mig_profile for part in card.slices)
        if not is_cut and any(part.framebuffer_bytes < card.framebuffer_bytes for part in card.slices):
            sliced[card.node].append(card)
    for cards in sliced.values():
        sizes = [part.framebuffer_bytes for card in cards for part in card.slices]
        most = slices_that_meet(sizes, backend.shareable_bytes(cards[0].framebuffer_bytes))
        assert most is not None
        assert -(-len(sizes) // most) == len(cards)


PARTS = st.builds(
    lambda sort, need, replicas: replace(SORTS[sort], level=need[0], used_gib=need[1], replicas=replicas),
    st.sampled_from(["plain", "plain", "left-alone", "wide"]),
    st.sampled_from([(0.08, 6.0), (0.2, 15.0), (0.3, 30.0)]),
    st.integers(1, 4),
)


@settings(max_examples=40)
@given(services=st.lists(PARTS, min_size=3, max_size=8), holders=HOLDERS, has_book=st.booleans())
def test_no_card_is_cut_under_anybody(services: list[Service], holders: list[tuple[str, bool]], has_book: bool) -> None:
    history = fleet(services, holders=holders, cheap=0, has_book=has_book)
    plan = plan_of(history, capability=MIG, settings=ANY_CONFIDENCE)
    check_placement(plan, history)
    check_sums(plan)
    check_schedule(plan)
    check_stages(plan, history)


def test_the_mix_holds_many_kinds() -> None:
    services = [
        replace(SORTS["plain"], level=0.9, hours=(8, 20), used_gib=70.0, replicas=4),
        replace(SORTS["wide"], level=0.9, used_gib=70.0),
        *(replace(SORTS["normal"], level=0.08, used_gib=6.0) for _ in range(3)),
    ]
    history = fleet(services, holders=[("1g.10gb", False), ("2g.20gb", False)], cheap=1, has_book=True)
    kinds: set[RecommendationKind] = set()
    for backend in (MIG, HAMI, WHOLE_CARDS):
        plan = plan_of(history, capability=backend, settings={**PRICES, **ANY_CONFIDENCE})
        kinds |= {item.kind for item in plan.recommendations}
        check_placement(plan, history)
        check_sums(plan)
        check_stages(plan, history)
    assert kinds >= {
        RecommendationKind.RECLAIM,
        RecommendationKind.FEWER_CARDS,
        RecommendationKind.TIDE,
        RecommendationKind.MIG,
        RecommendationKind.REHOME,
        RecommendationKind.SLICE,
    }
