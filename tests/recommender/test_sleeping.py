"""Models share a card asleep only where few of their requests wait too long, by hand, and where asked."""

from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.profile import profile_fleet
from fleet.capabilities.register import CAPABILITIES, HAMI
from fleet.decisions import Plan, RecommendationKind
from fleet.inventory import LIBRARY_OFF_LABEL
from fleet.profiles import NeighbourEffect
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.sleeping import ASLEEP_BYTES, weights_seconds
from fleet.units import GIB
from fleet.usage import History
from recommender.planner import make_plan
from recommender.problem import PlanScope
from recommender.sleeping import Nights, Sleeper, SleepingCard, as_seen
from tests.recommender.builders import NOW, Service, check_plan, cluster, plan_of

A100 = "NVIDIA A100-SXM4-80GB"
WAIT = {"recommender": {"sleep_wait_seconds": 10}}
KIND = RecommendationKind.SLEEP


def model(name: str, *, level: float = 0.01, **changes: Any) -> Service:
    """A model of 14 billion parameters on a card of 80 GiB, of whose KV cache little is used."""
    filled: dict[str, Any] = {"server": "vllm", "used_gib": 72.0, "pool_gib": 43.0, "cache_ratio": 0.02}
    return Service(name=name, level=level, **{**filled, **changes})


def asked(
    *services: Service, rate: float | dict[str, float] = 0.0005, host_gib: int | None = 512, days: int = 7
) -> History:
    """Models that are asked `rate` times a second, each request for five seconds."""
    history = cluster(*services, days=days, card_model=A100, card_gib=80, host_gib=host_gib)
    grid = history.slices
    rates = [rate.get(key.pod.rpartition("-")[0], 0.0005) if isinstance(rate, dict) else rate for key in grid.keys]
    seen = np.isfinite(grid.mean[Measure.SM_ACTIVE])
    table = np.where(seen, np.array(rates)[:, None], np.nan).astype(np.float32)
    mean = {**grid.mean, Measure.REQUEST_RATE: table, Measure.REQUESTS_RUNNING: 5.0 * table}
    return replace(history, slices=replace(grid, mean=mean, peak=mean))


def planned(history: History, **options: Any) -> Plan:
    plan = plan_of(history, **{"settings": WAIT, "only": KIND, **options})
    check_plan(plan, history)
    return plan


def groups(plan: Plan) -> dict[str, set[str]]:
    """Models by the card that they may share."""
    found: dict[str, set[str]] = defaultdict(set)
    for item in plan.recommendations:
        if item.kind is KIND:
            found[str(dict(item.why[0].values)["card"])].add(item.workloads[0].rpartition("/")[2])
    return dict(found)


def reasons(plan: Plan) -> set[str]:
    return {item.reason for item in plan.refused if item.kind is KIND}


FLEET = tuple(model(f"m{number}") for number in range(8))


def test_idle_models_share_cards_and_nothing_of_it_is_applied() -> None:
    history = asked(*FLEET)
    plan = planned(history)
    assert sum(map(len, groups(plan).values())) == 8
    assert len(groups(plan)) <= 2
    assert not plan.stages
    assert plan.totals.cards_after == 8
    assert plan.totals.cards_freed == 0


def test_no_model_sleeps_on_a_node_whose_cards_somebody_wants_whole() -> None:
    history = asked(*FLEET)
    nodes = tuple(replace(one, labels=(("gputide.io/node-mode", "whole"),)) for one in history.inventory.nodes)
    plan = planned(replace(history, inventory=replace(history.inventory, nodes=nodes)))
    assert not groups(plan)
    assert reasons(plan) == {"node_shares_nothing"}


def test_the_rest_of_a_plan_is_the_same_with_it() -> None:
    small = tuple(Service(name=f"small-{number}", level=0.1, used_gib=10.0) for number in range(3))
    history = asked(*FLEET, *small)
    off, on = plan_of(history), planned(history, only=None)
    assert on.placement == off.placement
    assert on.stages == off.stages
    assert [item for item in on.recommendations if item.kind is not KIND] == list(off.recommendations)
    moved = {name for item in off.recommendations for name in item.workloads}
    slept = {name for item in on.recommendations if item.kind is KIND for name in item.workloads}
    assert moved.isdisjoint(slept)
    assert not reasons(off)


