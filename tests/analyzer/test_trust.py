"""Counters that lie are named, and free nothing."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analyzer.trust import CHECKS
from dashboards.words.advice import finding_words, state_words
from fleet.profiles import CardState, WorkloadState
from fleet.schema import Measure
from fleet.words import Language, Words
from tests.analyzer.build import Slice, card_profile, history, noise, profile, work


def checks(given, workload="svc"):
    """Names of the failed checks, and whether each distrusts; each says its figures in every language."""
    found = profile(given, workload).trust
    for item in found:
        for language in Language:
            assert re.search(r"\d", finding_words(item, language)), item
    return {item.check: item.distrusts for item in found}


def test_every_check_has_its_sentence() -> None:
    assert Words(language=Language.EN).ids("seen") == set(CHECKS)


def test_honest_counters_pass_every_check() -> None:
    level = noise(2, low=0.1, high=0.8)
    usage = {**work(level), Measure.POWER: 100 + 200 * level, Measure.REQUEST_RATE: 50 * level}
    assert checks(history([Slice(usage=usage)], cards={"GPU-000": work(level)})) == {}


def test_a_container_at_zero_on_its_busy_card_is_distrusted() -> None:
    given = history([Slice(usage=work(0.0))], cards={"GPU-000": work(noise(2, low=0.4, high=0.9))})
    said = profile(given)
    assert said.state is WorkloadState.UNKNOWN
    assert checks(given) == {"container_zero_while_card_busy": True}
    assert re.fullmatch(
        r"Counter duty_cycle_ratio is not trusted: the container reads zero in \d+ windows in which its card was busy "
        r"\(mean \d\d %\) and none of its tenants accounts for it\.",
        state_words(said, Language.EN),
    )
    assert re.search(r"有 [\d,]+ 个窗口容器读数为零，而所在卡繁忙（平均 \d\d%）", state_words(said, Language.ZH))
    assert said.compute.p95 is None
    assert card_profile(given, "GPU-000").state is CardState.UNTRUSTED


def test_a_container_at_zero_beside_a_busy_neighbour_is_believed() -> None:
    pair = [
        Slice(workload="quiet", usage=work(0.0), card="GPU-s", compute=0.5),
        Slice(workload="loud", usage=work(0.6), card="GPU-s", compute=0.5),
    ]
    assert checks(history(pair, cards={"GPU-s": work(0.6)}), "quiet") == {}


def test_no_slice_of_a_busy_shared_card_is_believed_when_all_read_zero() -> None:
    pair = [Slice(workload=name, usage=work(0.0), card="GPU-s", compute=0.5) for name in ("one", "two")]
    given = history(pair, cards={"GPU-s": work(noise(2, low=0.5, high=0.6))})
    assert checks(given, "one") == checks(given, "two") == {"container_zero_while_card_busy": True}


def test_requests_served_without_any_engine_moving_are_distrusted() -> None:
    given = history([Slice(usage={**work(0.0), Measure.REQUEST_RATE: 20.0})])
    assert checks(given) == {"zero_while_serving": True}


def test_a_card_at_rest_of_a_pod_that_serves_with_another_is_believed() -> None:
    level = noise(2, low=0.1, high=0.8)
    pair = [
        Slice(pod="svc-0", card=card, usage={**work(busy), Measure.REQUEST_RATE: 20.0})
        for card, busy in (("GPU-000", level), ("GPU-001", 0.0))
    ]
    assert checks(history(pair)) == {}


@pytest.mark.parametrize("engine", [Measure.ENCODER, Measure.DECODER])
def test_a_transcoder_that_serves_by_its_cards_video_engines_alone_is_believed(engine: Measure) -> None:
    given = history(
        [Slice(usage={**work(0.0), Measure.REQUEST_RATE: 20.0})], cards={"GPU-000": {**work(0.0), engine: 0.6}}
    )
    assert checks(given) == {}


def test_video_engines_of_a_neighbour_do_not_excuse_a_zero_of_all_of_ones_own() -> None:
    usage = {**work(0.0), Measure.ENCODER: 0.0, Measure.DECODER: 0.0, Measure.REQUEST_RATE: 20.0}
    given = history([Slice(usage=usage)], cards={"GPU-000": {**work(0.0), Measure.ENCODER: 0.6}})
    assert checks(given) == {"container_zero_while_card_busy": True, "zero_while_serving": True}


def test_sm_active_above_the_duty_cycle_is_distrusted() -> None:
    level = noise(2, low=0.4, high=0.8)
    usage = {**work(level), Measure.DUTY_CYCLE: level / 4}
    assert checks(history([Slice(usage=usage)])) == {"sm_active_above_duty_cycle": True}


@pytest.mark.parametrize("windows", [36, 80])
def test_a_value_that_stands_still_for_hours_is_frozen(windows: int) -> None:
    level = noise(2, low=0.1, high=0.8)
    level[100 : 100 + windows] = 0.37
    assert checks(history([Slice(usage=work(level))], jitter=0)) == {"frozen": True}


def test_a_value_that_repeats_for_an_hour_is_not_frozen() -> None:
    level = noise(2, low=0.1, high=0.8)
    level[100:106] = 0.37
    assert checks(history([Slice(usage=work(level))], jitter=0)) == {}


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_an_idle_and_a_full_card_may_stand_still(level: float) -> None:
    assert "frozen" not in checks(history([Slice(usage=work(level))], jitter=0))


def test_a_duty_cycle_that_stands_still_while_sm_active_moves_is_not_frozen() -> None:
    usage = {**work(noise(2, low=0.1, high=0.3)), Measure.DUTY_CYCLE: 0.85}
    assert checks(history([Slice(usage=usage)], jitter=0)) == {}


def test_power_that_stands_still_is_frozen_even_at_zero_activity() -> None:
    assert checks(history([Slice(usage={**work(0.0), Measure.POWER: 61.3})])) == {"frozen": True}


def test_a_slice_at_a_hundredth_of_its_card_has_the_wrong_scale() -> None:
    level = noise(2, low=0.2, high=0.9)
    usage = {Measure.DUTY_CYCLE: level / 100, Measure.FRAMEBUFFER_USED: 2e10}
    given = history([Slice(usage=usage)], cards={"GPU-000": {Measure.DUTY_CYCLE: level}})
    assert checks(given) == {"scale_off_by_100": True}


def test_sm_active_at_a_hundredth_that_follows_the_duty_cycle_has_the_wrong_scale() -> None:
    level = noise(2, low=0.2, high=0.9)
    assert checks(history([Slice(usage={**work(level), Measure.SM_ACTIVE: level / 100})]))["scale_off_by_100"]


def test_tiny_kernels_at_a_full_duty_cycle_are_remarked_and_believed() -> None:
    usage = {
        Measure.SM_ACTIVE: noise(2, low=0.008, high=0.009),
        Measure.DUTY_CYCLE: noise(2, low=0.95, high=1.0, seed=5),
        Measure.FRAMEBUFFER_USED: 2e10,
    }
    given = history([Slice(usage=usage)])
    assert checks(given) == {"spinning": False}
    assert profile(given).state is WorkloadState.OVERSIZED


def test_spinning_ranks_are_neither_idle_nor_distrusted() -> None:
    usage = {**work(noise(2, low=0.1, high=0.2)), Measure.DUTY_CYCLE: 1.0}
    said = profile(history([Slice(workload="svc", usage=usage, kind="Job", server="pytorch") for _ in range(4)]))
    assert {item.check for item in said.trust} == {"spinning"}
    assert said.state not in {WorkloadState.IDLE_HELD, WorkloadState.UNKNOWN}
    assert finding_words(said.trust[0], Language.EN).endswith("(4 of 4 slices)")
    assert finding_words(said.trust[0], Language.ZH).endswith("（4 个切片中的 4 个）")


def test_percent_in_a_ratio_is_distrusted() -> None:
    assert "above_one" in checks(history([Slice(usage={Measure.DUTY_CYCLE: noise(2, low=20, high=60)})]))


def test_mebibytes_taken_for_bytes_are_distrusted() -> None:
    assert checks(history([Slice(usage=work(noise(2, low=0.1, high=0.9), framebuffer=21_000))])) == {
        "framebuffer_scale": True
    }


def test_more_framebuffer_than_the_card_has_is_distrusted() -> None:
    usage = work(noise(2, low=0.1, high=0.9), framebuffer=100 * 2**30)
    assert checks(history([Slice(usage=usage)])) == {"framebuffer_above_card": True}


def test_a_missing_value_is_no_zero() -> None:
    level = noise(2, low=0.4, high=0.8)
    level[::7] = np.nan
    said = profile(history([Slice(usage=work(level))], cards={"GPU-000": work(0.6)}))
    assert said.trust == ()
    assert said.compute.p50 is not None
    assert said.compute.p50 > 0.4


def test_a_share_below_zero_is_a_rate_across_a_reset_and_distrusted() -> None:
    level = noise(2, low=0.3, high=0.6)
    level[50] = -4.0
    given = history([Slice(usage={**work(0.5), Measure.SM_ACTIVE: level})])
    assert checks(given)["out_of_range"] is True
    assert profile(given).state is WorkloadState.UNKNOWN


def test_framebuffer_of_zero_while_kernels_run_is_missing_and_not_free() -> None:
    given = history([Slice(usage=work(noise(2, low=0.3, high=0.6), framebuffer=0.0))])
    assert checks(given) == {"framebuffer_zero_while_working": True}
    assert profile(given).state is WorkloadState.UNKNOWN


def test_framebuffer_of_zero_without_work_is_believed() -> None:
    assert checks(history([Slice(usage=work(0.0, framebuffer=0.0))])) == {}


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e30, -1.0])
@pytest.mark.parametrize("measure", [Measure.SM_ACTIVE, Measure.DUTY_CYCLE, Measure.FRAMEBUFFER_USED])
def test_impossible_values_get_an_answer_without_them(bad: float, measure: Measure) -> None:
    usage = {name: np.broadcast_to(values, 432).astype(np.float32).copy() for name, values in work(0.5).items()}
    usage[measure][::3] = bad
    said = profile(history([Slice(usage=usage)], days=3))
    shown = [said.framebuffer.used_max, said.framebuffer.need_max, *said.hour_of_week.max, said.compute.max]
    assert all(value is None or 0 <= value <= 80 * 2**30 for value in shown)
    assert said.state is WorkloadState.UNKNOWN


def test_one_impossible_reading_of_framebuffer_is_left_out() -> None:
    held = np.full(288, 20 * 2**30, np.float32)
    held[7] = np.inf
    assert profile(history([Slice(usage=work(0.5, framebuffer=held))])).framebuffer.used_max == 20 * 2**30


def test_engines_at_zero_for_days_while_framebuffer_or_cache_move_are_distrusted() -> None:
    moving = np.float32(8 * 2**30) + np.float32(2**28) * noise(2, low=0.0, high=1.0)
    for usage in (
        {Measure.FRAMEBUFFER_USED: moving},
        {Measure.KV_CACHE_USAGE: noise(2, low=0.1, high=0.6)},
        {Measure.GENERATED_TOKEN_RATE: 40.0},
    ):
        assert checks(history([Slice(usage={**work(0.0), **usage})])) == {"zero_while_moving": True}
    assert checks(history([Slice(usage=work(0.0))], jitter=0)) == {}


def test_framebuffer_that_moves_in_a_night_without_activity_is_too_little_work_for_a_counter() -> None:
    level = noise(2, low=0.1, high=0.8)
    level[100:200] = 0.0
    moving = np.float32(8 * 2**30) + np.float32(2**28) * noise(2, low=0.0, high=1.0)
    assert checks(history([Slice(usage={**work(level), Measure.FRAMEBUFFER_USED: moving})])) == {}


@pytest.mark.parametrize(("watts", "found"), [(260.0, {"zero_while_drawing": True}), (180.0, {})])
def test_card_at_rest_that_draws_the_power_of_work_is_distrusted(watts: float, found: dict[str, bool]) -> None:
    card = {**work(0.0), Measure.POWER: watts}
    given = history([Slice(usage=work(0.0))], cards={"GPU-000": card}, jitter=0)
    assert checks(given) == found


def replicas(*levels: Any) -> list[Slice]:
    return [Slice(pod=f"svc-{n}", card=f"GPU-{n:03}", usage=work(level)) for n, level in enumerate(levels)]


def test_replica_at_zero_all_the_time_beside_busy_ones_is_distrusted_and_one_beside_idle_ones_is_not() -> None:
    busy, idle = noise(2, low=0.2, high=0.6), np.where(noise(2, low=0.0, high=1.0) > 0.97, 0.02, 0.0)
    given = history(replicas(busy, busy, 0.0), jitter=0)
    assert checks(given) == {"zero_beside_replicas": False}
    assert profile(given).disbelieved_pods == ("svc-2",)
    assert checks(history(replicas(busy, 0.0), jitter=0)) == {}
    half_used = [
        replace(replicas(level)[0], pod=f"svc-{n}", card=f"GPU-{n}{side}")
        for n in range(3)
        for side, level in ((0, busy), (1, 0.0))
    ]
    assert checks(history(half_used, jitter=0)) == {}
    assert checks(history(replicas(idle, idle, 0.0), jitter=0)) == {}


def test_tenant_at_zero_on_a_card_whose_other_counters_lie_is_distrusted() -> None:
    liars = replicas(noise(2, low=0.2, high=0.6), noise(2, low=0.2, high=0.6), 0.0)
    quiet = Slice(workload="quiet", usage=work(0.0), card="GPU-002", compute=0.5)
    apart = Slice(workload="apart", usage=work(0.0), card="GPU-t", compute=0.5)
    given = history([*liars, quiet, apart], jitter=0)
    assert checks(given, "quiet") == {"zero_beside_distrusted": True}
    assert checks(given, "apart") == {}


def test_what_a_tenants_server_says_of_itself_bears_on_no_neighbour() -> None:
    said = {**work(0.0), Measure.KV_CACHE_USAGE: noise(2, low=0.1, high=0.6)}
    pair = [
        Slice(workload=name, usage=usage, card="GPU-s", compute=0.5)
        for name, usage in (("said", said), ("quiet", work(0.0)))
    ]
    given = history(pair, jitter=0)
    assert checks(given, "said") == {"zero_while_moving": True}
    assert checks(given, "quiet") == {}


def test_replica_whose_framebuffer_rests_too_while_that_of_the_busy_ones_moves_is_really_idle() -> None:
    def holding(level: Any, moves: float) -> dict[Measure, Any]:
        return {**work(level), Measure.FRAMEBUFFER_USED: np.float32(2**33) + moves * noise(2, low=0.0, high=2.0**28)}

    busy = [noise(2, low=0.2, high=0.6) for _ in range(3)]
    three = [
        Slice(pod=f"svc-{n}", card=f"GPU-{n:03}", usage=holding(level, moves))
        for n, (level, moves) in enumerate(((busy[0], 1.0), (busy[1], 1.0), (0.0, 0.0)))
    ]
    given = history(three, jitter=0)
    assert checks(given) == {}
    assert profile(given).idle_pods == ("svc-2",)


def frozen_after_a_day(number: int) -> Any:
    level = noise(2, low=0.1 + 0.1 * number, high=0.5 + 0.1 * number)
    return np.where(np.arange(len(level)) > 144, 0.37, level)


def test_workload_is_read_by_those_of_its_replicas_whose_counters_pass_and_distrusted_once_most_fail() -> None:
    honest, lying = [noise(2, low=0.1, high=0.5), noise(2, low=0.2, high=0.6)], [frozen_after_a_day(n) for n in (0, 1)]
    alone = profile(history(replicas(*honest), jitter=0))
    half = profile(history(replicas(*honest, *lying), jitter=0))
    assert (half.is_trusted, half.disbelieved_pods, half.compute.p95) == (True, ("svc-2", "svc-3"), alone.compute.p95)
    assert {item.check: item.distrusts for item in half.trust} == {"frozen": False}
    most = profile(history(replicas(honest[0], *lying), jitter=0))
    assert (most.is_trusted, most.disbelieved_pods, most.compute.p95) == (False, (), None)
    assert card_profile(history(replicas(*honest, *lying), jitter=0), "GPU-002").state is CardState.UNTRUSTED
