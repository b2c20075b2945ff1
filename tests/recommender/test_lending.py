"""Framebuffer is lent where pods work in different hours, where the backend lends it, and where the host has room."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from analyzer.profile import profile_fleet
from fleet.capabilities.capability import Capabilities, Oversubscription, ProbedLending
from fleet.capabilities.register import EFFECTIVE_GPU, HAMI, VGPU_MANAGER
from fleet.decisions import Need, Plan, RecommendationKind
from fleet.inventory import LATENCY_CRITICAL_LABEL, Priority
from fleet.money.prices import PriceBook
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.units import GIB
from fleet.usage import History
from recommender.backtest import backtest
from recommender.bin_cards import Seat
from recommender.cuts import Cut
from recommender.demand import demand_of
from recommender.lending import Lenders, Loan, any_by_hours
from recommender.lent_cards import LentCard, not_to_lend
from recommender.node_terms import node_terms
from recommender.past_outcomes import OwnPast
from recommender.permits import permits_of
from recommender.problem import PlanningProblem, PlanScope
from tests.recommender.builders import NOW, Service, check_plan, cluster, plan_of

DAY, NIGHT = (8, 20), (20, 24)


def services(*, night: tuple[int, int] = NIGHT, **changes: Any) -> list[Service]:
    return [
        Service(name=name, level=0.5, hours=hours, used_gib=22.0, **changes)
        for name, hours in (("day", DAY), ("night", night))
    ]


def planned(
    *chosen: Service,
    host_gib: int | None = 512,
    is_on: bool = True,
    spare_cards: int = 1,
    change: Callable[[History], History] = lambda found: found,
    **options: Any,
) -> Plan:
    cards: dict[str, Any] = {"card_model": "Tesla V100-PCIE-32GB", "card_gib": 32, "spare_cards": spare_cards}
    history = change(cluster(*chosen, days=10, host_gib=host_gib, **cards))
    settings = options.pop("settings", {})
    asked = {**settings, "recommender": {"lend_framebuffer": is_on, **settings.get("recommender", {})}}
    plan = plan_of(history, settings=asked, **{"capability": VGPU_MANAGER, **options})
    check_plan(plan, history)
    return plan


def lends(plan: Plan) -> bool:
    needs = any(Need.SPILL in item.needs for item in plan.recommendations)
    scales = any(card.memory_scaling is not None for card in plan.placement)
    assert needs == scales
    return needs


def reasons(plan: Plan) -> set[str]:
    return {item.reason for item in plan.refused} | {item.reason for item in plan.withheld}


def test_pods_with_different_hours_share_a_card_that_is_too_small_for_both() -> None:
    plan = planned(*services())
    (card,) = plan.placement
    assert (plan.totals.cards_before, plan.totals.cards_after) == (2, 1)
    granted, kept = card.slices[0].framebuffer_bytes, card.slices[0].framebuffer_bytes / (card.memory_scaling or 1)
    assert granted + kept <= 32 * GIB < 2 * granted, "who works holds its grant beside what the other keeps"
    assert card.memory_scaling == pytest.approx(granted / (32 * GIB - granted), abs=0.01)
    joined = [item for item in plan.recommendations if item.kind is RecommendationKind.OVERSUBSCRIBE]
    said = dict(next(clause.values for item in joined for clause in item.why if clause.code == "lend"))
    assert said["switches_per_day"] == pytest.approx(2.0, rel=0.1)
    assert said["host_bytes"] == pytest.approx(2 * 22 * GIB - 32 * GIB, rel=0.01), "what the card can't hold"
    assert said["switch_seconds"] == pytest.approx(2 * (22 * GIB - kept) / (0.5 * 15.75e9), rel=0.01)


def test_nothing_is_lent_unless_somebody_asks_for_it() -> None:
    """By default the plan is that of a backend that can't lend, and says no word of it."""
    off = planned(*services(), is_on=False)
    assert not lends(off)
    apart = planned(*services(), is_on=False, capability=replace(VGPU_MANAGER, lends_framebuffer=False))
    assert (off.placement, off.recommendations, off.refused, off.withheld, off.frontier) == (
        apart.placement, apart.recommendations, apart.refused, apart.withheld, apart.frontier,
    )  # fmt: skip
    assert "framebuffer_lent_unknown" not in reasons(apart)