@pytest.mark.parametrize("record", [record for record in CAPABILITIES if not record.backend.startswith("hami")])
def test_no_other_backend_lets_models_sleep_on_shared_cards(record: Any) -> None:
    plan = planned(asked(*FLEET), capability=record)
    assert not groups(plan)
    assert ("sleep", "sleep_books") in {(item.kind.value, item.reason) for item in plan.withheld}


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        (model("odd", labels=(("gputide.io/latency-critical", "true"),)), "latency_critical"),
        (model("odd", labels=(("gputide.io/isolation", "hard"),)), "sleep_isolation"),
        (model("odd", labels=(("gputide.io/min-replicas-warm", "1"),)), "warm_standby"),
        (model("odd", labels=(("gputide.io/autoscaled", "HorizontalPodAutoscaler 1-4"),)), "autoscaled"),
        (model("odd", labels=(("gputide.io/ttft-p99-seconds", "2"),)), "sleeps_beside_nobody"),
        (model("odd", labels=((LIBRARY_OFF_LABEL, "hami,volcano"),)), "library_off"),
        (model("odd", server="sglang"), "wake_time_unknown"),
        (model("odd", cache_ratio=None), "preallocation_hides_need"),
        (model("odd", changes={"kv_cache_pool_max_bytes": 60 * GIB}), "pool_estimated"),
        (model("odd", age_days=0.5), "history_too_short"),
        (model("odd", cache_ratio=0.9), "sleeps_beside_nobody"),
    ],
)
def test_model_that_may_not_sleep_is_refused(odd: Service, code: str) -> None:
    plan = planned(asked(*FLEET, odd))
    assert {item.reason for item in plan.refused if item.workload.endswith("/odd")} == {code}
    assert not any("odd" in names for names in groups(plan).values())


@pytest.mark.parametrize("odd", [model("odd", server="triton"), model("odd", replicas=2), model("odd", kind="Job")])
def test_nothing_is_said_of_what_never_sleeps(odd: Service) -> None:
    plan = planned(asked(*FLEET, odd))
    assert not [item for item in plan.refused if item.workload.endswith("/odd")]


def test_requests_that_nobody_counted_are_not_none() -> None:
    history = asked(*FLEET)
    assert groups(planned(history))
    without = dict(history.slices.mean)
    del without[Measure.REQUESTS_RUNNING]
    plan = planned(replace(history, slices=replace(history.slices, mean=without)))
    assert not groups(plan)
    assert reasons(plan) == {"requests_unknown"}


def test_requests_that_a_tenant_hides_show_by_the_work_of_its_card() -> None:
    hiding = {f"m{number}": 0.00001 for number in range(6)}
    history = asked(*FLEET, rate=hiding)
    grid = history.slices
    duty = grid.mean[Measure.DUTY_CYCLE].copy()
    duty[[key.pod.rpartition("-")[0] in hiding for key in grid.keys]] = 0.9
    busy = replace(history, slices=replace(grid, mean={**grid.mean, Measure.DUTY_CYCLE: duty}))
    honest = {model.name for model in FLEET} - hiding.keys()
    assert groups(planned(history))
    beside = [names & hiding.keys() for names in groups(planned(busy)).values() if names & honest]
    assert all(len(names) < 2 for names in beside), "two that always work leave no room for a third"


def test_work_without_any_request_is_not_believed() -> None:
    history = asked(*FLEET, model("odd", level=0.3), rate={"odd": 0.0})
    plan = planned(history)
    assert {item.reason for item in plan.refused if item.workload.endswith("/odd")} == {"requests_unknown"}


