"""Models share a card asleep only where few of their requests wait too long, by hand, and where asked."""

from collections import defaultdict
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.capabilities.register import CAPABILITIES
from fleet.decisions import Plan, RecommendationKind
from fleet.schema import Measure
from fleet.sleeping import ASLEEP_BYTES, weights_seconds
from fleet.units import GIB
from fleet.usage import History
from recommender.sleeping import Nights, Sleeper, SleepingCard, as_seen
from tests.recommender.builders import Service, check_plan, cluster, plan_of

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
        (model("odd", labels=(("gputide.io/ttft-p99-seconds", "2"),)), "sleeps_beside_nobody"),
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
        assert nights.late_ratio[own] == pytest.approx(crowded, abs=1e-9)


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
    assert (found[144:288] == found[:144]).all()
    assert found[57:69].min() == 2.0, "three steps before and after"
    assert found[:57].max() == 0.0