def test_nobody_lends_where_that_frees_no_card_more() -> None:
    """The small one fits beside either of the others, so two cards hold them all with lending and without."""
    chosen = [*[replace(one, level=0.3, used_gib=18.0) for one in services()], Service(name="small", level=0.3)]
    with_lending, without = planned(*chosen), planned(*chosen, is_on=False)
    assert len(without.placement) == 2
    assert with_lending.placement == without.placement


@pytest.mark.parametrize(
    ("hours", "granted_gib", "expected"),
    [
        ([(0, 12), (12, 24)], [20, 20], True),
        ([(0, 12), (12, 24)], [15, 15], False),
        ([(0, 8), (8, 16), (16, 24)], [15, 15, 15], True),
        ([(0, 14), (12, 24)], [20, 20], False),
        ([(0, 12), (12, 24)], [30, 3], False),
    ],
)
def test_packings_with_lending_are_looked_for_only_where_hours_and_grants_could_gain_by_it(
    hours: list[tuple[int, int]], granted_gib: list[float], expected: bool
) -> None:
    works = np.array([[first <= hour < last for hour in range(24)] for first, last in hours])
    lenders = Lenders(
        may=np.ones(len(hours), bool), works=works, held_bytes=np.zeros(len(hours)), step_seconds=3600,
        bytes_per_second=1.0,
    )  # fmt: skip
    assert any_by_hours(lenders, np.array(granted_gib) * float(GIB), 32.0 * GIB) is expected


def test_backtest_counts_the_time_in_which_pods_wait_for_their_framebuffer() -> None:
    cards: dict[str, Any] = {"card_model": "Tesla V100-PCIE-32GB", "card_gib": 32, "spare_cards": 1, "host_gib": 512}
    settings = Settings.model_validate(
        {"recommender": {"lend_framebuffer": True}, "guard": {"gaps_allowed": True}, "plan": {"spare_card_ratio": 0.0}}
    )
    report = backtest(
        cluster(*services(), days=12, **cards), train_days=10, test_days=2, settings=settings, capability=VGPU_MANAGER
    )
    (score,) = [score for score in report.scores if score.rule == "high"]
    assert (score.cards_before, score.cards_after) == (2, 1)
    # Of 24 GiB granted 8 stay, and 22 are used; two switches a day, and 16 hours of work.
    seconds = 2 * 14 * GIB / (0.5 * 15.75e9)
    assert score.framebuffer_ratio == pytest.approx(2 * seconds / (16 * 3600), rel=0.35)
    assert score.violation_ratio == score.framebuffer_ratio


def test_three_shifts_share_one_card() -> None:
    shifts = [Service(name=f"s{n}", level=0.5, hours=(8 * n, 8 * n + 8), used_gib=14.0) for n in range(3)]
    plan = planned(*shifts)
    assert (len(plan.placement), lends(plan)) == (1, True)


def test_card_that_lends_is_granted_in_full_so_that_the_scheduler_lets_nobody_in() -> None:
    """Its node registers several times its framebuffer: without that, new pods would be drawn to it."""
    low = [replace(service, level=0.02) for service in services()]
    (card,) = planned(*low).placement
    assert sum(part.compute_ratio or 0.0 for part in card.slices) == pytest.approx(1.0)
    assert min(part.compute_ratio or 0.0 for part in card.slices) == pytest.approx(0.5)


def test_other_shared_cards_of_its_node_are_granted_in_full_as_well() -> None:
    """They register a multiple too, and would let pods in beyond what they hold."""
    small = [Service(name=f"small-{n}", level=0.1, used_gib=12.0) for n in range(2)]
    plan = planned(*services(), *small, spare_cards=0)
    assert lends(plan)
    shared = [card for card in plan.placement if len(card.slices) > 1]
    assert len({card.node for card in shared}) == 1 < len(shared)
    assert [sum(part.compute_ratio or 0.0 for part in card.slices) for card in shared] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("share", "reason"), [(0.49, "lent_card_open"), (0.5, None)])