def test_model_whose_framebuffer_nobody_saw_is_refused() -> None:
    """Its need is known from a pod before it that had another grant, of which the framebuffer used says nothing."""
    odd = model("odd", changes={"framebuffer_granted_bytes": 60 * GIB})
    history = asked(*FLEET, odd)
    grid, grants = history.slices, history.inventory.grants
    row = next(number for number, key in enumerate(grid.keys) if key.pod == "odd-0")
    grant = next(one for one in grants if one.pod == "odd-0")
    half = grid.steps // 2
    change = grid.since + half * timedelta(seconds=grid.step_seconds)
    before = replace(grant, pod="odd-old", framebuffer_granted_bytes=80 * GIB, started_at=grid.since, ended_at=change)
    inventory = replace(history.inventory, grants=(*grants, before), as_of=history.inventory.as_of)
    inventory = replace(
        inventory, grants=tuple(replace(one, started_at=change) if one is grant else one for one in inventory.grants)
    )

    def split(measure: Measure, values: Any) -> Any:
        own, old = values[row].copy(), values[row].copy()
        own[:half], old[half:] = np.nan, np.nan
        if measure is Measure.FRAMEBUFFER_USED:
            own[:] = np.nan
        return np.vstack([values[:row], own[None], values[row + 1 :], old[None]])

    mean = {measure: split(measure, values) for measure, values in grid.mean.items()}
    keys = (*grid.keys, replace(grid.keys[row], pod="odd-old"))
    plan = planned(History(inventory=inventory, slices=replace(grid, keys=keys, mean=mean, peak=mean)))
    assert {item.reason for item in plan.refused if item.workload.endswith("/odd")} == {"preallocation_hides_need"}


def test_model_that_was_seldom_asked_keeps_room_for_more_than_it_needed() -> None:
    plan = planned(asked(*FLEET, rate={"m0": 0.01, "m1": 0.00001}))
    limits = {item.workloads[0].rpartition("/")[2]: dict(item.why[0].values)["limit_bytes"] for item in plan.by_hand}
    assert 60 * GIB < float(str(limits["m1"])) < 68 * GIB, "what a card has beside three that sleep"
    assert 36 * GIB < float(str(limits["m0"])) < 38 * GIB, "what its 6,048 requests needed, and a tenth"


def test_models_that_slowed_each_other_do_not_meet() -> None:
    history = asked(*FLEET)
    settings = Settings.model_validate({"risk": {"preset": "high"}, **WAIT})
    profiles = profile_fleet(history, settings=settings.analyzer, now=NOW)
    names = [profile.workload for profile in profiles.workloads]
    slowed = tuple(
        NeighbourEffect(
            neighbour=name, speed_ratio=0.6, speed_ratio_min=0.5, speed_ratio_max=0.7, days=5, measured_by="tokens"
        )
        for name in names
    )
    changed = replace(profiles, workloads=tuple(replace(one, beside=slowed) for one in profiles.workloads))
    scope = PlanScope(only=KIND)
    plan = make_plan(history, changed, settings=settings, capability=HAMI, now=NOW, scope=scope)
    assert not plan.by_hand


def test_one_factor_of_a_node_grants_the_limits_of_all_its_cards() -> None:
    models = (model(f"m{number}", cache_ratio=0.3 if number < 2 else 0.2) for number in range(4))
    plan = planned(asked(*models, host_gib=2048), capability=replace(HAMI, slices_per_card_max=2))
    limits: dict[tuple[object, object], int] = defaultdict(int)
    factors: dict[object, set[float]] = defaultdict(set)
    for item in plan.by_hand:
        said = {**dict(item.why[0].values), **dict(item.why[1].values)}
        limits[said["node"], said["card"]] += int(str(said["limit_bytes"]))
        factors[said["node"]].add(float(str(said["scaling"])))
    assert len(limits) > len(factors), "a node with several such cards"
    assert all(len(found) == 1 for found in factors.values())
    assert all(size <= min(factors[node]) * 80 * GIB for (node, _), size in limits.items())


@pytest.mark.parametrize("host_gib", [None, 20])
def test_weights_need_host_memory(host_gib: int | None) -> None:
    assert not groups(planned(asked(*FLEET, host_gib=host_gib)))


def test_weights_of_all_models_of_a_node_fit_half_its_memory() -> None:
    plan = planned(asked(*FLEET, host_gib=200))
    taken: dict[str, float] = defaultdict(float)
    for item in plan.recommendations:
        said = dict(item.why[0].values)
        taken[str(said["node"])] += float(str(said["host_bytes"]))
    assert taken
    assert max(taken.values()) <= 100 * GIB


def test_models_that_are_always_asked_do_not_meet_where_they_do_not_fit() -> None:
    busy = {f"m{number}": 1.0 for number in range(4)}
    found = groups(planned(asked(*FLEET, rate=busy)))
    assert found
    assert all(len(names & busy.keys()) <= 2 for names in found.values()), "two limits fit a card, three do not"


