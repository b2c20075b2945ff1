"""What framebuffer is needed, and when nobody can tell."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.profiles import WorkloadState
from fleet.schema import Measure
from fleet.units import GIB
from tests.analyzer.build import MONDAY, Slice, history, noise, profile, work
from tests.english import english

BUSY = noise(2, low=0.6, high=0.9)


def test_need_is_what_was_used_at_most() -> None:
    used = np.linspace(5 * GIB, 30 * GIB, 288)
    said = profile(history([Slice(usage=work(BUSY, framebuffer=used))])).framebuffer
    assert said.need_max == pytest.approx(30 * GIB, rel=1e-6)
    assert said.preallocated is False


def test_need_of_a_preallocating_server_is_what_its_cache_uses() -> None:
    usage = {**work(BUSY, framebuffer=72 * GIB), Measure.KV_CACHE_USAGE: 0.25}
    said = profile(history([Slice(usage=usage, server="vllm", pool=40 * GIB)])).framebuffer
    assert said.used_max == pytest.approx(72 * GIB, rel=1e-6)
    assert said.need_max == pytest.approx(42 * GIB, rel=1e-6)
    assert said.preallocated is True


@pytest.mark.parametrize("pool", [None, 40 * GIB])
def test_need_is_unknown_without_the_caches_usage(pool: int | None) -> None:
    said = profile(history([Slice(usage=work(BUSY, framebuffer=72 * GIB), server="vllm", pool=pool)]))
    assert said.framebuffer.need_max is None
    assert said.state is WorkloadState.BUSY


def test_need_is_unknown_when_the_caches_usage_is_mostly_missing() -> None:
    cache = np.where(np.arange(288) % 3 == 0, 0.2, np.nan)
    usage = {**work(BUSY, framebuffer=72 * GIB), Measure.KV_CACHE_USAGE: cache}
    assert profile(history([Slice(usage=usage, server="vllm", pool=40 * GIB)])).framebuffer.need_max is None


def test_steps_without_the_caches_usage_do_not_raise_the_need() -> None:
    cache = np.where(np.arange(288) % 10 == 0, np.nan, 0.25)
    usage = {**work(BUSY, framebuffer=72 * GIB), Measure.KV_CACHE_USAGE: cache}
    said = profile(history([Slice(usage=usage, server="vllm", pool=40 * GIB)])).framebuffer
    assert said.need_max == pytest.approx(42 * GIB, rel=1e-6)


@pytest.mark.parametrize("server", [None, "ray-serve", "triton"])
def test_a_constant_near_the_grant_betrays_preallocation_when_the_server_is_silent(server: str | None) -> None:
    said = profile(history([Slice(usage=work(BUSY, framebuffer=72 * GIB), server=server)])).framebuffer
    assert said.preallocated is True
    assert said.need_max is None


@pytest.mark.parametrize("framebuffer", [20 * GIB, np.linspace(40 * GIB, 75 * GIB, 288)])
def test_a_small_or_moving_framebuffer_is_not_preallocated(framebuffer) -> None:
    said = profile(history([Slice(usage=work(BUSY, framebuffer=framebuffer), server=None)])).framebuffer
    assert said.preallocated is False


def test_a_grant_far_above_the_need_is_oversized() -> None:
    said = profile(history([Slice(usage=work(BUSY, framebuffer=20 * GIB))]))
    assert said.state is WorkloadState.OVERSIZED
    assert "20,480 MiB of 81,920 MiB" in english(said)


def test_compute_far_below_the_grant_is_oversized() -> None:
    usage = work(noise(2, low=0.1, high=0.45), framebuffer=70 * GIB)
    assert profile(history([Slice(usage=usage)])).state is WorkloadState.OVERSIZED
    assert profile(history([Slice(usage=usage, compute=0.5)])).state is WorkloadState.BUSY


def test_the_peak_of_a_start_is_told_from_the_steady_one() -> None:
    used = np.full(288, 20 * GIB, np.float32)
    used[:3] = 50 * GIB
    used[150], used[151:154] = 0, 45 * GIB
    level = np.where(used > 0, BUSY, 0)
    said = profile(history([Slice(usage=work(level, framebuffer=used))])).framebuffer
    assert (said.start_max, said.steady_max, said.need_max) == (50 * GIB, 20 * GIB, 50 * GIB)


def test_a_start_before_the_history_was_not_seen() -> None:
    given = history([Slice(usage=work(BUSY), started_at=MONDAY - timedelta(days=3))])
    said = profile(given).framebuffer
    assert said.start_max is None
    assert said.steady_max == said.need_max


def test_hidden_need_says_that_only_a_canary_helps() -> None:
    said = profile(history([Slice(usage=work(BUSY, framebuffer=72 * GIB), server="vllm")]))
    assert said.framebuffer.is_hidden
    assert (said.framebuffer.start_max, said.framebuffer.steady_max) == (None, None)
    assert "canary" in english(said)


@pytest.mark.parametrize("bad", [np.inf, -0.5, 40.0])
def test_an_impossible_cache_usage_is_left_out(bad: float) -> None:
    cache = np.where(np.arange(288) % 10 == 0, bad, 0.25)
    usage = {**work(BUSY, framebuffer=72 * GIB), Measure.KV_CACHE_USAGE: cache}
    said = profile(history([Slice(usage=usage, server="vllm", pool=40 * GIB)])).framebuffer
    assert said.need_max == pytest.approx(42 * GIB, rel=1e-6)