def test_card_that_cannot_be_granted_in_full_does_not_lend(share: float, reason: str | None) -> None:
    """Replicas have one template: where those elsewhere have no room for a larger share, a lent card stays open."""
    history = cluster(*services(), card_model="Tesla V100-PCIE-32GB", card_gib=32, host_gib=512)
    demand, capability = demand_of(history), VGPU_MANAGER
    config = Settings()
    problem = PlanningProblem(
        history=history, profiles=profile_fleet(history, settings=config.analyzer, now=NOW), demand=demand,
        terms=node_terms(history.inventory, demand.grants, capability), settings=config, capability=capability,
        prices=PriceBook(config, history.inventory.nodes).at(NOW), now=NOW, scope=PlanScope(), past=OwnPast(),
    )  # fmt: skip
    loan = Loan(
        scaling=3.0, switches_per_day=2.0, switch_seconds=1.0, waits_seconds_per_day=np.zeros(2), host_bytes=0.0,
        host_bytes_max=1.0,
    )  # fmt: skip
    card = demand.grants[0].card
    lent = LentCard(card=card, node="node-0", rows=(0, 1), scaling=3.0, own=loan, loan=loan)
    cut = Cut(framebuffer_bytes=24 * GIB, compute_ratio=share, shown_bytes=22 * GIB, is_hard=False)
    cuts = {name: replace(cut, compute_ratio=ratio) for name, ratio in zip(demand.workloads, (share, 0.5), strict=True)}
    seats = [Seat(card=card, node="node-0", rows=(0, 1))]
    refused = not_to_lend(problem, {card: lent}, seats, cuts, permits_of(problem).cases)
    assert {item.reason for item in refused.values()} == ({reason} if reason else set())


def test_hours_that_meet_are_never_lent_to_each_other() -> None:
    assert not lends(planned(*services(night=(18, 24))))


def with_moments(history: History, every: int) -> History:
    """The same with one request of a moment in each so many steps, which no mean shows."""
    peak = {measure: values.copy() for measure, values in history.slices.peak.items()}
    peak[Measure.SM_ACTIVE][:, ::every] = np.maximum(peak[Measure.SM_ACTIVE][:, ::every], 0.01)
    return replace(history, slices=replace(history.slices, peak=peak))


@pytest.mark.parametrize(("every", "is_lent"), [(3, False), (144, True)])
def test_sparse_requests_are_no_rest(every: int, is_lent: bool) -> None:
    """Each would wait until framebuffer is back: one in half an hour is work, one a day is not much."""
    assert lends(planned(*services(), change=lambda found: with_moments(found, every))) is is_lent


def test_more_waiting_than_the_preset_allows_is_not_proposed() -> None:
    # Its measured speed makes each of the two switches a day take an hour.
    slow = replace(VGPU_MANAGER, spill_bytes_per_second=8e6)
    assert not lends(planned(*services(), capability=slow))


def test_a_backend_of_which_nobody_knows_that_it_lends_gets_no_such_advice() -> None:
    assert not lends(planned(*services(), capability=HAMI))
    unknown = replace(VGPU_MANAGER, lends_framebuffer=False)
    plan = planned(*services(), capability=unknown)
    assert not lends(plan)
    assert "framebuffer_lent_unknown" in reasons(plan)


def probed(kept_ratio: float, scaling_max: float = 2.0) -> Capabilities:
    """A backend of which a probe saw how it lends."""
    lending = ProbedLending(scaling_max=scaling_max, kept_ratio=kept_ratio)
    return replace(EFFECTIVE_GPU, oversubscription=Oversubscription.SPILL, probed_lending=lending)


def test_backend_that_a_probe_saw_lending_is_asked_for_no_more_than_the_books_need() -> None:
    (card,) = planned(*services(), capability=probed(0.03)).placement
    granted = [part.framebuffer_bytes for part in card.slices]
    assert card.memory_scaling is not None
    assert card.memory_scaling == pytest.approx(sum(granted) / (32 * GIB), abs=0.011)
    assert card.kept_ratio == pytest.approx(0.03 * 32 * GIB / min(granted))