def test_lower_preset_shares_no_fewer_cards() -> None:
    history = asked(*(model(f"m{number}") for number in range(12)))
    cards = [12 - sum(map(len, found.values())) + len(found) for found in (
        groups(planned(history, risk=risk)) for risk in ("low", "medium", "high")
    )]  # fmt: skip
    assert cards == sorted(cards, reverse=True)
    assert cards[0] > cards[-1]


def test_times_are_those_that_were_published() -> None:
    assert weights_seconds(1.2e9, A100) == pytest.approx(0.26, rel=0.05)
    assert weights_seconds(8.3e9, A100) == pytest.approx(0.82, rel=0.05)
    assert 3.0 <= weights_seconds(59e9, A100) <= 6.0


def sleeper(row: int, size_gib: int, running: float, *, wait: float = 1000.0) -> Sleeper:
    """A model of which a request runs five seconds, for two steps."""
    return Sleeper(
        row=row, limit_bytes=ASLEEP_BYTES + size_gib * GIB, weights_bytes=float(size_gib * GIB), wait_seconds_max=wait,
        rate=np.full(2, running / 5.0), running=np.full(2, running), compute=np.zeros(2),
    )  # fmt: skip


def filled(models: list[Sleeper], capacity_gib: int) -> Nights | None:
    card = SleepingCard(capacity_gib * GIB, A100)
    nights = None
    for one in models:
        nights = card.nights_with(one, 1.0)
        if nights is None:
            return None
        card.take(one, nights)
    return nights


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.001, 3.0)), min_size=2, max_size=6),
)
def test_late_requests_are_those_for_whom_others_leave_no_room(drawn: list[tuple[int, float]]) -> None:
    """Against every set of models that may have a request at a time, in whole GiB."""
    models = [sleeper(row, size, running) for row, (size, running) in enumerate(drawn)]
    nights = filled(models, 80)
    room = int(80 - len(models) * ASLEEP_BYTES / GIB)
    sizes = [size for size, _ in drawn]
    if max(sizes) > room:
        assert nights is None
        return
    assert nights is not None
    for own, size in enumerate(sizes):
        others = [number for number in range(len(sizes)) if number != own]
        crowded = 0.0
        for busy in product((False, True), repeat=len(others)):
            chance = 1.0
            for number, is_busy in zip(others, busy, strict=True):
                rests = np.exp(-drawn[number][1])
                chance *= 1.0 - rests if is_busy else rests
            taken = sum(sizes[number] for number, is_busy in zip(others, busy, strict=True) if is_busy)
            crowded += chance * (taken > room - size)
        assert nights.late_ratio[own] == pytest.approx(crowded, abs=1e-5)


def test_wakes_are_as_many_as_when_requests_are_played() -> None:
    """Two models that never fit together: each request after one of the other wakes, which is half of them."""
    nights = filled([sleeper(0, 40, 0.0005), sleeper(1, 40, 0.0005)], 80)
    assert nights is not None
    assert nights.wakes_per_day == pytest.approx([0.0001 * 86400 / 2] * 2, rel=0.4)
    assert filled([sleeper(0, 20, 0.0005), sleeper(1, 20, 0.0005)], 80).wakes_per_day.sum() == 0  # type: ignore[union-attr]


def test_who_waits_too_long_for_weights_is_late() -> None:
    patient, hasty = (
        filled([sleeper(0, 40, 0.001, wait=wait), sleeper(1, 40, 0.001, wait=wait)], 80) for wait in (60.0, 1.0)
    )
    assert patient is not None
    assert hasty is not None
    assert patient.late_ratio.max() < 0.01
    assert hasty.late_ratio.min() > 0.2


def test_what_was_not_collected_counts_as_that_hour_of_other_days() -> None:
    day = np.zeros(144, np.float32)
    day[60:66] = 2.0
    values = np.tile(day, 3)
    values[144:288] = np.nan
    found = as_seen(values, 600)
    assert len(found) == 72
    assert (found[24:48] == found[:24]).all()
    assert found[9:12].min() == 2.0, "half an hour before and after"
    assert found[:9].max() == 0.0