def test_no_more_is_granted_on_a_card_than_the_probe_held() -> None:
    assert not lends(planned(*services(), capability=probed(0.03, scaling_max=1.3)))


@pytest.mark.parametrize(("spare_cards", "factors"), [(0, []), (1, [1.18, 1.52])])
def test_card_that_would_register_more_than_it_grants_does_not_lend(spare_cards: int, factors: list[float]) -> None:
    """Nothing but the books keeps newcomers off where shares of compute are not counted; a node has one factor."""
    small = [replace(service, name=f"small-{service.name}", used_gib=17.0) for service in services()]
    plan = planned(*services(), *small, capability=probed(0.03), spare_cards=spare_cards)
    assert sorted(card.memory_scaling for card in plan.placement if card.memory_scaling) == factors
    assert ("lent_card_open" in reasons(plan)) is (not factors)


@pytest.mark.parametrize(("kept_ratio", "is_lent"), [(0.2, True), (0.3, False)])
def test_each_pod_that_rests_keeps_what_a_probe_saw_one_keep(kept_ratio: float, is_lent: bool) -> None:
    """A context is every process's own: beside 15 GiB that work two that rest keep 0.3 of 32 GiB each, not together."""
    shifts = [Service(name=f"s{n}", level=0.5, hours=(8 * n, 8 * n + 8), used_gib=14.0) for n in range(3)]
    plan = planned(*shifts, capability=probed(kept_ratio))
    assert (len(plan.placement) == 1) is is_lent


def test_what_never_leaves_the_card_is_not_planned_away() -> None:
    assert not lends(planned(*services(), capability=probed(1.0)))


def together(history: History, *pods: str) -> History:
    """The history with these pods on the card of the first, from its start on."""
    moving = {grant.pod for grant in history.inventory.grants if grant.pod.rpartition("-")[0] in pods}
    first = next(grant for grant in history.inventory.grants if grant.pod in moving)
    place: dict[str, Any] = {"card": first.card, "node": first.node}
    grants = tuple(replace(one, **(place if one.pod in moving else {})) for one in history.inventory.grants)
    keys = tuple(replace(key, **(place if key.pod in moving else {})) for key in history.slices.keys)
    return replace(
        history, inventory=replace(history.inventory, grants=grants), slices=replace(history.slices, keys=keys)
    )


HELD: dict[str, Any] = {"framebuffer_granted_bytes": 24 * GIB, "compute_granted_ratio": 0.5}


def lent_before() -> list[Service]:
    """Two services that lend already: by the numbers each needs a third of what it holds."""
    return [replace(service, name=f"old-{service.name}", used_gib=8.0, changes=HELD) for service in services()]


def replanned(*chosen: Service, **options: Any) -> Plan:
    """A plan for a node on whose first card two services lend already, beside others."""
    return planned(*lent_before(), *chosen, spare_cards=0, change=lambda found: together(found, "old-day", "old-night"),
                   **options)  # fmt: skip


DISPROVED = replace(VGPU_MANAGER, oversubscription=Oversubscription.ACCOUNTING_ONLY)
may_have_lent = pytest.mark.parametrize(
    "capability", [VGPU_MANAGER, EFFECTIVE_GPU, DISPROVED], ids=["known", "not_probed", "disproved"]
)


@may_have_lent
def test_what_lends_already_stays_for_monitors_count_only_what_is_kept(capability: Capabilities) -> None:
    """Planned with what monitors show, it would be cut to less than it needs."""
    plan = replanned(capability=capability)
    assert not plan.recommendations
    assert "lent_hides_need" in reasons(plan)
    assert plan.placement[0].memory_scaling == 3.0


def test_whatever_is_granted_on_a_node_that_lends_shows_less_than_it_holds() -> None:
    """The node's factor divides every grant: a cut by what monitors show would starve its pods."""
    part = {"framebuffer_granted_bytes": 10 * GIB, "compute_granted_ratio": 0.3}
    beside = [Service(name=f"beside-{n}", level=0.1, used_gib=3.3, changes=part) for n in range(2)]
    plan = replanned(*beside)
    assert not plan.recommendations
    hidden = {item.workload.rpartition("/")[2] for item in plan.refused if item.reason == "lent_hides_need"}
    assert hidden == {"old-day", "old-night", "beside-0", "beside-1"}


def without_night(history: History) -> History:
    """Two days ago one of the two that lent each other framebuffer went away."""
    found = together(history, "old-day", "old-night")
    grants = tuple(
        replace(one, ended_at=NOW - timedelta(days=2)) if one.pod == "old-night-0" else one
        for one in found.inventory.grants
    )
    return replace(found, inventory=replace(found.inventory, grants=grants))


def lent_once(history: History) -> History:
    """Pods of both services lent each other framebuffer until a while ago, and have cards of their own since."""
    past: dict[str, Any] = {**HELD, "started_at": NOW - timedelta(days=20), "ended_at": NOW - timedelta(days=11)}
    first = history.inventory.grants[0]
    ended = [
        replace(one, pod=f"{one.workload}-old", card=first.card, node=first.node, **past)
        for one in history.inventory.grants
    ]
    live = [replace(one, started_at=NOW - timedelta(days=11)) for one in history.inventory.grants]
    return replace(history, inventory=replace(history.inventory, grants=(*live, *ended)))


@may_have_lent
@pytest.mark.parametrize(
    ("chosen", "change"), [(lent_before(), without_night), (services(), lent_once)], ids=["left_alone", "moved_away"]
)
def test_pod_that_once_lent_is_not_cut_by_what_monitors_showed(
    chosen: list[Service], change: Callable[[History], History], capability: Capabilities
) -> None:
    plan = planned(*chosen, Service(name="other", level=0.1, used_gib=4.0), change=change, capability=capability)
    assert not [item for item in plan.recommendations if "day" in " ".join(item.workloads)]
    assert "lent_hides_need" in {item.reason for item in plan.refused if item.workload.endswith("day")}


def test_whole_cards_that_change_hands_are_no_lending() -> None:
    """A pod and its successor are both seen for a while."""

    def renewed(history: History) -> History:
        size: dict[str, Any] = {"framebuffer_granted_bytes": 20 * GIB, "compute_granted_ratio": 0.5}
        grants = tuple(replace(one, started_at=NOW - timedelta(days=11), **size) for one in history.inventory.grants)
        ended = tuple(
            replace(one, pod=f"{one.pod}-old", started_at=NOW - timedelta(days=15),
                    ended_at=NOW - timedelta(days=11) + timedelta(minutes=30))
            for one in grants
        )  # fmt: skip
        return replace(history, inventory=replace(history.inventory, grants=(*grants, *ended)))

    plan = planned(*services(), change=renewed)
    assert not {"lent_hides_need", "coverage_too_low"} & reasons(plan)


def small_services(**changes: Any) -> list[Service]:
    """Two that need a factor of less than 2."""
    return [replace(service, used_gib=17.0, **changes) for service in services()]


def test_node_has_one_factor_and_what_is_said_is_reckoned_with_it() -> None:
    alone, beside = planned(*small_services()), replanned(*small_services())
    (own,) = [card.memory_scaling for card in alone.placement]
    assert own is not None
    assert own < 2.0
    assert [card.memory_scaling for card in beside.placement] == [3.0, 3.0]
    said = [dict(clause.values) for item in beside.recommendations for clause in item.why if clause.code == "lend"]
    assert {clause["scaling"] for clause in said} == {3.0}
    assert said[0]["host_bytes"] == pytest.approx(2 * 17 * GIB - 32 * GIB, rel=0.01)


@pytest.mark.parametrize(("bytes_per_second", "is_refused"), [(5e7, False), (2.5e7, True)])
def test_card_that_waits_too_long_with_its_nodes_factor_does_not_lend(
    bytes_per_second: float, is_refused: bool
) -> None:
    """With its own factor it would wait for less than half as long, within the preset."""
    slow = replace(VGPU_MANAGER, spill_bytes_per_second=bytes_per_second)
    plan = replanned(*small_services(), capability=slow)
    assert ("node_factor_too_large" in reasons(plan)) is is_refused
    assert bool(plan.recommendations) is not is_refused


@pytest.mark.parametrize(("host_gib", "reason"), [(96, "host_memory_short"), (160, None)])
def test_what_lies_in_host_memory_already_is_not_promised_again(host_gib: int, reason: str | None) -> None:
    plan = replanned(*small_services(), host_gib=host_gib)
    assert any(item.recommendations for item in plan.stages) == (reason is None)
    assert reason is None or reason in reasons(plan)


@pytest.mark.parametrize(("host_gib", "reason"), [(96, "host_memory_short"), (128, None)])
def test_pods_that_come_to_a_node_bring_their_requests_of_memory(host_gib: int, reason: str | None) -> None:
    full = [Service(name=f"full-{n}", level=0.9, used_gib=30.0, server="torchserve") for n in range(3)]
    pair = services(changes={"memory_request_bytes": 20 * GIB})
    plan = planned(*full, *pair, host_gib=host_gib, spare_cards=0)
    assert lends(plan) == (reason is None)
    assert reason is None or reason in reasons(plan)


@pytest.mark.parametrize(
    ("host_gib", "settings", "reason"),
    [
        (None, {}, "host_memory_unknown"),
        (32, {}, "host_memory_short"),
        (512, {"recommender": {"host_memory_bytes": 8 * GIB}}, "host_memory_short"),
        (None, {"recommender": {"host_memory_bytes": 64 * GIB}}, None),
    ],
)
def test_host_memory_is_a_hard_limit_and_unknown_is_none(
    host_gib: int | None, settings: dict[str, Any], reason: str | None
) -> None:
    plan = planned(*services(), host_gib=host_gib, settings=settings)
    assert lends(plan) == (reason is None)
    assert reason is None or reason in reasons(plan)


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": ((LATENCY_CRITICAL_LABEL, "true"),)},
        {"labels": (("gputide.io/isolation", "hard"),)},
        {"priority": Priority.LOW},
    ],
)
def test_who_must_answer_fast_stand_alone_or_yield_anyway_lends_nothing(changes: dict[str, Any]) -> None:
    assert not lends(planned(*services(**changes)))


@pytest.mark.parametrize("server", ["vllm", "jupyter", "vscode", "rstudio", "something-else", None])
def test_no_server_that_fills_what_it_sees_has_its_card_whole_on_a_node_that_lends(server: str | None) -> None:
    pool: dict[str, Any] = {"pool_gib": 20.0, "cache_ratio": 0.9} if server == "vllm" else {}
    whole = Service(name="always", level=0.9, used_gib=30.0, server=server, **pool)
    plan = planned(*services(), whole)
    assert lends(plan) == ("node_has_whole_card" not in reasons(plan))
    nodes = {card.node for card in plan.placement if card.memory_scaling is not None}
    (alone,) = [card for card in plan.placement if any("always" in part.pod for part in card.slices)]
    assert alone.node not in nodes


@pytest.mark.parametrize("seed", range(3))
def test_plan_frees_no_fewer_cards_for_being_able_to_lend(seed: int) -> None:
    random = np.random.default_rng(seed)
    shifts = [(0, 8), (8, 16), (16, 24), (0, 24), (8, 20)]
    chosen = [
        Service(
            name=f"s{n}", level=float(random.uniform(0.1, 0.6)), hours=shifts[int(random.integers(len(shifts)))],
            used_gib=float(random.uniform(3.0, 24.0)), server=str(random.choice(["triton", "onnxruntime"])),
        )
        for n in range(16)
    ]  # fmt: skip
    settings = {"guard": {"gaps_allowed": False}}
    apart = planned(*chosen, capability=replace(VGPU_MANAGER, lends_framebuffer=False), settings=settings)
    assert planned(*chosen, settings=settings).totals.cards_freed >= apart.totals.cards_freed
